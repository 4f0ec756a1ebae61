"""The zoo: one row an architecture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.support.zoo import huggingface, mixed, sequence, vision
from tests.support.zoo.architecture import Architecture, noise

GREY = {"image": noise(2, 1, 8, 8)}
COLOUR = {"image": noise(2, 3, 8, 8)}
WORDS = {"ids": torch.tensor([[3, 7, 7, 2, 11], [5, 1, 9, 0, 0], [2, 2, 8, 14, 0]])}
SIGNALS = {"signal": noise(3, 4, 3), "lengths": torch.tensor([2, 4, 3])}
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
TEXT = {"input_ids": torch.tensor([[4, 9, 17, 5, 22, 6], [8, 3, 12, 6, 0, 0]]), "attention_mask": MASK}
# T5 reads its class off the end-of-sequence token, 1.
ENDED = {
    "input_ids": torch.tensor([[4, 9, 17, 5, 22, 1], [8, 3, 12, 1, 0, 0]]),
    "attention_mask": MASK,
    "decoder_input_ids": torch.tensor([[0, 4, 9, 17, 5, 22], [0, 8, 3, 12, 1, 0]]),
}
LOGITS: Callable[[Any], Tensor] = lambda returned: returned.logits  # noqa: E731
VIEWS = {
    "left": noise(3, 4, seed=2),
    "right": noise(3, 4, seed=3),
    "ids": torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]]),
    "padding": torch.tensor([[False, False, False], [False, False, True], [False, True, True]]),
    "temperature": torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64),
}

# Never called: dropout inside attention (a function there), T5's shared embedding (encoder and decoder have their own),
# the attention's projection (only its weights are read).
ZOO: tuple[Architecture, ...] = (
    Architecture("cnn", vision.cnn, {"input": GREY["image"]}, (1, 3)),
    Architecture("resnet", vision.ResNet, COLOUR, (0, 4)),
    Architecture("densenet", vision.DenseNet, {"image": noise(2, 3, 6, 6)}, (3, 0)),
    Architecture("unet", vision.UNet, GREY, (2, 0), lambda returned: returned["share"], "share"),
    Architecture("mobilenet", vision.MobileNet, COLOUR, (1, 2)),
    Architecture("lstm", sequence.WordLSTM, WORDS, (0, 2, 1)),
    Architecture("gru", sequence.SignalGRU, SIGNALS, (2, 1, 0), lambda returned: returned[0]),
    Architecture("bert", huggingface.bert, {**TEXT, "token_type_ids": 1 - MASK}, (1, 3), LOGITS,
                 silent=frozenset(f"bert.encoder.layer.{layer}.attention.self.dropout" for layer in range(2))),
    Architecture("gpt2", huggingface.gpt2, TEXT, (2, 0), LOGITS,
                 silent=frozenset(f"transformer.h.{block}.attn.attn_dropout" for block in range(2))),
    Architecture("vit", huggingface.vit, {"pixel_values": noise(2, 3, 8, 8)}, (3, 1), LOGITS),
    Architecture("convnext", huggingface.convnext, {"pixel_values": noise(2, 3, 16, 16)}, (0, 2), LOGITS),
    Architecture("t5", huggingface.t5, ENDED, (2, 1), LOGITS, silent=frozenset({"transformer.shared"})),
    Architecture("mixer", vision.Mixer, COLOUR, (1, 0)),
    Architecture("mixture-of-experts", mixed.MixtureOfExperts, {"tokens": noise(2, 3, 5)}, (0, 2),
                 silent=frozenset(f"mixture.experts.3{part}" for part in ("", ".up", ".act", ".down"))),
    Architecture("many-to-many", mixed.ManyToMany, VIEWS, (0, 2, 1), lambda returned: returned["classes"], "classes",
                 silent=frozenset({"unused", "fusion.attention.out_proj"})),
)  # fmt: skip
