"""Builds the model of an archive, refuses one with random parameters, and says how large it is, and where it runs."""

from __future__ import annotations

import mimetypes
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

# Imported at once: the first explanation of a process would otherwise wait a second or more for these.
import torch
import torch._decomp.decompositions_for_jvp
import torch.fx.experimental.symbolic_shapes
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cutaway.adapters import Adapter, create_adapter, find_adapter, load_model
from cutaway.contract.errors import CutawayError, Reason, at, error
from cutaway.contract.requests import Raw
from cutaway.contract.results import DataSet
from cutaway.engine.execution.fitting import rows_that_fit
from cutaway.engine.model.failures import failures_of
from cutaway.engine.model.inspected_model import Inputs, InspectedModel
from cutaway.engine.model.session import Cancellation, Checkpoint, Examples, Kept
from cutaway.engine.runtime.numerics import arrays_of
from cutaway.engine.runtime.rng import fingerprint, new_seed, seeded
from cutaway.server.archive.reader import ALIGNMENT, LABELS, ArchiveManifest
from cutaway.server.memory import MemoryPool, RequestMemory, size_text

# An archive without weights leaves the parameters to its adapter. They are random if they depend on the state of the
# random number generators: then two builds from different states differ. One that draws nothing needs no second build.

_Build: TypeAlias = Callable[[str], tuple[Adapter, InspectedModel]]
"""A function that builds the model on a device."""

_ADVICE = (
    "package it with --weights FILE, load or seed the parameters in the adapter, or allow random ones with "
    "--random-weights"
)


def load_archived(manifest: ArchiveManifest, directory: Path, device: str) -> tuple[Adapter, InspectedModel]:
    """Returns the adapter and the model of the archive in ``directory``.

    Random number generators are left as one build leaves them.

    Raises:
        InvalidArgument: ``ADAPTER_INVALID``.
        FailedPrecondition: ``WEIGHTS_MISSING``, for random parameters that the archive does not allow.
    """
    before = fingerprint(torch.device(device))
    build = partial(_build, find_adapter(manifest.adapter, directory), manifest, directory)
    adapter, model = build(device)
    if not (manifest.weights or manifest.random_weights) and fingerprint(torch.device(device)) != before:
        with seeded(new_seed(), torch.device(device)):
            _require_chosen_parameters(model, build)
    return adapter, model


def _build(
    kind: type[Adapter], manifest: ArchiveManifest, directory: Path, device: str
) -> tuple[Adapter, InspectedModel]:
    weights = directory / manifest.weights if manifest.weights else None
    adapter = create_adapter(kind, manifest.options, directory, weights)
    with MappedWeights(weights) if weights and device == "cpu" else nullcontext():
        return adapter, load(adapter, device)


def _require_chosen_parameters(model: InspectedModel, build: _Build) -> None:
    """Builds the model once more, on the CPU; raises ``WEIGHTS_MISSING`` unless both builds have equal parameters.

    The second model is freed on return.
    """
    try:
        _, second = build("cpu")
    except CutawayError as failure:
        what = f"a second build, to find out whether parameters are random, failed: {failure.message}"
        raise _refusal(what) from failure
    if not set(model.module.modules()).isdisjoint(second.module.modules()):
        raise _refusal("both loads return the same modules, which may be random: create them in the adapter's build()")
    if second.weights_sha256 != model.weights_sha256:
        raise _refusal("the parameters are random: the archive has no weights, and two builds differ")


def _refusal(what: str) -> CutawayError:
    return error(Reason.WEIGHTS_MISSING, f"{what}; {_ADVICE}")


def load(adapter: Adapter, device: str) -> InspectedModel:
    """Returns the model of ``adapter``, with the data sets and the checkpoints that its directory has.

    Raises:
        InvalidArgument: ``ADAPTER_INVALID``, or ``INVALID_VALUE`` with the name of a data set or of a checkpoint.
    """
    model, folder = load_model(adapter, device), adapter.directory
    if folder is not None:
        model.kept = Kept(
            dict(_data_sets(adapter, folder / "data_sets")), (*_checkpoints(model, folder / "checkpoints"),)
        )
    return model


