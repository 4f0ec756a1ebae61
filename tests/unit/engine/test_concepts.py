"""Concepts: each number is what hooks, a fit and a count by hand give, and what is wrong in Captum's is found."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from captum._utils.av import AV
from captum.attr import LayerGradientXActivation
from captum.concept import TCAV
from captum.concept._core import tcav as captum_tcav
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import TensorAdapter, load_model
from cutaway.contract.errors import CutawayError
from cutaway.contract.results import InspectResult
from cutaway.engine.cost.estimate import estimate
from cutaway.engine.cost.pass_count import costs
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.methods.concepts import fitted, held_out, logistic_fit, p_value, t_test
from cutaway.engine.planning.plan import plan_request

ONE = ca.ClassIndex((1,))
SETS, EXAMPLES, ROWS, SEED = 5, 20, 9, 3


def network(dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 5)
    )
    return net.to(dtype).eval()


def pictures(count: int, seed: int, *, square: bool = False) -> Tensor:
    """Noise, with a bright square or without one."""
    noise = torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    noise[:, :, 2:5, 2:5] += 3.0 * square
    return noise


X = pictures(ROWS, 1)


def examples(tensor: Tensor) -> ca.ConceptExamples:
    return ca.ConceptExamples({"": tensor})


def at_layers(*layers: str, count: int = EXAMPLES, sets: int = SETS, **options: Any) -> ca.TCAV:
    square = pictures(count, 2, square=True)
    return ca.TCAV(
        layers,
        {"square": examples(square), "like random": examples(pictures(count + 13, 3))},
        tuple(examples(pictures(count, 10 + number)) for number in range(sets)),
        **{"seed": SEED, **options},
    )


def asked(module: nn.Module, concepts: ca.TCAV, x: Tensor = X, **request: Any) -> InspectResult:
    model = load_model(TensorAdapter(module), "cpu")
    fields = {"target": ONE, **request}
    return inspect(model, ca.InspectRequest("m", **fields, concepts=concepts), {model.inputs[0].name: x})


def activations(net: nn.Module, layer: str, x: Tensor) -> Tensor:
    """By a hook by hand, [rows, features] float64."""
    seen: list[Tensor] = []
    hook = net.get_submodule(layer).register_forward_hook(lambda _, __, output: seen.append(output.detach().clone()))
    with hook, torch.no_grad():
        net(x)
    return seen[0].double().flatten(1)


def gradients(net: nn.Module, layer: str, x: Tensor, target: Callable[[Tensor], Tensor] = lambda y: y[:, 1]) -> Tensor:
    """The target's gradients at a layer, by a hook by hand, [rows, features] float64."""
    kept: list[Tensor] = []

    def keep(_: Any, __: Any, output: Tensor) -> Tensor:
        kept.append(output.detach().clone().requires_grad_())
        return kept[0].clone()

    with net.get_submodule(layer).register_forward_hook(keep):
        target(net(x)).sum().backward()
    assert kept[0].grad is not None
    return kept[0].grad.double().flatten(1)


