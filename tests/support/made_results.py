"""Results made by hand: of any size, with any names, without a server."""

from __future__ import annotations

import numpy as np

import cutaway as ca
from cutaway.contract.requests import InspectRequest, Raw
from cutaway.contract.results import ClassPrediction, Provenance, Timings, Warning
from cutaway.contract.tensors import Array
from cutaway.views.inspection import Inspection

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202eevil\r\nline \"'" + "A" * 100_000
"""A name that is HTML, controls a terminal, turns the text around, ends lines and is long."""


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def check(verdict: ca.Verdict = ca.Verdict.AGREES, reason: str = "", cause: ca.Cause | None = None) -> ca.Check:
    return ca.Check("Captum with raw hooks", ca.CheckMode.SAME_PASS, 1e-9, 2e-7, 1.0, 1e-4, verdict, reason, cause)


DISAGREES = check(ca.Verdict.DISAGREES, "fc1 is called twice: use a module for each call", ca.Cause.MODULE_REUSED)


def capture(**points: Array) -> ca.ModuleCapture:
    return ca.ModuleCapture((ca.CapturedCall({ca.Point(point): {"": array} for point, array in points.items()}),))


def table(rows: int = 2, features: int = 30, classes: int = 2, name: str = "") -> Inspection:
    """What a model of a table returns: two attributions, of which one disagrees."""
    names = tuple(f"{name}feature {index}" for index in range(features))
    values = numbers(rows, features)
    result = ca.InspectResult(
        {"logits": numbers(rows, classes)},
        classes=tuple(ClassPrediction(row % classes, f"{name}label {row % classes}", 0.75) for row in range(rows)),
        targets=np.arange(rows) % classes,
        target_values=numbers(rows),
        captures={"fc1": capture(output=numbers(rows, 8), grad_output=numbers(rows, 8))},
        input_gradients={"x": values},
        attributions=(
            ca.AttributionResult("IntegratedGradients", "", {"x": values}, checks=(check(), check())),
            ca.AttributionResult("DeepLift", "", {"x": -values}, checks=(check(), DISAGREES)),
        ),
        warnings=(Warning(ca.WarningCode.MODULE_NOT_CALLED, f"{name}fc9", "was not called"),),
        provenance=Provenance(model="tumours", version="1.0", seed=7),
        timings=Timings(forward_ms=1.5, attribution_ms=10.5),
        feature_names={"x": names},
    )
    return Inspection.of(result, InspectRequest("tumours", {"x": numbers(rows, features, seed=1)}))


def image(rows: int = 2, side: int = 8, attributions: int = 1, channels: int = 3) -> Inspection:
    """What a model of images returns: as many attributions as wanted, and one of a layer."""
    values = numbers(rows, channels, side, side)
    each = ca.AttributionResult("Saliency", "", {"image": values}, checks=(check(),))
    layer = ca.AttributionResult("LayerGradCam", "conv1", {"conv1": numbers(rows, 1, side // 2, side // 2)})
    result = ca.InspectResult(
        {"logits": numbers(rows, 10)},
        classes=(ClassPrediction(3, "three", 0.5),) * rows,
        captures={"conv1": capture(output=numbers(rows, 16, side, side))},
        attributions=(each,) * attributions + (layer,),
    )
    return Inspection.of(result, InspectRequest("net", {"image": numbers(rows, channels, side, side, seed=2)}))


def text(tokens: tuple[str, ...] = ("the", "fox"), sent: str = "the fox") -> Inspection:
    """What a model of texts returns: the attribution of an embedding, with the tokens' sums."""
    count = len(tokens)
    values = numbers(1, count, 4)
    sums = ca.TokenAttribution("input_ids", np.arange(count)[None], values.sum(axis=-1), (tokens,))
    attribution = ca.AttributionResult("LayerIntegratedGradients", "embed", {"embed": values}, tokens=sums)
    result = ca.InspectResult({"embedding": numbers(1, 4)}, attributions=(attribution,))
    return Inspection.of(result, InspectRequest("sentences", raw=(Raw(sent.encode(), "text/plain"),)))
