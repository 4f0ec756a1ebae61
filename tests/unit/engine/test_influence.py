"""Influence: each score is a product of gradients by hand; wrong labels are found, and faults of Captum."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from captum._utils.av import AV
from captum.influence import NaiveInfluenceFunction, TracInCP, TracInCPFast, TracInCPFastRandProj
from captum.influence._core import (
    arnoldi_influence_function,
    influence_function,
    similarity_influence,
    tracincp_fast_rand_proj,
)
from captum.influence._core.arnoldi_influence_function import ArnoldiInfluenceFunction
from captum.influence._utils import common
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import cutaway as ca
from cutaway.adapters import TensorAdapter, load_model
from cutaway.contract.errors import CutawayError
from cutaway.contract.results import InspectResult
from cutaway.engine.cost.estimate import estimate
from cutaway.engine.cost.pass_count import costs
from cutaway.engine.execution import fitting
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.methods.influence import _NoIndex
from cutaway.engine.planning import embedded_inputs
from cutaway.engine.planning.plan import plan_request

COUNT, ROWS, RATE = 37, 5, 0.2
DRAW = torch.Generator().manual_seed(0)
TRAINING = torch.randn(COUNT, 6, generator=DRAW, dtype=torch.float64)
LABELS = torch.randint(3, (COUNT,), generator=DRAW)
X = torch.randn(ROWS, 6, generator=DRAW, dtype=torch.float64)
SEED, DAMPING, STEPS, DIMENSION = 7, 0.05, 12, 4
METHODS = (
    ("tracin", ""), ("tracin", "hidden"), ("tracin_fast", "last"), ("tracin_projected", "last"),
    ("influence_function", ""), ("influence_function", "last"), ("arnoldi", ""), ("arnoldi", "hidden"),
    ("cosine", "hidden"), ("euclidean", "hidden"),
)  # fmt: skip


class Net(nn.Module):
    """A network with a module that it never calls."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.hidden, self.last, self.unused = nn.Linear(width, 8), nn.Linear(8, 3), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.hidden(x).tanh())
        return logits


def wide() -> nn.Module:
    """2,053 parameters."""
    return nn.Sequential(nn.Linear(6, 205), nn.Tanh(), nn.Linear(205, 3)).double()


class TimeFirst(nn.Module):
    """A recurrent network whose rows are on axis 1 inside."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.rnn, self.norm, self.head = nn.GRU(2, 4), nn.LayerNorm(4), nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.rnn(x.unflatten(1, (3, 2)).transpose(0, 1))[0])[-1])
        return logits


def saturated() -> nn.Module:
    """Probabilities of exactly 0 and 1, so that a small step changes no loss but by its gradient."""
    net = Net().double()
    with torch.no_grad():
        net.last.weight.mul_(1e8)
    return net


class Once(torch.autograd.Function):
    """A sine whose derivative has none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.saved_tensors[0].cos()


class OnceDifferentiable(Net):
    """A network with that sine."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(Once.apply(self.hidden(x)))
        return logits


def sought(method: str, layer: str = "", dtype: torch.dtype = torch.float64, **more: Any) -> ca.Influence:
    labels = () if method in ("cosine", "euclidean") else tuple(LABELS.tolist())
    fields = {"learning_rate": RATE, "seed": SEED, "damping": DAMPING, "iterations": STEPS, "dimension": DIMENSION}
    fields |= more
    return ca.Influence(ca.ConceptExamples({"": TRAINING.to(dtype)}), labels, method, layer, **fields)  # type: ignore[arg-type]


def asked(influence: ca.Influence, net: nn.Module | None = None, x: Tensor = X, **request: Any) -> InspectResult:
    model = load_model(TensorAdapter(net or Net().to(x.dtype)), "cpu")
    return inspect(model, ca.InspectRequest("m", **request, influence=influence), {"x": x})


def by_hand(method: str, layer: str, net: Net, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The scores [rows, training rows] and the self-influence, from one backward pass for each row."""
    owner: Any = net.get_submodule(layer)
    chosen = [net.last.weight] if layer == "last" and "tracin" in method else [
        p for p in owner.parameters() if not any(p is each for each in net.unused.parameters())]  # fmt: skip

    def vector(x: Tensor, label: Tensor) -> Tensor:
        if method not in ("cosine", "euclidean"):
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
    if method == "tracin_projected":
        torch.manual_seed(SEED)
        iter(torch.utils.data.DataLoader(TensorDataset(X)))  # draws a number, as Captum's does
        left, right = (torch.normal(torch.zeros(size, 2), 0.5**0.5).to(train.dtype) for size in (3, 8))
        test, train = ((left.T @ each.unflatten(1, (3, 8)) @ right).flatten(1) for each in (test, train))
        return RATE * test @ train.T, torch.empty(0)
    if method in ("influence_function", "arnoldi"):
        test, train = (each.double() @ inverse_root(method, net, chosen) for each in (test, train))
        return test @ train.T, train.pow(2).sum(1)
    return RATE * test @ train.T, RATE * train.pow(2).sum(1)


