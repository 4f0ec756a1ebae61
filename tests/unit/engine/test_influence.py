"""Influence: each score is a product of gradients by hand; wrong labels are found, and faults of Captum."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from captum._utils.av import AV
from captum.influence import TracInCP, TracInCPFast
from captum.influence._core import similarity_influence, tracincp_fast_rand_proj
from captum.influence._utils import common
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import cutaway as ca
from cutaway.adapters import TensorAdapter, load_model
from cutaway.contract.errors import CutawayError
from cutaway.contract.results import InspectResult
from cutaway.engine.cost.estimate import estimate
from cutaway.engine.cost.pass_count import costs
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.planning.plan import plan_request

COUNT, ROWS, RATE = 37, 5, 0.2
DRAW = torch.Generator().manual_seed(0)
TRAINING = torch.randn(COUNT, 6, generator=DRAW, dtype=torch.float64)
LABELS = torch.randint(3, (COUNT,), generator=DRAW)
X = torch.randn(ROWS, 6, generator=DRAW, dtype=torch.float64)
METHODS = (("tracin", ""), ("tracin", "hidden"), ("tracin_fast", "last"), ("cosine", "hidden"), ("euclidean", "hidden"))


class Net(nn.Module):
    """A network with a module that it never calls."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.hidden, self.last, self.unused = nn.Linear(width, 8), nn.Linear(8, 3), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.hidden(x).tanh())
        return logits


def sought(method: str, layer: str = "", dtype: torch.dtype = torch.float64, **more: Any) -> ca.Influence:
    labels = tuple(LABELS.tolist()) if "tracin" in method else ()
    fields = {"learning_rate": RATE, **more}
    return ca.Influence(ca.ConceptExamples({"": TRAINING.to(dtype)}), labels, method, layer, **fields)  # type: ignore[arg-type]


def asked(influence: ca.Influence, net: nn.Module | None = None, x: Tensor = X, **request: Any) -> InspectResult:
    model = load_model(TensorAdapter(net or Net().to(x.dtype)), "cpu")
    return inspect(model, ca.InspectRequest("m", **request, influence=influence), {"x": x})


