"""What is right is not doubted for a reason that does not concern it, and a reason that is given is true.

Each was found by ``python -m tests.matrix.healthy``, on models in which nothing is wrong.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cutaway as ca
from cutaway.contract.requests import Attribution, CheckMode, Neuron
from cutaway.contract.results import Cause, Check, Verdict
from tests.support.checked_attributions import CHECKED, RANDOM, ask, noise, wired
from tests.support.wrong_parts import scaled
from tests.unit.engine.test_doubts import AGREES, WRONG, Served, outcome

ONES = {"x": torch.ones(1, 1)}

AT_LAYER: tuple[Attribution, ...] = (
    ca.LayerGradientXActivation(layer="b"),
    ca.LayerGradCam(layer="b"),
    ca.InternalInfluence(layer="b", n_steps=8),
)


def rectified(m: Any, x: Tensor) -> Tensor:
    """All ReLUs behind ``a`` are off in the first row of `FIRST_IS_OFF`."""
    return m.c(torch.tanh(m.b(torch.relu(m.a(x)))))


def positive(rows: int, columns: int) -> nn.Linear:
    """A linear layer of positive weights, without a bias."""
    layer = nn.Linear(rows, columns, bias=False)
    with torch.no_grad():
        layer.weight.abs_()
    return layer


RECTIFIED = wired(rectified, a=lambda: positive(8, 16), b=lambda: nn.Linear(16, 4), c=lambda: nn.Linear(4, 3))
FIRST_IS_OFF = {"x": noise(3, 8).abs() * torch.tensor([[-1.0], [1.0], [1.0]])}


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("asked", AT_LAYER, ids=lambda asked: type(asked).__name__)
def test_a_layer_is_not_doubted_for_what_happens_before_it(asked: Attribution, mode: CheckMode) -> None:
    """No gradient of the first row reaches the input, and that of the layer is as good as any."""
    served = Served(RECTIFIED())
    assert outcome(served.ask(asked, inputs=FIRST_IS_OFF, mode=mode)[0]) == AGREES
    input_check = served.ask(ca.Saliency(), inputs=FIRST_IS_OFF, mode=mode)[0].checks[0]
    assert input_check.cause is Cause.NO_GRADIENT
    assert "in row 0: near this input the target does not depend on it" in input_check.reason


@pytest.mark.parametrize("mode", CHECKED)
def test_a_row_in_which_the_layer_does_not_move(mode: CheckMode) -> None:
    """A method that multiplies by the change of the layer says nothing of that row, and agrees in the others."""
    asked = ca.LayerConductance(layer="b", n_steps=8)
    check = Served(RECTIFIED()).ask(asked, inputs=FIRST_IS_OFF, mode=mode)[0].checks[0]
    unmoved = (Verdict.INCONCLUSIVE, Cause.NOTHING_CHANGED)
    assert [(row.verdict, row.cause) for row in check.rows] == [unmoved, AGREES, AGREES]


EMBEDDED = wired(
    lambda m, x, c: m.b(torch.tanh(m.a(x) + m.words(c))),
    a=lambda: nn.Linear(8, 16), words=lambda: nn.Embedding(5, 16), b=lambda: nn.Linear(16, 3),
)  # fmt: skip


@pytest.mark.parametrize("mode", CHECKED)
def test_a_category_that_equals_its_baseline(mode: CheckMode) -> None:
    """It reaches the layer, and its baseline is the reason; an input that does not is named as such."""
    inputs = {"x": noise(3, 8), "c": torch.tensor([1, 0, 2])}
    moved, still = (
        Served(EMBEDDED()).ask(ca.LayerIntegratedGradients(layer="words", inputs=names), inputs=inputs, mode=mode)[0]
        for names in (("x", "c"), ("x",))
    )
    unmoved = (Verdict.INCONCLUSIVE, Cause.NOTHING_CHANGED)
    assert [(row.verdict, row.cause) for row in moved.checks[0].rows] == [AGREES, unmoved, AGREES]
    assert "in row 1: there, the baseline of 'c' equals the input, and no other" in moved.checks[0].reason
    assert "in every row: the explained inputs (x) do not reach it; name" in still.checks[0].reason


@pytest.mark.parametrize("mode", CHECKED)
def test_a_row_whose_gradient_ends_behind_the_layer(mode: CheckMode) -> None:
    """Where a row has no gradient at the layer itself, the reason names the layer."""
    asked = ca.LayerGradientXActivation(layer="a")
    check = Served(RECTIFIED()).ask(asked, inputs=FIRST_IS_OFF, mode=mode)[0].checks[0]
    assert (check.verdict, check.cause) == (Verdict.INCONCLUSIVE, Cause.NO_GRADIENT)
    assert "in row 0: near this input the target does not depend on the layer 'a'" in check.reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_fit_to_a_row_that_no_mask_changes(dtype: torch.dtype) -> None:
    """Captum fits in float32, which leaves rounding errors of the row's target: cancelled terms, and no difference."""
    large = wired(lambda m, x: rectified(m, x) + 10, a=lambda: positive(8, 16), b=lambda: nn.Linear(16, 4),
                  c=lambda: nn.Linear(4, 3))().to(dtype)  # fmt: skip
    (result,) = Served(large).ask(ca.KernelShap(n_samples=20), inputs={"x": FIRST_IS_OFF["x"].to(dtype)}, seed=0)
    verdicts = [(row.verdict, row.cause) for row in result.checks[0].rows]
    assert verdicts == [(Verdict.INCONCLUSIVE, Cause.CANCELLATION), AGREES, AGREES]
    assert np.abs(result.values["x"][0]).max() < 1e-6


