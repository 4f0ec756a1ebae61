"""GPT-2 by hand: transformers' `generate`, and hooks that capture each block's last token and steer one block."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from bench.pipe import answer, seconds


def main(directory: str) -> None:
    network: Any = AutoModelForCausalLM.from_pretrained(directory).eval()

    def written(asked: dict[str, Any]) -> dict[str, Any]:
        prompt, vector = torch.tensor([asked["prompt"]]), torch.tensor(asked["vector"])
        texts: list[Tensor] = []

        def write() -> None:
            seen: list[Tensor] = []
            handles = [
                block.register_forward_hook(_hook(seen, vector if number == asked["block"] else None))
                for number, block in enumerate(network.transformer.h)
            ]
            texts.append(
                network.generate(
                    prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=asked["tokens"], do_sample=False
                )
            )
            for handle in handles:
                handle.remove()

        return {"seconds": seconds(write, 1)[0], "tokens": texts[0][0, prompt.shape[1] :].tolist()}

    answer(written)


def _hook(seen: list[Tensor], vector: Tensor | None) -> Any:
    def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
        state = output[0] if isinstance(output, tuple) else output
        if vector is not None and state.shape[1] == 1:  # every step but that of the prompt
            state = state + vector
        seen.append(state[:, -1].clone())
        return (state, *output[1:]) if isinstance(output, tuple) else state

    return hook


if __name__ == "__main__":
    main(sys.argv[1])
