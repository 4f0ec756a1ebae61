"""Language models that read one text by an encoder and write another: T5, and BART, whose positions are learned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import captum.attr as captum
import numpy as np
import pytest
import torch
from torch import Tensor

import cutaway as ca
from cutaway.adapters import generation, load_model
from cutaway.adapters.causal_lm import CausalLMAdapter
from cutaway.contract.errors import CutawayError
from cutaway.contract.results import Cause, InspectResult, Verdict
from cutaway.engine.batching import inspect_batch
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.planning.plan import plan_request
from cutaway.server.archive import builder, reader
from cutaway.server.worker.loading import load_archived
from tests.support.causal_lms import BLOCKS, ENCODERS, FIRST, PATHS, by_hand, logits, saved

TEXTS = ("the hooks see layers of the layers", "hooks", "see the hooks")
CONTINUATIONS = (" see", " the layers see", " layers")
STEPS = 6
CROSS = "decoder.block.1.layer.1.EncDecAttention"
VECTOR = np.random.default_rng(0).normal(size=16).astype(np.float32)


class Served:
    """A model as it is served, and the same by hand."""

    def __init__(self, directory: Path, **options: str) -> None:
        self.adapter = CausalLMAdapter(options, directory)
        self.model, self.plain = load_model(self.adapter, "cpu"), by_hand(directory)
        self.plain.set_attn_implementation(options.get("attention", "sdpa"))
        self.plain.to(self.model.dtype)

    def inputs(self, *texts: str) -> dict[str, Tensor]:
        return dict(self.adapter.collate([self.adapter.preprocess(text.encode(), "text/plain") for text in texts]))

    def ask(self, inputs: Mapping[str, Tensor], **request: Any) -> InspectResult:
        return inspect(self.model, ca.InspectRequest("t5", **request), dict(inputs))

    def write(self, *texts: str, **request: Any) -> InspectResult:
        return self.ask(self.inputs(*texts), **{"generate": ca.Generate(STEPS), **request})

    def generate(self, text: str, **options: Any) -> Any:
        return self.plain.generate(
            **self.inputs(text), max_new_tokens=STEPS, do_sample=False, eos_token_id=None, pad_token_id=0,
            return_dict_in_generate=True, **options,
        )  # fmt: skip

    @contextmanager
    def hooked(self, module: str, hook: Callable[[Tensor, int], Tensor]) -> Iterator[None]:
        """Exchanges what a module of the plain model returns; ``hook`` gets it, and the number of the call."""
        calls = iter(range(1 << 20))

        def after(_: Any, __: Any, output: Any) -> Any:
            is_several = isinstance(output, tuple)
            new = hook(output[0] if is_several else output, next(calls))
            return (new, *output[1:]) if is_several else new

        with self.plain.get_submodule(module).register_forward_hook(after):
            yield


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(saved(tmp_path_factory.mktemp("t5"), "t5"), attention="eager")


def agrees(result: InspectResult) -> bool:
    return result.replay is not None and result.replay.verdict is Verdict.AGREES


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_captures_are_what_transformers_returns(dtype: str, t5: Served) -> None:
    """Of every step of the decoder, and of the encoder in the first one, where it reads the text once."""
    served = Served(Path(str(t5.adapter.directory)), dtype=dtype, attention="eager")
    expected = served.generate(TEXTS[0], output_hidden_states=True, output_attentions=True)
    for module in served.plain.modules():  # transformers leaves its own
        module._forward_hooks.clear()
    own, cross = "decoder.block.1.layer.0.SelfAttention", CROSS
    result = served.write(TEXTS[0], captures=(
        ca.Capture("encoder.block.*", path="[0]"), ca.Capture("encoder.final_layer_norm"),
        ca.Capture("decoder.block.0", path="[0]"), ca.Capture(own, path="[2]"), ca.Capture(cross, path="[2]"),
    ))  # fmt: skip
    assert agrees(result)
    np.testing.assert_array_equal(result.predictions["tokens"][0], expected.sequences[0, 1:])
    seen = {
        "encoder.block.0": [expected.encoder_hidden_states[1]],
        "encoder.final_layer_norm": [expected.encoder_hidden_states[-1]],
        "decoder.block.0": [step[1] for step in expected.decoder_hidden_states],
        own: [step[1] for step in expected.decoder_attentions],
        cross: [step[1] for step in expected.cross_attentions],
    }
    for name, tensors in seen.items():
        calls = result.captures[name].calls
        assert len(calls) == len(tensors)
        for call, tensor in zip(calls, tensors):
            np.testing.assert_array_equal(call.output, tensor.float() if dtype == "bfloat16" else tensor)


def test_edits_of_both_parts_are_those_of_hooks(t5: Served) -> None:
    """The encoder's once, those of cross-attention in their steps; receipts say so."""
    vector = torch.from_numpy(VECTOR)
    with (
        t5.hooked("encoder.block.0", lambda output, _: output + 2 * vector),
        t5.hooked(CROSS, lambda output, call: output + vector if call in (1, 3) else output),
    ):
        expected = t5.generate(TEXTS[2]).sequences[0, 1:]
    edits = (
        ca.AddVector("encoder.block.0", VECTOR, scale=2.0, path="[0]"),
        ca.AddVector(CROSS, VECTOR, path="[0]", steps=(1, 3)),
    )
    result = t5.write(TEXTS[2], edits=edits, compare=True)
    np.testing.assert_array_equal(result.predictions["tokens"][0], expected)
    np.testing.assert_array_equal(result.unedited["tokens"][0], t5.generate(TEXTS[2]).sequences[0, 1:])
    assert not np.array_equal(result.predictions["tokens"], result.unedited["tokens"])
    assert [(each.steps, each.tensors) for each in result.receipts] == [((0,), 1), ((1, 3), 2)]
    assert agrees(result)
    with pytest.raises(CutawayError, match=r"EDIT_INAPPLICABLE \[edits\[0\].steps\]"):
        t5.write(TEXTS[2], edits=(ca.Zero("encoder.block.0", path="[0]", steps=(1,)),))