def outlines(kept: Kept) -> dict[str, Any]:
    """Returns what the description of a model says of its data sets and checkpoints."""
    sets = tuple(DataSet(name, each.rows, bool(each.labels)) for name, each in kept.data_sets.items())
    return {"data_sets": sets, "checkpoint_rates": tuple(each.learning_rate for each in kept.checkpoints)}


# Data sets and checkpoints. Loading a model reads only their outlines; requests that use them read the files.


def _data_sets(adapter: Adapter, folder: Path) -> Iterator[tuple[str, Examples]]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        name = path.name if path.is_dir() else path.stem
        with at(f"data_set.{name}"):
            examples = _of_tensors(path) if path.suffix == ".safetensors" else _of_raw(adapter, path)
            if not examples.rows or len(examples.labels) not in (0, examples.rows):
                what = f"{path.name} has {examples.rows} examples and {len(examples.labels)} labels"
                raise error(Reason.INVALID_VALUE, f"{what}: it needs at least one, and a label for each or for none")
        yield name, examples


def _of_tensors(path: Path) -> Examples:
    with _readable(path), safe_open(path, "pt") as file:
        labels = file.get_tensor(LABELS).tolist() if LABELS in file.keys() else []  # noqa: SIM118  # no mapping
        names = [name for name in file.keys() if name != LABELS]  # noqa: SIM118
        counts = {name: (file.get_slice(name).get_shape() or [0])[0] for name in names}
    if len({*counts.values()}) != 1 or not all(type(label) is int for label in labels):
        what = f"{path.name} has {counts} examples: give each input as many, and a label of int64 for each"
        raise error(Reason.INVALID_VALUE, what)

    def read(_: Cancellation) -> Inputs:
        found = load_file(path)
        return {name: found[name] for name in names}

    return Examples(next(iter(counts.values())), tuple(labels), read)


def _of_raw(adapter: Adapter, path: Path) -> Examples:
    """Reads a text for each line of a file, or an example for each file of a folder, perhaps in folders by class."""
    if path.is_file():
        texts = [line.encode() for line in path.read_text("utf-8").splitlines() if line]
        return Examples(
            len(texts), (), lambda wait: decoded(adapter, [Raw(text, "text/plain") for text in texts], wait)
        )
    files = sorted(file for file in path.rglob("*") if file.is_file())
    classes = [file.parent.name for file in files if file.parent != path]
    labels = tuple(_class(adapter, name) for name in classes)

    def read(cancellation: Cancellation) -> Inputs:
        types = [mimetypes.guess_type(file.name)[0] or "" for file in files]
        return decoded(adapter, [Raw(file.read_bytes(), kind) for file, kind in zip(files, types)], cancellation)

    return Examples(len(files), labels, read)


def _class(adapter: Adapter, name: str) -> int:
    known = [*adapter.labels]
    if name not in known and not name.isdecimal():
        raise error(Reason.INVALID_VALUE, f"the folder {name!r} is no label of the adapter, and no number of a class")
    return known.index(name) if name in known else int(name)


def _checkpoints(model: InspectedModel, folder: Path) -> Iterator[Checkpoint]:
    """Yields the checkpoints whose files are called NUMBER@LEARNING_RATE, in order."""
    state = {name: tensor for name, tensor in model.module.state_dict().items() if isinstance(tensor, Tensor)}
    files = [*folder.iterdir()] if folder.is_dir() else []
    for path in sorted(files, key=lambda file: int(file.name.partition("@")[0])):
        rate = path.name.removesuffix(".safetensors").partition("@")[2]
        with at(f"checkpoint.{rate}"), _readable(path), safe_open(path, "pt") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
            wrong = {*shapes} ^ _names(state, shapes)
            wrong |= {name for name in {*shapes} - wrong if [*state[name].shape] != shapes[name]}
            if wrong:
                what = f"{min(wrong)!r} is not in both the file and the model's state, with one shape"
                raise error(
                    Reason.INVALID_VALUE, f"{what}: write safetensors.torch.save_model(model, path) in training"
                )
        yield Checkpoint(float(rate), partial(_read, path, state, model.device))


