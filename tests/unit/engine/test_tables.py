"""Tables with categories: codes that an embedding takes, beside numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from captum import attr
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import cutaway as ca
from cutaway.contract.requests import Attribution
from cutaway.contract.results import Cause, Verdict
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.engine.model.session import NEVER_CANCELLED
from cutaway.engine.planning.embedded_inputs import embedded_inputs
from tests.support.checked_attributions import CHECKED, ask, noise, verdict


class Table(nn.Module):
    """One column of categories and four of numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(15)
        self.emb, self.a, self.act, self.b = nn.Embedding(6, 3), nn.Linear(7, 8), nn.Tanh(), nn.Linear(8, 2)

    def forward(self, codes: Tensor, numbers: Tensor) -> Tensor:
        """Returns two scores."""
        y: Tensor = self.b(self.act(self.a(torch.cat([self.emb(codes[:, 0]), numbers], 1))))
        return y


INPUTS = {"codes": torch.tensor([[1], [3]]), "numbers": noise(2, 4)}
DISTRIBUTION = {"numbers": np.zeros((2, 4), np.float32)}
UNMOVED: list[Attribution] = [
    ca.LayerConductance(layer="emb", n_steps=8),
    ca.LayerGradientShap(layer="emb", baselines=DISTRIBUTION),
    ca.LayerDeepLiftShap(layer="emb", baselines=DISTRIBUTION),
    ca.LayerIntegratedGradients(layer="emb", inputs=("numbers",), n_steps=8),
    ca.LayerDeepLift(layer="emb", inputs=("numbers",)),
]
TARGET = ca.ClassIndex((1,))


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("asked", UNMOVED, ids=lambda asked: type(asked).__name__)
def test_zeros_of_a_layer_that_nothing_moved_are_doubted(asked: Attribution, mode: ca.CheckMode) -> None:
    """Methods that take values between baseline and input cannot move codes: the zeros of an embedding that only codes
    reach prove nothing, in either check, and the reason names a method that moves them."""
    result = ask(Table().eval(), INPUTS, asked, target=TARGET, check=ca.CheckRequest(mode)).attributions[0]
    assert {check.verdict for check in result.checks} == {Verdict.INCONCLUSIVE}
    assert {check.cause for check in result.checks} == {Cause.NOTHING_CHANGED}
    assert "such as 'codes'" in result.checks[0].reason
    assert ("LayerDeepLift move integers" in result.checks[0].reason) is not bool(asked.inputs)
    assert result.inputs_left_out == (() if asked.inputs else ("codes",))


@pytest.mark.parametrize(
    "asked",
    [
        ca.LayerIntegratedGradients(layer="emb", inputs=("codes", "numbers"), n_steps=8),
        ca.LayerConductance(layer="a", n_steps=8),
        ca.InternalInfluence(layer="emb", n_steps=8),
    ],
    ids=lambda asked: type(asked).__name__,
)
def test_a_layer_that_is_reached_is_not_doubted(asked: Attribution) -> None:
    """Where the codes are named, or the layer is behind the numbers, or nothing is multiplied by the change."""
    result = ask(Table().eval(), INPUTS, asked, target=TARGET)
    assert verdict(result.attributions[0]) is Verdict.AGREES, result.attributions[0].checks


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("kind", [ca.LayerIntegratedGradients, ca.LayerDeepLift], ids=lambda kind: kind.__name__)
def test_codes_move_by_default_at_the_layer_behind_them(kind: Any, mode: ca.CheckMode) -> None:
    """The values are plain Captum's for all inputs, from category 0 or from one that the request names."""
    model, (codes, numbers) = Table().eval(), INPUTS.values()
    plain = getattr(attr, kind.__name__)(model, model.emb)
    for category in (0, 5):
        baselines = {"codes": ca.TokenId(category)} if category else {}
        got = ask(model, INPUTS, kind(layer="emb", baselines=baselines), target=TARGET, check=ca.CheckRequest(mode))
        start = (torch.full_like(codes, category), torch.zeros_like(numbers))
        expected = plain.attribute((codes, numbers), baselines=start, target=1)
        assert np.allclose(got.attributions[0].values["emb"], expected.detach(), atol=1e-6)
        assert verdict(got.attributions[0]) is Verdict.AGREES
        assert not got.attributions[0].inputs_left_out
        assert not got.warnings


EXCHANGING: list[Attribution] = [
    *(ca.FeatureAblation(), ca.ShapleyValues(), ca.ShapleyValueSampling(n_samples=4), ca.KernelShap(n_samples=40)),
    *(ca.Lime(n_samples=40), ca.FeaturePermutation(), ca.Occlusion(windows={"codes": (1,), "numbers": (2,)})),
    ca.FeatureAblation(baselines={"codes": ca.TokenId(5)}),
]


@pytest.mark.parametrize("mode", CHECKED)
@pytest.mark.parametrize("asked", EXCHANGING, ids=lambda asked: type(asked).__name__)
def test_methods_that_exchange_values_explain_codes_by_default(asked: Attribution, mode: ca.CheckMode) -> None:
    """As if both inputs were named; the ablation of a code is the drop of the target, worked out by hand."""
    more: dict[str, Any] = {"target": TARGET, "seed": 3, "check": ca.CheckRequest(mode)}
    model = Table().eval()
    got, beside = (
        ask(model, INPUTS, each, **more).attributions[0]
        for each in (asked, replace(asked, inputs=("codes", "numbers")))
    )
    assert list(got.values) == ["codes", "numbers"]
    for name, values in got.values.items():
        assert np.array_equal(values, beside.values[name])
        assert np.count_nonzero(values)
    assert verdict(got) is Verdict.AGREES
    if isinstance(asked, ca.FeatureAblation):
        category = 5 if asked.baselines else 0
        with torch.no_grad():
            drop = model(**INPUTS) - model(torch.full_like(INPUTS["codes"], category), INPUTS["numbers"])
        assert np.allclose(got.values["codes"][:, 0], drop[:, 1], atol=1e-6)


