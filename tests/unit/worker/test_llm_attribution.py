"""Captum's class for gradients of language models, run here and by hand, with and without faults."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import captum.attr as captum
import numpy as np
import pytest
import torch
from torch import Tensor

import cutaway as ca
from cutaway.adapters import load_model
from cutaway.adapters.causal_lm import CausalLMAdapter
from cutaway.contract.errors import InvalidArgument
from cutaway.contract.results import AttributionResult, InspectResult, Verdict
from cutaway.engine.batching import inspect_batch
from cutaway.engine.planning.plan import plan_request
from tests.support.causal_lms import BLOCKS, by_hand, saved, saved_for_chats
from tests.support.sequence_targets import PROMPTS, TEXTS, asked, llm, prompts

ONE = ca.SequenceLogProbability((TEXTS[1],))
RIGHT = ca.LLMAttribution(use_cached_outputs=False)
WORDS = "transformer.wte"
GRADIENTS: list[tuple[Callable[[str], ca.Attribution], Any, dict[str, Any]]] = [
    (lambda layer: ca.LayerGradientXActivation(layer=layer, llm_attribution=ca.LLMAttribution()),
     captum.LayerGradientXActivation, {}),
    (lambda layer: ca.LayerIntegratedGradients(layer=layer, n_steps=8, llm_attribution=ca.LLMAttribution()),
     captum.LayerIntegratedGradients, {"n_steps": 8}),
]  # fmt: skip


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("gpt2"))


def of_captum(
    directory: Path, dtype: str, layer: str, method: ca.Attribution, text: str, prompt: str, *, by_token: bool = True
) -> tuple[AttributionResult, ...]:
    """What Captum's class says when it is asked for here."""
    adapter = CausalLMAdapter({"dtype": dtype}, directory=directory)
    target = ca.SequenceLogProbability((text,), by_token)
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
        right = llm(directory, made, text, PROMPTS[2], **options)
        assert len(right.token_attr) == 3
        error = {"float64": 1e-6, "float32": 1e-4}.get(dtype, 0.05) * right.token_attr.abs().max().item()
        for by_token, expected in ((False, right.seq_attr[None]), (True, right.token_attr)):
            found = of_captum(directory, dtype, layer, ours(layer), text, PROMPTS[2], by_token=by_token)
            np.testing.assert_allclose(
                np.concatenate([one.values[layer] for one in found]), expected.double(), rtol=0, atol=error
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
        pytest.skip("it has none")
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


class _Earlier(captum.LLMAttribution):  # type: ignore[misc]
    """Captum's class of release 0.8."""

    def attribute(self, inp: Any, target: Any = None, **options: Any) -> Any:
        assert "forward_in_tokens" not in options
        return super().attribute(inp, target, **options)


def test_an_earlier_class_of_captum_has_a_pass_for_each_token(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captum, "LLMAttribution", _Earlier)
    adapter = CausalLMAdapter(directory=gpt2)
    given, wrapper = prompts(adapter, PROMPTS[2]), ca.LLMAttribution(use_cached_outputs=False)
    (found,) = asked(
        adapter, given, target=ONE, attributions=(ca.FeatureAblation(llm_attribution=wrapper),)
    ).attributions
    assert found.checks[0].verdict is Verdict.AGREES
    other = ca.FeatureAblation(llm_attribution=replace(wrapper, forward_in_tokens=False))
    with pytest.raises(InvalidArgument, match=r"METHOD_INAPPLICABLE .*llm_attribution.*before release 0\.9"):
        asked(adapter, given, target=ONE, attributions=(other,))


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
@pytest.mark.parametrize("grouped", [False, True])
def test_lime_weighs_by_the_presence_of_tokens_in_captums_class(
    architecture: str, grouped: bool, tmp_path: Path
) -> None:
    """And not by their ids, as it does without that class."""
    directory = saved(tmp_path, architecture)
    adapter = CausalLMAdapter({"dtype": "float64"}, directory=directory)
    given = prompts(adapter, PROMPTS[2])
    mask = np.arange(given["input_ids"].numel()) // 3
    torch.manual_seed(3)
    right = llm(
        directory, lambda plain: captum.Lime(plain.double()), " see the", PROMPTS[2], use_cached_outputs=False,
        n_samples=60, **({"feature_mask": torch.tensor(mask[None])} if grouped else {}),
    )  # fmt: skip
    method = ca.Lime(n_samples=60, masks={"input_ids": mask[None]} if grouped else {}, llm_attribution=RIGHT)
    target = ca.SequenceLogProbability((" see the",))
    (found,) = asked(adapter, given, target=target, attributions=(method,), seed=3).attributions
    assert right.seq_attr.abs().max() > 0.1
    np.testing.assert_allclose(found.values["input_ids"][0], right.seq_attr, rtol=0, atol=1e-4)
    assert found.checks[0].verdict is Verdict.AGREES


# Conversations.

MESSAGES = [{"role": "me", "content": "see the hooks"}, {"role": "you", "content": "the layers"}]


def conversation(adapter: CausalLMAdapter) -> dict[str, Tensor]:
    """The tokens of the messages, as they come from a caller."""
    return dict(adapter.collate([adapter.preprocess(json.dumps(MESSAGES).encode(), "application/json")]))


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_for_chats(tmp_path_factory.mktemp("chat"))


def test_a_conversation_begins_once(chat: Path) -> None:
    """The template writes the special tokens, and the tokenizer adds none; it does to a text."""
    adapter = CausalLMAdapter(directory=chat)
    own = adapter.tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_tensors="pt")
    assert torch.equal(conversation(adapter)["input_ids"], own["input_ids"])
    assert prompts(adapter, "see")["input_ids"][0, 0] == own["input_ids"][0, 0] == adapter.tokenizer.bos_token_id


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "gemma2"])
@torch.no_grad()
def test_the_log_probability_of_an_answer_in_a_conversation(architecture: str, tmp_path: Path) -> None:
    directory = saved_for_chats(tmp_path, architecture)
    adapter, plain = CausalLMAdapter(directory=directory), by_hand(directory)
    found = asked(adapter, conversation(adapter), target=ONE)
    ids = adapter.tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    text = torch.tensor([adapter.tokenizer.encode(TEXTS[1], add_special_tokens=False)])
    scores = plain(torch.cat([ids, text], 1)).logits[0, ids.shape[1] - 1 : -1].log_softmax(-1)
    expected = scores.gather(1, text.T).squeeze(1)
    np.testing.assert_allclose(found.predictions["continuation"][0], expected, rtol=0, atol=1e-5)
    assert found.target_values == pytest.approx([expected.sum().item()], abs=1e-4)