@pytest.mark.parametrize("mode", CHECKED)
def test_steps_of_a_sequence_are_no_rows(mode: CheckMode) -> None:
    """A layer returns [steps, batch, units], with as many steps as rows, and only the last step is read: that the other
    steps have no gradient says nothing about rows."""
    last = wired(lambda m, x: m.b(torch.tanh(m.a(x.transpose(0, 1)))[-1]), a=lambda: nn.Linear(4, 5),
                 b=lambda: nn.Linear(5, 3))  # fmt: skip
    result = Served(last()).ask(ca.LayerGradientXActivation(layer="a"), inputs={"x": noise(3, 3, 4)}, mode=mode)[0]
    assert outcome(result) == AGREES


def sums(wiring: Any, asked: Attribution) -> Check:
    """The check of sums, for a model of one number."""
    return Served(wired(wiring, a=nn.Identity)()).ask(asked, inputs=ONES)[0].checks[1]


def test_a_rule_of_the_first_order_needs_more_steps() -> None:
    """Twice the steps leave a little more than half of what LayerConductance misses: they help all the same."""
    steep = sums(lambda m, x: -torch.exp(-8 * m.a(x)), ca.LayerConductance(layer="a", n_steps=48))
    assert (steep.verdict, steep.cause) == (Verdict.INCONCLUSIVE, Cause.TOO_FEW_STEPS)
    assert "with 96 steps: too few steps; request n_steps=96 or more" in steep.reason


def test_no_number_of_steps_helps_over_a_jump() -> None:
    """What a jump adds to the target is in no gradient: the reason asks for one, and promises nothing of steps."""
    jump = sums(lambda m, x: m.a(x) + (x > 0.37).float(), ca.IntegratedGradients(n_steps=48))
    assert (jump.verdict, jump.cause) == (Verdict.INCONCLUSIVE, Cause.DISCONTINUOUS)
    assert "96 steps leave most of it: the target jumps on the path" in jump.reason


def far_from_zero(offset: float, wiring: Any = lambda m, x: m.b(m.r(m.a(x)))) -> Served:
    """A model whose target is large, and changes little."""
    build = wired(lambda m, x: wiring(m, x) + offset, a=lambda: nn.Linear(8, 16), r=nn.ReLU,
                  b=lambda: nn.Linear(16, 3))  # fmt: skip
    return Served(build())