def by_hand(method: str, layer: str, net: Net, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The scores [rows, training rows] and the self-influence, from one backward pass for each row."""
    owner: Any = net.get_submodule(layer)
    chosen = [net.last.weight] if method == "tracin_fast" else [
        p for p in owner.parameters() if not any(p is each for each in net.unused.parameters())]  # fmt: skip

    def vector(x: Tensor, label: Tensor) -> Tensor:
        if "tracin" in method:
            loss = cross_entropy(net(x[None]), label[None])
            return torch.cat([each.flatten() for each in torch.autograd.grad(loss, chosen)])
        seen: list[Tensor] = []
        with owner.register_forward_hook(lambda _, __, output: seen.append(output.detach().flatten())):
            net(x[None])
        return seen[0]

    train = torch.stack([vector(*each) for each in zip(TRAINING.to(net.last.weight.dtype), LABELS)])
    test = torch.stack([vector(*each) for each in zip(X.to(net.last.weight.dtype), labels)])
    if method == "euclidean":
        return (test[:, None] - train[None]).norm(dim=2), torch.empty(0)
    if method == "cosine":
        return torch.cosine_similarity(test[:, None], train[None], dim=2), torch.empty(0)
    return RATE * test @ train.T, RATE * train.pow(2).sum(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("method", "layer"), METHODS)
def test_each_score_is_the_product_of_gradients_by_hand(method: str, layer: str, dtype: torch.dtype) -> None:
    """Of predicted classes and of named ones; the best first, the worst first, and what a row does to itself."""
    net, near = Net().to(dtype), 1e-6 if dtype is torch.float32 else 1e-10
    for target in (None, ca.ClassIndex((2, 0, 1, 1, 2))):
        labels = net(X.to(dtype)).argmax(1) if target is None else torch.tensor(target.indices)
        scores, own = by_hand(method, layer, net, labels)
        request = {} if target is None else {"target": target}
        result = asked(sought(method, layer, dtype, k=4), net, X.to(dtype), **request).influence
        assert result is not None
        sign = -1 if method == "euclidean" else 1
        order = torch.argsort(sign * scores, dim=1, descending=True, stable=True)
        np.testing.assert_array_equal(result.helpful, order[:, :4])
        np.testing.assert_array_equal(result.harmful, order.flip(1)[:, :4])
        np.testing.assert_allclose(result.helpful_scores, scores.gather(1, order[:, :4]), rtol=1e-5, atol=near)
        np.testing.assert_allclose(result.harmful_scores, scores.gather(1, order.flip(1)[:, :4]), rtol=1e-5, atol=near)
        assert (result.self_influence is None) == (own.numel() == 0)
        if result.self_influence is not None:
            np.testing.assert_allclose(result.self_influence, own.detach(), rtol=1e-5, atol=near)
        assert result.check is not None
        assert result.check.verdict is ca.Verdict.AGREES, result.check


@pytest.mark.parametrize("method", ["tracin", "tracin_fast"])
def test_scores_are_those_of_captums_class_by_hand(method: str) -> None:
    """The same class, run on the same network without a server."""
    net = Net().double()
    del net.unused  # of which Captum wants a gradient
    data, options = TensorDataset(TRAINING, LABELS), {"checkpoints_load_func": lambda *_: RATE, "batch_size": 10}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        captum: Any = (
            TracInCP(net, data, ["only"], loss_fn=nn.CrossEntropyLoss(reduction="none"), **options)
            if method == "tracin"
            else TracInCPFast(net, net.last, data, ["only"], loss_fn=nn.CrossEntropyLoss(reduction="sum"), **options)
        )
    found = captum.influence((X, net(X).argmax(1)), k=5)
    result = asked(sought(method, "last" if method == "tracin_fast" else "")).influence
    assert result is not None
    np.testing.assert_array_equal(result.helpful, found.indices)
    np.testing.assert_allclose(result.helpful_scores, found.influence_scores, rtol=1e-9)


# What is wrong in Captum is found.


def changed(function: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda *given, **named: change(function(*given, **named))


def without_rate(kind: Any) -> Callable[..., None]:
    plain = kind.__init__

    def init(self: Any, *given: Any, **named: Any) -> None:
        plain(self, *given, **named)
        self.checkpoints_load_func = lambda *_: 1.0

    return init


def shuffled(kind: Any) -> Callable[..., None]:
    plain = kind.__init__

    def init(self: Any, *given: Any, **named: Any) -> None:
        plain(self, *given, **named)
        rows = torch.randperm(COUNT, generator=torch.Generator().manual_seed(0))
        data = torch.utils.data.Subset(self.train_dataloader.dataset, rows.tolist())
        self.train_dataloader = torch.utils.data.DataLoader(data, 16)

    return init


def other_labels(kind: Any) -> Callable[..., None]:
    plain = kind.__init__

    def init(self: Any, model: Any, *given: Any, **named: Any) -> None:
        loss = named["loss_fn"]
        wrong: Any = nn.CrossEntropyLoss(reduction=loss.reduction)
        wrong.forward = lambda output, labels: cross_entropy(output, (labels + 1) % 3, reduction=loss.reduction)
        plain(self, model, *given, **{**named, "loss_fn": wrong})

    return init


JACOBIANS = common._compute_jacobian_wrt_params
FAST = tracincp_fast_rand_proj._basic_computation_tracincp_fast
SAVE = AV.save
FAULTS: dict[str, tuple[tuple[str, str], Any, str, Any]] = {
    "no learning rate": (("tracin", ""), TracInCP, "__init__", without_rate(TracInCP)),
    "no learning rate, fast": (("tracin_fast", "last"), TracInCPFast, "__init__", without_rate(TracInCPFast)),
    "rows are shuffled": (("tracin", ""), TracInCP, "__init__", shuffled(TracInCP)),
    "rows are shuffled, fast": (("tracin_fast", "last"), TracInCPFast, "__init__", shuffled(TracInCPFast)),
    "labels are others": (("tracin", ""), TracInCP, "__init__", other_labels(TracInCP)),
    "labels are others, fast": (("tracin_fast", "last"), TracInCPFast, "__init__", other_labels(TracInCPFast)),
    "a parameter is left out": (
        ("tracin", ""), common, "_compute_jacobian_wrt_params", changed(JACOBIANS, lambda found: found[:-1])),
    "gradients are signs": (
        ("tracin", ""), common, "_compute_jacobian_wrt_params",
        changed(JACOBIANS, lambda found: tuple(each.sign() for each in found))),
    "gradients have length 1": (
        ("tracin", ""), common, "_compute_jacobian_wrt_params",
        changed(JACOBIANS, lambda found: tuple(each / each.norm() for each in found))),
    "the loss is a mean": (
        ("tracin", ""), common, "_compute_jacobian_wrt_params",
        changed(JACOBIANS, lambda found: tuple(each / len(each) for each in found))),
    "inputs of the layer are left out": (
        ("tracin_fast", "last"), tracincp_fast_rand_proj, "_basic_computation_tracincp_fast",
        changed(FAST, lambda found: (found[0], torch.ones_like(found[1])))),
    "losses are left out": (
        ("tracin_fast", "last"), tracincp_fast_rand_proj, "_basic_computation_tracincp_fast",
        changed(FAST, lambda found: (torch.ones_like(found[0]), found[1]))),
    "activations are rectified": (
        ("cosine", "hidden"), AV, "save",
        staticmethod(lambda *given: SAVE(*given[:4], [each.relu() for each in given[4]], *given[5:]))),
    "features are exchanged": (
        ("euclidean", "hidden"), AV, "save",
        staticmethod(lambda *given: SAVE(*given[:4], [each.flip(1) for each in given[4]], *given[5:]))),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In Captum's rates, rows, labels, gradients and activations; without it the verdict agrees."""
    method, owner, name, new = FAULTS[fault]
    right = asked(sought(*method)).influence
    monkeypatch.setattr(owner, name, new)
    wrong = asked(sought(*method)).influence
    assert right is not None
    assert wrong is not None
    assert right.check is not None
    assert wrong.check is not None
    assert (right.check.verdict, wrong.check.verdict) == (ca.Verdict.AGREES, ca.Verdict.DISAGREES)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("method", "layer"), METHODS)