def inverse_root(method: str, net: Net, chosen: Sequence[Tensor]) -> Tensor:
    """[parameters, at most 4]: from the whole Hessian, in float64, by functions of functions."""
    exact, numbers = Net().double().requires_grad_(False), [each.numel() for each in chosen]
    exact.load_state_dict(net.state_dict())
    names = [name for name, each in net.named_parameters() if any(each is one for one in chosen)]

    def loss(flat: Tensor) -> Tensor:
        parts = {name: part.view_as(one) for name, part, one in zip(names, flat.split(numbers), chosen)}
        return cross_entropy(torch.func.functional_call(exact, parts, (TRAINING,)), LABELS, reduction="sum")

    hessian = torch.func.hessian(loss)(torch.cat([each.detach().double().flatten() for each in chosen]))
    space = torch.eye(len(hessian), dtype=torch.float64)
    if method == "arnoldi":
        torch.manual_seed(SEED)
        powers = [torch.cat([torch.randn_like(each).flatten() for each in chosen]).double()]
        powers += [powers[-1] for _ in range(STEPS - 2)]
        for step in range(1, STEPS - 1):
            powers[step] = hessian @ powers[step - 1] / powers[step - 1].norm()
        space = torch.linalg.qr(torch.stack(powers, dim=1))[0]
    values, vectors = torch.linalg.eigh(space.T @ hessian @ space + DAMPING * torch.eye(space.shape[1]))
    kept = values > 1e-5
    return ((space @ vectors)[:, kept] / values[kept].sqrt())[:, -DIMENSION:]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("method", "layer"), METHODS)
def test_each_score_is_the_product_of_gradients_by_hand(method: str, layer: str, dtype: torch.dtype) -> None:
    """Of predicted classes and of named ones; the best first, the worst first, and what a row does to itself."""
    net, near, rtol = Net().to(dtype), 1e-6, 1e-5
    if method in ("influence_function", "arnoldi"):
        near, rtol = (1e-3, 1e-2) if dtype is torch.float32 else (1e-6, 1e-5)
    elif dtype is torch.float64:
        near = 1e-10
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
        np.testing.assert_allclose(result.helpful_scores, scores.gather(1, order[:, :4]), rtol=rtol, atol=near)
        np.testing.assert_allclose(result.harmful_scores, scores.gather(1, order.flip(1)[:, :4]), rtol=rtol, atol=near)
        assert (result.self_influence is None) == (own.numel() == 0)
        if result.self_influence is not None:
            np.testing.assert_allclose(result.self_influence, own.detach(), rtol=rtol, atol=near)
        assert result.check is not None
        assert result.check.verdict is ca.Verdict.AGREES, result.check


OF_CAPTUM: dict[str, tuple[Any, dict[str, Any]]] = {
    "tracin": (TracInCP, {}),
    "tracin_fast": (TracInCPFast, {}),
    "tracin_projected": (TracInCPFastRandProj, {"projection_dim": DIMENSION, "seed": SEED}),
    "influence_function": (NaiveInfluenceFunction, {
        "projection_dim": DIMENSION, "hessian_reg": DAMPING, "hessian_inverse_tol": 1e-5}),
    "arnoldi": (ArnoldiInfluenceFunction, {
        "projection_dim": DIMENSION, "hessian_reg": DAMPING, "hessian_inverse_tol": 1e-5, "seed": SEED,
        "arnoldi_dim": STEPS, "arnoldi_tol": 1e-4}),
}  # fmt: skip


