"""Networks of real size, from plain PyTorch with seeded random weights. This file is packed alone into an archive."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, scaled_dot_product_attention

from cutaway.adapters import Adapter
from cutaway.contract.results import InputSpec

HEADS, WIDTH, TOKENS, VOCABULARY = 12, 768, 128, 30_522


class Attention(nn.Module):
    """Self-attention with a linear layer each for queries, keys, values and the output."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [batch, tokens, width] to the same."""
        parts = (layer(x).unflatten(2, (HEADS, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        mixed: Tensor = self.output(scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))
        return mixed


class Block(nn.Module):
    """A transformer layer; it normalises before its parts (ViT), or after them (BERT)."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [batch, tokens, width] to the same."""
        if self.norm_first:
            x = x + self.attention(self.norm1(x))
            x = x + self.mlp(self.norm2(x))
            return x
        x = self.norm1(x + self.attention(x))
        x = self.norm2(x + self.mlp(x))
        return x


class Bert(nn.Module):
    """BERT-base with a classifier of two classes at the first token."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(512, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.blocks = nn.ModuleList(Block(norm_first=False) for _ in range(12))
        self.pooler, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, ids: Tensor) -> Tensor:
        """Maps int64 [batch, tokens] to logits [batch, 2]."""
        x = self.norm(self.words(ids) + self.places.weight[: ids.shape[1]])
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.pooler(x[:, 0]).tanh())
        return logits


class Vit(nn.Module):
    """ViT-B/16 with a thousand classes."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 16, 16)
        self.start, self.places = nn.Parameter(torch.randn(1, 1, WIDTH)), nn.Parameter(torch.randn(1, 197, WIDTH) / 50)
        self.blocks = nn.ModuleList(Block(norm_first=True) for _ in range(12))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 1000)

    def forward(self, image: Tensor) -> Tensor:
        """Maps [batch, 3, 224, 224] to logits [batch, 1000]."""
        tokens = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat((self.start.expand(len(image), -1, -1), tokens), 1) + self.places
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x)[:, 0])
        return logits


class Bottleneck(nn.Module):
    """The residual block of ResNet-50."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        sizes = ((before, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1))
        convolutions = [nn.Conv2d(i, o, k, s, k // 2, bias=False) for i, o, k, s in sizes]
        norms = [nn.BatchNorm2d(each.out_channels) for each in convolutions]
        self.body = nn.Sequential(
            convolutions[0], norms[0], nn.ReLU(), convolutions[1], norms[1], nn.ReLU(), convolutions[2], norms[2]
        )
        self.short = nn.Sequential()
        if stride > 1 or before != 4 * width:
            self.short = nn.Sequential(
                nn.Conv2d(before, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )  # fmt: skip
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Maps [batch, channels, height, width] to the next such map."""
        joined: Tensor = self.relu(self.body(x) + self.short(x))
        return joined


class ResNet50(nn.Module):
    """ResNet-50 with a thousand classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        before, stages = 64, []
        for width, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            stages.append(nn.Sequential(*(Bottleneck(before if not n else 4 * width, width, 1 if n else stride)
                                          for n in range(depth))))  # fmt: skip
            before = 4 * width
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(before, 1000)

    def forward(self, image: Tensor) -> Tensor:
        """Maps [batch, 3, 224, 224] to logits [batch, 1000]."""
        logits: Tensor = self.head(self.stages(self.stem(image)).mean((2, 3)))
        return logits


class UNet(nn.Module):
    """A U-Net of four levels for two classes of pixels."""

    def __init__(self) -> None:
        super().__init__()
        widths = (32, 64, 128, 256)
        self.down = nn.ModuleList(_double(i, o) for i, o in zip((3, *widths), widths))
        self.up = nn.ModuleList(_double(i + o, o) for i, o in zip(widths[:0:-1], widths[-2::-1]))
        self.pool, self.head = nn.MaxPool2d(2), nn.Conv2d(widths[0], 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        """Maps [batch, 3, 128, 128] to logits [batch, 2, 128, 128]."""
        kept: list[Tensor] = []
        for level in self.down:
            image = level(self.pool(image) if kept else image)
            kept.append(image)
        for level, beside in zip(self.up, kept[-2::-1]):
            image = level(torch.cat((interpolate(image, scale_factor=2.0), beside), 1))
        logits: Tensor = self.head(image)
        return logits


def _double(before: int, width: int) -> nn.Sequential:
    sizes = ((before, width), (width, width))
    return nn.Sequential(
        *(each for i, o in sizes for each in (nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU()))
    )


class Sequence(nn.Module):
    """An LSTM of two layers over 500 steps, which runs [time, batch], and a classifier of its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.lstm, self.norm = nn.Linear(16, 64), nn.LSTM(64, 128, 2), nn.LayerNorm(128)
        self.states, self.hidden, self.head = nn.Identity(), nn.Linear(128, 64), nn.Linear(64, 5)

    def forward(self, series: Tensor) -> Tensor:
        """Maps [batch, 500, 16] to logits [batch, 5]."""
        states, _ = self.lstm(self.lift(series.transpose(0, 1)))
        logits: Tensor = self.head(self.hidden(self.norm(self.states(states)[-1])).relu())
        return logits


