"""The engine on a GPU: raw hooks, attributions, memory and state, on networks of real size."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from captum import attr
from torch import Tensor

import cutaway as ca
from bench.real import MODELS, Real
from cutaway.contract.requests import Attribution, CheckMode, CheckRequest
from cutaway.contract.results import InspectResult, Verdict
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.gateway import serve
from tests.support.state_snapshot import State

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

REAL = pytest.mark.parametrize("name", MODELS)


class OnGpu:
    """A network of real size on the GPU, with rows for it."""

    def __init__(self, name: str, rows: int = 2) -> None:
        self.real: Real = MODELS[name]
        self.module = self.real.build().cuda()
        each = [self.real.rows(seed) for seed in range(rows)]
        self.inputs = {key: torch.cat([row[key] for row in each]).cuda() for key in each[0]}
        self.subject = InspectedModel(self.module, lambda tensors: self.module(**tensors))

    @property
    def target(self) -> ca.MultiIndex:
        return ca.MultiIndex((self.real.target,) * len(next(iter(self.inputs.values()))))

    def ask(self, **more: object) -> InspectResult:
        return inspect(self.subject, ca.InspectRequest("m", target=self.target, **more), dict(self.inputs))  # type: ignore[arg-type]

    def explained(self) -> Attribution:
        """Integrated gradients of the first input, or of its embedding."""
        if self.real.embedding:
            return ca.LayerIntegratedGradients(layer=self.real.embedding, n_steps=8)
        return ca.IntegratedGradients(n_steps=8, inputs=(self.real.explained,))


def repeated(gradient: np.ndarray, expected: Tensor) -> bool:
    """Whether two backward passes may differ by so much."""
    theirs = expected.cpu().numpy()
    return bool(np.abs(gradient - theirs).max() <= 1e-5 * np.abs(theirs).max())


@pytest.fixture(autouse=True)
def empty_gpu() -> Iterator[None]:
    """No test leaves its networks on the GPU."""
    yield
    gc.collect()
    torch.cuda.empty_cache()


@REAL
def test_what_comes_back_is_what_hand_written_hooks_saw(name: str) -> None:
    """Outputs bit for bit, and gradients as far as a GPU repeats them; then the model is as before.

    The backward pass of a max pooling adds in no fixed order: two passes by hand differ by 6e-7, and with TF32 by 3e-4.
    """
    net = OnGpu(name)
    seen: dict[str, Tensor] = {}
    handles = []
    for layer in net.real.layers:
        module = net.module.get_submodule(layer)

        def keep(_: object, __: object, out: Tensor, layer: str = layer) -> None:
            seen[layer] = out.detach().clone()
            out.register_hook(lambda grad: seen.__setitem__(f"{layer} gradient", grad.clone()))

        handles.append(module.register_forward_hook(keep))
    inputs = {key: x.clone().requires_grad_(x.is_floating_point()) for key, x in net.inputs.items()}
    # an LSTM has no backward pass in evaluation mode there
    with torch.backends.cudnn.flags(enabled=name != "lstm", allow_tf32=False):
        output = net.module(**inputs)
        place = (slice(None), *net.real.target)
        output[place].sum().backward()
    for handle in handles:
        handle.remove()

    before = State.of(net.module)
    captures = [ca.Capture(layer, at) for layer in net.real.layers for at in ("output", "grad_output")]
    floating = tuple(key for key, x in net.inputs.items() if x.is_floating_point())
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        result = net.ask(captures=tuple(captures), input_gradients=floating or None)
    assert result.provenance.device == "cuda:0"
    assert not before.changes(State.of(net.module))
    assert np.array_equal(next(iter(result.predictions.values())), output.detach().cpu().numpy())
    for layer in net.real.layers:
        (call,) = result.captures[layer].calls
        assert np.array_equal(call.output, seen[layer].cpu().numpy()), layer
        assert repeated(call.grad_output, seen[f"{layer} gradient"]), layer
    for key in floating:
        gradient = inputs[key].grad
        assert gradient is not None
        assert repeated(result.input_gradients[key], gradient), key


@REAL
@pytest.mark.parametrize("mode", [CheckMode.SAME_PASS, CheckMode.INDEPENDENT])
def test_attributions_agree_with_the_raw_hooks(name: str, mode: CheckMode) -> None:
    """No false alarm at real size, whatever kernels the GPU chooses."""
    net = OnGpu(name)
    cam = ca.LayerGradientXActivation if net.real.cam_is_product else ca.LayerGradCam
    asked: list[Attribution] = [net.explained(), cam(layer=net.real.cam)]
    if not net.real.embedding:
        one = (net.real.explained,)
        asked += [ca.Saliency(inputs=one), ca.InputXGradient(inputs=one)]
        asked += [ca.Occlusion(windows={one[0]: net.real.window}, strides={one[0]: net.real.window}, inputs=one)]
    result = net.ask(attributions=tuple(asked), check=CheckRequest(mode), attribution_errors_in_place=True, seed=1)
    for each in result.attributions:
        assert each.error is None or each.error.reason == "METHOD_INAPPLICABLE", (each.method, each.error)
        for check in each.checks[:1]:
            assert check.verdict in (Verdict.AGREES, Verdict.NOT_APPLICABLE), (each.method, check)
        for check in each.checks[1:]:
            assert check.verdict is not Verdict.DISAGREES, (each.method, check)


def test_integrated_gradients_are_those_of_captum_on_the_gpu() -> None:
    """Without TF32, under which two batch sizes differ by 2 %, in Captum called by hand too."""
    net = OnGpu("resnet50")
    (image,) = net.inputs.values()
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        theirs = attr.IntegratedGradients(net.module).attribute(image, target=0, n_steps=8)
        (ours,) = net.ask(attributions=(net.explained(),)).attributions
    values = torch.from_numpy(next(iter(ours.values.values())))
    assert float((values - theirs.cpu().float()).abs().max()) <= 1e-3 * float(theirs.abs().max())


def test_a_path_that_is_larger_than_the_gpu_is_answered() -> None:
    """A thousand points of a ResNet-50 need over 100 GiB at once; they run in passes that fit, and nothing stays."""
    net = OnGpu("resnet50", rows=1)
    net.ask(attributions=(ca.Saliency(),))
    total, before = torch.cuda.mem_get_info()[1], torch.cuda.memory_allocated()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(min(1.0, (6 << 30) / total))
    try:
        (got,) = net.ask(attributions=(ca.IntegratedGradients(n_steps=1000),)).attributions
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert got.checks[0].verdict is Verdict.AGREES, got.checks
    gc.collect()
    assert torch.cuda.memory_allocated() <= before + (64 << 20)


def test_a_model_in_memory_is_served_where_it_is() -> None:
    net = OnGpu("resnet50", rows=1)
    with serve({"net": net.module}) as server, ca.Client(server.address) as client:
        result = client.inspect("net", {"image": net.inputs["image"].cpu().numpy()}, captures=["stem"])
    assert result.provenance.device == "cuda:0"
    assert next(net.module.parameters()).is_cuda
    expected = net.module.get_submodule("stem")(net.inputs["image"]).detach().cpu().numpy()
    assert np.array_equal(result.captures["stem"].output, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_agrees(dtype: torch.dtype) -> None:
    net = OnGpu("resnet50")
    net.module.to(dtype)
    net.inputs = {key: x.to(dtype) for key, x in net.inputs.items()}
    net.subject = InspectedModel(net.module, lambda tensors: net.module(**tensors))
    asked = (ca.InputXGradient(), ca.LayerGradCam(layer="stages.3"))
    for each in net.ask(attributions=asked).attributions:
        assert each.checks[0].verdict is Verdict.AGREES, each.checks


def test_the_same_seed_draws_the_same_numbers_on_the_gpu() -> None:
    """Whatever was drawn before; and the owner's generator continues as if nothing had been asked."""
    net = OnGpu("resnet50", rows=1)
    asked = (ca.Saliency(noise=ca.NoiseTunnel(n_samples=3, stdev=0.1)),)
    answers = []
    for before in (1, 2):
        torch.cuda.manual_seed(before)
        state = torch.cuda.get_rng_state()
        (got,) = net.ask(attributions=asked, seed=7).attributions
        assert torch.equal(state, torch.cuda.get_rng_state())
        answers.append(next(iter(got.values.values())))
    assert np.allclose(answers[0], answers[1], rtol=1e-3, atol=1e-6)


