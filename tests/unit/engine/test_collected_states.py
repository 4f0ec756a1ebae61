"""Models of transformers that use the states of their own layers, which hooks of transformers collect."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import TensorAdapter, load_model
from cutaway.contract.results import InspectResult
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel

LAYER = "bert.encoder.layer.0"
IDS = torch.arange(12).reshape(2, 6) % 7 + 3


class SumOfLayers(nn.Module):
    """Classifies the sum of the states of all layers, as many embeddings do; transformers collects them by hooks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        config = transformers.BertConfig(
            hidden_size=8, num_hidden_layers=3, num_attention_heads=2, intermediate_size=12, vocab_size=20,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        self.bert = transformers.BertModel(config, add_pooling_layer=False)
        self.head = nn.Linear(8, 3)

    def forward(self, input_ids: Tensor) -> Tensor:
        states = self.bert(input_ids, output_hidden_states=True).hidden_states
        logits: Tensor = self.head(torch.stack(states).sum(0).mean(1))
        return logits


@pytest.fixture
def model() -> InspectedModel:
    return load_model(TensorAdapter(SumOfLayers()), "cpu")


def asked(model: InspectedModel, **request: Any) -> InspectResult:
    return inspect(model, ca.InspectRequest("sum", target=ca.ClassIndex((0,)), **request), {"input_ids": IDS})


def by_hand(change: Callable[[Tensor], Tensor], ids: Tensor = IDS) -> tuple[Tensor, Tensor, Tensor]:
    """The logits with the layer's state changed wherever it is used, and the state with its gradient."""
    plain, kept = SumOfLayers().eval(), []

    def hook(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        kept.append(change(output).detach().requires_grad_())
        return kept[0]

    # Before those of transformers, which the first pass adds.
    with plain.get_submodule(LAYER).register_forward_hook(hook):
        logits = plain(ids)
    (gradient,) = torch.autograd.grad(logits[:, 0].sum(), kept)
    return logits.detach(), kept[0].detach(), gradient


@pytest.mark.parametrize("passes_before", [0, 1, 2])
def test_an_edit_reaches_every_use_of_a_state(passes_before: int, model: InspectedModel) -> None:
    """The first pass adds transformers' hooks, which must not see the state before the edit in later ones."""
    for _ in range(passes_before):
        asked(model)
    edited = asked(
        model, edits=(ca.Scale(LAYER, factor=3.0),), captures=(ca.Capture(LAYER, at=("output", "grad_output")),)
    )
    logits, _, gradient = by_hand(lambda state: state * 3.0)
    np.testing.assert_allclose(edited.predictions["output"], logits, rtol=0, atol=1e-6)
    np.testing.assert_allclose(edited.captures[LAYER].grad_output, gradient, rtol=0, atol=1e-6)


def test_the_gradient_of_a_state_has_all_its_uses(model: InspectedModel) -> None:
    for _ in range(3):
        found = asked(model, captures=(ca.Capture(LAYER, at=("output", "grad_output")),)).captures[LAYER].grad_output
        np.testing.assert_allclose(found, by_hand(lambda state: state)[2], rtol=0, atol=1e-6)


def _at(point: Tensor, _: Tensor) -> Tensor:
    return point


def test_layer_attributions_replace_every_use_of_a_state(model: InspectedModel) -> None:
    """Captum's own hooks too come before those that collect; by hand they do not, and its sums are too small."""
    start, end = (by_hand(lambda state: state, ids)[1] for ids in (torch.zeros_like(IDS), IDS))
    nodes, weights = np.polynomial.legendre.leggauss(8)
    gradients = [
        by_hand(partial(_at, start + (node + 1) / 2 * (end - start)))[2] * weight / 2
        for node, weight in zip(nodes.tolist(), weights.tolist())
    ]
    right = torch.stack(gradients).sum(0) * (end - start)
    for _ in range(3):
        method = ca.LayerIntegratedGradients(layer=LAYER, n_steps=8)
        (found,) = asked(model, attributions=(method,)).attributions
        np.testing.assert_allclose(found.values[LAYER], right, rtol=0, atol=1e-5)
        assert found.checks[0].verdict is ca.Verdict.AGREES
