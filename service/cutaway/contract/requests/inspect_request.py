"""A whole request: `InspectRequest`, and the parts that no other module of this package describes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeAlias

from cutaway.contract.errors import Reason, error
from cutaway.contract.requests.attacks import Attack, Counterfactual
from cutaway.contract.requests.attributions import Attribution
from cutaway.contract.requests.captures import Capture, FloatingType
from cutaway.contract.requests.edits import Edit
from cutaway.contract.requests.fields import Count, Finite, Positive, Probability, bounded, distinct, given
from cutaway.contract.requests.targets import PredictedClass, Target
from cutaway.contract.tensors import Array, ArrayLike
from cutaway.contract.values import StrEnum, changed

__all__ = [
    "TCAV",
    "Argument",
    "CheckMode",
    "CheckRequest",
    "ConceptClassifier",
    "ConceptExamples",
    "Direct",
    "ExplainIf",
    "Generate",
    "Influence",
    "InfluenceMethod",
    "InspectRequest",
    "Raw",
    "Sweep",
]


# The condition for explaining an example.


@dataclass(frozen=True, kw_only=True)
class ExplainIf:
    """A condition for explaining an example: its prediction meets every bound that is set.

    The attributions of other examples are zeros. If no example meets the bounds, nothing is computed and there are no
    values. A warning says so.

    Args:
        probability_at_least: the predicted class' probability is this or more, 0 to 1.
        probability_at_most: it is this or less, 0 to 1.
        classes: the predicted class is one of these; empty allows all.
    """

    probability_at_least: Probability | None = None
    probability_at_most: Probability | None = None
    classes: tuple[int, ...] = ()

    def qualifies(self, index: int, probability: float) -> bool:
        """Returns whether an example is explained whose predicted class is ``index``, with ``probability``."""
        least, most = self.probability_at_least, self.probability_at_most
        return (
            (least is None or probability >= least)
            and (most is None or probability <= most)
            and (not self.classes or index in self.classes)
        )


Argument: TypeAlias = bool | int | float | str | None
"""The value of a forward argument that takes no tensor."""

_ONE_REPLY = {"of_one_reply": True}
"""A field that is about one reply: a job, which has many, does not take it."""

_Tolerance: TypeAlias = Annotated[
    float, bounded(lambda tolerance: 0 <= tolerance < math.inf, "a tolerance is a finite number from 0 up")
]

Compression: TypeAlias = Annotated[str, "the name of a compression, or nothing"]

_NONE: Mapping[str, Any] = MappingProxyType({})


class CheckMode(StrEnum):
    """The extent to which attributions are checked."""

    OFF = "off"
    """No check."""
    SAME_PASS = "same_pass"
    """Raw hooks record during Captum's own passes."""
    INDEPENDENT = "independent"
    """Raw hooks record during separate passes."""


@dataclass(frozen=True)
class CheckRequest:
    """The options of the checks.

    Args:
        mode: in which passes raw hooks record.
        relative_tolerance: the largest error by which an attribution may differ from its reference and still agree, as
            a fraction of the reference's largest magnitude; ``None`` is the tolerance of the method for the data type.
        references: whether to return the reference of each attribution.
    """

    mode: CheckMode = CheckMode.SAME_PASS
    relative_tolerance: _Tolerance | None = None
    references: bool = False


@dataclass(frozen=True)
class Raw:
    """One example in the format of a file.

    Args:
        data: the bytes.
        media_type: their format, such as ``image/png``; ``""`` is the adapter's default, or, of a picture, its own.
    """

    data: bytes
    media_type: str = ""


_Share: TypeAlias = Annotated[float, bounded(lambda value: 0 < value <= 1, "a share is above 0 and at most 1")]


def _no_empty_text(texts: tuple[str, ...]) -> None:
    """Raises `InvalidArgument` for a text that every row ends with."""
    if "" in texts:
        raise error(Reason.INVALID_VALUE, "every text ends with an empty one", f"[{texts.index('')}]")


