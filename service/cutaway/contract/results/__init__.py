"""Results as plain typed values: numpy arrays, no torch and no protobuf."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from cutaway.contract.requests import Point
from cutaway.contract.results.arrays import ATTACKS, ATTRIBUTIONS, CAPTURES, named, numbers, parts
from cutaway.contract.results.changes import (
    AttackResult,
    CounterfactualResult,
    EditReceipt,
    FinishReason,
    GeneratedStep,
)
from cutaway.contract.results.explanations import (
    Agreement,
    AttributionError,
    AttributionResult,
    Better,
    Cause,
    Check,
    ConceptResult,
    InfluenceResult,
    MetricResult,
    RowCheck,
    TokenAttribution,
    Verdict,
)
from cutaway.contract.results.summary import describe_call, describe_capture, describe_model, summarise, titles
from cutaway.contract.tensors import Array
from cutaway.contract.values import StrEnum

__all__ = [
    "Agreement",
    "ArchiveState",
    "AttackResult",
    "AttributionError",
    "AttributionResult",
    "Better",
    "CapturedCall",
    "Cause",
    "Check",
    "ClassPrediction",
    "ConceptResult",
    "CounterfactualResult",
    "DataSet",
    "EditReceipt",
    "Estimate",
    "FinishReason",
    "GeneratedStep",
    "InfluenceResult",
    "InputSpec",
    "InspectResult",
    "MetricResult",
    "ModelDetail",
    "ModelName",
    "ModuleCapture",
    "ModuleInfo",
    "OperatorInfo",
    "Outline",
    "OutputSpec",
    "Progress",
    "Provenance",
    "RowCheck",
    "Timings",
    "TokenAttribution",
    "UnservedArchive",
    "Verdict",
    "Warning",
    "WarningCode",
]


class _HookPoints(ABC):
    """A base class with short names for the tensors at the four points of a module."""

    @abstractmethod
    def at(self, point: Point) -> Array:
        """Returns the only tensor at ``point``."""

    @property
    def input(self) -> Array:
        """The input."""
        return self.at(Point.INPUT)

    @property
    def output(self) -> Array:
        """The output."""
        return self.at(Point.OUTPUT)

    @property
    def grad_input(self) -> Array:
        """The gradient of the target at the input."""
        return self.at(Point.GRAD_INPUT)

    @property
    def grad_output(self) -> Array:
        """The gradient of the target at the output."""
        return self.at(Point.GRAD_OUTPUT)


@dataclass(frozen=True, repr=False)
class CapturedCall(_HookPoints):
    """One call of a module.

    Attributes:
        leaves: by point, the tensors of the call by their path: ``""`` for a bare tensor, else ``[0]``,
            ``.logits``, ``["key"]`` or the name of a keyword argument.
        positions: for tensors that were reduced to their largest elements: the index along the axis of each element.
    """

    leaves: Mapping[Point, Mapping[str, Array]]
    positions: Mapping[Point, Mapping[str, Array]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return describe_call(self)

    def at(self, point: Point) -> Array:
        """Returns the only tensor at ``point``.

        Raises:
            LookupError: nothing was captured there, or several tensors were: then use ``leaves``.
        """
        tensors = self.leaves.get(point, {})
        if len(tensors) != 1:
            what = f"{len(tensors)} tensors {sorted(tensors)}: use .leaves" if tensors else "nothing was captured"
            raise LookupError(f"at {point.value}: {what}")
        return next(iter(tensors.values()))


@dataclass(frozen=True, repr=False)
class ModuleCapture(_HookPoints):
    """The captures of one module; ``input``, ``output`` and so on are those of its first call.

    Attributes:
        calls: one element for each call of the module, in order.
    """

    calls: tuple[CapturedCall, ...]

    def __repr__(self) -> str:
        return describe_capture(self)

    def at(self, point: Point) -> Array:
        """Returns the only tensor at ``point`` in the first call; see `CapturedCall.at`."""
        return self.calls[0].at(point)


@dataclass(frozen=True)
class ClassPrediction:
    """The predicted class of one example: its index, label (or ``""``) and probability (0 to 1)."""

    index: int
    label: str
    probability: float


class WarningCode(StrEnum):
    """The kinds of warnings."""

    MODULE_NOT_CALLED = "MODULE_NOT_CALLED"
    NO_GRADIENT = "NO_GRADIENT"
    EDIT_WITHOUT_EFFECT = "EDIT_WITHOUT_EFFECT"
    NOT_A_TENSOR = "NOT_A_TENSOR"
    ROWS_NOT_INDEPENDENT = "ROWS_NOT_INDEPENDENT"
    NOT_EXPLAINED = "NOT_EXPLAINED"
    INPUT_NOT_READ = "INPUT_NOT_READ"
    INPUT_NOT_EXPLAINED = "INPUT_NOT_EXPLAINED"
    STEP_NOT_REACHED = "STEP_NOT_REACHED"
    NO_TOKENS = "NO_TOKENS"
    INPUT_RANGE = "INPUT_RANGE"
    NOT_FINITE = "NOT_FINITE"
    EQUALS_BASELINE = "EQUALS_BASELINE"


@dataclass(frozen=True)
class Warning:
    """A warning: the result is correct, but may not be what the caller expects."""

    code: WarningCode
    subject: str
    message: str


@dataclass(frozen=True)
class Provenance:
    """The model and the software that computed a result, its passes, and how many requests shared the forward pass."""

    model: str = ""
    version: str = ""
    weights_sha256: str = ""
    torch_version: str = ""
    captum_version: str = ""
    cutaway_version: str = ""
    device: str = ""
    data_type: str = ""
    seed: int = 0
    forwards: int = 0
    backwards: int = 0
    companions: int = 0


@dataclass
class Timings:
    """Wall-clock time by stage, in milliseconds; ``proof_ms`` went to tests of the model, which others profit from."""

    queue_ms: float = 0.0
    decode_ms: float = 0.0
    forward_ms: float = 0.0
    backward_ms: float = 0.0
    attribution_ms: float = 0.0
    check_ms: float = 0.0
    encode_ms: float = 0.0
    proof_ms: float = 0.0


@dataclass(frozen=True)
class Progress:
    """How far the attributions of a request are. A pass is one example once through the model.

    Attributes:
        passes_done: the passes that are done.
        passes: the passes that all attributions are expected to take.
        seconds_left: until all attributions are done, as estimated from the passes so far; it never rises.
        attribution: the number of the attribution that is computed now, in the request.
    """

    passes_done: int
    passes: int
    seconds_left: float
    attribution: int


@dataclass(frozen=True)
class Outline:
    """The data type and shape of a tensor."""

    data_type: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Estimate:
    """The estimate of a reply. It includes gradients that only the backward pass can show to be missing.

    Attributes:
        reply_bytes: the size of the reply, in bytes, without compression.
        tensors: every tensor of the reply, in order, by its name: ``capture:conv1@output``.
        passes: the largest number of passes that the attributions and their checks need, counted for each example; the
            operator's limit applies to it.
    """

    reply_bytes: int
    tensors: Mapping[str, Outline]
    passes: int = 0


@dataclass(frozen=True, repr=False)
class InspectResult:
    """The result of one request.

    Attributes:
        predictions: the model's outputs by name, batch first; of the edited model, where there are edits.
        classes: the predicted class an example; empty for a model without classes.
        targets: [batch], the class indices of the target, [batch, k] for a top-k target; None where it has none.
        target_values: of the same shape, the values of the target; None where no target was needed.
        captures: by module name, or by the operator's address.
        input_gradients: by input name, of the input's shape.
        parameter_gradients: by parameter name: the gradient of the sum of all examples' targets.
        attributions: in the order of the request.
        unedited: with ``compare``, what the unedited model returned, by name; else empty.
        unedited_classes: the classes that the unedited model predicts.
        warnings: facts that the caller may not expect.
        provenance: the model and the software.
        timings: the time of each stage.
        explained_rows: [batch] of bool: with ``explain_if``, whether the row qualified and was explained; else None.
        estimate: with ``dry_run``, the estimate of the reply; what is in none of it is empty then.
        feature_names: by name of an input that gradients or attributions are about, those of its last axis' elements.
        sweep: with ``sweep``, by module, [batch, places]: the target of each row with that patch.
        sweep_estimates: the first-order estimates of these.
        sweep_agreement: [batch], the cosine between the changes of the target in ``sweep`` and their estimates.
        direct: with ``direct``, by module, [batch] or [batch, heads]: what it adds to the target.
        direct_rest: [batch], what the rest of the stream adds.
        direct_bias: [batch], the target where the norm reads zeros; it, the rest and all parts sum to the target.
        attacks: what each attack of the request changed, in their order.
        influence: with ``influence``, the training rows that made the predictions; else None.
        concepts: with ``concepts``, what TCAV found: layer by layer, concept by concept.
        counterfactual: with ``counterfactual``, small changes that change the class; else None.
        labels: by class index, the labels of the classes that the result names; of few classes all.
        agreements: with ``agreement``, how far each pair of attributions of the same places and the same target agrees.
        example_axes: by array name in `arrays.entries`, the axis of the examples where not 0; None where there is none.
    """

    predictions: Mapping[str, Array] = field(metadata=named("output", "output"))
    classes: tuple[ClassPrediction, ...] = ()
    targets: Array | None = field(default=None, metadata=numbers("targets", np.int64))
    target_values: Array | None = field(default=None, metadata=numbers("target_values", np.float64))
    captures: Mapping[str, ModuleCapture] = field(default_factory=dict, metadata=CAPTURES)
    input_gradients: Mapping[str, Array] = field(default_factory=dict, metadata=named("gradient", "input"))
    parameter_gradients: Mapping[str, Array] = field(
        default_factory=dict, metadata=named("parameter_gradient", "parameter", by_row=False)
    )
    attributions: tuple[AttributionResult, ...] = field(default=(), metadata=ATTRIBUTIONS)
    unedited: Mapping[str, Array] = field(default_factory=dict, metadata=named("unedited", "output"))
    unedited_classes: tuple[ClassPrediction, ...] = ()
    warnings: tuple[Warning, ...] = ()
    provenance: Provenance = field(default_factory=Provenance)
    timings: Timings = field(default_factory=Timings)
    explained_rows: Array | None = field(default=None, metadata=numbers("explained_rows", np.bool_))
    estimate: Estimate | None = None
    feature_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    example_axes: Mapping[str, int | None] = field(default_factory=dict)
    generated: tuple[GeneratedStep, ...] = ()
    finish_reasons: tuple[FinishReason, ...] = ()
    unedited_texts: tuple[str, ...] = ()
    replay: Check | None = None
    receipts: tuple[EditReceipt, ...] = ()
    sweep: Mapping[str, Array] = field(default_factory=dict, metadata=named("sweep", "module"))
    sweep_estimates: Mapping[str, Array] = field(default_factory=dict, metadata=named("sweep_estimate", "module"))
    sweep_agreement: Array | None = field(default=None, metadata=numbers("sweep_agreement", np.float64))
    direct: Mapping[str, Array] = field(default_factory=dict, metadata=named("direct", "module"))
    direct_rest: Array | None = field(default=None, metadata=numbers("direct_rest", np.float64))
    direct_bias: Array | None = field(default=None, metadata=numbers("direct_bias", np.float64))
    attacks: tuple[AttackResult, ...] = field(default=(), metadata=ATTACKS)
    concepts: tuple[ConceptResult, ...] = field(default=(), metadata=parts("name"))
    influence: InfluenceResult | None = field(default=None, metadata=parts("method"))
    agreements: tuple[Agreement, ...] = field(default=(), metadata=parts("name"))
    counterfactual: CounterfactualResult | None = field(default=None, metadata=parts(""))
    labels: Mapping[int, str] = field(default_factory=dict)

    @property
    def texts(self) -> tuple[str, ...]:
        """The text of each row that the model wrote; empty without a generation."""
        return tuple("".join(pieces) for pieces in zip(*(step.texts for step in self.generated)))

    def titles(self) -> list[str]:
        """Returns what people call each attribution: its method and layer, numbered where others have the same."""
        return titles(self.attributions)

    def __repr__(self) -> str:
        return summarise(self)


@dataclass(frozen=True)
class InputSpec:
    """An argument of forward.

    Attributes:
        name: its name.
        data_type: ``""`` if unknown.
        shape: -1 is any size; empty if unknown.
        optional: whether forward has a default for it.
        feature_names: the names of the elements of its last axis; empty if they have none.
    """

    name: str
    data_type: str = ""
    shape: tuple[int, ...] = ()
    optional: bool = False
    feature_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class OutputSpec:
    """An output of forward: its name, and its data type and shape for the model's example."""

    name: str
    data_type: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ModuleInfo:
    """A module of the tree.

    Attributes:
        name: its first name.
        type: its class.
        parameters: the number of its parameters.
        output_shapes: the output shapes of its first call, for the model's example.
        calls: the number of its calls, for the model's example.
        aliases: its other names.
    """

    name: str
    type: str
    parameters: int
    output_shapes: tuple[tuple[int, ...], ...] = ()
    calls: int = 0
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class OperatorInfo:
    """An operator inside the forward of a module.

    Attributes:
        address: its address, ``layer3.1:relu#0``.
        output_shapes: the output shapes of its first run, for the model's example.
        calls: the number of its runs, for the model's example.
    """

    address: str
    output_shapes: tuple[tuple[int, ...], ...]
    calls: int


