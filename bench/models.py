"""The models that are asked: digits and MiniLM with their trained weights, ResNet-50 with seeded ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from bench.served import ResNet50
from cutaway import archive
from cutaway.adapters import TensorAdapter, find, make, mount
from cutaway.engine.subject import Subject
from examples.digits.data import held_out
from examples.digits.package import package as package_digits
from examples.sentences.package import package as package_sentences


class Model(NamedTuple):
    """One model, and a batch for it.

    Attributes:
        name: for people.
        subject: the model, as the engine takes it.
        inputs: a batch.
        layer: a layer in its middle.
        rows: how many examples the batch has.
    """

    name: str
    subject: Subject
    inputs: dict[str, Tensor]
    layer: str
    rows: int


def models(directory: Path) -> Iterator[Model]:
    """All of them; archives are built in ``directory``."""
    image = {"image": torch.from_numpy(held_out().images[:4].copy())}
    yield Model("digits CNN", _mounted(package_digits(directory)), image, "conv2", 4)
    network = mount(TensorAdapter(ResNet50().eval()), "cpu")
    yield Model("ResNet-50", network, {"pixel_values": torch.randn(2, 3, 96, 96)}, "resnet.encoder.stages.1", 2)
    text = {"input_ids": torch.randint(1000, 20000, (2, 24)), "attention_mask": torch.ones(2, 24, dtype=torch.int64)}
    yield Model("MiniLM", _mounted(package_sentences(directory)), text, "embeddings.word_embeddings", 2)


def _mounted(path: Path) -> Subject:
    unpacked = path.parent / f"{path.stem}-unpacked"
    archive.unpack(path, unpacked)
    manifest = archive.unpacked(unpacked)
    weights = unpacked / manifest.weights if manifest.weights else None
    return mount(make(find(manifest.adapter, unpacked), manifest.options, unpacked, weights), "cpu")