@dataclass(frozen=True)
class Generate:
    """The continuation of texts by a causal language model: one token of each row a step.

    The first step is the pass of the prompt. Each further step is a pass of one token of each row, on what the model
    keeps of the tokens before.

    Args:
        max_new_tokens: the most tokens of a row.
        temperature: the logits are divided by it before a token is drawn; 0 takes the likeliest token.
        top_k: draw from this many of the likeliest tokens; 0 is all.
        top_p: draw from the fewest likeliest tokens whose probabilities have at least this sum; ``None`` is all.
        min_p: draw from tokens of at least this share of the largest probability; ``None`` is all.
        repetition_penalty: the logits of tokens of the text so far are divided by it if they are positive, and
            multiplied if not; ``None`` is 1.
        stop: a row ends behind any of these texts.
        stop_tokens: a row ends behind any of these token ids, besides those that end a text of this model.
        alternatives: return this many of the likeliest tokens of each step, at most 1,000.
    """

    max_new_tokens: Count
    temperature: Annotated[float, bounded(lambda value: value == 0 or 1e-3 <= value <= 1e3, "0, or 0.001 to 1,000")] = (
        0.0
    )
    top_k: int = 0
    top_p: _Share | None = None
    min_p: _Share | None = None
    repetition_penalty: Positive | None = None
    stop: Annotated[tuple[str, ...], _no_empty_text] = ()
    stop_tokens: tuple[int, ...] = ()
    alternatives: Annotated[int, bounded(lambda value: 0 <= value <= 1000, "from 0 to 1,000")] = 0

    @property
    def draws(self) -> bool:
        """Whether tokens are drawn."""
        return self.temperature > 0


@dataclass(frozen=True)
class Sweep:
    """A grid of patches: which module, at which place, carries what one row has and the others have not?

    For each module and each place along an axis, the target of every row is computed with what the module's first call
    returns at that place replaced by what it returns there for one row, or by zeros.

    Args:
        module: a name in ``named_modules()``, or a glob: every module that matches.
        axis: the axis of the places, such as 1 of [batch, tokens, features], 0 of [time, batch, features].
        source: the row from which values are taken.
        zeros: zeros are put there instead.
        places: the places along the axis, a negative one from its end; empty is all.
        path: the tensor, of modules that return several; ``""`` is the first.
        estimate: return also the first-order estimate of each patch, from one backward pass, and how far it agrees.
        heads: the places are heads of attention, at the input of modules that join heads, such as ``o_proj``; they have
            no axis then.
    """

    module: Annotated[str, given("name the module")]
    axis: int = 1
    source: int = 0
    zeros: bool = False
    places: Annotated[tuple[int, ...], distinct] = ()
    path: str = ""
    estimate: bool = False
    heads: bool = False


class ConceptClassifier(StrEnum):
    """The linear classifier that separates a concept from random examples."""

    LOGISTIC = "logistic"
    """Logistic regression on activations divided by their mean distance from their mean; it has one optimum."""
    SGD = "sgd"
    """Captum's default: a linear support vector machine, by stochastic gradient descent on activations as they are."""


@dataclass(frozen=True)
class ConceptExamples:
    """Examples of a concept, or without one: tensors, examples that the model's adapter decodes, or a data set.

    Args:
        tensors: by forward-argument name, ``[examples, ...]`` each; ``""`` is the name of the only one.
        raw: examples for the adapter, such as texts.
        data_set: the name of a data set that is packaged with the model, in place of both.
    """

    tensors: Mapping[str, ArrayLike] = field(default_factory=dict)
    raw: tuple[Raw, ...] = ()
    data_set: str = ""


@dataclass(frozen=True)
class TCAV:
    """Tests the target with concepts: do the activations of a concept's examples point where the target grows?

    At each layer a linear classifier separates the concept's activations from those of random examples, for each random
    set anew. Its normal vector is the concept activation vector. The score is the share of the request's rows whose
    target grows along it. Kim et al. 2018, arXiv:1711.11279.

    Args:
        layers: the modules at whose output the concepts are tested.
        concepts: by name, the examples of each concept: an array, arrays by input name, or texts; at least four.
        random: sets of examples without a concept in common, of about as many; at least two. With ``n`` sets the
            p-value is at least ``1 / (n + 1)``.
        classifier: the linear classifier.
        vectors: return the concept activation vectors too.
        seed: decides which third of each set is held out, and what the classifier draws; 0 to 2**63 - 1. All batches of
            a job have the same vectors.
    """

    layers: Annotated[tuple[str, ...], given("name at least one layer"), distinct]
    concepts: Mapping[str, ConceptExamples]
    random: tuple[ConceptExamples, ...]
    classifier: ConceptClassifier | Literal["logistic", "sgd"] = field(default=ConceptClassifier.LOGISTIC, kw_only=True)
    vectors: bool = field(default=False, kw_only=True)
    seed: int = field(default=0, kw_only=True)


