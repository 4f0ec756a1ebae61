"""A verdict is about a row: of a batch that disagrees, the rows that are wrong are found by asking about fewer."""

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

from cutaway.gateway import serve
from cutaway.jobs import Results, read, run
from cutaway.jobs.blame import Ruling, ruling
from cutaway.jobs.engines import local
from cutaway.requests import CheckMode, InspectRequest
from cutaway.results import AttributionResult, Check, InspectResult, Verdict
from examples.digits.data import held_out
from examples.digits.train import train
from tests.jobs import digits, digits_job
from tests.spoiled import spoiled

ROWS = 32
SALIENCY: dict[str, Any] = {"attributions": [{"method": "integrated_gradients", "n_steps": 8}, {"method": "saliency"}]}


@pytest.fixture(scope="module")
def sound() -> Tensor:
    """What Saliency says of each digit's own class."""
    images = torch.from_numpy(held_out().images[:ROWS])
    network = train()
    return Saliency(network).attribute(images, target=network(images).argmax(1))


@contextmanager
def counting() -> Iterator[list[int]]:
    """How many rows each question to the model was about."""
    asked: list[int] = []
    intact = local.Loaded.ask

    def counted(self: local.Loaded, request: InspectRequest) -> InspectResult:
        asked.append(len(next(iter(request.tensors.values()))))
        return intact(self, request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local.Loaded, "ask", counted)
        yield asked


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
    with spoiled(Saliency, values=values), counting() as asked:
        run(digits_job(store, folder, **{**words, "output": output, **more}))
    return read(folder), asked[asked.index(16) :]  # after the first look


@pytest.mark.parametrize("guilty", [[5], [0, 15], [3, 4, 11, 20]], ids=str)
def test_only_wrong_rows_are_called_wrong(store: Path, tmp_path: Path, sound: Tensor, guilty: list[int]) -> None:
    """Rows whose explanation is wrong disagree, each with its own error; those beside them agree, with theirs. The
    values are those of the whole batch."""
    results, _ = explained(store, tmp_path / "out", doubled(sound, guilty))
    found = results["saliency.verdict"]
    assert [row for row in range(ROWS) if found[row] == "DISAGREES"] == guilty
    assert set(np.delete(found, guilty)) == {"AGREES"}
    assert [bool(reason) for reason in results["saliency.reason"]] == [row in guilty for row in range(ROWS)]
    np.testing.assert_allclose(results["saliency.error"][guilty], 1.0, rtol=1e-3)
    assert np.delete(results["saliency.error"], guilty).max() < 1e-4
    factor = np.array([2.0 if row in guilty else 1.0 for row in range(ROWS)]).reshape(-1, 1, 1, 1)
    np.testing.assert_allclose(results["saliency.image"], sound.numpy() * factor, rtol=1e-4, atol=1e-6)
    assert set(results["integrated_gradients.verdict"]) == {"AGREES"}


def test_one_wrong_row_costs_two_batches_more(store: Path, tmp_path: Path, sound: Tensor) -> None:
    """Halves of halves of the batch of a wrong row are asked about; a batch that agrees is asked about once."""
    _, asked = explained(store, tmp_path / "out", doubled(sound, [5]))
    assert asked == [16, 8, 8, 4, 4, 2, 2, 1, 1, 16]


def test_wrong_company_clears_nobody(store: Path, tmp_path: Path, sound: Tensor) -> None:
    """What is wrong only among others is no single row's fault: the batch keeps its verdict."""
    for name, where in {"large": lambda count: count > 8, "several": lambda count: count > 1}.items():
        results, _ = explained(store, tmp_path / name, doubled(sound, [5], where))
        assert results["saliency.verdict"].tolist() == ["DISAGREES"] * 16 + ["AGREES"] * 16


def test_other_values_are_not_cleared(store: Path, tmp_path: Path, sound: Tensor) -> None:
    """A row that agrees with fewer others, but has other values there, keeps what was found of the values that it
    has."""

    def values(found: Tensor) -> Tensor:
        return doubled(sound, [12], lambda count: count > 8)(doubled(sound, [5])(found))

    results, _ = explained(store, tmp_path / "out", values)
    found = results["saliency.verdict"]
    assert [row for row in range(ROWS) if found[row] == "DISAGREES"] == [5, 12]