@pytest.mark.parametrize("method", OF_CAPTUM)
def test_scores_are_those_of_captums_class_by_hand(method: str) -> None:
    """The same class, run on the same network without a server."""
    net = Net().double()
    del net.unused  # of which Captum wants a gradient
    kind, options = OF_CAPTUM[method]
    is_fast = "fast" in method or "projected" in method
    data, options = TensorDataset(TRAINING, LABELS), {**options, "checkpoints_load_func": lambda *_: RATE}
    if method == "tracin_projected":
        options["nearest_neighbors"] = _NoIndex()
    reduction = "sum" if is_fast else "none"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checkpoint: Any = ["only"] if "tracin" in method else "only"
        given = (net, net.last, data, checkpoint) if is_fast else (net, data, checkpoint)
        captum = kind(*given, loss_fn=nn.CrossEntropyLoss(reduction=reduction), batch_size=10, **options)
    scores = captum.influence((X, net(X).argmax(1)), k=None).detach()
    order = scores.argsort(dim=1, descending=True, stable=True)[:, :5]
    result = asked(sought(method, "last" if is_fast else "")).influence
    assert result is not None
    np.testing.assert_array_equal(result.helpful, order)
    np.testing.assert_allclose(result.helpful_scores, scores.gather(1, order), rtol=1e-6)


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


def with_options(kind: Any, **options: Any) -> Callable[..., None]:
    plain = kind.__init__

    def init(self: Any, *given: Any, **named: Any) -> None:
        plain(self, *given, **{**named, **options})

    return init


def of_fewer_rows(kind: Any, first: int) -> Callable[..., None]:
    """With a Hessian of some of the training rows."""
    plain = kind.__init__

    def init(self: Any, model: Any, data: Any, *given: Any, **named: Any) -> None:
        rows = torch.utils.data.Subset(data, range(first, COUNT))
        plain(self, model, data, *given, **{**named, "hessian_dataset": rows})

    return init


