"""The benchmark measures what it says, and says what it measured."""

from __future__ import annotations

import base64
import itertools
import json
import mmap
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import numpy as np
import psutil
import pytest
import torch

import cutaway as ca
from bench import growth, report, servers
from bench.__main__ import PAGE, chosen
from bench.interleaved import in_turn, ratios
from bench.peers.hooks import by_hand
from bench.peers.real_service import ByHand, methods
from bench.pipe import ROOT, CannotRun, Pipe
from bench.real import MODELS, RealAdapter
from bench.requests import MIXED, REQUESTS, STAGES, mixed, payload
from bench.row import Bench, Found, Outcome, Row
from bench.rows import real
from bench.rows.by_hand import EXPLAINED, INSIDE, Question, compare
from bench.rows.inside import added, stop
from bench.rows.large import watched
from bench.rows.loads import Door, Load, over
from bench.rows.table import TABLE
from bench.served import ResNet50
from bench.servers import Store
from cutaway.adapters import TensorAdapter, load_model
from cutaway.client.request_builder import build_request
from cutaway.engine.execution.inspect import inspect
from cutaway.server.worker.worker import Worker
from tests.support.digits import WEIGHTS
from tests.support.serving import START

CUDA = torch.cuda.is_available()


def _row(least: bool, bound: float, unit: str = "") -> Row:
    return Row("a row", "this / that", least, bound, lambda _: Found([1.0]), unit=unit)


@pytest.mark.parametrize(
    ("least", "bound", "rounds", "verdict", "limit"),
    [
        (True, 3, [2.9, 3.0, 9.0], "kept", "≥ 3"),
        (True, 3, [9.0, 2.99, 1.0], "FALLS SHORT", "≥ 3"),
        (False, 1.25, [1.25, 1.0, 8.0], "kept", "≤ 1.25"),
        (False, 1.25, [1.26, 1.26, 0.1], "FALLS SHORT", "≤ 1.25"),
    ],
)
def test_the_median_of_the_rounds_decides(
    least: bool, bound: float, rounds: list[float], verdict: str, limit: str
) -> None:
    """Neither the best round nor the worst; a bound that is just reached is kept."""
    row = _row(least, bound)
    assert Outcome(row, Found(rounds), "", 1.0).verdict == verdict
    assert row.limit() == limit


def test_a_row_that_cannot_run_says_why_and_keeps_nothing() -> None:
    """It is told apart from one that falls short, on the screen, in JSON and on the page."""
    outcome = Outcome(_row(True, 3), None, "no streams here", 1.0)
    (told,) = report.as_json([outcome], 5)["rows"]
    assert told["verdict"] == outcome.verdict == "cannot run"
    assert told["why"] == "no streams here"
    assert "| no streams here | ≥ 3 | cannot run |" in report.markdown([outcome])


def test_json_has_every_round() -> None:
    """Whoever doubts a median finds what it is made of."""
    outcome = Outcome(_row(False, 64, "MiB"), Found([3.0, 1.0, 2.0], {"took": "7 s"}), "", 1.25)
    (told,) = json.loads(json.dumps(report.as_json([outcome], 3)))["rows"]
    assert told["rounds"] == [3.0, 1.0, 2.0]
    assert told["value"] == 2.0
    assert told["aside"] == {"took": "7 s"}
    assert told["bound"] == "≤ 64 MiB"


def test_candidates_run_in_turn_and_another_one_begins_each_round() -> None:
    """None is always the one that runs on a cold, or a warm, machine; the first run of each does not count."""
    ran: list[str] = []

    def run(name: str) -> float:
        ran.append(name)
        return float(len(ran))

    found = in_turn({name: lambda name=name: run(name) for name in "abc"}, 2)  # type: ignore[misc]
    assert "".join(ran) == "abc" + "abc" + "bca"
    assert found == {"a": [4.0, 9.0], "b": [5.0, 7.0], "c": [6.0, 8.0]}