class Dlrm(nn.Module):
    """A table with 13 numbers and 26 categories: an embedding for each, products of all pairs, and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(10_000, 64) for _ in range(26))
        self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 64), nn.ReLU())
        self.top = nn.Sequential(
            nn.Linear(64 + 351, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
        )  # fmt: skip
        self.register_buffer("pairs", torch.tril_indices(27, 27, -1), persistent=False)

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        """Maps [batch, 13] and int64 [batch, 26] to logits [batch, 1]."""
        dense = self.bottom(numbers)
        vectors = torch.stack([dense, *(table(categories[:, n]) for n, table in enumerate(self.tables))], 1)
        products = (vectors @ vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]  # type: ignore[index]
        logits: Tensor = self.top(torch.cat((dense, products), 1))
        return logits


class Deep(nn.Module):
    """A network of 4,953 modules: 1,650 residual blocks of a few numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(1_650))
        self.head = nn.Linear(16, 5)

    def forward(self, numbers: Tensor) -> Tensor:
        """Maps [batch, 16] to logits [batch, 5]."""
        for block in self.blocks:
            numbers = numbers + block(numbers) / 40
        logits: Tensor = self.head(numbers)
        return logits


@dataclass(frozen=True)
class Real:
    """A network and what is asked about it.

    Attributes:
        name: for people.
        network: makes it.
        inputs: by name, the largest whole number plus one, or 0 for normal numbers, and the shape without the batch.
        layers: five modules to capture.
        cam: the layer of Grad-CAM; or, with ``cam_is_product``, of gradient times activation.
        window: of the occlusion of the first input, which also moves by it.
        embedding: for token ids, their embedding, to which gradients are taken.
        target: the index of the explained output, without the batch.
    """

    name: str
    network: Callable[[], nn.Module]
    inputs: Mapping[str, tuple[int, tuple[int, ...]]]
    layers: tuple[str, ...]
    cam: str
    window: tuple[int, ...]
    cam_is_product: bool = True
    embedding: str = ""
    target: tuple[int, ...] = (0,)

    @property
    def explained(self) -> str:
        """The name of the first input, which is explained."""
        return next(iter(self.inputs))

    def rows(self, seed: int) -> dict[str, Tensor]:
        """Returns one row of the inputs."""
        draw = torch.Generator().manual_seed(seed)
        return {
            name: torch.randint(most, (1, *shape), generator=draw) if most else torch.randn(1, *shape, generator=draw)
            for name, (most, shape) in self.inputs.items()
        }

    def build(self) -> nn.Module:
        """Returns the network, with the same weights every time."""
        torch.manual_seed(0)
        return self.network().eval()


_PIXELS = (3, 224, 224)
MODELS: dict[str, Real] = {
    "bert": Real("BERT-base, 128 tokens", Bert, {"ids": (VOCABULARY, (TOKENS,))},
                 ("norm", "blocks.2", "blocks.5", "blocks.8", "blocks.11"), "blocks.11", (16,), embedding="words"),
    "vit": Real("ViT-B/16, 224×224", Vit, {"image": (0, _PIXELS)},
                ("patches", "blocks.2", "blocks.5", "blocks.8", "blocks.11"), "blocks.11", (3, 56, 56)),
    "resnet50": Real("ResNet-50, 224×224", ResNet50, {"image": (0, _PIXELS)},
                     ("stem", *(f"stages.{n}" for n in range(4))), "stages.3", (3, 56, 56), cam_is_product=False),
    "unet": Real("U-Net, 128×128", UNet, {"image": (0, (3, 128, 128))},
                 ("down.0", "down.1", "down.2", "down.3", "up.2"), "down.3", (3, 32, 32), cam_is_product=False,
                 target=(1, 64, 64)),
    "lstm": Real("LSTM, 500 steps [time, batch]", Sequence, {"series": (0, (500, 16))},
                 ("lift", "states", "norm", "hidden", "head"), "lift", (50, 16)),
    "dlrm": Real("DLRM-like table, 26 categories", Dlrm, {"numbers": (0, (13,)), "categories": (10_000, (26,))},
                 ("bottom", "bottom.0", "tables.0", "top.0", "top.2"), "top.2", (1,)),
    "deep": Real("4,953 modules", Deep, {"numbers": (0, (16,))},
                 tuple(f"blocks.{n}" for n in range(0, 1_650, 330)), "blocks.825", (1,)),
}  # fmt: skip


class RealAdapter(Adapter):
    """Serves the network that the option ``network`` names."""

    @property
    def inputs(self) -> tuple[InputSpec, ...]:  # type: ignore[override]
        """Its inputs."""
        found = MODELS[self.options["network"]].inputs
        return tuple(
            InputSpec(name, "int64" if most else "float32", (-1, *shape)) for name, (most, shape) in found.items()
        )

    def build(self) -> nn.Module:
        """Returns the network."""
        return MODELS[self.options["network"]].build()