def _names(state: Mapping[str, Tensor], given: Container[str]) -> set[str]:
    """Returns the names that a file of ``state`` has: of tensors that are one, such as tied weights, one name."""
    by_tensor: dict[tuple[int, ...], str] = {}
    for name, tensor in state.items():
        place = (tensor.data_ptr(), *tensor.shape) if tensor.numel() else (id(tensor),)
        if place not in by_tensor or name in given:
            by_tensor[place] = name
    return {*by_tensor.values()}


def _read(path: Path, state: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: tensor.to(device, state[name].dtype) for name, tensor in load_file(path).items()}


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as failure:
        raise error(Reason.INVALID_VALUE, f"{path.name} is no file of safetensors: {failure}") from failure


_MORE = "; CUTAWAY_MEMORY_BYTES or CUTAWAY_REQUEST_MEMORY_BYTES give it more"


def what_fits(model: InspectedModel, example: Callable[[], Inputs | None], memory: RequestMemory | None) -> str:
    """Returns the bytes of the weights, and how many rows like the first of ``example`` one pass may have."""
    state = (*model.module.parameters(), *model.module.buffers())
    arrays = chain.from_iterable(map(arrays_of, state))  # a sparse buffer has several
    size = f"weights of {size_text(sum(array.nbytes for array in arrays))}"
    try:
        inputs = example() if memory is not None else None
        if inputs is None or memory is None:
            return size
        with model.session():
            predicted, explained = rows_that_fit(model, inputs, memory.most)
    except Exception:  # of the adapter's example: a request for it gets the same error
        return f"{size}; its example cannot be run"
    return (
        f"{size}; a request may take {size_text(memory.most)}: about {_rounded(predicted)} rows like its example "
        f"a pass, {_rounded(explained)} with gradients{'' if explained else _MORE}"
    )


def _rounded(rows: int) -> str:
    return f"{float(f'{rows:.3g}'):,.0f}"


# Parameters are in the memory of the file that they are loaded from, whose pages the workers of a model share.
# Loading copies each tensor of the mapped file into a parameter, so that every worker has the weights for itself. While
# `MappedWeights` is in force, a large parameter takes the place of its tensor in a private mapping instead. The kernel
# copies a page for the process that writes to it, so no worker sees what another one changes.

_LEAST_BYTES = 64 << 10
"""The smallest parameter that is worth a place in the mapping."""


class MappedWeights(TorchFunctionMode):
    """Lets parameters, while the block runs, use the memory of a mapped file that would be copied into them.

    A parameter keeps its identity, its layout and its data type: one that differs from the file in these is copied, and
    so is one whose memory other tensors see. Each place in the file is used by one parameter, which may be tied.

    Args:
        path: the safetensors file, which nobody may change in place; on systems without ``/proc``, all is copied.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path.resolve()
        self._mapped: dict[range, int] = {}
        self._users: dict[int, nn.Parameter] = {}
        self._storage: Any = None

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Runs ``func``, except for a copy into a parameter that can do without."""
        if func is Tensor.copy_ and len(args) == 2 and not kwargs and (place := self._place(*args)) is not None:
            args[0].data = place
            return args[0]
        return func(*args, **(kwargs or {}))

    def _place(self, parameter: Any, tensor: Any) -> Tensor | None:
        """Returns the place of ``tensor`` in the mapping, if ``parameter`` can use it."""
        if not _are_alike(parameter, tensor) or (offset := self._offset(tensor.data_ptr(), tensor.nbytes)) is None:
            return None
        if self._users.get(offset, parameter) is not parameter or not self._is_alone(parameter):
            return None
        if self._storage is None:
            self._storage = torch.UntypedStorage.from_file(str(self._path), False, self._path.stat().st_size)
        memory = self._storage[offset : offset + tensor.nbytes]
        place = torch.empty(0, dtype=tensor.dtype).set_(memory, 0, tensor.shape, tensor.stride())
        if not torch.equal(place.view(-1).view(torch.int64), tensor.view(-1).view(torch.int64)):  # it was changed
            return None
        self._users[offset] = parameter
        return place

    def _offset(self, address: int, size: int) -> int | None:
        """Returns where in the file the memory at ``address`` begins; None if it is not the file's."""
        for read in (False, True):
            if read:
                self._mapped = _mappings(self._path)
            for addresses, offset in self._mapped.items():
                if address in addresses and address + size <= addresses.stop:
                    return address - addresses.start + offset
        return None

    def _is_alone(self, parameter: nn.Parameter) -> bool:
        alone = _uses(parameter) == _uses(nn.Parameter(torch.empty(1)))
        return alone or any(user is parameter for user in self._users.values())


