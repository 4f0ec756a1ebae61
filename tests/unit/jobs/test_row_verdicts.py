"""The verdict in a table is the verdict of its row, whatever other rows are in the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from captum.attr import Saliency
from torch import Tensor

from cutaway.contract.requests import CheckMode, InspectRequest
from cutaway.contract.results import AttributionResult, Check, InspectResult, RowCheck, Verdict
from cutaway.engine.runtime.numerics import APPROXIMATE
from cutaway.gateway import serve
from cutaway.jobs import Results, read, run
from cutaway.jobs.columns import flattened
from cutaway.jobs.engines import local
from cutaway.jobs.spec import parse_request
from examples.digits.data import held_out
from tests.support import digits as fixed
from tests.support.broken_captum import spoiled
from tests.support.jobs import Columns, digits, digits_job

ROWS = 32
SALIENCY: dict[str, Any] = {"attributions": [{"method": "integrated_gradients", "n_steps": 8}, {"method": "saliency"}]}


@pytest.fixture(scope="module")
def sound() -> Tensor:
    """What Saliency says of each digit's own class."""
    images = torch.from_numpy(held_out().images[:ROWS])
    network = fixed.network()
    return Saliency(network).attribute(images, target=network(images).argmax(1))


@contextmanager
def counting() -> Iterator[list[int]]:
    """How many rows each question to the model was about."""
    rows: list[int] = []
    intact = local.LocalModel.inspect

    def counted(self: local.LocalModel, request: InspectRequest) -> InspectResult:
        rows.append(len(next(iter(request.tensors.values()))))
        return intact(self, request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local.LocalModel, "inspect", counted)
        yield rows


def doubled(sound: Tensor, rows: Sequence[int], where: Callable[[int], bool] = lambda count: True) -> Any:
    """A fault: ``rows``, told by their values, come out doubled in batches of as many rows as ``where`` says."""

    def values(found: Tensor) -> Tensor:
        wrong = [any(torch.allclose(each, sound[row], rtol=1e-3, atol=1e-6) for row in rows) for each in found]
        factor = torch.tensor([2.0 if each and where(len(found)) else 1.0 for each in wrong], dtype=found.dtype)
        return found * factor.reshape(-1, 1, 1, 1)

    return values


def explained(store: Path, folder: Path, values: Any, **more: Any) -> tuple[Results, list[int]]:
    """A job in batches of 16, with a faulty Saliency; and how many rows each question was about."""
    words = {"data": digits(ROWS), "request": SALIENCY, "engine": {"kind": "local", "batch": 16}}
    output = {"folder": folder, "shard_rows": ROWS}
    with spoiled(Saliency, values=values), counting() as counts:
        run(digits_job(store, folder, **{**words, "output": output, **more}))
    return read(folder), counts[counts.index(16) :]  # after the first look


@pytest.mark.parametrize("guilty", [[5], [0, 15], [3, 4, 11, 20], list(range(ROWS)), []], ids=str)
@pytest.mark.parametrize("smallest", [0, 8], ids=["always", "in large batches"])
def test_only_wrong_rows_are_called_wrong(
    store: Path, tmp_path: Path, sound: Tensor, guilty: list[int], smallest: int
) -> None:
    """Each row has the verdict and the error of its own values in the whole batch, which is asked about once."""
    results, counts = explained(store, tmp_path / "out", doubled(sound, guilty, lambda count: count > smallest))
    wrong = np.isin(np.arange(ROWS), guilty)
    assert counts == [16, 16]
    assert [verdict == "DISAGREES" for verdict in results["verdict:saliency"]] == wrong.tolist()
    assert set(results["verdict:saliency"][~wrong]) <= {"AGREES"}
    assert [bool(reason) for reason in results["reason:saliency"]] == wrong.tolist()
    np.testing.assert_allclose(results["largest_error:saliency"][wrong], 1.0, rtol=1e-3)
    assert results["largest_error:saliency"][~wrong].max(initial=0) < 1e-4
    factor = np.where(wrong, 2.0, 1.0).reshape(-1, 1, 1, 1)
    np.testing.assert_allclose(results["attribution:saliency:image"], sound.numpy() * factor, rtol=1e-4, atol=1e-6)
    assert set(results["verdict:integrated_gradients"]) == {"AGREES"}


def test_where_all_disagree_each_has_its_error(store: Path, tmp_path: Path, sound: Tensor) -> None:
    """Of a method that is wrong about everything, as DeepLift is about this model, each row has its own error."""
    request = {"attributions": [{"method": "deep_lift"}]}
    results, counts = explained(store, tmp_path / "out", lambda found: found, request=request)
    assert set(results["verdict:deep_lift"]) == {"DISAGREES"}
    assert len(set(results["largest_error:deep_lift"])) == ROWS
    assert counts == [16, 16]