@dataclass(frozen=True)
class ModelName:
    """The name and version of a model."""

    model: str
    version: str


class ArchiveState(StrEnum):
    """Why an archive of the model store is not served."""

    LOADING = "LOADING"
    """Its model has not answered yet."""
    NOT_WHOLE = "NOT_WHOLE"
    """It is still being copied, or damaged; it is read again when it changes."""
    FAILED = "FAILED"
    """Its model does not load; it is tried again when it changes."""


@dataclass(frozen=True)
class UnservedArchive:
    """An archive of the model store that is not served.

    Attributes:
        archive: the name of its file.
        model: its model; empty if its manifest cannot be read and the file was not served before.
        version: the version of the model.
        state: why it is not served.
        why: the same in words.
        previous_serves: whether the archive that was there before goes on serving.
    """

    archive: str
    model: str
    version: str
    state: ArchiveState
    why: str
    previous_serves: bool = False

    @property
    def message(self) -> str:
        """The text for the operator."""
        name = f"{self.model} {self.version}: " if self.model else ""
        kept = "; the archive before it goes on serving" if self.previous_serves else ""
        return f"{name}{self.why}{kept}"


@dataclass(frozen=True)
class DataSet:
    """Examples that are packaged with a model; whether each has a class."""

    name: str
    rows: int
    labelled: bool = False


@dataclass(frozen=True)
class DataEdge:
    """A tensor that one part of a model, or its ``input``, gave to another part, or as its ``output``.

    ``source`` and ``target`` are addresses of operators, or names of modules; empty for the ends of the model.
    """

    source: str = ""
    input: str = ""
    target: str = ""
    output: str = ""


@dataclass(frozen=True, repr=False)
class ModelDetail:
    """The description of one model."""

    model: ModelName
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    labels: tuple[str, ...]
    media_types: tuple[str, ...]
    modules: tuple[ModuleInfo, ...]
    provenance: Provenance
    operators: tuple[OperatorInfo, ...] = ()
    example: Mapping[str, Array] = field(default_factory=dict)
    data_sets: tuple[DataSet, ...] = ()
    checkpoint_rates: tuple[float, ...] = ()
    data_flow: tuple[DataEdge, ...] = ()

    def __repr__(self) -> str:
        return describe_model(self)
