"""One guard for every door: who asks which model, then room, then counts, then conversion beside other calls."""

from __future__ import annotations

import http.client
import io
import json
import select
import socket
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest

from cutaway.client.transport import SERVICE
from cutaway.contract.wire import grpc_status
from cutaway.contract.wire.message_walk import prefix
from cutaway.server.open_inference.datatypes import SERVICE as OPEN_INFERENCE
from cutaway.server.open_inference.datatypes import messages
from cutaway.v1 import inspection_pb2, tensor_pb2
from tests.support.serving import Server, package, serving
from tests.support.token_files import EVERY, entry, write

pytestmark = pytest.mark.skipif(not psutil.LINUX, reason="the peak of a process's memory is read from /proc")

MEBIBYTE = 1 << 20
LARGEST = 64 * MEBIBYTE
CALLER_BYTES = 128 * MEBIBYTE
PATIENCE_S = 120.0
SLACK = 16 * MEBIBYTE
"""For what is no call: allocators, connections, and the bystander."""

ADAPTER = """
import torch
from torch import nn
from cutaway.adapters import Adapter
from cutaway.contract.results import InputSpec

class Wide(nn.Module):
    def forward(self, x):
        return x.repeat(1, 65536)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.fc = Wide(), nn.Linear(4, 3)

    def forward(self, x):
        self.wide(x)
        return self.fc(x)

class Net(Adapter):
    inputs = (InputSpec("x", "float32", (-1, 4)),)
    media_types = ("text/plain",)

    def build(self):
        torch.manual_seed(0)
        return Model()

    def example(self):
        return {"x": torch.ones(1, 4)}

    def decode(self, data, media_type):
        return {"x": torch.ones(1, 4)}
"""


PREDICT, EXPLAIN, INSPECT, PROGRAM = (f"/v1/models/net:{verb}" for verb in ("predict", "explain", "inspect", "program"))
INFER, CONNECT = "/v2/models/net/infer", f"/{SERVICE}/Inspect"
MODEL_INFER = f"/{OPEN_INFERENCE}/ModelInfer"
SMALL = b'{"instances": [[1, 2, 3, 4]]}'


@dataclass
class Site:
    """A server under attack: its gateway's process runs no model, and has ``idle`` bytes."""

    server: Server
    idle: int = 0

    def post(self, path: str, body: bytes, kind: str = "application/json", token: str = "greedy", **more: str) -> str:
        """The status and the reason."""
        headers = {"content-type": kind, "authorization": f"Bearer {token}"}
        connection = http.client.HTTPConnection(self.server.http_address, timeout=300)
        connection.request("POST", path, body, {**headers, **{key.replace("_", "-"): own for key, own in more.items()}})
        reply = connection.getresponse()
        said = reply.read()
        connection.close()
        told = json.loads(said) if reply.status != 200 else {}
        return f"{reply.status} {told.get('reason') or told.get('code', '')}".strip()

    def call(self, path: str, data: bytes, *, token: str = "greedy") -> str:
        """The same by gRPC."""
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
        ]
        with grpc.insecure_channel(self.server.address, options=options) as channel:
            send: Any = channel.unary_unary(path)
            try:
                send(data, metadata=[("authorization", f"Bearer {token}")], timeout=300)
            except grpc.RpcError as failure:
                told: Any = failure
                code, details, trailers = told.code().value[0], told.details(), told.trailing_metadata()
                return f"{told.code().name} {grpc_status.decode(code, details, trailers).reason}"
            return "OK"

    @contextmanager
    def measured(self) -> Iterator[Measured]:
        """What the block costs others, and the gateway."""
        status = Path(f"/proc/{self.server.process.pid}")
        measured = Measured()
        process = psutil.Process(self.server.process.pid)
        before = process.memory_info().rss
        (status / "clear_refs").write_text("5")  # the peak begins anew
        over = threading.Event()
        bystander = threading.Thread(target=self._ask_until, args=(over, measured.waits))
        bystander.start()
        begin = time.monotonic()
        try:
            yield measured
        finally:
            measured.took = time.monotonic() - begin
            over.set()
            bystander.join()
        peak = next(line for line in (status / "status").read_text().splitlines() if line.startswith("VmHWM"))
        measured.grown = int(peak.split()[1]) * 1024 - before

    def settle(self) -> bool:
        """Wait until the gateway has given back what is free, which would be used again and not show; for 30 seconds.

        Return whether it has.
        """
        rss = psutil.Process(self.server.process.pid).memory_info
        end = time.monotonic() + 30.0
        while rss().rss > self.idle + SLACK:
            if time.monotonic() > end:
                return False
            time.sleep(0.03)
        return True

    def _ask_until(self, over: threading.Event, waits: list[float]) -> None:
        while not over.is_set():
            begin = time.monotonic()
            assert self.post(PREDICT, SMALL, token="modest") == "200"
            waits.append(time.monotonic() - begin)
            over.wait(0.01)


