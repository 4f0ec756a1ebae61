"""Attributions in a result and their checks, what edits did, and tokens that were written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cutaway.contract import requests
from cutaway.contract.errors import CutawayError
from cutaway.contract.results.arrays import array, array_fields, named, numbers, parts
from cutaway.contract.results.summary import describe_attribution
from cutaway.contract.tensors import Array
from cutaway.contract.values import StrEnum, printable


class Verdict(StrEnum):
    """The outcome of a check."""

    AGREES = "AGREES"
    DISAGREES = "DISAGREES"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_APPLICABLE = "NOT_APPLICABLE"


WORST_FIRST = (Verdict.DISAGREES, Verdict.INCONCLUSIVE, Verdict.AGREES, Verdict.NOT_APPLICABLE)
"""The verdicts in the order in which they outweigh each other: a check that does not apply must not hide one that
does."""


class Cause(StrEnum):
    """The likely cause of a verdict other than AGREES, for programs; the reason is for people."""

    FUNCTIONAL_NONLINEARITY = "FUNCTIONAL_NONLINEARITY"
    """A nonlinearity is no module, or of a kind that the method does not know: its plain gradient was used."""
    MODULE_REUSED = "MODULE_REUSED"
    """A module was called several times in one forward pass; the method explains, or overrides, only one call."""
    RANDOM_FORWARD = "RANDOM_FORWARD"
    """Two runs on the same input differ."""
    TOO_FEW_STEPS = "TOO_FEW_STEPS"
    """More steps bring the attributions closer to the target's change."""
    NO_GRADIENT = "NO_GRADIENT"
    """The gradient is exactly zero everywhere: the target does not depend on the input, or the graph is cut."""
    SATURATED = "SATURATED"
    """The gradient is so small that its effect is less than a rounding error, or that its data type rounds it."""
    WRONG_BACKWARD = "WRONG_BACKWARD"
    """The backward pass does not compute the derivative of the forward pass."""
    ROWS_COUPLED = "ROWS_COUPLED"
    """Rows of the batch depend on each other."""
    BASELINE_IS_INPUT = "BASELINE_IS_INPUT"
    """The baseline of a row equals its input: there is nothing to explain."""
    CANCELLATION = "CANCELLATION"
    """Terms cancel, and their sum consists of rounding errors."""
    NOT_FINITE = "NOT_FINITE"
    """Values are NaN or infinite."""
    OTHER_PASSES = "OTHER_PASSES"
    """Captum ran the model on other inputs, or differentiated another scalar, than the method consists of."""
    NOTHING_CHANGED = "NOTHING_CHANGED"
    """The target is the same for all perturbations."""
    NOTHING_SEEN = "NOTHING_SEEN"
    """The raw hooks recorded nothing to compare with."""
    NOT_MOVED = "NOT_MOVED"
    """There was nothing for the method to override, exchange or fit, or its sum need not be the target's change."""
    UNKNOWN = "UNKNOWN"
    """None of these: the attribution differs from its reference."""
    OVERRIDE_LOST = "OVERRIDE_LOST"
    """Captum overrides gradients for this method, and loses or mixes some where modules are connected."""
    UNDERDETERMINED = "UNDERDETERMINED"
    """The draws of a surrogate do not determine its coefficients: other fits are as good."""
    CHECK_FAILED = "CHECK_FAILED"
    """The check ended in an error, or could not test a function of the model: it says nothing of the values."""
    STALE_CACHE = "STALE_CACHE"
    """The cache of earlier tokens differs from what one pass over them computes."""
    EDIT_NOT_APPLIED = "EDIT_NOT_APPLIED"
    """The tokens of a generation are those of the model without its edits, in all steps or behind the prompt."""
    INSENSITIVE_TO_WEIGHTS = "INSENSITIVE_TO_WEIGHTS"
    """The model with random weights has nearly the same explanation."""
    OUT_OF_BOUNDS = "OUT_OF_BOUNDS"
    """An attack left its ball, its bounds or its mask."""
    NOT_LEAST = "NOT_LEAST"
    """A search reports a value as the least, and the one below it does as well."""
    DISCONTINUOUS = "DISCONTINUOUS"
    """The target jumps on the path, or rises steeply: more steps leave the attributions as far from its change."""
    QUADRATURE_WEIGHTS = "QUADRATURE_WEIGHTS"
    """Captum's weights of the points on a path do not sum to 1."""


@dataclass(frozen=True)
class RowCheck:
    """The outcome of a comparison for one row of the batch.

    Attributes:
        max_relative_error: the largest relative error of the row.
        verdict: the outcome for the row.
        reason: why; ``""`` where the two agree.
        cause: the reason for programs; None where both agree.
    """

    max_relative_error: float
    verdict: Verdict
    reason: str = ""
    cause: Cause | None = None