SKIPPING: list[tuple[Callable[..., ca.Attribution], Callable[[Any], Any], ca.LLMAttribution, dict[str, Any]]] = [
    (ca.FeatureAblation, captum.FeatureAblation, RIGHT, {"use_cached_outputs": False}),
    (partial(ca.LayerIntegratedGradients, layer=WORDS, n_steps=8),
     lambda plain: captum.LayerIntegratedGradients(plain, plain.transformer.wte), ca.LLMAttribution(), {"n_steps": 8}),
]  # fmt: skip


@pytest.mark.parametrize(("ours", "theirs", "wrapper", "options"), SKIPPING, ids=["ablation", "path"])
def test_special_tokens_of_a_template_stay_as_they_are(
    chat: Path, ours: Any, theirs: Any, wrapper: Any, options: Any
) -> None:
    """Captum's skip_tokens are those that are their own baseline: by our passes, and by Captum's class."""
    adapter = CausalLMAdapter({"dtype": "float64"}, directory=chat)
    given, plain = conversation(adapter), by_hand(chat).double()
    (ids,) = given["input_ids"].tolist()
    skipped = [adapter.tokenizer.bos_token_id, adapter.tokenizer.convert_tokens_to_ids("<turn>")]
    kept = np.isin(ids, skipped)
    assert kept.sum() == 3
    known = SimpleNamespace(
        encode=lambda *_, **__: given["input_ids"], convert_ids_to_tokens=adapter.tokenizer.convert_ids_to_tokens
    )
    read = captum.TextTokenInput("", known, baselines=7, skip_tokens=skipped)
    text = torch.tensor(adapter.tokenizer.encode(TEXTS[1], add_special_tokens=False))
    made = theirs(plain)
    kind = captum.LLMGradientAttribution if hasattr(made, "layer") else captum.LLMAttribution
    right = kind(made, adapter.tokenizer).attribute(read, target=text, **options)
    for with_captums_class, by_token in itertools.product((False, True), repeat=2):
        method = ours(
            baselines={"input_ids": np.where(kept, ids, 7)[None]},
            llm_attribution=wrapper if with_captums_class else None,
        )
        target = ca.SequenceLogProbability((TEXTS[1],), by_token)
        found = asked(adapter, given, target=target, attributions=(method,)).attributions
        values = np.array([one.values["input_ids"][0] if one.tokens is None else one.tokens.values[0] for one in found])
        prompt = values[:, : len(ids)]
        expected = right.token_attr if by_token else right.seq_attr[None]
        np.testing.assert_allclose(prompt[:, ~kept], expected, rtol=0, atol=1e-5 * abs(expected).max().item())
        assert not prompt[:, kept].any()
        assert {one.checks[0].verdict for one in found} == {Verdict.AGREES}


# Templates.