def test_sums_count_row_by_row(store: Path, tmp_path: Path) -> None:
    """A path with too few steps for some rows leaves the verdict of the others alone."""
    request = {"attributions": [{"method": "integrated_gradients", "n_steps": 3}]}
    results, _ = explained(store, tmp_path / "out", lambda found: found, request=request)
    found = {verdict: list(results["verdict:integrated_gradients"]).count(verdict) for verdict in Verdict}
    assert found[Verdict.AGREES]
    assert found[Verdict.INCONCLUSIVE] == ROWS - found[Verdict.AGREES] > 0
    errors = results["largest_error:integrated_gradients"]
    agrees = results["verdict:integrated_gradients"] == "AGREES"
    assert errors[agrees].max() <= APPROXIMATE.float32 < errors[~agrees].min()


COUPLED = """
import torch
from cutaway.adapters import Adapter

class Coupled(Adapter):
    def build(self):
        torch.manual_seed(0)
        return Net()

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(64, 10)

    def forward(self, image):
        return self.fc((image - image.mean(0, keepdim=True)).flatten(1))
"""


def test_a_model_that_couples_rows_clears_none(store: Path, tmp_path: Path) -> None:
    """Where rows depend on each other, all rows of a batch with a wrong row keep the batch's verdict."""
    (tmp_path / "coupled.py").write_text(COUPLED)

    def first_doubled(found: Tensor) -> Tensor:
        return torch.cat([found[:1] * 2, found[1:]])

    model = {"adapter": f"{tmp_path / 'coupled.py'}:Coupled"}
    results, _ = explained(store, tmp_path / "out", first_doubled, model=model)
    assert set(results["verdict:saliency"]) == {"DISAGREES"}


CODED = """
import torch
from cutaway.adapters import Adapter
from cutaway.contract.results import InputSpec

class Coded(Adapter):
    inputs = InputSpec("numbers", "float32", (-1, 2)), InputSpec("code", "int64", (-1,))
    labels = "a", "b"

    def build(self):
        torch.manual_seed(0)
        return Net()

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.code = torch.nn.Embedding(4, 3)
        self.head = torch.nn.Linear(5, 2)

    def forward(self, numbers, code):
        return self.head(torch.cat([numbers, self.code(code)], 1).tanh())
"""


LAYERED = "layer_integrated_gradients"


def coded(store: Path, folder: Path) -> tuple[Results, Any]:
    """A job at the embedding of a code, of which 0 is the baseline and 17 is none; and the codes."""
    (folder / "coded.py").write_text(CODED)
    codes = np.array([0, 1, 17, 3, *[0, 1, 2, 3] * 3])
    numbers = np.random.default_rng(0).normal(size=(16, 2)).astype(np.float32)
    data = Columns({"numbers": numbers, "code": codes, "name": [*map(str, codes)]})
    words = {"model": {"adapter": f"{folder / 'coded.py'}:Coded"}, "data": data, "label": None}
    inputs = {name: {"column": name} for name in ("numbers", "code")}
    request = {"attributions": [{"method": LAYERED, "layer": "code"}]}
    run(digits_job(store, folder / "out", inputs=inputs, request=request, **words))
    return read(folder / "out"), codes


def test_a_row_is_told_of_itself_alone(store: Path, tmp_path: Path) -> None:
    """The reason of a row names no number of a row: it would be that of the batch, in which a bad row has another's
    place. The error of a row that agrees is not that of a sum which need not hold, for paths lead around the layer."""
    found, codes = coded(store, tmp_path)
    still, bad = codes == 0, codes == 17
    assert [error is not None for error in found["error"]] == bad.tolist()
    assert set(found[f"verdict:{LAYERED}"][still]) == {"INCONCLUSIVE"}
    assert all("for the baseline, in this row: there" in each for each in found[f"reason:{LAYERED}"][still])
    assert set(found[f"verdict:{LAYERED}"][~still & ~bad]) == {"AGREES"}
    assert set(found[f"reason:{LAYERED}"][~still & ~bad]) == {""}
    assert found[f"largest_error:{LAYERED}"][~still & ~bad].max() < APPROXIMATE.float32


def test_a_code_in_each_row_has_one_sum(store: Path, tmp_path: Path) -> None:
    """Of an embedding of one id for each row a job has the sum over its width, beside all its elements."""
    found, codes = coded(store, tmp_path)
    sums, elements = found[f"token_attribution:{LAYERED}:code"], found[f"attribution:{LAYERED}:code"]
    well = codes != 17
    assert (sums.shape, elements.shape) == ((16, 1), (16, 3))
    np.testing.assert_allclose(sums[well, 0], elements[well].sum(axis=1), rtol=1e-5, atol=1e-6)
    assert found[f"token_ids:{LAYERED}:code"][well, 0].tolist() == codes[well].tolist()