def normal_by_hand(features: Tensor, labels: Tensor) -> Tensor:
    """The normal vector of logistic regression with a penalty, by gradient descent in the space of features."""
    scale = (features - features.mean(0)).pow(2).sum(1).mean().sqrt()
    x, weights = features / scale, torch.zeros(features.shape[1] + 1, dtype=torch.float64, requires_grad=True)
    descent = torch.optim.LBFGS(
        [weights], 1.0, 5000, tolerance_grad=1e-12, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        descent.zero_grad()
        values = x @ weights[:-1] + weights[-1]
        sum_of = nn.functional.binary_cross_entropy_with_logits(values, labels.double(), reduction="sum")
        total = sum_of + weights[:-1].pow(2).sum() / 2
        total.backward()
        return total

    descent.step(loss)
    return weights.detach()[:-1] / scale


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layer", ["0", "2", "5"])
def test_each_number_is_that_of_hooks_by_hand(layer: str, dtype: torch.dtype) -> None:
    """Vectors, derivatives, counts, means and held-out accuracies, against each random set and of both concepts."""
    net, concepts = network(dtype), at_layers(layer, vectors=True)
    request = ca.ClassIndex((1,)) if layer != "5" else ca.LogProbability(ONE)
    target = (lambda y: y[:, 1]) if layer != "5" else (lambda y: y.log_softmax(1)[:, 1])
    found = {each.concept: each for each in asked(net, concepts, X.to(dtype), target=request).concepts}
    assert [*found] == ["like random", "square"]
    gradient = gradients(net, layer, X.to(dtype), target)
    for number, (name, given) in enumerate(sorted(concepts.concepts.items())):
        result = found[name]
        for other, opposite in enumerate(concepts.random):
            both = [activations(net, layer, each.tensors[""].to(dtype)) for each in (given, opposite)]
            unseen = [held_out(label, len(each), SEED) for label, each in zip((number, 2 + other), both)]
            features = torch.cat([each[~out] for each, out in zip(both, unseen)])
            labels = torch.arange(len(features)) < int((~unseen[0]).sum())
            normal = normal_by_hand(features, labels)
            assert result.vectors is not None
            vector = torch.from_numpy(result.vectors[other]).flatten()
            assert result.vectors.shape[1:] == net[: int(layer) + 1](X.to(dtype)).shape[1:]
            np.testing.assert_allclose(vector / vector.norm(), normal / normal.norm(), rtol=0, atol=2e-5)
            derivatives = gradient @ normal / normal.norm()
            np.testing.assert_allclose(
                result.derivatives[:, other], derivatives, rtol=0, atol=1e-4 * float(gradient.norm())
            )
            assert result.shares[other] == pytest.approx(float((derivatives > 0).double().mean()), abs=1e-6)
            mean = float((gradient @ vector).mean())
            assert result.magnitudes[other] == pytest.approx(mean, rel=1e-4, abs=1e-5 * float(vector.norm()))
        assert result.share == pytest.approx(np.mean(result.shares))
        assert result.check is not None
        assert result.check.verdict is ca.Verdict.AGREES, result.check
        assert result.check.cosine == pytest.approx(1, abs=1e-6)
    assert min(found["square"].accuracies) > (0.9 if layer != "5" else 0.6)
    assert 0.2 < np.mean(found["like random"].accuracies) < 0.8


def test_random_sets_play_against_each_other_and_the_concept() -> None:
    """The share of a random set is the mean over all others, the concept among them; the p-value is its rank."""
    concepts = at_layers("2")
    (_, square) = asked(network(), concepts).concepts
    expected = []
    for number in range(SETS):
        others = [each for index, each in enumerate(concepts.random) if index != number]
        alone = ca.TCAV(("2",), {"it": concepts.random[number]}, (concepts.concepts["square"], *others), seed=SEED)
        (it,) = asked(network(), alone).concepts
        expected.append(it.share)
    # The held-out examples of a set go by its number: the means are near, not the same.
    np.testing.assert_allclose(square.random_shares, expected, atol=0.25)
    far = [abs(share - 0.5) >= abs(square.share - 0.5) for share in square.random_shares]
    assert square.p_value == (1 + sum(far)) / (1 + SETS)
    assert square.t_test == pytest.approx(scipy.stats.ttest_1samp(square.shares, 0.5).pvalue)


def test_the_p_value_rejects_as_often_as_it_says_and_the_t_test_does_not() -> None:
    """Of concepts that are like the random sets: 5 % with a p-value of 5 %. The paper's t-test rejects most of them."""
    generator, rejected, by_t_test, sets = np.random.default_rng(0), 0, 0, 19
    for _ in range(300):
        points = generator.normal(size=(sets + 1, 30)).cumsum(axis=1)[:, ::3]  # the mean of each set
        rows = generator.normal(size=(40, points.shape[1]))
        shares = np.array([[np.mean(rows @ (a - b) > 0) if a is not b else 0.5 for b in points] for a in points])
        means = [np.delete(shares[number], number).mean() for number in range(sets + 1)]
        rejected += p_value(means[0], means[1:]) <= 0.05
        by_t_test += t_test(tuple(shares[0, 1:])) <= 0.05
    assert rejected / 300 < 0.08
    assert by_t_test / 300 > 0.4
    assert t_test((0.5, 0.5)) == 1
    assert t_test((1.0, 1.0)) == 0


def test_sgd_is_captums_default_classifier() -> None:
    """The vectors are those of Captum's own class with its own classifier, trained on the same split."""
    net, concepts = network(), at_layers("2", classifier="sgd", vectors=True)
    (_, square) = asked(net, concepts).concepts
    both = [activations(net, "2", each.tensors[""]) for each in (concepts.concepts["square"], concepts.random[0])]
    kept = [each[~held_out(label, len(each), SEED)] for label, each in zip((1, 2), both)]
    from sklearn.linear_model import SGDClassifier

    model = SGDClassifier(alpha=0.01, max_iter=1000, tol=1e-3, random_state=SEED)
    model.fit(torch.cat(kept).numpy(), [True] * len(kept[0]) + [False] * len(kept[1]))
    assert square.vectors is not None
    np.testing.assert_allclose(square.vectors[0].ravel(), model.coef_[0], rtol=1e-5, atol=1e-7)
    assert square.check is not None
    assert square.check.verdict is ca.Verdict.AGREES


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e5])
@pytest.mark.parametrize(("count", "features"), [(6, 3), (60, 5), (60, 400), (300, 20)])
def test_two_solvers_find_the_same_hyperplane(count: int, features: int, scale: float) -> None:
    """scikit-learn's and ours, of separable and of mixed sets, whatever the units of the features."""
    generator = torch.Generator().manual_seed(count)
    for shift in (0.0, 0.3, 30.0):
        x = torch.randn(count, features, generator=generator, dtype=torch.float64)
        first = torch.arange(count) < count // 3
        x[first] += shift
        theirs, ours = fitted(ca.ConceptClassifier.LOGISTIC, x * scale, first, 0), logistic_fit(x * scale, first)
        assert float((theirs.normal - ours.normal).norm() / ours.normal.norm()) < 1e-5
        assert theirs.offset == pytest.approx(ours.offset, abs=1e-5)


