"""The log-probability of a whole text as a target: against Captum's attributions of language models, and by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import captum.attr as captum
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import load_model
from cutaway.adapters.causal_lm import CausalLMAdapter
from cutaway.contract.errors import CutawayError, DeadlineExceeded, InvalidArgument
from cutaway.contract.results import AttributionResult, InspectResult, Verdict
from cutaway.engine.batching import inspect_batch
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.session import Cancellation
from cutaway.engine.planning.plan import plan_request
from cutaway.jobs.spec import parse_request
from tests.support.causal_lms import ARCHITECTURES, by_hand, logits, saved
from tests.support.sequence_targets import PROMPTS, TEXTS, asked, llm, prompts

OWN = ca.SequenceLogProbability(TEXTS)
ONE = ca.SequenceLogProbability((TEXTS[1],))


def token_by_token(plain: Any, adapter: CausalLMAdapter, prompt: str, text: str) -> list[float]:
    """The log-probability of each token of ``text``, in a pass of its own."""
    ids, tokens = torch.tensor([adapter.tokenizer.encode(prompt)]), adapter.tokenizer.encode(text)
    return [logits(plain, ids, tokens[:step])[0, -1].log_softmax(0)[token].item() for step, token in enumerate(tokens)]


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("gpt2"))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.no_grad()
def test_each_row_has_the_log_probabilities_of_its_own_text(architecture: str, tmp_path: Path) -> None:
    """Prompts and texts of different lengths in one batch, each as by hand and alone."""
    directory = saved(tmp_path, architecture)
    adapter, plain = CausalLMAdapter(directory=directory), by_hand(directory)
    result = asked(adapter, prompts(adapter, *PROMPTS), target=OWN)
    last = asked(adapter, prompts(adapter, *PROMPTS)).predictions["next"]
    np.testing.assert_allclose(result.predictions["next"], last, rtol=0, atol=1e-5)
    assert result.target_values is not None
    for row, (prompt, text) in enumerate(zip(PROMPTS, TEXTS)):
        expected = token_by_token(plain, adapter, prompt, text)
        found = result.predictions["continuation"][row]
        np.testing.assert_allclose(found[: len(expected)], expected, rtol=0, atol=1e-5)
        assert not found[len(expected) :].any()
        assert result.target_values[row] == pytest.approx(sum(expected), abs=1e-4)


def by_token(adapter: CausalLMAdapter, method: ca.Attribution) -> tuple[AttributionResult, ...]:
    target = ca.SequenceLogProbability((TEXTS[1],), by_token=True)
    return asked(adapter, prompts(adapter, PROMPTS[0]), target=target, attributions=(method,)).attributions


def of_prompt(adapter: CausalLMAdapter, result: AttributionResult) -> Any:
    """One number for each token of the first prompt."""
    if result.tokens is None:
        return result.values["input_ids"][0]
    return result.tokens.values[0][: len(adapter.tokenizer.encode(PROMPTS[0]))]


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "gemma2"])
def test_an_ablation_is_that_of_captum_without_its_cache(architecture: str, tmp_path: Path) -> None:
    """By sequence and by token, each of which has a verdict. With Captum's defaults, another one."""
    directory = saved(tmp_path, architecture)
    adapter = CausalLMAdapter(directory=directory)
    right = llm(directory, captum.FeatureAblation, use_cached_outputs=False)
    (found,) = asked(
        adapter, prompts(adapter, PROMPTS[0]), target=ONE, attributions=(ca.FeatureAblation(),)
    ).attributions
    np.testing.assert_allclose(of_prompt(adapter, found), right.seq_attr, rtol=0, atol=1e-4)
    assert found.checks[0].verdict is Verdict.AGREES
    each = by_token(adapter, ca.FeatureAblation())
    assert {one.checks[0].verdict for one in each} == {Verdict.AGREES}
    np.testing.assert_allclose([of_prompt(adapter, one) for one in each], right.token_attr, rtol=0, atol=1e-4)
    tokens = adapter.tokenizer.encode(TEXTS[1], add_special_tokens=False)
    assert [one.targets.tolist() for one in each if one.targets is not None] == [[token] for token in tokens]


