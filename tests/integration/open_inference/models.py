"""Models for clients of the Open Inference Protocol."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from cutaway.adapters import Adapter
from cutaway.contract.results import InputSpec

NUMBERS = {
    "BOOL": np.array([True, False]),
    "UINT8": np.array([0, 255], np.uint8),
    "INT8": np.array([-128, 127], np.int8),
    "INT16": np.array([-32768, 32767], np.int16),
    "INT32": np.array([-(2**31), 2**31 - 1], np.int32),
    "INT64": np.array([-(2**63), 2**63 - 1], np.int64),
    "FP16": np.array([0.1, -65504], np.float16),
    "FP32": np.array([0.1, -3e38], np.float32),
    "FP64": np.array([0.1, -1e308], np.float64),
}
"""Numbers of each data type, the first and the last of whole ones among them."""

X = np.linspace(-1, 1, 72, dtype=np.float32).reshape(2, 1, 6, 6)


class Same(nn.Module):
    """Returns what it gets."""

    def forward(self, input: Tensor) -> Tensor:
        return input.clone()


class Classes(Adapter):
    """Pictures of 6 x 6 in, three classes out; examples are texts of 36 numbers. One module is called twice."""

    inputs = (InputSpec("image", "float32", (-1, 1, 6, 6)),)
    labels = ("a", "b", "c")
    media_types = ("text/plain",)

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        relu = nn.ReLU()
        parts = {"conv": nn.Conv2d(1, 2, 3), "act": relu, "flat": nn.Flatten(), "fc": nn.Linear(32, 3)}
        return _Twice(parts)

    def example(self) -> dict[str, Tensor]:
        return {"image": torch.from_numpy(X[:1])}

    def decode(self, data: bytes, media_type: str) -> dict[str, Tensor]:
        return {"image": torch.tensor([float(number) for number in data.split()]).reshape(1, 1, 6, 6)}


class _Twice(nn.Module):
    def __init__(self, parts: dict[str, nn.Module]) -> None:
        super().__init__()
        self.conv, self.act, self.flat, self.fc = parts.values()

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.act(self.fc(self.flat(self.act(self.conv(image)))) + 1)
        return logits
