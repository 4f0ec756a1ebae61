"""The gateway over models in this process: the contract's edges, many callers, clients of both kinds."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import grpc
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import TensorAdapter
from cutaway.client.transport import SERVICE
from cutaway.contract.results import ArchiveState, ModelName, UnservedArchive
from cutaway.contract.torchserve_messages import decode_worker_reply
from cutaway.engine.runtime.numerics import to_numpy
from cutaway.gateway import serve
from cutaway.server.model_store import Catalog
from cutaway.server.settings import Settings
from cutaway.v1 import inspection_pb2, inspection_service_pb2, inspection_service_pb2_grpc, tensor_pb2
from tests.support.health import health
from tests.support.small_models import Images, Net
from tests.support.waiting import PATIENCE_S, until

IMAGE = np.random.default_rng(0).random((2, 1, 8, 8), np.float32)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A gateway over one small model."""
    with serve({"net": Images()}) as server:
        yield server.address


def test_generated_stubs_work_against_the_server(address: str) -> None:
    """A client in any language, made from the protos, gets what our own client gets."""
    request = inspection_pb2.InspectRequest(model="net")
    tensor = request.tensors.by_name["image"]
    tensor.data_type, tensor.data = tensor_pb2.DATA_TYPE_FLOAT32, IMAGE.tobytes()
    tensor.shape.extend(IMAGE.shape)
    with grpc.insecure_channel(address) as channel, ca.Client(address) as client:
        stub: Any = inspection_service_pb2_grpc.InspectionServiceStub(channel)
        reply = stub.Inspect(request)
        ours = client.inspect("net", {"image": IMAGE})
    assert reply.predictions.outputs[0].tensor.data == ours.predictions["output"].tobytes()
    assert [each.label for each in reply.predictions.classes] == [each.label for each in ours.classes]


def test_a_server_lasts_across_cells_of_a_notebook() -> None:
    """Without a block: until it is stopped, which may be done twice; a client says where it calls."""
    server = serve({"net": Images()})
    client = ca.Client(server.address)
    assert repr(server) == f"<Served at {server.address}>"
    assert repr(client) == f"<Client of {server.address}>"
    assert client.inspect("net", {"image": IMAGE}).predictions["output"].shape == (2, 10)
    server.stop()
    server.stop()
    with pytest.raises(ca.Unavailable) as caught:
        client.inspect("net", {"image": IMAGE}, timeout=5)
    assert caught.value._render_traceback_() == [f"Unavailable: {caught.value}"]
    client.close()
    assert repr(client) == f"<Client of {server.address}, closed>"
    with serve({"net": Images()}) as again, ca.Client(again.address) as other:
        assert other.list_models()


