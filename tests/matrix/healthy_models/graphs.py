"""Networks on graphs: a row is a graph of eight nodes with three numbers each, [batch, nodes, numbers]."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cutaway as ca
from tests.matrix.asking import Places
from tests.matrix.healthy_models import data
from tests.matrix.healthy_models.model import BY_MODULES, Healthy
from tests.matrix.healthy_models.parts import Make, joined, linear
from tests.support.checked_attributions import Wired

NODES = Places("a", "a", ca.Neuron("a", (2, 1)))
BEHIND = Places("b", "b", ca.Neuron("b", (2, 1)))

EDGES = torch.tensor([[0, 0, 1, 2, 3, 3, 4, 5, 6, 7], [1, 2, 3, 3, 4, 5, 6, 6, 7, 0]])
"""From, and to."""


def adjacency() -> Tensor:
    """The graph, both ways and with loops, normed: [nodes, nodes]."""
    found = torch.eye(8).index_put(tuple(EDGES), torch.tensor(1.0)).index_put(tuple(EDGES.flip(0)), torch.tensor(1.0))
    degrees = found.sum(1).rsqrt()
    return degrees.unsqueeze(1) * found * degrees


def neighbours(m: Any, hidden: Tensor) -> Tensor:
    """The graph times nodes that come behind the rows, [batch, nodes, units], also where the graph is sparse."""
    flat = hidden.transpose(0, 1).flatten(1)
    return (m.graph @ flat).unflatten(1, (len(hidden), -1)).transpose(0, 1)


def convolved(m: Any, x: Tensor) -> Tensor:
    """Two graph convolutions, and the mean over nodes."""
    hidden = torch.tanh(neighbours(m, m.a(x)))
    return m.head(torch.tanh(neighbours(m, m.b(hidden))).mean(1))


def convolved_densely(m: Any, x: Tensor) -> Tensor:
    """The same by the product of matrices that broadcasts over rows."""
    return m.head(torch.tanh(m.graph @ m.b(torch.tanh(m.graph @ m.a(x)))).mean(1))


def sampled(m: Any, x: Tensor) -> Tensor:
    """By ``torch.sparse.mm``, one row after the other, beside what the node itself has."""
    hidden = m.a(x)
    around = torch.stack([torch.sparse.mm(m.graph, each) for each in hidden])
    return m.head(F.silu(m.b(torch.cat([hidden, around], 2))).amax(1))


def messages(m: Any, x: Tensor) -> Tensor:
    """A message along every edge, by indices and a sum of what arrives."""
    hidden = torch.tanh(m.a(x))
    sent = torch.tanh(m.b(torch.cat([hidden[:, m.edges[0]], hidden[:, m.edges[1]]], 2)))
    return m.head((hidden + torch.zeros_like(hidden).index_add(1, m.edges[1], sent)).mean(1))


def attended(m: Any, x: Tensor) -> Tensor:
    """Graph attention: each node weighs its neighbours; others are masked."""
    hidden = m.a(x)
    scores = F.leaky_relu(m.left(hidden) + m.right(hidden).transpose(1, 2), 0.2)
    shares = scores.masked_fill(m.graph == 0, -torch.inf).softmax(2)
    return m.head(torch.tanh(m.b(F.elu(shares @ hidden))).mean(1))


def polynomial(m: Any, x: Tensor) -> Tensor:
    """Chebyshev polynomials of the graph."""
    hidden = m.a(x)
    terms = [hidden, neighbours(m, hidden)]
    terms.append(2 * neighbours(m, terms[1]) - terms[0])
    return m.head(torch.tanh(m.b(torch.cat(terms, 2))).mean(1))


def given(m: Any, x: Tensor, graph: Tensor) -> Tensor:
    """The graph is another input, [batch, nodes, nodes]."""
    return m.head(torch.tanh(graph @ m.b(torch.tanh(graph @ m.a(x)))).mean(1))


def pooled(m: Any, x: Tensor) -> Tensor:
    """Nodes are gathered in three clusters, as much as they belong there."""
    hidden = torch.tanh(m.graph @ m.a(x))
    return m.head(torch.tanh(m.b(m.belongs(hidden).softmax(2).transpose(1, 2) @ hidden)).flatten(1))


def coordinates(dense: Tensor) -> Tensor:
    """The COO layout."""
    return dense.to_sparse().coalesce()


def on_a_graph(wiring: Callable[..., Any], layout: Callable[[Tensor], Tensor], **parts: Make) -> Make:
    """Makes modules beside a graph that is a buffer."""

    def make() -> nn.Module:
        model = Wired(wiring, **{name: each() for name, each in parts.items()})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch calls compressed layouts a beta
            model.register_buffer("graph", layout(adjacency()))
        model.register_buffer("edges", EDGES)
        return model

    return make


def weighted_graphs() -> data.Data:
    """Rows with a graph each, whose edges weigh more or less."""
    x, aims = data.series()
    drawn = torch.rand(len(aims), 8, 8, generator=torch.Generator().manual_seed(16))
    return data.Data({**x, "graph": adjacency() * (0.5 + drawn)}, aims)


PARTS = {"a": linear(3, 8), "b": linear(8, 8), "head": linear(8, 3)}


def _graph(name: str, make: Make, places: Places = NODES, **more: Any) -> Healthy:
    return Healthy(name, make, data.series, places, BY_MODULES, **more)


GRAPHS = (
    _graph("graph-dense", on_a_graph(convolved_densely, Tensor.clone, **PARTS)),
    _graph("graph-dense-flat", on_a_graph(convolved, Tensor.clone, **PARTS), BEHIND),
    _graph("graph-coo", on_a_graph(convolved, coordinates, **PARTS)),
    _graph("graph-csr", on_a_graph(convolved, Tensor.to_sparse_csr, **PARTS)),
    _graph("graph-coo-rows", on_a_graph(sampled, coordinates,
        **PARTS | {"b": linear(16, 8)})),
    _graph("graph-messages", on_a_graph(messages, Tensor.clone, **PARTS | {"b": linear(16, 8)}), BEHIND),
    _graph("graph-attention", on_a_graph(attended, Tensor.clone, **PARTS, left=linear(8, 1), right=linear(8, 1))),
    _graph("graph-polynomial", on_a_graph(polynomial, Tensor.clone, **PARTS | {"b": linear(24, 8)}),
        dtype=torch.float64),
    _graph("graph-pooled", on_a_graph(pooled, Tensor.clone, **PARTS | {"head": linear(24, 3)},
        belongs=linear(8, 3)), BEHIND),
    Healthy("graph-given", joined(given, **PARTS), weighted_graphs, NODES._replace(explained=("x", "graph")),
        BY_MODULES),
)  # fmt: skip
"""Models of graphs; the graph is a buffer, dense or sparse, or an input."""