@pytest.mark.parametrize(
    ("asked", "offset"), [(ca.DeepLift(), 101_325.0), (ca.IntegratedGradients(n_steps=50), 3e6)], ids=["DeepLift", "IG"]
)
def test_what_rounding_hides_is_no_fault_of_the_model(asked: Attribution, offset: float) -> None:
    """A pressure in pascals: float32 knows its change to a hundredth, and a gap of the sum may be no more than that."""
    (result,) = far_from_zero(offset).ask(asked, inputs={"x": noise(4, 8)})
    assert {check.cause for check in result.checks} <= {None, Cause.CANCELLATION}
    assert (result.checks[1].verdict, result.checks[1].cause) == (Verdict.INCONCLUSIVE, Cause.CANCELLATION)
    assert "the target itself is rounded by up to" in result.checks[1].reason


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize(
    "asked",
    [ca.FeatureAblation(), ca.Occlusion(windows={"x": (2,)}), ca.LayerFeatureAblation(layer="r")],
    ids=lambda asked: type(asked).__name__,
)
def test_effects_that_are_mostly_rounding_are_not_agreed_on(asked: Attribution, mode: CheckMode) -> None:
    """Each row by itself: the effects of the last one are a thousand times as large."""
    x = noise(3, 8) * torch.tensor([[1.0], [1.0], [1e3]])
    near, far = (far_from_zero(offset).ask(asked, inputs={"x": x}, mode=mode)[0].checks[0] for offset in (100.0, 3e5))
    assert near.verdict is Verdict.AGREES
    lost = (Verdict.INCONCLUSIVE, Cause.CANCELLATION)
    assert [(row.verdict, row.cause) for row in far.rows] == [lost, lost, AGREES]


def test_a_gap_beyond_rounding_is_still_accused() -> None:
    """A product, for which there is no rule, beside a constant that hides nothing of its gap, or all."""
    product = lambda m, x: m.b(m.r(m.a(x)) * x.repeat(1, 2))  # noqa: E731
    little, much = (far_from_zero(offset, product).ask(ca.DeepLift())[0] for offset in (100.0, 5e5))
    assert outcome(little) == (Verdict.INCONCLUSIVE, Cause.FUNCTIONAL_NONLINEARITY)
    assert outcome(much) == (Verdict.INCONCLUSIVE, Cause.CANCELLATION)


@pytest.mark.parametrize("mode", CHECKED)
def test_a_neuron_behind_which_a_relu_is_off(mode: CheckMode) -> None:
    """The gradient reaches the input by other neurons: the reason is about this one."""
    build = wired(lambda m, x: m.b(torch.relu(m.a(x) - torch.tensor([1e3, 0.0, 0.0, 0.0]))), a=lambda: nn.Linear(8, 4),
                  b=lambda: nn.Linear(4, 3))  # fmt: skip
    asked = ca.NeuronConductance(neuron=Neuron("a", (0,)), n_steps=8)
    check = Served(build()).ask(asked, mode=mode)[0].checks[0]
    assert (check.verdict, check.cause) == (Verdict.INCONCLUSIVE, Cause.NO_GRADIENT)
    assert check.reason.startswith("what flows through the neuron of 'a' is exactly zero")


@pytest.mark.parametrize("asked", [ca.GuidedBackprop(), ca.Deconvolution()], ids=lambda asked: type(asked).__name__)
def test_methods_that_pass_back_nothing_negative(asked: Attribution) -> None:
    """All gradients at the ReLU are negative: they are not cut, nor does the target not depend on the input."""
    build = wired(lambda m, x: -m.b(m.r(m.a(x))), a=lambda: nn.Linear(8, 4), r=nn.ReLU, b=lambda: positive(4, 3))
    check = Served(build()).ask(asked)[0].checks[0]
    assert (check.verdict, check.cause) == (Verdict.INCONCLUSIVE, Cause.NO_GRADIENT)
    assert "although the gradient is not" in check.reason
    assert "nothing positive" in check.reason