def test_a_program_that_leaves_its_server_running_ends() -> None:
    """Silently: its end stops the server."""
    program = """
import torch, cutaway as ca
from cutaway.gateway import serve
client = ca.Client(serve({"net": torch.nn.Linear(2, 1)}).address)
print(client.inspect("net", torch.ones(1, 2)).predictions["output"].shape)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "(1, 1)\n", "")


def test_stages_are_timed_and_passes_counted(address: str) -> None:
    """Every stage that ran has its time, waiting included, and provenance counts the passes."""
    with ca.Client(address) as client:
        result = client.inspect("net", {"image": IMAGE}, input_gradients=True, attributions=[ca.Saliency()])
        plain = client.inspect("net", {"image": IMAGE})
    for stage in ("queue_ms", "decode_ms", "forward_ms", "backward_ms", "attribution_ms", "check_ms", "encode_ms"):
        assert getattr(result.timings, stage) > 0, stage
    assert (result.provenance.forwards, result.provenance.backwards) == (2, 2)
    assert (plain.provenance.forwards, plain.provenance.backwards) == (1, 0)


def test_no_graph_is_built_where_no_gradient_is_asked() -> None:
    """A request without gradients runs its one forward pass without autograd."""
    modes: list[bool] = []

    class Watching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            modes.append(torch.is_grad_enabled())
            return x * 2

    with serve({"watching": Watching()}) as server, ca.Client(server.address) as client:
        client.inspect("watching", {"x": np.ones((1, 2), np.float32)}, captures=["**"])
        client.inspect("watching", {"x": np.ones((1, 2), np.float32)}, input_gradients=True)
    assert modes == [False, False, False, True]  # the first request also finds the axis of the rows, in two passes


def test_a_model_shows_its_example_where_it_is_asked_for() -> None:
    """Ready to be asked about; a model without one shows nothing."""
    adapter = Images()
    with serve({"net": adapter, "bare": nn.Identity()}) as server, ca.Client(server.address) as client:
        shown = client.get_model("net", example=True).example
        assert client.get_model("net").example == client.get_model("bare", example=True).example == {}
        assert client.inspect("net", shown).classes
    expected = adapter.example()
    assert expected is not None
    assert shown.keys() == expected.keys()
    assert all(np.array_equal(shown[name], to_numpy(tensor)) for name, tensor in expected.items())


def test_a_model_is_described_once() -> None:
    """The gateway keeps what a worker has told: the next caller waits for no worker. What was not told is asked for."""
    gate, x = Gate(), np.ones((1, 2), np.float32)
    with serve({"gate": gate}) as server, ca.Client(server.address) as client, ThreadPoolExecutor(1) as callers:
        told = client.get_model("gate")
        asked = callers.submit(client.inspect, "gate", {"x": x})
        gate.entered.wait(PATIENCE_S)
        assert client.get_model("gate") == client.get_model("gate/versions/1.0") == told
        with pytest.raises(ca.DeadlineExceeded):
            client.get_model("gate", operators=True, timeout=0.2)
        gate.open.set()
        asked.result()


def test_an_example_that_is_too_large_is_refused() -> None:
    """Before it is sent; the rest of the model is told."""

    class Wide(TensorAdapter):
        def example(self) -> dict[str, Tensor]:
            return {"input": torch.ones(1, 1 << 20)}

    settings = Settings(max_message_bytes=1 << 20)
    with serve({"wide": Wide(nn.Identity())}, settings=settings) as server, ca.Client(server.address) as client:
        assert client.get_model("wide").outputs[0].shape == (1, 1 << 20)
        with pytest.raises(ca.ResourceExhausted) as refused:
            client.get_model("wide", example=True)
    assert refused.value.reason == "REPLY_TOO_LARGE"


def test_async_client_does_what_the_client_does(address: str) -> None:
    """AsyncClient has the same methods, awaited, and the same errors."""

    async def ask() -> None:
        async with ca.AsyncClient(address) as client:
            assert [each.model for each in await client.list_models()] == ["net"]
            assert (await client.get_model("net")).labels == tuple("0123456789")
            assert (await client.get_model("net", example=True)).example.keys() == {"image"}
            several = [client.inspect("net", {"image": IMAGE}, captures=["conv*"]) for _ in range(4)]
            results = await asyncio.gather(*several)
            with pytest.raises(ca.NotFound):
                await client.inspect("nets", {"image": IMAGE})
        with ca.Client(address) as blocking:
            expected = blocking.inspect("net", {"image": IMAGE}, captures=["conv*"])
        for result in results:
            assert np.array_equal(result.captures["conv2"].output, expected.captures["conv2"].output)

    asyncio.run(ask())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_floating_type_arrives_as_it_is(dtype: torch.dtype) -> None:
    """Half, bfloat16, single and double go in as torch tensors and come back as numpy, bit for bit."""
    torch.manual_seed(0)
    module = nn.Linear(3, 2).to(dtype)
    x = torch.randn(4, 3, dtype=dtype)
    with serve({"linear": module}) as server, ca.Client(server.address) as client:
        result = client.inspect("linear", {"input": x}, input_gradients=True, target=1)
    expected = to_numpy(module(x))
    assert result.predictions["output"].dtype == expected.dtype
    assert result.predictions["output"].tobytes() == expected.tobytes()
    assert result.input_gradients["input"].tobytes() == to_numpy(module.weight[1].expand(4, 3)).tobytes()


class Gate(nn.Module):
    """Waits in its forward until it is let go, or for the first call only."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.open = threading.Event()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        """``x``, late."""
        self.calls += 1
        self.entered.set()
        self.open.wait(PATIENCE_S)
        return x


def refused_by_queue(client: ca.Client, x: Any) -> ca.ResourceExhausted | None:
    """The refusal of a full queue; None where the call got a place, and gave it up again."""
    try:
        client.inspect("gate", {"x": x}, timeout=0.05)
    except ca.ResourceExhausted as refusal:
        return refusal
    except ca.DeadlineExceeded:
        return None
    raise AssertionError("the gate is closed")


def placed(client: ca.Client, x: Any) -> ca.InspectResult:
    """The answer of a call that asks for a place until it has one: callers before it may not have left theirs yet."""
    while True:
        try:
            return client.inspect("gate", {"x": x})
        except ca.ResourceExhausted:
            continue


def test_a_full_queue_says_so_and_a_late_row_is_never_run() -> None:
    """Past the queue's length a call is refused at once; a call whose deadline passes while it waits, or whose caller
    hangs up, gives its place free and is not run."""
    gate = Gate()
    x = np.ones((1, 2), np.float32)
    with serve({"gate": gate}, settings=Settings(max_queue_length=2)) as server, ca.Client(server.address) as client:
        with ThreadPoolExecutor(2) as callers:
            first = callers.submit(client.inspect, "gate", {"x": x})
            gate.entered.wait(PATIENCE_S)
            for _ in range(3):
                with pytest.raises(ca.DeadlineExceeded):
                    client.inspect("gate", {"x": x}, timeout=0.1)
            second = callers.submit(placed, client, x)
            refusal = next(filter(None, (refused_by_queue(client, x) for _ in range(1000))))
            assert refusal.reason == "OVERLOADED"
            assert "waiting for this model already" in refusal.message
            gate.open.set()
            assert np.array_equal(second.result().predictions["output"], x)
            assert np.array_equal(first.result().predictions["output"], x)
        assert np.array_equal(client.inspect("gate", {"x": x}).predictions["output"], x)
    assert gate.calls == 2 + 3  # two passes find the axis of the rows


def test_many_callers_of_one_model_never_mix() -> None:
    """Sixteen threads with inputs of their own: each gets the answer to its own question."""
    with serve({"net": Net()}) as server:

        def ask(index: int) -> bool:
            image = np.full((1 + index % 3, 1, 8, 8), index, np.float32)
            with ca.Client(server.address) as client:
                result = client.inspect("net", {"image": image}, captures=[ca.Capture("conv1", at="input")])
            return np.array_equal(result.captures["conv1"].input, image)

        with ThreadPoolExecutor(16) as callers:
            assert all(callers.map(ask, range(64)))


def test_a_model_that_fails_inside_keeps_its_server() -> None:
    """An exception in a model is its caller's error; the model serves on."""

    class Fragile(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if float(x.sum()) < 0:
                raise ValueError("negative sums are beyond me")
            return x

    with serve({"fragile": Fragile()}) as server, ca.Client(server.address) as client:
        with pytest.raises(ca.InvalidArgument, match=r"ValueError on x float32.*beyond me"):
            client.inspect("fragile", {"x": -np.ones((1, 2), np.float32)}, captures=["**"])
        assert client.inspect("fragile", {"x": np.ones((1, 2), np.float32)}).predictions["output"].sum() == 2


def test_an_address_that_is_taken_is_an_error(address: str) -> None:
    """A gateway that cannot listen says where."""
    with pytest.raises(ca.Unavailable, match=f"cannot listen on {address}"), serve({"net": Net()}, address):
        pass


def test_models_with_labels_have_classes() -> None:
    """Labels and probabilities come with the prediction of a model with classes."""
    model = TensorAdapter(nn.Linear(2, 3), labels=("cat", "dog", "emu"))
    with serve({"linear": model}) as server, ca.Client(server.address) as client:
        result = client.inspect("linear", {"input": np.ones((2, 2), np.float32)})
    logits = torch.from_numpy(result.predictions["output"].copy())
    assert [each.index for each in result.classes] == logits.argmax(dim=1).tolist()
    assert [each.label for each in result.classes] == [("cat", "dog", "emu")[i] for i in logits.argmax(dim=1)]
    assert [each.probability for each in result.classes] == pytest.approx(logits.softmax(dim=1).amax(dim=1).tolist())


def test_pages_list_every_model_once() -> None:
    """Whatever the page size, all pages together are all models, in order; bad pages are refused."""
    names = [f"m{index}" for index in range(5)]
    with serve({name: nn.Identity() for name in names}) as server, grpc.insecure_channel(server.address) as channel:
        stub: Any = inspection_service_pb2_grpc.InspectionServiceStub(channel)
        seen, token = [], ""
        while True:
            page = stub.ListModels(inspection_service_pb2.ListModelsRequest(page_size=2, page_token=token))
            seen += [model.model for model in page.models]
            token = page.next_page_token
            if not token:
                break
        assert seen == names
        for bad in ({"page_size": -1}, {"page_token": "x"}, {"page_token": "9" * 5000}):
            with pytest.raises(grpc.RpcError) as caught:
                stub.ListModels(inspection_service_pb2.ListModelsRequest(**bad))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_the_highest_version_is_the_default() -> None:
    """In the order of Python's packages; what has not their form comes before them, and no number is too long."""
    longer = "1.1" + "0" * 5000
    in_order = [longer, "1.²", "2024-09-30", "2024-10-01", "a9", "a10", "1.0rc1", "1.0", "1.0.1", "1.9", "v1.10", "v10"]
    catalog = Catalog([ModelName("m", version) for version in reversed(in_order)])
    assert [each.version for each in catalog.all()] == in_order
    assert catalog.resolve("m").version == "v10"
    assert catalog.resolve("models/m/versions/a9").version == "a9"


def test_a_caller_that_hangs_up_is_not_worked_for(address: str) -> None:
    """A call that is cancelled while it waits is taken out of the queue."""
    gate = Gate()
    x = np.ones((1, 2), np.float32)

    async def hang_up(where: str) -> None:
        async with ca.AsyncClient(where) as client:
            calls = [asyncio.ensure_future(client.inspect("gate", {"x": x})) for _ in range(4)]
            await asyncio.to_thread(gate.entered.wait, 30)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    with serve({"gate": gate}) as server, ca.Client(server.address) as client:
        asyncio.run(hang_up(server.address))
        client.list_models()  # by now the server has heard of it
        gate.open.set()
        client.inspect("gate", {"x": x})
    assert gate.calls < 5


class Blocking(nn.Module):
    """Returns when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_return = threading.Event()

    def forward(self, x: Tensor) -> Tensor:
        self.may_return.wait()
        return x


def test_the_health_of_a_model_that_hangs() -> None:
    """Nothing can end it, but health says so until it goes on; the other model is healthy all the while."""
    model = Blocking()
    settings = Settings(hang_s=0.2, grace_s=0)
    with serve({"blocking": model, "net": Images()}, settings=settings) as server, ca.Client(server.address) as client:
        with pytest.raises(ca.DeadlineExceeded):
            client.inspect("blocking", {"x": np.ones((1, 2), np.float32)}, timeout=0.2)
        until(lambda: health(server.address, "blocking") == "NOT_SERVING")
        assert health(server.address, "net") == "SERVING"
        model.may_return.set()
        until(lambda: health(server.address, "blocking") == "SERVING")


def test_a_model_that_never_returns_does_not_keep_its_server() -> None:
    """Leaving the block ends the server after its grace period, whatever a model is still doing."""
    gate = Gate()
    with serve({"gate": gate}, settings=Settings(grace_s=0.1)) as server, ca.Client(server.address) as client:
        with pytest.raises(ca.DeadlineExceeded):
            client.inspect("gate", {"x": np.ones((1, 2), np.float32)}, timeout=0.2)
        client.close()
    assert not gate.open.is_set()
    gate.open.set()


class Exit(torch.autograd.Function):
    """The identity, with a backward pass that exits."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        sys.exit("no gradient here")


class Exiting(nn.Module):
    """Exits in its forward for positive sums, and in every backward."""

    def forward(self, x: Tensor) -> Tensor:
        if float(x.sum()) > 0:
            sys.exit("too bright")
        return cast(Tensor, Exit.apply(x))


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_exits_ends_its_request_alone(stream: bool) -> None:
    """`sys.exit` in a forward or backward is the model's failure, with its text: no error of the server, nor its
    end."""
    bright, dark = ({"x": np.full((1, 2), value, np.float32)} for value in (1, 0))
    with serve({"exiting": Exiting()}) as server, ca.Client(server.address) as client:
        with pytest.raises(ca.InvalidArgument, match=r"forward raised SystemExit on .*: too bright") as forward:
            client.inspect("exiting", bright, stream=stream)
        with pytest.raises(ca.InvalidArgument, match="backward raised SystemExit: no gradient here") as backward:
            client.inspect("exiting", dark, input_gradients=True, stream=stream)
        assert forward.value.reason == backward.value.reason == "MODEL_FAILED"
        assert client.inspect("exiting", dark, stream=stream).predictions["output"].sum() == 0


@pytest.mark.parametrize("name", ["", "a/b", "9", "a..b"])
def test_a_name_that_cannot_be_asked_for_is_refused(name: str) -> None:
    """A model is not served under a name that no request can carry."""
    with pytest.raises(ca.InvalidArgument, match="is no model name"), serve({name: Net()}):
        pass


def test_models_that_share_modules_are_refused() -> None:
    """Hooks of one would sit in the other."""
    net = Net()
    with pytest.raises(ca.InvalidArgument, match="share modules"), serve({"a": net, "b": nn.Sequential(net)}):
        pass


@pytest.mark.parametrize("method", ["ListModels", "GetModel"])
def test_fields_from_the_future_are_refused_everywhere(address: str, method: str) -> None:
    """A field that this server does not know is an error in every method."""
    with grpc.insecure_channel(address) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{SERVICE}/{method}")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"\xfa\x3e\x01x")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "has no field number 1007" in (caught.value.details() or "")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"inputs": 3}, "got int; send arrays by name"),
        ({"target": 0.5}, "0.5 is no target; send a class index or label"),
        ({"check": "sometimes"}, "'sometimes' is not a choice; there are off, same_pass, independent"),
        ({"edits": [ca.Edit("conv1")]}, "is none of Scale, Add, Replace, Zero, Clamp, Mix"),
        ({"captures": [ca.Capture("conv1", at="outptu")]}, "'outptu' is not a choice; did you mean 'output'?"),  # type: ignore[arg-type]
    ],
)
def test_slips_in_python_are_told_as_such(address: str, asked: dict[str, Any], message: str) -> None:
    """What Python's types would have caught gets a CutawayError with what would be right."""
    inputs = asked.pop("inputs", {"image": IMAGE})
    with ca.Client(address) as client, pytest.raises(ca.InvalidArgument, match=message):
        client.inspect("net", inputs, **asked)


