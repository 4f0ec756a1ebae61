"""A gradient that is wrong by a few percent is found out on every kind of network, and a right one is not doubted."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional

import cutaway as ca
from cutaway.contract.requests import Attribution, CheckMode, CheckRequest
from cutaway.contract.results import Cause, Verdict
from cutaway.engine.checks.forward_mode import tangents_pass
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from tests.support.checked_attributions import CHECKED, ask, noise, verdict
from tests.support.function_module import Through
from tests.support.scaled_gradients import NETWORKS, explained
from tests.support.wrong_parts import Part, changed

OFTEN, SELDOM = (0.8, 1.0, 1.01, -1.0), (0.5, 0.95, 1.05, 1.2, 2.0)
FACTORS = [*OFTEN, *(pytest.param(factor, marks=pytest.mark.slow) for factor in SELDOM)]
METHODS: list[Attribution] = [ca.Saliency(), ca.InputXGradient(), ca.IntegratedGradients(n_steps=64)]


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("asked", METHODS, ids=lambda asked: type(asked).__name__)
@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("network", list(NETWORKS))
def test_a_gradient_wrong_by_a_factor(
    network: str, factor: float, asked: Attribution, dtype: torch.dtype, mode: CheckMode
) -> None:
    """One percent is enough to be found out; the right gradient of the same function, without ``jvp``, agrees."""
    got = explained(network, factor, asked, dtype, mode)
    if factor == 1.0:
        assert verdict(got) is Verdict.AGREES, got.checks
    else:
        assert verdict(got) is not Verdict.AGREES
        assert got.checks[0].cause is Cause.WRONG_BACKWARD, got.checks
        assert "Changed" in got.checks[0].reason


def through(change: Part, seed: int = 0) -> nn.Module:
    """A perceptron in whose middle ``change`` makes the gradient another."""
    torch.manual_seed(seed)
    middle = Through(changed(change))
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), middle, nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3)).eval()


@pytest.mark.parametrize("seed", [5, 15, 42, 44, 65, 70])
def test_a_gradient_that_is_right_by_chance_along_one_direction(seed: int) -> None:
    """Units exchanged, in a data type as coarse as the chance: along other directions it is wrong."""
    model = through(lambda gradient: gradient.roll(1, -1), seed).bfloat16()
    inputs = {"input": noise(3, 8, seed=seed).bfloat16()}
    (got,) = ask(model, inputs, ca.Saliency(absolute=False)).attributions
    assert got.checks[0].cause is Cause.WRONG_BACKWARD, got.checks


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("asked", METHODS, ids=lambda asked: type(asked).__name__)
def test_a_gradient_kept_from_the_pass_before(asked: Attribution, mode: CheckMode) -> None:
    """The second caller is given the gradient of the first, and is told so: what is explained again is still wrong."""
    kept: dict[torch.Size, Tensor] = {}

    def late(gradient: Tensor) -> Tensor:
        before, kept[gradient.shape] = kept.get(gradient.shape, gradient), gradient
        return before

    model = through(late)
    subject = InspectedModel(model, lambda tensors: model(*tensors.values()))
    request = ca.InspectRequest("m", attributions=(asked,), check=CheckRequest(mode))
    for seed in (1, 2):
        (got,) = inspect(subject, request, {"x": noise(3, 8, seed=seed)}).attributions
    assert verdict(got) is not Verdict.AGREES, got.checks


class Fused(nn.Module):
    """An LSTM and attention, which PyTorch fuses, behind a gradient times ``factor``; calls ``note`` in each pass."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.head = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 3)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.factor = factor

    def forward(self, input: Tensor) -> Tensor:
        hidden, _ = self.rnn(changed(lambda gradient: gradient * self.factor)(input))
        attended, _ = self.attention(hidden, hidden, hidden, need_weights=False)
        mixed = nn.functional.scaled_dot_product_attention(attended, hidden, hidden)
        logits: Tensor = self.head(mixed.mean(1))
        return logits


