"""all-MiniLM-L6-v2 as it is served: text in, a unit vector out; nothing is fetched from a hub.

The tokenizer's files and ``config.json`` travel in the archive, beside this one.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from cutaway.adapters import TextAdapter
from cutaway.engine.model.inspected_model import Inputs

_COUNTED = "embeddings.position_ids"  # 0, 1, 2, ...: saved by an older transformers, and no weight


class Sentences(TextAdapter):
    """Embeds sentences: those of like meaning have a high dot product."""

    max_tokens = 256

    def build(self) -> nn.Module:
        """The encoder that ``config.json`` describes."""
        directory = self.directory or Path()
        model: nn.Module = BertModel(BertConfig.from_json_file(directory / "config.json"))
        return model

    def load(self, weights: Path | None) -> nn.Module:
        """The encoder with its weights."""
        model = self.build()
        if weights is not None:
            tensors = load_file(weights)
            tensors.pop(_COUNTED, None)
            model.load_state_dict(tensors, strict=True)
        return model

    def forward(self, model: nn.Module, inputs: Inputs) -> dict[str, Tensor]:
        """``embedding``, float32 [batch, 384]: the mean of the tokens' vectors, padding left out, at length 1."""
        tokens = model(**inputs).last_hidden_state
        mask = inputs["attention_mask"].unsqueeze(-1).to(tokens.dtype)
        mean = (tokens * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        return {"embedding": torch.nn.functional.normalize(mean, dim=1)}
