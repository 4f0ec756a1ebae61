"""Requests to MiniLM, which reads token ids, and to a ResNet-50: large models, a few kinds each."""

from __future__ import annotations

from typing import Any

import cutaway as ca
from tests.support.mixed.digits import POINTS, noise
from tests.support.mixed.kind import Kind

DENSE = "encoder.layer.2.attention.output.dense"
GELU = "encoder.layer.1.intermediate.intermediate_act_fn"
DIRECTION = noise(384)
STAGE = "resnet.encoder.stages.2"

SEEN: dict[str, Any] = {
    "target": [7, 200],
    "captures": [ca.Capture("embeddings", at=("output", "grad_output")), ca.Capture(DENSE, at=POINTS)],
}

SENTENCES = (
    Kind("nothing but predictions", {}),
    Kind("all points", SEEN),
    Kind("steer", {**SEEN, "edits": [ca.Add("encoder.layer.3", addend=DIRECTION)]}),
    Kind("zero for one sentence", {**SEEN, "edits": [ca.Zero(DENSE, rows=(1,))]}),
    Kind("half the gradient", {**SEEN, "edits": [ca.Scale(DENSE, "grad_output", factor=0.5)]}),
    Kind("an operator clamped", {"edits": [ca.Clamp(op=f"{GELU}:gelu#0", minimum=0.0)],
                                 "captures": [ca.Capture(op=f"{GELU}:gelu#0", reduce=ca.Mean((1,)))]}),
    Kind("explained", {"target": [7, 200], "attributions": [ca.LayerGradientXActivation(layer="embeddings")]}),
)  # fmt: skip

RESNET = (
    Kind("reduced", {"captures": [ca.Capture(STAGE, reduce=ca.Mean((2, 3)))]}),
    Kind("half a stage, compared", {
        "edits": [ca.Scale(STAGE, factor=0.5)], "target": [0, 1], "input_gradients": True, "compare": True}),
)  # fmt: skip