@pytest.mark.parametrize("architecture", ENCODERS)
def test_a_position_counts_in_the_text_that_the_module_has(architecture: str, tmp_path: Path) -> None:
    """Read by the encoder, and by keys of cross-attention; written by the rest. In one pass, with a text and in the
    first step; rows of different lengths."""
    served, path = Served(saved(tmp_path, architecture)), PATHS.get(architecture, "")
    attention = f"{BLOCKS[architecture]}.1.encoder_attn.k_proj" if architecture == "bart" else f"{CROSS}.k"
    read = (ca.Capture(f"{ENCODERS[architecture]}.0", path=path), ca.Capture(attention))
    written = ca.Capture(f"{BLOCKS[architecture]}.1", path=path)
    more: Sequence[dict[str, Any]] = [
        {}, {"generate": ca.Generate(2)}, {"target": ca.SequenceLogProbability(CONTINUATIONS)},
    ]  # fmt: skip
    for asked in more:
        alone = [
            served.ask(
                served.inputs(text), captures=(*read, written),
                **({"target": ca.SequenceLogProbability((CONTINUATIONS[row],))} if "target" in asked else asked),
            )
            for row, text in enumerate(TEXTS)
        ]  # fmt: skip
        for position in (0, 3, -1, -2):
            for capture in (*read, written):
                if capture is written and position not in (0, -1):
                    continue
                own = ca.Capture(
                    capture.module, path=capture.path, position=position, steps=(0,) * ("generate" in asked)
                )
                result = served.ask(served.inputs(*TEXTS), captures=(own,), **asked)
                assert "generate" not in asked or agrees(result), result.replay
                found = result.captures[str(capture.module)].calls[0].output
                for row, one in enumerate(alone):
                    whole = one.captures[str(capture.module)].calls[0].output[0]
                    np.testing.assert_allclose(found[row], whole[position], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("module", "position", "more", "what"),
    [
        ("decoder.block.0", 1, {}, "row 0 has 1 tokens"),
        ("encoder.block.0", 8, {}, "row 1 has 5 tokens"),
        ("decoder.block.0", 1, {"generate": ca.Generate(3)}, "row 0 has 1 tokens"),
    ],
)
def test_a_token_that_the_text_does_not_have_is_refused(
    module: str, position: int, more: dict[str, Any], what: str, t5: Served
) -> None:
    capture = ca.Capture(module, path="[0]", position=position)
    with pytest.raises(CutawayError, match=rf"SLICE_RANGE \[captures\[0\].position\].*{what}"):
        t5.ask(t5.inputs(*TEXTS), captures=(capture,), **more)