def difference(nearness: float, factor: float) -> Any:
    """What two networks say differently that are nearly the same, in units of their difference; at one place gradients
    are passed on times a factor. Rows run one by one: more at once are rounded otherwise, on some CPUs."""

    def of_row(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        return (torch.tanh(h + nearness * F.linear(x, m.shift)) - torch.tanh(h)) / nearness

    def wiring(m: Any, x: Tensor) -> Tensor:
        return m.b(scaled(factor)(torch.cat([of_row(m, row) for row in x.split(1)])))

    return wired(wiring, a=lambda: nn.Linear(8, 16), b=lambda: nn.Linear(16, 3),
                 shift=lambda: nn.Parameter(noise(16, 8, seed=3)))  # fmt: skip


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("factor", "expected"), [(1.0, AGREES), (1.01, WRONG)])
def test_rounding_is_no_wrong_backward(
    factor: float, expected: tuple[Verdict, Cause | None], seed: int, mode: CheckMode
) -> None:
    """Where nearly equal numbers are subtracted, forward mode and backward pass differ by hundreds of roundings, at
    random; one percent too much is found all the same."""
    served = Served(difference(1e-5, factor)())
    assert outcome(served.ask(ca.InputXGradient(), inputs={"x": noise(3, 8, seed=seed)}, mode=mode)[0]) == expected


def test_a_gradient_that_is_mostly_rounding_is_doubted() -> None:
    """Where rounding is as large as the gradient, an agreement says little. On CPUs that run other kernels for more
    rows, the value of a row then depends on how many there are."""
    served = Served(difference(1e-7, 1.0)())
    check = served.ask(ca.InputXGradient(), inputs={"x": noise(3, 8)})[0].checks[0]
    assert check.verdict is Verdict.INCONCLUSIVE
    assert check.cause in (Cause.CANCELLATION, Cause.WRONG_BACKWARD, Cause.ROWS_COUPLED)


# What the target does not read.


class TwoTowers(nn.Module):
    """Similarities of all images and all texts, as CLIP returns them, both ways."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.image, self.words = nn.Sequential(nn.Linear(4, 5), nn.Tanh()), nn.Embedding(9, 5)

    def forward(self, pixels: Tensor, ids: Tensor) -> dict[str, Tensor]:
        images, texts = self.image(pixels), self.words(ids).mean(1)
        return {"logits_per_image": images @ texts.T, "logits_per_text": texts @ images.T}


PAIRS = {"pixels": noise(3, 4), "ids": torch.tensor([[1, 2], [3, 4], [5, 6]])}
PER_IMAGE, PER_TEXT = (ca.MultiIndex(((1,),), output=f"logits_per_{name}") for name in ("image", "text"))
OF_IMAGES: tuple[Attribution, ...] = (
    ca.Saliency(inputs=("pixels",)),
    ca.IntegratedGradients(inputs=("pixels",), n_steps=8),
    ca.DeepLift(inputs=("pixels",)),
    ca.FeatureAblation(inputs=("pixels",)),
    ca.LayerGradientXActivation(layer="image"),
)


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("asked", OF_IMAGES, ids=lambda asked: type(asked).__name__)
def test_an_output_that_the_target_does_not_read_couples_no_rows(asked: Attribution, mode: CheckMode) -> None:
    """A text's similarities change with other images, and their number with the batch; an image's similarity to text 1
    does not."""
    served = Served(TwoTowers())
    assert outcome(served.ask(asked, inputs=PAIRS, target=PER_IMAGE, mode=mode)[0]) == AGREES
    one = {name: rows[:1] for name, rows in PAIRS.items()}
    first = ca.MultiIndex(((0,),), output="logits_per_image")
    assert outcome(served.ask(asked, inputs=one, target=first, mode=mode)[0]) == AGREES


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("asked", OF_IMAGES[:4], ids=lambda asked: type(asked).__name__)
def test_an_output_that_the_target_reads_couples_them(asked: Attribution, mode: CheckMode) -> None:
    """Each text's similarity to image 1 depends on that row."""
    got = Served(TwoTowers()).ask(asked, inputs=PAIRS, target=PER_TEXT, mode=mode)[0]
    assert Cause.ROWS_COUPLED in [check.cause for check in got.checks]


@pytest.mark.parametrize("mode", CHECKED)
def test_copies_of_a_row_next_to_each_other_read_other_elements(mode: CheckMode) -> None:
    """GradientShap and noise tunnels repeat each row: column 1 is then not text 1 any more."""
    for asked in (
        ca.GradientShap(inputs=("pixels",), baselines={"pixels": PAIRS["pixels"].numpy() * 0}, n_samples=4),
        ca.Saliency(inputs=("pixels",), noise=ca.NoiseTunnel(n_samples=4, stdev=0.5)),
    ):
        got = Served(TwoTowers()).ask(asked, inputs=PAIRS, target=PER_IMAGE, mode=mode, seed=1)[0]
        assert outcome(got) != AGREES


