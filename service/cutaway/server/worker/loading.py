"""Builds the model of an archive, refuses one whose parameters are random, and says how large it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TypeAlias

# Imported at once: the first explanation of a process would otherwise wait a second or more for these.
import torch
import torch._decomp.decompositions_for_jvp
import torch.fx.experimental.symbolic_shapes

from cutaway.adapters import Adapter, create_adapter, find_adapter, load_model
from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.engine.execution.fitting import rows_that_fit
from cutaway.engine.model.inspected_model import Inputs, InspectedModel
from cutaway.engine.runtime.rng import fingerprint, new_seed, seeded
from cutaway.server.archive.reader import ArchiveManifest
from cutaway.server.memory import RequestMemory
from cutaway.server.worker.mapped_weights import MappedWeights

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