def test_a_position_that_may_be_of_either_text_is_refused(t5: Served) -> None:
    """Where as many tokens are written as read, and rows are padded; the encoder's are known."""
    inputs = t5.inputs(*TEXTS)
    text = "see" * inputs["input_ids"].shape[1]
    target = ca.SequenceLogProbability((text, " a", " b"))
    assert t5.ask(inputs, target=target).predictions["continuation"].shape[1] == inputs["input_ids"].shape[1]
    last = ca.Capture("encoder.block.0", path="[0]", position=-1)
    t5.ask(inputs, target=target, captures=(last,))
    for refused in ("decoder.block.0", f"{CROSS}.k"):
        capture = ca.Capture(refused, path="[0]" * (refused == "decoder.block.0"), position=-1)
        with pytest.raises(CutawayError, match=r"AXIS_RANGE \[captures\[0\].position\].*26 tokens that are read"):
            t5.ask(inputs, target=target, captures=(capture,))


@pytest.mark.parametrize("steps", [4, 5, 6, 16])
def test_a_replay_knows_both_texts_however_long(steps: int, t5: Served) -> None:
    """The text has five tokens: as many are written, or one less or more, or as many as a token has numbers."""
    edits = (
        ca.AddVector("decoder.block.0", VECTOR, path="[0]", steps=(1, 3)),
        ca.AddVector("encoder.block.0", VECTOR, path="[0]", position=-2),
        ca.Scale(f"{CROSS}.v", factor=1.5),
    )
    captures = tuple(ca.Capture(f"{part}.block.1", path="[0]") for part in ("encoder", "decoder"))
    asked: dict[str, Any] = {"generate": ca.Generate(steps, temperature=1.0), "captures": captures, "seed": 1}
    result = t5.write("hooks", edits=edits, **asked)
    assert agrees(result), result.replay
    result = t5.ask({"input_ids": torch.arange(3, 19)[None]}, edits=edits, **asked)
    assert agrees(result), result.replay
    plain, calls = generation.score, list[int]()

    def of_another_text(model: Any, inputs: dict[str, Tensor], *rest: Any, **more: Any) -> Tensor:
        calls.append(1)
        return plain(model, {**inputs, "input_ids": inputs["input_ids"].flip(1)}, *rest, **more)

    with patch("cutaway.adapters.causal_lm.score", of_another_text):
        wrong = t5.write("hooks", **asked)
    assert calls
    assert wrong.replay is not None
    assert wrong.replay.verdict is Verdict.DISAGREES


def test_heads_are_divided_among_no_requests(tmp_path: Path) -> None:
    """A model of two heads reads two tokens beside one: attention weights are those of the request alone."""
    served = Served(saved(tmp_path, "bart"), attention="eager")
    request = ca.InspectRequest(
        "bart", generate=ca.Generate(3), captures=(ca.Capture(f"{BLOCKS['bart']}.0.self_attn", path="[1]"),)
    )
    plans = [plan_request(served.model, request, served.inputs(text)) for text in ("see", "see the")]
    assert [plan.inputs["input_ids"].shape[1] for plan in plans] == [1, 2]
    for plan, found in zip(plans, inspect_batch(plans)):
        assert isinstance(found, InspectResult)
        assert agrees(found)
        alone = inspect(served.model, request, plan.inputs)
        for own, other in zip(*(each.captures[f"{BLOCKS['bart']}.0.self_attn"].calls for each in (found, alone))):
            np.testing.assert_allclose(own.output, other.output, rtol=0, atol=1e-6)


def test_a_fault_behind_the_cache_of_what_was_read_has_its_cause(t5: Served) -> None:
    """The keys of cross-attention, of the length of the text read, are not what one pass computes."""

    def forgotten(_: Any, args: Any, given: dict[str, Any]) -> None:
        kept = given.get("past_key_values")
        if kept is not None and kept.get_seq_length():
            for layer in kept.cross_attention_cache.layers:
                layer.values = torch.zeros_like(layer.values)

    with t5.model.module.register_forward_pre_hook(forgotten, with_kwargs=True):
        result = t5.write(TEXTS[0], check=ca.CheckRequest(ca.CheckMode.SAME_PASS))
    assert result.replay is not None
    assert (result.replay.verdict, result.replay.cause) == (Verdict.DISAGREES, Cause.STALE_CACHE)


