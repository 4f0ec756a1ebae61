"""The log-probability of a whole text as a target: against Captum's attributions of language models, and by hand."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
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
from tests.support.causal_lms import ARCHITECTURES, BLOCKS, by_hand, logits, saved

PROMPTS = ("the hooks see layers of the layers", "hooks", "see the hooks")
TEXTS = (" see", " the layers see", " layers")
OWN = ca.SequenceLogProbability(TEXTS)
ONE = ca.SequenceLogProbability((TEXTS[1],))


def asked(adapter: CausalLMAdapter, inputs: Mapping[str, Tensor], **request: Any) -> InspectResult:
    return inspect(load_model(adapter, "cpu"), ca.InspectRequest("m", **request), dict(inputs))


def prompts(adapter: CausalLMAdapter, *texts: str) -> dict[str, Tensor]:
    return dict(adapter.collate([adapter.preprocess(text.encode(), "text/plain") for text in texts]))


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


def llm(
    directory: Path, method: Callable[[Any], Any], text: str = TEXTS[1], prompt: str = PROMPTS[0], **options: Any
) -> Any:
    """What Captum's own attributions of language models say of a prompt and a text."""
    plain, adapter = by_hand(directory), CausalLMAdapter(directory=directory)
    made = method(plain)
    kind = captum.LLMGradientAttribution if hasattr(made, "layer") else captum.LLMAttribution
    read = captum.TextTokenInput(prompt, adapter.tokenizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kind(made, adapter.tokenizer).attribute(read, target=text, **options)


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
MIXED = np.array([[1, *[0] * 25]])
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


WORDS = "transformer.wte"
GRADIENTS: list[tuple[Callable[[str], ca.Attribution], Any, dict[str, Any]]] = [
    (lambda layer: ca.LayerGradientXActivation(layer=layer, llm_attribution=ca.LLMAttribution()),
     captum.LayerGradientXActivation, {}),
    (lambda layer: ca.LayerIntegratedGradients(layer=layer, n_steps=8, llm_attribution=ca.LLMAttribution()),
     captum.LayerIntegratedGradients, {"n_steps": 8}),
]  # fmt: skip


def of_captum(
    directory: Path, dtype: str, layer: str, method: ca.Attribution, text: str, prompt: str, *, by_token: bool = True
) -> tuple[AttributionResult, ...]:
    """What Captum's class says when it is asked for here."""
    adapter, target = (
        CausalLMAdapter({"dtype": dtype}, directory=directory),
        ca.SequenceLogProbability((text,), by_token),
    )
    found = asked(adapter, prompts(adapter, prompt), target=target, attributions=(method,)).attributions
    assert {one.values[layer].shape for one in found} == {(1, len(adapter.tokenizer.encode(prompt)))}
    return found


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("architecture", ["gpt2", "llama", "gemma2", "gemma3_text", "opt", "mamba"])
@pytest.mark.parametrize(("ours", "theirs", "options"), GRADIENTS, ids=lambda value: getattr(value, "__name__", ""))
def test_captums_class_for_gradients_is_run_and_agrees(
    architecture: str, dtype: str, ours: Callable[[str], ca.Attribution], theirs: Any, options: Any, tmp_path: Path
) -> None:
    """By sequence and by token, at the embedding and at a layer where tokens of the text have values too."""
    directory, text = saved(tmp_path, architecture), " see the see"
    plain = by_hand(directory)
    words = next(name for name, module in plain.named_modules() if module is plain.get_input_embeddings())
    for layer in (words, BLOCKS[architecture] + ".0"):
        made = partial(lambda layer, plain: theirs(plain.to(getattr(torch, dtype)), plain.get_submodule(layer)), layer)
        right, error = (
            llm(directory, made, text, PROMPTS[2], **options),
            {"float64": 1e-6, "float32": 1e-4}.get(dtype, 0.05),
        )
        assert len(right.token_attr) == 3
        largest = right.token_attr.abs().max().item()
        for by_token, expected in ((False, right.seq_attr[None]), (True, right.token_attr)):
            found = of_captum(directory, dtype, layer, ours(layer), text, PROMPTS[2], by_token=by_token)
            np.testing.assert_allclose(
                np.concatenate([one.values[layer] for one in found]), expected.double(), rtol=0, atol=error * largest
            )
            tokens = [one.tokens.values for one in found if one.tokens is not None]
            np.testing.assert_array_equal(tokens, [one.values[layer] for one in found])
            verdicts = {(check.verdict, check.cause) for one in found for check in one.checks}
            assert verdicts <= {(Verdict.AGREES, None), (Verdict.INCONCLUSIVE, ca.Cause.CANCELLATION)}
            if layer == words and dtype != "bfloat16":
                assert verdicts == {(Verdict.AGREES, None)}


class _Faulty(captum.LLMGradientAttribution):  # type: ignore[misc]
    """Captum's class with a fault."""

    fault = ""

    def __init__(self, method: Any, tokenizer: Any) -> None:
        if self.fault == "another layer":
            method.layer = method.forward_func.transformer.wpe
        super().__init__(method, tokenizer)

    def attribute(self, inp: Any, target: Any = None, *args: Any, **options: Any) -> Any:
        if self.fault == "another baseline":
            inp.baselines = 7
        if self.fault == "another text":
            target = target.flip(0)
        found = super().attribute(inp, target, *args, **options)
        if self.fault == "shifted tokens":
            found.token_attr, found.seq_attr = found.token_attr.roll(1, 1), found.seq_attr.roll(1)
        if self.fault == "another token's values":
            found.token_attr = found.token_attr.roll(1, 0)
        if self.fault == "no sum":
            found.seq_attr = found.token_attr.mean(0)
        return found


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize(
    "fault",
    ["another layer", "another baseline", "another text", "shifted tokens", "another token's values", "no sum"],
)
@pytest.mark.parametrize(("ours", "theirs", "options"), GRADIENTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_fault_of_captums_class_for_gradients_is_found(
    gpt2: Path, ours: Any, theirs: Any, options: Any, fault: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "another baseline" and not options:
        return  # it has none
    monkeypatch.setattr(captum, "LLMGradientAttribution", type(fault, (_Faulty,), {"fault": fault}))
    by_token = fault != "no sum"
    found = of_captum(gpt2, dtype, WORDS, ours(WORDS), " see the", PROMPTS[2], by_token=by_token)
    unknown = {Verdict.INCONCLUSIVE} if dtype == "bfloat16" else set()  # where terms cancel
    assert {one.checks[0].verdict for one in found} - unknown <= {Verdict.DISAGREES}


def shap(tokens: int, token: int = 0, **more: Any) -> ca.Attribution:
    """Expected gradients with three samples, all of one baseline."""
    baselines = {"input_ids": np.full((2, tokens), token)}
    given = {"layer": WORDS, "n_samples": 3, "llm_attribution": ca.LLMAttribution(), **more}
    return ca.LayerGradientShap(baselines=baselines, **given)


@pytest.mark.parametrize("by_token", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_captums_class_is_wrong_about_expected_gradients_and_a_verdict_says_so(
    gpt2: Path, dtype: str, by_token: bool
) -> None:
    """It takes them at the baseline. Where this fails, the pages need not warn any more."""
    tokens = len(CausalLMAdapter(directory=gpt2).tokenizer.encode(PROMPTS[2]))
    own = llm(
        gpt2,
        lambda plain: captum.LayerGradientShap(plain.to(getattr(torch, dtype)), plain.transformer.wte),
        " see the see", PROMPTS[2], baselines=torch.zeros(2, tokens), n_samples=3,
    )  # fmt: skip
    found = of_captum(gpt2, dtype, WORDS, shap(tokens), " see the see", PROMPTS[2], by_token=by_token)
    expected = own.token_attr if by_token else own.seq_attr[None]
    np.testing.assert_allclose(np.concatenate([one.values[WORDS] for one in found]), expected, rtol=0, atol=1e-5)
    for check in (check for one in found for check in one.checks):
        assert (check.verdict, check.cause) == (Verdict.DISAGREES, ca.Cause.OTHER_PASSES)
        assert "at the baseline" in check.reason


class _Right(captum.LLMGradientAttribution):  # type: ignore[misc]
    """Expected gradients between what the embedding returns, by hand; a fault shifts the points."""

    shift = 0.0

    def attribute(self, inp: Any, target: Any = None, **options: Any) -> Any:
        plain, each, samples = self.attr_method.forward_func.model, [], options["n_samples"]
        ids, read = inp.inp_tensor, inp.to_model_input(torch.zeros(1, inp.n_itp_features))
        for step, token in enumerate(target):
            np.random.choice(len(options["baselines"]), samples)
            drawn = torch.tensor(np.random.uniform(0.0, 1.0, samples)).float() + self.shift
            start, end = (plain.transformer.wte(torch.cat([x, target[None, :step]], 1)).detach() for x in (read, ids))
            between = (start + drawn.reshape(-1, 1, 1) * (end - start)).requires_grad_()
            scores = plain._model.module(inputs_embeds=between).logits[:, -1]
            (gradient,) = torch.autograd.grad(scores.log_softmax(-1)[:, token].sum(), between)
            each.append((gradient.mean(0) * (end - start)[0]).sum(-1)[: ids.shape[1]])
        by_token = torch.stack(each)
        return SimpleNamespace(token_attr=by_token, seq_attr=by_token.sum(0))


@pytest.mark.parametrize(("shift", "expected"), [(0.0, Verdict.INCONCLUSIVE), (0.1, Verdict.DISAGREES)])
@pytest.mark.parametrize("by_token", [False, True])
def test_expected_gradients_of_a_text_are_compared_with_those_between_embeddings(
    gpt2: Path, by_token: bool, shift: float, expected: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were Captum right, its values would be those of raw passes."""
    monkeypatch.setattr(captum, "LLMGradientAttribution", type("_", (_Right,), {"shift": shift}))
    method = shap(len(CausalLMAdapter(directory=gpt2).tokenizer.encode(PROMPTS[2])), 7)
    found = of_captum(gpt2, "float64", WORDS, method, " see the see", PROMPTS[2], by_token=by_token)
    assert {one.checks[0].verdict for one in found} == {expected}
    assert shift or max(one.checks[0].max_relative_error for one in found) < 1e-6


@pytest.mark.parametrize("layer", ["lm_head", "transformer.h.0.attn", "transformer"])
def test_captums_class_needs_a_layer_with_tokens(gpt2: Path, layer: str) -> None:
    for method, *_ in GRADIENTS:
        with pytest.raises(InvalidArgument, match=r"METHOD_INAPPLICABLE \[attributions\[0\]\.layer_\w+\.layer\]"):
            of_captum(gpt2, "float32", layer, method(layer), " see", PROMPTS[2])


def test_gradient_shap_takes_no_ids_without_captums_class_and_no_noise_with_it(gpt2: Path) -> None:
    adapter = CausalLMAdapter(directory=gpt2)
    given = prompts(adapter, PROMPTS[2])
    tokens = given["input_ids"].shape[1]
    for more, expected in (
        ({"llm_attribution": None}, r"INPUT_NOT_DIFFERENTIABLE .*attributions\[0\]\.inputs.*LayerIntegratedGradients"),
        ({"stdev": 0.1}, r"INVALID_VALUE .*layer_gradient_shap\.stdev"),
        ({"n_samples": 0}, r"INVALID_VALUE .*layer_gradient_shap\.n_samples"),
    ):
        with pytest.raises(InvalidArgument, match=expected):
            asked(adapter, given, target=ONE, attributions=(shap(tokens, **more),))


def test_tokens_share_one_run_of_captums_class(gpt2: Path) -> None:
    """It explains all tokens at once, in a pass for each."""
    adapter, ran = CausalLMAdapter(directory=gpt2), list[int]()
    model, target = load_model(adapter, "cpu"), ca.SequenceLogProbability((" see the see",), by_token=True)
    request = ca.InspectRequest(
        "m", target=target, attributions=(GRADIENTS[0][0](WORDS),), check=ca.CheckRequest(mode=ca.CheckMode.OFF)
    )
    plan = plan_request(model, request, prompts(adapter, PROMPTS[2]))
    inspect_batch([plan])  # tests of the model
    with model.module.register_forward_hook(lambda *_: ran.append(1)):
        (outcome,) = inspect_batch([plan])
    assert isinstance(outcome, InspectResult)
    tokens = outcome.attributions
    assert len(tokens) == 3
    assert len(ran) - len(tokens) == 2  # the main pass, and one that shows what the layer returns


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
        {"attributions": (ca.LayerGradientXActivation(layer=WORDS, llm_attribution=RIGHT),)},
        {"attributions": (ca.LayerGradCam(layer="transformer.h.0.ln_1", llm_attribution=ca.LLMAttribution()),)},
        {
            "attributions": (ca.LayerGradientXActivation(layer=WORDS, llm_attribution=ca.LLMAttribution()),),
            "target": ca.ClassIndex((3,)),
        },
        {
            "attributions": (
                ca.LayerIntegratedGradients(
                    layer=WORDS, further_layers=("transformer.wpe",), llm_attribution=ca.LLMAttribution()
                ),
            )
        },
        {"attributions": (ca.FeatureAblation(inputs=("attention_mask",), llm_attribution=RIGHT),)},
        {"attributions": (ca.FeatureAblation(baselines={"input_ids": MIXED}, llm_attribution=RIGHT),)},
        {
            "attributions": (
                ca.LayerGradientShap(
                    layer=WORDS, baselines={"input_ids": np.arange(26)[None]}, llm_attribution=ca.LLMAttribution()
                ),
            )
        },
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
