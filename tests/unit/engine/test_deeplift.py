"""DeepLIFT, of inputs, layers and neurons, from a baseline and from a distribution: Captum's own answer, and a verdict
on it that can be believed."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from captum import attr
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import cutaway as ca
from cutaway.contract.requests import Attribution, CheckMode, CheckRequest, ClassIndex
from cutaway.contract.results import AttributionResult, Cause, Check, Verdict
from cutaway.engine.references.deeplift_multipliers import MODULE_RULES
from tests.support.checked_attributions import CHECKED, Build, ask, noise, to, verdict, wired
from tests.support.rounding import SMALL, close
from tests.support.state_snapshot import nodes, untouched

SAMPLES = 3
WIDTH = 6


def net(wiring: Callable[..., Any], **parts: Callable[[], Any]) -> Build:
    """Linear layers ``a``, ``b`` and ``head`` of vectors, and whatever nonlinearities."""
    layers = {"a": lambda: nn.Linear(WIDTH, WIDTH), "b": lambda: nn.Linear(WIDTH, WIDTH)}
    return wired(wiring, **layers, head=lambda: nn.Linear(WIDTH, 3), **parts)


def one_after_another(first: Callable[[], nn.Module], second: Callable[[], nn.Module]) -> Build:
    return net(lambda m, x: m.head(m.r2(m.b(m.r1(m.a(x))))), r1=first, r2=second)


def images(wiring: Callable[..., Any], **parts: Callable[[], Any]) -> Build:
    """Convolutions ``a`` and ``b`` of the same shape and ``head``, of one vector an image."""
    layers = {"a": lambda: nn.Conv2d(3, 4, 3, padding=1), "b": lambda: nn.Conv2d(4, 4, 3, padding=1)}
    return wired(wiring, **layers, head=lambda: nn.Linear(4, 3), **parts)


def pooled(pool: Callable[[], nn.Module]) -> Build:
    return images(lambda m, x: m.head(m.p(m.b(torch.clone(m.r(m.a(x))))).mean((2, 3))), r=nn.ReLU, p=pool)


PLAIN = one_after_another(nn.ReLU, nn.Tanh)
TWO_INPUTS = net(lambda m, x, y: m.head(m.r2(m.b(m.r1(m.a(x))) * y)), r1=nn.Sigmoid, r2=nn.ELU)


def given(build: Build, rows: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    model = build()
    image = isinstance(model.a, nn.Conv2d)
    inputs = {"x": noise(rows, *((3, 8, 8) if image else (WIDTH,)), dtype=dtype)}
    return {**inputs, "y": noise(rows, WIDTH, dtype=dtype, seed=4)} if build is TWO_INPUTS else inputs


def all_six(inputs: Mapping[str, Tensor], layer: str = "b") -> tuple[Attribution, ...]:
    """Each method, of the layer ``layer`` and of a neuron of its."""
    x = inputs["x"]
    base: Any = {"x": noise(1, *x.shape[1:], dtype=x.dtype, seed=2).numpy()}
    samples: Any = {"x": noise(SAMPLES, *x.shape[1:], dtype=x.dtype, seed=3).numpy()}
    neuron = ca.Neuron(layer, (1,) * (x.ndim - 1))
    return (
        ca.DeepLift(inputs=("x",), baselines=base),
        ca.LayerDeepLift(layer=layer, inputs=("x",), baselines=base),
        ca.NeuronDeepLift(neuron=neuron, inputs=("x",), baselines=base),
        ca.DeepLiftShap(inputs=("x",), baselines=samples),
        ca.LayerDeepLiftShap(layer=layer, inputs=("x",), baselines=samples),
        ca.NeuronDeepLiftShap(neuron=neuron, inputs=("x",), baselines=samples),
    )


def named(asked: Any) -> str:
    return type(asked).__name__


def by_hand(model: nn.Module, inputs: Mapping[str, Tensor], asked: Any, target: Tensor) -> Tensor:
    """``asked``, answered by Captum as its documentation uses it."""
    modules = dict(model.named_modules())
    of_neuron = hasattr(asked, "neuron")
    at = [modules[asked.neuron.module]] if of_neuron else [modules[asked.layer]] if hasattr(asked, "layer") else []
    start = torch.from_numpy(asked.baselines["x"])
    options: dict[str, Any] = {"neuron_selector": asked.neuron.index} if of_neuron else {"target": target}
    return getattr(attr, named(asked))(model, *at).attribute(
        inputs["x"].clone().requires_grad_(),
        baselines=start if named(asked).endswith("Shap") else start.expand_as(inputs["x"]),
        additional_forward_args=tuple(each for name, each in inputs.items() if name != "x") or None,
        **options,
    ).detach()  # fmt: skip


def targets(rows: int) -> ClassIndex:
    return ClassIndex(tuple(row % 3 for row in range(rows)))


def explained(build: Build, asked: Attribution, mode: CheckMode, rows: int = 4, **more: Any) -> AttributionResult:
    return ask(build(), given(build, rows), asked, check=CheckRequest(mode), **more).attributions[0]


def test_attributions_add_up_to_the_change_from_the_mean_over_the_samples() -> None:
    """The sum is the target's change from its value at the baseline: of a distribution, from the mean of its values."""
    inputs = given(PLAIN, 4)
    for asked in (all_six(inputs)[0], all_six(inputs)[3]):
        result = explained(PLAIN, asked, CheckMode.OFF, target=targets(4))
        starts = torch.from_numpy(asked.baselines["x"])  # type: ignore[attr-defined]
        at_starts = PLAIN()(starts).detach().mean(0)[torch.arange(4) % 3]
        assert result.value_at_input is not None
        assert result.value_at_baseline is not None
        assert result.convergence_delta is not None
        assert np.allclose(result.value_at_baseline, at_starts, atol=1e-6)
        assert np.allclose(result.values["x"].sum(1), result.value_at_input - at_starts.numpy(), atol=1e-6)
        assert np.allclose(result.convergence_delta, 0, atol=1e-6)


