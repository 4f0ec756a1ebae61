"""Convolutional networks, each with the habit that it is known for: tensors changed in place, joined, skipped ahead."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def cnn() -> nn.Module:
    """An image [batch, 1, 8, 8] to four logits."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(16, 4)
    )


class Residual(nn.Module):
    """Two convolutions beside a shortcut. One ReLU is called twice and writes over what it is given; so does ``+=``."""

    def __init__(self, inward: int, outward: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inward, outward, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outward)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outward, outward, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outward)
        self.downsample = (
            nn.Sequential(nn.Conv2d(inward, outward, 1, stride, bias=False), nn.BatchNorm2d(outward))
            if stride > 1
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.downsample(x)
        return self.relu(out)


class ResNet(nn.Module):
    """An image [batch, 3, 8, 8] to five logits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.layer1 = nn.Sequential(Residual(4, 4, 1), Residual(4, 4, 1))
        self.layer2 = nn.Sequential(Residual(4, 6, 2), Residual(6, 6, 1))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(6, 5)

    def forward(self, image: Tensor) -> Tensor:
        return self.fc(self.pool(self.layer2(self.layer1(self.stem(image)))).flatten(1))


class DenseLayer(nn.Module):
    """Takes a list of everything that came before."""

    def __init__(self, inward: int, growth: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inward)
        self.relu = nn.ReLU(inplace=True)
        self.conv = nn.Conv2d(inward, growth, 3, padding=1)
        self.drop = nn.Dropout(0.2)

    def forward(self, before: list[Tensor]) -> Tensor:
        return self.drop(self.conv(self.relu(self.norm(torch.cat(before, 1)))))


class DenseNet(nn.Module):
    """An image [batch, 3, 6, 6] to four logits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.layers = nn.ModuleList(DenseLayer(4 + 2 * index, 2) for index in range(3))
        self.transition = nn.Sequential(nn.BatchNorm2d(10), nn.ReLU(), nn.Conv2d(10, 5, 1), nn.AvgPool2d(2))
        self.head = nn.Linear(5, 4)

    def forward(self, image: Tensor) -> Tensor:
        features = [self.stem(image)]
        for layer in self.layers:
            features.append(layer(features))
        return self.head(self.transition(torch.cat(features, 1)).mean((2, 3)))


def _double_conv(inward: int, outward: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inward, outward, 3, padding=1), nn.BatchNorm2d(outward), nn.ReLU(inplace=True),
        nn.Conv2d(outward, outward, 3, padding=1), nn.ReLU(inplace=True),
    )  # fmt: skip


class Up(nn.Module):
    """Doubles the size of what comes from below and lays what was kept beside it."""

    def __init__(self, below: int, kept: int, outward: int) -> None:
        super().__init__()
        self.grow = nn.ConvTranspose2d(below, outward, 2, stride=2)
        self.conv = _double_conv(outward + kept, outward)

    def forward(self, below: Tensor, *, kept: Tensor) -> Tensor:
        return self.conv(torch.cat([kept, self.grow(below)], 1))


class UNet(nn.Module):
    """An image [batch, 1, 8, 8] to a map [batch, 3, 8, 8], and to each class's part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.down1 = _double_conv(1, 3)
        self.down2 = _double_conv(3, 4)
        self.bottom = _double_conv(4, 5)
        self.pool = nn.MaxPool2d(2)
        self.up2 = Up(5, 4, 4)
        self.up1 = Up(4, 3, 3)
        self.head = nn.Conv2d(3, 3, 1)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        one = self.down1(image)
        two = self.down2(self.pool(one))
        below = self.up2(self.bottom(self.pool(two)), kept=two)
        logits = self.head(self.up1(below, kept=one))
        return {"map": logits, "share": logits.softmax(1).mean((2, 3))}


class SqueezeExcite(nn.Module):
    """Weighs channels by what is in them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(channels, 2, 1)
        self.expand = nn.Conv2d(2, channels, 1)
        self.gate = nn.Hardsigmoid(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.expand(F.relu(self.reduce(x.mean((2, 3), keepdim=True)))))


class InvertedResidual(nn.Module):
    """Widens, filters each channel by itself, and narrows again."""

    def __init__(self, channels: int, expansion: int) -> None:
        super().__init__()
        wide = channels * expansion
        self.block = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(inplace=True),
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide),
            nn.Hardswish(inplace=True), SqueezeExcite(wide),
            nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


class MobileNet(nn.Module):
    """An image [batch, 3, 8, 8] to four logits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, 2, padding=1), nn.BatchNorm2d(4), nn.ReLU6(inplace=True))
        self.blocks = nn.Sequential(InvertedResidual(4, 2), InvertedResidual(4, 3))
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(4, 4))

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(image)).mean((2, 3)))


class MixerBlock(nn.Module):
    """Mixes patches, then channels."""

    def __init__(self, patches: int, channels: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(channels)
        self.patches = nn.Sequential(nn.Linear(patches, 6), nn.GELU(), nn.Linear(6, patches))
        self.norm2 = nn.LayerNorm(channels)
        self.channels = nn.Sequential(nn.Linear(channels, 7), nn.GELU(), nn.Linear(7, channels))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.patches(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    """An image [batch, 3, 8, 8] to four logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 5, 4, stride=4)
        self.blocks = nn.Sequential(MixerBlock(4, 5), MixerBlock(4, 5))
        self.norm = nn.LayerNorm(5)
        self.head = nn.Linear(5, 4)

    def forward(self, image: Tensor) -> Tensor:
        patches = self.embed(image).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(patches)).mean(1))
