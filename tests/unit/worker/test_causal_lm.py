"""Causal language models of transformers: packaged as they were saved, and right under every padding."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import pad

import cutaway as ca
from cutaway.adapters import load_model
from cutaway.adapters.causal_lm import CausalLMAdapter
from cutaway.contract.errors import InvalidArgument
from cutaway.contract.results import InspectResult, Verdict
from cutaway.engine.execution.inspect import inspect
from cutaway.server.archive import builder, reader
from cutaway.server.worker.loading import load_archived
from tests.support.causal_lms import ARCHITECTURES, ENCODERS, MORE, VOCABULARY, by_hand, logits, saved, tokenizer

TEXTS = ("the hooks see layers of the layers", "hooks", "see the hooks")


def asked(adapter: CausalLMAdapter, inputs: Mapping[str, Tensor], **request: Any) -> InspectResult:
    return inspect(load_model(adapter, "cpu"), ca.InspectRequest("m", **request), dict(inputs))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("gpt2"))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_row_is_as_alone_whichever_side_is_padded(architecture: str, tmp_path: Path) -> None:
    directory = saved(tmp_path, architecture)
    adapter, plain = CausalLMAdapter(directory=directory), by_hand(directory)
    alone = [adapter.preprocess(text.encode(), "text/plain") for text in TEXTS]
    longest = max(row["input_ids"].shape[1] for row in alone)
    right = {
        name: torch.cat([pad(row[name], (0, longest - row[name].shape[1])) for row in alone])
        for name in ("input_ids", "attention_mask")
    }
    with torch.no_grad():
        expected = [logits(plain, row["input_ids"]) for row in alone]
    for batch in (adapter.collate(alone), right):
        result = asked(adapter, batch, arguments={"logits": True})
        for row, one in enumerate(expected):
            np.testing.assert_allclose(result.predictions["next"][row], one[0, -1], rtol=0, atol=1e-5)
        assert result.predictions["logits"].shape == (3, 1 if architecture in ENCODERS else longest, VOCABULARY)
    lone = asked(adapter, adapter.collate(alone[:1]))
    np.testing.assert_allclose(lone.predictions["next"][0], expected[0][0, -1], rtol=0, atol=1e-5)
    assert {*lone.predictions} == {"next"}


@pytest.mark.parametrize("architecture", MORE)
@torch.no_grad()
def test_other_architectures_say_and_write_in_a_batch_what_they_do_alone(architecture: str, tmp_path: Path) -> None:
    directory = saved(tmp_path, architecture)
    adapter, plain = CausalLMAdapter(directory=directory), by_hand(directory)
    alone = [adapter.preprocess(text.encode(), "text/plain") for text in TEXTS]
    batch = adapter.collate(alone)
    said, written = asked(adapter, batch), asked(adapter, batch, generate=ca.Generate(6))
    assert written.replay is not None
    assert written.replay.verdict is Verdict.AGREES
    for row, own in enumerate(alone):
        expected = plain(input_ids=own["input_ids"]).logits[0, -1]
        np.testing.assert_allclose(said.predictions["next"][row], expected, rtol=0, atol=2e-5)
        ids = plain.generate(**own, max_new_tokens=6, do_sample=False)[0, own["input_ids"].shape[1] :].tolist()
        assert [token for token in written.predictions["tokens"][row].tolist() if token >= 0] == ids


@pytest.mark.parametrize("kind", ["rwkv", "xlnet"])
def test_models_that_would_answer_wrong_are_refused(kind: str, tmp_path: Path) -> None:
    transformers.AutoConfig.for_model(kind).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    with pytest.raises(InvalidArgument, match=f"a model of the kind {kind} .*: it is not served"):
        CausalLMAdapter(directory=tmp_path)


@pytest.mark.parametrize("architecture", ["gpt2", "mistral", "mamba"])
def test_the_last_position_of_every_layer_is_that_of_a_hook(architecture: str, tmp_path: Path) -> None:
    """Of rows of different lengths, by one index: texts are padded on the left."""
    directory = saved(tmp_path, architecture)
    adapter, plain = CausalLMAdapter(directory=directory), by_hand(directory)
    batch = adapter.collate([adapter.preprocess(text.encode(), "text/plain") for text in TEXTS])
    layers = {"gpt2": "transformer.h", "mistral": "model.layers", "mamba": "backbone.layers"}[architecture]
    last = ca.Slice(1, -1)
    result = asked(adapter, batch, captures=(ca.Capture(f"{layers}.*", slices=(last,)),))
    seen: list[Tensor] = []
    for row, text in enumerate(TEXTS):
        handle = plain.get_submodule(f"{layers}.0").register_forward_hook(
            lambda _, __, output: seen.append(output[0] if isinstance(output, tuple) else output)
        )
        plain(adapter.preprocess(text.encode(), "text/plain")["input_ids"])
        handle.remove()
        captured = result.captures[f"{layers}.0"].output
        np.testing.assert_allclose(captured[row, 0], seen[-1][0, -1].detach(), rtol=0, atol=1e-5)
    assert result.captures[f"{layers}.1"].output.shape == (3, 1, 16)


@pytest.mark.parametrize("architecture", ["gpt2", "gemma2", "mixtral"])
def test_attributions_of_a_token_agree(architecture: str, tmp_path: Path) -> None:
    adapter = CausalLMAdapter(directory=saved(tmp_path, architecture))
    inputs = adapter.collate([adapter.preprocess(text.encode(), "text/plain") for text in TEXTS])
    words = "transformer.wte" if architecture == "gpt2" else "model.embed_tokens"
    methods = (ca.LayerIntegratedGradients(layer=words, n_steps=8), ca.LayerGradientXActivation(layer=words))
    result = asked(adapter, inputs, target=ca.ClassLabel((" the",)), attributions=methods)
    assert [each.checks[0].verdict for each in result.attributions] == [Verdict.AGREES] * 2


class Counted(CausalLMAdapter):
    """Counts the passes."""

    ran = 0

    def forward(self, model: nn.Module, inputs: dict[str, Any]) -> dict[str, Tensor]:
        self.ran += 1
        return super().forward(model, inputs)


def passes(directory: Path, target: ca.Target, method: ca.Attribution) -> int:
    adapter = Counted(directory=directory)
    off = ca.CheckRequest(mode=ca.CheckMode.OFF)
    asked(adapter, adapter.example() or {}, target=target, attributions=(method,), check=off)
    return adapter.ran


def test_why_this_token_and_not_that_one(gpt2: Path) -> None:
    """The gradient of the difference of two logits, all steps of a path in one pass, as for one token."""
    adapter, plain = CausalLMAdapter(directory=gpt2), by_hand(gpt2)
    inputs = adapter.example() or {}
    path = ca.LayerIntegratedGradients(layer="transformer.wte", n_steps=32)
    sides = ca.ClassLabel((" the",)), ca.ClassLabel((" see",))
    request = {"captures": (ca.Capture("transformer.wte", at="grad_output"),), "attributions": (path,)}
    result = asked(adapter, inputs, target=ca.Contrast(*sides), **request)
    words = plain.get_input_embeddings()(inputs["input_ids"]).detach().requires_grad_()
    logits = plain(inputs_embeds=words, logits_to_keep=1).logits[0, -1]
    one, other = (adapter.labels.index(side.labels[0]) for side in sides)
    (expected,) = torch.autograd.grad(logits[one] - logits[other], words)
    found = result.captures["transformer.wte"].grad_output
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert result.attributions[0].checks[0].verdict is Verdict.AGREES
    assert passes(gpt2, ca.Contrast(*sides), path) == passes(gpt2, sides[0], path)
    with pytest.raises(InvalidArgument, match=r"LABEL_NOT_FOUND \[target.contrast.other.class_label.labels\[0\]\]"):
        asked(adapter, inputs, target=ca.Contrast(sides[0], ca.ClassLabel((" thee",))), **request)


def test_the_log_probability_of_a_token(gpt2: Path) -> None:
    """By the text of the token; its value and gradient are those of log_softmax, and its sums add up to it."""
    adapter, plain = CausalLMAdapter(directory=gpt2), by_hand(gpt2)
    inputs = adapter.example() or {}
    explained = ca.LogProbability(ca.ClassLabel((" see",)))
    path = ca.LayerIntegratedGradients(layer="transformer.wte", n_steps=32)
    result = asked(adapter, inputs, target=explained, attributions=(path,), captures=(
        ca.Capture("transformer.wte", at="grad_output"),))  # fmt: skip
    words = plain.get_input_embeddings()(inputs["input_ids"]).detach().requires_grad_()
    logits = plain(inputs_embeds=words, logits_to_keep=1).logits[0, -1]
    value = torch.log_softmax(logits, 0)[adapter.labels.index(" see")]
    (expected,) = torch.autograd.grad(value, words)
    np.testing.assert_allclose(result.captures["transformer.wte"].grad_output, expected, rtol=0, atol=1e-6)
    assert result.target_values is not None
    np.testing.assert_allclose(result.target_values, np.array([value.item()]), rtol=0, atol=1e-5)
    assert {check.verdict for check in result.attributions[0].checks} <= {Verdict.AGREES, Verdict.NOT_APPLICABLE}
    assert passes(gpt2, explained, path) == passes(gpt2, ca.ClassLabel((" see",)), path)


def test_labels_are_texts_of_tokens(gpt2: Path) -> None:
    """Each once: bytes that are no character by themselves are as the tokenizer writes them."""
    adapter = CausalLMAdapter(directory=gpt2)
    labels, pieces = adapter.labels, adapter.tokenizer.get_vocab()
    assert [labels[pieces[piece]] for piece in ("Ġthe", "the", "Ġ", "Ċ")] == [" the", "the", " ", "\n"]
    assert len(labels) == len({*labels}) == VOCABULARY
    assert labels[-1] == f"<{VOCABULARY - 1}>"
    result = asked(adapter, adapter.example() or {})
    assert result.classes[0].label == labels[int(result.predictions["next"][0].argmax())]


def test_a_conversation_goes_through_the_chat_template(gpt2: Path) -> None:
    adapter = CausalLMAdapter(directory=gpt2)
    messages = [{"role": "me", "content": "see the hooks"}]
    found = adapter.preprocess(json.dumps(messages).encode(), "application/json")["input_ids"]
    assert adapter.tokenizer.decode(found[0]) == "me: see the hooks\nyou:"
    several = json.dumps([messages, messages]).encode()
    for wrong in (b"{", b"7", b'"see"', b'[{"role": {}}, 3]', several):
        with pytest.raises(InvalidArgument, match="no conversation"):
            adapter.preprocess(wrong, "application/json")


def test_options_choose_data_type_and_attention(gpt2: Path) -> None:
    adapter = CausalLMAdapter({"dtype": "bfloat16", "attention": "eager"}, gpt2)
    model = load_model(adapter, "cpu")
    assert {parameter.dtype for parameter in model.module.parameters()} == {torch.bfloat16}
    weights = ca.Capture("transformer.h.0.attn", path="[1]")
    result = inspect(model, ca.InspectRequest("m", captures=(weights,)), dict(adapter.example() or {}))
    tokens = (adapter.example() or {})["input_ids"].shape[1]
    assert result.captures["transformer.h.0.attn"].output.shape == (1, 2, tokens, tokens)


class Writer(CausalLMAdapter):
    """Writes the likeliest tokens, without a field of the request for it."""

    def forward(self, model: nn.Module, inputs: dict[str, Any]) -> dict[str, Tensor]:
        return {"ids": model.generate(**inputs, max_new_tokens=5, do_sample=False)}  # type: ignore[operator]


def test_an_adapter_may_generate_and_each_step_is_a_call(gpt2: Path) -> None:
    adapter, plain = Writer(directory=gpt2), by_hand(gpt2)
    inputs = dict(adapter.example() or {})
    captures = (ca.Capture("transformer.h.1"),)
    result = inspect(load_model(adapter, "cpu"), ca.InspectRequest("m", captures=captures), inputs)
    seen: list[Tensor] = []
    layer = plain.get_submodule("transformer.h.1")
    with layer.register_forward_hook(lambda _, __, output: seen.append(output.detach())):
        expected = plain.generate(**inputs, max_new_tokens=5, do_sample=False)
    assert np.array_equal(result.predictions["ids"], expected)
    assert len(seen) == 5
    for step, output in enumerate(seen):
        assert np.array_equal(result.captures["transformer.h.1"].calls[step].output, output)


@pytest.mark.parametrize("shard", ["1GB", "20KB"])
def test_what_was_saved_is_packaged(shard: str, tmp_path: Path) -> None:
    """In one file or in several; weights that are tied stay tied, and their memory is that of the files."""
    directory = saved(tmp_path / "saved", max_shard_size=shard)
    (directory / "pytorch_model.bin").write_bytes(b"a pickle")
    weights, others = builder.of_transformers(directory)
    assert (weights is None) == (shard == "20KB")
    archive = builder.build(
        model="gpt", adapter=builder.CAUSAL_LM, weights=weights, options={}, extra_files=others, batch_size=1,
        max_batch_delay_ms=1, workers=1, response_timeout_s=9, destination=tmp_path,
    )  # fmt: skip
    reader.unpack(archive, tmp_path / "unpacked")
    _, model = load_archived(reader.unpacked(tmp_path / "unpacked"), tmp_path / "unpacked", "cpu")
    tied = (model.module.get_submodule(name).weight for name in ("lm_head", "transformer.wte"))
    assert next(tied) is next(tied)
    assert "unpacked/model" in Path("/proc/self/maps").read_text()
    assert not (tmp_path / "unpacked" / "pytorch_model.bin").exists()
    assert model.weights_sha256 == load_model(CausalLMAdapter(directory=directory), "cpu").weights_sha256


@pytest.mark.parametrize(
    ("missing", "what"),
    [
        ("config.json", "has no config.json: save_pretrained"),
        ("tokenizer_config.json", "has no tokenizer_config.json: save_pretrained"),
        ("model.safetensors", "has no model.safetensors, and no parts of it; pickles are not served"),
    ],
)
def test_a_directory_that_lacks_a_file_is_refused(missing: str, what: str, tmp_path: Path) -> None:
    directory = saved(tmp_path)
    (directory / missing).unlink()
    with pytest.raises(InvalidArgument, match=what):
        builder.of_transformers(directory)
