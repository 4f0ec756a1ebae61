"""Where explanations that compare begin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from cutaway.tensors import ArrayLike


class TokenId(int):
    """A token's number, as the baseline of an input that holds token ids: the padding token's, say."""


Baselines: TypeAlias = Mapping[str, float | ArrayLike | TokenId]
"""By input name: a number, a tensor of one row or a row an example, or a token's id."""

Distributions: TypeAlias = Mapping[str, ArrayLike]
"""By input name, samples of a distribution: axis 0 the sample, behind it the input's axes; of every input as many."""
