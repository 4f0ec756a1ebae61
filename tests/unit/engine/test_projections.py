"""Captures that are mapped on the server: a logit lens, a probe, the encoder of a sparse autoencoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.contract.errors import CutawayError
from tests.support import worker_calls

WIDTH, CLASSES, FEATURES = 6, 4, 9
GENERATOR = np.random.default_rng(0)
MATRIX = GENERATOR.normal(size=(FEATURES, WIDTH)).astype(np.float32)
BIAS = GENERATOR.normal(size=FEATURES).astype(np.float32)
IDS = torch.tensor([[1, 2, 0], [3, 1, 2]])


class Blocks(nn.Module):
    """A residual network of tokens, with a norm and a head at its end, as language models have."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(5, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)
        nn.init.normal_(self.norm.weight)

    def forward(self, ids: Tensor) -> Tensor:
        value = self.words(ids)
        for block in self.blocks:
            value = value + block(value).tanh()
        output: Tensor = self.head(self.norm(value))
        return output


def asked(*captures: ca.Capture, **more: Any) -> ca.InspectResult:
    return worker_calls.ask(worker_calls.worker(Blocks()), {"ids": IDS}, captures=captures, **more)


def test_a_lens_is_the_head_behind_its_norm() -> None:
    """At every place that a glob names; no hook sees the head once more."""
    lens = ca.Project("head", norm="norm")
    result = asked(
        ca.Capture("blocks.*", at="input", reduce=lens), ca.Capture("norm", at="input", reduce=lens), ca.Capture("head")
    )
    model = Blocks()
    with torch.no_grad():
        expected = model.head(model.norm(model.words(IDS)))
        np.testing.assert_array_equal(result.captures["blocks.0"].input, expected)
        np.testing.assert_array_equal(result.captures["norm"].input, result.predictions["output"])
    assert len(result.captures["head"].calls) == 1


def test_the_likeliest_classes_of_a_lens_are_named_by_their_index() -> None:
    lens = ca.Project("head", norm="norm", then=ca.TopElements(2))
    call = asked(ca.Capture("norm", at="input", reduce=lens, slices=(ca.Slice(1, -1),))).captures["norm"].calls[0]
    values, indices = torch.from_numpy(asked().predictions["output"][:, -1:]).topk(2)
    np.testing.assert_array_equal(call.input, values)
    np.testing.assert_array_equal(call.positions[ca.Point.INPUT][""], indices)


def test_what_is_not_above_a_threshold_is_0() -> None:
    """The encoder of a JumpReLU autoencoder."""
    threshold = np.linspace(-1, 1, FEATURES).astype(np.float32)
    jump = ca.Project(MATRIX, bias=BIAS, relu=True, threshold=threshold)
    plain = asked(ca.Capture("norm", at="input")).captures["norm"].input
    found = asked(ca.Capture("norm", at="input", reduce=jump)).captures["norm"].input
    before = plain @ MATRIX.T + BIAS
    expected = np.where(before > threshold, np.maximum(before, 0), 0)
    assert 0 < (expected == 0).sum() < expected.size
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("bias", "relu"), [(None, False), (BIAS, False), (BIAS, True)])
def test_a_matrix_maps_the_last_axis(bias: Any, relu: bool) -> None:
    result = asked(
        ca.Capture("norm", at="input", reduce=ca.Project(MATRIX, bias=bias, relu=relu)), ca.Capture("norm")
    )  # fmt: skip
    plain = asked(ca.Capture("norm", at="input")).captures["norm"].input
    expected = plain @ MATRIX.T + (0 if bias is None else bias)
    found = result.captures["norm"]
    np.testing.assert_allclose(found.input, np.maximum(expected, 0) if relu else expected, rtol=0, atol=1e-5)
    assert found.input.shape == (2, 3, FEATURES)


@pytest.mark.parametrize(
    ("capture", "what"),
    [
        (
            ca.Capture("norm", reduce=ca.Project("hed")),
            r"MODULE_NOT_FOUND \[captures\[0\].reduction.project.module\].*head",
        ),
        (ca.Capture("norm", reduce=ca.Project("head", norm="nrm")), r"MODULE_NOT_FOUND .*project.norm\].*norm"),
        (ca.Capture("head", reduce=ca.Project("head")), r"INVALID_VALUE .*project\].*cannot be mapped"),
        (ca.Capture("norm", reduce=ca.Project(MATRIX[:, :4])), r"INVALID_VALUE .*project\].*cannot be mapped"),
        (ca.Capture("words", at="input", reduce=ca.Project("head")), r"INVALID_VALUE .*project\].*int64"),
        (ca.Capture("norm", at="grad_output", reduce=ca.Project("head")), r"INVALID_VALUE .*project\].*gradient"),
        (ca.Capture("norm", reduce=ca.Project("head", then=ca.TopElements(9))), r"AXIS_RANGE .*project.then.top_k.k\]"),
    ],
)
def test_what_cannot_be_mapped_is_refused(capture: ca.Capture, what: str) -> None:
    with pytest.raises(CutawayError, match=what):
        asked(capture)


def test_requests_with_projections_of_their_own_share_a_pass() -> None:
    """Each gets its own; the pass captures the tensor once, whole."""
    served, questions = worker_calls.worker(Blocks()), [ca.Project("head", norm="norm"), ca.Project(MATRIX), None]
    captures = [(ca.Capture("norm", at="input", reduce=question),) for question in questions]
    alone = [asked(*each).captures["norm"].input for each in captures]
    replies = served.answer([worker_calls.row({"ids": IDS}, captures=each) for each in captures])
    for one, reply in zip(alone, replies):
        other = worker_calls.read(reply).captures["norm"].input
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-6)