@dataclass
class Measured:
    """The seconds that a bystander's calls took, those of the whole, and how much the gateway's memory grew."""

    waits: list[float] = field(default_factory=list)
    took: float = 0.0
    grown: int = 0

    def check(self, calls: int = 1) -> None:
        """The bound of memory; and nobody waits as long as an attacker who waits for long.

        A busy machine of two cores stops a caller for more than a second by itself; a gateway that an attack
        stops is stopped for as long as the attack takes, which is far longer.
        """
        assert self.grown <= 3 * LARGEST * calls + SLACK, f"{self.grown >> 20} MiB for {calls} calls"
        assert max(self.waits) < max(4.0, self.took / 2), f"{max(self.waits):.2f} s of {self.took:.2f} s"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("doors")
    (folder / "adapter.py").write_text(ADAPTER)
    package(folder / "store", "net", f"{folder / 'adapter.py'}:Net", random_weights=True)
    callers = [entry(name, {"*": EVERY}) for name in ("greedy", "modest")]
    path = write(folder / "tokens.toml", *callers, entry("nobody", {}), entry("predicts", {"*": ["predict"]}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUTAWAY_TOKENS", str(path))
        patch.setenv("CUTAWAY_MAX_QUEUE_BYTES", str(2 * CALLER_BYTES))
        patch.setenv("CUTAWAY_LOG_FORMAT", "json")
        # glibc maps by itself what is large, until such a block is freed; then the block in which gRPC gathers a
        # message grows within the heap, and leaves up to half a message of holes. Here copies are counted.
        patch.setenv("GLIBC_TUNABLES", f"glibc.malloc.mmap_threshold={4 * MEBIBYTE}")
        with serving(folder / "store", folder / "logs", "--engine=processes", "--http=127.0.0.1:0") as server:
            started = Site(server)
            assert started.post(PREDICT, SMALL) == "200"
            yield Site(server, psutil.Process(server.process.pid).memory_info().rss)


# Attacks: the door, what is sent, and what is said. Bodies are made when they are sent.

Attack = tuple[Callable[[Site], str], str]


def posted(path: str, body: Callable[[], bytes], said: str, kind: str = "application/json", **more: str) -> Attack:
    return lambda site: site.post(path, body(), kind, **more), said


def called(body: Callable[[], bytes], said: str, path: str = MODEL_INFER) -> Attack:
    return lambda site: site.call(path, body()), said


def fields(**values: bytes) -> bytes:
    """A JSON object; the values are JSON already."""
    return b"{" + b", ".join(b'"%s": %s' % (name.encode(), value) for name, value in values.items()) + b"}"


def listed(element: bytes, count: int) -> bytes:
    return b"[" + b",".join(repeat(element, count)) + b"]"


ONES = b"[[1, 2, 3, 4]]"
OBJECTS = listed(b"{}", 5_000_000)
SOME_OBJECTS = listed(b"{}", 120_000)
VALUES = listed(b"0", 2_000_000)
NESTED = b"[" * 200 + b"]" * 200
TEXTS = b'["' + b"a" * 20_000 + b'"' + b',""' * 80_000 + b"]"  # 6 GiB as an array of numpy


def v2(data: bytes = ONES[1:-1], datatype: bytes = b"FP32", **more: bytes) -> bytes:
    tensor = fields(name=b'"x"', datatype=b'"%s"' % datatype, shape=b"[1, 4]", data=data)
    return fields(inputs=b"[" + tensor + b"]", **more)


def inside(captures: bytes) -> bytes:
    """The parameter `cutaway`, which holds JSON in a text."""
    return fields(cutaway=json.dumps(fields(captures=captures).decode()).encode())


def sent(datatype: str, shape: list[int], raw: bytes | None = None, **more: Any) -> Any:
    message = messages.ModelInferRequest(model_name="net")
    message.inputs.add(name="x", datatype=datatype, shape=shape)
    if raw is not None:
        message.raw_input_contents.append(raw)
    for name in more.get("outputs", ()):
        message.outputs.add(name=name)
    if "cutaway" in more:
        message.parameters["cutaway"].string_param = more["cutaway"]
    return message


def in_contents(elements: int) -> bytes:
    """Whole numbers of one byte each, in the field for numbers."""
    message = sent("INT64", [elements])
    contents = message.inputs[0].contents
    contents.int64_contents.extend([0])
    small = contents.SerializeToString()
    assert small == b"\x1a\x01\x00"
    message.inputs[0].ClearField("contents")
    tensor = message.inputs[0].SerializeToString() + delimited(5, delimited(3, bytes(elements)))
    message.ClearField("inputs")
    return bytes(message.SerializeToString() + delimited(5, tensor))


def delimited(number: int, data: bytes) -> bytes:
    return prefix(number, len(data)) + data


def form(*parts: tuple[str, bytes]) -> bytes:
    """Files have the name `instances`."""
    written = []
    for name, data in parts:
        file = '; filename="f"' if name == "instances" else ""
        written.append(
            f'--XbX\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + data + b"\r\n"
        )
    return b"".join(written) + b"--XbX--\r\n"


FORM = "multipart/form-data; boundary=XbX"


def many_members() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for number in range(50_000):
            archive.writestr(str(number), b"")
    return file.getvalue()


BAD, LARGE = "400 INVALID_VALUE", "413 REQUEST_TOO_LARGE"

ATTACKS: dict[str, Attack] = {
    "predict, objects": posted(PREDICT, lambda: fields(instances=ONES, captures=OBJECTS), LARGE),
    "predict, fewer objects": posted(PREDICT, lambda: fields(instances=ONES, captures=SOME_OBJECTS), BAD),
    "predict, lists": posted(PREDICT, lambda: fields(instances=listed(b"[]", 5_000_000)), LARGE),
    "predict, values": posted(PREDICT, lambda: fields(instances=VALUES), LARGE),
    "predict, depth": posted(PREDICT, lambda: fields(instances=NESTED), "400 MALFORMED_REQUEST"),
    "predict, objects in UTF-16": posted(
        PREDICT,
        lambda: fields(instances='["\u2200"]'.encode(), captures=listed(b"{}", 2_000_000)).decode().encode("utf-16"),
        "400 MALFORMED_REQUEST",
    ),
    "predict, objects behind escapes": posted(
        PREDICT, lambda: fields(instances=rb'["\\", "\\\"[", "a"]', captures=SOME_OBJECTS), BAD
    ),
    "predict, names": posted(
        PREDICT, lambda: fields(**{str(number): b"1" for number in range(500_000)}), "400 INVALID_VALUE"
    ),
    "predict, texts": posted(PREDICT, lambda: fields(instances=b"[" + TEXTS + b"]"), "400 INPUT_DTYPE"),
    "predict, texts of an edit": posted(
        PREDICT,
        lambda: fields(instances=ONES, edits=b'[{"edit": "replace", "module": "fc", "tensor": ' + TEXTS + b"}]"),
        BAD,
    ),
    "explain, texts of baselines": posted(
        EXPLAIN, lambda: fields(instances=ONES, options=b'{"baselines": {"x": ' + TEXTS + b"}}"), BAD
    ),
    "inspect, objects": posted(INSPECT, lambda: fields(captures=OBJECTS), LARGE),
    "inspect, fewer objects": posted(INSPECT, lambda: fields(captures=SOME_OBJECTS), BAD),
    "inspect, fields": posted(INSPECT, lambda: b"\x2a\x00" * 5_000_000, BAD, "application/proto"),
    "program, objects": posted(PROGRAM, lambda: fields(captures=OBJECTS), LARGE),
    "program, fewer objects": posted(PROGRAM, lambda: fields(captures=SOME_OBJECTS), BAD),
    "connect, objects": posted(CONNECT, lambda: fields(model=b'"net"', captures=OBJECTS), "429 resource_exhausted"),
    "connect, fields": posted(
        CONNECT, lambda: b"\x0a\x03net" + b"\x2a\x00" * 5_000_000, "400 invalid_argument", "application/proto"
    ),
    "grpc, fields": called(
        lambda: b"\x0a\x03net" + b"\x2a\x00" * 5_000_000, "INVALID_ARGUMENT INVALID_VALUE", f"/{SERVICE}/Inspect"
    ),
    "form, parts": posted(PREDICT, lambda: form(*repeat(("instances", b""), 100_000)), BAD, FORM),
    "form, JSON": posted(PREDICT, lambda: form(("captures", OBJECTS), ("instances", b"x")), LARGE, FORM),
    "form, bytes of JSON": posted(
        PREDICT, lambda: form(("captures", b" " * 30_000_000), ("instances", b"")), LARGE, FORM
    ),
    "form, boundaries": posted(
        PREDICT, lambda: form(("instances", b"\r\n--Xb" * 8_000_000))[:-3], "400 MALFORMED_REQUEST", FORM
    ),
    "form, head": posted(PREDICT, lambda: b"--XbX\r\n" + b"X: a\r\n" * 8_000_000, "400 MALFORMED_REQUEST", FORM),
    "npz, members": posted(PREDICT, many_members, BAD, "application/x-npz"),
    "v2, texts": posted(INFER, lambda: v2(TEXTS), BAD),
    "v2, values": posted(INFER, lambda: v2(VALUES), LARGE),
    "v2, outputs": posted(INFER, lambda: v2(outputs=listed(b'{"name": "wide"}', 1000)), BAD),
    "v2, more outputs": posted(INFER, lambda: v2(outputs=listed(b'{"name":""}', 1_000_000)), LARGE),
    "v2, parameters": posted(
        INFER, lambda: v2(parameters=fields(**{str(number): b"1" for number in range(400_000)})), BAD
    ),
    "v2, request in a text": posted(INFER, lambda: v2(parameters=inside(OBJECTS)), LARGE),
    "v2, fewer in a text": posted(INFER, lambda: v2(parameters=inside(SOME_OBJECTS)), BAD),
    "v2 by grpc, outputs": called(
        lambda: sent("FP32", [1, 4], bytes(16), outputs=["output"] * 1000).SerializeToString(),
        "INVALID_ARGUMENT INVALID_VALUE",
    ),
    "v2 by grpc, request in a text": called(
        lambda: sent("FP32", [1, 4], bytes(16), cutaway=fields(captures=OBJECTS).decode()).SerializeToString(),
        "RESOURCE_EXHAUSTED REQUEST_TOO_LARGE",
    ),
    "v2 by grpc, elements": called(
        lambda: sent("BYTES", [15_000_000], bytes(60_000_000)).SerializeToString(), "INVALID_ARGUMENT INVALID_VALUE"
    ),
    "v2 by grpc, contents": called(lambda: in_contents(60_000_000), "INVALID_ARGUMENT INVALID_VALUE"),
    "v2 by grpc, fewer contents": called(lambda: in_contents(8_000_000), "RESOURCE_EXHAUSTED REQUEST_TOO_LARGE"),
    "v2 by grpc, fields": called(lambda: b"\x0a\x03net" + b"\x3a\x00" * 5_000_000, "INVALID_ARGUMENT INVALID_VALUE"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_what_multiplies_is_counted_first(site: Site, name: str) -> None:
    """It is refused in words, within the bound of memory, and others are answered meanwhile."""
    attack, said = ATTACKS[name]
    with site.measured() as measured:
        assert attack(site) == said
    measured.check()


@pytest.mark.slow
def test_nothing_of_what_was_refused_is_kept(site: Site) -> None:
    """No error keeps its request in a circle of references, which lives until the next garbage collection."""
    for name in "v2 by grpc, fewer contents", "predict, names", "connect, objects", "program, objects":
        attack, said = ATTACKS[name]
        for _ in range(3):
            assert attack(site) == said
        assert site.settle(), name


def rows(count: int) -> np.ndarray[Any, Any]:
    return np.ones((count, 4), np.float32)


MANY = rows(2_250_000)  # 36 MB, whose name no input of the model has
NAME = "y"


def npy(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz(compressed: bool) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, y=MANY)
    return file.getvalue()


def contract() -> bytes:
    tensor = tensor_pb2.Tensor(data_type=tensor_pb2.DATA_TYPE_FLOAT32, shape=MANY.shape, data=MANY.tobytes())
    message = inspection_pb2.InspectRequest(model="net")
    message.tensors.by_name[NAME].CopyFrom(tensor)
    return message.SerializeToString()


def v2_binary() -> tuple[bytes, int]:
    size = {"binary_data_size": MANY.nbytes}
    tensor = {"name": NAME, "datatype": "FP32", "shape": MANY.shape, "parameters": size}
    head = json.dumps({"inputs": [tensor]}).encode()
    return head + MANY.tobytes(), len(head)


def v2_head(site: Site) -> str:
    body, head_bytes = v2_binary()
    return site.post(INFER, body, "application/octet-stream", inference_header_content_length=str(head_bytes))


def renamed() -> bytes:
    message = sent("FP32", list(MANY.shape), MANY.tobytes())
    message.inputs[0].name = NAME
    return bytes(message.SerializeToString())


UNKNOWN = "400 INPUT_UNKNOWN"

LARGE_REQUESTS: dict[str, Attack] = {
    "npy": posted(PREDICT, lambda: npy(MANY.reshape(-1, 3)), "400 INPUT_SHAPE", "application/x-npy"),
    "npz": posted(PREDICT, lambda: npz(compressed=False), UNKNOWN, "application/x-npz"),
    "npz, compressed": posted(PREDICT, lambda: npz(compressed=True), UNKNOWN, "application/x-npz"),
    "form": posted(PREDICT, lambda: form(*repeat(("instances", bytes(6 * MEBIBYTE)), 6)), "200", FORM),
    "inspect": posted(INSPECT, contract, UNKNOWN, "application/proto"),
    "connect": posted(CONNECT, contract, "400 invalid_argument", "application/proto"),
    "v2": (v2_head, UNKNOWN),
    "v2 by grpc": called(renamed, "INVALID_ARGUMENT INPUT_UNKNOWN"),
    "grpc": called(contract, "INVALID_ARGUMENT INPUT_UNKNOWN", f"/{SERVICE}/Inspect"),
}


@dataclass(frozen=True)
class ByGrpc:
    """How much the gateway's memory grows for the largest request and the largest reply by gRPC, in bytes."""

    request: int
    reply: int


@pytest.fixture(scope="module")
def by_grpc(site: Site) -> ByGrpc:
    grown = []
    for body, said in ((contract, "INVALID_ARGUMENT INPUT_UNKNOWN"), (asked, "OK")):
        site.settle()
        several = []
        for _ in range(3):  # memory that was free before is used again, and does not show
            with site.measured() as measured:
                assert site.call(f"/{SERVICE}/Inspect", body()) == said
            several.append(measured.grown)
        grown.append(max(several))
    return ByGrpc(*grown)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE_REQUESTS)
def test_the_largest_request_takes_no_more_than_by_grpc(site: Site, by_grpc: ByGrpc, name: str) -> None:
    """Whatever its form: it is translated with one copy, and what was sent is free then."""
    ask, said = LARGE_REQUESTS[name]
    with site.measured() as measured:
        assert ask(site) == said
    assert measured.grown <= by_grpc.request + SLACK, f"{measured.grown >> 20} MiB, {by_grpc.request >> 20} by gRPC"


WIDE = [{"module": "wide"}]
FEW = rows(36)  # which are 36 MiB of "wide"


def asked() -> bytes:
    message = inspection_pb2.InspectRequest(model="net")
    message.tensors.by_name["x"].CopyFrom(
        tensor_pb2.Tensor(data_type=tensor_pb2.DATA_TYPE_FLOAT32, shape=FEW.shape, data=FEW.tobytes())
    )
    message.captures.add(module="wide")
    return message.SerializeToString()


def v2_wide(**more: Any) -> bytes:
    parameters = {"cutaway": json.dumps({"captures": WIDE}), **more}
    tensor = {"name": "x", "datatype": "FP32", "shape": FEW.shape, "data": FEW.ravel().tolist()}
    return json.dumps({"parameters": parameters, "inputs": [tensor]}).encode()


def predicted(accept: str, said: str) -> Attack:
    body = json.dumps({"instances": FEW.tolist(), "captures": ["wide"]}).encode()
    return posted(PREDICT, lambda: body, said, accept=accept)


REPLY = "413 REPLY_TOO_LARGE"

LARGE_REPLIES: dict[str, Attack] = {
    "predict": predicted("application/json", REPLY),
    "predict, npz": predicted("application/x-npz", "200"),
    "inspect": posted(INSPECT, asked, "200", "application/proto"),
    "inspect, json": posted(INSPECT, asked, REPLY, "application/proto", accept="application/json"),
    "connect": posted(CONNECT, asked, "200", "application/proto"),
    "v2": posted(INFER, v2_wide, REPLY),
    "v2, bytes": posted(INFER, lambda: v2_wide(binary_data_output=True), "200"),
    "v2 by grpc": called(
        lambda: sent(
            "FP32", list(FEW.shape), FEW.tobytes(), cutaway=json.dumps({"captures": WIDE})
        ).SerializeToString(),
        "OK",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE_REPLIES)
def test_the_largest_reply_takes_one_copy_more_than_by_grpc(site: Site, by_grpc: ByGrpc, name: str) -> None:
    """JSON of more than a million numbers is refused before it is made."""
    ask, said = LARGE_REPLIES[name]
    with site.measured() as measured:
        assert ask(site) == said
    assert measured.grown <= by_grpc.reply + MANY.nbytes + SLACK, f"{measured.grown >> 20} MiB, {by_grpc.reply >> 20}"


# Who, and which model; then room.

WITHOUT_BODY = {
    "unknown model": ("greedy", "/v1/models/nope:predict", "404 MODEL_NOT_FOUND"),
    "unknown model, program": ("greedy", "/v1/models/nope:program", "404 MODEL_NOT_FOUND"),
    "unknown model, v2": ("greedy", "/v2/models/nope/infer", "404 MODEL_NOT_FOUND"),
    "no scope": ("nobody", PREDICT, "404 MODEL_NOT_FOUND"),
    "no scope, program": ("nobody", PROGRAM, "404 MODEL_NOT_FOUND"),
    "no scope, v2": ("nobody", INFER, "404 MODEL_NOT_FOUND"),
    "no scope to explain": ("predicts", EXPLAIN, "403 SCOPE_MISSING"),
    "stranger": ("stranger", PREDICT, "401 TOKEN_INVALID"),
    "too large": ("greedy", PREDICT, "413 REQUEST_TOO_LARGE"),
}


@contextmanager
def announced(site: Site, path: str, token: str, size: int, kind: str = "application/json") -> Iterator[socket.socket]:
    """A connection on which the head of a request has been sent."""
    host, port = site.server.http_address.split(":")
    with socket.create_connection((host, int(port)), timeout=300) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {kind}\r\nAuthorization: Bearer {token}\r\n"
        connection.sendall(f"{head}Content-Length: {size}\r\n\r\n".encode())
        yield connection


def answer(connection: socket.socket) -> str:
    reply = http.client.HTTPResponse(connection)
    reply.begin()
    return f"{reply.status} {json.loads(reply.read())['reason']}"


@pytest.mark.parametrize("name", WITHOUT_BODY)
def test_who_may_not_ask_is_told_before_the_request_is_sent(site: Site, name: str) -> None:
    """The body is never sent: the reply comes all the same."""
    token, path, said = WITHOUT_BODY[name]
    with announced(site, path, token, LARGEST + 1) as connection:
        assert answer(connection) == said


def test_a_token_without_a_model_gets_no_json_converted(site: Site) -> None:
    """By Connect, whose request names the model in its body."""
    with site.measured() as measured:
        body = fields(captures=listed(b"{}", 90_000))
        assert site.post(CONNECT, body, token="nobody") == "404 not_found"
    assert measured.grown < SLACK


def test_bytes_are_counted_while_they_arrive(site: Site) -> None:
    """Bodies without their last byte take a caller's room, and no more, at all doors together; others have theirs."""
    size, piece = LARGEST // 2, bytes(MEBIBYTE)
    paths = [PREDICT, INSPECT, PROGRAM, CONNECT, INFER] * 4
    with site.measured() as measured, ExitStack() as stack, ThreadPoolExecutor(len(paths)) as senders:
        connections = [stack.enter_context(announced(site, path, "greedy", size, _form(path))) for path in paths]

        def send(connection: socket.socket) -> bool:
            """Whether all but the last byte went out; what is refused may be closed before."""
            try:
                for _ in range(size // len(piece) - 1):
                    connection.sendall(piece)
                connection.sendall(piece[1:])
            except ConnectionError:
                return False
            return True

        silent = [connection for connection, sent in zip(connections, senders.map(send, connections)) if sent]
        most = CALLER_BYTES // size
        while len(silent) > most and (answered := select.select(silent, [], [], PATIENCE_S)[0]):
            silent = [connection for connection in silent if connection not in answered]
            assert all(_refused(connection) for connection in answered)
    assert 0 < len(silent) <= most
    assert measured.grown <= 3 * CALLER_BYTES + SLACK, f"{measured.grown >> 20} MiB"


def _refused(connection: socket.socket) -> bool:
    try:
        return connection.recv(1000).startswith(b"HTTP/1.1 429")
    except ConnectionError:
        return True


def _form(path: str) -> str:
    return "application/proto" if path == CONNECT else "application/json"


HEAVY: dict[str, Attack] = {
    "program": posted(PROGRAM, lambda: fields(captures=listed(b'{"module": "fc"}', 10_000)), "200"),
    "inspect": posted(INSPECT, lambda: fields(captures=listed(b"{}", 40_000)), BAD),
    "predict": posted(PREDICT, lambda: fields(instances=ONES, captures=listed(b'"fc"', 20_000)), "413 LIMIT_EXCEEDED"),
    "v2": posted(INFER, lambda: v2(parameters=inside(listed(b"{}", 40_000))), BAD),
}


AGAIN = 10
"""How often the question below is asked: a busy machine stops a caller for longer than a conversion, by itself."""


@pytest.mark.parametrize(
    "name", [each if each == "inspect" else pytest.param(each, marks=pytest.mark.slow) for each in HEAVY]
)
def test_a_caller_fills_no_threads_that_others_need(site: Site, name: str) -> None:
    """Beside six allowed conversions of one caller, another caller's is answered before the first of them is done."""
    ask, said = HEAVY[name]
    modest = fields(instances=ONES, arguments=fields(**{f"a{number}": b"1" for number in range(500)}))

    def comes_first() -> bool:
        with ThreadPoolExecutor(6) as greedy:
            heavy = [greedy.submit(ask, site) for _ in range(6)]
            time.sleep(0.1)  # until they are in the threads
            site.post(PREDICT, modest, token="modest")
            first = not any(each.done() for each in heavy)
            assert {each.result() for each in heavy} == {said}
        return first

    with site.measured() as measured:
        assert any(comes_first() for _ in range(AGAIN))
    measured.check(calls=6)