def _uses(tensor: Tensor) -> int:
    """Returns how many hold the memory of ``tensor``: of a view, or of an array of NumPy, one more."""
    storage = tensor.untyped_storage()
    return int(torch._C._storage_Use_Count(storage._cdata))


def _are_alike(parameter: Any, tensor: Any) -> bool:
    """Returns whether ``tensor`` may become the data of ``parameter``, and is large enough."""
    return (
        type(parameter) is nn.Parameter
        and type(tensor) is Tensor
        and tensor.device.type == parameter.device.type == "cpu"
        and tensor.dtype is parameter.dtype
        and tensor.shape == parameter.shape
        and tensor.is_contiguous()
        and tensor.stride() == parameter.stride()
        and tensor.nbytes >= _LEAST_BYTES
        and tensor.data_ptr() % ALIGNMENT == 0  # kernels round otherwise at other addresses
        and tensor.nbytes % 8 == 0  # compared as whole numbers of 8 bytes
    )


def _mappings(path: Path) -> dict[range, int]:
    """Returns the addresses at which this process maps a file, and the place in the file of the first of each."""
    found = {}
    with suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            addresses, _, offset, _, _, *name = line.split(maxsplit=5)
            if name == [str(path)]:
                start, stop = (int(address, 16) for address in addresses.split("-"))
                found[range(start, stop)] = int(offset, 16)
    return found


def decoded(adapter: Adapter, raw: Sequence[Raw], cancellation: Cancellation) -> Inputs:
    """Returns the examples of a request as one batch.

    Raises:
        InvalidArgument: ``RAW_UNDECODABLE``, with the example; ``INPUT_SHAPE`` if they make no batch.
    """
    examples = []
    for index, each in enumerate(raw):
        cancellation.raise_if_cancelled()
        with at(f"examples[{index}]"), failures_of("the adapter's preprocess", reason=Reason.RAW_UNDECODABLE):
            examples.append(adapter.decode(each.data, each.media_type))
    with at("examples"), failures_of("the adapter's collate", reason=Reason.INPUT_SHAPE):
        return adapter.collate(examples)


# The GPUs of workers: which one a worker gets, whether it still answers, and the memory for requests there.

_OWN, _SHARED = 16, 2
"""The divisors of a GPU's memory that give a worker's own memory for requests, and the pool of all its workers."""


def gpu_in_turn(number: int) -> int | None:
    """Returns the GPU of the worker ``number``, or None where torch finds none: workers take the GPUs in turn."""
    return number % torch.cuda.device_count() if torch.cuda.is_available() else None


def device_of(gpu: int | None) -> str:
    """Returns the name of a GPU as a device, or ``cpu`` for None and where torch finds no GPU."""
    return "cpu" if gpu is None or not torch.cuda.is_available() else f"cuda:{gpu}"


def is_lost(device: torch.device) -> bool:
    """Returns whether ``device`` refuses all further work of this process.

    A kernel that reads beyond a tensor, as an embedding of a token that does not exist, ends CUDA in its process:
    https://docs.pytorch.org/docs/stable/notes/cuda.html
    """
    if device.type != "cuda":
        return False
    try:
        torch.cuda.current_stream(device).query()
    except RuntimeError:
        return True
    return False


def request_memory(device: torch.device, directory: Path | None) -> RequestMemory:
    """Returns the memory that requests may take on a GPU, beyond the weights of all models there.

    Args:
        device: the GPU.
        directory: where workers of this server share a pool; None for a process whose models share all of it.
    """
    total = torch.cuda.get_device_properties(device).total_memory
    if directory is None or sys.platform != "linux":
        return RequestMemory(total // _SHARED, give_back=torch.cuda.empty_cache)
    pool = MemoryPool(directory / f"memory-{device.index}", total // _SHARED)
    return RequestMemory(total // _OWN, pool, give_back=torch.cuda.empty_cache)
