"""Packed tensors: fewer bytes, the same numbers, and no bytes that break or fill the reader."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import cutaway as ca
from cutaway.client.request_builder import build_request
from cutaway.contract.errors import CutawayError, InvalidArgument, Reason
from cutaway.contract.requests import InspectRequest
from cutaway.contract.results.arrays import by_name
from cutaway.contract.results.arrays import tensors as tensors_of
from cutaway.contract.tensors import DTYPES, Array, compress, decompress, to_bytes
from cutaway.contract.wire import requests as wire_requests
from cutaway.contract.wire import scalars
from cutaway.gateway import serve
from cutaway.server.worker.call import Call
from cutaway.v1 import inspection_pb2, tensor_pb2
from tests.support.contract_fields import asked, refusal
from tests.support.wire_strategies import canonical, tensor_message, tensors
from tests.support.worker_calls import REPLY_BYTES, outcome, response, row, worker

SMOOTH = np.linspace(0, 1, 4096, dtype=np.float32).reshape(4, 1024)
ZSTD = tensor_pb2.COMPRESSION_ZSTD


@settings(deadline=None, max_examples=200)
@given(tensors(), st.integers(1, 40))
def test_packed_tensor_survives_the_wire(array: Array, copies: int) -> None:
    """A tensor of any data type, shape and layout comes out of its packing bit for bit."""
    whole = np.stack([array] * copies)
    received = scalars.read(tensor_pb2.Tensor.FromString(tensor_message(whole, "zstd").SerializeToString()))
    assert canonical(received) == canonical(whole)


@pytest.mark.parametrize("name", DTYPES)
def test_packing_is_what_the_contract_says(name: str) -> None:
    """A client in another language can unpack: one Zstandard frame of the elements' first bytes, then their second
    bytes, and so on."""
    array = (np.arange(500) % 7).astype(DTYPES[name])
    message = tensor_message(array, "zstd")
    assert message.compression == ZSTD
    planes = zstandard.decompress(message.data)
    elements = [planes[first :: array.size] for first in range(array.size)]
    assert b"".join(elements) == to_bytes(array)
    assert len(message.data) < array.nbytes / 2


@pytest.mark.parametrize(
    "array",
    [np.random.default_rng(0).bytes(4096), bytes(16), b""],
    ids=["noise", "few", "none"],
)
def test_what_packing_does_not_make_smaller_is_sent_as_it_is(array: bytes) -> None:
    """A tensor costs no more for having been packed, and its reader no time."""
    message = tensor_message(np.frombuffer(array, np.uint8), "zstd")
    assert (message.data, message.compression) == (array, tensor_pb2.COMPRESSION_UNSPECIFIED)
    assert compress(array, 1, "zstd") == array


def frame(data: bytes, *, sized: bool = True) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=sized).compress(data)


GOOD = frame(bytes(4096))
HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "no frame": b"\x00" * 100,
    "cut off": GOOD[:-2],
    "further bytes": GOOD + b"\x00",
    "two frames": GOOD + GOOD,
    "too small": frame(bytes(4095)),
    "too large": frame(bytes(4097)),
    "far too large": frame(bytes(1 << 28)),
    "too small, and silent": frame(bytes(4095), sized=False),
    "far too large, and silent": frame(bytes(1 << 28), sized=False),
    "a petabyte promised": b"\x28\xb5\x2f\xfd\xe0" + (1 << 50).to_bytes(8, "little") + b"\x01\x00\x00",
    "a skippable frame": b"\x50\x2a\x4d\x18" + (4096).to_bytes(4, "little") + bytes(4096),
    "damaged": GOOD[:-3] + bytes(byte ^ 0x5A for byte in GOOD[-3:]),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_packed_bytes_hold_what_the_shape_says_or_are_refused(data: bytes) -> None:
    """Damaged bytes, and those that hold more or fewer than the shape needs, are an error that names them; and never
    more is made of them than the shape says."""
    with pytest.raises(InvalidArgument, match="packed bytes") as caught:
        decompress(data, 4, 4096, "zstd")
    assert caught.value.reason == Reason.TENSOR_SIZE
    tensor = {"data_type": tensor_pb2.DATA_TYPE_FLOAT32, "shape": [1024], "data": data, "compression": ZSTD}
    failure = refusal(asked(tensors={"by_name": {"x": tensor}}))
    assert failure is not None
    assert (failure.reason, failure.field) == (Reason.TENSOR_SIZE, "tensors.by_name.x.data")


def test_frame_that_does_not_state_its_size_is_read() -> None:
    """What a client packed as a stream, not knowing its size beforehand, is as good."""
    assert decompress(frame(bytes(range(8)), sized=False), 2, 8, "zstd") == bytes([0, 4, 1, 5, 2, 6, 3, 7])


def test_bytes_that_are_not_packed_are_as_many_as_was_said() -> None:
    """What is sent as it is, because packing made it no smaller, is held to its size as well."""
    assert decompress(b"abcd", 2, 4, "") == b"abcd"
    with pytest.raises(InvalidArgument, match="hold 3 bytes, and 4 are needed"):
        decompress(b"abc", 2, 4, "")


def test_part_of_an_element_is_refused() -> None:
    """Bytes that are no whole number of elements cannot be put in order: an error, and no crash."""
    with pytest.raises(InvalidArgument, match="6 bytes are no whole number of elements of 4"):
        decompress(frame(bytes(6)), 4, 6, "zstd")


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=200), st.integers(0, 4096), st.sampled_from([1, 2, 4, 8]))
def test_no_bytes_break_the_reader(data: bytes, size: int, itemsize: int) -> None:
    """Whatever bytes come, they are unpacked to the size that was said, or refused."""
    try:
        plain = decompress(data, itemsize, size, "zstd")
    except InvalidArgument:
        return
    assert len(plain) == size


def packed_request(array: Array) -> inspection_pb2.InspectRequest:
    message = inspection_pb2.InspectRequest(model="m")
    message.tensors.by_name["input"].CopyFrom(tensor_message(array, "zstd"))
    return message


def test_request_may_be_packed() -> None:
    """The answer to a packed question is that to the plain one."""
    net = worker(nn.Tanh())
    message = packed_request(SMOOTH)
    assert len(message.SerializeToString()) < SMOOTH.nbytes * 0.7
    from_packed, from_plain = (
        outcome(reply) for reply in net.answer([Call("inspect", message.SerializeToString()), row({"input": SMOOTH})])
    )
    assert isinstance(from_packed, ca.InspectResult)
    assert isinstance(from_plain, ca.InspectResult)
    assert np.array_equal(from_packed.predictions["output"], from_plain.predictions["output"])


def test_few_bytes_do_not_become_a_request_past_the_limit() -> None:
    """What is packed counts as what it becomes: the limit of a message's size is one of the memory that it takes; a
    shape that is none makes up for no other."""
    rows = REPLY_BYTES // 16
    message = packed_request(np.zeros((rows, 4), np.float32))
    at_limit = Call("inspect", message.SerializeToString())
    message.tensors.by_name["other"].CopyFrom(tensor_message(np.zeros(64, np.float32), "zstd"))
    past = Call("inspect", message.SerializeToString())
    message.tensors.by_name["other"].shape[:] = [-(2**40)]
    message.tensors.by_name["third"].CopyFrom(tensor_message(np.zeros(64, np.float32), "zstd"))
    beside = Call("inspect", message.SerializeToString())
    assert len(past.payload) < REPLY_BYTES / 1000
    passed, *refused = (outcome(reply) for reply in worker(Head()).answer([at_limit, past, beside]))
    assert isinstance(passed, ca.InspectResult)
    for failure in refused:
        assert isinstance(failure, CutawayError)
        assert failure.reason == Reason.REQUEST_TOO_LARGE
        assert f"{REPLY_BYTES + 256} bytes once unpacked, {REPLY_BYTES} are allowed" in failure.message


def test_a_shape_of_many_axes_is_not_multiplied() -> None:
    """The product of a million sizes takes minutes: such a shape is refused by the number of its axes."""
    message = packed_request(np.zeros(64, np.float32))
    message.tensors.by_name["input"].shape[:] = [2] * 64
    (failure,) = (outcome(reply) for reply in worker(Head()).answer([Call("inspect", message.SerializeToString())]))
    assert isinstance(failure, CutawayError)
    assert (failure.reason, failure.message) == (Reason.INPUT_SHAPE, "64 axes; at most 32 are allowed")


class Head(nn.Module):
    """A few numbers of many."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return input[:, :1].sum().reshape(1).expand(len(input))[:, None][:, :0]