class Scaled(nn.Module):
    """Standardises columns of very different sizes, as those of tables are."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.logspace(-1.5, 3.3, 12))
        self.a, self.b = nn.Linear(12, 16), nn.Linear(16, 2)
        for parameter in self.a.parameters():
            parameter.data *= 3

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a((x - self.mean) / (0.05 * self.mean))))


def test_a_table_of_small_and_large_columns_is_not_accused() -> None:
    """A step as long as the row's mean leaves the range of its small columns: there tanh is flat on both sides, and in
    3,000 rows some look as if their slope were another one."""
    torch.manual_seed(0)
    model = Scaled().eval()
    given = {"x": model.mean * (1 + 0.05 * noise(3000, 12))}
    result = ask(model, given, ca.Saliency(), target=ca.ClassIndex((0,))).attributions[0]
    assert {check.verdict for check in result.checks} == {ca.Verdict.AGREES}


# What makes a sum wrong.


def normalised_by_batch(m: Any, x: Tensor) -> Tensor:
    return m.b(torch.relu(m.norm(m.a(x))))


SPOILED: dict[str, tuple[Any, Cause]] = {
    "rows are normalised together": (
        wired(normalised_by_batch, a=lambda: nn.Linear(8, 4), b=lambda: nn.Linear(4, 3),
              norm=lambda: nn.BatchNorm1d(4, track_running_stats=False)), Cause.ROWS_COUPLED),
    "dropout is active": (RANDOM, Cause.RANDOM_FORWARD),
    "the layer is called twice": (
        wired(lambda m, x: m.b(m.a(x) * torch.tanh(m.a(-x))), a=lambda: nn.Linear(8, 4), b=lambda: nn.Linear(4, 3)),
        Cause.MODULE_REUSED),
}  # fmt: skip


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("name", list(SPOILED))
def test_what_spoils_the_values_spoils_their_sum(name: str, mode: CheckMode) -> None:
    """No backward pass is accused, no jump of the target is suspected, and more steps are not advised."""
    build, cause = SPOILED[name]
    result = Served(build()).ask(ca.LayerConductance(layer="a", n_steps=16), inputs={"x": noise(3, 8)}, mode=mode)[0]
    assert [check.cause for check in result.checks] == [cause, cause]
    assert result.checks[0].reason in result.checks[1].reason


def test_slopes_of_rows_that_depend_on_each_other_accuse_no_backward_pass() -> None:
    """DeepLIFT is refuted for its functional ReLU; the slope of a row's target is not that of its own gradient."""
    build, _ = SPOILED["rows are normalised together"]
    checks = Served(build()).ask(ca.DeepLift(), inputs={"x": noise(3, 8)})[0].checks
    assert [check.cause for check in checks] == [Cause.FUNCTIONAL_NONLINEARITY] * 2


def state_goes_on(m: Any, x: Tensor) -> Tensor:
    _, cell = m.cells(x)
    output, cell = m.cells(x * 2, (torch.zeros_like(cell), cell))
    return m.b(output + cell)


GOES_ON = wired(state_goes_on, cells=lambda: nn.LSTMCell(8, 4), b=lambda: nn.Linear(4, 3))
AT_CELLS: tuple[Attribution, ...] = (
    ca.LayerGradientXActivation(layer="cells"), ca.LayerGradCam(layer="cells"), ca.LayerDeepLift(layer="cells"),
    ca.LayerConductance(layer="cells", n_steps=4), ca.LayerIntegratedGradients(layer="cells", n_steps=4),
)  # fmt: skip


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("asked", AT_CELLS, ids=lambda asked: type(asked).__name__)
def test_a_call_of_which_only_one_tensor_is_read(asked: Attribution, mode: CheckMode) -> None:
    """The target does not depend on the other one by way of this call: its gradient is 0 there, and no check fails."""
    result = Served(GOES_ON()).ask(asked, inputs={"x": noise(3, 8)}, mode=mode)[0]
    assert outcome(result) == (Verdict.DISAGREES, Cause.MODULE_REUSED)