def test_attributions_of_the_text_read_agree(t5: Served) -> None:
    """Integrated gradients of its embedding as Captum's, an ablation as by hand, gradients as autograd's."""
    inputs, label = t5.inputs(TEXTS[2]), t5.adapter.labels.index(" see")
    words = "encoder.embed_tokens"
    path, ablation = ca.LayerIntegratedGradients(layer=words, n_steps=64), ca.FeatureAblation()
    result = t5.ask(
        inputs, target=ca.ClassIndex((label,)), attributions=(path, ablation),
        captures=(ca.Capture(words, at="grad_output"),),
    )  # fmt: skip
    assert {check.verdict for each in result.attributions for check in each.checks} == {Verdict.AGREES}
    ids = inputs["input_ids"]

    def score(ids: Tensor) -> Any:
        return t5.plain(ids, decoder_input_ids=torch.full((len(ids), 1), FIRST)).logits[:, -1, label]

    expected = captum.LayerIntegratedGradients(score, t5.plain.encoder.embed_tokens).attribute(
        ids, baselines=torch.zeros_like(ids), n_steps=64
    )
    np.testing.assert_allclose(result.attributions[0].values[words], expected.detach(), rtol=0, atol=1e-5)
    assert result.attributions[0].tokens is not None
    np.testing.assert_array_equal(result.attributions[0].tokens.ids, ids)
    with torch.no_grad():
        changes = [score(ids) - score(ids.index_fill(1, torch.tensor([place]), 0)) for place in range(ids.shape[1])]
    np.testing.assert_allclose(result.attributions[1].values["input_ids"], torch.stack(changes, 1), rtol=0, atol=1e-5)
    embedded = t5.plain.encoder.embed_tokens(ids).detach().requires_grad_()
    first = torch.full((1, 1), FIRST)
    value = t5.plain(inputs_embeds=embedded, decoder_input_ids=first).logits[0, -1, label]
    (gradient,) = torch.autograd.grad(value, embedded)
    np.testing.assert_allclose(result.captures[words].grad_output, gradient, rtol=0, atol=1e-6)


def test_a_text_that_is_written_is_explained_by_the_text_read(t5: Served) -> None:
    """By token, of rows of different lengths; padding has no part in it."""
    target = ca.SequenceLogProbability((" sees",), by_token=True)
    request: dict[str, Any] = {"target": target, "attributions": (ca.FeatureAblation(),)}
    together, alone = (t5.ask(t5.inputs(*texts), **request) for texts in (TEXTS, TEXTS[2:]))
    tokens = t5.adapter.tokenizer.encode(" sees")
    assert [one.targets.tolist() for one in alone.attributions if one.targets is not None] == [
        [each] for each in tokens
    ]
    ids = t5.inputs(TEXTS[2])["input_ids"]

    def scores(ids: Tensor) -> list[float]:
        found = logits(t5.plain, ids, tokens[:-1])[0].log_softmax(-1)
        return [found[step, token].item() for step, token in enumerate(tokens)]

    for one, other, step in zip(together.attributions, alone.attributions, range(len(tokens))):
        assert {check.verdict for each in (one, other) for check in each.checks} == {Verdict.AGREES}
        expected = [
            scores(ids)[step] - scores(ids.index_fill(1, torch.tensor([place]), 0))[step]
            for place in range(ids.shape[1])
        ]
        own = other.values["input_ids"]
        np.testing.assert_allclose(own[0], expected, rtol=0, atol=1e-5)
        np.testing.assert_allclose(one.values["input_ids"][2, : own.shape[1]], own[0], rtol=0, atol=1e-5)
        assert not one.values["input_ids"][2, own.shape[1] :].any()


def test_logits_of_each_token_of_a_text(t5: Served) -> None:
    """On request; and a target of one of them, in the text that is written."""
    tokens = t5.adapter.tokenizer.encode(CONTINUATIONS[1])
    result = t5.ask(
        t5.inputs(TEXTS[0]), target=ca.SequenceLogProbability((CONTINUATIONS[1],)), arguments={"logits": True}
    )
    expected = logits(t5.plain, t5.inputs(TEXTS[0])["input_ids"], tokens[:-1]).detach()
    np.testing.assert_allclose(result.predictions["logits"], expected, rtol=0, atol=1e-5)
    for position in (0, -1):
        one = t5.ask(t5.inputs(*TEXTS), target=ca.ClassIndex((9,), position=position))
        assert one.target_values is not None
        np.testing.assert_allclose(one.target_values, one.predictions["next"][:, 9], rtol=0, atol=1e-6)


