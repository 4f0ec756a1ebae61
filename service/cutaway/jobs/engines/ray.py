"""Writes shards with copies of the model on a Ray cluster, through Ray Data; shards of a lost node are run again.

Only the numbers of shards and their counts travel. Workers read the data set and write results themselves, so both must
have the same path on every node. Shards are tasks, not calls of actors: the calls of a dead actor wait for its restart.
The whole job would wait with them if no other node has room.
https://docs.ray.io/en/latest/data/api/doc/ray.data.Dataset.map_batches.html
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.jobs import spec
from cutaway.jobs.engines import local
from cutaway.jobs.shards import JobModel, ShardWriter, Task, Tick, Written, read_counts, source_of, write_error
from cutaway.server.ray import plan as ray_variables

_OBJECT_STORE_BYTES = 128 << 20
"""The size of the object store of a cluster that is started here: little data travels."""

_MAX_BLOCKS = 4096
"""The most blocks, which Ray Data distributes; up to this number, a shard is a block."""


def work(task: Task, model: JobModel, shards: Sequence[int], tick: Tick) -> Iterator[Written]:
    """Writes ``shards`` with the job's number of workers; each loads its own model instead of ``model``."""
    engine = task.job.engine
    if not shards or not isinstance(engine, spec.Ray):
        return
    with _cluster(engine) as ray:
        numbers = ray.data.from_items(
            [{"shard": shard} for shard in shards], override_num_blocks=min(len(shards), _MAX_BLOCKS)
        )
        outcomes = numbers.map_batches(
            _run_batch,
            fn_args=(task,),
            batch_size=1,
            compute=ray.data.TaskPoolStrategy(size=engine.workers),
            num_cpus=engine.cpus,
            num_gpus=engine.gpus or None,
            max_calls=0,  # a process keeps its copy of the model for the next shard, on a GPU too
        )
        try:
            for row in outcomes.iter_rows():
                outcome = json.loads(row["outcome"])
                if "error" in outcome:
                    reason, message, field = outcome["error"]
                    raise error(Reason(reason), message, field)
                written = Written(**outcome)
                tick(written.rows)
                yield written
        except ray.exceptions.RayError as failure:
            what = f"Ray failed: {type(failure).__name__}: {failure}"[:500]
            raise error(Reason.JOB_INTERRUPTED, what, "engine") from None


def _run_batch(batch: Mapping[str, Any], task: Task) -> dict[str, Any]:
    """Runs in a worker; returns the outcomes of shards as JSON."""
    return {"outcome": np.array([json.dumps(_run(task, int(shard))) for shard in batch["shard"]])}


def _run(task: Task, shard: int) -> dict[str, Any]:
    """Writes ``shard`` and returns its counts, or an error as text: Ray would retry a task that raises."""
    try:
        # If Ray lost the outcome of a task, it runs the task again; then the file exists.
        written = read_counts(task.folder.part(shard)) or _writer(task).write(shard, lambda _: None)
        return written._asdict()
    except (CutawayError, OSError) as failure:
        failed = write_error(failure) if isinstance(failure, OSError) else failure
        return {"error": [failed.reason, failed.message, failed.field]}


_open = ExitStack()
_writers: dict[str, ShardWriter] = {}
"""The writer of this process, by the manifest's digest and the folder.

A worker serves one driver as long as the driver runs, and its jobs one after the other.
"""


def _writer(task: Task) -> ShardWriter:
    """Returns the writer of this worker process. Loads the model at the job's first shard, and keeps the model."""
    key = f"{task.manifest.digest} {task.folder.path}"
    if key not in _writers:
        _open.close()
        _writers.clear()
        torch.set_num_threads(max(1, int(task.job.engine.cpus)) if isinstance(task.job.engine, spec.Ray) else 1)
        model = _open.enter_context(local.opened(task.job))
        _writers[key] = ShardWriter(task, model, source_of(task.job))
    return _writers[key]


@contextmanager
def _cluster(engine: spec.Ray) -> Iterator[Any]:
    """Connects to the cluster that this process already uses, else to the job's, else to a new one on this machine.

    Raises:
        CutawayError: Ray is not installed, there is no such cluster, or no node has room for a worker.
    """
    ray = import_ray()
    if ray.is_initialized():
        _check_size(ray, engine)
        yield ray
        return
    options = {} if engine.address else {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
    try:
        ray.init(address=engine.address or "local", log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as failure:  # Ray's processes that do not start are a bare Exception
        what = f"no Ray cluster at {engine.address or 'this machine'}: {failure}"
        raise error(Reason.JOB_INTERRUPTED, what, "engine.address") from None
    try:
        _check_size(ray, engine)
        yield ray
    finally:
        ray.shutdown()


def import_ray() -> Any:
    """Returns the module ``ray``.

    Raises:
        CutawayError: Ray is not installed.
    """
    ray_variables.prepare()
    try:
        import ray.data
    except ImportError:
        what = "the engine ray needs Ray: pip install 'cutaway[ray]'"
        raise error(Reason.INVALID_VALUE, what, "engine.kind") from None
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # watchers get the progress, and callers the errors
    ray.data.DataContext.get_current().enable_progress_bars = False
    return ray


def _check_size(ray: Any, engine: spec.Ray) -> None:
    """Raises an error if no living node of the cluster has the resources of a worker."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for name, needed in {"CPU": engine.cpus, "GPU": engine.gpus}.items():
        most = max((node.get(name, 0.0) for node in nodes), default=0.0)
        if most < needed:
            what = f"a worker needs {needed:g} {name}, and no node of the cluster has more than {most:g}"
            raise error(Reason.INVALID_VALUE, what, f"engine.{name.lower()}s")
