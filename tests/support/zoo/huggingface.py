"""Architectures as transformers defines them, from configurations small enough for a test."""

from __future__ import annotations

from typing import Any

import transformers  # loads what is taken from it, when that is taken: four seconds in all
from torch import nn

LABELS = {index: str(index) for index in range(4)}
SMALL: dict[str, Any] = {
    "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12, "id2label": LABELS,
}  # fmt: skip


def bert() -> nn.Module:
    """Token ids, an attention mask and token types to four logits."""
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(vocab_size=30, max_position_embeddings=16, **SMALL)
    )


def gpt2() -> nn.Module:
    """Token ids and an attention mask to four logits; it keeps a cache of keys and values on the way, and attends
    in plain matrix products, where the other transformers take PyTorch's fused ones."""
    sizes: dict[str, int] = {"vocab_size": 30, "n_positions": 16, "n_embd": 8, "n_layer": 2, "n_head": 2}
    config = transformers.GPT2Config(**sizes, pad_token_id=0, bos_token_id=1, eos_token_id=2, id2label=LABELS)
    model = transformers.GPT2ForSequenceClassification(config)
    model.set_attn_implementation("eager")
    return model


def vit() -> nn.Module:
    """An image [batch, 3, 8, 8] to four logits."""
    return transformers.ViTForImageClassification(transformers.ViTConfig(image_size=8, patch_size=4, **SMALL))


def convnext() -> nn.Module:
    """An image [batch, 3, 16, 16] to four logits."""
    sizes: dict[str, Any] = {"patch_size": 2, "hidden_sizes": [4, 6], "depths": [1, 2], "num_stages": 2}
    config = transformers.ConvNextConfig(**sizes, layer_scale_init_value=0.5, drop_path_rate=0.1, id2label=LABELS)
    return transformers.ConvNextForImageClassification(config)


def t5() -> nn.Module:
    """Token ids for encoder and decoder and an attention mask to four logits; both embed with the same weights."""
    sizes: dict[str, int] = {"vocab_size": 30, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2, "num_heads": 2}
    return transformers.T5ForSequenceClassification(
        transformers.T5Config(**sizes, pad_token_id=0, eos_token_id=1, id2label=LABELS)
    )
