"""A small language model with random weights as it is served, and the same by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

import cutaway as ca
from cutaway.adapters import load_model
from cutaway.adapters.causal_lm import CausalLMAdapter
from cutaway.contract.results import InspectResult
from cutaway.engine.execution.inspect import inspect
from cutaway.engine.model.inspected_model import InspectedModel
from tests.support.causal_lms import BLOCKS


class Served:
    """A model as it is served, and the same by hand."""

    def __init__(self, directory: Path, architecture: str = "gpt2", **options: str) -> None:
        self.adapter = CausalLMAdapter(options, directory)
        self.model: InspectedModel = load_model(self.adapter, "cpu")
        own = {"dtype": options.get("dtype", "auto"), "attn_implementation": options.get("attention")}
        self.plain: Any = transformers.AutoModelForCausalLM.from_pretrained(directory, **own).eval()
        self.block = f"{BLOCKS[architecture]}.0"

    def ask(self, *texts: str, inputs: Mapping[str, Tensor] | None = None, **request: Any) -> InspectResult:
        given = inputs or self.adapter.collate([self.adapter.preprocess(text.encode(), "") for text in texts])
        return inspect(self.model, ca.InspectRequest("gpt", **request), dict(given))

    def tokens(self, text: str) -> list[int]:
        ids: list[int] = self.adapter.tokenizer.encode(text)
        return ids

    def ends(self, text: str, part: str) -> int:
        """The number of the last token of ``part``, which ``text`` has once, and whose tokens are those of the text."""
        return len(self.tokens(text[: text.index(part) + len(part)])) - 1


def flipped(served: Served, *texts: str) -> dict[str, Tensor]:
    """The texts with padding on the right."""
    rows = [served.tokens(text) for text in texts]
    longest = max(map(len, rows))
    ids = [[*row, *[0] * (longest - len(row))] for row in rows]
    mask = [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
