"""The three models of first light, built in the test's own process from the archives that are served."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import Adapter, find_adapter
from cutaway.server.archive import reader
from examples.digits.data import held_out


@dataclass(frozen=True)
class Subject:
    """A model and what is asked of it.

    Attributes:
        target: the class or element explained, an example each; None is the predicted class.
        modules: where hooks sit.
    """

    name: str
    adapter: Adapter
    model: nn.Module
    inputs: dict[str, Tensor]
    target: list[int] | None
    modules: tuple[str, ...]
    attributions: tuple[ca.Attribution, ...]

    @property
    def floating(self) -> bool:
        """Whether the inputs have gradients."""
        return all(tensor.is_floating_point() for tensor in self.inputs.values())

    def forward(self, *tensors: Tensor) -> Tensor:
        """The output that targets are read from."""
        returned = self.adapter.forward(self.model, dict(zip(self.inputs, tensors)))
        return returned if isinstance(returned, Tensor) else next(iter(dict(returned).values()))


def digits(store: Path) -> Subject:
    """Three handwritten digits that training never saw."""
    return Subject(
        "digits", *_built(store / "digits-1.0.mar"), {"image": torch.from_numpy(held_out().images[:3].copy())}, None,
        ("conv1", "relu1", "conv2", "fc1", "fc2"), (
            ca.Saliency(), ca.Saliency(absolute=False), ca.InputXGradient(), ca.IntegratedGradients(),
            ca.IntegratedGradients(n_steps=20, quadrature=ca.Quadrature.RIEMANN_MIDDLE, baselines={"image": 0.5},
                                   multiply_by_inputs=False),
            ca.LayerActivation(layer="conv2"), ca.LayerGradientXActivation(layer="fc1"),
            ca.LayerGradCam(layer="conv2"), ca.LayerGradCam(layer="conv1", relu=True),
        ),
    )  # fmt: skip


def sentences(store: Path) -> Subject:
    """Two sentences for MiniLM, padded to one length."""
    adapter, model = _built(store / "sentences-1.0.mar")
    texts = (b"A cutaway shows a machine running.", b"It is raining.")
    inputs = adapter.collate([adapter.preprocess(text, "text/plain") for text in texts])
    attention, block = "encoder.layer.0.attention.self", "encoder.layer.5"
    return Subject(
        "sentences", adapter, model, inputs, [7, 200],
        ("embeddings", "embeddings.word_embeddings", attention, "encoder.layer.2.attention.output.dense", block), (
            ca.LayerActivation(layer="embeddings"), ca.LayerGradientXActivation(layer="embeddings"),
            ca.LayerGradientXActivation(layer="encoder.layer.3.attention.output"),
            ca.LayerGradCam(layer="encoder.layer.5.output"),
        ),
    )  # fmt: skip


def resnet(store: Path) -> Subject:
    """Two images of seeded noise for a ResNet-50."""
    image = np.random.default_rng(0).standard_normal((2, 3, 64, 64)).astype(np.float32)
    stage = "resnet.encoder.stages.2.layers.0"
    return Subject(
        "resnet", *_built(store / "resnet-1.0.mar"), {"pixel_values": torch.from_numpy(image)}, [0, 1],
        ("resnet.embedder", f"{stage}.layer.1", f"{stage}.shortcut", "resnet.encoder.stages.1.layers.1", "classifier"),
        (
            ca.Saliency(), ca.InputXGradient(), ca.IntegratedGradients(n_steps=8),
            ca.LayerActivation(layer="resnet.embedder"), ca.LayerGradientXActivation(layer="resnet.encoder.stages.1"),
            ca.LayerGradCam(layer="resnet.encoder.stages.3"),
        ),
    )  # fmt: skip


SUBJECTS: dict[str, Callable[[Path], Subject]] = {"digits": digits, "sentences": sentences, "resnet": resnet}


def _built(path: Path) -> tuple[Adapter, nn.Module]:
    directory = Path(tempfile.mkdtemp(prefix=path.stem, dir=path.parent.parent)) / "unpacked"
    reader.unpack(path, directory)
    manifest = reader.unpacked(directory)
    adapter = find_adapter(manifest.adapter, directory)(manifest.options, directory)
    return adapter, adapter.load(directory / manifest.weights if manifest.weights else None).eval()