@dataclass(frozen=True)
class Check:
    """One comparison of an attribution with a reference computed from raw hooks.

    Attributes:
        compared: what was compared, for people.
        mode: in which passes the raw hooks recorded.
        max_absolute_error: the largest over all elements.
        max_relative_error: the largest absolute error, divided by the largest magnitude of the reference.
        cosine: the cosine similarity of both, flattened; 0 if one of them is all zeros.
        tolerance: the relative error up to which both agree.
        verdict: the outcome.
        reason: why, and what to do about it; ``""`` where both agree.
        cause: the reason for programs; None where both agree.
        rows: the outcome of each row of the batch, where some rows may be better than the outcome above, which is that
            of the worst row; empty where that outcome holds for every row.
    """

    compared: str
    mode: requests.CheckMode
    max_absolute_error: float
    max_relative_error: float
    cosine: float
    tolerance: float
    verdict: Verdict
    reason: str = ""
    cause: Cause | None = None
    rows: tuple[RowCheck, ...] = ()

    def of_row(self, row: int) -> RowCheck:
        """Returns the outcome for one row of the batch."""
        return self.rows[row] if self.rows else RowCheck(self.max_relative_error, self.verdict, self.reason, self.cause)


def outcome_of_row(checks: Sequence[Check], row: int) -> RowCheck:
    """Returns the worst outcome that ``checks`` have for ``row``, with the largest error of the checks that have it."""
    outcomes = [check.of_row(row) for check in checks]
    worst = min(outcomes, key=lambda outcome: WORST_FIRST.index(outcome.verdict))
    errors = [outcome.max_relative_error for outcome in outcomes if outcome.verdict == worst.verdict]
    return replace(worst, max_relative_error=max(errors))


@dataclass(frozen=True)
class TokenAttribution:
    """The attribution of each token of a text, or of a category: that of an embedding, summed over its width.

    Arrays of other shapes, as of an embedding whose ids are [batch], become [batch, tokens].

    Attributes:
        input: the input that holds the token ids; ``""`` where the ids are no input of the model.
        ids: [batch, tokens], the token ids.
        values: [batch, tokens], the sums.
        texts: the texts of the tokens, row by row; empty if the adapter of the model knows none.
        baseline_ids: [batch, tokens], the token ids of the baseline; None for a method without one.
        baseline_texts: the texts of these, row by row; empty if the adapter of the model knows none.
    """

    input: str
    ids: Array = field(metadata=array("token_ids", "input"))
    values: Array = field(metadata=array("token_attribution", "input"))
    texts: tuple[tuple[str, ...], ...] = ()
    baseline_ids: Array | None = field(default=None, metadata=array("baseline_token_ids", "input"))
    baseline_texts: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        for name in array_fields(type(self)):
            if (array := getattr(self, name)) is not None and array.ndim != 2:
                rows = np.atleast_1d(array)
                object.__setattr__(self, name, rows.reshape(len(rows), math.prod(rows.shape[1:])))

    @property
    def is_category(self) -> bool:
        """Whether each row has one id without a text, as of a column of categories."""
        return self.ids.shape[1] == 1 and not self.texts

    def row_texts(self, row: int, name: str = "") -> list[str]:
        """Returns the texts of the tokens of a row; their ids where no texts are known, of a category ``job = 2``.

        Args:
            row: of the batch.
            name: of a category.
        """
        of_category = f"{name} = " if name and self.is_category else ""
        return [*self.texts[row]] if row < len(self.texts) else [f"{of_category}{each}" for each in self.ids[row]]

    def against(self, row: int) -> str:
        """Returns the tokens that those of a row are compared with, in words: ``against [PAD]; kept: [CLS], [SEP]``.

        Empty for a method without a baseline.
        """
        if self.baseline_ids is None:
            return ""
        ids = self.baseline_ids[row].tolist()
        known = self.baseline_texts
        texts = known[row] if row < len(known) else [f"token {each}" for each in ids]
        kept = [own == other for own, other in zip(self.ids[row].tolist(), ids)]
        others, same = (_few(text for text, stays in zip(texts, kept) if stays is wanted) for wanted in (False, True))
        return f"against {others or 'itself'}" + (f"; kept: {same}" if others and same else "")


def _few(texts: Iterable[str]) -> str:
    """Returns different texts, the first three of them."""
    names = [printable(text) for text in dict.fromkeys(texts)]
    return ", ".join([*names[:_FEW], *[f"{len(names) - _FEW} more"] * (len(names) > _FEW)])


_FEW = 3


class Better(StrEnum):
    """The values of a metric that are better."""

    HIGHER = "HIGHER"
    LOWER = "LOWER"
    ZERO = "ZERO"
    """Values near 0."""


