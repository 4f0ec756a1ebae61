"""Concepts as a caller sends them: texts for the adapter, limits, deadlines, streams, estimates and other callers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

import cutaway as ca
from cutaway.adapters import Adapter
from cutaway.client.request_builder import build_request
from cutaway.contract.results import InputSpec
from cutaway.gateway import serve
from cutaway.server.settings import Settings
from tests.support.worker_calls import ask, outcome, row, worker

LAYER = "bert.pooler.activation"
WORDS = ("good", "fine", "glad", "bad", "sad", "poor", "a", "the", "film", "dog", "was", "is")


class Opinions(Adapter):
    """A small BERT that was never trained, on words, padded to the longest text."""

    media_types = ("text/plain",)
    labels = ("no", "yes")
    inputs = (InputSpec("input_ids", "int64", (-1, -1)), InputSpec("attention_mask", "int64", (-1, -1)))

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
        return BertForSequenceClassification(BertConfig(vocab_size=20, **sizes))

    def preprocess(self, data: bytes, media_type: str) -> Mapping[str, Tensor]:
        ids = torch.tensor([[1, *(2 + WORDS.index(word) for word in data.decode().split())]])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def collate(self, examples: Any) -> dict[str, Tensor]:
        longest = max(each["input_ids"].shape[1] for each in examples)
        return {
            name: torch.cat([nn.functional.pad(each[name], (0, longest - each[name].shape[1])) for each in examples])
            for name in examples[0]
        }

    def forward(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        logits: Tensor = model(**inputs).logits
        return logits


def texts(count: int, seed: int, words: tuple[str, ...] = WORDS) -> list[str]:
    """Texts of two to six words."""
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(words, draw.integers(2, 7))) for _ in range(count)]


GLAD = texts(8, 1, WORDS[:3])
SETS = [texts(8, 10 + number) for number in range(4)]
ROWS = texts(5, 2)


def tested(**more: Any) -> ca.TCAV:
    return ca.TCAV(**{"layers": (LAYER,), "concepts": {"glad": GLAD}, "random": SETS, **more})


def test_texts_are_concepts() -> None:
    """Of other lengths than the rows; with the numbers of their tensors, decoded by the same adapter."""
    served, adapter = worker(Opinions()), Opinions()
    by_text, by_tensor = (
        ask(served, ROWS, target=1, concepts=tested(concepts={"glad": concept}, random=random))  # type: ignore[arg-type]
        for concept, random in (
            (GLAD, SETS),
            (_decoded(adapter, GLAD), [_decoded(adapter, each) for each in SETS]),
        )
    )
    (one,), (other,) = by_text.concepts, by_tensor.concepts
    assert one.shares == other.shares
    np.testing.assert_array_equal(one.derivatives, other.derivatives)
    assert one.check is not None
    assert one.check.verdict is ca.Verdict.AGREES, one.check
    assert one.derivatives.shape == (5, 4)
    assert f"concepts     AGREES  glad at {LAYER}  share {one.share:.2f}, p {one.p_value:.3g}" in repr(by_text)
    with torch.no_grad():
        logits = (
            adapter.build().eval()(**adapter.collate([adapter.preprocess(each.encode(), "") for each in ROWS])).logits
        )
    np.testing.assert_allclose(by_text.predictions["output"], logits, atol=1e-5)


def _decoded(adapter: Opinions, several: list[str]) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in adapter.collate(
        [adapter.preprocess(text.encode(), "") for text in several]).items()}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "settings", "expected"),
    [
        ({"concepts": {"glad": [*GLAD, "sausage"]}}, {}, r"RAW_UNDECODABLE \[concepts.concepts.glad.examples\[8\]\]"),
        ({"random": [*SETS, [*GLAD, "sausage"]]}, {}, r"RAW_UNDECODABLE \[concepts.random\[4\].examples\[8\]\]"),
        ({"concepts": {"glad": ca.ConceptExamples({"input_ids": np.ones((4, 3))}, (ca.Raw(b"good"),))}}, {},
            r"INVALID_VALUE \[concepts.concepts.glad.raw\].*not both"),
        ({"layers": ("bert.encoder.layer.0.output.dense",)}, {}, r"INPUT_SHAPE \[concepts.random\[1\]\].*one size"),
        ({}, {"max_rows": 7}, r"LIMIT_EXCEEDED \[concepts.concepts.glad\].*8 examples, 7 are allowed"),
        ({}, {"max_attributions": 3}, r"LIMIT_EXCEEDED \[concepts.random\].*4 random sets, 3 are allowed"),
        ({}, {"max_passes": 89}, r"LIMIT_EXCEEDED \[concepts\].*up to 90 passes"),
    ],
)  # fmt: skip
def test_what_is_refused_by_a_server(more: dict[str, Any], settings: dict[str, Any], expected: str) -> None:
    """Each with the field that a caller changes; the same call within its limits is answered."""
    with serve({"m": Opinions()}, settings=Settings(**settings)) as server, ca.Client(server.address) as client:
        with pytest.raises(ca.CutawayError, match=expected):
            client.inspect("m", ROWS, target=1, concepts=tested(**more))
        if settings:
            assert client.inspect("m", ROWS, target=1).classes
    with serve({"m": Opinions()}, settings=Settings(max_passes=90)) as server, ca.Client(server.address) as client:
        assert client.inspect("m", ROWS, target=1, concepts=tested(vectors=True)).concepts


def test_a_stream_has_the_same_and_an_estimate_tells_its_size() -> None:
    with serve({"m": Opinions()}) as server, ca.Client(server.address) as client:
        asked = {"target": 1, "concepts": tested(vectors=True)}
        whole, streamed = (client.inspect("m", ROWS, stream=stream, **asked) for stream in (False, True))  # type: ignore[arg-type]
        told = client.inspect("m", ROWS, dry_run=True, **asked).estimate  # type: ignore[arg-type]
    (one,), (other,) = whole.concepts, streamed.concepts
    assert one.check == other.check
    assert one.vectors is not None
    np.testing.assert_array_equal(one.vectors, other.vectors)
    assert told is not None
    outlines = {name: (each.data_type, each.shape) for name, each in told.tensors.items()}
    assert outlines[f"concept_derivative:{LAYER}:glad"] == ("float64", one.derivatives.shape)
    assert outlines[f"concept_vector:{LAYER}:glad"] == ("float64", one.vectors.shape)
    assert told.passes == 90
    assert whole.provenance.forwards <= 90


def test_it_ends_with_its_deadline_and_joins_no_pass() -> None:
    """A call whose caller is gone ends; two at once have what each has alone."""
    served = worker(Opinions())
    late = row(ROWS, target=1, concepts=tested(), deadline_s=0.0)
    (reply,) = served.answer([late])
    assert isinstance(outcome(reply), ca.DeadlineExceeded)
    calls = [row(ROWS, target=target, concepts=tested()) for target in (0, 1)]
    alone = [outcome(reply) for call in calls for reply in served.answer([call])]
    for one, other in zip(alone, map(outcome, served.answer(calls))):
        assert isinstance(one, ca.InspectResult)
        assert isinstance(other, ca.InspectResult)
        assert [each.shares for each in one.concepts] == [each.shares for each in other.concepts]


def test_a_table_and_half_precision_examples() -> None:
    """Rows of a table with names of its columns; floating examples become the type of the rows."""

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.hidden, self.last = nn.Linear(4, 6), nn.Linear(6, 2)

        def forward(self, table: Tensor) -> Tensor:
            return self.last(self.hidden(table).tanh())

    draw = np.random.default_rng(0)
    rows = draw.normal(size=(6, 4))
    old = draw.normal(size=(12, 4)) + np.eye(4)[0] * 3
    asked: Any = ca.TCAV(("hidden",), {"old": old}, (*draw.normal(size=(3, 12, 4)),))
    for dtype in (torch.float32, torch.float64):
        served = worker(Table().to(dtype))
        (result,) = ask(served, {"table": torch.from_numpy(rows).to(dtype)}, target=1, concepts=asked).concepts
        assert result.check is not None
        assert result.check.verdict is ca.Verdict.AGREES
        assert min(result.accuracies) > 0.7
    integers = ca.TCAV(("hidden",), {"old": old.astype(np.int64)}, asked.random)
    with pytest.raises(ca.CutawayError, match=r"INPUT_DTYPE \[concepts.concepts.old.tensors.table\]"):
        ask(served, {"table": torch.from_numpy(rows)}, target=1, concepts=integers)
    assert build_request("m", rows, concepts=asked).concepts