def smallest_eigenvalues(hessian: Tensor, k: int, damping: float, least: float) -> Any:
    values, vectors = TOP(hessian, None, damping, least)
    return values[:k], vectors[:, :k]


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
TOP = common._top_eigen
OF_HESSIAN = {"naive": NaiveInfluenceFunction, "arnoldi": ArnoldiInfluenceFunction}
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
    "another projection": (
        ("tracin_projected", "last"), TracInCPFastRandProj, "__init__",
        with_options(TracInCPFastRandProj, seed=SEED + 1)),
    "no projection": (
        ("tracin_projected", "last"), TracInCPFastRandProj, "__init__",
        with_options(TracInCPFastRandProj, projection_dim=None)),
    "the projection is smaller": (
        ("tracin_projected", "last"), TracInCPFastRandProj, "__init__",
        with_options(TracInCPFastRandProj, projection_dim=1)),
    "no learning rate, projected": (
        ("tracin_projected", "last"), TracInCPFastRandProj, "__init__", with_options(
            TracInCPFastRandProj, checkpoints_load_func=lambda *_: 1.0)),
    "labels are others, projected": (
        ("tracin_projected", "last"), TracInCPFastRandProj, "__init__", other_labels(TracInCPFastRandProj)),
    "Arnoldi begins elsewhere": (
        ("arnoldi", ""), ArnoldiInfluenceFunction, "__init__", with_options(ArnoldiInfluenceFunction, seed=SEED + 1)),
    "Arnoldi takes fewer steps": (
        ("arnoldi", ""), ArnoldiInfluenceFunction, "__init__", with_options(ArnoldiInfluenceFunction, arnoldi_dim=5)),
    "Arnoldi ends early": (
        ("arnoldi", ""), ArnoldiInfluenceFunction, "__init__",
        with_options(ArnoldiInfluenceFunction, arnoldi_tol=8.0)),
    "products with a Hessian are added up wrongly": (
        ("arnoldi", ""), arnoldi_influence_function, "_parameter_add", lambda one, other: one),
    "eigenvalues are no roots": (
        ("arnoldi", ""), arnoldi_influence_function, "_parameter_distill", changed(
            arnoldi_influence_function._parameter_distill, lambda found: (found[0] ** 2, found[1]))),
    **{f"{what}, {name}": ((method, ""), kind, "__init__", init)
       for method, name, kind in (("influence_function", "naive", NaiveInfluenceFunction),
                                  ("arnoldi", "arnoldi", ArnoldiInfluenceFunction))
       for what, init in (
           ("no damping", with_options(kind, hessian_reg=0.0)),
           ("damping of another request", with_options(kind, hessian_reg=2 * DAMPING)),
           ("too few eigenvalues", with_options(kind, projection_dim=DIMENSION - 1)),
           ("too many eigenvalues", with_options(kind, projection_dim=None)),
           ("a Hessian of other rows", of_fewer_rows(kind, COUNT - 9)),
           ("a row is left out of the Hessian", of_fewer_rows(kind, 1)),
           ("labels are others", other_labels(kind)),
           ("rows are shuffled", shuffled(kind)))},
    "the smallest eigenvalues": (
        ("influence_function", ""), influence_function, "_top_eigen", smallest_eigenvalues),
    "a Hessian of the mean": (
        ("influence_function", ""), influence_function, "_compute_dataset_func", changed(
            influence_function._compute_dataset_func, lambda hessian: hessian / COUNT)),
    "no Hessian": (
        ("influence_function", ""), influence_function, "_compute_dataset_func", changed(
            influence_function._compute_dataset_func, lambda hessian: torch.eye(len(hessian), dtype=hessian.dtype))),
    "a Hessian of zeros": (
        ("influence_function", ""), influence_function, "_compute_dataset_func", changed(
            influence_function._compute_dataset_func, torch.zeros_like)),
    "a Hessian of the last batch": (
        ("influence_function", ""), influence_function, "add", lambda _, last: last),
    "gradients have length 1, naive": (
        ("influence_function", ""), influence_function, "_basic_computation_naive_influence_function", changed(
            influence_function._basic_computation_naive_influence_function,
            lambda found: nn.functional.normalize(found))),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In Captum's rates, rows, labels, gradients and activations; without it the verdict agrees."""
    method, owner, name, new = FAULTS[fault]
    monkeypatch.setattr(fitting, "_MOST_OF_HESSIAN", 16)  # so that a Hessian is the sum of several batches
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
    """Small and large weights, in every data type; a Hessian in half precision is refused."""
    net = Net()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(scale)
    if dtype is torch.bfloat16 and method in ("influence_function", "arnoldi"):
        with pytest.raises(CutawayError, match=r"METHOD_INAPPLICABLE \[influence.method\].*float32 or float64"):
            asked(sought(method, layer, dtype), net.to(dtype), X.to(dtype))
        return
    result = asked(sought(method, layer, dtype), net.to(dtype), X.to(dtype)).influence
    assert result is not None
    assert result.check is not None
    assert result.check.verdict is ca.Verdict.AGREES, result.check


@cache
def mislabelled() -> tuple[Net, Tensor, Tensor, Tensor]:
    """A network trained on 400 rows, the rows, their labels, and which 8 of these are wrong."""
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
    return net, x, labels, planted


@pytest.mark.parametrize(("method", "layer"), [*METHODS[:4], ("influence_function", "last"), ("arnoldi", "hidden")])
def test_wrong_labels_stand_out(method: str, layer: str) -> None:
    """8 planted wrong labels of 400 are in the 5 % of the largest self-influence; by TracIn of the most harmful too."""
    net, x, labels, planted = mislabelled()
    training = ca.ConceptExamples({"": x})
    influence = ca.Influence(
        training, tuple(labels.tolist()), method, layer, k=20, dimension=16, iterations=10  # type: ignore[arg-type]
    )  # fmt: skip
    result = asked(influence, net, x[:60], check=ca.CheckRequest(ca.CheckMode.OFF)).influence
    assert result is not None
    assert (result.self_influence is None) == (method == "tracin_projected")
    if result.self_influence is not None:
        assert set(planted.tolist()) <= set(result.self_influence.argsort()[-20:].tolist())
    if "tracin" in method:
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


# Models that change themselves while they run.


def renormalised_by_module(net: Any, h: Tensor) -> Tensor:
    found: Tensor = net.words((h[:, 0].detach().abs() * 4).long().clamp(0, 8))
    return h + found


def renormalised_by_function(net: Any, h: Tensor) -> Tensor:
    return h + nn.functional.embedding((h[:, 0].detach().abs() * 4).long().clamp(0, 8), net.table, max_norm=0.5)


def clamped(net: Any, h: Tensor) -> Tensor:
    with torch.no_grad():
        net.scale.clamp_(-0.5, 0.5)
    return h * net.scale


