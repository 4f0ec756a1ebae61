"""Loads the model of an unpacked archive, and refuses random parameters. Adds the owner's names to results.

An archive without weights leaves the parameters to its adapter. They are random if they depend on the state of the
random number generators: then two builds from different states differ. A build that draws nothing needs no second one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import torch

from cutaway.adapters import Adapter, create_adapter, find_adapter, load_model
from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.results import AttributionResult, InputSpec, InspectResult, TokenAttribution
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.engine.runtime.rng import fingerprint, reseeded
from cutaway.server.archive.reader import ArchiveManifest


def with_texts(adapter: Adapter, attributions: Sequence[AttributionResult]) -> tuple[AttributionResult, ...]:
    """Returns ``attributions`` with the texts of their tokens."""
    return tuple(
        result if result.tokens is None else replace(result, tokens=_with_texts(adapter, result.tokens))
        for result in attributions
    )


def _with_texts(adapter: Adapter, tokens: TokenAttribution) -> TokenAttribution:
    rows = [tuple(adapter.token_texts(row)) for row in tokens.ids.tolist()]
    return replace(tokens, texts=tuple(rows) if any(rows) else ())


def feature_names(inputs: Sequence[InputSpec], result: InspectResult) -> dict[str, tuple[str, ...]]:
    """Returns the names of the features of those ``inputs`` that gradients or attributions in ``result`` are about."""
    named = {spec.name: spec.feature_names for spec in inputs if spec.feature_names}
    if not named:
        return {}
    shown = {*result.input_gradients, *(name for attribution in result.attributions for name in attribution.values)}
    return {name: names for name, names in named.items() if name in shown}


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