RIGHT = ca.LLMAttribution(use_cached_outputs=False)
WRAPPED = [
    (ca.FeatureAblation(), captum.FeatureAblation),
    (ca.ShapleyValueSampling(n_samples=2), captum.ShapleyValueSampling),
    (ca.KernelShap(n_samples=60), captum.KernelShap),
]


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "gemma2"])
@pytest.mark.parametrize(("ours", "theirs"), WRAPPED, ids=lambda value: type(value).__name__)
def test_captums_class_is_wrong_with_its_defaults_and_a_verdict_says_so(
    architecture: str, ours: ca.Attribution, theirs: Any, tmp_path: Path
) -> None:
    """It reads the whole prompt again on top of its cache. Without the cache, or in one pass, it is right.

    Where this fails, the pages need not warn any more.
    """
    directory = saved(tmp_path, architecture)
    adapter = CausalLMAdapter({"dtype": "float64"}, directory=directory)
    given, text = prompts(adapter, PROMPTS[2]), " see the see"
    target = ca.SequenceLogProbability((text,))
    for cached, in_tokens in itertools.product((True, False), repeat=2):
        wrapper = ca.LLMAttribution(use_cached_outputs=cached, forward_in_tokens=in_tokens)
        method = replace(ours, llm_attribution=wrapper)
        (found,) = asked(adapter, given, target=target, attributions=(method,), seed=3).attributions
        if isinstance(ours, ca.FeatureAblation):
            options = {"use_cached_outputs": cached, "forward_in_tokens": in_tokens}
            own = llm(directory, lambda plain: theirs(plain.double()), text, PROMPTS[2], **options)
            np.testing.assert_allclose(found.values["input_ids"][0], own.seq_attr, rtol=0, atol=1e-5)
        check = found.checks[0]
        if cached and in_tokens:
            assert (check.verdict, check.cause) == (Verdict.DISAGREES, ca.Cause.OTHER_PASSES), check
            assert "use_cached_outputs=False" in check.reason
        else:
            assert [(one.verdict, one.reason) for one in found.checks] == [(Verdict.AGREES, "")] * len(found.checks)


@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        (ca.LayerGradientXActivation(layer="transformer.wte"), captum.LayerGradientXActivation, {}),
        (
            ca.LayerIntegratedGradients(layer="transformer.wte", n_steps=8),
            captum.LayerIntegratedGradients,
            {"n_steps": 8},
        ),
    ],
)
def test_gradients_are_those_of_captum(gpt2: Path, ours: ca.Attribution, theirs: Any, options: dict[str, Any]) -> None:
    adapter = CausalLMAdapter(directory=gpt2)
    right = llm(gpt2, lambda plain: theirs(plain, plain.transformer.wte), **options)
    result = asked(adapter, prompts(adapter, PROMPTS[0]), target=ONE, attributions=(ours,))
    np.testing.assert_allclose(of_prompt(adapter, result.attributions[0]), right.seq_attr.detach(), rtol=0, atol=1e-4)
    found = [of_prompt(adapter, one) for one in by_token(adapter, ours)]
    np.testing.assert_allclose(found, right.token_attr.detach(), rtol=0, atol=1e-4)
    assert result.attributions[0].checks[0].verdict is Verdict.AGREES


