"""Replies in pieces, packed: the same numbers in fewer bytes, and no packed damage that goes unseen."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.client.transport import ReplyStream, read_piece
from cutaway.contract.errors import Reason
from cutaway.contract.requests import InspectRequest
from cutaway.contract.results import InspectResult
from cutaway.contract.tensors import compress
from cutaway.contract.wire.chunks import MAX_CHUNK_BYTES, Piece, as_message, chunk_piece, decode_chunk
from cutaway.gateway import serve
from tests.support.worker_calls import pieces_of

X = np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3)


class Mixed(nn.Module):
    """Inside: what packs well, what does not, whole numbers, half numbers, and nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn(2, 500_000, generator=torch.Generator().manual_seed(0))
        steps = torch.arange(600_000).reshape(2, -1)
        self.inner({"flat": noise.relu().round(), "noise": noise, "steps": steps, "half": noise.half(), "no": x[:, :0]})
        return x


@pytest.fixture(scope="module")
def client() -> Iterator[ca.Client]:
    with serve({"mixed": Mixed()}) as server, ca.Client(server.address) as connected:
        yield connected


@pytest.mark.parametrize("compression", ["", "zstd"])
def test_packed_pieces_are_the_reply(client: ca.Client, compression: str) -> None:
    """Bit for bit, in fewer bytes where the numbers allow it."""
    plain = client.inspect("mixed", {"x": X}, captures=["inner"], stream=False).captures["inner"].calls[0]
    with client.inspect_stream("mixed", {"x": X}, captures=["inner"], compression=compression) as reply:
        found = reply.result().captures["inner"].calls[0]
    for path, array in plain.leaves[ca.Point.OUTPUT].items():
        there = found.leaves[ca.Point.OUTPUT][path]
        assert (there.dtype, there.shape) == (array.dtype, array.shape)
        assert there.tobytes() == array.tobytes()
    whole = sum(array.nbytes for array in plain.leaves[ca.Point.OUTPUT].values())
    assert (reply.reply_bytes < 0.75 * whole) is bool(compression)


RESULT = InspectResult(predictions={"out": np.zeros((1, 400_000), np.float32)})


def pieces() -> list[Piece]:
    """Header, two packed chunks, trailer."""
    made = pieces_of(RESULT, "zstd")
    assert len(made) == 4
    return made


def test_a_chunk_says_how_it_is_packed_and_counts_unpacked_bytes() -> None:
    """The contract: ``offset`` is where the bytes go once they are unpacked; what does not shrink is sent as it is."""
    first, second = (decode_chunk(as_message(each).joined()) for each in pieces()[1:3])
    assert first is not None
    assert second is not None
    assert (first.compression, second.compression) == ("zstd", "zstd")
    assert (first.offset, second.offset) == (0, MAX_CHUNK_BYTES)
    noise = np.random.default_rng(0).bytes(300_000)
    incompressible = InspectResult(predictions={"out": np.frombuffer(noise, np.uint8).reshape(1, -1)})
    (chunk,) = (decode_chunk(as_message(each).joined()) for each in pieces_of(incompressible, "zstd")[1:2])
    assert chunk is not None
    assert chunk.compression == ""


PACKED = {
    "no frame": b"\0" * 40,
    "half a frame": compress(bytes(MAX_CHUNK_BYTES), 4, "zstd")[:20],
    "a frame of too much": compress(bytes(4_000_000), 4, "zstd"),
    "a frame of half an element": compress(bytes(MAX_CHUNK_BYTES + 2), 1, "zstd"),
    "a frame of other bytes": compress(b"\1" * MAX_CHUNK_BYTES, 4, "zstd"),
}


@pytest.mark.parametrize("name", list(PACKED))
def test_packed_damage_is_seen(name: str) -> None:
    """Also a frame that claims more than there is room for, before any of it is unpacked."""
    header, _, second, trailer = pieces()
    spoilt = [header, chunk_piece(0, 0, memoryview(PACKED[name]), "zstd"), second, trailer]
    messages = (read_piece(as_message(each).joined()) for each in spoilt)
    with pytest.raises(ca.CutawayError) as caught:
        ReplyStream(lambda *_: messages, 60, InspectRequest("")).result()
    assert caught.value.reason == Reason.INTERNAL
    assert "did not arrive as it was sent" in caught.value.message