SWITCHES = [
    "_set_mkldnn_enabled",
    "_set_sdp_use_math",
    "_set_sdp_use_flash",
    "_set_sdp_use_mem_efficient",
    "_set_sdp_use_overrideable",
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("factor", "cause"), [(1.0, None), (1.5, Cause.WRONG_BACKWARD)])
def test_fused_kernels_are_tested_on_others_and_no_switch_is_touched(
    factor: float, cause: Cause | None, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Switches of kernels are the process's: models beside this one would compute other last bits, and fail a check."""
    for name in SWITCHES:
        monkeypatch.setattr(torch._C, name, lambda *_, name=name: pytest.fail(name))
    model = Fused(factor).eval().to(dtype)
    (got,) = ask(model, {"input": noise(2, 5, 8).to(dtype)}, ca.Saliency(absolute=False)).attributions
    assert got.checks[0].cause is cause, got.checks


# Data types of 16 bits.


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("factor", [1.0, 1.5])
@pytest.mark.parametrize("seed", range(3))
def test_a_table_whose_columns_are_near_the_end_of_float16(seed: int, factor: float, dtype: torch.dtype) -> None:
    """Standardised columns of 50,000: a direction of their size, drawn at random, would leave float16, and then
    nothing is compared. The derivative is the same if the target rises at one input, and falls at the next."""
    torch.manual_seed(seed)
    standardised = Through(lambda x: changed(lambda gradient: gradient * factor)((x - 50_000) / 10_000))
    model = nn.Sequential(standardised, nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    model.get_submodule("5").get_parameter("weight").data *= 10  # below 3e-6, a gradient is doubted for that
    inputs = {"input": (50_000 + 10_000 * noise(4, 8, seed=seed).clamp(-1.4, 1.4)).to(dtype)}
    (got,) = ask(model.eval().to(dtype), inputs, ca.Saliency()).attributions
    assert got.checks[0].cause is (None if factor == 1.0 else Cause.WRONG_BACKWARD), got.checks


@pytest.mark.parametrize(("scale", "cause"), [(1e-5, Cause.SATURATED), (1e-3, None)])
def test_a_gradient_that_float16_rounds(scale: float, cause: Cause | None) -> None:
    """Multiples of 6e-8, of which there are few below 3e-6: Captum and the reference are equally far off."""
    torch.manual_seed(0)
    model = nn.Sequential(Through(lambda x: x * scale), nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).eval().half()
    inputs = {"input": noise(3, 8).half()}
    for asked in (ca.Saliency(), ca.IntegratedGradients(n_steps=8)):
        (check, *_) = ask(model, inputs, asked).attributions[0].checks
        assert check.cause is cause, check
    assert cause is None or "float16 holds no gradient below 3e-6" in check.reason


@pytest.mark.parametrize(("factor", "cause"), [(1.0, Cause.CANCELLATION), (1.5, Cause.WRONG_BACKWARD)])
def test_a_gradient_below_the_least_number_of_float16(factor: float, cause: Cause) -> None:
    """2e-7 are three and a third of the least number: the gradient is a tenth too small, and no function is wrong."""
    wrong = changed(lambda gradient: gradient * factor)
    model = Through(lambda x: wrong((x * 2e-5).sum(1, keepdim=True)) * 0.01)
    (got,) = ask(nn.Sequential(model), {"input": (50_000 + 1_000 * noise(1, 8)).half()}, ca.Saliency()).attributions
    assert got.checks[0].cause is cause, got.checks


class Deep(nn.Module):
    """Six layers of a transformer, whose weights are far from those at the start of a training."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True) for _ in range(6))
        self.head = nn.Linear(16, 3)
        for parameter in self.parameters():
            parameter.data += 0.2 * torch.randn_like(parameter)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        found: Tensor = self.head(x.mean(1))
        return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("seed", [8, 15, 24, 28, 41, 57])
def test_a_rounding_error_at_one_input_is_no_wrong_backward(seed: int, dtype: torch.dtype) -> None:
    """Rounding may exceed the tolerance at this input, and at none of those that are looked at near it."""
    inputs = {"x": noise(2, 6, 16, seed=1000 + seed).to(dtype)}
    (got,) = ask(Deep(seed).eval().to(dtype), inputs, ca.Saliency()).attributions
    assert got.checks[0].cause in (None, Cause.CANCELLATION), got.checks


class Once(torch.autograd.Function):
    """The square, whose backward uses up what forward kept; its gradient is ``factor`` times the right one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.kept, ctx.factor = [x], factor
        return x * x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return 2 * ctx.factor * ctx.kept.pop() * gradients[0], None


@pytest.mark.parametrize(("factor", "cause"), [(1.0, None), (1.2, Cause.WRONG_BACKWARD)])
def test_a_function_that_runs_back_once_is_tested_too(factor: float, cause: Cause | None) -> None:
    """It is no reason for doubt, and no way to escape the test."""
    model = nn.Sequential(nn.Linear(8, 4), Through(lambda h: Once.apply(h, factor)), nn.Linear(4, 3)).eval()
    (got,) = ask(model, {"input": noise(3, 8)}, ca.InputXGradient()).attributions
    assert got.checks[0].cause is cause, got.checks


def test_a_function_between_frozen_weights_is_named() -> None:
    """Nothing but the input makes a graph there."""
    model = through(lambda gradient: gradient * 1.5).requires_grad_(False)
    (got,) = ask(model, {"input": noise(3, 8)}, ca.InputXGradient()).attributions
    assert "Changed in '2'" in got.checks[0].reason


def test_steps_of_internal_influence_that_cancel() -> None:
    """An even function on a path through 0: what is left of its gradients is rounding, and is said to be."""
    model = nn.Sequential(nn.Linear(8, 16, bias=False), Through(lambda h: h.cosh().log()), nn.Linear(16, 3)).eval()
    inputs = {"input": noise(3, 8)}
    asked = ca.InternalInfluence(layer="0", baselines={"input": -inputs["input"].numpy()})
    (got,) = ask(model, inputs, asked).attributions
    assert got.checks[0].cause is Cause.CANCELLATION, got.checks


class OfSteps(nn.Module):
    """Rounds to steps, as in training for eight bits, behind a gradient times ``factor``, which no function makes."""

    def __init__(self, factor: float, by_channel: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.factor, self.by_channel = factor, by_channel
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.a(x)
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient * self.factor)
        if self.by_channel:
            rounding = torch.full((16,), 0.02), torch.zeros(16, dtype=torch.int32)
            return self.b(torch.tanh(torch.fake_quantize_per_channel_affine(hidden, *rounding, 1, -128, 127)))
        return self.b(torch.tanh(torch.fake_quantize_per_tensor_affine(hidden, 0.02, 0, -128, 127)))


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_what_passes_the_rounding_of_fake_quantisation_is_its_gradient(
    factor: float, by_channel: bool, mode: CheckMode
) -> None:
    """PyTorch's own gradient there is taken for right, and one that another part of the model makes wrong is found."""
    asked = (ca.Saliency(), ca.InputXGradient())
    for got in ask(OfSteps(factor, by_channel), {"x": noise(3, 8)}, *asked, check=CheckRequest(mode)).attributions:
        cause = got.checks[0].cause
        assert cause is (None if factor == 1.0 else Cause.WRONG_BACKWARD), got.checks


def test_a_sum_that_misses_for_steps_says_so() -> None:
    """A large part of the change lies in jumps, which no number of steps shows to a gradient."""

    def jumps(x: Tensor) -> Tensor:
        return torch.fake_quantize_per_tensor_affine(x, 1.5, 0, -128, 127)

    (got,) = ask(nn.Sequential(Through(jumps)), {"input": noise(3, 8)}, ca.IntegratedGradients(n_steps=8)).attributions
    assert [check.cause for check in got.checks] == [None, Cause.DISCONTINUOUS], got.checks


def numbers(*shape: int, seed: int = 2) -> Tensor:
    return noise(*shape, seed=seed, dtype=torch.float64)


attention, padding = functional.scaled_dot_product_attention, torch.tensor([[False, False, True], [True] * 3])
fixed = numbers(1, 2, 3, 4)
attending = nn.MultiheadAttention(4, 2, batch_first=True, dtype=torch.float64).eval()

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: functional.linear(x, numbers(5, 4), numbers(5)),
    "without bias": lambda x: functional.linear(x, weight=numbers(5, 4)),
    "of a row": lambda x: functional.linear(input=x[0], weight=numbers(5, 4), bias=numbers(5)),
    "conv1d": lambda x: functional.conv1d(x, numbers(6, 1, 2), numbers(6), 2, padding=1, groups=3),
    "conv2d": lambda x: functional.conv2d(x[None], numbers(2, 2, 2, 2), bias=numbers(2), dilation=(1, 2)),
    "conv3d": lambda x: functional.conv3d(x[None, None], numbers(1, 1, 2, 2, 2), numbers(1)),
    "batch norm": lambda x: functional.batch_norm(
        x, numbers(3), numbers(3).square() + 1, numbers(3), numbers(3), eps=0.1
    ),
    "in training": lambda x: functional.batch_norm(
        x, numbers(3), numbers(3).square() + 1, numbers(3), numbers(3), True
    ),
    "batch statistics": lambda x: functional.batch_norm(x, None, None, training=True),
    "weights of the input": lambda x: functional.linear(x, x[0].T @ x[0], x[0, 0]),
    "product": lambda x: 3 * x * numbers(4) * numbers(3, 1) * torch.arange(4),
    "quotient": lambda x: numbers(4) / (3 / (x / 40 / numbers(4))),
    "whole quotient": lambda x: x + torch.div(x, 0.3, rounding_mode="floor"),
    "sum": lambda x: 1 - (2 - (numbers(5, 1, 1, 4) + x + 3 - numbers(4))),
    "infinite term": lambda x: torch.sigmoid(x + float("inf")) + x,
    "parts of a term": lambda x: torch.add(torch.sub(numbers(4), x, alpha=3), numbers(4), alpha=2),
    "to itself": lambda x: (x + x) * x - x / x.exp(),
    "addmm": lambda x: torch.addmm(numbers(5), x[0], numbers(4, 5)) @ numbers(5, 2),
    "addmm to the input": lambda x: (
        x[0].addmm(numbers(3, 2), numbers(2, 4)).addmm(numbers(3, 2), numbers(2, 4), beta=2)
    ),
    "addmm from the right": lambda x: torch.addmm(numbers(4), numbers(2, 3), x[1]),
    "baddbmm": lambda x: torch.baddbmm(numbers(5), x, numbers(2, 4, 5)) + torch.baddbmm(x[:, :, :1], x, x.mT)[..., :1],
    "layer norm": lambda x: functional.layer_norm(x, (3, 4), numbers(3, 4), numbers(3, 4)),
    "layer norm of the input": lambda x: torch.layer_norm(x, (4,), x[0, 0], None),
    "group norm": lambda x: functional.group_norm(x, 3, weight=numbers(3), bias=numbers(3)),
    "inference": lambda x: torch.inference_mode()(functional.linear)(x, numbers(5, 4), numbers(5)),
    "detached sparse": lambda x: x @ numbers(4, 4).to_sparse().detach().to_dense(),
    "tensors of numbers": lambda x: x * torch.tensor(data=3.0) * x.new_tensor([2.0]) * torch.asarray(obj=[2.0]),
    "place in memory": lambda x: x * (1 + bool(x.untyped_storage().data_ptr())),
    "attention": lambda x: attention(x[None], numbers(1, 2, 6, 4), x.exp()[None, :, [0, 1, 2, 0, 1, 2]], scale=0.3),
    "masked attention": lambda x: attention(x[None], x[None], x[None], numbers(2, 3, 3) > 0.5),
    "attention of a mask": lambda x: attention(fixed, fixed, fixed, x[None, ..., :3]),
    "causal attention": lambda x: torch.ops.aten.scaled_dot_product_attention(
        x.reshape(1, 6, 2, 2), *[x.reshape(1, 6, 2, 2)[:, :3]] * 2, is_causal=True, enable_gqa=True
    ),
    "exported attention": lambda x: torch.ops.aten.scaled_dot_product_attention.default(
        x[None], x[None], x[None], None, 0.0, True
    ),
    "attention of a module": lambda x: attending(x, x.cos(), x, padding, need_weights=False)[0],
}


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_tangents_of_operators_are_their_derivatives(name: str) -> None:
    """They agree with central differences, whatever the arguments, and whichever of them depend on the input."""
    x, v, function = numbers(2, 3, 4), numbers(2, 3, 4, seed=3), FUNCTIONS[name]
    expected = (function(x + 1e-6 * v) - function(x - 1e-6 * v)) / 2e-6
    with tangents_pass([]) as left:
        dual = function(forward_ad.make_dual(x.clone(), v))
        tangent = forward_ad.unpack_dual(dual).tangent
        assert tangent is not None
        torch.testing.assert_close(tangent.clone(), expected, rtol=1e-6, atol=1e-8)
    assert not left


def test_tangents_of_an_lstm_are_computed_in_float64() -> None:
    """Its kernel for float32 has none."""
    x, v, lstm = noise(2, 3, 4), noise(2, 3, 4, seed=3), nn.LSTM(4, 5, num_layers=2, bidirectional=True)
    exact, tangents = copy.deepcopy(lstm).double(), []
    with tangents_pass([]):
        for each, to in ((lstm, Tensor.float), (exact, Tensor.double)):
            output, (hidden, _) = each(forward_ad.make_dual(to(x), to(v)))
            assert output.dtype is hidden.dtype is to(x).dtype
            tangents.append(forward_ad.unpack_dual(output).tangent.detach().clone())
    torch.testing.assert_close(tangents[0].double(), tangents[1], rtol=1e-5, atol=1e-7)