def test_where_all_disagree_it_costs_twice_the_rows(store: Path, tmp_path: Path, sound: Tensor) -> None:
    """A method that is wrong about everything, as DeepLift is about this model, is not asked about row by row."""
    request = {"attributions": [{"method": "deep_lift"}]}
    results, asked = explained(store, tmp_path / "out", lambda found: found, request=request)
    assert set(results["deep_lift.verdict"]) == {"DISAGREES"}
    assert asked == [16, 8, 8, 4, 4, 4, 4] * 2


def test_each_rank_has_its_rows(store: Path, tmp_path: Path, sound: Tensor) -> None:
    """Of the explanations of several classes only those that are wrong are called so."""
    results, _ = explained(store, tmp_path / "out", doubled(sound, [5]), target={"top_k": 2})
    found = results["saliency.verdict"]
    assert [row for row in range(ROWS) if found[row] == "DISAGREES"] == [5]
    assert set(results["saliency#1.verdict"]) == {"AGREES"}


def test_labels_and_conditions_go_along(store: Path, tmp_path: Path) -> None:
    """Each row is asked about with its own label; a row that need not be explained is not asked about again."""
    images, labels = torch.from_numpy(held_out().images[:ROWS]), torch.from_numpy(held_out().labels[:ROWS])
    network = train()
    guilty = int(torch.softmax(network(images), 1).amax(1)[:16].argmin())
    about_labels = Saliency(network).attribute(images, target=labels)
    request = SALIENCY | {"explain_if": {"probability_at_most": 0.9}}
    results, asked = explained(
        store, tmp_path / "out", doubled(about_labels, [guilty]), request=request, target="label"
    )
    skipped = results["saliency.skipped"]
    assert 0 < skipped.sum() < ROWS
    expected = [None if skip else "DISAGREES" if row == guilty else "AGREES" for row, skip in enumerate(skipped)]
    assert results["saliency.verdict"].tolist() == expected
    assert sum(asked[1:3]) == 16 - skipped[:16].sum()


def test_a_service_is_asked_again_too(store: Path, tmp_path: Path, sound: Tensor) -> None:
    """Who computes makes no difference to whom is blamed."""
    with spoiled(Saliency, values=doubled(sound, [5])), serve({"digits": train()}) as server:
        words = {"data": digits(ROWS), "request": SALIENCY, "output": {"folder": tmp_path / "out", "shard_rows": 16}}
        model = {"address": server.address, "name": "digits"}
        engine = {"kind": "service", "batch": 16, "in_flight": 2}
        run(digits_job(store, tmp_path / "out", model=model, engine=engine, **words))
    found = read(tmp_path / "out")["saliency.verdict"]
    assert [row for row in range(ROWS) if found[row] == "DISAGREES"] == [5]


def test_a_kill_changes_no_verdict(store: Path, tmp_path: Path, sound: Tensor) -> None:
    """What is found of a row does not depend on what was asked before."""
    fault = doubled(sound, [5, 20])
    output = {"shard_rows": 16}
    whole, _ = explained(store, tmp_path / "a", fault, output={"folder": tmp_path / "a", **output})
    expected = whole["saliency.verdict"].tolist()
    (tmp_path / "a" / "part-00000.parquet").unlink()
    again, _ = explained(store, tmp_path / "a", fault, output={"folder": tmp_path / "a", **output})
    assert again["saliency.verdict"].tolist() == expected


def test_the_worst_check_speaks() -> None:
    """Of several checks the worst says what is found; one that does not apply hides none that does."""

    def found(*verdicts: Verdict) -> Ruling | None:
        checks = tuple(
            Check("", CheckMode.SAME_PASS, 0.0, index, 1.0, 1e-3, verdict) for index, verdict in enumerate(verdicts)
        )
        return ruling(AttributionResult("Saliency", "", {}, checks=checks))

    agrees, disagrees, open_, none = (
        Verdict.AGREES, Verdict.DISAGREES, Verdict.INCONCLUSIVE, Verdict.NOT_APPLICABLE
    )  # fmt: skip
    assert found() is None
    assert found(none, agrees) == found(agrees, none) == Ruling(agrees, "", 1.0)
    assert found(agrees, open_) == Ruling(open_, "", 1.0)
    assert found(open_, disagrees, agrees) == Ruling(disagrees, "", 2.0)
