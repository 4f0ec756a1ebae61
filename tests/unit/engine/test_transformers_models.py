"""Architectures of transformers, small and with random weights, against hooks by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import TensorAdapter, load_model
from cutaway.contract.results import InputSpec, InspectResult
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel

DEEP: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24,
}  # fmt: skip
SIGHT: dict[str, Any] = {**DEEP, "image_size": 32, "patch_size": 8}
WORDS: dict[str, Any] = {**DEEP, "vocab_size": 40, "max_position_embeddings": 64, "pad_token_id": 0}
STAGES: dict[str, Any] = {"hidden_sizes": [8, 12, 16, 20], "depths": [1, 1, 2, 1]}
PYRAMID: dict[str, Any] = {
    "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2],
}  # fmt: skip
HALVES: dict[str, Any] = {
    "vocab_size": 40, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "eos_token_id": 2, "pad_token_id": 0,
    "bos_token_id": 1, "decoder_start_token_id": 1,
}  # fmt: skip
WAVES: dict[str, Any] = {
    **DEEP, "conv_dim": (8, 8, 8), "conv_kernel": (10, 3, 3), "conv_stride": (5, 2, 2), "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2, "vocab_size": 20, "classifier_proj_size": 8,
}  # fmt: skip
SERIES: dict[str, Any] = {
    "num_input_channels": 3, "context_length": 24, "patch_length": 6, "patch_stride": 6, "d_model": 16,
    "num_targets": 5, "num_attention_heads": 2, "ffn_dim": 24,
}  # fmt: skip

Shapes: TypeAlias = dict[str, tuple[int, ...]]
PHOTO: Shapes = {"pixel_values": (2, 3, 32, 32)}
TEXT: Shapes = {"input_ids": (2, 9)}
SOUND: Shapes = {"input_values": (2, 2000)}
MODELS: Mapping[str, tuple[str, dict[str, Any], Shapes]] = {
    **dict.fromkeys(("vit", "beit", "data2vec-vision", "dinov2"), ("ForImageClassification", SIGHT, PHOTO)),
    **dict.fromkeys(("convnext", "convnextv2"), ("ForImageClassification", STAGES, PHOTO)),
    **dict.fromkeys(("clip_vision_model", "siglip_vision_model"), ("", SIGHT, PHOTO)),
    "swinv2": ("ForImageClassification", {
        "image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [1, 2, 1], "num_heads": [1, 2, 2],
        "window_size": 4,
    }, PHOTO),
    "resnet": ("ForImageClassification", {**STAGES, "embedding_size": 8}, PHOTO),
    "pvt": ("ForImageClassification", {**PYRAMID, "image_size": 32}, PHOTO),
    "segformer": ("ForSemanticSegmentation", {**PYRAMID, "decoder_hidden_size": 8}, PHOTO),
    **{
        kind: ("ForSequenceClassification", {**WORDS, "embedding_size": 16}, TEXT)
        for kind in ("bert", "roberta", "electra", "albert", "deberta", "mpnet", "convbert", "roformer", "fnet")
    },
    "distilbert": ("ForSequenceClassification", {
        "dim": 16, "hidden_dim": 24, "n_layers": 3, "n_heads": 2, "vocab_size": 40,
    }, TEXT),
    "funnel": ("ForSequenceClassification", {
        "vocab_size": 40, "d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 24, "block_sizes": [1, 1],
        "num_decoder_layers": 1,
    }, TEXT),
    "longformer": ("ForSequenceClassification", {**WORDS, "attention_window": 4}, TEXT),
    "modernbert": ("ForSequenceClassification", {
        **WORDS, "local_attention": 4, "global_attn_every_n_layers": 2, "bos_token_id": 1, "eos_token_id": 2,
        "cls_token_id": 1, "sep_token_id": 2,
    }, TEXT),
    "mamba2": ("ForCausalLM", {
        "hidden_size": 16, "num_hidden_layers": 2, "vocab_size": 40, "state_size": 4, "num_heads": 4, "head_dim": 8,
        "n_groups": 1, "chunk_size": 4,
    }, TEXT),
    **dict.fromkeys(("wav2vec2", "hubert", "wavlm"), ("ForAudioClassification", WAVES, SOUND)),
    "audio-spectrogram-transformer": ("ForAudioClassification", {
        **DEEP, "patch_size": 4, "max_length": 24, "num_mel_bins": 16, "frequency_stride": 2, "time_stride": 2,
    }, {"input_values": (2, 24, 16)}),
    "whisper": ("ForAudioClassification", {
        **HALVES, "num_mel_bins": 8, "max_source_positions": 16, "classifier_proj_size": 8,
    }, {"input_features": (2, 8, 32)}),
    "patchtst": ("PatchTSTForClassification", {**SERIES, "do_mask_input": False}, {"past_values": (2, 24, 3)}),
    "patchtsmixer": ("PatchTSMixerForTimeSeriesClassification", SERIES, {"past_values": (2, 24, 3)}),
}  # fmt: skip
"""By kind: the class behind ``AutoModel``, or its own; the sizes; the shapes of the inputs."""

_RESULTS = ("logits", "prediction_outputs", "prediction_logits", "pooler_output")


class Classifier(nn.Module):
    """A model of transformers that returns numbers by row and class."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        made, sizes, _ = MODELS[kind]
        torch.manual_seed(0)
        config = transformers.AutoConfig.for_model(kind, num_labels=5, **sizes)
        auto: Any = getattr(transformers, f"AutoModel{made}", None)
        self.net = getattr(transformers, made)(config) if auto is None else auto.from_config(config)
        for parameter in self.net.parameters():
            nn.init.normal_(parameter, std=0.2 if parameter.ndim > 1 else 0.5)

    def forward(self, **inputs: Tensor) -> Tensor:
        outputs = self.net(**inputs)
        found: Tensor = next(value for name in _RESULTS if (value := getattr(outputs, name, None)) is not None)
        return found.flatten(2).mean(2) if found.ndim == 4 else found.mean(1) if found.ndim == 3 else found


