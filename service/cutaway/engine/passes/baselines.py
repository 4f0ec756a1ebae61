"""Baselines and distributions of a request, as tensors that fit the inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cutaway.engine.model.inspected_model import Inputs, dtype_text
from cutaway.engine.runtime.numpy_bridge import from_numpy
from cutaway.errors import Reason, at, error
from cutaway.requests import TokenId
from cutaway.schema.tensors import Array, as_array


def baselines(values: Mapping[str, Any], inputs: Inputs, explained: Sequence[str]) -> Inputs:
    """Returns a baseline of each explained input's shape; zeros where none was sent. The name ``""`` stands for all
    inputs that are not named.

    Raises:
        InvalidArgument: with the field at fault, below ``baselines``.
    """
    if "" in values:
        values = {**dict.fromkeys(explained, values[""]), **{name: each for name, each in values.items() if name}}
    with at("baselines.by_input"):
        refuse_unexplained(values, "baseline", explained)
        return {name: baseline(name, values.get(name, 0), inputs[name]) for name in explained}


def distributions(values: Mapping[str, Any], inputs: Inputs, explained: Sequence[str]) -> Inputs:
    """Returns samples of a distribution for each explained input, ``[samples, ...]``, the same number for each.

    Raises:
        InvalidArgument: with the field at fault, below ``baselines``.
    """
    with at("baselines.by_input"):
        refuse_unexplained(values, "baseline", explained)
        samples = {name: _samples(name, values, inputs[name]) for name in explained}
        if len({len(each) for each in samples.values()}) > 1:
            listed = ", ".join(f"{name} has {len(each)}" for name, each in samples.items())
            raise error(Reason.BATCH_MISMATCH, f"every input needs as many samples: {listed}", explained[-1])
    return samples


def _samples(name: str, values: Mapping[str, Any], like: Tensor) -> Tensor:
    shape = f"[samples, {', '.join(map(str, like.shape[1:]))}]"
    if name not in values:
        text = f"{name!r} has no distribution of baselines; send samples, axis 0 the sample: {shape}"
        raise error(Reason.INVALID_VALUE, text, name)
    array = as_array(values[name])
    _refuse_dtype(name, array, like)
    if array.ndim != like.ndim or array.shape[1:] != like.shape[1:] or not len(array):
        raise error(Reason.INPUT_SHAPE, f"{list(array.shape)}; send one sample or more, {shape}", name)
    return from_numpy(array).to(like.device)


def refuse_unexplained(values: Mapping[str, Any], what: str, explained: Sequence[str]) -> None:
    """Refuses a ``what`` for an input that is not explained."""
    for name in values:
        if name not in explained:
            text = f"a {what} for {name!r}, which is not explained; explained: {', '.join(explained)}"
            raise error(Reason.INPUT_UNKNOWN, text, name)


def baseline(name: str, value: Any, like: Tensor) -> Tensor:
    """Returns ``value``, a number, a token id or an array, in the shape of the input ``like``.

    Raises:
        InvalidArgument: ``INPUT_DTYPE``, ``INPUT_SHAPE`` or ``INVALID_VALUE``, for the field ``name``.
    """
    floating = like.is_floating_point()
    if isinstance(value, TokenId) and floating:
        raise error(Reason.INPUT_DTYPE, f"a token's id, and the input is {dtype_text(like)}: send a number", name)
    if isinstance(value, (int, float)):
        if not floating and value != value // 1:  # NaN and infinities too
            raise error(Reason.INVALID_VALUE, f"{value}; the input is {dtype_text(like)}", name)
        return torch.full_like(like, float(value) if floating else int(value))
    array = as_array(value)
    _refuse_dtype(name, array, like)
    refuse_shape(name, array, like)
    return from_numpy(array).to(like.device).expand_as(like)


def _refuse_dtype(name: str, array: Array, like: Tensor) -> None:
    if array.dtype.name != dtype_text(like):
        raise error(Reason.INPUT_DTYPE, f"{array.dtype.name}; the input is {dtype_text(like)}", name)


def refuse_shape(name: str, array: Array, like: Tensor) -> None:
    """Refuses an array that has neither one row for all rows of ``like``, nor one for each."""
    if array.shape[1:] != like.shape[1:] or array.shape[:1] not in ((1,), like.shape[:1]):
        raise error(
            Reason.INPUT_SHAPE,
            f"{list(array.shape)}; send one row for all, {[1, *like.shape[1:]]}, or one an example, {list(like.shape)}",
            name,
        )
