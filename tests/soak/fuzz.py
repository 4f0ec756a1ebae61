"""Twenty thousand requests with a byte or more of each changed, to the gateway and to TorchServe's own port."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import grpc

import cutaway as ca
from cutaway.client.request_builder import build_request
from cutaway.client.transport import GatewayTransport, TorchServeTransport
from cutaway.client.trust import Metadata
from cutaway.contract.errors import CutawayError
from cutaway.contract.torchserve_messages import PREDICTIONS, decode_reply, decode_worker_reply, encode_call
from tests.support.mixed import digits
from tests.support.processes import worker
from tests.support.serving import Server
from tests.support.torchserve_port import behind

REQUESTS = 20_000
SEED = 7
PATIENCE_S = 60.0

Send = Callable[[bytes], str]


def trial(server: Server, _: Path) -> list[str]:
    """Every reply is an answer or a reason, none is INTERNAL, nothing hangs, no worker dies."""
    before = worker(server, "digits").pid
    valid = _valid()
    dice = random.Random(SEED)
    lines = []
    torchserve = behind(server)
    with grpc.insecure_channel(server.address) as door, grpc.insecure_channel(torchserve.where) as inner:
        for name, send in {
            "gateway": _front(door),
            "TorchServe's port": _behind(inner, torchserve.metadata),
        }.items():
            found = Counter(send(_changed(dice, dice.choice(valid))) for _ in range(REQUESTS // 2))
            bad = {reason: count for reason, count in found.items() if reason in ("INTERNAL", "HANGS", "DIED")}
            lines.append(f"{name}: {found.total()} requests; " + ", ".join(f"{k} {n}" for k, n in found.most_common()))
            if bad:
                raise AssertionError(f"{lines[-1]}")
    if worker(server, "digits").pid != before:
        raise AssertionError("a worker died")
    return [*lines, "no worker died"]


def _valid() -> list[bytes]:
    inputs = digits.inputs()
    return [
        GatewayTransport().inspect(build_request("digits", kind.inputs or inputs, **kind.asked)).payload
        for kind in digits.KINDS
    ]


def _changed(dice: random.Random, request: bytes) -> bytes:
    """``request`` with some bytes set, dropped, doubled or cut off."""
    data = bytearray(request)
    for _ in range(dice.choice((1, 1, 1, 2, 4, 16))):
        at = dice.randrange(len(data)) if data else 0
        match dice.randrange(5):
            case 0:
                data[at : at + 1] = bytes([dice.randrange(256)])
            case 1:
                data[at : at + dice.randrange(1, 9)] = b""
            case 2:
                data[at:at] = data[at : at + dice.randrange(1, 33)]
            case 3:
                data[at:at] = dice.randbytes(dice.randrange(1, 9))
            case _:
                if dice.random() < 0.1:
                    del data[at:]
    return bytes(data)


def _front(channel: grpc.Channel) -> Send:
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(GatewayTransport().inspect(_asked()).path)
    return lambda data: _reason(lambda: call(data, timeout=PATIENCE_S), GatewayTransport().failure)


def _behind(channel: grpc.Channel, metadata: Metadata) -> Send:
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(PREDICTIONS)

    def send(data: bytes) -> str:
        asked = encode_call("digits", "", {"inspect": data})
        return _reason(
            lambda: decode_worker_reply(decode_reply(call(asked, timeout=PATIENCE_S, metadata=metadata))).response,
            TorchServeTransport().failure,
        )

    return send


def _asked() -> ca.InspectRequest:
    return ca.InspectRequest("digits")


def _reason(ask: Callable[[], object], failure: Callable[..., CutawayError]) -> str:
    try:
        ask()
    except CutawayError as told:
        return told.reason
    except grpc.RpcError as raised:
        code, _ = raised.code().value
        reason = failure(code, raised.details() or "", raised.trailing_metadata() or ()).reason
        return "HANGS" if reason == "DEADLINE_EXCEEDED" else "DIED" if "WORKER" in reason else reason
    return "answered"
