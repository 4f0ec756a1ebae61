"""The measured models: digits and MiniLM with trained weights, ResNet-50 with seeded random weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from bench.served import ResNet50
from cutaway.adapters import TensorAdapter, create_adapter, find_adapter, load_model
from cutaway.engine.model.inspected_model import InspectedModel
from cutaway.server.archive import reader
from examples.digits.data import held_out
from examples.digits.package import package as package_digits
from examples.sentences.package import package as package_sentences


class Model(NamedTuple):
    """A model and an input batch for it.

    Attributes:
        name: display name.
        inspected: the model as the engine uses it.
        inputs: the batch, tensors by input name.
        layer: name of a layer in the middle of the model.
        rows: number of examples in the batch.
    """

    name: str
    inspected: InspectedModel
    inputs: dict[str, Tensor]
    layer: str
    rows: int


def models(directory: Path) -> Iterator[Model]:
    """Returns all models; builds their archives in ``directory``."""
    image = {"image": torch.from_numpy(held_out().images[:4].copy())}
    yield Model("digits CNN", _mounted(package_digits(directory)), image, "conv2", 4)
    network = load_model(TensorAdapter(ResNet50().eval()), "cpu")
    yield Model("ResNet-50", network, {"pixel_values": torch.randn(2, 3, 96, 96)}, "resnet.encoder.stages.1", 2)
    text = {"input_ids": torch.randint(1000, 20000, (2, 24)), "attention_mask": torch.ones(2, 24, dtype=torch.int64)}
    yield Model("MiniLM", _mounted(package_sentences(directory)), text, "embeddings.word_embeddings", 2)


def _mounted(path: Path) -> InspectedModel:
    unpacked = path.parent / f"{path.stem}-unpacked"
    reader.unpack(path, unpacked)
    manifest = reader.unpacked(unpacked)
    weights = unpacked / manifest.weights if manifest.weights else None
    adapter = create_adapter(find_adapter(manifest.adapter, unpacked), manifest.options, unpacked, weights)
    return load_model(adapter, "cpu")
