"""Baselines of attribution methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from cutaway.schema.tensors import ArrayLike

__all__ = ["TokenId"]


class TokenId(int):
    """A token id as the baseline of an input of token ids: for example that of the padding token."""


Baselines: TypeAlias = Mapping[str, float | ArrayLike | TokenId]
"""By input name, or by ``""`` for all other inputs: a number, a tensor of one row or a row an example, or a token's
id."""

Distributions: TypeAlias = Mapping[str, ArrayLike]
"""By input name, samples of a distribution: axis 0 is the sample, then the axes of the input; each
input has as many."""