def test_the_text_begins_with_its_first_token(t5: Served) -> None:
    """Not with the token of the decoder that stands before it, which a penalty of repetitions does count."""
    result = t5.write("see", generate=ca.Generate(STEPS, repetition_penalty=0.1))
    expected = t5.generate("see", repetition_penalty=0.1).sequences[0, 1:]
    assert FIRST in expected
    np.testing.assert_array_equal(result.predictions["tokens"][0], expected)
    assert result.texts[0] == t5.adapter.tokenizer.decode(expected, clean_up_tokenization_spaces=False)


def test_a_decoder_without_a_first_token_is_refused(tmp_path: Path) -> None:
    directory = saved(tmp_path, "t5")
    for file in ("config.json", "generation_config.json"):
        text = (directory / file).read_text()
        for name in ("decoder_start_token_id", "bos_token_id"):
            text = text.replace(f'"{name}": {FIRST if name[0] == "d" else 0}', f'"{name}": null')
        (directory / file).write_text(text)
    with pytest.raises(CutawayError, match=r"ADAPTER_INVALID.*decoder_start_token_id"):
        load_model(CausalLMAdapter(directory=directory), "cpu")


def test_what_was_saved_is_packaged(tmp_path: Path) -> None:
    """Embeddings that are tied stay tied."""
    directory = saved(tmp_path / "saved", "t5")
    weights, others = builder.of_transformers(directory)
    archive = builder.build(
        model="t5", adapter=builder.CAUSAL_LM, weights=weights, options={}, extra_files=others, batch_size=1,
        max_batch_delay_ms=1, workers=1, response_timeout_s=9, destination=tmp_path,
    )  # fmt: skip
    reader.unpack(archive, tmp_path / "unpacked")
    _, model = load_archived(reader.unpacked(tmp_path / "unpacked"), tmp_path / "unpacked", "cpu")
    tied = ("shared", "encoder.embed_tokens", "decoder.embed_tokens", "lm_head")
    assert len({id(model.module.get_submodule(name).weight) for name in tied}) == 1


@pytest.mark.parametrize("generate", [None, ca.Generate(STEPS)], ids=["one pass", "generation"])
def test_a_token_is_named_by_its_text_where_it_is_read(t5: Served, generate: ca.Generate | None) -> None:
    """In each row's own text, inside of the encoder; elsewhere that is refused, since other tokens are written."""
    texts, name, steps = ("hooks see the", " the hooks see"), f"{ENCODERS['t5']}.1", (0,) if generate else ()
    asked = ca.Capture(name, path="[0]", position=" the", steps=steps)
    by_text = t5.ask(t5.inputs(*texts), captures=(asked,), generate=generate).captures[name].calls[0]
    for row, (text, number) in enumerate(zip(texts, (-1, 0))):
        by_number = ca.Capture(name, path="[0]", position=number, steps=steps)
        alone = t5.ask(t5.inputs(text), captures=(by_number,), generate=generate).captures[name].calls[0]
        found, expected = (call.leaves[ca.Point.OUTPUT]["[0]"] for call in (by_text, alone))
        np.testing.assert_allclose(found[row], expected[0], rtol=0, atol=1e-5)
    written = ca.Capture(f"{BLOCKS['t5']}.1", path="[0]", position=" the", steps=steps)
    with pytest.raises(CutawayError, match=r"AXIS_RANGE.*is a token that is read") as refused:
        t5.ask(t5.inputs(*texts), captures=(written,), generate=generate)
    assert refused.value.field.startswith("captures[0].position")


def test_captums_class_for_language_models_does_not_take_an_encoder(t5: Served) -> None:
    method = ca.FeatureAblation(llm_attribution=ca.LLMAttribution())
    with pytest.raises(CutawayError, match=r"METHOD_INAPPLICABLE.*llm_attribution.*reads by an encoder"):
        t5.ask(t5.inputs(TEXTS[0]), target=ca.SequenceLogProbability((CONTINUATIONS[0],)), attributions=(method,))
