"""Networks on images and volumes: convolutions, pools, norms, skips, and what is built of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

import cutaway as ca
from tests.matrix.asking import PLACES as PLACES_OF
from tests.matrix.asking import Places
from tests.matrix.healthy_models import data
from tests.matrix.healthy_models.model import BY_MODULES, DEEP_LIFT, GUIDED, LRP, Healthy
from tests.matrix.healthy_models.parts import Make, Permuted, Sum, chain, joined, linear
from tests.support.zoo import vision

PLACES = Places("b", "b", ca.Neuron("b", (1, 1, 1)), spread=("flat",))
"""Relevance passes the flattening in proportion, by a rule that is given."""


def conv(inward: int, outward: int, size: int = 3, **more: Any) -> Make:
    """A convolution of an image."""
    return lambda: nn.Conv2d(inward, outward, size, **more)


def normed(norm: Make, further: Make, activation: Make = nn.ReLU) -> Make:
    """Two convolutions with a norm each, averaged."""
    return chain(a=conv(1, 8), norm1=norm, act1=activation, b=conv(8, 8), norm2=further, act2=activation,
                 pool=lambda: nn.AdaptiveAvgPool2d(1), flat=nn.Flatten, head=linear(8, 10))  # fmt: skip


def squeezed(m: Any, x: Tensor) -> Tensor:
    """Channels are scaled by a gate that sees their means."""
    hidden = m.b(F.relu(m.a(x)))
    gate = torch.sigmoid(m.up(F.relu(m.down(hidden.mean((2, 3))))))
    return m.head(F.adaptive_avg_pool2d(hidden * gate[:, :, None, None], 2).flatten(1))


def unet(m: Any, x: Tensor) -> Tensor:
    """Down, up, and a skip between: two classes for each pixel."""
    first = m.act1(m.a(x))
    low = m.act2(m.b(m.down(first)))
    return m.out(torch.cat([first, m.up(low)], 1))


def upscaled(m: Any, x: Tensor) -> Tensor:
    """Small and bilinear upwards: a number for each pixel, [batch, 64]."""
    small = torch.tanh(m.b(m.a(x)))
    return m.out(F.interpolate(small, scale_factor=2, mode="bilinear", align_corners=False)).flatten(1)


def inception(m: Any, x: Tensor) -> Tensor:
    """Branches of several sizes, joined."""
    hidden = torch.cat([m.b(x), m.three(x), m.five(x), m.pooled(F.max_pool2d(x, 3, 1, 1))], 1)
    return m.head(F.gelu(hidden).amax((2, 3)))


def shuffled(m: Any, x: Tensor) -> Tensor:
    """Grouped convolutions with shuffled channels between."""
    hidden = F.channel_shuffle(F.hardswish(m.a(x)), 4)
    return m.head(F.hardswish(m.b(hidden)).mean((2, 3)))


def spectrum(m: Any, x: Tensor) -> Tensor:
    """A global filter: the image's frequencies times learned numbers."""
    hidden = torch.fft.irfft2(torch.fft.rfft2(m.a(x)) * torch.view_as_complex(m.filter), s=(8, 8))
    return m.head(F.gelu(m.b(hidden)).mean((2, 3)))