@dataclass(frozen=True)
class MetricResult:
    """A quality metric of an attribution.

    Attributes:
        name: the field of the request, such as ``infidelity``.
        values: [batch]; NaN where it is not defined.
        random: [batch], the same of an attribution of random numbers, the mean of three; None for a metric that
            explains anew.
        curve: [batch, points], of a metric with steps; else None.
        better: which values are better; None for neither.
    """

    name: str
    values: Array = field(metadata=numbers("metric", np.float64, of="metric"))
    random: Array | None = field(default=None, metadata=numbers("metric_at_random", np.float64, of="metric"))
    curve: Array | None = field(default=None, metadata=array("metric_curve", "metric"))
    better: Better | None = None


@dataclass(frozen=True)
class ConceptResult:
    """The outcome of TCAV for one concept at one layer; lists have an element for each random set, in their order.

    Attributes:
        layer: the layer.
        concept: the concept.
        derivatives: [batch, random], float64: the directional derivatives of the target along the vectors, of length 1.
        vectors: [random, ...], the concept activation vectors, as the classifier has them, of the shape of a row of the
            layer's output; None unless they were requested.
        shares: Captum's sign count: the share of rows with a positive directional derivative.
        magnitudes: Captum's magnitude: the mean directional derivative, along vectors of the classifier's own length.
        accuracies: the share of held-out examples that the classifier tells apart; 0.5 is chance.
        random_shares: the mean share of each random set in the place of the concept.
        t_test: the two-sided t-test of ``shares`` against 0.5, as in the paper. Shares that have the concept's examples
            in common are not independent: it rejects for many random sets too.
        p_value: two-sided: the part of all sets, the concept among them, whose mean share is as far from 0.5.
        check: the comparison with raw hooks and a fit of our own; None without checks.
    """

    layer: str
    concept: str
    derivatives: Array = field(metadata=array("concept_derivative", "concept"))
    vectors: Array | None = field(default=None, metadata=array("concept_vector", "concept", by_row=False))
    shares: tuple[float, ...] = ()
    magnitudes: tuple[float, ...] = ()
    accuracies: tuple[float, ...] = ()
    random_shares: tuple[float, ...] = ()
    t_test: float = 1.0
    p_value: float = 1.0
    check: Check | None = None

    @property
    def name(self) -> str:
        """The layer and the concept, by which the arrays are named."""
        return f"{self.layer}:{self.concept}"

    @property
    def share(self) -> float:
        """The TCAV score: the mean share over the random sets."""
        return sum(self.shares) / max(1, len(self.shares))


@dataclass(frozen=True)
class InfluenceResult:
    """The training rows that made the predictions, by their numbers from 0.

    Attributes:
        method: how they were found.
        helpful: [batch, k] int64, the rows that helped most, the first most of all.
        helpful_scores: [batch, k] float64.
        harmful: [batch, k] int64, the rows that harmed most, or that are least alike.
        harmful_scores: [batch, k] float64.
        self_influence: [training rows], of gradients, how much each helps itself: wrong labels stand out; else None.
        check: the comparison of all scores with products of raw gradients, row by row; None without checks.
    """

    method: str
    helpful: Array = field(metadata=array("helpful", "influence"))
    helpful_scores: Array = field(metadata=array("helpful_score", "influence"))
    harmful: Array = field(metadata=array("harmful", "influence"))
    harmful_scores: Array = field(metadata=array("harmful_score", "influence"))
    self_influence: Array | None = field(default=None, metadata=array("self_influence", "influence", by_row=False))
    check: Check | None = None


@dataclass(frozen=True)
class AttributionError:
    """The error of one attribution that could not be computed.

    Attributes:
        code: the gRPC status code that the call would have had.
        reason: the reason for programs.
        message: the reason for people.
        field: the field at fault.
    """

    code: int
    reason: str
    message: str
    field: str = ""


