"""Networks whose way depends on the data, and whose modules take and return more than one tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Expert(nn.Module):
    """Sees the tokens that were sent to it, and what each of them counts."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 7)
        self.act = nn.SiLU()
        self.down = nn.Linear(7, width)

    def forward(self, tokens: Tensor, *, weight: Tensor) -> Tensor:
        return self.down(self.act(self.up(tokens))) * weight.unsqueeze(-1)


class Mixture(nn.Module):
    """Sends each token to its two best experts; an expert that no token wants is not called."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(Expert(width) for _ in range(experts))

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        tokens = x.flatten(0, 1)
        gates = self.router(tokens).softmax(-1)
        weights, chosen = gates.topk(2, dim=-1)
        out = torch.zeros_like(tokens)
        for index, expert in enumerate(self.experts):
            row, place = torch.where(chosen == index)
            if len(row):
                out.index_add_(0, row, expert(tokens[row], weight=weights[row, place]))
        return out.view_as(x), {"gates": gates, "chosen": chosen}


class MixtureOfExperts(nn.Module):
    """Tokens [batch, tokens, 5] to three logits. One mixture is called twice; nobody ever wants its last expert."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(5)
        self.mixture = Mixture(5, 4)
        self.head = nn.Linear(5, 3)
        nn.init.constant_(self.mixture.router.bias[-1:], -50.0)

    def forward(self, tokens: Tensor) -> Tensor:
        for _ in range(2):
            mixed, routes = self.mixture(self.norm(tokens))
            tokens = tokens + mixed * routes["gates"].amax(-1).view(*tokens.shape[:2], 1)
        return self.head(tokens.mean(1))


class Pair(NamedTuple):
    """Both views, encoded."""

    left: Tensor
    right: Tensor


@dataclass
class Fused:
    """What attention found, and where it looked."""

    hidden: Tensor
    weights: Tensor
    note: str = "fused"


class Siamese(nn.Module):
    """One encoder, under two names, for two views."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 6))
        self.twin = self.encoder

    def forward(self, views: dict[str, Tensor]) -> Pair:
        return Pair(self.encoder(views["left"]), self.twin(views["right"]))


class Fusion(nn.Module):
    """Words look at a view, by PyTorch's own attention."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.norm = nn.LayerNorm(6)

    def forward(self, words: Tensor, pair: Pair, padding: Tensor) -> Fused:
        found, weights = self.attention(query=pair.left[:, None], key=words, value=words, key_padding_mask=padding)
        return Fused(self.norm(found[:, 0] + pair.right), weights)


class ManyToMany(nn.Module):
    """Two views, words and a temperature to a class, a distance and a gate that the class does not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.siamese = Siamese()
        self.words = nn.Embedding(12, 6)
        self.fusion = Fusion()
        self.gate = nn.Sequential(nn.Linear(6, 2), nn.Sigmoid())
        self.classes = nn.Linear(6, 3)
        self.unused = nn.Linear(2, 2)

    def forward(
        self, left: Tensor, right: Tensor, ids: Tensor, padding: Tensor, temperature: Tensor | None = None
    ) -> dict[str, Tensor]:
        pair = self.siamese({"left": left, "right": right})
        fused = self.fusion(self.words(ids), pair=pair, padding=padding)
        logits = self.classes(fused.hidden)
        if temperature is not None:
            logits = logits / temperature.unsqueeze(1)
        return {
            "gate": self.gate(pair.left),
            "distance": (pair.left - pair.right).pow(2).sum(1),
            "classes": logits,
            "attention": fused.weights,
        }
