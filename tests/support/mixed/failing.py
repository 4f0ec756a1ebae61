"""Requests that fail: before anything runs, in forward, inside a hook on the way there or back, in a pass of
Captum's, at a deadline, and on the way out."""

from __future__ import annotations

import numpy as np

import cutaway as ca
from cutaway.contract.errors import Reason
from tests.support.mixed.kind import Failing

SEVEN = np.ones(7, np.float32)
TOO_SHORT_S = 0.02
LONG = ca.IntegratedGradients(n_steps=4096, quadrature=ca.Quadrature.RIEMANN_MIDDLE)

DIGITS = (
    Failing("no such model", Reason.MODEL_NOT_FOUND, "model", model="digit"),
    Failing("no such module", Reason.MODULE_NOT_FOUND, "captures[1].module", {"captures": ["conv1", "conv3"]}),
    Failing("no such module to edit", Reason.MODULE_NOT_FOUND, "edits[1].module",
            {"edits": [ca.Zero("conv1"), ca.Zero("conv3")]}),
    Failing("a permutation of other rows", Reason.PERMUTATION_INVALID, "edits[0].mix.permutation",
            {"edits": [ca.Mix("conv1", weight=0.5, permutation=(0, 3, 1))]}),
    Failing("no such row", Reason.ROW_RANGE, "edits[0].rows[1]", {"edits": [ca.Zero("conv1", rows=(0, 3))]}),
    Failing("an edit that does not broadcast", Reason.EDIT_SHAPE, "edits[1].add.tensor",
            {"edits": [ca.Scale("conv1", factor=2.0), ca.Add("relu2", addend=SEVEN)], "captures": "**"}),
    Failing("an edit of gradients that does not broadcast", Reason.EDIT_SHAPE, "edits[0].add.tensor",
            {"edits": [ca.Add("relu1", "grad_output", addend=SEVEN)], "captures": "**", "input_gradients": True}),
    Failing("an edit at a gradient that does not broadcast, explained", Reason.EDIT_SHAPE, "edits[0].replace.tensor",
            {"edits": [ca.Replace("conv2", "grad_input", tensor=SEVEN)], "input_gradients": True,
             "attributions": [ca.Saliency()]}),
    Failing("an image of another size", Reason.INPUT_SHAPE, "tensors.by_name.image",
            inputs={"image": np.ones((3, 1, 9, 8), np.float32)}),
    Failing("no such class", Reason.TARGET_RANGE, "target.class_index", {"target": 10, "input_gradients": True}),
    Failing("targets for others", Reason.TARGET_MISMATCH, "target.class_index", {"target": [1, 2], "captures": "**"}),
    Failing("no such call", Reason.CALL_NOT_FOUND, "captures[0].call", {"captures": [ca.Capture("conv1", call=1)]}),
    Failing("the batch reduced", Reason.AXIS_RANGE, "captures[0].reduction.mean.axes",
            {"captures": [ca.Capture("conv1", reduce=ca.Mean((0,)))]}),
    Failing("a slice past the end", Reason.SLICE_RANGE, "captures[0].slices[0]",
            {"captures": [ca.Capture("fc1", "grad_output", slices=(ca.Slice(1, 30, 40),))]}),
    Failing("no such parameter", Reason.PARAMETER_NOT_FOUND, "captures[0].parameter",
            {"captures": [ca.Capture(parameter="conv1.weights")]}),
    Failing("no such operator", Reason.OP_NOT_FOUND, "edits[0].op", {"edits": [ca.Zero(op="relu1:relu#1")]}),
    Failing("too many steps", Reason.LIMIT_EXCEEDED, "attributions[1].integrated_gradients.n_steps",
            {"attributions": [ca.Saliency(), ca.IntegratedGradients(n_steps=10_001)]}),
    Failing("an explained gradient edited", Reason.EDIT_INAPPLICABLE, "attributions[0].layer_grad_cam.layer",
            {"edits": [ca.Zero("conv2", "grad_output")], "attributions": [ca.LayerGradCam(layer="conv2")]}),
    Failing("a reply larger than allowed", Reason.REPLY_TOO_LARGE, "options.max_reply_bytes",
            {"captures": "**", "max_reply_bytes": 1000}),
    Failing("a deadline that passes", Reason.DEADLINE_EXCEEDED, "",
            {"attributions": [LONG], "captures": "**", "timeout": TOO_SHORT_S}),
)  # fmt: skip

MIRROR = (
    Failing("a model that raises", Reason.MODEL_FAILED, "",
            {"captures": [ca.Capture("halves", call=0)], "edits": [ca.Scale("conv", factor=2.0)]},
            inputs={"image": np.zeros((2, 1, 6, 6), np.float32)}),
    Failing("an edit inside of what catches everything", Reason.EDIT_SHAPE, "edits[0].add.tensor",
            {"edits": [ca.Add("careful.inside", addend=SEVEN)]}),
    Failing("an operator's edit that does not broadcast", Reason.EDIT_SHAPE, "edits[0].replace.tensor",
            {"edits": [ca.Replace(op=":tanh#1", tensor=SEVEN)], "captures": [ca.Capture(op="**:*#*")]}),
    Failing("no tensor at that path", Reason.PATH_NOT_FOUND, "edits[0].path",
            {"edits": [ca.Zero("halves", path='["middle"]')]}),
    Failing("no such output", Reason.OUTPUT_NOT_FOUND, "target.output", {"target": ca.OutputSum(output="logit")}),
)  # fmt: skip

SENTENCES = (
    Failing("numbers made of token ids", Reason.EDIT_DTYPE, "edits[0]",
            {"edits": [ca.Scale("embeddings.word_embeddings", "input", factor=2.0)]}),
    Failing("gradients of token ids", Reason.POINT_NOT_DIFFERENTIABLE, "captures[0].points",
            {"captures": [ca.Capture("embeddings.word_embeddings", at="grad_input")], "target": 0}),
)  # fmt: skip
