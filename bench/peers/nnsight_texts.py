"""GPT-2 in nnsight: its generation, which saves each block's last token in every step and steers one block."""

from __future__ import annotations

import sys
from typing import Any

import nnsight  # type: ignore[import-not-found]
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.pipe import answer, seconds


def main(directory: str) -> None:
    network: Any = AutoModelForCausalLM.from_pretrained(directory).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(directory)
    wrapped = nnsight.TransformersModel(network, task="text-generation", tokenizer=tokenizer)

    def written(asked: dict[str, Any]) -> dict[str, Any]:
        prompt, vector = torch.tensor([asked["prompt"]]), torch.tensor(asked["vector"])
        steered, tokens = wrapped.transformer.h[asked["block"]], asked["tokens"]
        texts: list[Any] = []

        def write() -> None:
            with torch.no_grad(), wrapped.generate(prompt, max_new_tokens=tokens, do_sample=False) as tracer:
                seen = nnsight.save([])
                for step in tracer.iter[:tokens]:
                    for block in wrapped.transformer.h:
                        if step and block is steered:
                            block.output = block.output + vector
                        seen.append(block.output[:, -1].clone())
                ids = nnsight.save(tracer.result)
            if len(seen) != tokens * len(network.transformer.h):
                raise RuntimeError(f"nnsight saved {len(seen)} tensors")
            texts.append(ids)

        return {"seconds": seconds(write, 1)[0], "tokens": texts[0][0, prompt.shape[1] :].tolist()}

    answer(written)


if __name__ == "__main__":
    main(sys.argv[1])