# What is wrong in Captum is found.


@contextmanager
def replaced(owner: Any, name: str, new: Any) -> Iterator[None]:
    old = owner.__dict__[name]
    setattr(owner, name, new)
    try:
        yield
    finally:
        setattr(owner, name, old)


def changed_scores(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Any:
    """Captum's sums over rows, after ``change`` of the gradients and the vectors."""
    plain = TCAV._tcav_sub_computation
    return lambda self, scores, layer, attribs, cavs, *rest: plain(self, scores, layer, *change(attribs, cavs), *rest)


def changed_activations(change: Callable[[Tensor, str, str], Tensor]) -> Any:
    """What Captum saves of each batch, after ``change``, which also gets the set and the layer."""
    plain = AV.save
    return staticmethod(
        lambda path, model, name, layer, tensor, number: plain(
            path, model, name, layer, change(tensor, name, layer), number
        )
    )


def changed_training(change: Callable[[Any], None]) -> Any:
    plain = captum_tcav.LabelledDataset.__init__

    def init(self: Any, datasets: Any, labels: Any) -> None:
        plain(self, datasets, labels)
        change(self)

    return init


@cache
def plain_attribute() -> Any:
    return LayerGradientXActivation.attribute.__wrapped__


class _Attribute:
    """`LayerGradientXActivation.attribute` with changed values."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        self.__wrapped__ = lambda *given, **named: change(plain_attribute()(*given, **named))


def shuffle_labels(dataset: Any) -> None:
    labels = dataset.labels
    get = PLAIN.__getitem__
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(0))

    def mixed(number: int) -> tuple[Tensor, Tensor]:
        features, _ = get(dataset, number)
        return features, torch.tensor([labels[int(order[index]) % 2] for index in range(len(features))])

    dataset.mixed = mixed


PLAIN = captum_tcav.LabelledDataset


def of_mixed(self: Any, number: int) -> tuple[Tensor, Tensor]:
    return self.mixed(number)


FAULTS: dict[str, tuple[Any, str, Any]] = {
    "the labels of examples are shuffled": (
        captum_tcav, "LabelledDataset",
        type("Mixed", (captum_tcav.LabelledDataset,), {
            "__init__": changed_training(shuffle_labels), "__getitem__": of_mixed})),
    "the sets are exchanged": (
        captum_tcav.LabelledDataset, "__init__", changed_training(lambda dataset: dataset.labels.reverse())),
    "the first set is used twice": (
        captum_tcav.LabelledDataset, "__init__",
        changed_training(lambda dataset: dataset.datasets.__setitem__(1, dataset.datasets[0]))),
    "an example is lost": (AV, "save", changed_activations(lambda tensor, *_: torch.cat([tensor[1:2], tensor[1:]]))),
    "activations are rectified": (AV, "save", changed_activations(lambda tensor, *_: tensor.relu())),
    "activations are rounded": (AV, "save", changed_activations(lambda tensor, *_: (tensor * 4).round() / 4)),
    "features are in another order": (AV, "save", changed_activations(lambda tensor, *_: tensor.roll(1, 1))),
    "one set has noise": (
        AV, "save",
        changed_activations(lambda tensor, name, _: tensor + (0.1 * torch.randn_like(tensor) if "-2" in name else 0))),
    "gradients are of the other sign": (TCAV, "_tcav_sub_computation", changed_scores(lambda a, c: (-a, c))),
    "gradients are those of other rows' sum": (
        TCAV, "_tcav_sub_computation", changed_scores(lambda a, c: (a.sum(0, keepdim=True).expand_as(a), c))),
    "gradients are absolute": (TCAV, "_tcav_sub_computation", changed_scores(lambda a, c: (a.abs(), c))),
    "rows are lost": (
        TCAV, "_tcav_sub_computation",
        changed_scores(lambda a, c: (a * (torch.arange(len(a)) > 2).reshape(-1, 1), c))),
    "vectors are of another set": (TCAV, "_tcav_sub_computation", changed_scores(lambda a, c: (a, c.roll(1, 0)))),
    "vectors are exchanged": (TCAV, "_tcav_sub_computation", changed_scores(lambda a, c: (a, c.flip(1)))),
    "vectors have length 1": (
        TCAV, "_tcav_sub_computation", changed_scores(lambda a, c: (a, c / c.norm(dim=2, keepdim=True)))),
    "gradients are twice as large": (LayerGradientXActivation, "attribute", _Attribute(lambda values: 2 * values)),
    "gradients of features are in another order": (
        LayerGradientXActivation, "attribute", _Attribute(lambda values: values.flip(1))),
}  # fmt: skip


@pytest.mark.parametrize("classifier", ["logistic", "sgd"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str, classifier: str) -> None:
    """In Captum's activations, labels, gradients, vectors or sums, also one that leaves the scores nearly alone."""
    plain_attribute()
    owner, name, new = FAULTS[fault]
    with replaced(owner, name, new):
        results = asked(network(), at_layers("2", classifier=classifier)).concepts
    assert any(each.check and each.check.verdict is ca.Verdict.DISAGREES for each in results)
    for each in asked(network(), at_layers("2", classifier=classifier)).concepts:
        assert each.check is not None
        assert each.check.verdict is ca.Verdict.AGREES


@pytest.mark.parametrize("classifier", ["logistic", "sgd"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_right_is_never_doubted(seed: int, dtype: torch.dtype, classifier: str) -> None:
    """Large and small activations and gradients, deep and near the output, in every data type."""
    net = network(torch.float32)
    with torch.no_grad():
        net[0].weight.mul_([1, 1e-3, 30, 1][seed])
        net[5].weight.mul_([1, 1e-4, 1, 1e4][seed])
    net = net.to(dtype)
    concepts = at_layers("0", "2", "4", count=[4, 40, 8, 33][seed], sets=3, classifier=classifier, seed=seed)
    for each in asked(net, concepts, X.to(dtype)).concepts:
        assert each.check is not None
        assert each.check.verdict is ca.Verdict.AGREES, each.check


def test_scores_that_mean_nothing_are_inconclusive() -> None:
    """Rows without a gradient count as not positive; a layer that returns a constant tells no sets apart."""
    dead = network()
    with torch.no_grad():
        dead[0].bias.fill_(-1e3)  # the rectifier behind it is off
    (_, square) = asked(dead, at_layers("0")).concepts
    assert square.shares == (0.0,) * SETS
    assert square.check is not None
    assert (square.check.verdict, square.check.cause) == (ca.Verdict.INCONCLUSIVE, ca.Cause.NO_GRADIENT)
    assert "9 of 9 rows" in square.check.reason
    (_, square) = asked(dead, at_layers("2")).concepts
    assert square.check is not None
    assert (square.check.verdict, square.check.cause) == (ca.Verdict.INCONCLUSIVE, ca.Cause.NOT_MOVED)
    (_, square) = asked(dead, at_layers("2"), check=ca.CheckRequest(ca.CheckMode.OFF)).concepts
    assert square.check is None


def test_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file, hook, gradient or random number drawn, and the weights are as before, after an answer and an error."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    net = network()
    for parameter in net.parameters():
        parameter.requires_grad_(False)
    model = load_model(TensorAdapter(net), "cpu")
    before = {name: value.clone() for name, value in net.state_dict().items()}
    numbers = torch.get_rng_state(), np.random.get_state()[1].sum(), random.getstate()  # type: ignore[index]
    request = ca.InspectRequest("m", target=ONE, concepts=at_layers("0", "2"))
    with (
        replaced(TCAV, "interpret", _leave_and_fail),
        pytest.raises(CutawayError, match=r"METHOD_INAPPLICABLE.*no scores"),
    ):
        inspect(model, request, {"input": X})
    inspect(model, request, {"input": X})
    assert [*tmp_path.iterdir()] == []
    assert not Path("cav").exists()
    assert all(not module._forward_hooks and not module._backward_hooks for module in net.modules())
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in net.parameters())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(numbers[0], torch.get_rng_state())
    assert (numbers[1], numbers[2]) == (np.random.get_state()[1].sum(), random.getstate())  # type: ignore[index]


def _leave_and_fail(self: Any, *_: Any, **__: Any) -> None:
    next(self.model.children()).register_forward_hook(lambda *_: None)
    raise ValueError("no scores")


def test_the_same_seed_gives_the_same_answer() -> None:
    """Bit for bit; the split changes with the seed."""
    one, again, other = (asked(network(), at_layers("2", vectors=True, seed=seed)) for seed in (7, 7, 8))
    for first, second, third in zip(one.concepts, again.concepts, other.concepts):
        np.testing.assert_array_equal(first.vectors, second.vectors)
        assert not np.array_equal(first.vectors, third.vectors)  # type: ignore[arg-type]


def test_large_vectors_are_read_in_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captum makes lists of Python numbers of all vectors: of a few at a time, with the same values."""
    whole = asked(network(), at_layers("0", "2", vectors=True)).concepts
    monkeypatch.setattr("cutaway.engine.execution.concepts._MOST_NUMBERS", 2 * (144 + 48) * 3)
    parts = asked(network(), at_layers("0", "2", vectors=True)).concepts
    for one, other in zip(whole, parts):
        assert one.shares == other.shares
        np.testing.assert_array_equal(one.vectors, other.vectors)
        assert one.check == other.check


@pytest.mark.parametrize("mode", ca.CheckMode)
def test_a_dry_run_tells_the_shapes_and_no_fewer_passes(mode: ca.CheckMode) -> None:
    net = network()
    model, request = load_model(TensorAdapter(net), "cpu"), ca.InspectRequest(
        "m", target=ONE, concepts=at_layers("0", "2", vectors=True), check=ca.CheckRequest(mode))  # fmt: skip
    plan = plan_request(model, request, {"input": X})
    told = dict(costs(plan))["concepts"]
    outlines = estimate(plan).concepts
    answer = asked(net, at_layers("0", "2", vectors=True), check=ca.CheckRequest(mode))
    for one, other in zip(outlines, answer.concepts, strict=True):
        assert (one.layer, one.concept) == (other.layer, other.concept)
        assert one.derivatives.shape == other.derivatives.shape
        assert one.vectors is not None
        assert other.vectors is not None
        assert (one.vectors.shape, one.vectors.dtype) == (other.vectors.shape, other.vectors.dtype)
    examples_ = EXAMPLES * (1 + SETS) + EXAMPLES + 13
    assert told == examples_ * (1 if mode is ca.CheckMode.OFF else 2) + ROWS * (1 + 2)


class Twice(nn.Module):
    """Calls one module twice, another never; returns two tensors from a third."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.never, self.both, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.LSTM(4, 4), nn.Linear(4, 2)
        self.cut = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.twice(self.twice(x)) + self.cut(x).detach()
        x, _ = self.both(x[None])
        return self.last(x[0])


ROW = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
GOOD, WORD = (examples(ROW), examples(ROW.flip(0))), (ca.Raw(b"a"),)


def concept_of(tensor: Any = ROW, layer: str = "last", **more: Any) -> ca.TCAV:
    return ca.TCAV(**{"layers": (layer,), "concepts": {"it": examples(tensor)}, "random": GOOD, **more})


@pytest.mark.parametrize(
    ("concepts", "request_", "expected"),
    [
        (concept_of(layer="lst"), {}, r"MODULE_NOT_FOUND \[concepts.layers\[0\]\].*last"),
        (concept_of(layer="twice"), {}, r"METHOD_INAPPLICABLE \[concepts.layers\[0\]\].*calls 'twice' 2 times"),
        (concept_of(layer="never"), {}, r"METHOD_INAPPLICABLE \[concepts.layers\[0\]\].*calls 'never' 0 times"),
        (concept_of(layer="both"), {}, r"METHOD_INAPPLICABLE \[concepts.layers\[0\]\].*not one tensor"),
        (concept_of(layer="cut"), {}, r"NOT_DIFFERENTIABLE \[concepts.layers\].*'cut'"),
        (concept_of(ROW[:3]), {}, r"INPUT_SHAPE \[concepts.concepts.it.tensors\].*3 examples.*at least 4"),
        (concept_of(ROW[:, :3]), {}, r"MODEL_FAILED"),
        (concept_of(ROW * torch.nan), {}, r"METHOD_INAPPLICABLE \[concepts.concepts.it\].*NaN"),
        (concept_of(torch.ones(5, 4, dtype=torch.int64)), {}, r"INPUT_DTYPE|MODEL_FAILED"),
        (concept_of(concepts={}), {}, r"INVALID_VALUE \[concepts.concepts\].*at least one concept"),
        (concept_of(concepts={"": GOOD[0]}), {}, r"INVALID_VALUE \[concepts.concepts\].*a name"),
        (concept_of(random=GOOD[:1]), {}, r"INVALID_VALUE \[concepts.random\].*needs two"),
        (concept_of(random=(GOOD[0], ca.ConceptExamples({"other": ROW}))), {}, r"\[concepts.random\[1\].tensors"),
        (concept_of(random=(GOOD[0], ca.ConceptExamples())), {}, r"INPUT_\w+ \[concepts.random\[1\].tensors"),
        (concept_of(random=(ca.ConceptExamples(raw=WORD), *GOOD)), {}, r"RAW_UNSUPPORTED \[concepts.random\[0\].raw"),
        (concept_of(), {"target": ca.TopK(2)}, r"INVALID_VALUE \[target\]"),
        (concept_of(), {"edits": (ca.Zero("last"),)}, r"INVALID_VALUE \[edits\].*a request of its own"),
        (concept_of(), {"explain_if": ca.ExplainIf(classes=(0,))}, r"INVALID_VALUE \[explain_if\].*all rows"),
    ],
)  # fmt: skip
def test_what_is_refused(concepts: ca.TCAV, request_: dict[str, Any], expected: str) -> None:
    with pytest.raises(CutawayError, match=expected):
        asked(Twice(), concepts, ROW, **request_)


def test_tokens_of_another_number_are_refused_where_the_layer_shows_them() -> None:
    """A layer that keeps the tokens has one size for each length; one behind their mean has one for all."""

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.table, self.mean, self.last = nn.Embedding(20, 6), nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, ids: Tensor) -> Tensor:
            return self.last(self.mean(self.table(ids).mean(1)).tanh())

    draw = torch.Generator().manual_seed(0)
    sets = [torch.randint(20, (6, 4 + number), generator=draw) for number in range(4)]

    def test(layer: str) -> InspectResult:
        given = ca.TCAV((layer,), {"it": examples(sets[1])}, tuple(map(examples, sets[2:])))
        model = load_model(TensorAdapter(Words()), "cpu")
        return inspect(model, ca.InspectRequest("m", target=ONE, concepts=given), {"ids": sets[0]})

    (result,) = test("mean").concepts
    assert result.check is not None
    assert result.check.verdict is ca.Verdict.AGREES
    with pytest.raises(
        CutawayError, match=r"INPUT_SHAPE \[concepts.concepts.it\].*\[5, 6\] for an example, and \[4, 6\]"
    ):
        test("table")


def test_a_planted_concept_is_found_and_noise_is_not() -> None:
    """Of a network that was trained to see the square: the share is 1, no random set is as far, noise is like them."""
    torch.manual_seed(0)
    net, labels = network(), torch.arange(200) % 2
    data = torch.where(labels[:, None, None, None] == 1, pictures(200, 50, square=True), pictures(200, 51))
    descent = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(60):
        descent.zero_grad()
        nn.functional.cross_entropy(net(data), labels).backward()
        descent.step()
    noise, square = asked(net, at_layers("2", sets=19)).concepts
    assert square.share > 0.95
    assert square.p_value == 1 / 20
    assert noise.p_value > 0.05


class Coupled(nn.Module):
    """Takes the mean of the batch off its rows, or adds random numbers to them."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=0) if self.kind == "coupled" else x + 0.1 * torch.rand_like(x)


@pytest.mark.parametrize(
    ("kind", "cause"), [("coupled", ca.Cause.ROWS_COUPLED), ("random", ca.Cause.RANDOM_FORWARD)]
)  # fmt: skip
def test_scores_of_a_model_that_explains_no_row_are_inconclusive(kind: str, cause: ca.Cause) -> None:
    """Captum and the raw hooks may see the same numbers all the same."""
    net = nn.Sequential(*network()[:5], Coupled(kind), network()[5])
    for each in asked(net, at_layers("2")).concepts:
        assert each.check is not None
        assert (each.check.verdict, each.check.cause) == (ca.Verdict.INCONCLUSIVE, cause)