def clamped_behind_autograds_back(net: Any, h: Tensor) -> Tensor:
    net.scale.data.clamp_(-0.5, 0.5)
    return h * net.scale


def with_other_data(net: Any, h: Tensor) -> Tensor:
    net.scale.data = net.scale.data.clamp(-0.5, 0.5)
    return h * net.scale


def decayed(net: Any, h: Tensor) -> Tensor:
    """Not the same when done twice."""
    with torch.no_grad():
        net.scale.mul_(0.9)
    return h * net.scale


def scaled(net: Any, h: Tensor) -> Tensor:
    """An augmented assignment gives the module's attribute what the operator returns."""
    with torch.no_grad():
        net.scale *= 0.9
        net.hidden.bias += 0.1
    return h * net.scale + net.hidden.bias


def exchanged(net: Any, h: Tensor) -> Tensor:
    net.table, net.count = nn.Parameter(net.table.detach() * 0.9), net.count + 1
    return h * net.table[0] * net.count


def taken_away(net: Any, h: Tensor) -> Tensor:
    found = h * net.scale
    net.scale = None
    return found


def averaged(net: Any, h: Tensor) -> Tensor:
    net.average.mul_(0.9).add_(0.1 * net.scale)
    return h * net.average


def written_to(net: Any, h: Tensor) -> Tensor:
    with torch.no_grad():
        net.scale[2:4] = net.scale[2:4] + 1
        torch.add(net.scale, 1, out=net.scale)
    return h * net.scale


def counted(net: Any, h: Tensor) -> Tensor:
    net.count += 1
    return h * (1 + net.count / 10)


def made_late(net: Any, h: Tensor) -> Tensor:
    if net.late is None:
        net.late = torch.linspace(0.5, 2, 8).to(h)
    return h * net.late


def of_the_batch(net: Any, h: Tensor) -> Tensor:
    return h - h.mean(dim=0)


def drawn(net: Any, h: Tensor) -> Tensor:
    return h + torch.rand_like(h)


