"""Networks that read two or three inputs through the same layers, and compare what comes out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cutaway as ca
from tests.matrix.asking import Places
from tests.matrix.healthy_models import data
from tests.matrix.healthy_models.model import BY_MODULES, LRP, Healthy
from tests.matrix.healthy_models.parts import Make, joined, linear

NEAR = Places("near", "near", ca.Neuron("near", (1,)), explained=("left", "right"))
"""Looked into behind the comparison."""

THREE = Places("near", "near", ca.Neuron("near", (1,)), explained=("anchor", "one", "other"))


def distance(m: Any, left: Tensor, right: Tensor) -> Tensor:
    """Each is encoded by itself; a logit of how near they are, [batch]."""
    apart = m.b(m.act(m.a(left))) - m.b(m.act(m.a(right)))
    return m.head(m.act2(m.near(apart.pow(2)))).squeeze(1)


def absolute(m: Any, left: Tensor, right: Tensor) -> Tensor:
    """The absolute difference beside the product."""
    one, other = m.b(torch.tanh(m.a(left))), m.b(torch.tanh(m.a(right)))
    return m.head(torch.tanh(m.near(torch.cat([(one - other).abs(), one * other], 1)))).squeeze(1)


def cosine(m: Any, left: Tensor, right: Tensor) -> Tensor:
    """The cosine between two vectors, of which one is turned; scaled, as in sentence transformers.

    It is the same for longer vectors, so that Grad-CAM's terms cancel.
    """
    one, other = (m.b(torch.tanh(m.a(each))) for each in (left, right))
    return 5 * F.cosine_similarity(m.near(one), other) - 2


def two_towers(m: Any, left: Tensor, right: Tensor) -> Tensor:
    """Each side has a network of its own; the product of what they say."""
    return (m.b(torch.tanh(m.a(left))) * m.near(torch.tanh(m.c(right)))).sum(1)


def joined_pair(m: Any, left: Tensor, right: Tensor) -> Tensor:
    """Both encoded, joined, and read by modules of their own."""
    both = torch.cat([m.act(m.a(left)), m.act1(m.a(right))], 1)
    return m.head(m.act2(m.near(both))).squeeze(1)


def images(m: Any, left: Tensor, right: Tensor) -> Tensor:
    """Two images through the same convolutions."""
    one, other = (F.elu(m.b(F.elu(m.a(each)))).mean((2, 3)) for each in (left, right))
    return m.head(torch.tanh(m.near((one - other).abs()))).squeeze(1)


def triplet(m: Any, anchor: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """By how much the anchor is nearer to one than to the other."""
    first, second, third = (torch.tanh(m.b(torch.tanh(m.a(each)))) for each in (anchor, one, other))
    return m.head(torch.tanh(m.near(torch.cat([(first - third).pow(2), (first - second).pow(2)], 1)))).squeeze(1)


def triplet_stacked(m: Any, anchor: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """The three in one pass, behind each other, and taken apart again."""
    first, second, third = torch.tanh(m.b(m.act(m.a(torch.cat([anchor, one, other]))))).chunk(3)
    return m.head(torch.tanh(m.near((first - third).pow(2) - (first - second).pow(2)))).squeeze(1)


def triplet_axis(m: Any, anchor: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """The three on an axis of their own, [batch, 3, units], that attend to each other."""
    hidden = m.b(m.act(m.a(torch.stack([anchor, one, other], 1))))
    return m.head(torch.tanh(m.near((hidden @ hidden.transpose(1, 2)).flatten(1) / 8))).squeeze(1)


def _pair(name: str, wiring: Callable[..., Any], **parts: Make) -> Healthy:
    return Healthy(name, joined(wiring, a=linear(4, 12), **parts), data.pairs, NEAR, BY_MODULES,
        loss=F.binary_cross_entropy_with_logits)  # fmt: skip


def _three(name: str, wiring: Callable[..., Any], **parts: Make) -> Healthy:
    return Healthy(name, joined(wiring, a=linear(4, 12), b=linear(12, 4), **parts, head=linear(6, 1)), data.triplets,
        THREE, BY_MODULES, loss=F.binary_cross_entropy_with_logits)  # fmt: skip


HEAD = {"b": linear(12, 4), "near": linear(4, 6), "head": linear(6, 1)}

SIAMESE = (
    Healthy("siamese-relu", joined(distance, a=linear(4, 12), act=nn.ReLU, act2=nn.Tanh, **HEAD), data.pairs, NEAR,
        LRP, loss=F.binary_cross_entropy_with_logits),
    _pair("siamese-absolute", absolute, **HEAD | {"near": linear(8, 6)}),
    Healthy("siamese-cosine", joined(cosine, a=linear(4, 12), b=HEAD["b"], near=linear(4, 4)), data.pairs, NEAR,
        (*BY_MODULES, "LayerGradCam"), loss=F.binary_cross_entropy_with_logits),
    _pair("two-towers", two_towers, c=linear(4, 12), b=HEAD["b"], near=linear(12, 4)),
    Healthy("siamese-joined", joined(joined_pair, a=linear(4, 12), act=nn.ReLU, act1=nn.ReLU, act2=nn.ReLU,
        near=linear(24, 6), head=linear(6, 1)), data.pairs, NEAR, LRP, loss=F.binary_cross_entropy_with_logits),
    Healthy("siamese-images", joined(images, a=lambda: nn.Conv2d(1, 6, 3), b=lambda: nn.Conv2d(6, 6, 3),
        near=linear(6, 6), head=linear(6, 1)), data.image_pairs, NEAR, BY_MODULES,
        loss=F.binary_cross_entropy_with_logits),
    _three("triplet", triplet, near=linear(8, 6)),
    _three("triplet-stacked", triplet_stacked, act=nn.Tanh, near=linear(4, 6)),
    _three("triplet-axis", triplet_axis, act=nn.Tanh, near=linear(9, 6)),
)  # fmt: skip
"""Models of pairs and of triplets."""