class InfluenceMethod(StrEnum):
    """How training rows are found."""

    TRACIN = "tracin"
    """Captum's TracInCP: the product of the gradients of both losses, times the learning rate. Pruthi et al. 2020,
    arXiv:2002.08484."""
    TRACIN_FAST = "tracin_fast"
    """Captum's TracInCPFast: the same of the weights of the last linear layer alone."""
    COSINE = "cosine"
    """Captum's SimilarityInfluence: the cosine of what a module returns."""
    EUCLIDEAN = "euclidean"
    """SimilarityInfluence by the Euclidean distance, of which small ones help."""
    TRACIN_PROJECTED = "tracin_projected"
    """Captum's TracInCPFastRandProj: as ``tracin_fast``, of randomly projected gradients."""
    INFLUENCE_FUNCTION = "influence_function"
    """Captum's NaiveInfluenceFunction: the product of both gradients through the inverse of the damped Hessian of the
    training rows' summed losses. Koh and Liang 2017, arXiv:1703.04730."""
    ARNOLDI = "arnoldi"
    """Captum's ArnoldiInfluenceFunction: the same with the eigenvalues that Arnoldi's iteration finds, without the
    Hessian itself. Schioppa et al. 2022, arXiv:2112.03052."""


@dataclass(frozen=True)
class Influence:
    """Finds the training rows that made a prediction. The loss is the cross-entropy of the target's class, of logits.

    TracIn sums over the checkpoints that are packaged with the model; without any, the served weights are the only one.

    Args:
        training: rows of the training data: an array, arrays by input name, texts, or a packaged data set.
        labels: the class of each of them; by default those of the data set. All methods but ``cosine`` and
            ``euclidean`` need them.
        method: how rows are found.
        layer: the module whose outputs are compared, or whose parameters count; empty is all parameters.
        learning_rate: that of the training, or a factor of those of the checkpoints; scores by TracIn are proportional
            to it.
        k: how many rows of each kind to return.
        dimension: the most numbers of a projected gradient; of a Hessian, how many of its largest eigenvalues count.
        damping: added to the eigenvalues of the Hessian; those that are not positive then are left out.
        iterations: the steps of Arnoldi's iteration, at least 3; it finds one eigenvalue fewer.
        seed: decides the projection, and where Arnoldi's iteration begins; 0 to 2**63 - 1.
    """

    training: ConceptExamples
    labels: tuple[int, ...] = ()
    method: (
        InfluenceMethod
        | Literal["tracin", "tracin_fast", "cosine", "euclidean", "tracin_projected", "influence_function", "arnoldi"]
    ) = InfluenceMethod.TRACIN
    layer: str = ""
    learning_rate: Positive = field(default=1.0, kw_only=True)
    k: Count = field(default=5, kw_only=True)
    dimension: Count = field(default=50, kw_only=True)
    damping: Finite = field(default=1e-3, kw_only=True)
    iterations: Count = field(default=50, kw_only=True)
    seed: int = field(default=0, kw_only=True)


@dataclass(frozen=True)
class Direct:
    """Direct logit attribution: what each part of a residual stream adds to the target through the last norm alone.

    The denominator of the norm is held at its value in this pass, so that the target is a sum over the parts of the
    stream. It must be linear in what the norm returns, as a logit and the difference of two are. Elhage et al. 2021, A
    Mathematical Framework for Transformer Circuits.

    Args:
        modules: names in ``named_modules()``, or globs: their outputs are the parts of the stream.
        norm: the last norm, such as ``transformer.ln_f``; its input is the stream.
        heads: the modules that join heads, such as ``o_proj``, have a number for each head.
    """

    modules: Annotated[tuple[str, ...], given("name at least one module")]
    norm: Annotated[str, given("name the last norm")]
    heads: bool = False