def test_an_input_without_a_window_is_left_out() -> None:
    """A request from before categories were explained means what it meant."""
    got = ask(Table().eval(), INPUTS, ca.Occlusion(windows={"numbers": (2,)}), target=TARGET)
    assert list(got.attributions[0].values) == ["numbers"]
    assert got.attributions[0].inputs_left_out == ("codes",)


class Padded(nn.Module):
    """Texts of several lengths: an embedding, a recurrent layer that packs, and a mask for their mean."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words, self.rnn, self.head = nn.Embedding(9, 3), nn.GRU(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, ids: Tensor, lengths: Tensor, mask: Tensor, flags: Tensor) -> Tensor:
        """Returns two scores."""
        packed = pack_padded_sequence(self.words(ids), lengths, batch_first=True, enforce_sorted=False)
        steps, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=ids.shape[1])
        mean = (steps * mask[..., None]).sum(1) / mask.sum(1, keepdim=True) + flags[:, None]
        y: Tensor = self.head(mean)
        return y


TEXTS = {
    "ids": torch.tensor([[3, 4, 5], [6, 7, 0]]),
    "lengths": torch.tensor([3, 2]),
    "mask": torch.tensor([[1, 1, 1], [1, 1, 0]]),
    "flags": torch.tensor([True, False]),
}


@pytest.mark.parametrize(
    "asked",
    [ca.FeatureAblation(), ca.ShapleyValueSampling(n_samples=2), ca.LayerIntegratedGradients(layer="words", n_steps=8)],
    ids=lambda asked: type(asked).__name__,
)
def test_masks_and_lengths_stay_and_are_told(asked: Attribution) -> None:
    """A length of 0 would fail, and a mask of zeros divide by nothing. A field of the reply and a warning name what
    was left out, and the caller may name it."""
    got = ask(Padded().eval(), TEXTS, asked, target=TARGET)
    left = ("lengths", "mask", "flags")
    assert got.attributions[0].inputs_left_out == left
    ((code, subject, message),) = [(each.code, each.subject, each.message) for each in got.warnings]
    assert (code, subject) == (ca.WarningCode.INPUT_NOT_EXPLAINED, "attributions[0].inputs")
    assert all(name in message for name in (*left, "explained: ids;"))
    assert verdict(got.attributions[0]) is Verdict.AGREES, got.attributions[0].checks
    assert not ask(Padded().eval(), TEXTS, replace(asked, inputs=("ids",)), target=TARGET).warnings


@pytest.mark.parametrize("name", ["Bert", "OPT", "T5"])
def test_token_ids_are_told_from_masks_by_what_embeddings_do(name: str) -> None:
    """OPT's embedding of positions takes the mask itself, and counts in its forward; types are ids of their own."""
    ids = torch.tensor([[4, 5, 6, 7], [8, 9, 1, 1]])
    inputs = {"input_ids": ids, "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])}
    expected = {"input_ids"}
    if name == "Bert":
        inputs["token_type_ids"] = torch.zeros_like(ids)
        small = transformers.BertConfig(
            vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
        )
        model, expected = transformers.BertForSequenceClassification(small), {"input_ids", "token_type_ids"}
    elif name == "OPT":
        small = transformers.OPTConfig(
            vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, ffn_dim=8, word_embed_proj_dim=8
        )
        model = transformers.OPTForCausalLM(small)
    else:
        small = transformers.T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
        model = transformers.T5ForConditionalGeneration(small)
        inputs["decoder_input_ids"] = ids[:, :2]
        expected = {"input_ids", "decoder_input_ids"}
    subject = InspectedModel(model.eval(), lambda named: model(**named))
    assert embedded_inputs(subject, inputs, NEVER_CANCELLED, {}) == expected


def test_a_column_of_a_table_and_an_offset_are_ids() -> None:
    """Tables give each column its own part of one embedding, by adding an offset to its codes."""

    class Offsets(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb = nn.Embedding(9, 2)

        def forward(self, codes: Tensor, count: Tensor) -> Tensor:
            return self.emb(codes.int() + torch.tensor([0, 4])).sum(1) * count[:, None]

    model = Offsets().eval()
    subject = InspectedModel(model, lambda named: model(**named))
    inputs = {"codes": torch.tensor([[1, 3], [2, 0]]), "count": torch.tensor([2, 3])}
    assert embedded_inputs(subject, inputs, NEVER_CANCELLED, {}) == {"codes"}


@pytest.mark.parametrize("mode", CHECKED)
def test_a_row_that_nothing_changes_is_doubted_alone(mode: ca.CheckMode) -> None:
    """Of a perturbation whose replacement equals one row's features, and of a layer that moves in one row."""
    same = {"codes": torch.tensor([[0], [3]]), "numbers": INPUTS["numbers"].clone()}
    same["numbers"][0] = 0
    check = ca.CheckRequest(mode)
    layer = ca.LayerIntegratedGradients(layer="emb", inputs=("codes",), n_steps=8)
    for asked in (ca.FeatureAblation(), ca.FeatureAblation(inputs=("codes",)), layer):
        whole = ask(Table().eval(), same, asked, target=TARGET, check=check).attributions[0].checks[0]
        assert [row.verdict for row in whole.rows] == [Verdict.INCONCLUSIVE, Verdict.AGREES]
        assert whole.rows[0].cause in (Cause.NOTHING_CHANGED, Cause.BASELINE_IS_INPUT)
        assert "row 0" in whole.reason