@pytest.mark.parametrize("check", [*ca.CheckMode])
@pytest.mark.parametrize(
    "method",
    [
        ca.FeatureAblation(),
        ca.ShapleyValueSampling(n_samples=3),
        ca.KernelShap(n_samples=60),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_row_is_explained_as_alone(gpt2: Path, method: ca.Attribution, check: ca.CheckMode) -> None:
    """By token, of prompts of different lengths, whose padding has no part in it."""
    adapter, mode = CausalLMAdapter(directory=gpt2), ca.CheckRequest(mode=check)
    target = ca.SequenceLogProbability(TEXTS[:1], by_token=True)
    together = asked(adapter, prompts(adapter, *PROMPTS), target=target, attributions=(method,), check=mode, seed=3)
    steps = len(adapter.tokenizer.encode(TEXTS[0], add_special_tokens=False))
    assert len(together.attributions) == steps
    assert all(one.verdict is Verdict.AGREES for each in together.attributions for one in each.checks)
    if isinstance(method, ca.FeatureAblation):
        alone = asked(adapter, prompts(adapter, PROMPTS[2]), target=target, attributions=(method,), check=mode)
        for one, other in zip(together.attributions, alone.attributions):
            own = other.values["input_ids"].shape[1]
            np.testing.assert_allclose(
                one.values["input_ids"][2, -own:], other.values["input_ids"][0], rtol=0, atol=1e-5
            )
            assert not one.values["input_ids"][2, :-own].any()


class Counted(CausalLMAdapter):
    """Counts the passes."""

    ran = 0

    def forward(self, model: nn.Module, inputs: dict[str, Any]) -> dict[str, Tensor]:
        self.ran += 1
        return super().forward(model, inputs)


@pytest.mark.parametrize("check", [ca.CheckMode.OFF, ca.CheckMode.SAME_PASS])
def test_tokens_share_the_passes_of_a_perturbation(gpt2: Path, check: ca.CheckMode) -> None:
    ran = []
    for several in (False, True):
        adapter = Counted(directory=gpt2)
        target = ca.SequenceLogProbability((TEXTS[1],), by_token=several)
        inputs, mode = prompts(adapter, PROMPTS[0]), ca.CheckRequest(mode=check)
        asked(adapter, inputs, target=target, attributions=(ca.FeatureAblation(),), check=mode)
        ran.append(adapter.ran)
    assert ran[0] > len(prompts(adapter, PROMPTS[0])["input_ids"][0])
    assert ran[1] <= ran[0] + 4  # what is found out of the model


def test_hooks_see_the_prompt_and_the_text_but_its_last_token(gpt2: Path) -> None:
    """A position of -1 is the last token that the model reads, of each row."""
    adapter, plain = CausalLMAdapter(directory=gpt2), by_hand(gpt2)
    last = (ca.Capture("transformer.h.1", position=-1), ca.Capture("transformer.h.0"))
    result = asked(adapter, prompts(adapter, *PROMPTS), target=OWN, captures=last)
    for row, (prompt, text) in enumerate(zip(PROMPTS, TEXTS)):
        ids = adapter.tokenizer.encode(prompt + text)[:-1]
        with torch.no_grad():
            expected = plain.transformer(torch.tensor([ids])).last_hidden_state[0, -1]
        found = plain.transformer.ln_f(torch.tensor(result.captures["transformer.h.1"].output[row]))
        np.testing.assert_allclose(found.detach(), expected, rtol=0, atol=1e-5)
    longest = max(len(adapter.tokenizer.encode(text)) for text in PROMPTS)
    assert (
        result.captures["transformer.h.0"].output.shape[1] == longest + result.predictions["continuation"].shape[1] - 1
    )


def test_all_logits_are_there_where_they_are_asked_for(gpt2: Path) -> None:
    adapter, plain = CausalLMAdapter(directory=gpt2), by_hand(gpt2)
    result = asked(adapter, prompts(adapter, PROMPTS[0]), target=ONE, arguments={"logits": True})
    ids = adapter.tokenizer.encode(PROMPTS[0] + TEXTS[1])[:-1]
    with torch.no_grad():
        expected = plain(torch.tensor([ids])).logits
    np.testing.assert_allclose(result.predictions["logits"], expected, rtol=0, atol=1e-5)


FIELD = "target.sequence_log_probability"


@pytest.mark.parametrize(
    ("target", "more", "expected"),
    [
        (ca.SequenceLogProbability((" the", " see")), {}, f"TARGET_MISMATCH [{FIELD}.texts]"),
        (ca.SequenceLogProbability((" the", "", " see")), {}, f"INVALID_VALUE [{FIELD}.texts[1]]"),
        (ca.SequenceLogProbability((" the" * 60,)), {}, f"LIMIT_EXCEEDED [{FIELD}.texts[0]]"),
        (ca.SequenceLogProbability((" the",), output="next"), {}, f"INVALID_VALUE [{FIELD}.output]"),
        (ONE, {"attributions": (ca.FeatureAblation(target=OWN),)},
            "INVALID_VALUE [attributions[0].target.sequence_log_probability.texts]"),
        (ONE, {"generate": ca.Generate(3)}, "INVALID_VALUE [target]"),
        (ca.Contrast(ONE, OWN), {}, "INVALID_VALUE [target.contrast.target]"),
        (ca.LogProbability(ONE), {"attributions": (ca.FeatureAblation(target=ONE),)},
            "INVALID_VALUE [target.log_probability.target]"),
    ],
)  # fmt: skip
def test_what_is_refused(gpt2: Path, target: ca.Target, more: dict[str, Any], expected: str) -> None:
    adapter = CausalLMAdapter(directory=gpt2)
    with pytest.raises(CutawayError) as failure:
        asked(adapter, prompts(adapter, *PROMPTS), target=target, **more)
    assert str(failure.value).startswith(expected)


def test_prompts_are_padded_on_the_left(gpt2: Path) -> None:
    adapter = CausalLMAdapter(directory=gpt2)
    inputs = {name: tensor.flip(1) for name, tensor in prompts(adapter, *PROMPTS).items()}
    with pytest.raises(InvalidArgument, match="pad prompts on the left"):
        asked(adapter, inputs, target=ONE)


def test_other_models_write_no_texts() -> None:
    model = load_model(ca.adapters.TensorAdapter(nn.Linear(3, 2)), "cpu")
    with pytest.raises(InvalidArgument, match=r"METHOD_INAPPLICABLE .* writes no texts"):
        inspect(model, ca.InspectRequest("m", target=ONE), {"input": torch.ones(1, 3)})


@pytest.mark.parametrize("own", [False, True])
def test_a_job_has_no_target_of_as_many_columns_as_tokens(own: bool) -> None:
    target = {"sequence_log_probability": {"texts": [" see"], "by_token": True}}
    method = {"method": "feature_ablation", "target": target} if own else "FeatureAblation"
    with pytest.raises(InvalidArgument, match=r"target\.sequence_log_probability\.by_token"):
        parse_request({"attributions": [method]}, "predicted_class" if own else target)


# Targets of one token: ``position``.

TOKENS: dict[str, tuple[ca.Target, Callable[[Tensor], Tensor]]] = {
    "a label": (ca.ClassLabel((" see",), position=-2), lambda logits: logits[LABEL]),
    "a log-probability": (
        ca.LogProbability(ca.ClassLabel((" see",)), position=-2), lambda logits: logits.log_softmax(0)[LABEL]),
    "a contrast": (
        ca.Contrast(ca.ClassLabel((" see",)), ca.ClassIndex((7,)), position=-2),
        lambda logits: logits[LABEL] - logits[7]),
    "the likeliest": (ca.PredictedClass(position=-2), lambda logits: logits.max()),
    "a sum": (ca.OutputSum(position=-2), lambda logits: logits.sum()),
}  # fmt: skip
LABEL = 0


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", TOKENS)
def test_a_target_of_one_token_is_that_of_each_row(gpt2: Path, name: str, side: str) -> None:
    """Its gradient and its attribution, whichever side is padded; all logits are not sent."""
    global LABEL
    adapter, plain = CausalLMAdapter(directory=gpt2), by_hand(gpt2)
    LABEL = list(adapter.labels).index(" see")
    target, read = TOKENS[name]
    rows = [adapter.tokenizer.encode(text) for text in PROMPTS]
    longest = max(map(len, rows))
    ids, mask = ([[*row, *[0] * (longest - len(row))] if side == "right" else [*[0] * (longest - len(row)), *row]
                  for row in each] for each in (rows, [[1] * len(row) for row in rows]))  # fmt: skip
    inputs = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
    method = ca.LayerGradientXActivation(layer="transformer.wte")
    result = asked(adapter, inputs, target=target, attributions=(method, ca.FeatureAblation()))
    assert {*result.predictions} == {"next"}
    assert result.target_values is not None
    explained, ablated = result.attributions
    assert {each.verdict for one in result.attributions for each in one.checks} == {Verdict.AGREES}
    for number, row in enumerate(rows):
        words = plain.transformer.wte(torch.tensor([row])).detach().requires_grad_()
        value = read(plain(inputs_embeds=words).logits[0, -2])
        (gradient,) = torch.autograd.grad(value, words)
        assert result.target_values[number] == pytest.approx(value.item(), abs=1e-4)
        at = slice(longest - len(row), longest) if side == "left" else slice(len(row))
        found = explained.values["transformer.wte"][number, at]
        np.testing.assert_allclose(found, (gradient * words)[0].detach(), rtol=0, atol=1e-5)
        without = torch.tensor([[0, *row[1:]]])
        change = value.item() - read(plain(without).logits[0, -2]).item() if name != "the likeliest" else None
        if change is not None:
            assert ablated.values["input_ids"][number, at.start or 0] == pytest.approx(change, abs=1e-4)


@pytest.mark.parametrize(
    ("target", "more", "expected"),
    [
        (ca.ClassIndex((7,), position=40), {}, "SLICE_RANGE [target.position]"),
        (ca.ClassIndex((7,), position=-1, output="next"), {}, "TARGET_SHAPE [target.position]"),
        (ca.SequenceLogProbability((" the",), position=-1), {}, f"INVALID_VALUE [{FIELD}.position]"),
        (ca.MultiIndex(((0, 1),), position=-1), {}, None),
        (ca.LogProbability(ca.ClassIndex((7,), position=-1)), {}, "INVALID_VALUE [target.log_probability.target]"),
        (ca.Cotangent(np.ones(3), position=-1), {}, "INVALID_VALUE [target.position]"),
    ],
)
def test_positions_that_are_refused(gpt2: Path, target: ca.Target, more: dict[str, Any], expected: str | None) -> None:
    adapter = CausalLMAdapter(directory=gpt2)
    with pytest.raises(CutawayError) as failure:
        asked(adapter, prompts(adapter, *PROMPTS), target=target, **more)
    assert expected is None or str(failure.value).startswith(expected)


def test_requests_with_other_padding_are_each_explained_at_their_own_token(gpt2: Path) -> None:
    """They may share passes: a token's place is that of the request's own row."""
    adapter = CausalLMAdapter(directory=gpt2)
    model, inputs = load_model(adapter, "cpu"), prompts(adapter, *PROMPTS[:2])
    own = [{name: tensor[row : row + 1] for name, tensor in inputs.items()} for row in (0, 1)]
    method = ca.FeatureAblation(target=ca.ClassIndex((7,), position=0))
    request = ca.InspectRequest("m", attributions=(method,))
    found = inspect_batch([plan_request(model, request, tensors) for tensors in own])
    for outcome, tensors in zip(found, own):
        assert isinstance(outcome, InspectResult)
        alone = inspect(model, request, tensors).attributions[0]
        np.testing.assert_allclose(
            outcome.attributions[0].values["input_ids"], alone.values["input_ids"], rtol=0, atol=1e-5
        )
        assert outcome.attributions[0].checks[0].verdict is Verdict.AGREES


@pytest.mark.parametrize("check", [*ca.CheckMode])
def test_captums_class_has_the_values_of_each_token(gpt2: Path, check: ca.CheckMode) -> None:
    """It computes those of all tokens at once."""
    adapter = CausalLMAdapter({"dtype": "float64"}, directory=gpt2)
    target = ca.SequenceLogProbability((TEXTS[1],), by_token=True)
    given, mode = prompts(adapter, PROMPTS[0]), ca.CheckRequest(mode=check)
    own, wrapped = (
        asked(adapter, given, target=target, attributions=(method,), check=mode)
        for method in (ca.FeatureAblation(), ca.FeatureAblation(llm_attribution=RIGHT))
    )
    assert len(own.attributions) == len(wrapped.attributions)
    for one, other in zip(own.attributions, wrapped.attributions):
        np.testing.assert_allclose(one.values["input_ids"], other.values["input_ids"], rtol=0, atol=1e-5)
        assert [(each.verdict, each.reason) for each in other.checks] == [(Verdict.AGREES, "")] * len(one.checks)


def test_a_verdict_on_captums_class_is_each_tokens_own(gpt2: Path) -> None:
    """The first token is right, since nothing is in the cache yet; each later one has the cause."""
    adapter = CausalLMAdapter({"dtype": "float64"}, directory=gpt2)
    target = ca.SequenceLogProbability((" see the see",), by_token=True)
    method = ca.FeatureAblation(llm_attribution=ca.LLMAttribution())
    first, *later = asked(adapter, prompts(adapter, PROMPTS[2]), target=target, attributions=(method,)).attributions
    assert (first.checks[0].verdict, first.checks[0].reason) == (Verdict.AGREES, "")
    found = [(one.checks[0].verdict, one.checks[0].cause) for one in later]
    assert found == [(Verdict.DISAGREES, ca.Cause.OTHER_PASSES)] * 2


def test_captums_class_ends_when_nobody_waits(gpt2: Path) -> None:
    """Each of its calls of the model is a pass of the request, between two of which others run too."""
    adapter, ran = CausalLMAdapter(directory=gpt2), list[int]()
    model = load_model(adapter, "cpu")
    method = ca.FeatureAblation(llm_attribution=RIGHT)
    asked_for = ca.InspectRequest("m", target=ONE, attributions=(method,))
    plan = plan_request(model, asked_for, prompts(adapter, PROMPTS[2]), Cancellation(hung_up=lambda: len(ran) >= 9))
    with model.module.register_forward_hook(lambda *_: ran.append(1)):
        (outcome,) = inspect_batch([plan])
    assert isinstance(outcome, DeadlineExceeded)
    assert len(ran) == 9


@pytest.mark.parametrize(
    "changed",
    [
        {"target": ca.ClassIndex((3,))},
        {
            "attributions": (ca.KernelShap(n_samples=60, llm_attribution=RIGHT),),
            "target": ca.SequenceLogProbability((TEXTS[1],), by_token=True),
        },
        {"attributions": (ca.LayerGradientXActivation(layer="transformer.wte", llm_attribution=RIGHT),)},
        {"attributions": (ca.FeatureAblation(inputs=("attention_mask",), llm_attribution=RIGHT),)},
        {"edits": (ca.Zero("transformer.h.0"),)},
        {"texts": PROMPTS},
    ],
)
def test_what_captums_class_cannot_do_is_an_error(gpt2: Path, changed: dict[str, Any]) -> None:
    adapter = CausalLMAdapter(directory=gpt2)
    request = {"target": ONE, "attributions": (ca.FeatureAblation(llm_attribution=RIGHT),), **changed}
    given = prompts(adapter, *request.pop("texts", PROMPTS[:1]))
    given.setdefault("attention_mask", torch.ones_like(given["input_ids"]))
    with pytest.raises(InvalidArgument) as refused:
        asked(adapter, given, **request)
    found = refused.value.reason, refused.value.field
    assert found == ("METHOD_INAPPLICABLE", "attributions[0].llm_attribution"), refused.value