@dataclass(frozen=True)
class InspectRequest:
    """One request to one model.

    Args:
        model: ``digits`` or ``digits/versions/1.0``.
        tensors: by forward-argument name, batch first.
        raw: examples for the adapter to decode, instead of ``tensors``.
        feature_names: by name of a tensor, the names of the elements of its last axis, such as of a table's columns;
            they must be the model's, in its order, if it names its features.
        arguments: by name, the arguments of forward that are no tensors; the same in every pass.
        target: the scalar that gradients and attributions are computed for.
        captures: tensors inside the model to return.
        input_gradients: ``None`` for none, else input names, empty for every floating input.
        edits: changes to tensors inside the model, in the order applied.
        compare: return also the predictions of the model without the edits.
        attributions: the attributions to compute.
        attribution_errors_in_place: return the error of an attribution in its place, and the rest of the result; else
            it is the error of the call.
        explain_if: explain only the examples whose prediction meets this condition; ``None`` explains all.
        check: how attributions are checked.
        omit_predictions: leave the predictions out; if only values inside the model are requested, and each capture
            names its ``call``, forward stops after the last of them.
        max_reply_bytes: the largest reply to accept, in bytes; 0 is the server's limit.
        seed: of what draws random numbers, 0 to 2**63 - 1: the same seed gives the same result; ``None`` draws a seed,
            which the provenance contains. Row ``r`` of a generation draws its tokens from the seed plus ``r``.
        reply_data_type: the type in which floating tensors of the reply are sent, such as ``float16``, except for
            captures that name their own; ``""`` is as computed.
        compression: of the tensors of the reply, ``zstd``; ``""`` is none.
        dry_run: run only one forward pass, and return an estimate of the reply.
        generate: write tokens behind the input, for causal language models; ``None`` is one pass.
        sweep: compute the target for each of a grid of patches; ``None`` is none.
        direct: compute what each part of the residual stream adds to the target; ``None`` is none.
        attacks: change the inputs so that the loss of the target rises, and return what that changes.
        concepts: test the target with concepts; ``None`` is none.
        influence: find the training rows that made the predictions; ``None`` is none.
        agreement: compare each pair of attributions of the same places and the same target.
        counterfactual: look for small changes that change the class; ``None`` is none.
    """

    model: str
    tensors: Mapping[str, Array] = field(default_factory=dict)
    raw: tuple[Raw, ...] = ()
    feature_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict, kw_only=True)
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    target: Target = field(default_factory=PredictedClass)
    captures: tuple[Capture, ...] = ()
    input_gradients: tuple[str, ...] | None = None
    edits: tuple[Edit, ...] = ()
    compare: bool = field(default=False, metadata=_ONE_REPLY)
    attributions: tuple[Attribution, ...] = ()
    attribution_errors_in_place: bool = field(default=False, metadata=_ONE_REPLY)
    explain_if: ExplainIf | None = None
    check: CheckRequest = field(default_factory=CheckRequest)
    omit_predictions: bool = field(default=False, metadata=_ONE_REPLY)
    max_reply_bytes: int = field(default=0, metadata=_ONE_REPLY)
    seed: int | None = None
    reply_data_type: FloatingType = field(default="", metadata=_ONE_REPLY)
    compression: Compression = field(default="", metadata=_ONE_REPLY)
    dry_run: bool = field(default=False, metadata=_ONE_REPLY)
    generate: Generate | None = field(default=None, metadata=_ONE_REPLY)
    sweep: Sweep | None = field(default=None, metadata=_ONE_REPLY)
    direct: Direct | None = field(default=None, metadata=_ONE_REPLY)
    attacks: tuple[Attack, ...] = field(default=(), metadata=_ONE_REPLY)
    concepts: TCAV | None = None
    influence: Influence | None = None
    agreement: bool = False
    counterfactual: Counterfactual | None = field(default=None, metadata=_ONE_REPLY)

    def with_input(
        self,
        tensors: Mapping[str, Array] = _NONE,
        raw: tuple[Raw, ...] = (),
        feature_names: Mapping[str, tuple[str, ...]] = _NONE,
    ) -> InspectRequest:
        """Returns the same request for another input; all other values are the same objects."""
        return changed(self, tensors=tensors, raw=raw, feature_names=feature_names)


INPUT_FIELDS = ("tensors", "raw", "feature_names")
"""The names of the fields that are the input."""


OF_ONE_REPLY = tuple(attribute.name for attribute in fields(InspectRequest) if attribute.metadata == _ONE_REPLY)
"""The names of the fields that a job does not take."""

JOB_FIELDS = tuple(
    attribute.name
    for attribute in fields(InspectRequest)
    if attribute.name not in ("model", *INPUT_FIELDS, "target", *OF_ONE_REPLY)
)
"""The names of the fields in a job's section ``request``."""
