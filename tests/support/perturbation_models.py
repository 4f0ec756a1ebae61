"""Models and helpers for tests of perturbation methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from captum import attr
from torch import Tensor, nn

import cutaway as ca
from tests.support.checked_attributions import Wired, wired

SEED = 11


TOKENS = wired(
    lambda m, ids, weight: m.head(torch.tanh(m.words(ids) * weight.unsqueeze(-1)).sum(1)),
    words=lambda: nn.Embedding(20, 6), head=lambda: nn.Linear(6, 3),
)  # fmt: skip


GAINED = wired(
    lambda m, x, y, gain: m.head(torch.relu(m.a(x)) * m.b(y).sigmoid() * gain.unsqueeze(1)),
    a=lambda: nn.Linear(4, 6), b=lambda: nn.Linear(3, 6), head=lambda: nn.Linear(6, 3),
)  # fmt: skip


ONE_NUMBER = wired(lambda m, x: torch.tanh(m.a(x)).prod(1), a=lambda: nn.Linear(6, 3))


def ids(rows: int) -> Tensor:
    return torch.randint(1, 20, (rows, 5), generator=torch.Generator().manual_seed(2))


def cast(inputs: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in inputs.items()}


def tensor(given: Any, like: Tensor) -> Tensor:
    return torch.as_tensor(given, dtype=like.dtype).expand_as(like) if np.ndim(given) else torch.full_like(like, given)


def by_hand(model: nn.Module, inputs: Mapping[str, Tensor], asked: Any) -> list[Tensor]:
    """``asked``, answered by Captum as its documentation uses it."""
    explained = list(asked.inputs) or [name for name in inputs if inputs[name].is_floating_point()]
    rest = [name for name in inputs if name not in explained]
    output = model(**inputs)
    options: dict[str, Any] = {"target": None if output.ndim == 1 else output.argmax(1)}
    if hasattr(asked, "baselines"):
        options["baselines"] = tuple(tensor(asked.baselines.get(name, 0), inputs[name]) for name in explained)
    if getattr(asked, "masks", {}):
        masks = {name: asked.masks.get(name, np.full(inputs[name][:1].shape, 99)) for name in explained}
        numbers = sorted({int(each) for name in explained for each in np.unique(masks[name])})
        options["feature_mask"] = tuple(torch.tensor(np.searchsorted(numbers, masks[name])) for name in explained)
    if isinstance(asked, ca.Occlusion):
        options["sliding_window_shapes"] = tuple(asked.windows[name] for name in explained)
        options["strides"] = tuple(asked.strides.get(name, 1) for name in explained)
    if hasattr(asked, "n_samples"):
        options["n_samples"] = asked.n_samples
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        found = getattr(attr, type(asked).__name__)(
            lambda *given: model(**dict(zip(explained + rest, given)))
        ).attribute(
            tuple(inputs[name] for name in explained),
            additional_forward_args=tuple(inputs[name] for name in rest) or None,
            **options,
        )
    return list(found)


def permutes_one_row() -> bool:
    """Whether this Captum answers a permutation of one row with zeros, as 0.9 does; 0.8 refuses it."""
    try:
        attr.FeaturePermutation(lambda x: x.sum(1)).attribute(torch.ones(1, 2))
    except AssertionError:
        return False
    return True


def ablates_across_inputs() -> bool:
    """Whether this Captum ablates a feature of two inputs in both at once, as 0.9 does; 0.8 does so in one by one."""
    ones, mask = (torch.ones(1, 1),) * 2, (torch.zeros(1, 1, dtype=torch.long),) * 2
    found = attr.FeatureAblation(lambda x, y: (x + y).sum(1)).attribute(ones, feature_mask=mask)
    return bool(found[0] == 2)


def reads_lists() -> bool:
    """Whether this Captum reads a layer that returns a list, as 0.9 does; 0.8 fails on it."""
    listed = Wired(lambda m, x: m.layer(x)[0].sum(1), layer=Wired(lambda _, x: [x]))
    try:
        attr.LayerActivation(listed, listed.layer).attribute(torch.ones(1, 2))
    except AttributeError:
        return False
    return True
