"""Examples to learn from: data sets that come with scikit-learn, and synthetic ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
from sklearn import datasets
from torch import Tensor


class Data(NamedTuple):
    """Examples by name, in the order of the model's arguments, and the classes or numbers that should come out."""

    inputs: Mapping[str, Tensor]
    aims: Tensor


def _table(load: Callable[[], Any]) -> tuple[Tensor, Tensor]:
    found = load()
    return torch.from_numpy(found.data).float(), torch.from_numpy(found.target)


def _standardized(features: Tensor) -> Tensor:
    return (features - features.mean(0)) / features.std(0)


def _classified(load: Callable[[], Any]) -> Data:
    features, classes = _table(load)
    return Data({"x": _standardized(features)}, classes)


@cache
def iris() -> Data:
    """150 flowers, 4 measures, 3 classes."""
    return _classified(datasets.load_iris)


@cache
def wine() -> Data:
    """178 wines, 13 measures, 3 classes."""
    return _classified(datasets.load_wine)


@cache
def raw_wine() -> Data:
    """The same measures as they are: from 0.1 to 1680."""
    return Data({"x": _table(datasets.load_wine)[0]}, wine().aims)


@cache
def tiny_wine() -> Data:
    """The same measures, of the size of 1e-4."""
    return Data({"x": wine().inputs["x"] * 1e-4}, wine().aims)


@cache
def cancer() -> Data:
    """569 tumours, 30 measures, 2 classes."""
    return _classified(datasets.load_breast_cancer)


@cache
def diabetes() -> Data:
    """442 patients, 10 measures, a number."""
    features, numbers = _table(datasets.load_diabetes)
    return Data({"x": _standardized(features)}, ((numbers - numbers.mean()) / numbers.std()).float())


@cache
def digits() -> Data:
    """800 digits, 64 pixels from 0 to 1, 10 classes."""
    features, classes = _table(datasets.load_digits)
    return Data({"x": features[:800] / 16}, classes[:800])


@cache
def images() -> Data:
    """The same digits as images of one channel, 8 x 8."""
    return Data({"x": digits().inputs["x"].reshape(-1, 1, 8, 8)}, digits().aims)


@cache
def colours() -> Data:
    """The same in three channels, of which each has another brightness."""
    image = images().inputs["x"]
    return Data({"x": torch.cat([image, 1 - image, image * 0.5 + 0.2], 1)}, digits().aims)


@cache
def strokes() -> Data:
    """Digits as images, and for each pixel whether it is bright."""
    image = images().inputs["x"]
    return Data({"x": image}, (image[:, 0] > 0.4).long())


def _drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@cache
def waves() -> Data:
    """300 signals of 3 channels and 16 steps; the class is the frequency."""
    classes = torch.arange(300) % 3
    steps = torch.linspace(0, 1, 16)
    phases = torch.rand(300, 3, 1, generator=_drawn(1)) * 0.8
    angles = 2 * math.pi * ((classes + 1).reshape(-1, 1, 1) * steps + phases)
    return Data({"x": angles.sin() + 0.3 * torch.randn(300, 3, 16, generator=_drawn(2))}, classes)


@cache
def series() -> Data:
    """The same signals as 8 steps of 3 channels."""
    return Data({"x": waves().inputs["x"][:, :, ::2].transpose(1, 2).contiguous()}, waves().aims)


@cache
def volumes() -> Data:
    """200 volumes of 4 x 6 x 6; the class is the half that is brighter."""
    classes = torch.arange(200) % 2
    found = torch.rand(200, 1, 4, 6, 6, generator=_drawn(3))
    found[classes == 0, :, :2] += 0.5
    found[classes == 1, :, 2:] += 0.5
    return Data({"x": found}, classes)


@cache
def sentences() -> Data:
    """300 sentences of 6 token ids from 1 to 19, some of them padded with 0; the class is the kind of most tokens."""
    classes = torch.arange(300) % 3
    common = classes.reshape(-1, 1) * 6 + torch.randint(1, 7, (300, 6), generator=_drawn(4))
    other = torch.randint(1, 20, (300, 6), generator=_drawn(5))
    ids = torch.where(torch.rand(300, 6, generator=_drawn(6)) < 0.6, common, other)
    ids[::4, 4:] = 0
    return Data({"ids": ids}, classes)


@cache
def pairs() -> Data:
    """200 pairs of flowers; whether both are of one kind."""
    flowers, classes = iris().inputs["x"], iris().aims
    left, right = (torch.randint(0, 150, (200,), generator=_drawn(seed)) for seed in (7, 8))
    return Data({"left": flowers[left], "right": flowers[right]}, (classes[left] == classes[right]).float())


@cache
def mixed() -> Data:
    """Flowers in two inputs: sepals and petals."""
    flowers = iris().inputs["x"]
    return Data({"sepal": flowers[:, :2], "petal": flowers[:, 2:]}, iris().aims)


@cache
def tables() -> Data:
    """300 rows of 3 codes from 1 to 5 and 4 numbers; the class is told by both."""
    codes = torch.randint(1, 6, (300, 3), generator=_drawn(9))
    numbers = torch.randn(300, 4, generator=_drawn(10))
    score = (codes[:, 0] + codes[:, 1] * 2 - codes[:, 2]).float() + 3 * numbers[:, 0] + 2 * numbers[:, 1]
    return Data({"codes": codes, "numbers": numbers}, (score > 4).long() + (score > 8).long())


@cache
def single_codes() -> Data:
    """The same with one code for each row, [batch], behind the numbers."""
    return Data({"numbers": tables().inputs["numbers"], "code": tables().inputs["codes"][:, 0]}, tables().aims)


@cache
def only_codes() -> Data:
    """The codes alone."""
    return Data({"codes": tables().inputs["codes"]}, tables().aims)


@cache
def one_column() -> Data:
    """A table of one column; the class is where the number lies."""
    numbers = torch.randn(300, 1, generator=_drawn(11))
    return Data({"x": numbers}, (numbers[:, 0] > -0.5).long() + (numbers[:, 0] > 0.5).long())


@cache
def short_series() -> Data:
    """Series of as many steps as there are rows in a request."""
    return Data({"x": series().inputs["x"][:, :3].contiguous()}, series().aims)


@cache
def triplets() -> Data:
    """200 times three flowers; whether the second, rather than the third, is of the kind of the first."""
    flowers, classes = iris().inputs["x"], iris().aims
    drawn = [torch.randint(0, 150, (200,), generator=_drawn(seed)) for seed in (12, 13, 14)]
    names = ("anchor", "one", "other")
    aims = (classes[drawn[0]] == classes[drawn[1]]).float()
    return Data({name: flowers[rows] for name, rows in zip(names, drawn, strict=True)}, aims)


@cache
def image_pairs() -> Data:
    """200 pairs of digits as images; whether both are equal."""
    image, classes = images().inputs["x"][:200], images().aims[:200]
    by_class = classes.argsort(stable=True)
    left, right = torch.arange(200), torch.randint(0, 200, (200,), generator=_drawn(15))
    right[by_class[1::2]] = by_class[::2]
    return Data({"left": image[left], "right": image[right]}, (classes[left] == classes[right]).float())
