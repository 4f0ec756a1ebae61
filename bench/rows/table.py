"""The table of rows: name, bound and measuring function."""

from __future__ import annotations

from functools import partial

from bench.row import Row
from bench.rows import by_hand, doors, inside, jobs, large, loads
from bench.rows.by_hand import EXPLAINED, INSIDE


def _beside_grpc(name: str, words: str, ask: doors.Ask, least: float, most: float) -> tuple[Row, Row]:
    """Returns the rows of a protocol: the rate of many callers, and the latency of a lone one, against gRPC."""
    return (
        Row(name, f"digits, 3 captures and the input's gradient, 32 callers: calls/s {words} / by gRPC", True, least,
            partial(doors.rate, ask=ask)),
        Row(f"{name}_lone", f"p50 of a lone caller: {words} / by gRPC", not most, most, partial(doors.lone, ask=ask)),
    )  # fmt: skip


TABLE = (
    Row("overhead", "ResNet-50, 3 captures and the input's gradient: p50 through gateway and TorchServe / "
        "hand-written hooks in process", False, 1.25, inside.overhead),
    Row("prediction_first", "ResNet-50: time to the prediction in a stream with three explanations / without any "
        "(--engine processes)", False, 1.2, inside.prediction_first),
    Row("batching", "digits, 3 captures and the input's gradient, 32 callers: calls/s with batching / without",
        True, 3, loads.batching),
    Row("ceiling", "the same calls/s / a TorchServe that echoes as many bytes", True, 0.5, loads.ceiling),
    Row("lone", "p50 of a lone caller: with batching / without", False, 1.15, loads.lone),
    Row("large", "a capture of 64 MiB, to numpy at the client: throughput / a bare grpc.aio stream", True, 0.5,
        large.large),
    Row("unary", "the same throughput / one unary reply of TorchServe", True, 5, large.unary),
    Row("memory", "growth of the gateway while a reply of 1 GiB passes", False, 64, large.memory, unit="MiB"),
    Row("hooks", "12 captures in a 12-layer MLP: what they add to forward / what nnsight 0.8 adds", False, 1,
        inside.hooks),
    Row("stop", "capture at layer 3 of 12 and nothing else / a full forward", False, 0.4, inside.stop),
    Row("explain_rest", "integrated gradients, 64 steps, digits, 8 callers: calls/s / TorchServe's stock "
        "handler and REST /explanations", True, 3, loads.explain_rest),
    Row("explain_litserve", "the same calls/s / LitServe with the same network and Captum, in JSON", True, 3,
        loads.explain_litserve),
    Row("by_hand_lone", "digits, 3 captures and the input's gradient: p50 of a lone caller / a service by hand", False,
        2, partial(by_hand.lone, engine="torchserve")),
    Row("by_hand_lone_processes", "the same, ours without TorchServe (--engine processes)", False, 2,
        partial(by_hand.lone, engine="processes")),
    Row("by_hand_lone_embedded", "the same, ours in one process (--engine embedded)", False, 1.6,
        partial(by_hand.lone, engine="embedded")),
    Row("by_hand_8", "the same request, 8 callers: calls/s / a service by hand", True, 1.1,
        partial(by_hand.rate, question=INSIDE, callers=8)),
    Row("by_hand_32", "the same, 32 callers", True, 1.5, partial(by_hand.rate, question=INSIDE, callers=32)),
    Row("by_hand_explain_8", "integrated gradients, 64 steps, digits, 8 callers: calls/s / a service by hand", True,
        1.6, partial(by_hand.rate, question=EXPLAINED, callers=8)),
    Row("by_hand_explain_32", "the same, 32 callers", True, 3,
        partial(by_hand.rate, question=EXPLAINED, callers=32)),
    Row("check", "integrated gradients, 64 steps: time with the default check / without", False, 1.25, inside.check),
    Row("mixed", "16 callers, each another method and layer: calls/s / the same calls one after another", True, 1.5,
        loads.mixed),
    Row("check_same_pass", "an attribution with a check in the same pass / alone: median over methods", False, 1.25,
        inside.check_same_pass),
    Row("check_independent", "an attribution with an independent check / alone: median over methods", False, 2.2,
        inside.check_independent),
    *(row for protocol in doors.PROTOCOLS for row in _beside_grpc(*protocol)),
    Row("jobs", "1,797 digits, three methods: a batch job / the same batches through Captum in a loop by hand: speed",
        True, 0.8, jobs.local),
    Row("jobs_ray", "the same job with checks, by two Ray workers / by one process: speed", True, 0, jobs.ray),
    Row("overhead_cuda", "overhead, on a GPU", False, 1.25, inside.overhead, device="cuda"),
    Row("stop_cuda", "stop, on a GPU", False, 0.4, inside.stop, device="cuda"),
    Row("check_cuda", "check, on a GPU", False, 1.25, inside.check, device="cuda"),
)  # fmt: skip
