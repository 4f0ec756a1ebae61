"""Requests to the digits network that look at it: captures and targets of every kind."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import cutaway as ca
from examples.digits.data import as_png, held_out
from tests.support.mixed.by_hand import Answer, ByHand
from tests.support.mixed.digits import ROWS, asking, noise, see_all
from tests.support.mixed.kind import Kind

WISHED = noise(ROWS, 10)


def _values(hand: ByHand) -> Answer:
    hand.see("conv1", "output")
    hand.see("conv2", "output")
    hand.see("fc1", "input", "output")
    return hand.answer()


def _operator(hand: ByHand) -> Answer:
    hand.see("conv2", "output", "grad_output", name="conv2:conv2d#0")
    return hand.answer()


def _operator_input(hand: ByHand) -> Answer:
    hand.see("conv2", "input", name="conv2:conv2d#0", path="[0]")
    return hand.answer()


def _operators(hand: ByHand) -> Answer:
    for module in ("relu1", "relu2", "relu3"):
        hand.see(module, "output", name=f"{module}:relu#0")
    return hand.answer()


def _about(scalars: Any) -> Any:
    def hand(hand: ByHand) -> Answer:
        hand.of(scalars)
        return see_all(hand)

    return hand


def _class(hand: ByHand) -> Answer:
    hand.of_classes(torch.tensor([4, 4, 4]))
    return see_all(hand)


def _elements(hand: ByHand) -> Answer:
    hand.of_classes(torch.tensor([1, 9, 0]))
    return see_all(hand)


def _top(hand: ByHand) -> Answer:
    with torch.no_grad():
        hand.of_classes(hand.forward(*hand.inputs.values()).topk(3, dim=1).indices)
    hand.see("fc1", "output", "grad_output")
    hand.gradients("image", parameters={"fc2.bias": lambda gradient: gradient})
    return hand.answer()


def _neuron(hand: ByHand) -> Answer:
    kept: list[Tensor] = []
    handle = hand.model.get_submodule("conv2").register_forward_hook(lambda _, __, output: kept.append(output))
    hand.of(lambda _: kept[-1][:, 3, 2, 2])
    hand.see("relu1", "output", "grad_output")
    hand.gradients("image")
    answer = hand.answer()
    handle.remove()
    return answer


def _reduced(hand: ByHand) -> Answer:
    hand.see("conv1", "output", then=lambda value: value.mean(dim=(2, 3)))
    hand.see("conv2", "output", then=lambda value: value.amax(dim=(2, 3)))
    hand.see("fc1", "grad_output", then=lambda value: torch.linalg.vector_norm(value, dim=1))
    hand.see("fc2", "output", then=lambda value: value.topk(2, dim=1).values)
    answer = hand.answer()
    with torch.no_grad():
        positions = hand.forward(*hand.inputs.values()).topk(2, dim=1).indices
    return {**answer, "captures.fc2#0.output positions": positions.numpy()}


def _cut(hand: ByHand) -> Answer:
    hand.see("conv2", "output", "grad_output", then=lambda value: value[:2, 1::2, -3:])
    hand.see("fc1", "output", then=lambda value: value.half())
    return hand.answer()


def _parameters(hand: ByHand) -> Answer:
    hand.gradients(
        parameters={
            "conv1.weight": lambda gradient: torch.linalg.vector_norm(gradient, dim=(1, 2, 3)),
            "fc2.bias": lambda gradient: gradient,
        }
    )
    return hand.answer()


def _early(hand: ByHand) -> Answer:
    hand.silent()
    hand.see("conv1", "output")
    return hand.answer()


def _early_edited(hand: ByHand) -> Answer:
    hand.silent()
    hand.after("conv1", lambda value: value * -1.0)
    hand.see("relu1", "input", "output")
    return hand.answer()


KINDS = (
    Kind("nothing but predictions", {}, lambda hand: hand.answer()),
    Kind(
        "image files",
        {},
        lambda hand: hand.answer(),
        inputs=[ca.Raw(as_png(pixels)) for pixels in held_out().pixels[:ROWS]],
    ),
    Kind("values", {"captures": ["conv?", ca.Capture("fc1", at=("input", "output"))]}, _values),
    Kind("all points", asking(), see_all),
    Kind("operator", {"captures": [ca.Capture(op="conv2:conv2d#0", at=("output", "grad_output"))]}, _operator),
    Kind("operator's input", {"captures": [ca.Capture(op="conv2:conv2d#0", at="input", path="[0]")]}, _operator_input),
    Kind("operators by glob", {"captures": [ca.Capture(op="*:relu#0")]}, _operators),
    Kind("class", asking(target=4), _class),
    Kind(
        "top classes",
        {
            "target": ca.TopK(3),
            "captures": [ca.Capture("fc1", at=("output", "grad_output")), ca.Capture(parameter="fc2.bias")],
            "input_gradients": True,
        },
        _top,
    ),
    Kind("elements", asking(target=ca.MultiIndex(((1,), (9,), (0,)))), _elements),
    Kind(
        "cross entropy",
        asking(target=ca.CrossEntropy((8, 1, 1))),
        _about(lambda output: F.cross_entropy(output, torch.tensor([8, 1, 1]), reduction="none")),
    ),
    Kind(
        "mean cross entropy",
        asking(target=ca.CrossEntropy((8,), ca.LossReduction.MEAN)),
        _about(lambda output: F.cross_entropy(output, torch.tensor([8, 8, 8]), reduction="none") / 3),
    ),
    Kind(
        "squared error",
        asking(target=ca.MeanSquaredError(WISHED)),
        _about(lambda output: F.mse_loss(output, torch.from_numpy(WISHED), reduction="none").sum(dim=1)),
    ),
    Kind(
        "cotangent",
        asking(target=ca.Cotangent(WISHED)),
        _about(lambda output: (output * torch.from_numpy(WISHED)).sum(dim=1)),
    ),
    Kind("sum", asking(target=ca.OutputSum()), _about(lambda output: output.sum(dim=1))),
    Kind(
        "norm", asking(target=ca.OutputNorm(3.0)), _about(lambda output: torch.linalg.vector_norm(output, ord=3, dim=1))
    ),
    Kind(
        "neuron",
        {
            "target": ca.Neuron("conv2", (3, 2, 2)),
            "captures": [ca.Capture("relu1", at=("output", "grad_output"))],
            "input_gradients": True,
        },
        _neuron,
    ),
    Kind(
        "reductions",
        {
            "captures": [
                ca.Capture("conv1", reduce=ca.Mean((2, 3))),
                ca.Capture("conv2", reduce=ca.Max((-1, -2))),
                ca.Capture("fc1", at="grad_output", reduce=ca.Norm((1,))),
                ca.Capture("fc2", reduce=ca.TopElements(2)),
            ]
        },
        _reduced,
    ),
    Kind(
        "slices and half numbers",
        {
            "captures": [
                ca.Capture(
                    "conv2",
                    at=("output", "grad_output"),
                    slices=(ca.Slice(0, 0, 2), ca.Slice(1, 1, None, 2), ca.Slice(2, -3)),
                ),
                ca.Capture("fc1", data_type="float16"),
            ]
        },
        _cut,
    ),
    Kind(
        "parameters",
        {
            "captures": [
                ca.Capture(parameter="conv1.weight", reduce=ca.Norm((1, 2, 3))),
                ca.Capture(parameter="fc2.bias"),
            ]
        },
        _parameters,
    ),
    Kind("early stop", {"captures": [ca.Capture("conv1", call=0)], "predictions": False}, _early),
    Kind(
        "early stop behind an edit",
        {
            "edits": [ca.Scale("conv1", factor=-1.0)],
            "captures": [ca.Capture("relu1", at=("input", "output"), call=0)],
            "predictions": False,
        },
        _early_edited,
    ),
    Kind("no predictions", {"captures": "conv1", "predictions": False}, _early),
)