def test_a_ratio_is_of_two_runs_of_the_same_round() -> None:
    """A machine that gets ten times slower in the middle changes no ratio."""
    slow = [1.0, 1.0, 10.0, 10.0, 100.0]
    one, two = iter(slow), iter([2 * each for each in slow])
    assert ratios(lambda: next(one), {"twice": lambda: next(two)}, 4)["twice"] == (2.0, 2.0, 2.0)
    first, second = itertools.cycle([6.0]), itertools.cycle([2.0])
    assert over({"a": lambda: next(first), "b": lambda: next(second)}, 3, "s").rounds == [3.0, 3.0, 3.0]


class _Replies(BaseHTTPRequestHandler):
    """Answers each POST with what it got, or with an error where it got that word."""

    protocol_version = "HTTP/1.1"
    seen: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append(body)
        self.send_response(503 if body == b"error" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def door() -> Iterator[Door]:
    """A server of plain HTTP."""
    _Replies.seen.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Replies) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield Door("http", f"127.0.0.1:{server.server_port}", "text/plain /")
        server.shutdown()


def _sent(*texts: bytes) -> list[str]:
    return [base64.b64encode(text).decode() for text in texts]


def test_callers_share_out_what_is_asked_and_are_counted(door: Door) -> None:
    """The rate is what came back in time; each of two callers asks its own, and one alone asks all in turn."""
    with Pipe("bench.parts.load") as pipe:
        load = Load(pipe)
        both = load.ask(door, _sent(b"one", b"three"), 2, 0.3)
        assert set(_Replies.seen) == {b"one", b"three"}
        assert both["bytes"] == 5
        assert both["rate"] == pytest.approx(len(both["latencies"]) / 0.3)
        assert len(_Replies.seen) - 2 <= len(both["latencies"]) <= len(_Replies.seen)
        _Replies.seen.clear()
        load.ask(door, _sent(b"one", b"two"), 1, 0.3)
        assert _Replies.seen[:4] == [b"one", b"two", b"one", b"two"]


def test_a_reply_that_is_an_error_is_no_call(door: Door) -> None:
    """A server that refuses quickly is not fast: the row cannot run. The callers can be asked again."""
    with Pipe("bench.parts.load") as pipe:
        load = Load(pipe)
        with pytest.raises(CannotRun, match="503"):
            load.ask(door, _sent(b"error"), 1, 0.2)
        assert load.ask(door, _sent(b"fine"), 1, 0.2)["rate"] > 0


def test_a_process_that_ends_is_told_and_one_that_runs_is_ended() -> None:
    """Nothing waits for an answer that never comes, and nothing is left behind."""
    with Pipe("bench.nowhere") as gone, pytest.raises(CannotRun, match=r"bench\.nowhere ended with status 1"):
        gone.hear()
    with Pipe("bench.peers.stream") as peer:
        assert peer.hear().startswith("127.0.0.1:")
        pid = peer.pid
    assert not psutil.pid_exists(pid)


def test_growth_of_a_process_is_seen() -> None:
    """Memory that is held for a moment counts, also when it is gone at the end."""
    mebibyte = 1 << 20
    # New pages: memory that the heap has freed may be the process's already.
    with watched(psutil.Process(os.getpid())) as sizes, mmap.mmap(-1, 96 * mebibyte) as held:
        held.write(os.urandom(mebibyte) * 96)
        while max(sizes) - sizes[0] < 64 * mebibyte:
            time.sleep(0.01)
    assert max(sizes) - sizes[0] >= 64 * mebibyte