class _TooSteep(torch.autograd.Function):
    """Returns its argument, and a gradient that is ten percent too large."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient * 1.1


@pytest.mark.parametrize("tf32", [True, False])
def test_a_wrong_backward_pass_is_found(tf32: bool) -> None:
    """Coarser products hide no fault of ten percent."""
    net = OnGpu("resnet50")
    steep = net.module.get_submodule("stages.0").register_forward_hook(lambda _, __, out: _TooSteep.apply(out))
    net.subject = InspectedModel(net.module, lambda tensors: net.module(**tensors))
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=tf32):
        (got,) = net.ask(attributions=(ca.InputXGradient(),)).attributions
    steep.remove()
    assert got.checks[0].verdict is not Verdict.AGREES


@pytest.mark.parametrize("kind", ["linear", "convolution", "lstm"])
def test_rounding_to_tf32_is_no_disagreement(kind: str) -> None:
    """Where the owner allows it for all products, every part of a check knows it."""
    torch.manual_seed(0)
    shapes = {"linear": (4, 256), "convolution": (4, 8, 32, 32), "lstm": (4, 50, 64)}

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.head = torch.nn.Linear(256, 64), torch.nn.Linear(64, 5)
            self.convolution, self.lstm = torch.nn.Conv2d(8, 64, 3), torch.nn.LSTM(64, 64, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            if kind == "lstm":
                x = self.lstm(x)[0][:, -1]
            else:
                x = self.linear(x) if kind == "linear" else self.convolution(x).mean((2, 3))
            logits: Tensor = self.head(x.tanh())
            return logits

    module = Net().eval().cuda()
    subject = InspectedModel(module, lambda tensors: module(**tensors))
    asked = (ca.Saliency(), ca.InputXGradient(), ca.IntegratedGradients(n_steps=64), ca.LayerActivation(layer="head"))
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        for mode in (CheckMode.SAME_PASS, CheckMode.INDEPENDENT):
            request = ca.InspectRequest("m", attributions=asked, check=CheckRequest(mode), seed=1)
            for each in inspect(subject, request, {"x": torch.randn(shapes[kind]).cuda()}).attributions:
                assert {check.verdict for check in each.checks} == {Verdict.AGREES}, (each.method, each.checks)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def test_lstm_with_steps_first_is_explained() -> None:
    """A pass with gradients runs other kernels there than one without: that is no random model."""
    net = OnGpu("lstm")
    (got,) = net.ask(attributions=(ca.InputXGradient(),)).attributions
    assert got.checks[0].verdict is Verdict.AGREES, got.checks
