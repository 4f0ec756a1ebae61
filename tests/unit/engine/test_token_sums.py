"""Text, explained where its numbers begin: at the embedding, with a sum for each token, and the token's text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from captum import attr
from torch import nn

import cutaway as ca
from cutaway.contract.results import Verdict
from tests.support.checked_attributions import ask, wired
from tests.support.models import sentences
from tests.support.rounding import close
from tests.support.serving import Server

WORDS = "embeddings.word_embeddings"
OPERATIONS = 2 * 6 * (4 * 384 + 384 + 1536)
"""Rounded operations on the way to a gradient at MiniLM's embeddings: the sums of six layers, forward and backward."""

TEXTS = ("A cutaway shows a machine running.", "It is raining.")


@pytest.mark.slow
def test_a_sentence_is_explained_token_by_token(server: Server, store: Path) -> None:
    """Raw text in, over gRPC: integrated gradients from a sentence of padding, at MiniLM's word embeddings, are plain
    Captum's; they are summed for each token, the tokens have their text, and the check agrees."""
    subject = sentences(store)
    asked = ca.LayerIntegratedGradients(
        layer=WORDS, inputs=("input_ids",), baselines={"input_ids": ca.TokenId(0)}, n_steps=10
    )
    with ca.Client(server.address) as client:
        result = client.inspect(
            "sentences", [ca.Raw(text.encode()) for text in TEXTS], target=[7, 200], attributions=[asked]
        ).attributions[0]
    ids, *further = subject.inputs.values()
    plain = attr.LayerIntegratedGradients(subject.forward, subject.model.get_submodule(WORDS))
    values = plain.attribute(
        ids, torch.zeros_like(ids), target=torch.tensor([7, 200]), additional_forward_args=tuple(further), n_steps=10,
        internal_batch_size=2,
    )  # fmt: skip
    assert close(result.values[WORDS], values, OPERATIONS)
    assert [check.verdict for check in result.checks[:1]] == [Verdict.AGREES]
    tokens = result.tokens
    assert tokens is not None
    assert tokens.input == "input_ids"
    assert np.array_equal(tokens.ids, ids.numpy())
    assert np.allclose(tokens.values, result.values[WORDS].sum(-1), rtol=1e-5, atol=1e-7)
    assert tokens.texts[0][:3] == ("[CLS]", "a", "cut")
    assert tokens.texts[1][-1] == "[PAD]"
    assert tokens.texts == tuple(tuple(subject.adapter.token_texts(row)) for row in ids.tolist())


def text_model() -> Any:
    """Token ids to three logits, through an embedding and through a count that is embedded too."""
    return wired(
        lambda m, ids: m.head(torch.tanh(m.words(ids)).mean(1) + m.places(torch.arange(ids.shape[1])).mean(0)),
        words=lambda: nn.Embedding(20, 6), places=lambda: nn.Embedding(9, 6), head=lambda: nn.Linear(6, 3),
    )()  # fmt: skip


IDS = {"ids": torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])}


@pytest.mark.parametrize(
    "asked",
    [
        ca.LayerActivation(layer="words"),
        ca.LayerGradientXActivation(layer="words"),
        ca.LayerIntegratedGradients(layer="words", baselines={"ids": ca.TokenId(0)}, n_steps=6),
    ],
    ids=lambda asked: type(asked).__name__,
)
def test_every_method_at_an_embedding_has_a_sum_for_each_token(asked: ca.Attribution) -> None:
    """Without an adapter that knows texts there are none, and the rest is there."""
    result = ask(text_model(), IDS, asked).attributions[0]
    assert result.tokens is not None
    assert (result.tokens.input, result.tokens.texts) == ("ids", ())
    assert np.array_equal(result.tokens.ids, IDS["ids"].numpy())
    assert np.allclose(result.tokens.values, result.values["words"].sum(-1))
    assert result.tokens.against(1) == ("against token 0" if isinstance(asked, ca.LayerIntegratedGradients) else "")


@pytest.mark.parametrize("layer", ["places", "head"])
def test_what_is_no_explanation_of_tokens_has_no_sums(layer: str) -> None:
    """Of positions, which no input holds an example each, and of a layer that is no embedding."""
    assert ask(text_model(), IDS, ca.LayerActivation(layer=layer)).attributions[0].tokens is None


def test_a_token_id_begins_integrated_gradients_and_a_fraction_does_not() -> None:
    """A token's id is what a number or a tensor of such ids would have been; half an id, or an id for an image, is
    refused at its field."""

    def explained(baseline: Any) -> Any:
        asked = ca.LayerIntegratedGradients(layer="words", baselines={"ids": baseline}, n_steps=6)
        return ask(text_model(), IDS, asked).attributions[0].values["words"]

    assert np.array_equal(explained(ca.TokenId(9)), explained(np.full((1, 4), 9)))
    with pytest.raises(ca.InvalidArgument) as caught:
        explained(0.5)
    assert caught.value.field == "attributions[0].layer_integrated_gradients.path.baselines.by_input.ids"
    image = wired(lambda m, x: m.a(x), a=lambda: nn.Linear(4, 3))()
    with pytest.raises(ca.InvalidArgument) as caught:
        ask(image, {"x": torch.ones(1, 4)}, ca.IntegratedGradients(baselines={"x": ca.TokenId(1)}))
    assert "send a number" in caught.value.message
