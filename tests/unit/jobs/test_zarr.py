"""Captures that go to Zarr: the values that tables would hold, whoever writes them, and however often."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest
import zarr

from cutaway.contract.errors import CutawayError, Reason
from cutaway.jobs import Results, plan, read, report, run
from cutaway.jobs.sources import Unreadable
from examples.digits.data import held_out
from tests.support.jobs import Columns, alike, digits, digits_job, embedded_table, same
from tests.support.killed_job import begun, ended, job_file, until_written

REQUEST: dict[str, Any] = {
    "attributions": [{"method": "saliency"}],
    "captures": [{"layer": "conv*"}, {"layer": "fc1", "at": ["output", "grad_output"]}],
}
CAPTURES = ["capture:conv1@output", "capture:conv2@output", "capture:fc1@output", "capture:fc1@grad_output"]


def into(folder: Path, captures_to: str = "zarr", **more: Any) -> dict[str, Any]:
    return {"folder": folder, "shard_rows": 16, "captures_to": captures_to, **more}


def spoiled() -> Columns:
    """Digits, of which one cannot be read."""
    found = digits()
    found.by_name["pixels"] = list(found.by_name["pixels"])
    found.by_name["pixels"][17] = Unreadable("the file is torn")
    return found


@pytest.fixture(scope="module")
def tables(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The same job, with captures in its tables."""
    folder = tmp_path_factory.mktemp("tables") / "out"
    run(digits_job(store, folder, data=spoiled(), request=REQUEST, output=into(folder, "parquet")))
    return read(folder)


def test_values_are_those_of_tables(store: Path, tmp_path: Path, tables: Results) -> None:
    """Read back, every column is what it is without Zarr, bit for bit; Zarr reads the arrays without any code of ours.

    A bad row has no value. The chunks of an array end with shards.
    """
    run(digits_job(store, tmp_path / "out", data=spoiled(), request=REQUEST, output=into(tmp_path / "out")))
    results = read(tmp_path / "out")
    assert sorted(results.find(kind="capture")) == sorted(CAPTURES)
    alike(results, tables)
    assert np.isnan(results["capture:fc1@output"][17]).all()
    for one, other in zip(results.shards([CAPTURES[0], "row"]), tables.shards([CAPTURES[0], "row"])):
        same(one[CAPTURES[0]], other[CAPTURES[0]])
    names = parquet.read_schema(tmp_path / "out" / "part-00000.parquet").names
    assert not [name for name in names if name.startswith("capture:")]
    for name in CAPTURES:
        array = zarr.open_array(str(tmp_path / "out" / "_captures" / f"{name}.zarr"), mode="r")
        assert (array.shape[0], array.chunks[0]) == (40, 16)
        np.testing.assert_array_equal(array[:], tables[name])


@pytest.mark.slow
def test_killed_and_run_again_it_is_the_same(store: Path, tmp_path: Path) -> None:
    """Killed while shards are written, and run again, every value is that of a run that nobody disturbed."""
    output = {"folder": "out", "shard_rows": 16, "captures_to": "zarr"}
    job = job_file(tmp_path, store, 160, request=REQUEST, output=output)
    for parts in (0, 2, 5):
        process = begun(job)
        until_written(process, tmp_path / "out", parts)
        process.kill()
        process.communicate()
    assert ended(begun(job))[0] == 0
    whole = digits_job(store, tmp_path / "whole", data=digits(160), request=REQUEST, output=into(tmp_path / "whole"))
    run(whole)
    alike(read(tmp_path / "out"), read(tmp_path / "whole"))


def test_while_it_runs_there_is_what_is_written(store: Path, tmp_path: Path, tables: Results) -> None:
    """Of shards that are not there captures are not either, whatever lies in the arrays."""
    run(digits_job(store, tmp_path / "out", data=spoiled(), request=REQUEST, output=into(tmp_path / "out")))
    (tmp_path / "out" / "part-00001.parquet").unlink()
    there = [*range(16), *range(32, 40)]
    same(read(tmp_path / "out")["capture:fc1@output"], tables["capture:fc1@output"][there])
    for part in (tmp_path / "out").glob("part-*"):
        part.unlink()
    assert read(tmp_path / "out")["capture:fc1@output"].shape == (0, *tables["capture:fc1@output"].shape[1:])


def test_arrays_that_went_are_written_again(store: Path, tmp_path: Path, tables: Results) -> None:
    """A folder whose arrays were thrown away is not complete: a rerun asks about every row."""
    job = digits_job(store, tmp_path / "out", data=spoiled(), request=REQUEST, output=into(tmp_path / "out"))
    run(job)
    assert run(job).kept == 3
    shutil.rmtree(tmp_path / "out" / "_captures" / "capture:fc1@output.zarr")
    assert run(job).written == 3
    alike(read(tmp_path / "out"), tables)


def test_whole_numbers_and_places_of_the_largest(store: Path, tmp_path: Path) -> None:
    """What is captured as an integer is masked in bad rows; where the largest were goes along."""
    request = {"captures": [{"layer": "fc1", "reduce": {"top_k": {"k": 3, "axis": 1}}}]}
    found = []
    for kind in ("zarr", "parquet"):
        output = into(tmp_path / kind, kind)
        run(digits_job(store, tmp_path / kind, data=spoiled(), request=request, output=output))
        found.append(read(tmp_path / kind))
    alike(*found)
    positions = found[0]["positions:fc1@output"]
    assert np.ma.getmaskarray(positions).all(1).nonzero()[0].tolist() == [17]


def test_captures_of_several_shapes_are_refused(store: Path, tmp_path: Path) -> None:
    """Texts have captures as long as they are; an array has one shape. The job is told before it begins."""
    job = digits_job(
        store,
        tmp_path / "out",
        model={"archive": store / "sentences-1.0.mar"},
        data=Columns({"text": ["A dog.", "Rain fell all day, and nobody minded.", "Cats sleep."]}),
        inputs={"raw": {"column": "text", "media_type": "text/plain"}},
        id=None,
        label=None,
        target={"sum": {}},
        request={"captures": [{"layer": "embeddings.word_embeddings"}]},
        output=into(tmp_path / "out"),
    )
    with pytest.raises(CutawayError, match="differs in shape") as caught:
        run(job)
    assert (caught.value.reason, caught.value.field) == (Reason.INVALID_VALUE, "output.captures_to")
    assert not (tmp_path / "out" / "_manifest.json").exists()


def test_report_and_plan_know_them(store: Path, tmp_path: Path, tables: Results) -> None:
    """The page has the same activations inside, and a plan counts their bytes."""
    job = digits_job(store, tmp_path / "out", data=spoiled(), request=REQUEST, output=into(tmp_path / "out"))
    assert plan(job).bytes > 40 * 4 * held_out().images[0].size * 8
    run(job)
    folders = (tmp_path / "out", Path(tables.manifest.job["output"]["folder"]))
    in_zarr, in_tables = (embedded_table(report(folder)) for folder in folders)
    captures = [name for name in in_tables.column_names if name.startswith("capture:")]
    assert captures
    assert in_zarr.select(captures) == in_tables.select(captures)