def test_packed_reply_is_the_plain_one_in_fewer_bytes() -> None:
    """Every tensor of a reply, wherever it is, comes out of its packing bit for bit, through a server and all."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 300))
    what: dict[str, Any] = {
        "captures": [
            ca.Capture("?", at=("output", "grad_output")),
            ca.Capture("2", at="input", reduce=ca.TopElements(200)),
        ],
        "input_gradients": True,
        "attributions": [ca.IntegratedGradients(n_steps=4), ca.LayerActivation(layer="1")],
        "seed": 1,
    }
    with serve({"net": net}) as server, ca.Client(server.address) as client:
        plain, small = (
            client.inspect("net", {"input": SMOOTH}, compression=compression, **what) for compression in ("", "zstd")
        )
    assert by_place(small) == by_place(plain)
    sizes = [
        len(response(reply))
        for reply in worker(net).answer([row({"input": SMOOTH}, compression=each, **what) for each in ("", "zstd")])
    ]
    assert sizes[1] < 0.8 * sizes[0]


def by_place(result: ca.InspectResult) -> dict[str, object]:
    return {name: canonical(entry.array) for name, entry in by_name(tensors_of(result)).items()}


def test_unknown_compression_is_refused_before_anything_is_sent() -> None:
    """The client says what there is, also of a complete request."""
    with pytest.raises(InvalidArgument, match="'gzip' is none of zstd") as caught:
        wire_requests.encode(InspectRequest("m", {"x": SMOOTH}, compression="gzip"))
    assert (caught.value.reason, caught.value.field) == (Reason.INVALID_VALUE, "options.compression")
    with pytest.raises(InvalidArgument, match="'gzip' is not a choice; there are zstd") as caught:
        build_request("m", {"x": SMOOTH}, compression="gzip")
    assert (caught.value.reason, caught.value.field) == (Reason.INVALID_VALUE, "compression")


def test_client_without_the_library_says_so_before_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who could not read the answer does not ask: the error says what to install. Nothing else needs the library."""
    monkeypatch.setitem(sys.modules, "zstandard", None)
    wire_requests.encode(build_request("m", {"x": SMOOTH}))
    with pytest.raises(InvalidArgument, match=r"pip install 'cutaway\[zstd\]'") as caught:
        wire_requests.encode(build_request("m", {"x": SMOOTH}, compression="zstd"))
    assert (caught.value.reason, caught.value.field) == (Reason.INVALID_VALUE, "options.compression")
    assert tensor_message(SMOOTH).compression == tensor_pb2.COMPRESSION_UNSPECIFIED