@dataclass(frozen=True, repr=False)
class AttributionResult:
    """One attribution.

    Attributes:
        method: Captum's class name.
        layer: the layer, or ``""``.
        values: by input name, of the input's shape; for a layer method, by the layer's name.
        convergence_delta: [batch], or None for a method whose attributions need not sum to the target's change.
        value_at_input: [batch], the target at the input.
        value_at_baseline: [batch], the target at the baseline, or None for a method without one.
        targets: [batch], the class indices explained, or None where the target is no class.
        checks: comparisons with raw hooks.
        n_steps: the number of steps on the path; 0 for a method without a path.
        metrics: the requested quality metrics, in order.
        tokens: the attribution of each token, where the layer is an embedding; else None.
        standard_errors: of KernelSHAP and LIME, where they are checked: by input name, float64 of the input's shape,
            the standard error of each attribution from the draws; infinite where fewer draws would not determine it.
        error: why there is no attribution, where the request takes errors in their places; then ``values`` is empty.
        inputs_left_out: the inputs that are not explained, where the request names none: integers that no embedding
            takes, such as masks, and those that the method cannot move.
        attribution_ms: the time for Captum and the metrics, in milliseconds; of all requests that ran together.
        check_ms: the time for its reference and the comparison, in milliseconds, besides ``attribution_ms``.
        features: of superpixels, by input name, int64 [batch, height, width]: the feature of each pixel, from 0.
        references: with ``check.references``, what raw hooks say that ``values`` should be, in float64; of a layer that
            is called several times, for the call that differs most. Empty where they saw too little.
    """

    method: str
    layer: str
    values: Mapping[str, Array] = field(metadata=named("attribution", "input"))
    convergence_delta: Array | None = field(default=None, metadata=numbers("convergence_delta", np.float64))
    value_at_input: Array | None = field(default=None, metadata=numbers("value_at_input", np.float64))
    value_at_baseline: Array | None = field(default=None, metadata=numbers("value_at_baseline", np.float64))
    targets: Array | None = field(default=None, metadata=numbers("targets", np.int64))
    checks: tuple[Check, ...] = ()
    n_steps: int = 0
    metrics: tuple[MetricResult, ...] = field(default=(), metadata=parts("name"))
    tokens: TokenAttribution | None = field(default=None, metadata=parts("input"))
    standard_errors: Mapping[str, Array] = field(default_factory=dict, metadata=named("standard_error", "input"))
    error: AttributionError | None = None
    inputs_left_out: tuple[str, ...] = ()
    attribution_ms: float = 0.0
    check_ms: float = 0.0
    features: Mapping[str, Array] = field(default_factory=dict, metadata=named("features", "input"))
    references: Mapping[str, Array] = field(default_factory=dict, metadata=named("reference", "input"))

    def __repr__(self) -> str:
        return describe_attribution(self)

    @classmethod
    def failed(cls, method: str, layer: str, failure: CutawayError) -> AttributionResult:
        """Returns the result that has ``failure`` in the place of the attribution."""
        why = AttributionError(int(failure.code), failure.reason, failure.message, failure.field)
        return cls(method, layer, {}, error=why)

    @property
    def at_layer(self) -> bool:
        """Whether the values are of the layer. Those of a neuron, and of guided Grad-CAM, are of the inputs."""
        return bool(self.layer) and not issubclass(getattr(requests, self.method, object), _AT_INPUTS)

    @property
    def worst_check(self) -> Check | None:
        """The check with the worst verdict, or None if nothing was checked."""
        return min(self.checks, key=lambda check: WORST_FIRST.index(check.verdict), default=None)

    @property
    def verdict(self) -> Verdict | None:
        """The worst verdict of the checks, or None if nothing was checked."""
        return None if self.worst_check is None else self.worst_check.verdict

    @property
    def severity(self) -> int:
        """The place in an order of what deserves a look: failed, doubted, unchecked, then what agrees."""
        if self.error is not None:
            return 0
        order = (Verdict.DISAGREES, Verdict.INCONCLUSIVE, None, Verdict.AGREES, Verdict.NOT_APPLICABLE)
        return 1 + order.index(self.verdict)


_AT_INPUTS = (requests.NeuronAttribution, requests.GuidedGradCam)


@dataclass(frozen=True)
class Agreement:
    """How far two attributions of one result agree, by row; NaN where one of them is zero, or not finite.

    They are compared by the tokens of a text, without padding, and else by the elements of inputs or of a layer.

    Attributes:
        first: the number of one attribution in the result, from 0.
        second: the number of the other.
        cosine: [batch], the cosine between them.
        rank_correlation: [batch], Spearman's.
        top_in_common: [batch], the share of the largest tenth of one, by magnitude, that is in that of the other.
        of_magnitudes: whether magnitudes are compared, because one of the methods has no signs.
    """

    first: int
    second: int
    cosine: Array = field(metadata=numbers("agreement_cosine", np.float64))
    rank_correlation: Array = field(metadata=numbers("agreement_rank_correlation", np.float64))
    top_in_common: Array = field(metadata=numbers("agreement_top_in_common", np.float64))
    of_magnitudes: bool = False

    @property
    def name(self) -> str:
        """Both numbers, by which the arrays are named."""
        return f"{self.first}:{self.second}"

    @property
    def figures(self) -> tuple[Array, Array, Array]:
        """Cosine, rank correlation, and the share of the largest tenth."""
        return self.cosine, self.rank_correlation, self.top_in_common
