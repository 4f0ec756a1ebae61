"""All 1,797 digits through every engine: the same values, whoever computes; and what each took."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from cutaway.jobs import Job, Results, Summary, read, run
from examples.digits.data import held_out, training
from tests.support.serving import Server

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


def trial(server: Server, store: Path) -> list[str]:
    """Three jobs; every row is in each of them, and every value the same."""
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