TEMPLATE, PARTS, OTHERS = "a{}b{}c{}:", [" see", " the see", "hooks"], [" the", " see the", "books"]
GROUPS = np.array([[0, 1, 0, 2, 2, 0, 3, 3, 3, 3, 3, 0]])
"""The segment of each token, from 1 on; 0 for the template's own."""


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "gemma2"])
@pytest.mark.parametrize("exact", [False, True])
def test_segments_of_a_template_are_groups_of_tokens_with_a_baseline_each(
    architecture: str, exact: bool, tmp_path: Path
) -> None:
    """Captum's TextTemplateInput, by hand; the rest of the prompt is its own baseline."""
    directory = saved(tmp_path, architecture)
    adapter, plain = CausalLMAdapter({"dtype": "float64"}, directory=directory), by_hand(directory).double()
    theirs, ours = (captum.ShapleyValues, ca.ShapleyValues) if exact else (captum.FeatureAblation, ca.FeatureAblation)
    right = captum.LLMAttribution(theirs(plain), adapter.tokenizer).attribute(
        captum.TextTemplateInput(TEMPLATE, PARTS, OTHERS), target=TEXTS[1], use_cached_outputs=False
    )
    baselines = {"input_ids": [adapter.tokenizer.encode(TEMPLATE.format(*OTHERS))]}
    given = prompts(adapter, TEMPLATE.format(*PARTS))
    for wrapper, by_token in itertools.product((None, RIGHT), (False, True)):
        method = ours(baselines=baselines, masks={"input_ids": GROUPS}, llm_attribution=wrapper)
        target = ca.SequenceLogProbability((TEXTS[1],), by_token)
        found = asked(adapter, given, target=target, attributions=(method,)).attributions
        expected = np.pad(right.token_attr if by_token else right.seq_attr[None], ((0, 0), (1, 0)))[:, GROUPS[0]]
        values = np.concatenate([one.values["input_ids"] for one in found])
        np.testing.assert_allclose(values, expected, rtol=0, atol=1e-5 * abs(expected).max())
        assert {one.checks[0].verdict for one in found} == {Verdict.AGREES}


@pytest.mark.parametrize("exact", [False, True])
def test_baselines_from_lists_are_rows_of_a_text_whose_mean_is_captums(exact: bool, gpt2: Path) -> None:
    """Captum draws in each trial, and returns the mean; here each trial is a row, and all have a verdict."""
    adapter, plain, trials = CausalLMAdapter({"dtype": "float64"}, directory=gpt2), by_hand(gpt2).double(), 3
    theirs, ours = (captum.ShapleyValues, ca.ShapleyValues) if exact else (captum.FeatureAblation, ca.FeatureAblation)
    parts, lists = [" see", " the", "a"], [["a", " the"], [" see", ":", "a"], [":", "see"]]
    (own,), *ids = ([adapter.tokenizer.encode(each)[0] for each in texts] for texts in (":", *lists))
    drawn = ca.ProductBaselines([*ids, [own]])(samples=trials, seed=2)
    assert len(np.unique(drawn, axis=0)) == trials
    passes, number = 1 + 3 * (6 if exact else 1), itertools.count()  # of a trial

    def baselines() -> list[str]:
        return [adapter.tokenizer.decode(token) for token in drawn[next(number) // passes][:3]]

    right = captum.LLMAttribution(theirs(plain), adapter.tokenizer).attribute(
        captum.TextTemplateInput("{}{}{}:", parts, baselines), TEXTS[1], num_trials=trials, use_cached_outputs=False
    )
    assert next(number) == trials * passes
    given, method = prompts(adapter, " see thea:"), ours(baselines={"input_ids": drawn})
    repeated = {name: tensor.expand(trials, -1) for name, tensor in given.items()}
    (found,) = asked(adapter, repeated, target=ONE, attributions=(method,)).attributions
    expected = np.append(right.seq_attr, 0)
    np.testing.assert_allclose(found.values["input_ids"].mean(axis=0), expected, atol=1e-5 * abs(expected).max())
    assert {check.verdict for check in found.checks} == {Verdict.AGREES}
    with pytest.raises(InvalidArgument, match="repeat the example as often"):
        asked(adapter, given, target=ONE, attributions=(method,))


AS_IS = ca.LLMAttribution()


@pytest.mark.parametrize(
    ("method", "target"),
    [
        (ca.LayerGradCam(layer="transformer.h.0.ln_1", llm_attribution=AS_IS), ONE),
        (ca.LayerGradientXActivation(layer=WORDS, llm_attribution=AS_IS), ca.ClassIndex((3,))),
        (ca.LayerIntegratedGradients(layer=WORDS, further_layers=("transformer.wpe",), llm_attribution=AS_IS), ONE),
        (ca.LayerGradientShap(layer=WORDS, baselines={"input_ids": [[1] * 8, [0] * 8]}, llm_attribution=AS_IS), ONE),
        (ca.LayerIntegratedGradients(layer=WORDS, llm_attribution=ca.LLMAttribution(forward_in_tokens=False)), ONE),
    ],
)
def test_what_captums_class_cannot_do_is_an_error(gpt2: Path, method: ca.Attribution, target: ca.Target) -> None:
    adapter = CausalLMAdapter(directory=gpt2)
    with pytest.raises(InvalidArgument) as refused:
        asked(adapter, prompts(adapter, PROMPTS[2]), target=target, attributions=(method,))
    found = refused.value.reason, refused.value.field
    assert found == ("METHOD_INAPPLICABLE", "attributions[0].llm_attribution"), refused.value


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