def coarse(m: Any, x: Tensor) -> Tensor:
    """The convolutions in bfloat16, the head in float32."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = F.gelu(m.b(F.gelu(m.a(x))))
    return m.head(hidden.float().mean((2, 3)))


def patches(m: Any, x: Tensor) -> Tensor:
    """A vision transformer: patches, places and one layer of attention."""
    tokens = m.a(x).flatten(2).transpose(1, 2) + m.places
    return m.head(m.layer(m.b(tokens)).mean(1))


def _pixels(found: Tensor, aims: Tensor) -> Tensor:
    return F.mse_loss(found.reshape(aims.shape), aims)


def _classes(number: int, size: int = 8) -> Callable[[], data.Data]:
    """Digits in colours, of fewer classes, and perhaps cut."""
    return lambda: data.Data({"x": data.colours().inputs["x"][..., :size, :size]}, data.colours().aims % number)


def _again() -> data.Data:
    return data.Data(data.images().inputs, data.images().inputs["x"])


def _image(name: str, make: Make, **more: Any) -> Healthy:
    """A model of digits, whose nonlinearities are not modules that every method knows."""
    return Healthy(name, make, data.images, PLACES, BY_MODULES, **more)


IMAGES = (
    Healthy("cnn-max-pool", chain(a=conv(1, 6), act1=nn.ReLU, pool1=lambda: nn.MaxPool2d(2), b=conv(6, 8, 2),
        act2=nn.ReLU, flat=nn.Flatten, head=linear(32, 10)), data.images, PLACES, DEEP_LIFT),
    Healthy("cnn-max-pool-tanh", chain(a=conv(1, 6), pool1=lambda: nn.MaxPool2d(2), act1=nn.Tanh, b=conv(6, 8, 2),
        act2=nn.Tanh, flat=nn.Flatten, head=linear(32, 10)), data.images, PLACES, (*GUIDED, *DEEP_LIFT)),
    Healthy("cnn-avg-pool", chain(a=conv(1, 6), act1=nn.ReLU, pool1=lambda: nn.AvgPool2d(2), b=conv(6, 8, 2),
        act2=nn.ReLU, flat=nn.Flatten, head=linear(32, 10)), data.images, PLACES),
    Healthy("cnn-adaptive-pool", chain(a=conv(3, 8), act1=nn.ReLU, b=conv(8, 8), act2=nn.ReLU,
        pool=lambda: nn.AdaptiveAvgPool2d(2), flat=nn.Flatten, head=linear(32, 10)), data.colours, PLACES),
    _image("cnn-global-max", chain(a=conv(1, 8), act1=nn.ELU, b=conv(8, 12), act2=nn.ELU,
        pool=lambda: nn.AdaptiveMaxPool2d(1), flat=nn.Flatten, head=linear(12, 10))),
    Healthy("cnn-float64", chain(a=conv(1, 6), act1=nn.ReLU, b=conv(6, 6), act2=nn.ReLU, flat=nn.Flatten,
        head=linear(96, 10)), data.images, PLACES, dtype=torch.float64),
    _image("cnn-bfloat16", chain(a=conv(1, 6), act1=nn.GELU, b=conv(6, 6), act2=nn.GELU, flat=nn.Flatten,
        head=linear(96, 10)), dtype=torch.bfloat16),
    Healthy("cnn-batch-norm", normed(lambda: nn.BatchNorm2d(8), lambda: nn.BatchNorm2d(8)), data.images, PLACES),
    _image("cnn-group-norm", normed(lambda: nn.GroupNorm(2, 8), lambda: nn.GroupNorm(4, 8), nn.SiLU)),
    Healthy("cnn-instance-norm", normed(lambda: nn.InstanceNorm2d(8, affine=True), lambda: nn.InstanceNorm2d(8),
        nn.LeakyReLU), data.images, Places("b", "act2", ca.Neuron("b", (1, 1, 1))), BY_MODULES),
    Healthy("cnn-local-response", normed(lambda: nn.LocalResponseNorm(3), nn.Identity), data.images, PLACES,
        DEEP_LIFT + LRP),
    Healthy("cnn-spectral-norm", chain(a=lambda: spectral_norm(nn.Conv2d(1, 8, 3)), act1=nn.LeakyReLU,
        b=lambda: spectral_norm(nn.Conv2d(8, 8, 3, stride=2)), act2=nn.LeakyReLU, flat=nn.Flatten, head=linear(32, 10)),
        data.images, PLACES, GUIDED + LRP),
    Healthy("cnn-strided", chain(a=conv(1, 8, stride=2, padding=1), act1=nn.ReLU, b=conv(8, 12, stride=2, padding=1),
        act2=nn.ReLU, flat=nn.Flatten, head=linear(48, 10)), data.images, PLACES),
    Healthy("cnn-dilated", chain(a=conv(1, 6, dilation=2, padding=2), act1=nn.ReLU, b=conv(6, 6, dilation=2),
        act2=nn.ReLU, flat=nn.Flatten, head=linear(96, 10)), data.images, PLACES),
    Healthy("cnn-untrained", chain(a=conv(3, 8), act1=nn.Softplus, b=conv(8, 8), act2=nn.Softplus, flat=nn.Flatten,
        head=linear(128, 10)), data.colours, PLACES, GUIDED + LRP, loss=None),
    Healthy("resnet", vision.ResNet, _classes(5), Places("layer2.1.conv1", "layer2.1.conv1",
        ca.Neuron("layer1.1.conv1", (1, 1, 1))), DEEP_LIFT + LRP),
    Healthy("densenet", vision.DenseNet, _classes(4, 6), PLACES_OF["densenet"], LRP),
    Healthy("mobilenet", vision.MobileNet, _classes(4), PLACES_OF["mobilenet"], BY_MODULES),
    Healthy("mixer", vision.Mixer, _classes(4), PLACES_OF["mixer"], BY_MODULES),
    _image("squeeze-excite", joined(squeezed, a=conv(1, 6), b=conv(6, 6), down=linear(6, 3), up=linear(3, 6),
        head=linear(24, 10))),
    Healthy("unet", joined(unet, a=conv(1, 4, padding=1), act1=nn.ReLU, down=lambda: nn.MaxPool2d(2),
        b=conv(4, 6, padding=1), act2=nn.ReLU, up=lambda: nn.ConvTranspose2d(6, 4, 2, stride=2),
        out=conv(8, 2, padding=1)), data.strokes, PLACES, DEEP_LIFT + LRP, target=ca.MultiIndex(((1, 3, 4),))),
    Healthy("conv-transpose", chain(a=conv(1, 6, stride=2, padding=1), act1=nn.ReLU, b=conv(6, 4, stride=2, padding=1),
        act2=nn.ReLU, up1=lambda: nn.ConvTranspose2d(4, 6, 2, stride=2), act3=nn.ReLU, up2=lambda:
        nn.ConvTranspose2d(6, 1, 2, stride=2)), _again, PLACES, LRP, loss=_pixels, target=ca.OutputSum()),
    Healthy("pixel-shuffle", chain(a=conv(1, 6, stride=2, padding=1), act1=nn.Tanh, b=conv(6, 4, padding=1),
        up=lambda: nn.PixelShuffle(2)), _again, PLACES, GUIDED + LRP, loss=_pixels, target=ca.OutputSum()),
    Healthy("upsampling", joined(upscaled, a=conv(1, 4, stride=2, padding=1), b=conv(4, 4, padding=1),
        out=conv(4, 1, padding=1)), _again, PLACES, BY_MODULES, loss=_pixels, target=ca.ClassIndex((20, 27, 35))),
    _image("inception", joined(inception, b=conv(1, 3, 1), three=conv(1, 3, padding=1), five=conv(1, 3, 5, padding=2),
        pooled=conv(1, 3, 1), head=linear(12, 10))),
    _image("shuffled-groups", joined(shuffled, a=conv(1, 8), b=conv(8, 8, groups=4), head=linear(8, 10))),
    _image("fourier-filter", joined(spectrum, a=conv(1, 4, 1), b=conv(4, 6), filter=lambda: nn.Parameter(torch.randn(4,
        8, 5, 2) / 2), head=linear(6, 10))),
    _image("autocast", joined(coarse, a=conv(1, 6), b=conv(6, 6), head=linear(6, 10))),
    Healthy("vision-transformer", joined(patches, a=conv(1, 8, 4, stride=4), places=lambda: nn.Parameter(torch.randn(4,
        8) / 4), b=linear(8, 8), layer=lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0),
        head=linear(8, 10)), data.images, Places("b", "a", ca.Neuron("b", (1, 2))), BY_MODULES),
    _image("conv-next", chain(a=conv(1, 8, 2, stride=2), block=lambda: Sum(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1,
        groups=8), Permuted(2, 3, 1), nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8),
        Permuted(3, 1, 2))), b=conv(8, 8, 2, stride=2), act=nn.GELU, flat=nn.Flatten, head=linear(32, 10))),
    Healthy("cnn-volumes", chain(a=lambda: nn.Conv3d(1, 8, 3, padding=1), act1=nn.ReLU, pool=lambda: nn.AvgPool3d(2),
        b=lambda: nn.Conv3d(8, 8, 2), act2=nn.ReLU, flat=nn.Flatten, head=linear(32, 2)), data.volumes,
        Places("b", "b", ca.Neuron("b", (1, 0, 1, 1))), LRP),
    Healthy("cnn-volumes-max", chain(a=lambda: nn.Conv3d(1, 4, 3, padding=1), norm=lambda: nn.BatchNorm3d(4),
        act1=nn.SiLU, pool=lambda: nn.MaxPool3d(2), b=lambda: nn.Conv3d(4, 4, 2), act2=nn.SiLU, flat=nn.Flatten,
        head=linear(16, 2)), data.volumes, Places("b", "b", ca.Neuron("b", (1, 0, 1, 1))), BY_MODULES),
)  # fmt: skip
"""Models of images [batch, channels, 8, 8], and volumes."""
