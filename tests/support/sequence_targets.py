"""Asks for targets that are texts, here and by Captum's own classes for language models."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import captum.attr as captum
from torch import Tensor

import cutaway as ca
from cutaway.adapters import load_model
from cutaway.adapters.causal_lm import CausalLMAdapter
from cutaway.contract.results import InspectResult
from cutaway.engine.execution.inspect import inspect
from tests.support.causal_lms import by_hand

PROMPTS = ("the hooks see layers of the layers", "hooks", "see the hooks")
TEXTS = (" see", " the layers see", " layers")


def asked(adapter: CausalLMAdapter, inputs: Mapping[str, Tensor], **request: Any) -> InspectResult:
    return inspect(load_model(adapter, "cpu"), ca.InspectRequest("m", **request), dict(inputs))


def prompts(adapter: CausalLMAdapter, *texts: str) -> dict[str, Tensor]:
    return dict(adapter.collate([adapter.preprocess(text.encode(), "text/plain") for text in texts]))


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
