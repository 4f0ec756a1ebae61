"""Networks on images: transformers of patches, detection, segmentation, and outputs that have a structure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cutaway as ca
from tests.matrix.asking import Places
from tests.matrix.healthy_models import data
from tests.matrix.healthy_models.images import conv
from tests.matrix.healthy_models.model import BY_MODULES, LRP, Healthy, Loss
from tests.matrix.healthy_models.parts import Make, joined, linear

TOKENS = Places("b", "a", ca.Neuron("b", (1, 2)))
MAPS = Places("b", "b", ca.Neuron("b", (1, 1, 1)))


# Transformers of patches.


def tokens_of(m: Any, x: Tensor) -> Tensor:
    """Patches [batch, patches, units] behind a class token, with places."""
    patches = m.b(m.a(x).flatten(2).transpose(1, 2))
    return torch.cat([m.token.expand(len(x), -1, -1), patches], 1) + m.places


def class_token(m: Any, x: Tensor) -> Tensor:
    """ViT: the class is read from its own token."""
    return m.head(m.norm(m.layer(tokens_of(m, x)))[:, 0])


def spelled_blocks(m: Any, x: Tensor) -> Tensor:
    """The same, with attention spelled out and norms first."""
    hidden = tokens_of(m, x)
    queries, keys, values = m.qkv(m.norm(hidden)).chunk(3, 2)
    hidden = hidden + (queries @ keys.transpose(1, 2) / 8**0.5).softmax(2) @ values
    hidden = hidden + m.down(F.gelu(m.up(m.norm2(hidden))))
    return m.head(hidden[:, 0])


def distilled(m: Any, x: Tensor) -> Tensor:
    """DeiT: a class token and one that learns from a teacher; the mean of two heads."""
    hidden = m.layer(tokens_of(m, x))
    return (m.head(hidden[:, 0]) + m.head2(hidden[:, 1])) / 2


def merged_windows(m: Any, x: Tensor) -> Tensor:
    """Swin: attention within rolled windows of 2 x 2, then four patches become one."""
    rolled = m.b(m.a(x).permute(0, 2, 3, 1)).roll((1, 1), (1, 2))
    windows = rolled.unflatten(2, (2, 2)).unflatten(1, (2, 2)).transpose(2, 3).flatten(3, 4).flatten(1, 2)
    found = m.layer(windows.flatten(0, 1).reshape(-1, 4, 8))
    return m.head(m.merge(found.flatten(1)).reshape(len(x), -1, 8).mean(1))


def cross_attended(m: Any, x: Tensor) -> Tensor:
    """Perceiver: learned queries attend to pixels."""
    pixels = m.b(m.a(x).flatten(2).transpose(1, 2))
    found, _ = m.attention(m.token.expand(len(x), -1, -1), pixels, pixels)
    return m.head(found.flatten(1))


# Detection and segmentation.


def segmented(m: Any, x: Tensor) -> dict[str, Tensor]:
    """Two classes for each pixel, and those of a second head, as torchvision names them."""
    hidden = m.act(m.a(x))
    return {"out": m.out(m.act2(m.b(hidden))), "aux": m.aux(hidden)}


def upscaled_pixels(m: Any, x: Tensor) -> Tensor:
    """Logits of classes for each pixel, [batch, classes, height, width], from a coarse map."""
    coarse = m.out(torch.tanh(m.b(torch.tanh(m.a(x)))))
    return F.interpolate(coarse, size=(8, 8), mode="bilinear", align_corners=False)


def boxes_and_scores(m: Any, x: Tensor) -> dict[str, Tensor]:
    """A detector: a box [batch, places, 4] and a score [batch, places, classes] for each place of a grid."""
    hidden = F.silu(m.b(F.silu(m.a(x))))
    boxes = m.boxes(hidden).flatten(2).transpose(1, 2).sigmoid()
    scores = m.scores(hidden).flatten(2).transpose(1, 2)
    return {"boxes": boxes, "scores": scores, "logits": scores.amax(1)}


def query_detector(m: Any, x: Tensor) -> dict[str, Tensor]:
    """DETR: learned queries attend to the image; each is a class and a box."""
    pixels = m.b(m.a(x).flatten(2).transpose(1, 2))
    found = m.decoder(m.token.expand(len(x), -1, -1), pixels)
    return {"pred_logits": m.head(found), "pred_boxes": m.boxes(found).sigmoid(), "logits": m.head(found).mean(1)}


def pyramid(m: Any, x: Tensor) -> dict[str, Tensor]:
    """Maps of several sizes, from coarse to fine, and a class from all of them."""
    fine = F.silu(m.a(x))
    coarse = F.silu(m.b(fine))
    top = m.top(coarse)
    maps = {"0": m.side(fine) + F.interpolate(top, scale_factor=2), "1": top}
    return {"logits": m.head(torch.cat([each.mean((2, 3)) for each in maps.values()], 1)), **maps}


def keypoints(m: Any, x: Tensor) -> Tensor:
    """Where each of five maps is large: the mean place under a softmax, [batch, 10]."""
    heat = m.out(torch.tanh(m.b(m.a(x)))).flatten(2).softmax(2)
    places = torch.linspace(0, 1, heat.shape[2], dtype=x.dtype)
    return torch.cat([heat @ places, heat @ places.square()], 1) * 5


def boxes_of_tuple(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Scores [batch, classes] and one box [batch, 4]."""
    hidden = F.silu(m.b(F.silu(m.a(x)))).mean((2, 3))
    return m.scores(hidden), m.boxes(hidden)


