"""Our replacements for two functions of Captum return Captum's values bit for bit, and leave no trace in Captum."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec, module_from_spec
from threading import Barrier, Event
from typing import Any

import numpy as np
import pytest
import torch
from captum import attr
from captum._utils import gradient
from captum._utils.gradient import compute_gradients
from captum.attr._utils import approximation_methods
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import TensorAdapter, load_model
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.methods.captum_patches import gradients, quicker_captum, with_single_root

X = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
TARGET = torch.tensor([0, 1, 2, 0, 1])


class Network(nn.Module):
    """Convolutions, a pool and a normalisation that all rows share."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.body(x)
        return logits


class Detached(Network):
    """A network in which no gradient reaches the input."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.detach())


METHODS: list[tuple[Any, dict[str, Any]]] = [
    (attr.Saliency, {}),
    (attr.InputXGradient, {}),
    (attr.IntegratedGradients, {"n_steps": 17}),
    (attr.IntegratedGradients, {"n_steps": 9, "internal_batch_size": 10}),
    (attr.GuidedBackprop, {}),
    (attr.Deconvolution, {}),
    (attr.DeepLift, {}),
    (attr.GradientShap, {"baselines": torch.zeros(2, 1, 8, 8), "n_samples": 3}),
]


@pytest.mark.filterwarnings("ignore:Setting")
@pytest.mark.parametrize(("method", "options"), METHODS, ids=[method.__name__ for method, _ in METHODS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_root_for_all_rows_gives_the_same_bits(method: Any, options: dict[str, Any], dtype: torch.dtype) -> None:
    """Each of Captum's methods that take gradients at the input: with one root of the backward pass, and with a root
    for each row and step."""
    network = Network().eval().to(dtype)
    given = {name: each.to(dtype) if isinstance(each, Tensor) else each for name, each in options.items()}

    def answer(explainer: Any) -> Tensor:
        torch.manual_seed(3)
        np.random.seed(3)
        found: Tensor = explainer.attribute(X.to(dtype), target=TARGET, **given)
        return found

    long, short = answer(method(network)), answer(with_single_root(method(network)))
    assert torch.equal(long, short)
    assert long.any()


def test_there_is_one_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five rows of seven steps begin one backward pass with one tensor."""
    roots: list[int] = []
    grad = torch.autograd.grad

    def counted(outputs: Any, *given: Any, **further: Any) -> Any:
        roots.append(1 if isinstance(outputs, Tensor) else len(outputs))
        return grad(outputs, *given, **further)

    monkeypatch.setattr(torch.autograd, "grad", counted)
    for explainer in (
        attr.IntegratedGradients(Network().eval()),
        with_single_root(attr.IntegratedGradients(Network().eval())),
    ):
        explainer.attribute(X, target=TARGET, n_steps=7)
    assert roots == [35, 1]


