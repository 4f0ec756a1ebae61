"""Loads the model of an unpacked archive, and refuses random parameters. Adds the owner's names to results.

An archive without weights leaves the parameters to its adapter. They are random if they depend on the state of the
random number generators: then two builds from different states differ. A build that draws nothing needs no second one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias

import torch

from cutaway.adapters import Adapter, create_adapter, find_adapter, load_model
from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.engine.runtime.rng import fingerprint, reseeded
from cutaway.server.archive.reader import ArchiveManifest

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
        with reseeded(torch.device(device)):
            _require_chosen_parameters(model, build)
    return adapter, model


def _build(
    kind: type[Adapter], manifest: ArchiveManifest, directory: Path, device: str
) -> tuple[Adapter, InspectedModel]:
    weights = directory / manifest.weights if manifest.weights else None
    adapter = create_adapter(kind, manifest.options, directory, weights)
    return adapter, load_model(adapter, device)


def _require_chosen_parameters(model: InspectedModel, build: _Build) -> None:
    """Builds the model once more, on the CPU; raises ``WEIGHTS_MISSING`` unless both builds have equal parameters.

    The second model is freed on return.
    """
    try:
        _, second = build("cpu")
    except CutawayError as failure:
        raise _refusal(
            f"a second build, to find out whether parameters are random, failed: {failure.message}"
        ) from failure
    if not set(model.module.modules()).isdisjoint(second.module.modules()):
        raise _refusal("both loads return the same modules, which may be random: create them in the adapter's build()")
    if second.weights_sha256 != model.weights_sha256:
        raise _refusal("the parameters are random: the archive has no weights, and two builds differ")


def _refusal(what: str) -> CutawayError:
    return error(Reason.WEIGHTS_MISSING, f"{what}; {_ADVICE}")