# Structured outputs.


class Named(NamedTuple):
    """Logits beside the features they come from."""

    logits: Tensor
    features: Tensor


@dataclass
class Structured:
    """The same as a dataclass, with a number that is no tensor."""

    logits: Tensor
    features: Tensor
    count: int = 2


def features_of(m: Any, x: Tensor) -> Tensor:
    """What every structured output is made of."""
    return F.silu(m.b(F.silu(m.a(x)))).mean((2, 3))


def named(m: Any, x: Tensor) -> Named:
    """A NamedTuple."""
    features = features_of(m, x)
    return Named(m.head(features), features)


def nested(m: Any, x: Tensor) -> dict[str, Any]:
    """A dictionary of tensors and of dictionaries and lists of tensors."""
    features = features_of(m, x)
    return {"logits": m.head(features), "inner": {"features": features, "list": [features * 2, features + 1]}}


def listed(m: Any, x: Tensor) -> list[Tensor]:
    """A list."""
    features = features_of(m, x)
    return [m.head(features), features]


def with_none(m: Any, x: Tensor) -> tuple[Tensor, None]:
    """A pair of which one is nothing."""
    return m.head(features_of(m, x)), None


def structured(m: Any, x: Tensor) -> Structured:
    """A dataclass."""
    features = features_of(m, x)
    return Structured(m.head(features), features)


def multitask(m: Any, x: Tensor) -> dict[str, Tensor]:
    """A class, and a number for each row."""
    features = features_of(m, x)
    return {"number": m.number(features).squeeze(1), "classes": m.head(features)}


def _first(returned: Any) -> Tensor:
    return returned[0]


def _of(key: str) -> Callable[[Any], Tensor]:
    return lambda returned: returned[key]


def _of_pixels(key: str) -> Loss:
    return lambda returned, aims: F.cross_entropy(_of(key)(returned), aims)


def _encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)


def _parameter(*shape: int) -> Callable[[], Any]:
    return lambda: nn.Parameter(torch.randn(*shape) / 4)


def _image(name: str, make: Make, places: Places = MAPS, read: Callable[[Any], Tensor] | None = None,
           output: str = "", **more: Any) -> Healthy:  # fmt: skip
    """A model of digits that reads its classes from one output."""
    if read is not None:
        more = {"loss": lambda returned, aims: F.cross_entropy(read(returned), aims), "read": read, **more}
    return Healthy(name, make, data.images, places, BY_MODULES,
        **{"target": ca.PredictedClass(output=output), **more})  # fmt: skip


PATCHES = {"a": conv(1, 8, 4, stride=4), "b": linear(8, 8), "places": _parameter(1, 5, 8), "token": _parameter(1, 1, 8),
           "head": linear(8, 10)}  # fmt: skip
GRID = {"a": conv(1, 6, stride=2, padding=1), "b": conv(6, 6, padding=1)}
POOLED = {**GRID, "head": linear(6, 10)}

