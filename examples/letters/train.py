"""Trains a small language model that writes letter by letter: ``python -m examples.letters.train DIRECTORY``, a
quarter of a minute.

It reads this project's own documents. ``cutaway package NAME --transformers DIRECTORY`` takes what it saves.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from torch.nn.functional import cross_entropy

from examples.training import reproducible

DOCUMENTS = Path(__file__).parents[2] / "docs"
_STEPS = 900
_BATCH = 8
_LENGTH = 72
_PEAK_LEARNING_RATE = 1e-2
_TOLD_EVERY_S = 5.0
_END = "<end>"


def documents() -> str:
    """All documents behind each other; rare characters, which no text needs, are left out."""
    text = "\n".join(page.read_text("utf-8") for page in sorted(DOCUMENTS.glob("*.md")))
    return "".join(letter for letter in text if letter.isascii())


def tokenizer(text: str) -> Any:
    """A tokenizer of transformers with a token for each character of ``text``."""
    letters = {letter: number for number, letter in enumerate([_END, *sorted(set(text))])}
    found = Tokenizer(models.WordLevel(letters, unk_token=_END))
    found.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    found.decoder = decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=found, eos_token=_END, pad_token=_END)


def train_and_save(directory: Path, steps: int = _STEPS) -> float:
    """Trains a GPT-2 of 0.1 M parameters, saves it and its tokenizer, and returns the loss of the last batch.

    Prints how far it is, every few seconds.
    """
    text = documents()
    known = tokenizer(text)
    ids = torch.tensor(known(text)["input_ids"])
    with reproducible():
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=len(known),
                n_positions=256,
                n_embd=64,
                n_layer=2,
                n_head=2,
                initializer_range=0.12,  # so small a model learns from 0.02, that of GPT-2, half as fast
                **dict.fromkeys(("embd_pdrop", "resid_pdrop", "attn_pdrop"), 0.0),  # no text is read often enough
                **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0),
            )
        )
        loss = _trained(model, ids, steps)
    transformers.utils.logging.disable_progress_bar()
    model.eval().save_pretrained(directory)
    known.save_pretrained(directory)
    return loss


def _trained(model: Any, ids: Tensor, steps: int) -> float:
    optimiser = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.1, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, _PEAK_LEARNING_RATE, total_steps=steps, pct_start=0.1)
    loss, told = torch.tensor(0.0), time.monotonic()
    for step in range(steps):
        starts = torch.randint(0, len(ids) - _LENGTH, (_BATCH,))
        batch = torch.stack([ids[start : start + _LENGTH] for start in starts.tolist()])
        optimiser.zero_grad()
        loss = cross_entropy(model(input_ids=batch[:, :-1]).logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if time.monotonic() > told + _TOLD_EVERY_S:
            told = time.monotonic()
            print(f"{step + 1} of {steps} steps: a loss of {loss.item():.2f} a letter", flush=True)
    return loss.item()


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m examples.letters.train DIRECTORY")
    print(f"loss {train_and_save(Path(sys.argv[1])):.2f} a letter; the model is in {sys.argv[1]}")


if __name__ == "__main__":
    main()