def test_what_is_right_is_never_doubted(method: str, layer: str, dtype: torch.dtype, scale: float) -> None:
    """Small and large weights, in every data type."""
    net = Net()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(scale)
    result = asked(sought(method, layer, dtype), net.to(dtype), X.to(dtype)).influence
    assert result is not None
    assert result.check is not None
    assert result.check.verdict is ca.Verdict.AGREES, result.check


def test_wrong_labels_stand_out() -> None:
    """8 planted wrong labels of 400 are all in the 5 % of the largest self-influence, and of the most harmful."""
    draw = torch.Generator().manual_seed(3)
    centres = 3 * torch.randn(3, 6, generator=draw)
    right = torch.randint(3, (400,), generator=draw)
    x = centres[right] + 0.7 * torch.randn(400, 6, generator=draw)
    planted = torch.randperm(400, generator=draw)[:8]
    labels = right.clone()
    labels[planted] = (right[planted] + 1) % 3
    net = Net()
    descent = torch.optim.Adam(net.parameters(), 0.02)
    for _ in range(80):
        descent.zero_grad()
        cross_entropy(net(x), labels).backward()
        descent.step()
    training = ca.ConceptExamples({"": x})
    for method, layer in (("tracin", ""), ("tracin_fast", "last")):
        influence = ca.Influence(training, tuple(labels.tolist()), method, layer, k=20)  # type: ignore[arg-type]
        result = asked(influence, net, x[:60]).influence
        assert result is not None
        assert result.self_influence is not None
        assert set(planted.tolist()) <= set(result.self_influence.argsort()[-20:].tolist())
        clean = [row for row in range(60) if row not in planted]
        counted = np.bincount(result.harmful[clean].ravel(), minlength=400)
        assert set(planted.tolist()) <= set(counted.argsort()[-20:].tolist())


def test_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file, hook or gradient; frozen weights stay frozen and as they were."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    net = Net().double().requires_grad_(False)
    before, state = {name: value.clone() for name, value in net.state_dict().items()}, torch.get_rng_state()
    for method in METHODS:
        asked(sought(*method), net)
    assert [*tmp_path.iterdir()] == []
    assert all(not module._forward_hooks for module in net.modules())
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in net.parameters())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())


def test_scores_that_mean_nothing_are_inconclusive() -> None:
    """An activation of zeros has no direction."""
    net = Net().double()
    with torch.no_grad():
        net.hidden.weight.zero_()
        net.hidden.bias.zero_()
    result = asked(sought("cosine", "hidden"), net).influence
    assert result is not None
    assert result.check is not None
    assert (result.check.verdict, result.check.cause) == (ca.Verdict.INCONCLUSIVE, ca.Cause.NOT_FINITE)


