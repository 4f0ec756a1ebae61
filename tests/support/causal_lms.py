"""Small causal language models with random weights, saved as transformers saves them, and a tokenizer for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn

from cutaway.contract.results import InspectResult

VOCABULARY = 300
"""More than the tokenizer has: models round their sizes up."""

CHAT = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}you:{% endif %}"

ENDS: dict[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
SIZES: dict[str, Any] = {**ENDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
GROUPED: dict[str, Any] = {
    **SIZES, "num_key_value_heads": 1, "intermediate_size": 24, "max_position_embeddings": 64, "head_dim": 8,
}  # fmt: skip
SLIDING: dict[str, Any] = {**GROUPED, "sliding_window": 4}
ARCHITECTURES: Mapping[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, **ENDS},
    "llama": GROUPED,
    "mistral": SLIDING,
    "qwen2": {name: size for name, size in GROUPED.items() if name != "head_dim"},
    "qwen3": GROUPED,
    "gemma2": {**SLIDING, "query_pre_attn_scalar": 8},
    "gemma3_text": SLIDING,
    "mixtral": {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "opt": {**SIZES, "ffn_dim": 24, "word_embed_proj_dim": 16, "max_position_embeddings": 64},
    "bloom": {"hidden_size": 16, "n_layer": 2, "n_head": 2, **ENDS},
    "falcon": SIZES,
    "gpt_neox": {**SIZES, "intermediate_size": 24},
    "mamba": {**SIZES, "state_size": 4},
}

BLOCKS: Mapping[str, str] = dict.fromkeys(ARCHITECTURES, "model.layers") | {
    **dict.fromkeys(("gpt2", "bloom", "falcon"), "transformer.h"),
    "opt": "model.decoder.layers",
    "gpt_neox": "gpt_neox.layers",
    "mamba": "backbone.layers",
}
"""The list of the blocks."""


def saved(directory: Path, architecture: str = "gpt2", **more: Any) -> Path:
    """Saves a small model with random weights, and its tokenizer."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(architecture, **ARCHITECTURES[architecture])
    )
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.15 if parameter.ndim > 1 else 0.5)
    model.save_pretrained(directory, **more)
    tokenizer().save_pretrained(directory)
    return directory


class Watched:
    """A listener that keeps what it hears."""

    passes: Sequence[int] = ()

    def __init__(self) -> None:
        self.heard: list[InspectResult] = []

    def so_far(self, result: InspectResult) -> None:
        self.heard.append(result)

    def progress(self, progress: Any) -> None:
        raise AssertionError(progress)


def tokenizer() -> Any:
    """Reads text by bytes, and a few words; two pieces of it have the text of a broken character."""
    alphabet = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("s", "e"), ("se", "e"), ("Ġ", "see")]
    pieces = [*alphabet, *(left + right for left, right in merges)]
    numbers = {piece: number for number, piece in enumerate(["<end>", *pieces])}
    found = Tokenizer(models.BPE(vocab=numbers, merges=merges))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=found, eos_token="<end>", chat_template=CHAT)