@pytest.mark.parametrize("layer", ["a", "r1", "r2"])
def test_a_layer_may_be_the_nonlinearity_itself(layer: str) -> None:
    """Layers and neurons before, at and behind a nonlinearity are explained alike."""
    for asked in all_six(given(PLAIN, 4), layer):
        assert verdict(explained(PLAIN, asked, CheckMode.INDEPENDENT)) is Verdict.AGREES, named(asked)


@pytest.mark.parametrize("kind", [nn.Tanh, lambda: nn.MaxPool1d(2)])
def test_where_nothing_changes_the_derivative_stands_for_the_quotient(kind: Callable[[], nn.Module]) -> None:
    """Two channels that differ as little as the baseline's: 0 / 0 is the derivative, and each has its part."""
    build = wired(lambda m, x: m.r(x[:, :1] - x[:, 1:]).sum((1, 2)), r=kind)
    inputs = {"x": noise(1, 1, 4).expand(1, 2, 4)}
    result = ask(build(), inputs, ca.DeepLift(), check=CheckRequest(CheckMode.INDEPENDENT)).attributions[0]
    theirs = attr.DeepLift(build()).attribute(inputs["x"].clone().requires_grad_())
    assert close(result.values["x"], theirs, SMALL)
    assert result.values["x"].any()
    assert verdict(result) is Verdict.AGREES


def test_a_softmax_of_one_example_is_normalised_as_captum_does() -> None:
    """Of one example and one baseline Captum's softmax rule is the paper's; sums no longer add up, and are not said
    to be the identity's fault."""
    build = net(lambda m, x: m.s(m.head(m.r(m.a(x)))), r=nn.ReLU, s=lambda: nn.Softmax(1))
    inputs = given(build, 1)
    for asked in all_six(inputs, "a")[:2]:
        result = explained(build, asked, CheckMode.INDEPENDENT, rows=1)
        theirs = by_hand(build(), inputs, asked, build()(inputs["x"]).argmax(1))
        assert close(next(iter(result.values.values())), theirs, SMALL)
        assert verdict(result) is Verdict.AGREES


