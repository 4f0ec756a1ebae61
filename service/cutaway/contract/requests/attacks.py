"""Attacks and counterfactuals: small changes of inputs, and how far they change a prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from cutaway.contract.requests.attributions import Baselines
from cutaway.contract.requests.fields import Count, Finite, Number, Positive, given
from cutaway.contract.requests.quality import Masks
from cutaway.contract.tensors import ArrayLike
from cutaway.contract.values import StrEnum

__all__ = [
    "FGSM",
    "PGD",
    "AttackNorm",
    "Column",
    "Counterfactual",
    "MinParamPerturbation",
    "SearchMode",
    "TokenChanges",
]


class SearchMode(StrEnum):
    """The order in which a search tries values; the values are Captum's names."""

    LINEAR = "linear"
    """One after the other, from the first."""
    BINARY = "binary"
    """Half of the rest each time: fewer passes, and the least value only where a larger one never fails."""


@dataclass(frozen=True)
class MinParamPerturbation:
    """A search for the least value of a parameter with which an attack reaches its aim, of each row by itself.

    Args:
        parameter: the attack's parameter, such as ``epsilon``; its own value is not used.
        upper: the end of the search, which is not tried.
        step: the step between two values.
        lower: the first value.
        mode: the order in which values are tried.
    """

    parameter: Annotated[str, given("name the parameter of the attack, such as epsilon")]
    upper: Positive
    step: Positive
    lower: Finite = 0.0
    mode: SearchMode | Literal["linear", "binary"] = SearchMode.LINEAR

    def number(self, value: float) -> float:
        """Returns ``value`` as the parameter takes it: whole for a number of steps."""
        return int(value) if self.parameter == "n_steps" else float(value)


@dataclass(frozen=True, kw_only=True)
class Attack:
    """A change of the inputs that raises the loss of the target, by Captum's class of the same name.

    The loss of a class is the cross-entropy of the output. That of any other target is its negative, so that the target
    falls; a target that is a loss is taken as it is.

    Args:
        targeted: lower the loss of the target, which then is the class to reach.
        inputs: names of the inputs that change; empty is every floating input.
        masks: by input name, 1 for elements that may change and 0 for others, of one row or a row an example.
        lower_bound: the least value of a changed input; ``None`` is none.
        upper_bound: the largest value; ``None`` is none.
        zero_threshold: a gradient of at most this magnitude counts as zero; the default is Captum's.
        of_probabilities: the output has probabilities, so that the loss is the negative logarithm of the target itself.
        search: find the least value of a parameter; ``None`` is one attack.
    """

    targeted: bool = False
    inputs: tuple[str, ...] = ()
    masks: Mapping[str, ArrayLike] = field(default_factory=dict)
    lower_bound: Number | None = None
    upper_bound: Number | None = None
    zero_threshold: Finite = 1e-6
    of_probabilities: bool = False
    search: MinParamPerturbation | None = None


@dataclass(frozen=True)
class FGSM(Attack):
    """Fast gradient sign method: ``x + epsilon * sign(gradient of the loss)``. Goodfellow et al. 2014, arXiv:1412.6572.

    Args:
        epsilon: the size of the change of each element, from 0.
    """

    epsilon: Finite = 0.03


class AttackNorm(StrEnum):
    """The norm that a ball is of; the values are Captum's names."""

    LINF = "Linf"
    """The largest change of an element."""
    L2 = "L2"
    """The Euclidean norm of the changes of a row, of each input by itself."""


@dataclass(frozen=True)
class PGD(Attack):
    """Projected gradient descent: steps along the sign of the gradient, each put back into a ball around the input.

    Madry et al. 2017, arXiv:1706.06083.

    Args:
        radius: the radius of the ball of each input, from 0.
        step_size: the size of a step, from 0.
        n_steps: steps, at least 1.
        norm: the norm of the ball.
        random_start: begin at a point drawn from the ball; a seed in the request makes it reproducible.
    """

    radius: Finite = 0.03
    step_size: Finite = 0.01
    n_steps: Count = 10
    norm: AttackNorm | Literal["Linf", "L2"] = AttackNorm.LINF
    random_start: bool = False


# Counterfactuals.


@dataclass(frozen=True)
class Column:
    """The values that a column of a table may take in place of its own: those of a range, or those that are listed.

    Args:
        lower: the least value.
        upper: the largest.
        step: the distance between two values, from ``lower`` on; ``None`` is 1 for integers, else a sixteenth of the
            range.
        values: the only values, such as the numbers of categories, in place of a range.
    """

    lower: Number | None = None
    upper: Number | None = None
    step: Positive | None = None
    values: tuple[Number, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class TokenChanges:
    """The changes that tokens may have; padding has none.

    Args:
        replacements: ids, one of which takes the place of a token.
        remove: mask a token too: its place in ``attention_mask`` becomes 0.
        keep: ids that stay, such as those that begin and end a text.
        input: the input with the ids.
    """

    replacements: tuple[int, ...] = ()
    remove: bool = False
    keep: tuple[int, ...] = ()
    input: str = "input_ids"

    def __post_init__(self) -> None:
        object.__setattr__(self, "input", self.input or "input_ids")  # a message without it


@dataclass(frozen=True, kw_only=True)
class Counterfactual:
    """A search for a small change of each row that changes the class, or with ``targeted`` reaches it.

    It is greedy: at each step it tries each change that is left, and keeps the one that moves the class most. Then it
    puts changes back as long as the class stays the new one, and takes the nearest value of a range that is enough. At
    the end no change can be put back. Fewer changes of another kind may do the same.

    Args:
        columns: columns of a table that may change, by the name of the feature, or as ``x[3]``.
        tokens: tokens that may be replaced or removed.
        masks: groups of elements, such as `Superpixels`, each of which may get its baseline as a whole.
        baselines: by input name, the values that groups get: a number or a tensor; default zeros.
        targeted: look for the class that the target names.
        max_changes: the most changes of a row.
    """

    columns: Mapping[str, Column] = field(default_factory=dict)
    tokens: TokenChanges | None = None
    masks: Masks = field(default_factory=dict)
    baselines: Baselines = field(default_factory=dict)
    targeted: bool = False
    max_changes: Count = 10
