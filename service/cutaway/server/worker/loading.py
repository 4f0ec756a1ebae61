"""Builds the model of an archive, refuses one whose parameters are random, and says how large it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

# Imported at once: the first explanation of a process would otherwise wait a second or more for these.
import torch
import torch._decomp.decompositions_for_jvp
import torch.fx.experimental.symbolic_shapes
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cutaway.adapters import Adapter, create_adapter, find_adapter, load_model
from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.engine.execution.fitting import rows_that_fit
from cutaway.engine.model.inspected_model import Inputs, InspectedModel
from cutaway.engine.runtime.rng import fingerprint, new_seed, seeded
from cutaway.server.archive.reader import ALIGNMENT, ArchiveManifest
from cutaway.server.memory import RequestMemory

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
        return adapter, load_model(adapter, device)


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


_GIB = 1 << 30
_MORE = "; CUTAWAY_MEMORY_BYTES or CUTAWAY_REQUEST_MEMORY_BYTES give it more"


def what_fits(model: InspectedModel, example: Callable[[], Inputs | None], memory: RequestMemory | None) -> str:
    """Returns the bytes of the weights, and how many rows like the first of ``example`` one pass may have."""
    state = (*model.module.parameters(), *model.module.buffers())
    size = f"weights of {sum(tensor.nbytes for tensor in state) / _GIB:.2f} GiB"
    try:
        inputs = example() if memory is not None else None
        if inputs is None or memory is None:
            return size
        with model.session():
            predicted, explained = rows_that_fit(model, inputs, memory.most)
    except Exception:  # of the adapter's example: a request for it gets the same error
        return f"{size}; its example cannot be run"
    return (
        f"{size}; a request may take {memory.most / _GIB:.2f} GiB: about {predicted:,} rows like its example a pass, "
        f"{explained:,} with gradients{'' if explained else _MORE}"
    )


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
