"""Jobs on a Ray cluster: a real one, of two nodes, one of which dies."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import cutaway as ca
from cutaway.jobs import read, run
from cutaway.jobs.engines.ray import import_ray
from cutaway.jobs.running import Summary, Watcher
from tests.support.jobs import alike, digits_file, digits_job
from tests.support.ray_cluster import RayCluster, ray_cluster

ROWS = 160
INPUTS = {"image": {"column": "pixels", "shape": (1, 8, 8)}}


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """A cluster to which this process is connected."""
    with ray_cluster() as started:
        ray = import_ray()
        ray.init(address=started.address, log_to_driver=False, logging_level=logging.ERROR)
        try:
            yield started
        finally:
            ray.shutdown()


class Losing(Watcher):
    """Looks on, and takes a node away when the first shards are written."""

    def __init__(self, cluster: RayCluster) -> None:
        self._cluster = cluster
        self.ended_with = 0

    def on_shard(self, summary: Summary) -> None:
        if summary.written == 2:
            self._cluster.lose_node()

    def on_end(self) -> None:
        self.ended_with = sum(node["Alive"] for node in import_ray().nodes())


@pytest.mark.parametrize("captures_to", ["parquet", "zarr"])
@pytest.mark.slow
def test_a_cluster_finds_what_one_process_finds(
    store: Path, tmp_path: Path, cluster: RayCluster, captures_to: str
) -> None:
    """Two workers write the shards of a data set, and every value is that of the engine `local`."""
    output = {"folder": tmp_path / "ray", "shard_rows": 16, "captures_to": captures_to}
    data = {"path": str(digits_file(tmp_path / "digits.parquet", ROWS))}
    engine = {"kind": "ray", "batch": 8, "workers": 2}
    there = run(digits_job(store, tmp_path / "ray", data=data, inputs=INPUTS, engine=engine, output=output))
    here = run(digits_job(store, tmp_path / "local", data=data, inputs=INPUTS))
    assert (there.rows, there.bad, there.written, there.verdicts) == (ROWS, 0, ROWS // 16, here.verdicts)
    alike(read(tmp_path / "ray"), read(tmp_path / "local"))


@pytest.mark.slow
def test_more_than_any_node_has_is_refused(store: Path, tmp_path: Path, cluster: RayCluster) -> None:
    """A job whose workers fit nowhere says so, and does not wait for ever."""
    engine = {"kind": "ray", "batch": 8, "cpus": 2}
    with pytest.raises(ca.InvalidArgument, match="a worker needs 2 CPU, and no node") as refused:
        run(digits_job(store, tmp_path / "large", engine=engine))
    assert refused.value.field == "engine.cpus"


@pytest.mark.slow
def test_bad_rows_are_bad_there_too(store: Path, tmp_path: Path, cluster: RayCluster) -> None:
    """Rows that cannot be explained are recorded by whichever worker meets them, and too many of them end the job."""
    table = parquet.read_table(digits_file(tmp_path / "digits.parquet"))
    pixels = [each[:60] if row in (3, 21) else each for row, each in enumerate(table["pixels"].to_pylist())]
    parquet.write_table(table.set_column(0, "pixels", pa.array(pixels)), tmp_path / "broken.parquet")
    data = {"path": str(tmp_path / "broken.parquet")}
    words = {"data": data, "inputs": INPUTS, "engine": {"kind": "ray", "batch": 8}}
    summary = run(digits_job(store, tmp_path / "bad", **words))
    assert (summary.rows, summary.bad) == (40, 2)
    errors = dict(enumerate(read(tmp_path / "bad")["error"]))
    assert {row: reason for row, reason in errors.items() if reason} == {3: "INPUT_SHAPE", 21: "INPUT_SHAPE"}
    with pytest.raises(ca.FailedPrecondition, match="rows are bad") as refused:
        run(digits_job(store, tmp_path / "strict", max_bad_rows=1, **words))
    assert refused.value.reason == "TOO_MANY_BAD_ROWS"


@pytest.mark.slow
def test_a_lost_node_costs_nothing_but_time(store: Path, tmp_path: Path, cluster: RayCluster) -> None:
    """A node dies amid a job: what it had begun is done by the other, and the result is whole."""
    data = {"path": str(digits_file(tmp_path / "digits.parquet", ROWS))}
    engine = {"kind": "ray", "batch": 8, "workers": 2}
    output = {"folder": tmp_path / "lost", "shard_rows": 8}
    watcher = Losing(cluster)
    summary = run(digits_job(store, tmp_path, data=data, inputs=INPUTS, engine=engine, output=output), watcher)
    assert watcher.ended_with == 2  # the head, and one of two
    assert (summary.rows, summary.bad, summary.written) == (ROWS, 0, ROWS // 8)
    output = {"folder": tmp_path / "local", "shard_rows": 8}
    run(digits_job(store, tmp_path, data=data, inputs=INPUTS, output=output))
    alike(read(tmp_path / "lost"), read(tmp_path / "local"))
