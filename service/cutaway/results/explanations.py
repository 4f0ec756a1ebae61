"""Explanations that come back, and what checks found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cutaway.requests import CheckMode
from cutaway.tensors import Array
from cutaway.word import Word


class Verdict(Word):
    """What a check found."""

    AGREES = "AGREES"
    DISAGREES = "DISAGREES"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_APPLICABLE = "NOT_APPLICABLE"


class Cause(Word):
    """The likely cause of a verdict other than AGREES; apps branch on it, people read the reason."""

    FUNCTIONAL_NONLINEARITY = "FUNCTIONAL_NONLINEARITY"
    """A nonlinearity that is no module, or of a kind that the method does not know, was differentiated as it is."""
    MODULE_REUSED = "MODULE_REUSED"
    """A module was called several times in one forward, and the method explains, or overrides, one call only."""
    RANDOM_FORWARD = "RANDOM_FORWARD"
    """Two runs on the same input differ."""
    TOO_FEW_STEPS = "TOO_FEW_STEPS"
    """More steps bring the attributions closer to the target's change."""
    NO_GRADIENT = "NO_GRADIENT"
    """The gradient is exactly zero everywhere: the path is cut, or nothing depends on the input."""
    SATURATED = "SATURATED"
    """The gradient is so small that it lies below what rounding does to the target."""
    WRONG_BACKWARD = "WRONG_BACKWARD"
    """What flows back is not the derivative of what flowed forward."""
    ROWS_COUPLED = "ROWS_COUPLED"
    """Rows of the batch depend on each other."""
    BASELINE_IS_INPUT = "BASELINE_IS_INPUT"
    """An example is its own baseline: there is nothing to explain."""
    CANCELLATION = "CANCELLATION"
    """Terms cancel, and what is left of them is rounding."""
    NOT_FINITE = "NOT_FINITE"
    """There are NaNs or infinities."""
    OTHER_PASSES = "OTHER_PASSES"
    """Captum ran the model on other inputs, or differentiated something else, than the method is made of."""
    NOTHING_CHANGED = "NOTHING_CHANGED"
    """The target is the same whatever was replaced."""
    NOTHING_SEEN = "NOTHING_SEEN"
    """The raw hooks saw nothing to compare with."""
    NOT_MOVED = "NOT_MOVED"
    """There was nothing for the method to override, exchange or fit."""
    UNKNOWN = "UNKNOWN"
    """None of these: the attribution is not what it must be."""
    OVERRIDE_LOST = "OVERRIDE_LOST"
    """Captum overrides gradients itself for this method, and loses or mixes some where modules meet."""


@dataclass(frozen=True)
class Check:
    """One comparison of an attribution with what the raw hooks say.

    Attributes:
        compared: what with what, in words.
        mode: where the raw hooks listened.
        max_absolute_error: over all elements.
        max_relative_error: the same over the reference's largest magnitude.
        cosine: between the two, flattened; 0 where either has no length.
        tolerance: the relative error up to which the two agree.
        verdict: the outcome.
        reason: why, and what to do about it; ``""`` where the two agree.
        cause: the same as a word for programs; None where the two agree.
    """

    compared: str
    mode: CheckMode
    max_absolute_error: float
    max_relative_error: float
    cosine: float
    tolerance: float
    verdict: Verdict
    reason: str = ""
    cause: Cause | None = None


@dataclass(frozen=True)
class TokenAttribution:
    """What each token of a text adds: an explanation at an embedding, summed over the embedding's width.

    Attributes:
        input: the input that holds the token ids; ``""`` where the ids are no input of the model.
        ids: [batch, tokens], the token ids.
        values: [batch, tokens], the sums.
        texts: the tokens' texts, row by row; empty where the model's adapter knows none.
    """

    input: str
    ids: Array
    values: Array
    texts: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class MetricResult:
    """A number that judges an explanation.

    Attributes:
        name: ``infidelity`` or ``sensitivity_max``.
        values: [batch].
    """

    name: str
    values: Array


@dataclass(frozen=True)
class AttributionResult:
    """One explanation.

    Attributes:
        method: Captum's class name.
        layer: the layer, or ``""``.
        values: by input name, of the input's shape; for a layer method, by the layer's name.
        convergence_delta: [batch], or None for a method whose attributions need not add up.
        value_at_input: [batch], the explained scalar at the input.
        value_at_baseline: [batch] at the baseline, or None for a method without one.
        targets: [batch], the class indices explained, or None where the target is no class.
        checks: what the raw hooks say.
        n_steps: the steps of a path that were taken; 0 for a method without a path.
        tokens: what each token adds, where the layer is an embedding; else None.
        metrics: the numbers asked for, in order.
    """

    method: str
    layer: str
    values: Mapping[str, Array]
    convergence_delta: Array | None = None
    value_at_input: Array | None = None
    value_at_baseline: Array | None = None
    targets: Array | None = None
    checks: tuple[Check, ...] = ()
    n_steps: int = 0
    tokens: TokenAttribution | None = None
    metrics: tuple[MetricResult, ...] = ()
