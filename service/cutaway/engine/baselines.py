"""Where attributions begin: what was sent as a baseline, as tensors that fit the inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cutaway.engine.arrays import from_numpy
from cutaway.engine.subject import Inputs, dtype_text
from cutaway.errors import Reason, at, error
from cutaway.requests import TokenId
from cutaway.tensors import Array, as_array


def baselines(given: Mapping[str, Any], inputs: Inputs, explained: Sequence[str]) -> Inputs:
    """A baseline of each explained input's shape; zeros where none was sent.

    Raises:
        InvalidArgument: with the field at fault, below ``baselines``.
    """
    with at("baselines.by_input"):
        refuse_others(given, "baseline", explained)
        return {name: baseline(name, given.get(name, 0), inputs[name]) for name in explained}


def distributions(given: Mapping[str, Any], inputs: Inputs, explained: Sequence[str]) -> Inputs:
    """Samples of a distribution for each explained input, [samples, ...], as many for each.

    Raises:
        InvalidArgument: with the field at fault, below ``baselines``.
    """
    found: Inputs = {}
    with at("baselines.by_input"):
        refuse_others(given, "baseline", explained)
        for name in explained:
            if name not in given:
                raise error(
                    Reason.INVALID_VALUE,
                    f"{name!r} has no distribution of baselines; send samples, axis 0 the sample: [samples, "
                    f"{', '.join(map(str, inputs[name].shape[1:]))}]",
                    name,
                )
            found[name] = _samples(name, as_array(given[name]), inputs[name])
        counts = {name: len(samples) for name, samples in found.items()}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{name} has {count}" for name, count in counts.items())
            raise error(Reason.BATCH_MISMATCH, f"every input needs as many samples: {listed}", explained[-1])
    return found


def _samples(name: str, given: Array, like: Tensor) -> Tensor:
    _refuse_dtype(name, given, like)
    if given.ndim != like.ndim or given.shape[1:] != like.shape[1:] or not len(given):
        raise error(
            Reason.INPUT_SHAPE,
            f"{list(given.shape)}; send one sample or more, [samples, {', '.join(map(str, like.shape[1:]))}]",
            name,
        )
    return from_numpy(given).to(like.device)


def refuse_others(given: Mapping[str, Any], what: str, explained: Sequence[str]) -> None:
    """Refuse a ``what`` for an input that is not explained."""
    for name in given:
        if name not in explained:
            raise error(
                Reason.INPUT_UNKNOWN,
                f"a {what} for {name!r}, which is not explained; explained: {', '.join(explained)}",
                name,
            )


def baseline(name: str, given: Any, like: Tensor) -> Tensor:
    """``given``, a number, a token's id or an array, in the shape of the input ``like``.

    Raises:
        InvalidArgument: ``INPUT_DTYPE``, ``INPUT_SHAPE`` or ``INVALID_VALUE``, for the field ``name``.
    """
    if isinstance(given, TokenId) and like.is_floating_point():
        raise error(Reason.INPUT_DTYPE, f"a token's id, and the input is {dtype_text(like)}: send a number", name)
    if isinstance(given, (int, float)):
        return _filled(name, given, like)
    array = as_array(given)
    _refuse_dtype(name, array, like)
    refuse_shape(name, array, like)
    return from_numpy(array).to(like.device).expand_as(like)


def _filled(name: str, given: float, like: Tensor) -> Tensor:
    if not like.is_floating_point() and given != given // 1:  # NaN and infinities too
        raise error(Reason.INVALID_VALUE, f"{given}; the input is {dtype_text(like)}", name)
    return torch.full_like(like, float(given) if like.is_floating_point() else int(given))


def _refuse_dtype(name: str, given: Array, like: Tensor) -> None:
    if given.dtype.name != dtype_text(like):
        raise error(Reason.INPUT_DTYPE, f"{given.dtype.name}; the input is {dtype_text(like)}", name)


def refuse_shape(name: str, given: Array, like: Tensor) -> None:
    """Refuse what is neither one row for all nor one an example."""
    if given.shape[1:] != like.shape[1:] or given.shape[:1] not in ((1,), like.shape[:1]):
        raise error(
            Reason.INPUT_SHAPE,
            f"{list(given.shape)}; send one row for all, {[1, *like.shape[1:]]}, or one an example, {list(like.shape)}",
            name,
        )