def test_each_rank_has_its_rows(store: Path, tmp_path: Path, sound: Tensor) -> None:
    """Of the explanations of several classes only those that are wrong are called so."""
    results, _ = explained(store, tmp_path / "out", doubled(sound, [5]), target={"top_k": 2})
    found = results["verdict:saliency"]
    assert [row for row in range(ROWS) if found[row] == "DISAGREES"] == [5]
    assert set(results["verdict:saliency#1"]) == {"AGREES"}


def test_labels_and_conditions_go_along(store: Path, tmp_path: Path) -> None:
    """The outcome of a row has the row's place among those that are left out."""
    images, labels = torch.from_numpy(held_out().images[:ROWS]), torch.from_numpy(held_out().labels[:ROWS])
    network = fixed.network()
    guilty = int(torch.softmax(network(images), 1).amax(1)[:16].argmin())
    about_labels = Saliency(network).attribute(images, target=labels)
    request = SALIENCY | {"explain_if": {"probability_at_most": 0.9}}
    results, _ = explained(store, tmp_path / "out", doubled(about_labels, [guilty]), request=request, target="label")
    skipped = results["skipped:saliency"]
    assert 0 < skipped.sum() < ROWS
    expected = [None if skip else "DISAGREES" if row == guilty else "AGREES" for row, skip in enumerate(skipped)]
    assert results["verdict:saliency"].tolist() == expected


def test_a_service_says_the_same_of_each_row(store: Path, tmp_path: Path, sound: Tensor) -> None:
    """The outcomes of rows come along in the replies of a service."""
    with spoiled(Saliency, values=doubled(sound, [5])), serve({"digits": fixed.network()}) as server:
        words = {"data": digits(ROWS), "request": SALIENCY, "output": {"folder": tmp_path / "out", "shard_rows": 16}}
        model = {"address": server.address, "name": "digits"}
        engine = {"kind": "service", "batch": 16, "in_flight": 2}
        run(digits_job(store, tmp_path / "out", model=model, engine=engine, **words))
    found = read(tmp_path / "out")["verdict:saliency"]
    assert [row for row in range(ROWS) if found[row] == "DISAGREES"] == [5]


def test_a_kill_changes_no_verdict(store: Path, tmp_path: Path, sound: Tensor) -> None:
    """What is found of a row does not depend on what was asked before."""
    fault = doubled(sound, [5, 20])
    output = {"shard_rows": 16}
    whole, _ = explained(store, tmp_path / "a", fault, output={"folder": tmp_path / "a", **output})
    expected = whole["verdict:saliency"].tolist()
    (tmp_path / "a" / "part-00000.parquet").unlink()
    again, _ = explained(store, tmp_path / "a", fault, output={"folder": tmp_path / "a", **output})
    assert again["verdict:saliency"].tolist() == expected


def test_the_worst_check_speaks() -> None:
    """Of several checks the worst outcome of the row counts, with the error of those that found it; a check that does
    not apply hides none that does, and one without rows counts for every row."""
    agrees, disagrees, open_, none = Verdict

    def found(*verdicts: Verdict, rows: tuple[RowCheck, ...] = ()) -> list[tuple[str, float]]:
        checks = tuple(
            Check("", CheckMode.SAME_PASS, 0.0, index, 1.0, 1e-3, verdict, rows=() if index else rows)
            for index, verdict in enumerate(verdicts)
        )
        result = InspectResult({}, attributions=(AttributionResult("Saliency", "", {}, checks=checks),))
        template = parse_request({"attributions": "saliency"}, "predicted")
        values = {cells.name: cells.values for cells in flattened(result, template, 2)}
        return list(zip(values.get("verdict:saliency", []), values.get("largest_error:saliency", [])))

    assert found() == []
    assert (found(none, agrees), found(agrees, none)) == ([("AGREES", 1.0)] * 2, [("AGREES", 0.0)] * 2)
    assert found(agrees, agrees, none) == [("AGREES", 1.0)] * 2
    assert found(agrees, open_) == [("INCONCLUSIVE", 1.0)] * 2
    assert found(open_, disagrees, agrees) == [("DISAGREES", 1.0)] * 2
    rows = RowCheck(0.25, agrees), RowCheck(3.0, disagrees)
    assert found(disagrees, open_, rows=rows) == [("INCONCLUSIVE", 1.0), ("DISAGREES", 3.0)]
