"""Jobs: killed at moments that chance chose, a million rows, the same digits by every engine, the tokens of texts."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as parquet

from cutaway.jobs import Job, Results, Summary, Watcher, read, report, run
from examples.digits.data import held_out, training
from examples.sentences.package import package
from tests.support.jobs import alike
from tests.support.killed_job import begun, ended, job_file
from tests.support.manifests import ROOT
from tests.support.serving import Server

KILLS = 20
DIGITS = 360
ROWS = 1_000_000
SHARD_ROWS = 16_384
MOST_GROWTH = 64 << 20
"""Bytes: what an allocator keeps for itself comes and goes."""


def trial(_: Server, store: Path) -> list[str]:
    """A killed job ends as if nothing had been; a long one takes no more memory than a short one."""
    return [*_killed(store), *_long(store)]


def _killed(store: Path) -> list[str]:
    moments = random.Random()
    start = time.monotonic()
    status, _, err = ended(begun(job_file(store, store, DIGITS, "whole")))
    whole_s = time.monotonic() - start
    if status:
        raise AssertionError(err)
    for number in range(KILLS):
        job = job_file(store, store, DIGITS, f"killed-{number}")
        process = begun(job)
        time.sleep(moments.uniform(0, whole_s))
        process.kill()
        process.communicate()
        there = len(list((store / f"killed-{number}").glob("part-*")))
        status, out, err = ended(begun(job))
        if status or (there and f"{there} of" not in out):
            raise AssertionError(f"after a kill with {there} shards on disk: {err or out}")
        alike(read(store / f"killed-{number}"), read(store / "whole"))
    return [f"{KILLS} jobs killed between 0 and {whole_s:.1f} s and run again: every value as in one that was not"]


class Made:
    """Rows that are made when they are read."""

    rows = ROWS
    columns = ("image",)
    fingerprint = "0" * 64

    def read(self, start: int, stop: int, columns: Sequence[str]) -> dict[str, Any]:
        numbers = np.random.default_rng(start)
        return {"image": numbers.random((stop - start, 1, 8, 8), np.float32)}


class Weighing(Watcher):
    """Notes how much memory this process has after each shard."""

    def __init__(self) -> None:
        self.bytes: list[int] = []

    def on_shard(self, summary: Summary) -> None:
        self.bytes.append(psutil.Process().memory_info().rss)


def _long(store: Path) -> list[str]:
    weighing = Weighing()
    job = Job(
        model={"archive": store / "digits-1.0.mar"},
        data=Made(),
        inputs={"image": {"column": "image"}},
        request={"attributions": [{"method": "saliency"}]},
        output={"folder": store / "long", "shard_rows": SHARD_ROWS},
        engine={"kind": "local", "batch": 1024},
    )
    summary = run(job, weighing)
    quarter = len(weighing.bytes) // 4
    growth = max(weighing.bytes[-quarter:]) - max(weighing.bytes[:quarter])  # one shard alone may be a dip
    sizes = [path.stat().st_size for path in (store / "long").glob("part-*")]
    if summary.rows != ROWS or summary.bad or growth > MOST_GROWTH:
        raise AssertionError(f"{summary.rows} rows, {summary.bad} bad, memory grew by {growth >> 20} MiB")
    return [
        f"{ROWS:,} rows in {summary.seconds:.0f} s: memory grew by {growth >> 20} MiB from the first "
        f"quarter to the last, to {max(weighing.bytes) >> 20} MiB; {len(sizes)} files, the largest has "
        f"{max(sizes) >> 20} MiB"
    ]


CLOSE = 1e-6
"""Relative to the largest value of a tensor, or to 1 for single numbers: a delta is what rounding leaves of a score."""

REQUEST: dict[str, Any] = {
    "attributions": [
        {"method": "integrated_gradients", "n_steps": 64},
        {"method": "saliency"},
        {"method": "layer_grad_cam", "layer": "conv2"},
    ],
    "captures": [{"layer": "fc1"}],
    "check": "same_pass",
}


def engines(server: Server, store: Path) -> list[str]:
    """All 1,797 digits by three engines: every row is in each of them, and every value the same."""
    data = store.parent / "digits.parquet"
    images = np.concatenate([training().images, held_out().images])
    labels = np.concatenate([training().labels, held_out().labels])
    parquet.write_table(pa.table({"pixels": list(images.reshape(len(images), -1)), "digit": labels}), data)
    archive = {"archive": store / "digits-1.0.mar"}
    models = {"local": archive, "ray": archive, "service": {"address": server.address, "name": "digits"}}
    summaries: dict[str, Summary] = {}
    for engine, model in models.items():
        job = Job(
            model=model,
            data={"path": str(data)},
            inputs={"image": {"column": "pixels", "shape": (1, 8, 8)}},
            label={"column": "digit"},
            request=REQUEST,
            output={"folder": store.parent / engine, "shard_rows": 256},
            engine={"kind": engine},
        )
        summaries[engine] = run(job)
    lines = [f"{name}: {each.rows} rows, {each.seconds:.1f} s; {each.verdicts}" for name, each in summaries.items()]
    results = {name: read(store.parent / name) for name in summaries}
    for other in ("ray", "service"):
        far = {name: _apart(results["local"], results[other], name) for name in results["local"]}
        worst = max(far, key=far.__getitem__)
        lines.append(f"{other} beside local: {far[worst]:.1e} apart at most, at {worst}")
        if set(results[other]) != set(far) or max(far.values()) > CLOSE:
            raise AssertionError("\n".join(lines))
    if any(each.rows != len(images) or each.bad for each in summaries.values()):
        raise AssertionError("\n".join(lines))
    return lines


def _apart(one: Results, other: Results, name: str) -> float:
    """How far two columns are apart, as `CLOSE` says; words must be the same."""
    ours, theirs = one[name], other[name]
    if ours.dtype.kind != "f" or one.about(name)["kind"] in ("check", "error"):
        return 0.0 if np.array_equal(ours, theirs) else np.inf
    single = ours.ndim == 1
    ours, theirs = (each.reshape(len(each), -1).astype(np.float64) for each in (ours, theirs))
    largest = np.maximum(np.abs(ours).max(axis=1, keepdims=True), 1.0 if single else 0.0)
    return float((np.abs(ours - theirs) / np.maximum(largest, np.finfo(np.float32).tiny)).max())


PAGES = (
    "README.md",
    *(f"docs/{name}.md" for name in ("architecture", "checks", "security", "operations", "batch", "inspector")),
)
FEWEST = 200


def sentences(directory: Path) -> list[str]:
    """MiniLM over this project's documentation: every sentence has a number for each of its tokens, and a place on the
    page."""
    sentences = _sentences()
    (directory / "sentences.csv").write_text("\n".join(["text", *(f'"{each}"' for each in sentences)]), "utf-8")
    package(directory)
    folder = directory / "explained"
    job = Job(
        model={"archive": directory / "sentences-1.0.mar"},
        data={"path": str(directory / "sentences.csv")},
        inputs={"raw": {"column": "text", "media_type": "text/plain"}},
        target={"class_index": 7},
        request={
            "attributions": [
                {"method": "layer_gradient_x_activation", "layer": "embeddings.word_embeddings"},
                {"method": "layer_integrated_gradients", "layer": "embeddings.word_embeddings", "n_steps": 16},
            ],
        },
        output={"folder": folder, "shard_rows": 64, "keep_inputs": True},
        engine={"kind": "local", "batch": 16},
    )
    summary = run(job)
    results = read(folder)
    tokens = results["tokens"]
    attributions = results["attribution:layer_gradient_x_activation:embeddings.word_embeddings"]
    longest = max(len(each) for each in tokens)
    fitting = [len(each) <= np.shape(values)[0] for each, values in zip(tokens, attributions)]
    page = report(folder)
    lines = [
        f"{summary.rows} sentences, {summary.bad} bad, {summary.seconds:.0f} s; {summary.verdicts}",
        f"tokens: {sum(map(len, tokens))}, {longest} at most",
        f"page: {page.stat().st_size / 2**20:.1f} MiB",
    ]
    if summary.rows < FEWEST or summary.bad or not all(fitting):
        raise AssertionError("\n".join(lines))
    return lines


def _sentences() -> list[str]:
    """Whole sentences of prose, without code, tables or quotation marks."""
    found: list[str] = []
    for page in PAGES:
        text = re.sub(r"```.*?```", "", (ROOT / page).read_text("utf-8"), flags=re.DOTALL)
        prose = [part for part in text.split("\n\n") if not re.match(r"[#|<!\-]", part.strip())]
        prose = [re.sub(r"\[(.*?)\]\(.*?\)|[*`]", r"\1", part) for part in prose]
        whole = re.split(r"(?<=[.?!])\s+", " ".join(" ".join(prose).split()))
        found += [each for each in whole if len(each.split()) > 3 and '"' not in each]
    return list(dict.fromkeys(found))
