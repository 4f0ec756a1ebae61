"""Changes that requests made: attacks, counterfactuals, texts that were written, receipts of edits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from cutaway.contract.results.arrays import ATTACKED, named, numbers, parts
from cutaway.contract.results.explanations import WORST_FIRST, AttributionResult, Check, RowCheck, outcome_of_row
from cutaway.contract.tensors import Array
from cutaway.contract.values import StrEnum


@dataclass(frozen=True)
class AttackedAttribution:
    """An attribution of the request at the changed inputs of an attack, for the same scalar of each row.

    Attributes:
        attribution: the attribution.
        cosine: [batch], with the attribution at the request's own inputs; NaN where it is not defined.
        rank_correlation: [batch], Spearman's, with the same; NaN where it is not defined.
    """

    attribution: AttributionResult = field(metadata=parts(""))
    cosine: Array = field(metadata=numbers("attribution_cosine", np.float64))
    rank_correlation: Array = field(metadata=numbers("attribution_rank_correlation", np.float64))


@dataclass(frozen=True)
class AttackResult:
    """The outcome of an attack.

    Attributes:
        method: Captum's class name.
        inputs: the changed inputs, by name.
        predictions: what the model returns for them, by name; empty where predictions are left out.
        classes: [batch], the class of each row then; None for a model without classes.
        probabilities: [batch], the softmax of the output, of that class.
        target_values: [batch], the target then; of the same class as before.
        losses_before: [batch], the loss at the request's own inputs.
        losses: [batch], the loss at the changed inputs.
        succeeded: [batch] of bool, whether another class is predicted, or with ``targeted`` that class; None where the
            target is no class.
        linf: [batch], the largest change of an element.
        l2: [batch], the Euclidean norm of the changes, over all inputs.
        parameters: [batch], with a search, the least value that reaches the aim; NaN where none does, and the inputs
            are the request's own.
        checks: comparisons with raw gradients.
        attributions: the attributions of the request at the changed inputs.
    """

    method: str
    inputs: Mapping[str, Array] = field(metadata=named("attacked_input", "attacked"))
    predictions: Mapping[str, Array] = field(default_factory=dict, metadata=named("attacked_output", "output"))
    classes: Array | None = field(default=None, metadata=numbers("attacked_prediction", np.int64))
    probabilities: Array | None = field(default=None, metadata=numbers("attacked_probability", np.float64))
    target_values: Array | None = field(default=None, metadata=numbers("attacked_target_values", np.float64))
    losses_before: Array | None = field(default=None, metadata=numbers("attack_loss_before", np.float64))
    losses: Array | None = field(default=None, metadata=numbers("attack_loss", np.float64))
    succeeded: Array | None = field(default=None, metadata=numbers("attack_succeeded", np.bool_))
    linf: Array | None = field(default=None, metadata=numbers("attack_linf", np.float64))
    l2: Array | None = field(default=None, metadata=numbers("attack_l2", np.float64))
    parameters: Array | None = field(default=None, metadata=numbers("attack_parameter", np.float64))
    checks: tuple[Check, ...] = ()
    attributions: tuple[AttackedAttribution, ...] = field(default=(), metadata=ATTACKED)

    @property
    def worst_check(self) -> Check | None:
        """The check with the worst verdict, or None if nothing was checked."""
        return min(self.checks, key=lambda check: WORST_FIRST.index(check.verdict), default=None)


@dataclass(frozen=True)
class CounterfactualResult:
    """The small changes that change the class; a row for which nothing was found has its own inputs.

    Attributes:
        inputs: the changed inputs, by name.
        changed: of the same shapes, whether each element is another than the request's own.
        predictions: what the model returns for them, by name; empty where predictions are left out.
        classes: [batch], the class then.
        probabilities: [batch], the softmax of the output, of that class.
        succeeded: [batch] of bool, whether the class is another than that of the target, or with ``targeted`` that one.
        changes: [batch], how many columns, tokens or groups were changed.
        passes: [batch], how many passes the search took.
        checks: whether the model's own passes of all rows have the class, and lose it without each change.
    """

    inputs: Mapping[str, Array] = field(metadata=named("counterfactual_input", "attacked"))
    changed: Mapping[str, Array] = field(metadata=named("counterfactual_changed", "attacked"))
    predictions: Mapping[str, Array] = field(default_factory=dict, metadata=named("counterfactual_output", "output"))
    classes: Array = field(kw_only=True, metadata=numbers("counterfactual_prediction", np.int64))
    probabilities: Array = field(kw_only=True, metadata=numbers("counterfactual_probability", np.float64))
    succeeded: Array = field(kw_only=True, metadata=numbers("counterfactual_succeeded", np.bool_))
    changes: Array = field(kw_only=True, metadata=numbers("counterfactual_changes", np.int64))
    passes: Array = field(kw_only=True, metadata=numbers("counterfactual_passes", np.int64))
    checks: tuple[Check, ...] = ()

    def outcome(self, row: int) -> RowCheck | None:
        """Returns the worst outcome of the checks of one row; None if nothing was checked."""
        return outcome_of_row(self.checks, row) if self.checks else None


# Texts that were written, and the receipts of edits.


class FinishReason(StrEnum):
    """Why a row of a generation ended."""

    LENGTH = "length"
    """It has the most tokens that were allowed."""
    END = "end"
    """The model wrote a token that ends a text."""
    STOP = "stop"
    """It has a text or a token of the request at which it stops."""


@dataclass(frozen=True)
class GeneratedStep:
    """The tokens of one step of a generation, by row.

    Attributes:
        tokens: the token; -1 for a row that ended before.
        texts: the text that it adds to its row; ``""`` where a character is not complete.
        log_probabilities: the logarithm of its probability, by the softmax of the model's logits; 0 for a row that
            ended before.
        alternatives: the likeliest tokens, as many of each row as were requested, row by row, the likeliest first; -1
            of a row that ended before.
        alternative_log_probabilities: the logarithms of their probabilities.
    """

    tokens: tuple[int, ...]
    texts: tuple[str, ...]
    log_probabilities: tuple[float, ...]
    alternatives: tuple[int, ...] = ()
    alternative_log_probabilities: tuple[float, ...] = ()


@dataclass(frozen=True)
class EditReceipt:
    """Tells what an edit did.

    Attributes:
        tensors: the number of tensors that it was applied to.
        changed: whether it changed a value.
        norm: the 2-norm of what it changed, over all tensors.
        steps: the steps of a generation in which it was applied.
        left_out: the places that an edit of a token, by a glob, leaves out: their tensors have no axis of tokens.
    """

    tensors: int = 0
    changed: bool = False
    norm: float = 0.0
    steps: tuple[int, ...] = ()
    left_out: tuple[str, ...] = ()