class Changing(Net):
    """A network that does something between its layers."""

    def __init__(self, change: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.words, self.table = nn.Embedding(9, 8, max_norm=0.5), nn.Parameter(torch.randn(9, 8))
        self.scale, self.change = nn.Parameter(torch.randn(8)), change
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("late", None)
        self.register_buffer("average", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.change(self, self.hidden(x)).tanh())
        return logits


CHANGES = (
    renormalised_by_module, renormalised_by_function, clamped, clamped_behind_autograds_back, with_other_data, decayed,
    written_to, counted, made_late, scaled, exchanged, taken_away, averaged,
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("method", "layer"), METHODS)
def test_a_model_that_changes_itself_is_put_back_and_agrees(
    change: Callable[[Any, Tensor], Tensor], method: str, layer: str
) -> None:
    """Also behind a Hessian, where PyTorch's own is zeros if a forward writes to a part of the vector of parameters."""
    net = Changing(change).double()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    result = asked(sought(method, layer), net).influence
    assert result is not None
    assert result.check is not None
    assert result.check.verdict is ca.Verdict.AGREES, result.check
    after = net.state_dict()
    assert {name for name, value in before.items() if not torch.equal(value, after[name])} == set()


@pytest.mark.parametrize("method", ["influence_function", "arnoldi"])
def test_an_embedding_that_renormalises_itself_scores_as_a_short_one(method: str) -> None:
    """The scores are those of the same network whose weights had that length before."""
    changing, short = (Changing(renormalised_by_module).double() for _ in range(2))
    with torch.no_grad():
        lengths = short.words.weight.norm(dim=1, keepdim=True)
        short.words.weight.mul_((0.5 / (lengths + 1e-7)).clamp(max=1))
    short.words.max_norm = None
    one, other = (asked(sought(method), net).influence for net in (changing, short))
    assert one is not None
    assert other is not None
    np.testing.assert_array_equal(one.helpful, other.helpful)
    np.testing.assert_allclose(one.helpful_scores, other.helpful_scores, rtol=1e-4)


@pytest.mark.parametrize("attribution", [None, ca.Saliency(), ca.FeatureAblation()])
@pytest.mark.parametrize("change", CHANGES)
def test_no_request_leaves_a_parameter_changed(
    change: Callable[[Any, Tensor], Tensor], attribution: ca.Attribution | None
) -> None:
    """The same request gets the same answer again, and a server's weights stay those of its file."""
    net = Changing(change).double()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    model = load_model(TensorAdapter(net), "cpu")
    request = ca.InspectRequest("m", attributions=(attribution,) if attribution else ())
    first, second = (inspect(model, request, {"x": X}) for _ in range(2))
    np.testing.assert_array_equal(first.predictions["output"], second.predictions["output"])
    assert {name for name, value in before.items() if not torch.equal(value, net.state_dict()[name])} == set()


def test_a_parameter_that_its_owner_exchanges_is_the_next_requests() -> None:
    net = Changing(clamped).double()
    model = load_model(TensorAdapter(net), "cpu")
    for _ in range(2):
        net.last.bias = own = nn.Parameter(torch.randn(3).double())
        expected = net(X).detach()
        np.testing.assert_allclose(inspect(model, ca.InspectRequest("m"), {"x": X}).predictions["output"], expected)
        assert net.last.bias is own


@pytest.mark.parametrize(("change", "cause"), [(of_the_batch, ca.Cause.ROWS_COUPLED), (drawn, ca.Cause.RANDOM_FORWARD)])
@pytest.mark.parametrize(("method", "layer"), [METHODS[0], METHODS[4], METHODS[6], ("cosine", "last")])
def test_scores_of_rows_that_are_none_are_inconclusive(
    change: Callable[[Any, Tensor], Tensor], cause: ca.Cause, method: str, layer: str
) -> None:
    """Captum runs several rows in a pass and the reference one: where that matters, neither is right."""
    result = asked(sought(method, layer), Changing(change).double()).influence
    assert result is not None
    assert result.check is not None
    assert (result.check.verdict, result.check.cause) == (ca.Verdict.INCONCLUSIVE, cause)


def test_a_hessian_of_a_small_model_takes_few_passes() -> None:
    """600 rows in three passes for Captum and three for the reference: 736 products of each took a minute in 38."""
    draw = torch.Generator().manual_seed(0)
    training, labels = torch.randn(600, 6, generator=draw), torch.randint(3, (600,), generator=draw)
    influence = ca.Influence(ca.ConceptExamples({"": training}), tuple(labels.tolist()), "influence_function", "last")
    result = asked(influence, Net(), X.float())
    assert result.influence is not None
    assert result.influence.check is not None
    assert result.influence.check.verdict is ca.Verdict.AGREES
    # One pass finds the parameters and one predicts; Captum runs all rows in passes of 16, twice; the reference alone.
    others = 2 + 1 + 2 * 38 + 600 + ROWS
    assert result.provenance.forwards - others <= 2 * 3 + 3


@pytest.mark.parametrize("method", ["influence_function", "arnoldi"])
def test_a_second_derivative_that_nobody_proves_is_inconclusive(method: str) -> None:
    """A function whose own backward takes a part of itself for constant: PyTorch and Captum do not notice."""

    class Cut(Once):
        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * ctx.saved_tensors[0].detach().cos()

    class WithCut(Net):
        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.last(Cut.apply(self.hidden(x)))
            return logits

    for net, verdict in ((WithCut(), ca.Verdict.INCONCLUSIVE), (Net(), ca.Verdict.AGREES)):
        result = asked(sought(method), net.double()).influence
        assert result is not None
        assert result.check is not None
        assert result.check.verdict is verdict
        assert ("CutBackward" in result.check.reason) == (verdict is ca.Verdict.INCONCLUSIVE)


def test_equal_eigenvalues_are_no_reason_to_doubt() -> None:
    """Most are equal to the damping here; with Captum's own solver, in float32, scores are wrong by 78 %."""
    net = Net()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(30)
    influence = sought("influence_function", "last", torch.float32, dimension=50, damping=1e-3)
    result = asked(influence, net, X.float()).influence
    assert result is not None
    assert result.check is not None
    assert result.check.verdict is ca.Verdict.AGREES


class Words(nn.Module):
    """The mean of the embeddings of a text's words."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.last = nn.Embedding(9, 6), nn.Linear(6, 3)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.last(self.embedding(ids).mean(dim=1).tanh())
        return logits


@pytest.mark.parametrize("method", ["tracin", "arnoldi", "cosine"])
def test_training_texts_may_be_longer_than_the_rows(method: str) -> None:
    """Where they have sizes of their own, likeness is refused by the field at fault."""
    training, rows = (
        torch.randint(9, shape, generator=torch.Generator().manual_seed(0)) for shape in ((20, 7), (3, 4))
    )
    labels, layer = ((), "last") if method == "cosine" else ((0, 1, 2, 1) * 5, "")
    model = load_model(TensorAdapter(Words()), "cpu")

    def answer(at: str) -> InspectResult:
        influence = ca.Influence(ca.ConceptExamples({"ids": training}), labels, method, at, iterations=6)  # type: ignore[arg-type]
        return inspect(model, ca.InspectRequest("m", influence=influence), {"ids": rows})

    result = answer(layer).influence
    assert result is not None
    assert result.check is not None
    assert result.check.verdict is ca.Verdict.AGREES
    if method == "cosine":
        with pytest.raises(CutawayError, match=r"INPUT_SHAPE \[influence.layer\].*behind a pooling"):
            answer("embedding")


@pytest.mark.parametrize("method", ["influence_function", "arnoldi"])
def test_a_wrong_second_derivative_disagrees(method: str) -> None:
    """It makes a Hessian that is not symmetric; so does PyTorch's own of weight_norm in 2.13."""

    class Detached(Once):
        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient.detach() * ctx.saved_tensors[0].cos()

    class WithDetached(Net):
        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.last(Detached.apply(self.hidden(x)))
            return logits

    result = asked(sought(method), WithDetached().double()).influence
    assert result is not None
    assert result.check is not None
    assert (result.check.verdict, result.check.cause) == (ca.Verdict.DISAGREES, ca.Cause.WRONG_BACKWARD)


def test_eigenvalues_that_rounding_errors_exchange_are_inconclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three equal ones one is asked for: rounding errors decide which. With all three they do not matter."""
    noise = 1e-6 * torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
    plain = influence_function._compute_dataset_func
    monkeypatch.setattr(influence_function, "_compute_dataset_func", changed(plain, lambda found: found + noise))
    net, x = nn.Linear(3, 2, bias=False), torch.eye(3).repeat(4, 1)
    nn.init.zeros_(net.weight)
    model = load_model(TensorAdapter(net), "cpu")
    found = []
    for dimension in (1, 3):
        training, labels = ca.ConceptExamples({"": x}), (0, 1, 1, 0) * 3
        influence = ca.Influence(training, labels, "influence_function", dimension=dimension)
        rows = torch.tensor([[0.3, -1.0, 0.5]])
        result = inspect(model, ca.InspectRequest("m", influence=influence), {model.inputs[0].name: rows}).influence
        assert result is not None
        assert result.check is not None
        found.append((result.check.verdict, result.check.cause))
    assert found == [(ca.Verdict.INCONCLUSIVE, ca.Cause.CANCELLATION), (ca.Verdict.AGREES, None)]


@pytest.mark.parametrize("layer", ["last", "hidden"])
@pytest.mark.parametrize("seed", range(6))
def test_an_iteration_that_finds_all_of_a_layer_does_not_cry_wolf(seed: int, layer: str) -> None:
    """Its vectors lost their right angles in float32, and scores were wrong by as much as their size. With a damping
    above the rounding errors they are right; with the default one they are, or nothing is said."""
    for damping in (0.1, 1e-3):
        asks = sought("arnoldi", layer, torch.float32, iterations=60, damping=damping, dimension=60, seed=seed)
        influence = asked(asks, Net(), X.float()).influence
        assert influence is not None
        assert influence.check is not None
        assert influence.check.verdict is not ca.Verdict.DISAGREES, influence.check
        assert damping == 1e-3 or influence.check.verdict is ca.Verdict.AGREES, influence.check


def test_a_space_that_rounding_errors_lead_out_of_is_inconclusive() -> None:
    """Captum ends a step later than the reference: that step's vector is one of rounding errors."""
    net = Net(12)
    net.hidden, net.last = nn.Sequential(nn.Linear(12, 16), nn.ReLU()), nn.Linear(16, 3)  # type: ignore[assignment]
    training, x, labels = torch.randn(24, 12), torch.randn(4, 12), tuple(torch.randint(3, (24,)).tolist())
    influence = asked(ca.Influence(ca.ConceptExamples({"": training}), labels, "arnoldi", "last"), net, x).influence
    assert influence is not None
    assert influence.check is not None
    found = influence.check.verdict, influence.check.cause
    assert found == (ca.Verdict.INCONCLUSIVE, ca.Cause.CANCELLATION)
    assert influence.check.reason.endswith("ask for a larger damping or fewer iterations")


def test_gradients_that_do_not_fit_are_kept_of_fewer_rows_or_refused() -> None:
    """Captum keeps those of a batch: of a BERT with all parameters 16 rows are 7 GB. Scores are the same."""
    model, influence = load_model(TensorAdapter(Net().double()), "cpu"), sought("tracin")
    request = ca.InspectRequest("m", influence=influence)
    whole = inspect(model, request, {"x": X}).influence
    of_row = 8 * sum(each.numel() for name, each in model.module.named_parameters() if "unused" not in name)
    model.request_bytes = (2 * ROWS + 2 * 3) * of_row
    assert fitting.gradients_that_fit(model, [*Net().double().parameters()][:4], ROWS, 16) == 3
    few = inspect(model, request, {"x": X}).influence
    assert whole is not None
    assert few is not None
    np.testing.assert_allclose(few.helpful_scores, whole.helpful_scores, rtol=1e-12)
    model.request_bytes = 2 * ROWS * of_row
    with pytest.raises(CutawayError, match=r"OUT_OF_MEMORY \[influence.layer\].*name a smaller layer, send fewer rows"):
        inspect(model, request, {"x": X})


def test_no_fewer_iterations_are_advised_than_there_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_inputs, "_MOST_NUMBERS", 200)
    with pytest.raises(CutawayError, match=r"METHOD_INAPPLICABLE \[influence.method\].*name a smaller layer$"):
        asked(sought("arnoldi"))


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
        (ca.Influence(ca.ConceptExamples({"": TRAINING[:, :5]}), (0,) * COUNT), {},
            r"MODEL_FAILED \[influence.training"),
        (ca.Influence(ca.ConceptExamples(raw=(ca.Raw(b"a"),)), (0,)), {}, r"RAW_UNSUPPORTED \[influence.training.raw"),
        (ca.Influence(ca.ConceptExamples(), ()), {}, r"INPUT_\w+ \[influence.training.tensors"),
        (sought("tracin_projected", "hidden"), {}, r"METHOD_INAPPLICABLE \[influence.layer\].*logits"),
        (sought("arnoldi", "unused"), {}, r"NOT_DIFFERENTIABLE \[influence.layer\].*no parameter"),
        (sought("arnoldi", iterations=2), {}, r"INVALID_VALUE \[influence.iterations\].*2; at least 3"),
        (sought("arnoldi", iterations=1 << 20), {},
            r"METHOD_INAPPLICABLE \[influence.method\].*at most 64 are allowed.*ask for 754032 iterations"),
        (sought("influence_function"), {"net": wide()},
            r"METHOD_INAPPLICABLE \[influence.method\].*2,053 parameters: at most 2,048 are allowed.*arnoldi"),
        (sought("influence_function", "last"), {"net": saturated()},
            r"NOT_DIFFERENTIABLE \[influence.layer\].*no curvature"),
        (sought("arnoldi", "last"), {"net": saturated()}, r"NOT_DIFFERENTIABLE \[influence.layer\].*no curvature"),
        (sought("influence_function"), {"net": OnceDifferentiable().double()},
            r"NOT_DIFFERENTIABLE \[influence.method\].*OnceBackward.*no second derivative"),
        (sought("arnoldi"), {"net": OnceDifferentiable().double()},
            r"NOT_DIFFERENTIABLE \[influence.method\].*OnceBackward.*no second derivative"),
        (sought("cosine", "unused"), {}, r"METHOD_INAPPLICABLE \[influence.layer\].*calls 'unused' 0 times"),
        (sought("cosine", "rnn"), {"net": TimeFirst().double()}, r"METHOD_INAPPLICABLE \[influence.layer\].*\[0\], "),
        (sought("euclidean", "norm"), {"net": TimeFirst().double()}, r"METHOD_INAPPLICABLE \[influence.layer\].*rows"),
        (sought("tracin"), {"net": TimeFirst(1).double()}, r"TARGET_MISMATCH \[target\].*one of several classes"),
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
