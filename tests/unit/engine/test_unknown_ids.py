"""An id that an embedding has no vector for: the embedding, its size, the id and its column are named."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cutaway as ca
from cutaway.contract.results import InputSpec
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from tests.support.checked_attributions import ask, noise, wired


def table(m: nn.Module, numbers: Tensor, codes: Tensor) -> Tensor:
    return numbers + m.job(codes[:, 0]) + m.city(codes[:, 1])  # type: ignore[operator]


MODEL = wired(table, job=lambda: nn.Embedding(6, 3), city=lambda: nn.Embedding(10, 3))


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    ("row", "words"),
    [
        ((9, 2), "'job' is an Embedding of the ids 0 to 5, and got 9 in {} of 'codes'"),
        ((2, -1), "'city' is an Embedding of the ids 0 to 9, and got -1 in {} of 'codes'"),
    ],
)
def test_the_column_of_a_table_is_named(row: tuple[int, int], words: str, named: bool) -> None:
    model, names = MODEL(), ("Beruf", "Ort") if named else ()
    subject = InspectedModel(
        model, lambda tensors: model(**tensors), [InputSpec("numbers"), InputSpec("codes", feature_names=names)]
    )
    column = int(row[0] == 2)
    inputs = {"numbers": noise(2, 3), "codes": torch.tensor([[1, 2], row])}
    with pytest.raises(ca.InvalidArgument) as failure:
        inspect(subject, ca.InspectRequest("m"), inputs)
    assert failure.value.reason == "MODEL_FAILED"
    assert words.format(repr(names[column]) if named else f"column {column}") in str(failure.value)


def test_ids_of_a_text_and_ids_that_the_model_makes_are_told_apart() -> None:
    of_text = wired(lambda m, ids: m.emb(ids).sum(1), emb=lambda: nn.Embedding(4, 3))
    with pytest.raises(ca.InvalidArgument, match=r"'emb' is an Embedding of the ids 0 to 3, and got 7 in 'ids'$"):
        ask(of_text(), {"ids": torch.tensor([[1, 7, 9]])})
    made = wired(lambda m, ids: m.emb(ids * 2 + 1), emb=lambda: nn.EmbeddingBag(4, 3))
    with pytest.raises(ca.InvalidArgument, match=r"'emb' is an EmbeddingBag of the ids 0 to 3, and got 5$"):
        ask(made(), {"ids": torch.tensor([[1, 2]])})


def test_other_indices_out_of_range_are_as_they_were() -> None:
    """Of a list of the model's own, and of a function."""
    listed = wired(lambda m, x: [x][int(x.shape[0])], emb=lambda: nn.Embedding(4, 3))
    with pytest.raises(ca.InvalidArgument, match=r"list index out of range$"):
        ask(listed(), {"x": noise(2, 3)})
    function = wired(lambda m, ids: F.embedding(ids, m.emb.weight).sum(1), emb=lambda: nn.Embedding(4, 3))
    with pytest.raises(ca.InvalidArgument, match=r"index out of range in self$"):
        ask(function(), {"ids": torch.tensor([[1, 7]])})


def test_what_explains_ids_is_named_with_all_embeddings() -> None:
    inputs = {"numbers": noise(2, 3), "codes": torch.tensor([[1, 2], [3, 4]])}
    with pytest.raises(ca.InvalidArgument, match=r"LayerIntegratedGradients at 'job' or 'city', .* or FeatureAblation"):
        ask(MODEL(), inputs, ca.IntegratedGradients(inputs=("codes",)))