@pytest.mark.parametrize("noise", [None, ca.NoiseTunnel(n_samples=2)])
def test_every_explanation_takes_the_short_way(noise: ca.NoiseTunnel | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is served takes it too, inside a noise tunnel as well: no backward pass of a request has two roots."""
    roots: list[int] = []
    grad = torch.autograd.grad

    def counted(outputs: Any, *given: Any, **further: Any) -> Any:
        roots.append(1 if isinstance(outputs, Tensor) else len(outputs))
        return grad(outputs, *given, **further)

    subject = load_model(TensorAdapter(Network().eval()), "cpu")
    monkeypatch.setattr(torch.autograd, "grad", counted)
    asked = ca.InspectRequest("m", attributions=(ca.IntegratedGradients(n_steps=7, noise=noise),))
    assert inspect(subject, asked, {"x": X}).attributions
    assert set(roots) == {1}


def test_gradient_functions_of_captums_own_are_left_alone() -> None:
    """Where Captum itself puts another one in its place, for a neuron say, that one stays."""
    explainer = attr.IntegratedGradients(Network())
    explainer.gradient_func = own = lambda *_: ()
    assert with_single_root(explainer).gradient_func is own
    assert with_single_root(attr.LayerActivation(Network(), Network().body[0])) is not None


@pytest.mark.parametrize("way", [compute_gradients, gradients])
def test_several_elements_without_a_target_are_refused(way: Any) -> None:
    """As Captum refuses them: a gradient of three scores at once is nobody's."""
    with pytest.raises(AssertionError, match=r"[tT]arget"):
        way(Network(), (X.clone().requires_grad_(),))


def _original_builders() -> Any:
    """The function as Captum's source defines it, from a second import of its module."""
    spec = find_spec("captum.attr._utils.approximation_methods")
    assert spec is not None
    assert spec.loader is not None
    fresh = module_from_spec(spec)
    spec.loader.exec_module(fresh)
    return fresh.gauss_legendre_builders


def _is_original() -> bool:
    return bool(approximation_methods.gauss_legendre_builders.__code__ == _original_builders().__code__)


def test_cached_nodes_are_captums() -> None:
    """Nodes and weights of the quadrature rule are the same bits with and without the cache, also the second time."""
    original = _original_builders()
    with quicker_captum():
        assert not _is_original()
        for n in (1, 2, 50, 64, 200, 64):
            for theirs, ours in zip(original(), approximation_methods.gauss_legendre_builders()):
                assert theirs(n) == ours(n)
                ours(n).clear()  # a caller may change its list without an effect on the next one's


def test_captum_is_original_outside_the_block() -> None:
    """After a block, and after one that raises, Captum's functions are the originals."""
    assert _is_original()
    with suppress(KeyError), quicker_captum():
        assert not _is_original()
        raise KeyError
    assert _is_original()
    assert attr.IntegratedGradients(Network()).gradient_func is compute_gradients


def test_captum_is_original_after_a_request() -> None:
    """A request that succeeds and a request that fails leave Captum's functions as they are."""
    request = ca.InspectRequest("m", attributions=(ca.IntegratedGradients(n_steps=2),))
    assert inspect(load_model(TensorAdapter(Network().eval()), "cpu"), request, {"x": X}).attributions
    with pytest.raises(ca.CutawayError, match="differentiable"):
        inspect(load_model(TensorAdapter(Detached().eval()), "cpu"), request, {"x": X})
    assert _is_original()


def test_blocks_of_several_threads_overlap() -> None:
    """Whichever of two threads leaves its block first, the other keeps the cache; the last one restores Captum."""
    entered, leave = Barrier(2, timeout=10), Event()

    def first() -> bool:
        with quicker_captum():
            entered.wait()
            leave.wait(10)
            return _is_original()

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(first)
        with quicker_captum():
            entered.wait()
        assert not _is_original()
        leave.set()
        assert not future.result()
    assert _is_original()


OTHER_GRADIENTS: dict[str, Any] = {
    "other values": lambda forward_fn, inputs, target_ind=None, additional_forward_args=None: tuple(
        -each for each in compute_gradients(forward_fn, inputs, target_ind, additional_forward_args)
    ),
    "another argument": lambda forward_fn, inputs, target_ind=None, additional_forward_args=None, create_graph=False: (
        compute_gradients(forward_fn, inputs, target_ind, additional_forward_args)
    ),
}


@pytest.mark.parametrize("other", OTHER_GRADIENTS.values(), ids=OTHER_GRADIENTS)
def test_another_gradient_function_of_captum_is_kept(other: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Captum whose gradients have other values or arguments than ours runs as it is."""
    monkeypatch.setattr(gradient, "compute_gradients", other)
    explainer = attr.IntegratedGradients(Network())
    explainer.gradient_func = other
    assert with_single_root(explainer).gradient_func is other


OTHER_BUILDERS: dict[str, Any] = {
    "other values": lambda: (lambda n: [1.0] * n, lambda n: [0.0] * n),
    "no nodes": lambda: _original_builders()()[:1],
    "another result": lambda: lambda n: [1.0] * n,
    "another argument": lambda n: ([1.0] * n, [0.0] * n),
}


@pytest.mark.parametrize("other", OTHER_BUILDERS.values(), ids=OTHER_BUILDERS)
def test_other_nodes_of_captum_are_kept(other: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Captum whose quadrature rule has other values, results or arguments than ours runs as it is."""
    monkeypatch.setattr(approximation_methods, "gauss_legendre_builders", other)
    with quicker_captum():
        assert approximation_methods.gauss_legendre_builders is other


def test_a_captum_without_these_functions_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Captum that has no such private functions runs as it is."""
    monkeypatch.delattr(approximation_methods, "gauss_legendre_builders")
    monkeypatch.delattr(gradient, "compute_gradients")
    with quicker_captum():
        assert not hasattr(approximation_methods, "gauss_legendre_builders")
    explainer = attr.IntegratedGradients(Network())
    assert with_single_root(explainer).gradient_func is compute_gradients


ANSWERS = """
import torch
import cutaway as ca
from cutaway.adapters import TensorAdapter, load_model
from cutaway.engine.execution.inspect import inspect

net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()
request = ca.InspectRequest("net", attributions=(ca.DeepLift(), ca.GuidedBackprop()))
result = inspect(load_model(TensorAdapter(net), "cpu"), request, {"input": torch.ones(1, 3)})
print([each.method for each in result.attributions])
"""


def test_users_read_no_warning_of_captum() -> None:
    """Methods that hook non-linear modules say so to Captum's caller, whom a server in the same process is."""
    done = subprocess.run([sys.executable, "-W", "always", "-c", ANSWERS], capture_output=True, text=True, check=True)
    assert done.stdout == "['DeepLift', 'GuidedBackprop']\n"
    assert "hooks" not in done.stderr
