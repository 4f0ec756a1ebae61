"""Workers of one model share the pages of its weights, and have the weights that plain loading gives them."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import Adapter, TensorAdapter
from cutaway.contract.requests import InspectRequest
from cutaway.contract.results import InputSpec
from cutaway.contract.values import changed
from cutaway.server.archive import builder, reader
from cutaway.server.worker.process import load_once
from cutaway.server.worker.worker import Worker
from tests.support.state_snapshot import State

pytestmark = pytest.mark.skipif(not psutil.LINUX, reason="other systems show no mappings")

WIDTH = 512


class Net(nn.Module):
    """Two layers and a kernel, whose names put a bias of two numbers before the large tensors."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a_scale = nn.Parameter(torch.randn(2))
        self.kernel = nn.Parameter(torch.randn(WIDTH, WIDTH, 3, 3))
        self.lower = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.upper = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.upper(self.norm(self.lower(x).relu())) * self.a_scale[0]
        return output


class NetAdapter(Adapter):
    """Builds a `Net`."""

    inputs = (InputSpec("x", "float32", (-1, WIDTH)),)

    def build(self) -> nn.Module:
        return Net()


class Tied(NetAdapter):
    """One weight by two names."""

    def build(self) -> nn.Module:
        net = Net()
        net.upper.weight = net.lower.weight
        return net


class Half(NetAdapter):
    """A file in half precision for a network in float32."""

    def build(self) -> nn.Module:
        return Net().to(torch.float64)


class Seen(NetAdapter):
    """A network that keeps a view of one of its parameters."""

    def build(self) -> nn.Module:
        net: Any = Net()
        net.window = net.lower.weight.detach()[:1]
        return net


class Twice(NetAdapter):
    """Two networks from one file, of which the first is changed after the second is loaded."""

    def load(self, weights: Path | None) -> nn.Module:
        tensors = load_file(str(weights))
        first, second = Net(), Net()
        first.load_state_dict(tensors)
        second.load_state_dict(tensors)
        with torch.no_grad():
            first.lower.weight.mul_(2)
        return nn.Sequential(first, second)


class Changed(NetAdapter):
    """Weights that the adapter changes between the file and the network."""

    def load(self, weights: Path | None) -> nn.Module:
        tensors = load_file(str(weights))
        tensors["lower.weight"].mul_(2)
        net = Net()
        net.load_state_dict(tensors)
        tensors["upper.weight"].zero_()
        return net


class Writes(NetAdapter):
    """A forward pass that writes to parameters: in place, through ``data``, and through an array of NumPy."""

    def build(self) -> nn.Module:
        class Writing(Net):
            def forward(self, x: Tensor) -> Tensor:
                with torch.no_grad():
                    self.upper.weight[0].add_(1)
                    self.lower.weight.data.mul_(1.5)
                    self.kernel.detach().numpy().fill(0)
                return super().forward(x)

        return Writing()


class Trains(NetAdapter):
    """A batch norm that is in training mode in every pass, whatever the server sets."""

    def build(self) -> nn.Module:
        class Training(Net):
            def forward(self, x: Tensor) -> Tensor:
                self.norm.training = True
                return super().forward(x)

        return Training()


class Renormalised(NetAdapter):
    """An embedding that renormalises the rows that it looks up."""

    def build(self) -> nn.Module:
        class Table(Net):
            def __init__(self) -> None:
                super().__init__()
                self.table = nn.Embedding(WIDTH, WIDTH, max_norm=0.5)

            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x + self.table(torch.arange(len(x))))

        return Table()


class Hooked(NetAdapter):
    """Hooks of loading, before and after, of which each writes to what was loaded."""

    def build(self) -> nn.Module:
        net = Net()

        def before(_: nn.Module, tensors: dict[str, Tensor], prefix: str, *__: Any) -> None:
            tensors["upper.weight"].neg_()

        def after(_: nn.Module, __: Any) -> None:
            with torch.no_grad():
                net.lower.weight.neg_()

        net.register_load_state_dict_pre_hook(before)
        net.register_load_state_dict_post_hook(after)
        return net


class Normed(NetAdapter):
    """Weights that are computed from parameters of the file."""

    def build(self) -> nn.Module:
        net = Net()
        nn.utils.parametrizations.weight_norm(net.lower)
        nn.utils.parametrizations.spectral_norm(net.upper)
        return net


def packaged(store: Path, weights: Path, kind: type[Adapter]) -> Path:
    return builder.build(
        model="net",
        adapter=f"{__name__}:{kind.__name__}",
        weights=weights,
        options={},
        batch_size=1,
        max_batch_delay_ms=1,
        workers=1,
        response_timeout_s=60,
        destination=store,
    )


Loaded = Callable[[type[Adapter], nn.Module], tuple[Worker, Path]]


@pytest.fixture
def load(tmp_path: Path) -> Loaded:
    """A function that packages the weights of a network, and loads them with an adapter as a worker does."""

    def load(kind: type[Adapter], trained: nn.Module) -> tuple[Worker, Path]:
        weights, directory = tmp_path / "net.safetensors", tmp_path / "unpacked"
        save_file({name: tensor.clone() for name, tensor in trained.state_dict().items()}, weights)
        reader.unpack(packaged(tmp_path, weights, kind), directory)
        return Worker.load(directory, device="cpu"), directory / weights.name

    return load


def trained() -> Net:
    net = Net()
    for parameter in net.parameters():
        parameter.data.normal_()
    return net


def kibibytes(path: Path, what: str) -> int:
    """The memory of this process in the mappings of ``path``."""
    maps = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    found = [re.search(rf"(?m)^{what}: +(\d+) kB", each) for each in maps if str(path) in each.partition("\n")[0]]
    return sum(int(each[1]) for each in found if each)


