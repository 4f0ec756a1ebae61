"""Networks on tables of categories and numbers: embeddings beside, across and instead of perceptrons."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import cutaway as ca
from tests.matrix.asking import Places
from tests.matrix.healthy_models import data
from tests.matrix.healthy_models.model import BY_MODULES, GUIDED, LRP, Healthy
from tests.matrix.healthy_models.parts import chain, joined, linear


def places(embedding: str = "words", layer: str = "b") -> Places:
    """Numbers are explained by gradients, all columns by exchanges, and the codes at their embedding."""
    return Places(layer, layer, ca.Neuron(layer, (1,)), embedding, ("numbers",), exchanged=("codes", "numbers"))


def beside(m: Any, codes: Tensor, numbers: Tensor) -> Tensor:
    """One embedding of all columns, beside the numbers."""
    return m.head(m.act2(m.b(m.act1(m.a(torch.cat([m.words(codes).flatten(1), numbers], 1))))))


def several(m: Any, codes: Tensor, numbers: Tensor) -> Tensor:
    """An embedding for each column, as fastai has them; numbers are normed."""
    vectors = [m.words(codes[:, 0]), m.second(codes[:, 1]), m.third(codes[:, 2])]
    return m.head(m.act2(m.b(m.act1(m.a(torch.cat([*vectors, m.norm(numbers)], 1))))))


def alone(m: Any, numbers: Tensor, code: Tensor) -> Tensor:
    """One code for each row, without an axis of its own."""
    return m.head(m.act2(m.b(m.act1(m.a(torch.cat([numbers, m.words(code)], 1))))))


def wide_and_deep(m: Any, codes: Tensor, numbers: Tensor) -> Tensor:
    """A number of each code and class is added to what a perceptron says."""
    return beside(m, codes, numbers) + m.wide(codes).sum(1) + m.straight(numbers)


def entities(m: Any, codes: Tensor, numbers: Tensor) -> Tensor:
    """Entity embeddings with a skip around every layer."""
    hidden = torch.cat([m.words(codes).flatten(1), numbers], 1)
    hidden = hidden + torch.tanh(m.a(hidden))
    return m.head(hidden + torch.tanh(m.b(hidden)))


def crossed(m: Any, codes: Tensor, numbers: Tensor) -> Tensor:
    """The products of all pairs of embeddings and of the numbers' vector, as DLRM has them."""
    vectors = torch.cat([m.words(codes), torch.tanh(m.a(numbers)).unsqueeze(1)], 1)
    pairs = torch.triu_indices(4, 4, 1)
    products = (vectors @ vectors.transpose(1, 2))[:, pairs[0], pairs[1]]
    return m.head(torch.cat([products, vectors[:, 3]], 1))


def factors(m: Any, codes: Tensor, numbers: Tensor) -> Tensor:
    """DeepFM: the square of sums minus the sum of squares, beside a perceptron."""
    vectors = torch.cat([m.words(codes), m.directions * numbers.unsqueeze(2)], 1)
    second = (vectors.sum(1).pow(2) - vectors.pow(2).sum(1)) / 2
    return m.head(torch.cat([second, torch.tanh(m.a(vectors.flatten(1)))], 1))


def columns_attend(m: Any, codes: Tensor, numbers: Tensor) -> Tensor:
    """A token for each column and one for the class, through attention, as FT-Transformer has them."""
    tokens = torch.cat([m.words(codes), m.a(numbers.unsqueeze(2)), m.token.expand(len(codes), 1, 8)], 1)
    return m.head(m.layer(tokens)[:, -1])


def pooled(m: Any, codes: Tensor, numbers: Tensor) -> Tensor:
    """The sum of the codes' embeddings, by one bag."""
    return m.head(m.act2(m.b(m.act1(m.a(torch.cat([m.words(codes), numbers], 1))))))


def gated(m: Any, codes: Tensor, numbers: Tensor) -> Tensor:
    """The codes say how much each number counts, as TabNet's mask does."""
    mask = torch.softmax(m.gate(m.words(codes).flatten(1)), 1)
    return m.head(torch.tanh(m.a(numbers * mask)))


