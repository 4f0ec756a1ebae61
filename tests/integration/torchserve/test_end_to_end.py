"""The promises of first light, over real gRPC through real TorchServe, on three real models."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from captum import attr
from torch import Tensor

import cutaway as ca
from tests.oracles.hooks import Handmade, first
from tests.support.digits import OPERATIONS
from tests.support.models import SUBJECTS, Subject
from tests.support.plain_captum import Behind
from tests.support.reply_equality import differences
from tests.support.rounding import close, rounding
from tests.support.serving import Server
from tests.support.torchserve_port import behind

POINTS = tuple(ca.Point)


@pytest.fixture(
    scope="module",
    params=[pytest.param(each, marks=pytest.mark.slow) if each == "resnet" else each for each in SUBJECTS],
)
def subject(request: pytest.FixtureRequest, store: Path) -> Subject:
    """One of the three models, built in this process from the archive that is served."""
    return SUBJECTS[request.param](store)


@pytest.fixture(params=["gateway", "torchserve://"])
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[ca.Client]:
    """Of the gateway, or of TorchServe's own port behind it."""
    with ca.Client(server.address) if request.param == "gateway" else behind(server).client() as connected:
        yield connected


def by_hand(subject: Subject) -> tuple[Handmade, dict[str, Tensor]]:
    """What hand-written hooks see, and the gradients at the inputs."""
    inputs = {name: tensor.clone() for name, tensor in subject.inputs.items()}
    if subject.floating:
        inputs = {name: tensor.requires_grad_() for name, tensor in inputs.items()}

    def scalar(output: Tensor) -> Tensor:
        target = output.argmax(dim=1) if subject.target is None else output.new_tensor(subject.target).long()
        return output.gather(1, target[:, None])

    seen = Handmade(subject.model, subject.modules, lambda: subject.forward(*inputs.values()), scalar)
    return seen, {name: tensor.grad for name, tensor in inputs.items() if tensor.grad is not None}


def points_of(seen: Handmade, name: str) -> tuple[ca.Point, ...]:
    """Where PyTorch's own hooks saw a tensor at the module: token ids have no gradient, and are not asked for one."""
    calls = {point: getattr(seen, point.value).get(name) for point in POINTS}
    return tuple(
        point for point, each in calls.items() if each and any(isinstance(one, Tensor) for one in _listed(each[0]))
    )


def test_captures_equal_handwritten_hooks_exactly(subject: Subject, client: ca.Client) -> None:
    """Every capture is what a hand-written hook saw, bit for bit; gradients and predictions too."""
    seen, input_gradients = by_hand(subject)
    result = client.inspect(
        subject.name,
        subject.inputs,
        target=subject.target,
        captures=[ca.Capture(name, at=points_of(seen, name)) for name in subject.modules],
        input_gradients=subject.floating,
    )
    assert np.array_equal(next(iter(result.predictions.values())), seen.prediction.detach().numpy())
    compared = 0
    for name in subject.modules:
        for point in points_of(seen, name):
            calls = getattr(seen, point.value)[name]
            ours = next(iter(result.captures[name].calls[0].leaves[point].values()))
            assert np.array_equal(ours, first(calls[0]).numpy()), f"{point.value} of {name}"
            compared += 1
    assert compared >= 3 * len(subject.modules)
    assert set(result.input_gradients) == set(input_gradients)
    for name, gradient in input_gradients.items():
        assert close(result.input_gradients[name], gradient, OPERATIONS)