OUTPUTS = (
    _image("vit-class-token", joined(class_token, **PATCHES, layer=_encoder, norm=lambda: nn.LayerNorm(8)), TOKENS),
    _image("vit-spelled", joined(spelled_blocks, **PATCHES, norm=lambda: nn.LayerNorm(8), qkv=linear(8, 24),
        norm2=lambda: nn.LayerNorm(8), up=linear(8, 16), down=linear(16, 8)), TOKENS, dtype=torch.float64),
    _image("vit-distilled", joined(distilled, **PATCHES | {"places": _parameter(1, 6, 8), "token": _parameter(1, 2, 8)},
        layer=_encoder, head2=linear(8, 10)), TOKENS),
    _image("vit-windows", joined(merged_windows, a=conv(1, 8, 2, stride=2), b=linear(8, 8), layer=_encoder,
        merge=linear(32, 8), head=linear(8, 10)), Places("b", "a", ca.Neuron("b", (1, 2, 3)))),
    _image("perceiver", joined(cross_attended, a=conv(1, 8, 2, stride=2), b=linear(8, 8), token=_parameter(1, 3, 8),
        attention=lambda: nn.MultiheadAttention(8, 2, batch_first=True), head=linear(24, 10)), TOKENS),
    Healthy("segmentation", joined(segmented, a=conv(1, 6, padding=1), act=nn.ReLU, b=conv(6, 6, padding=1),
        act2=nn.ReLU, out=conv(6, 2, 1), aux=conv(6, 2, 1)), data.strokes,
        Places("b", "b", ca.Neuron("b", (3, 3, 4))), LRP,
        loss=_of_pixels("out"),
        target=ca.MultiIndex(((1, 3, 4),), output="out"), read=_of("out")),
    Healthy("segmentation-second-head", joined(segmented, a=conv(1, 6, padding=1), act=nn.ReLU,
        b=conv(6, 6, padding=1), act2=nn.ReLU, out=conv(6, 2, 1), aux=conv(6, 2, 1)), data.strokes,
        Places("a", "a", ca.Neuron("a", (2, 3, 4))), (*LRP, "NeuronGuidedBackprop", "NeuronDeconvolution"),
        loss=_of_pixels("aux"),
        target=ca.MultiIndex(((1, 3, 4),), output="aux"), read=_of("aux")),
    Healthy("segmentation-coarse", joined(upscaled_pixels, **GRID, out=conv(6, 2, 1)), data.strokes, MAPS, BY_MODULES,
        target=ca.MultiIndex(((1, 3, 4),))),
    _image("detector", joined(boxes_and_scores, **GRID, boxes=conv(6, 4, 1), scores=conv(6, 10, 1)),
        read=_of("logits"), output="logits"),
    _image("detector-one-box", joined(boxes_and_scores, **GRID, boxes=conv(6, 4, 1), scores=conv(6, 10, 1)),
        read=_of("boxes"), loss=lambda returned, aims: F.cross_entropy(returned["logits"], aims),
        target=ca.MultiIndex(((5, 2),), output="boxes")),
    _image("detector-queries", joined(query_detector, a=conv(1, 8, 2, stride=2), b=linear(8, 8),
        token=_parameter(1, 3, 8), decoder=lambda: nn.TransformerDecoderLayer(8, 2, 16, batch_first=True, dropout=0.0),
        head=linear(8, 10), boxes=linear(8, 4)), TOKENS, _of("logits"), "logits"),
    _image("pyramid", joined(pyramid, **GRID | {"b": conv(6, 6, stride=2, padding=1)}, top=conv(6, 4, 1),
        side=conv(6, 4, 1), head=linear(8, 10)), read=_of("logits")),
    _image("keypoints", joined(keypoints, **GRID, out=conv(6, 5, 1))),
    _image("scores-and-box", joined(boxes_of_tuple, **GRID, scores=linear(6, 10), boxes=linear(6, 4)), read=_first),
    _image("named-tuple", joined(named, **POOLED), read=_first),
    _image("data-class", joined(structured, **POOLED), read=lambda returned: returned.logits),
    _image("nested-dictionary", joined(nested, **POOLED), read=_of("logits"), output="logits"),
    _image("list-of-outputs", joined(listed, **POOLED), read=_first),
    _image("tensor-and-none", joined(with_none, **POOLED), read=_first),
    _image("two-tasks", joined(multitask, **POOLED, number=linear(6, 1)), read=_of("classes"), output="classes"),
)  # fmt: skip
"""Models of images whose outputs have structure."""