def one_hot(m: Any, codes: Tensor, numbers: Tensor) -> Tensor:
    """Codes as vectors of noughts and a one, without an embedding."""
    known = nn.functional.one_hot(codes, 6).to(numbers.dtype)
    return m.head(m.act2(m.b(m.act1(m.a(torch.cat([known.flatten(1), numbers], 1))))))


def _embedding(width: int = 4) -> Any:
    return lambda: nn.Embedding(6, width)


DEEP = {"act1": nn.ReLU, "b": linear(12, 12), "act2": nn.Softplus, "head": linear(12, 3)}
PARTS = {"words": _embedding(), "a": linear(16, 12), **DEEP}
COLUMNS = {"words": _embedding(), "second": _embedding(2), "third": _embedding(2), "norm": lambda: nn.BatchNorm1d(4)}
CHAINED = Places("b", "b", ca.Neuron("b", (1,)), passed=("act2",))

TABLES = (
    Healthy("table", joined(beside, **PARTS), data.tables, places(), LRP),
    Healthy("table-several-embeddings", joined(several, **COLUMNS, a=linear(12, 12), **DEEP), data.tables,
        places("third"), LRP),
    Healthy("table-one-code", joined(alone, words=_embedding(), a=linear(8, 12), **DEEP), data.single_codes,
        places("")._replace(exchanged=("numbers", "code")), LRP),
    Healthy("table-codes-only", chain(words=_embedding(), flat=nn.Flatten, a=linear(12, 12), **DEEP), data.only_codes,
        CHAINED._replace(embedding="words")),
    Healthy("table-one-column", chain(a=linear(1, 12), **DEEP), data.one_column, CHAINED, ("KernelShap",)),
    Healthy("table-one-column-tanh", chain(a=linear(1, 12), **DEEP | {"act1": nn.Tanh, "act2": nn.Tanh}),
        data.one_column, CHAINED, (*GUIDED, "KernelShap")),
    Healthy("table-wide-and-deep", joined(wide_and_deep, **PARTS, wide=_embedding(3), straight=linear(4, 3)),
        data.tables, places(), LRP),
    Healthy("table-entities-with-skips", joined(entities, words=_embedding(), a=linear(16, 16), b=linear(16, 16),
        head=linear(16, 3)), data.tables, places(), BY_MODULES),
    Healthy("table-products", joined(crossed, words=_embedding(), a=linear(4, 4), head=linear(10, 3)), data.tables,
        places(layer="a"), BY_MODULES),
    Healthy("table-factors", joined(factors, words=_embedding(), directions=lambda: nn.Parameter(torch.randn(4, 4)),
        a=linear(28, 8), head=linear(12, 3)), data.tables, places(layer="a"), BY_MODULES),
    Healthy("table-attention", joined(columns_attend, words=_embedding(8), a=linear(1, 8), token=lambda:
        nn.Parameter(torch.randn(1, 1, 8)), layer=lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True,
        dropout=0.0), head=linear(8, 3)), data.tables, places(layer="a")._replace(neuron=ca.Neuron("a", (2, 1))),
        BY_MODULES),
    Healthy("table-bag", joined(pooled, words=lambda: nn.EmbeddingBag(6, 4, mode="sum"), a=linear(8, 12), **DEEP),
        data.tables, places(), LRP),
    Healthy("table-gated", joined(gated, words=_embedding(), gate=linear(12, 4), a=linear(4, 12), head=linear(12, 3)),
        data.tables, places(layer="a"), BY_MODULES),
    Healthy("table-one-hot", joined(one_hot, a=linear(22, 12), **DEEP), data.tables, places(""), LRP),
    Healthy("table-float64", joined(beside, **PARTS | {"act1": nn.Tanh, "act2": nn.Tanh}), data.tables, places(),
        (*GUIDED, *LRP), dtype=torch.float64),
)  # fmt: skip
"""Models of rows of codes and numbers."""