@pytest.mark.parametrize("mode", ca.CheckMode)
@pytest.mark.parametrize(("method", "layer"), METHODS)
def test_a_dry_run_tells_the_shapes_and_no_fewer_passes(method: str, layer: str, mode: ca.CheckMode) -> None:
    check, net = ca.CheckRequest(mode), Net().double()
    request = ca.InspectRequest("m", influence=sought(method, layer), check=check)
    plan = plan_request(load_model(TensorAdapter(net), "cpu"), request, {"x": X})
    told, answer = estimate(plan).influence, asked(sought(method, layer), net, check=check).influence
    assert told is not None
    assert answer is not None
    for name in ("helpful", "helpful_scores", "harmful", "harmful_scores", "self_influence"):
        one, other = getattr(told, name), getattr(answer, name)
        assert (one is None) == (other is None)
        assert one is None or (one.shape, one.dtype) == (other.shape, other.dtype)
    assert (answer.check is None) == (mode is ca.CheckMode.OFF)
    counted = asked(sought(method, layer), net, check=check).provenance.forwards
    assert 0 < counted - 1 <= dict(costs(plan))["influence"]


@pytest.mark.parametrize(
    ("influence", "request_", "expected"),
    [
        (sought("tracin_fast"), {}, r"INVALID_VALUE \[influence.layer\].*needs a module"),
        (sought("cosine"), {}, r"INVALID_VALUE \[influence.layer\].*needs a module"),
        (sought("tracin", "hiden"), {}, r"MODULE_NOT_FOUND \[influence.layer\].*hidden"),
        (sought("tracin_fast", "hidden"), {}, r"METHOD_INAPPLICABLE \[influence.layer\].*logits"),
        (sought("tracin", "unused"), {}, r"NOT_DIFFERENTIABLE \[influence.layer\].*no parameter"),
        (ca.Influence(ca.ConceptExamples({"": TRAINING}), (1,)), {}, r"TARGET_MISMATCH \[influence.labels\].*37"),
        (ca.Influence(ca.ConceptExamples({"": TRAINING}), (3,) * COUNT), {}, r"TARGET_RANGE \[influence.labels\]"),
        (ca.Influence(ca.ConceptExamples({"": TRAINING}), (1,), "cosine", "last"), {}, r"INVALID_VALUE \[influence.l"),
        (ca.Influence(ca.ConceptExamples({"": TRAINING.float()}), (0,) * COUNT), {}, r"^$"),
        (ca.Influence(ca.ConceptExamples({"": TRAINING[:, :5]}), (0,) * COUNT), {}, r"INPUT_SHAPE \[influence.trai"),
        (ca.Influence(ca.ConceptExamples(raw=(ca.Raw(b"a"),)), (0,)), {}, r"RAW_UNSUPPORTED \[influence.training.raw"),
        (ca.Influence(ca.ConceptExamples(), ()), {}, r"INPUT_\w+ \[influence.training.tensors"),
        (sought("tracin"), {"target": ca.OutputSum()}, r"TARGET_MISMATCH \[target\].*cross-entropy"),
        (sought("tracin"), {"target": ca.TopK(2)}, r"INVALID_VALUE \[target\]"),
        (sought("tracin"), {"edits": (ca.Zero("last"),)}, r"INVALID_VALUE \[edits\].*a request of its own"),
    ],
)  # fmt: skip
def test_what_is_refused(influence: ca.Influence, request_: dict[str, Any], expected: str) -> None:
    if expected == "^$":  # floating rows become the type of the request's
        assert asked(influence, **request_).influence
        return
    with pytest.raises(CutawayError, match=expected):
        asked(influence, **request_)


def test_similarity_influence_of_one_layer_fails_in_captum_alone() -> None:
    """Why we hand it a measure that takes the only layer out of a list."""
    net = Net().double()
    with tempfile.TemporaryDirectory() as folder:
        captum = similarity_influence.SimilarityInfluence(net, "hidden", TensorDataset(TRAINING), folder, "m")
        with pytest.raises(AttributeError, match="view"):
            captum.influence(X)