def test_a_bare_name_is_one_name(address: str) -> None:
    """A string where several are taken is one, not its characters."""
    with ca.Client(address) as client:
        result = client.inspect("net", {"image": IMAGE}, captures="conv1", input_gradients="image")
    assert list(result.captures) == ["conv1"]
    assert list(result.input_gradients) == ["image"]


def test_another_handlers_reply_is_not_taken_for_ours() -> None:
    """Bytes that no worker of ours sent are an error, never an empty answer."""
    for foreign in (b"", b"\xff\xfe not ours"):
        with pytest.raises(ca.Internal):
            decode_worker_reply(foreign)


def test_a_version_that_did_not_load_is_told_apart_from_one_that_is_not_there() -> None:
    """Each gets its own reason; the version that serves is not affected."""
    broken = UnservedArchive("m-2.0.mar", "m", "2.0", ArchiveState.FAILED, "no such file")
    damaged = UnservedArchive("m-v3.mar", "", "", ArchiveState.NOT_WHOLE, "m-v3.mar: no zip")
    catalog = Catalog([ModelName("m", "1.0")], [broken, damaged])
    assert catalog.resolve("m").version == "1.0"
    for wanted, reason in (
        ("m/versions/2.0", "MODEL_NOT_LOADED"),
        ("m/versions/4.0", "VERSION_NOT_FOUND"),
        ("m-v3", "MODEL_NOT_LOADED"),
        ("n", "MODEL_NOT_FOUND"),
    ):
        with pytest.raises(ca.NotFound) as caught:
            catalog.resolve(wanted)
        assert caught.value.reason == reason


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_script_from_a_file_is_refused_by_its_reason() -> None:
    """What torch.jit.load returns has no signature to read: it is refused as the ScriptModule that it is."""
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(nn.Linear(3, 2)), file)
    file.seek(0)
    with pytest.raises(ca.FailedPrecondition) as refused, serve({"net": torch.jit.load(file)}):
        pass
    assert refused.value.reason == "MODEL_SCRIPTED"