class Adapter(TensorAdapter):
    """Passes inputs by name."""

    def forward(self, model: nn.Module, inputs: dict[str, Any]) -> Any:
        return model(**inputs)


def inputs_of(kind: str) -> dict[str, Tensor]:
    torch.manual_seed(1)
    shapes = MODELS[kind][2].items()
    return {name: torch.randint(3, 39, shape) if name == "input_ids" else torch.randn(shape) for name, shape in shapes}


def loaded(kind: str) -> InspectedModel:
    inputs = inputs_of(kind)
    specs = [InputSpec(name, str(x.dtype).removeprefix("torch."), (-1,) * x.ndim) for name, x in inputs.items()]
    return load_model(Adapter(Classifier(kind), inputs=specs), "cpu")


def asked(model: InspectedModel, kind: str, **request: Any) -> InspectResult:
    return inspect(model, ca.InspectRequest(kind, target=ca.ClassIndex((1,)), **request), inputs_of(kind))


def layers_of(kind: str) -> list[str]:
    """Five modules over the depth that return one tensor, once."""
    plain, found = Classifier(kind).eval(), dict[str, list[Any]]()
    handles = [
        module.register_forward_hook(lambda _, __, output, name=name: found.setdefault(name, []).append(output))
        for name, module in plain.named_modules() if name
    ]  # fmt: skip
    with torch.no_grad():
        plain(**inputs_of(kind))
    for handle in handles:
        handle.remove()
    plain_ones = [
        name for name, calls in found.items()
        if len(calls) == 1 and isinstance(calls[0], Tensor) and calls[0].is_floating_point()
    ]  # fmt: skip
    return plain_ones[:: max(1, len(plain_ones) // 5)][:5]


def by_hand(kind: str, layers: Sequence[str], factor: float = 1.0) -> tuple[Tensor, dict[str, Tensor], dict[str, Any]]:
    """The outputs, the values of ``layers``, and the gradients of these and of the inputs; the middle layer's value is
    multiplied first."""
    plain, values, kept = Classifier(kind).eval(), dict[str, Tensor](), dict[str, Tensor]()

    def hook(name: str, _: nn.Module, __: Any, output: Tensor) -> Tensor:
        kept[name] = output * factor if name == layers[2] else output
        values[name] = kept[name].detach().clone()  # what follows may overwrite it
        return kept[name]

    handles = [
        plain.get_submodule(name).register_forward_hook(lambda *call, name=name: hook(name, *call)) for name in layers
    ]
    kept |= {name: x.requires_grad_() for name, x in inputs_of(kind).items() if x.is_floating_point()}
    outputs = plain(**{**inputs_of(kind), **kept})
    gradients = torch.autograd.grad(outputs[:, 1].sum(), [*kept.values()], allow_unused=True)
    for handle in handles:
        handle.remove()
    return outputs.detach(), values, dict(zip(kept, gradients))


def same(found: Any, expected: Tensor, what: str) -> None:
    error = 1e-5 * max(1.0, float(expected.abs().max()))
    np.testing.assert_allclose(found, expected.detach(), rtol=0, atol=error, err_msg=what)


@pytest.mark.parametrize("kind", MODELS)
def test_captures_gradients_and_edits_are_those_of_hooks_by_hand(kind: str) -> None:
    """The same request again has the same answer: what a model adds to itself in its first pass changes nothing."""
    model, layers = loaded(kind), layers_of(kind)
    floats = tuple(name for name in MODELS[kind][2] if name != "input_ids")
    captures = tuple(ca.Capture(layer, at=("output", "grad_output")) for layer in layers)
    for factor in (1.0, 1.5, 1.0, 1.5):
        outputs, values, gradients = by_hand(kind, layers, factor)
        edits = (ca.Scale(layers[2], factor=factor),) if factor != 1 else ()
        result = asked(model, kind, captures=captures, edits=edits, **({"input_gradients": floats} if floats else {}))
        same(next(iter(result.predictions.values())), outputs, "outputs")
        for layer in layers:
            same(result.captures[layer].output, values[layer], layer)
            if gradients[layer] is not None:
                same(result.captures[layer].grad_output, gradients[layer], f"gradient of {layer}")
        for name in floats:
            same(result.input_gradients[name], gradients[name], f"gradient of {name}")


@pytest.mark.parametrize("kind", MODELS)
def test_healthy_explanations_get_no_alarm(kind: str) -> None:
    """At the inputs, and at a layer that runs once."""
    model, layer = loaded(kind), layers_of(kind)[2]
    methods: list[ca.Attribution] = [ca.LayerIntegratedGradients(layer=layer, n_steps=8)]
    methods += [ca.LayerGradientXActivation(layer=layer)]
    if "input_ids" not in MODELS[kind][2]:
        methods += [ca.Saliency(), ca.IntegratedGradients(n_steps=8), ca.InputXGradient()]
    for method in methods:
        for check in asked(model, kind, attributions=(method,)).attributions[0].checks:
            assert check.verdict is not ca.Verdict.DISAGREES, (method, check.cause)