def test_hooks_by_hand_and_ours_bring_the_same() -> None:
    """What is compared in the row ``overhead`` is the same work."""
    network = ResNet50(divisor=8).eval()
    pixels = np.random.default_rng(0).standard_normal((1, 3, 64, 64)).astype(np.float32)
    theirs = by_hand(network, torch.from_numpy(pixels), STAGES, lambda logits: logits[:, 0])
    request = ca.InspectRequest(
        "m", captures=tuple(map(ca.Capture, STAGES)), input_gradients=(), target=ca.ClassIndex((0,))
    )
    ours = inspect(load_model(TensorAdapter(network), "cpu"), request, {"pixel_values": torch.from_numpy(pixels)})
    for name in STAGES:
        np.testing.assert_allclose(ours.captures[name].output, theirs[name], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(ours.predictions["output"], theirs["output"], rtol=1e-4, atol=1e-4)
    largest = np.abs(theirs["gradient"]).max()
    np.testing.assert_allclose(ours.input_gradients["pixel_values"], theirs["gradient"], atol=1e-3 * largest)


@pytest.mark.slow
def test_the_service_by_hand_and_ours_answer_alike(tmp_path: Path) -> None:
    """Rows against it compare the same work; where an answer differs, the row cannot run."""
    shutil.copy(WEIGHTS, tmp_path)
    store = Store(tmp_path)
    with (
        servers.cutaway(store.of("digits"), "embedded", **START) as ours,
        servers.by_hand(store.digits_files(tmp_path / "peer")) as theirs,
    ):
        assert not psutil.Process(ours.pid).children()  # no TorchServe
        for question in (INSIDE, EXPLAINED):
            compare(question, ours.address, theirs)
            with pytest.raises(CannotRun, match="tensor 0 of our answer differs"):
                compare(_doubled(question), ours.address, theirs)


def _doubled(question: Question) -> Question:
    return question._replace(tensors=lambda result: [2 * tensor for tensor in question.tensors(result)])


def test_the_sixteen_mixed_questions_differ() -> None:
    """Each caller of the row ``mixed`` asks another method or another layer."""
    asked = [mixed(number)[2]["attributions"][0] for number in range(MIXED)]
    assert len({(type(each), getattr(each, "layer", "")) for each in asked}) == MIXED


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_every_question_can_be_asked(name: str) -> None:
    """Those that callers send as bytes are those that a client would send."""
    given: dict[str, dict[str, Any]]
    given = {"wall": {"mebibytes": 1}, "mixed": {"number": 3}, "real": {"network": "dlrm", "question": "ig"}}
    model, inputs, options = REQUESTS[name](**given.get(name, {}))
    options.pop("stream", None)  # how the reply travels, which is no part of the question
    assert model.encode() in base64.b64decode(payload((model, inputs, options)))


def test_questions_about_real_networks_have_the_same_answers_by_hand() -> None:
    """What is timed against hooks and Captum computes what they compute."""
    by_hand, worker = ByHand("dlrm"), Worker.of(RealAdapter({"network": "dlrm"}), "dlrm")
    for question, answer in methods(by_hand):
        model, inputs, options = REQUESTS["real"]("dlrm", question)
        found = real.arrays("dlrm", question, worker.inspect(build_request(model, inputs, **options)))
        expected = answer(MODELS["dlrm"].rows(0))
        assert len(found) == len(expected) == (7 if question == "inside" else 1 if question == "predict" else 2)
        for one, other in zip(found, expected):
            np.testing.assert_allclose(one.reshape(other.shape), other, atol=1e-4 * np.abs(other).max())


def test_the_tables_of_real_networks_show_what_was_run() -> None:
    """A ratio that misses its bound is bold, and a row that did not run is a dash."""
    rows = {row.name: row for row in real.table(real.Sides())}
    found = {"bert_inside": 1.04, "vit_inside": 1.06, "bert_ig_8": 1.2, "vit_ig_8": 1.4, "unet_cam": 9.0}
    outcomes = [Outcome(rows[name], Found([value]), "", 1.0) for name, value in found.items()]
    tables = {name: table.splitlines() for name, table in report.real_tables(outcomes).items()}
    assert tables["real"][2:4] == [
        "| BERT-base, 128 tokens | – | 1.04 | – | – | – | – |",
        "| ViT-B/16, 224×224 | – | **1.06** | – | – | – | – |",
    ]
    assert tables["real_8"][2].count("**1.20**") == tables["real_8"][3].count("| 1.40 |") == 1
    assert tables["real"][5].endswith("| 9.00 |")


def test_the_page_has_a_place_for_each_table() -> None:
    """What the bench writes is seen, and the rest of the page is left alone."""
    page = PAGE.read_text("utf-8")
    names = ("real", "real_8", "ratios", "machine", "stages", "growth", "capacity")
    written = report.between(page, {name: f"here is {name}" for name in names})
    assert all(f"<!-- {name} -->\nhere is {name}\n<!-- end of {name} -->" in written for name in names)
    assert report.between("a <!-- x -->\nold\n<!-- end of x --> b", {"x": "new"}) == (
        "a <!-- x -->\nnew\n<!-- end of x --> b"
    )


def test_rows_have_names_of_their_own_and_those_for_a_gpu_need_one() -> None:
    """`--only` names one row, or several as a glob; without a GPU nothing fails for want of one, unless it is named."""
    names = [row.name for row in (*TABLE, *real.table(real.Sides()))]
    assert len(set(names)) == len(names)
    assert [row.name for row in chosen(["lstm_ig_*"], [*real.table(real.Sides())])] == [
        *("lstm_ig_8", "lstm_ig_checked", "lstm_ig_checked_8"),
    ]
    with pytest.raises(SystemExit, match="no row is named stopp"):
        chosen(["stop", "stopp"])
    assert [row.name for row in chosen(["stop", "stop_cuda"])] == ["stop", "stop_cuda"]
    assert any(row.device == "cuda" for row in chosen(None)) == CUDA
    assert {row.name for row in TABLE if row.device == "cpu"} <= {row.name for row in chosen(None)}


@pytest.mark.skipif(CUDA, reason="there is a GPU, and the row would run")
@pytest.mark.slow
def test_the_command_says_what_cannot_run_and_fails(tmp_path: Path) -> None:
    """Exit status 1, a table for people and JSON for programs."""
    file = tmp_path / "deep" / "found.json"
    command = [sys.executable, "-m", "bench", "1", "--only", "stop_cuda", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "cannot run" in done.stdout
    (row,) = json.loads(file.read_text())["rows"]
    assert (row["name"], row["verdict"], row["why"]) == ("stop_cuda", "cannot run", "no GPU here")


@pytest.mark.parametrize(("wanted", "rate", "workers"), [(100, 50, 3), (70, 100, 1), (71, 100, 2), (1, 1000, 1)])
def test_capacity_is_planned_at_seven_tenths(wanted: float, rate: float, workers: int) -> None:
    """As many workers as keep each of them busy for no more than 0.7 of its time, rounded up."""
    assert growth.workers(wanted, rate) == workers


def test_stages_and_the_rest_are_the_whole() -> None:
    """What no stage accounts for is shown, not lost."""
    table = growth.stage_table({"a question": {"queue_ms": 1.0, "forward_ms": 2.5, "whole_ms": 5.0}})
    assert table.splitlines()[0] == "| question, ms | queue | forward | the rest | whole |"
    assert table.splitlines()[2] == "| a question | 1.00 | 2.50 | 1.50 | 5.00 |"


def test_the_plot_is_drawn(tmp_path: Path) -> None:
    """A picture comes of what grew, also where a sweep begins at zero; the table has the same numbers."""
    found = {"captures": growth.Grown([0, 3], [1.0, 2.0]), "rows": growth.Grown([1, 64], [1.0, 9.5])}
    growth.plot(found, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
    assert "| rows | 1: 1, 64: 9.5 |" in growth.growth_table(found)


def test_what_is_added_is_compared_and_noise_is_no_result() -> None:
    """The model's own time is in neither side; captures that seem to cost nothing keep no bound."""
    assert added([1.0, 5.0], [3.0, 7.0], [2.0, 9.0], [3.0, 10.0]) == [2.0, 2.0]
    with pytest.raises(CannotRun, match="too busy"):
        added([1.0, 5.0], [3.0, 7.0], [2.0, 9.0], [1.9, 10.0])
    with pytest.raises(CannotRun, match="too busy"):
        added([4.0, 5.0], [3.0, 7.0], [2.0, 9.0], [3.0, 10.0])


@pytest.mark.slow
def test_in_process_rows_measure_something(tmp_path: Path) -> None:
    """A row's rounds are as many as asked, positive, and told aside with their units."""
    found = stop(Bench(Store(tmp_path), 1, "cpu"))
    assert len(found.rounds) == 1
    assert 0 < found.middle < 1
    assert set(found.aside) == {"stopped", "plain"}