def test_weights_are_the_files_pages(load: Loaded) -> None:
    """Also after requests: no page of them belongs to this worker alone, and every tensor is what was saved."""
    net = trained()
    worker, path = load(NetAdapter, net)
    x = {"x": np.ones((1, WIDTH), np.float32)}
    method = ca.IntegratedGradients(n_steps=2)
    worker.inspect(InspectRequest("net", tensors=x, input_gradients=("x",), attributions=(method,)))
    assert kibibytes(path, "Rss") >= (9 + 2) * WIDTH * WIDTH * 4 >> 10
    assert kibibytes(path, "Anonymous") == 0
    loaded = worker._model.module.state_dict()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in net.state_dict().items())
    assert all(each.is_leaf for each in worker._model.module.parameters())


def test_large_tensors_lie_where_pytorch_would_put_them(load: Loaded) -> None:
    """The unpacked file is in another order than the packaged one, whose small tensors move all that follow."""
    net = trained()
    _, path = load(NetAdapter, net)
    unpacked = load_file(path)
    assert set(unpacked) == set(net.state_dict())
    assert all(torch.equal(tensor, unpacked[name]) for name, tensor in net.state_dict().items())
    assert all(tensor.data_ptr() % 64 == 0 for tensor in unpacked.values() if tensor.nbytes % 64 == 0)
    packaged = load_file(path.parent.parent / path.name)
    assert packaged["upper.weight"].data_ptr() % 64


@pytest.mark.parametrize("kind", [NetAdapter, Tied, Half, Seen, Twice, Changed])
def test_a_mapped_model_is_a_loaded_one(load: Loaded, kind: type[Adapter]) -> None:
    """Whatever an adapter does: the values, the data types, what is tied, and what sees a parameter's memory."""
    net = trained()
    if kind is Tied:
        net.upper.weight = net.lower.weight
    worker, path = load(kind, net.half() if kind is Half else net)
    before = path.read_bytes()
    mapped, plain = worker._model.module, kind().load(path)
    assert [*dict(mapped.named_parameters())] == [*dict(plain.named_parameters())]
    for name, tensor in plain.state_dict().items():
        assert torch.equal(mapped.state_dict()[name], tensor)
        assert mapped.state_dict()[name].dtype is tensor.dtype
    if kind is Seen:
        assert torch.equal(mapped.window, mapped.lower.weight[:1])  # type: ignore[arg-type, index, union-attr]
    with torch.no_grad():
        for parameter in mapped.parameters():
            parameter.add_(1)
    assert path.read_bytes() == before


REQUESTS = (
    InspectRequest("net", input_gradients=("x",), attributions=(ca.IntegratedGradients(n_steps=2),)),
    InspectRequest("net", edits=(ca.Scale("lower", factor=0.0), ca.Scale("upper", factor=2.0)), compare=True),
    InspectRequest("net", attributions=(ca.LayerGradCam(layer="lower"), ca.LRP())),
)


@pytest.mark.parametrize("kind", [NetAdapter, Writes, Trains, Renormalised, Hooked, Normed])
def test_nobody_else_sees_what_a_model_writes(load: Loaded, kind: type[Adapter]) -> None:
    """Whoever writes to the weights, a request, a forward pass, a hook of loading: the file stays, and so does another
    worker of the same file, which answers as one that has its weights for itself. Requests leave the model as it was,
    unless its own forward pass changes it."""
    net = kind().build() if kind in (Normed, Renormalised) else trained()
    x = {"x": np.random.default_rng(0).standard_normal((3, WIDTH)).astype(np.float32)}
    first, path = load(kind, net)
    before = path.read_bytes()
    second = Worker.load(path.parent, device="cpu")
    loaded = {name: tensor.clone() for name, tensor in second._model.module.state_dict().items()}
    state = State.of(first._model.module)
    for request in REQUESTS:
        with suppress(ca.CutawayError):
            first.inspect(changed(request, tensors=x))
    assert path.read_bytes() == before
    assert kibibytes(path, "Rss") > WIDTH * WIDTH * 4 >> 10
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in second._model.module.state_dict().items())
    if kind is not Writes:
        assert State.of(first._model.module) == state
        asked = InspectRequest("net", tensors=x)
        plain = Worker.of(kind().load(path), "net").inspect(asked)
        assert np.array_equal(second.inspect(asked).predictions["output"], plain.predictions["output"])


def test_answers_are_those_of_plain_weights(load: Loaded) -> None:
    """To the last bit: at other addresses, matrix products round otherwise."""
    net = trained().eval()
    worker, _ = load(NetAdapter, net)
    x = np.random.default_rng(0).standard_normal((3, WIDTH)).astype(np.float32)
    asked = InspectRequest("net", tensors={"x": x}, input_gradients=("x",))
    ours, plain = worker.inspect(asked), Worker.of(TensorAdapter(net), "net").inspect(asked)
    assert np.array_equal(ours.predictions["output"], plain.predictions["output"])
    assert np.array_equal(ours.input_gradients["x"], plain.input_gradients["x"])


def test_a_new_archive_is_tried_without_a_further_copy(tmp_path: Path) -> None:
    """The weights that its owner has take the place of the archive's."""
    weights, directory = tmp_path / "net.safetensors", tmp_path / "unpacked"
    save_file(dict(trained().state_dict()), weights)
    archive = packaged(tmp_path, weights, NetAdapter)
    reader.unpack(archive, directory, weights=weights)
    assert (directory / weights.name).resolve() == weights
    load_once(archive, weights)
