"""Small language models with random weights, saved as transformers saves them, and a tokenizer for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import nn

from cutaway.contract.results import InspectResult

VOCABULARY = 300
"""More than the tokenizer has: models round their sizes up."""

CHAT = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}you:{% endif %}"

FIRST = 7
"""The token with which a decoder begins."""

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
    "t5": {
        **ENDS, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": FIRST,
    },
    "bart": {
        **ENDS, "d_model": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 24,
        "decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 24, "max_position_embeddings": 64,
        "decoder_start_token_id": FIRST, "forced_eos_token_id": None,
    },
}  # fmt: skip

_GPT2: dict[str, Any] = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, **ENDS}
_MHA: dict[str, Any] = {name: size for name, size in GROUPED.items() if name != "head_dim"}
_FOUR_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
_MAMBA: dict[str, Any] = {"mamba_d_head": 8, "mamba_d_state": 4, "mamba_n_groups": 1}
MORE: Mapping[str, dict[str, Any]] = {
    **dict.fromkeys(("arcee", "cohere2", "gemma", "glm", "glm4", "helium", "nemotron", "seed_oss"), GROUPED),
    **dict.fromkeys(("cohere", "granite", "olmo2", "persimmon", "phi", "phi3", "smollm3", "stablelm"), _MHA),
    **dict.fromkeys(("gpt_bigcode", "openai-gpt"), _GPT2),
    "starcoder2": _MHA,
    "gptj": {**_GPT2, "rotary_dim": 4},
    "codegen": {**_GPT2, "n_head": 4, "rotary_dim": 4},
    "gpt_neo": {
        **ENDS, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]],
        "window_size": 4, "max_position_embeddings": 64,
    },
    "biogpt": {**SIZES, "intermediate_size": 24, "max_position_embeddings": 64},
    "xglm": {
        **ENDS, "d_model": 16, "ffn_dim": 24, "num_layers": 2, "attention_heads": 2, "max_position_embeddings": 64,
    },
    "mpt": {**ENDS, "d_model": 16, "n_heads": 2, "n_layers": 2, "max_seq_len": 64},
    "ministral": SLIDING,
    "exaone4": {**SLIDING, "sliding_window_pattern": 2},
    "gpt_oss": {**SLIDING, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {**GROUPED, **_FOUR_EXPERTS},
    "olmoe": {**_MHA, "num_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": {
        **_MHA, "num_key_value_heads": 2, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
        "topk_group": 1, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4,
        "v_head_dim": 8, "moe_intermediate_size": 8, "first_k_dense_replace": 1, "n_shared_experts": 1,
    },
    "mamba2": {
        **ENDS, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4, "num_heads": 4, "head_dim": 8,
        "n_groups": 1, "chunk_size": 4,
    },
    "lfm2": {**_MHA, "layer_types": ["conv", "full_attention"]},
    "falcon_h1": {**GROUPED, **_MAMBA, "mamba_d_ssm": 16, "mamba_n_heads": 2},
    "bamba": {**_MHA, **_MAMBA, "attn_layer_indices": [1], "mamba_n_heads": 4},
}  # fmt: skip
"""Further ones, of which only what they say and write is tested."""

BLOCKS: Mapping[str, str] = dict.fromkeys(ARCHITECTURES, "model.layers") | {
    **dict.fromkeys(("gpt2", "bloom", "falcon"), "transformer.h"),
    "opt": "model.decoder.layers",
    "gpt_neox": "gpt_neox.layers",
    "mamba": "backbone.layers",
    "t5": "decoder.block",
    "bart": "model.decoder.layers",
}
"""The list of the blocks; of those that write, where others read."""

PATHS: Mapping[str, str] = {"bloom": "[0]", "t5": "[0]"}
"""The path of the tokens in what a block returns."""

ENCODERS: Mapping[str, str] = {"t5": "encoder.block", "bart": "model.encoder.layers"}
"""The list of the blocks that read."""


def saved(directory: Path, architecture: str = "gpt2", **more: Any) -> Path:
    """Saves a small model with random weights, and its tokenizer."""
    torch.manual_seed(0)
    configuration = transformers.AutoConfig.for_model(architecture, **{**ARCHITECTURES, **MORE}[architecture])
    model = _kind(configuration).from_config(configuration)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.15 if parameter.ndim > 1 else 0.5)
    model.save_pretrained(directory, **more)
    tokenizer().save_pretrained(directory)
    return directory


def _kind(configuration: Any) -> Any:
    return transformers.AutoModelForSeq2SeqLM if configuration.is_encoder_decoder else transformers.AutoModelForCausalLM


def by_hand(directory: Path) -> Any:
    """Returns the model of a directory, as transformers loads it."""
    return _kind(transformers.AutoConfig.from_pretrained(directory)).from_pretrained(directory).eval()


def logits(model: Any, ids: Any, text: Sequence[int] = ()) -> Any:
    """Returns those behind ``ids`` [1, tokens] and each token of ``text``, of its decoder where there is one."""
    if not model.config.is_encoder_decoder:
        return model(torch.cat([ids, ids.new_tensor([[*text]])], dim=1)).logits
    return model(ids, decoder_input_ids=ids.new_tensor([[FIRST, *text]])).logits


class Watched:
    """A listener that keeps what it hears."""

    passes: Sequence[int] = ()

    def __init__(self) -> None:
        self.heard: list[InspectResult] = []

    def so_far(self, result: InspectResult) -> None:
        self.heard.append(result)

    def progress(self, progress: Any) -> None:
        raise AssertionError(progress)


def saved_for_chats(directory: Path, architecture: str = "gpt2") -> Path:
    """Saves what `saved` does, with a tokenizer that begins each text with a special token, as its chat template
    does."""
    saved(directory, architecture)
    made = tokenizer()
    made.add_special_tokens({"bos_token": "<begin>", "additional_special_tokens": ["<turn>"]})
    begins = processors.TemplateProcessing("<begin> $A", special_tokens=[("<begin>", made.bos_token_id)])
    made.backend_tokenizer.post_processor = begins
    made.chat_template = "{{ bos_token }}" + CHAT.replace("{{ m.role", "<turn>{{ m.role")
    made.save_pretrained(directory)
    return directory


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