@pytest.mark.parametrize("edit", [ca.Scale("b", factor=0.5), ca.Scale("r1", factor=2.0), ca.Add("r2", addend=0.3)])
def test_an_edit_of_all_rows_alike_is_explained(edit: ca.Edit) -> None:
    """What Captum overrides is the edited model: AGREES."""
    for asked in all_six(given(PLAIN, 4), "head"):
        result = explained(PLAIN, asked, CheckMode.SAME_PASS, edits=[edit])
        assert verdict(result) is Verdict.AGREES, (named(asked), result.checks)


@pytest.mark.parametrize("target", [ca.OutputSum(), ca.Neuron("b", (2,))])
def test_targets_that_are_no_class(target: ca.Target) -> None:
    """A sum of the output, or a neuron, is explained like a class."""
    inputs = given(PLAIN, 4)
    for asked in (all_six(inputs)[0], all_six(inputs)[3]):
        assert verdict(explained(PLAIN, asked, CheckMode.SAME_PASS, target=target)) is Verdict.AGREES


# Captum gone wrong.


# What Captum overlooks.

OVERLOOKED: dict[str, tuple[Build, Cause, str]] = {
    "functions": (
        net(lambda m, x: m.head(torch.relu(m.b(F.softplus(m.a(x)))))),
        Cause.FUNCTIONAL_NONLINEARITY, "softplus, relu at :softplus#0, :relu#0",
    ),
    "a method in place": (
        net(lambda m, x: m.head(m.b(m.a(x)).sigmoid_())), Cause.FUNCTIONAL_NONLINEARITY, "sigmoid_ at :sigmoid_#0",
    ),
    "kinds that it does not know": (
        one_after_another(nn.GELU, nn.Hardtanh), Cause.FUNCTIONAL_NONLINEARITY, "gelu, hardtanh at r1:gelu#0, r2:hard",
    ),
    "a kind of a known kind": (
        one_after_another(type("Rectifier", (nn.ReLU,), {}), nn.Tanh), Cause.FUNCTIONAL_NONLINEARITY, "relu at r1:relu",
    ),
    "a softmax in the middle": (
        net(lambda m, x: m.head(m.b(m.a(x)).softmax(1))), Cause.FUNCTIONAL_NONLINEARITY, "softmax at :softmax#0",
    ),
    "a pooling function": (
        images(lambda m, x: m.head(F.max_pool2d(m.b(m.a(x)), 2).mean((2, 3)))),
        Cause.FUNCTIONAL_NONLINEARITY, "max_pool2d at :max_pool2d#0",
    ),
    "one right behind another": (
        net(lambda m, x: m.head(m.r2(m.r1(m.b(m.a(x))))), r1=nn.Tanh, r2=nn.Sigmoid),
        Cause.OVERRIDE_LOST, "'r2' takes the very tensor that 'r1' returns",
    ),
    "a way around": (
        net(lambda m, x: m.head((lambda h: m.r(h) + h)(m.b(m.a(x)))), r=nn.Tanh),
        Cause.OVERRIDE_LOST, "the input of 'r' is also used elsewhere",
    ),
    "windows that overlap": (
        pooled(lambda: nn.MaxPool2d(3, 1)), Cause.OVERRIDE_LOST, "windows of 'p' overlap and share a maximum",
    ),
    "a softmax of several examples": (
        net(lambda m, x: m.s(m.head(m.b(m.a(x)))), s=lambda: nn.Softmax(1)),
        Cause.ROWS_COUPLED, "the softmax 's' over all rows",
    ),
    "rows that depend on each other": (
        net(lambda m, x: m.head(m.r(m.b(m.a(x) - m.a(x).mean(0, keepdim=True)))), r=nn.Tanh),
        Cause.ROWS_COUPLED, "along axis 0; the values there are not those of inputs and baselines alone at 'r'",
    ),
    "rows along another axis": (
        net(lambda m, x: m.head(m.r(m.b(m.a(x)).T).T), r=nn.Tanh), Cause.ROWS_COUPLED, "alone at 'r'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(OVERLOOKED))
def test_what_captum_overlooks_is_found_out_and_named(name: str) -> None:
    """DISAGREES, with the cause, the place and what to do, for inputs and, where it lies behind it, for a layer."""
    build, cause, reason = OVERLOOKED[name]
    six = all_six(given(build, 4), "a")
    for asked in (six[0], six[1], six[3], six[4]):
        result = explained(build, asked, CheckMode.SAME_PASS)
        assert verdict(result) is Verdict.DISAGREES, named(asked)
        assert result.checks[0].cause is cause, result.checks[0].reason
        assert reason in result.checks[0].reason


@pytest.mark.parametrize("name", list(OVERLOOKED))
def test_what_lies_off_the_way_is_nothing_that_captum_overlooks(name: str) -> None:
    """Of a neuron before it, and of a layer behind it: AGREES."""
    build = OVERLOOKED[name][0]
    six = all_six(given(build, 4), "a")
    before = [six[2], six[5]] if "depend on each other" not in name else []
    behind = all_six(given(build, 4), "head")[1] if name != "a softmax of several examples" else None
    for asked in (*before, *([] if behind is None or "depend" in name else [behind])):
        result = explained(build, asked, CheckMode.INDEPENDENT)
        assert verdict(result) is Verdict.AGREES, (named(asked), result.checks)


def test_a_match_by_chance_is_no_proof() -> None:
    """A functional relu that lets everything pass: INCONCLUSIVE, and it is named."""
    build = net(lambda m, x: F.relu(m.head(m.b(m.a(x))) + 1e3))
    result = explained(build, all_six(given(build, 4))[0], CheckMode.SAME_PASS)
    assert verdict(result) is Verdict.INCONCLUSIVE
    assert result.checks[0].reason.startswith("relu at :relu#0")
    assert result.checks[0].reason.endswith("for this input that makes no difference")


def test_products_are_told_by_the_sum() -> None:
    """No rule is known for a product: Captum differentiates it, and so does the reference; the sum misses, and an
    agreement proves nothing."""
    build = net(lambda m, x: m.head(m.a(x) * m.b(x)))
    result = explained(build, all_six(given(build, 4))[0], CheckMode.SAME_PASS)
    assert [check.verdict for check in result.checks] == [Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE]
    assert result.checks[0].cause is Cause.FUNCTIONAL_NONLINEARITY


@pytest.mark.parametrize("mode", CHECKED)
def test_a_module_called_twice_is_right_or_found_out(mode: CheckMode) -> None:
    """Captum keeps the last call of a module: a layer between the two is explained rightly, a neuron there wrongly,
    which is found out and named; an input cannot be explained, and the error says why."""
    twice = net(lambda m, x: m.head(m.r(m.b(m.r(m.a(x))))), r=nn.ReLU)
    six = all_six(given(twice, 4))
    for asked in (six[1], six[4]):
        assert verdict(explained(twice, asked, mode)) is Verdict.AGREES
    for asked in (six[2], six[5]):
        check = explained(twice, asked, mode).checks[0]
        assert (check.verdict, check.cause) == (Verdict.DISAGREES, Cause.MODULE_REUSED)
        assert "the module 'r' is called 2 times in one forward" in check.reason
    for asked in (six[0], six[3]):
        with pytest.raises(ca.InvalidArgument, match="the module 'r' is called 2 times in one forward") as refused:
            explained(twice, asked, mode)
        assert refused.value.reason == "METHOD_INAPPLICABLE"


@pytest.mark.parametrize("mode", CHECKED)
def test_a_layer_or_neuron_called_twice_is_found_out(mode: CheckMode) -> None:
    """Captum explains the last call of a layer, and of a neuron's module, whose first is asked for."""
    twice = net(lambda m, x: m.head(m.b(m.r(m.b(m.a(x))))), r=nn.Tanh)
    for asked in (*all_six(given(twice, 4))[1:3], *all_six(given(twice, 4))[4:]):
        check = explained(twice, asked, mode).checks[0]
        assert (check.verdict, check.cause) == (Verdict.DISAGREES, Cause.MODULE_REUSED), named(asked)


def test_float16_divides_nought_by_nought() -> None:
    """Captum's threshold is 0 in float16: its NaN is found out and named, and in bfloat16 there is none."""
    half, brain = (to(PLAIN, dtype) for dtype in (torch.float16, torch.bfloat16))
    for build, expected in ((half, Verdict.DISAGREES), (brain, Verdict.AGREES)):
        dtype = next(build().parameters()).dtype
        inputs = {"x": noise(2, WIDTH).index_fill(0, torch.tensor([0]), 0).to(dtype)}
        result = ask(build(), inputs, ca.DeepLift(), check=CheckRequest(CheckMode.INDEPENDENT)).attributions[0]
        assert bool(np.isnan(result.values["x"].astype(np.float64)).any()) == (build is half)
        if build is half:
            assert (verdict(result), result.checks[0].cause) == (expected, Cause.NOT_FINITE)
            assert "float16" in result.checks[0].reason


def test_what_is_computed_again_for_the_gradient_is_found_out_too() -> None:
    """A function inside of activation checkpointing is named like any other; a module there agrees."""

    def build(of: Callable[[Any], Callable[[Tensor], Tensor]]) -> Build:
        return net(lambda m, x: m.head(checkpoint(of(m), m.a(x), use_reentrant=False)), r=nn.Tanh)

    functional, modular = build(lambda m: lambda h: torch.tanh(m.b(h))), build(lambda m: lambda h: m.r(m.b(h)))
    for asked in all_six(given(PLAIN, 4), "a")[:2]:
        check = explained(functional, asked, CheckMode.SAME_PASS).checks[0]
        assert (check.verdict, check.cause) == (Verdict.DISAGREES, Cause.FUNCTIONAL_NONLINEARITY)
        assert verdict(explained(modular, asked, CheckMode.SAME_PASS)) is Verdict.AGREES


# Layers whose axis 0 is not the batch alone.

MERGED = wired(lambda m, x: m.head(m.r(m.a(x.reshape(-1, 6))).reshape(len(x), -1, 6).mean(1)),
               a=lambda: nn.Linear(6, 6), r=nn.ReLU, head=lambda: nn.Linear(6, 3))  # fmt: skip
TIME_FIRST = wired(lambda m, x: m.head(m.a(x.transpose(0, 1)).mean(0)),
                   a=lambda: nn.Linear(6, 6), head=lambda: nn.Linear(6, 3))  # fmt: skip
RECURRENT = wired(lambda m, x: m.head(m.a(x)[0].mean(1)),
                  a=lambda: nn.LSTM(6, 6, batch_first=True), head=lambda: nn.Linear(6, 3))  # fmt: skip


def test_layers_whose_axis_0_is_not_the_batch_alone() -> None:
    """Rows that are merged with steps are explained one by one; steps before rows are halved by Captum, which is found
    out; where Captum fails, the error names the layer."""
    inputs = {"x": noise(3, 4, 6)}
    samples = {"x": noise(SAMPLES, 4, 6).numpy()}

    def check(build: Build, asked: Attribution) -> Check:
        return ask(build(), inputs, asked, check=CheckRequest(CheckMode.INDEPENDENT)).attributions[0].checks[0]

    assert check(MERGED, ca.LayerDeepLift(layer="r")).verdict is Verdict.AGREES
    found = check(TIME_FIRST, ca.LayerDeepLift(layer="a"))
    assert (found.verdict, found.cause) == (Verdict.DISAGREES, Cause.ROWS_COUPLED)
    assert "alone at 'a'" in found.reason
    with pytest.raises(ca.InvalidArgument, match="axis 0 of what the layer 'a' returns is not the batch") as refused:
        check(TIME_FIRST, ca.LayerDeepLiftShap(layer="a", baselines=samples))
    assert refused.value.reason == "METHOD_INAPPLICABLE"
    with pytest.raises(ca.InvalidArgument, match="the layer 'a' returns tensors inside of a tuple") as refused:
        check(RECURRENT, ca.LayerDeepLift(layer="a"))
    assert refused.value.reason == "METHOD_INAPPLICABLE"


def test_a_random_model_is_not_called_wrong() -> None:
    """Dropout that ignores evaluation: two passes differ, which is neither right nor wrong."""
    random = net(lambda m, x: m.head(F.dropout(m.r(m.a(x)), 0.5, training=True)), r=nn.ReLU)
    check = explained(random, all_six(given(random, 4))[0], CheckMode.SAME_PASS).checks[0]
    assert (check.verdict, check.cause) == (Verdict.INCONCLUSIVE, Cause.RANDOM_FORWARD)


# What cannot be done.


GRID = wired(
    lambda m, x: m.b(m.r(m.a(x))).reshape(-1, 2, 3), a=lambda: nn.Linear(8, 6), r=nn.ReLU, b=lambda: nn.Linear(6, 6)
)


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize(
    "asked",
    [
        ca.DeepLift(), ca.LayerDeepLift(layer="a"), ca.DeepLiftShap(baselines={"x": noise(4, 8, seed=5).numpy()}),
        ca.GradientShap(baselines={"x": noise(4, 8, seed=5).numpy()}, n_samples=4), ca.LayerConductance(layer="a"),
        ca.KernelShap(n_samples=40), ca.Lime(n_samples=40),
    ],
    ids=named,
)  # fmt: skip
def test_an_element_for_each_row_is_a_target_of_every_method(asked: Attribution, mode: CheckMode) -> None:
    """As of each row by itself; all in one request."""
    places = ((0, 1), (1, 2), (1, 0))
    inputs = {"x": noise(3, 8)}
    more: dict[str, Any] = {"check": CheckRequest(mode), "seed": 3}
    (whole,) = ask(GRID(), inputs, asked, target=ca.MultiIndex(places), **more).attributions
    assert verdict(whole) is Verdict.AGREES, whole.checks
    (first,) = ask(GRID(), {"x": inputs["x"][:1]}, asked, target=ca.MultiIndex(places[:1]), **more).attributions
    for name, values in whole.values.items():
        assert np.allclose(values[:1], first.values[name], rtol=1e-4, atol=1e-6) or "Shap" in named(asked)


# Nothing is left behind.


def own_attributes(model: nn.Module) -> list[Any]:
    return [(type(module), vars(module).get("input"), vars(module).get("output")) for module in model.modules()]


@pytest.mark.parametrize("asked", all_six(given(PLAIN, 4), "a"), ids=named)
def test_the_model_and_the_generators_are_as_before(asked: Attribution) -> None:
    """Also the attributes that Captum sets on modules where no gradient comes by, and those that were there before."""
    model = PLAIN()
    setattr(dict(model.named_children())["r1"], "input", "the owner's")  # noqa: B010 (mypy knows tensors only)
    before = own_attributes(model)
    numbers = torch.get_rng_state(), pickle.dumps(np.random.get_state())
    for mode in CheckMode:
        with untouched(model):
            ask(model, given(PLAIN, 4), asked, check=CheckRequest(mode))
    assert own_attributes(model) == before
    assert torch.equal(torch.get_rng_state(), numbers[0])
    assert pickle.dumps(np.random.get_state()) == numbers[1]


@pytest.mark.parametrize("fails_in", [2, 3, 5])
def test_the_model_is_as_before_where_it_raises_half_way(fails_in: int) -> None:
    """In the pass that predicts, in Captum's, in a check's: the error is the model's own, and nothing is left."""
    passes: list[int] = []

    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.r1(m.a(x))
        passes.append(len(x))
        if len(passes) == fails_in:
            raise ValueError("no more")
        return m.head(h)

    build = net(forward, r1=nn.ReLU)
    model = build()
    with untouched(model), pytest.raises(ca.InvalidArgument, match="no more"):
        ask(model, {"x": noise(2, WIDTH)}, ca.DeepLift(), check=CheckRequest(CheckMode.SAME_PASS))
    assert not any({"input", "output"} & set(vars(module)) for module in model.modules())


def test_no_graph_outlives_its_request() -> None:
    """Neither of operators that are listened to, nor of layers in whose place Captum puts values of its own."""
    for name in ("functions", "a pooling function", "a way around"):
        build = OVERLOOKED[name][0]
        asked = all_six(given(build, 4), "a")
        counts = []
        for _ in range(2):
            for each in asked[:4]:
                explained(build, each, CheckMode.SAME_PASS)
            counts.append(nodes())
        assert counts[1] <= counts[0], name


def test_the_kinds_are_those_that_captum_overrides() -> None:
    """A newer Captum that knows another kind needs a rule for it here."""
    from captum.attr._core.deep_lift import SUPPORTED_NON_LINEAR

    assert set(MODULE_RULES) == set(SUPPORTED_NON_LINEAR)