def _listed(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("mode", ["same_pass", pytest.param("independent", marks=pytest.mark.slow)])
def test_attributions_equal_captum_in_process_and_agree(subject: Subject, server: Server, mode: str) -> None:
    """Every attribution equals plain Captum in this process but for rounding, and every check agrees."""
    with ca.Client(server.address) as client:
        result = client.inspect(
            subject.name, subject.inputs, target=subject.target, attributions=subject.attributions, check=mode
        )
    for asked, got in zip(subject.attributions, result.attributions, strict=True):
        expected = in_process(subject, asked)
        assert close(next(iter(got.values.values())), expected, OPERATIONS), got.method
        assert [check.verdict for check in got.checks] == ["AGREES"] * len(got.checks), got
        assert got.checks
        assert {check.mode.value for check in got.checks} == {mode}


def in_process(subject: Subject, asked: Any) -> Tensor:
    """``asked``, answered by Captum as its own documentation uses it."""
    target = subject.forward(*subject.inputs.values()).argmax(dim=1) if subject.target is None else subject.target
    inputs = tuple(subject.inputs.values())
    layer = dict(subject.model.named_modules()).get(getattr(asked, "layer", ""))
    match asked:
        case ca.Saliency():
            return attr.Saliency(subject.forward).attribute(inputs, target=target, abs=asked.absolute)[0]
        case ca.InputXGradient():
            return attr.InputXGradient(subject.forward).attribute(inputs, target=target)[0]
        case ca.IntegratedGradients():
            method = attr.IntegratedGradients(subject.forward, multiply_by_inputs=asked.multiply_by_inputs)
            baselines = tuple(asked.baselines.get(name, 0) for name in subject.inputs)
            return method.attribute(
                inputs, baselines=baselines, target=target, n_steps=asked.n_steps, method=asked.quadrature.value
            )[0]
        case ca.LayerActivation():
            return attr.LayerActivation(subject.forward, layer).attribute(inputs)
        case ca.LayerGradientXActivation():
            return attr.LayerGradientXActivation(subject.forward, layer).attribute(inputs, target=target)
        case ca.LayerGradCam():
            behind = Behind(asked, layer)
            with behind:
                method = attr.LayerGradCam(subject.forward, behind.shown)
                return behind.back(method.attribute(inputs, target=target, relu_attributions=asked.relu))
    raise AssertionError(asked)


def test_sixteen_callers_at_once_get_what_each_gets_alone(server: Server, store: Path) -> None:
    """Different layers, targets and methods at once: every reply equals the same request alone."""
    images = SUBJECTS["digits"](store).inputs["image"].numpy()
    layers = ("conv1", "relu1", "conv2", "fc1")

    def ask(index: int) -> ca.InspectResult:
        layer = layers[index % len(layers)]
        with ca.Client(server.address) as client:
            return client.inspect(
                "digits",
                {"image": images[: 1 + index % 3]},
                target=index % 10,
                captures=[ca.Capture(layer, at=POINTS)],
                input_gradients=index % 2 == 0,
                attributions=[ca.Saliency(), ca.IntegratedGradients(n_steps=10 + index)] if index % 3 else (),
            )

    alone = [ask(index) for index in range(16)]
    with ThreadPoolExecutor(16) as callers:
        for _ in range(3):
            together = list(callers.map(ask, range(16)))
            pairs = zip(together, alone, strict=True)
            wrong = [each for pair in pairs for each in differences(*pair, rounding(torch.float32, OPERATIONS))]
            assert not wrong, "\n".join(wrong)


def test_a_bad_row_never_fails_its_neighbours(server: Server, store: Path) -> None:
    """Good and bad requests that wait together: the good ones are answered, the bad ones get their own
    error."""
    images = SUBJECTS["digits"](store).inputs["image"].numpy()

    def ask(index: int) -> str:
        capture = "conv1" if index % 2 else "no_such_layer"
        with ca.Client(server.address) as client:
            try:
                result = client.inspect("digits", {"image": images}, captures=[capture])
                return f"{result.captures['conv1'].output.sum():.2f}"
            except ca.CutawayError as failure:
                return failure.reason

    with ThreadPoolExecutor(32) as callers:
        answers = list(callers.map(ask, range(64)))
    assert set(answers[::2]) == {"MODULE_NOT_FOUND"}
    assert len(set(answers[1::2])) == 1
    assert answers[1] not in set(ca.Reason)


def test_after_all_that_the_model_is_as_it_was(server: Server, store: Path) -> None:
    """Whatever was asked before, in whatever worker, a plain question gets what the untouched model predicts."""
    for make in SUBJECTS.values():
        subject = make(store)
        with ca.Client(server.address) as client:
            result = client.inspect(subject.name, subject.inputs)
        expected = subject.forward(*subject.inputs.values()).detach().numpy()
        assert np.array_equal(next(iter(result.predictions.values())), expected)
