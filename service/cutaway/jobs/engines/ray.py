"""Copies of the model on a Ray cluster, by Ray Data: each writes whole shards; what a lost node had begun, others do.

Only the numbers of shards travel, and what was found about each: workers read the data set and write results by
themselves, so that both lie where every node finds them under the same path. Work goes out as tasks, and not to actors:
what a dead actor had in hand waits until it is restarted, and with it the whole job where no other node has room.
https://docs.ray.io/en/latest/data/api/doc/ray.data.Dataset.map_batches.html
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

from cutaway.errors import CutawayError, Reason, error
from cutaway.jobs import spec
from cutaway.jobs.engines import local
from cutaway.jobs.shards import Shards, counted, no_room
from cutaway.jobs.task import Model, Task, Tick, Written, source_of

_OBJECT_STORE_BYTES = 128 << 20
"""Of a cluster that is started here: what travels is small."""

_MOST_BLOCKS = 4096
"""Ray Data hands out blocks; so many shards have one each."""


def work(task: Task, model: Model, shards: Sequence[int], tick: Tick) -> Iterator[Written]:
    """Write ``shards``, by as many workers as the job asks for; the model at hand is not used."""
    engine = task.job.engine
    if not shards or not isinstance(engine, spec.Ray):
        return
    with _cluster(engine) as ray:
        numbers = ray.data.from_items(
            [{"shard": shard} for shard in shards], override_num_blocks=min(len(shards), _MOST_BLOCKS)
        )
        answers = numbers.map_batches(
            _answered,
            fn_args=(task,),
            batch_size=1,
            compute=ray.data.TaskPoolStrategy(size=engine.workers),
            num_cpus=engine.cpus,
            num_gpus=engine.gpus or None,
            max_calls=0,  # a process keeps its copy of the model for the next shard, on a GPU too
        )
        try:
            for answer in answers.iter_rows():
                written = _told(json.loads(answer["found"]))
                tick(written.rows)
                yield written
        except ray.exceptions.RayError as failure:
            what = f"Ray gave up: {type(failure).__name__}: {failure}"[:500]
            raise error(Reason.JOB_INTERRUPTED, what, "engine") from None


def _answered(batch: Mapping[str, Any], task: Task) -> dict[str, Any]:
    """In a worker: what became of each shard."""
    return {"found": np.array([json.dumps(_found(task, int(shard))) for shard in batch["shard"]])}


def _found(task: Task, shard: int) -> dict[str, Any]:
    """What became of ``shard``. An error travels as words: Ray takes it for an answer, and does not ask again."""
    try:
        # Where Ray lost what a worker had answered it asks again; the file is there already.
        written = counted(task.folder.part(shard), shard) or _ready(task).write(shard, lambda _: None)
    except CutawayError as failure:
        return {"error": [failure.reason, failure.message, failure.field]}
    except OSError as failure:
        full = no_room(failure)
        return {"error": [full.reason, full.message, full.field]}
    return written._asdict()


_open = ExitStack()
_at_hand: dict[str, Shards] = {}
"""What this process works with, by the manifest's digest and the folder: a worker serves one driver, as long as that
lives, and jobs one after the other."""


def _ready(task: Task) -> Shards:
    name = f"{task.manifest.digest} {task.folder.path}"
    if name not in _at_hand:
        _open.close()
        _at_hand.clear()
        torch.set_num_threads(max(1, int(task.job.engine.cpus)) if isinstance(task.job.engine, spec.Ray) else 1)
        model = _open.enter_context(local.opened(task.job))
        _at_hand[name] = Shards(task, model, source_of(task.job))
    return _at_hand[name]


def _told(found: Mapping[str, Any]) -> Written:
    if "error" in found:
        reason, message, field = found["error"]
        raise error(Reason(reason), message, field)
    return Written(**found)


@contextmanager
def _cluster(engine: spec.Ray) -> Iterator[Any]:
    """Ray, connected: to the cluster that this process is in already, or the job's, or one that is started here.

    Raises:
        CutawayError: there is no Ray, no such cluster, or none with room for a worker.
    """
    ray = _imported()
    if ray.is_initialized():
        _refuse_small(ray, engine)
        yield ray
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing of ours calls home
    here = {} if engine.address else {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
    try:
        ray.init(address=engine.address or "local", log_to_driver=False, logging_level=logging.ERROR, **here)
    except (ConnectionError, RuntimeError, ValueError) as failure:
        what = f"no Ray cluster at {engine.address or 'this machine'}: {failure}"
        raise error(Reason.JOB_INTERRUPTED, what, "engine.address") from None
    try:
        _refuse_small(ray, engine)
        yield ray
    finally:
        ray.shutdown()


def _imported() -> Any:
    try:
        import ray.data
    except ImportError:
        what = "the engine ray needs Ray: pip install 'cutaway[ray]'"
        raise error(Reason.INVALID_VALUE, what, "engine.kind") from None
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # whoever looks on is told of progress, and of errors
    ray.data.DataContext.get_current().enable_progress_bars = False
    return ray


def _refuse_small(ray: Any, engine: spec.Ray) -> None:
    for name, wanted in {"CPU": engine.cpus, "GPU": engine.gpus}.items():
        most = max((node.get(name, 0.0) for node in _nodes(ray)), default=0.0)
        if most < wanted:
            what = f"a worker takes {wanted:g} {name}, and no node of the cluster has more than {most:g}"
            raise error(Reason.INVALID_VALUE, what, f"engine.{name.lower()}s")


def _nodes(ray: Any) -> list[Mapping[str, float]]:
    """What each node that is there has."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]
