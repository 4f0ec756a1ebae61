"""What comes back, as plain typed values: numpy arrays, no torch and no protobuf."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cutaway.requests import Point
from cutaway.results.explanations import (
    AttributionResult,
    Cause,
    Check,
    MetricResult,
    TokenAttribution,
    Verdict,
)
from cutaway.tensors import Array
from cutaway.word import Word

__all__ = [
    "AttributionResult",
    "CapturedCall",
    "Cause",
    "Check",
    "ClassPrediction",
    "Estimate",
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
    "Provenance",
    "Timings",
    "TokenAttribution",
    "Verdict",
    "Warning",
    "WarningCode",
]


@dataclass(frozen=True)
class CapturedCall:
    """One call of a module.

    Attributes:
        leaves: by point, the tensors of the call by their path: ``""`` for a bare tensor, else ``[0]``,
            ``.logits``, ``["key"]`` or the name of a keyword argument.
        positions: the same for what was reduced to its largest elements: where along the axis each of them was.
    """

    leaves: Mapping[Point, Mapping[str, Array]]
    positions: Mapping[Point, Mapping[str, Array]] = field(default_factory=dict)

    def at(self, point: Point) -> Array:
        """The one tensor at ``point``.

        Raises:
            LookupError: nothing was captured there, or several tensors were: then read ``leaves``.
        """
        there = self.leaves.get(point, {})
        if len(there) != 1:
            what = f"{len(there)} tensors {sorted(there)}: read .leaves" if there else "nothing was captured"
            raise LookupError(f"at {point.value}: {what}")
        return next(iter(there.values()))

    @property
    def input(self) -> Array:
        """What went in."""
        return self.at(Point.INPUT)

    @property
    def output(self) -> Array:
        """What came out."""
        return self.at(Point.OUTPUT)

    @property
    def grad_input(self) -> Array:
        """The target's gradient at what went in."""
        return self.at(Point.GRAD_INPUT)

    @property
    def grad_output(self) -> Array:
        """The target's gradient at what came out."""
        return self.at(Point.GRAD_OUTPUT)


@dataclass(frozen=True)
class ModuleCapture:
    """What the hooks on one module saw, call by call; the short names read the first call.

    Attributes:
        calls: one element for each time that the module was called, in order.
    """

    calls: tuple[CapturedCall, ...]

    @property
    def input(self) -> Array:
        """What went into the first call."""
        return self.calls[0].input

    @property
    def output(self) -> Array:
        """What came out of the first call."""
        return self.calls[0].output

    @property
    def grad_input(self) -> Array:
        """The target's gradient at what went into the first call."""
        return self.calls[0].grad_input

    @property
    def grad_output(self) -> Array:
        """The target's gradient at what came out of the first call."""
        return self.calls[0].grad_output


@dataclass(frozen=True)
class ClassPrediction:
    """One example's predicted class: its index, label (or ``""``) and probability (0 to 1)."""

    index: int
    label: str
    probability: float


class WarningCode(Word):
    """What a warning is about."""

    MODULE_NOT_CALLED = "MODULE_NOT_CALLED"
    NO_GRADIENT = "NO_GRADIENT"
    EDIT_WITHOUT_EFFECT = "EDIT_WITHOUT_EFFECT"
    NOT_A_TENSOR = "NOT_A_TENSOR"
    ROWS_NOT_INDEPENDENT = "ROWS_NOT_INDEPENDENT"
    NOT_EXPLAINED = "NOT_EXPLAINED"


@dataclass(frozen=True)
class Warning:
    """Something a careful reader should know."""

    code: WarningCode
    subject: str
    message: str


@dataclass(frozen=True)
class Provenance:
    """Where a result comes from."""

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


@dataclass
class Timings:
    """Wall-clock time by stage, in milliseconds."""

    queue_ms: float = 0.0
    decode_ms: float = 0.0
    forward_ms: float = 0.0
    backward_ms: float = 0.0
    attribution_ms: float = 0.0
    check_ms: float = 0.0
    encode_ms: float = 0.0


@dataclass(frozen=True)
class Outline:
    """A tensor without its numbers: data type and shape."""

    data_type: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Estimate:
    """What a reply would be. A gradient of which only the backward pass tells whether it arrives is counted.

    Attributes:
        reply_bytes: its size, in bytes, with no compression.
        tensors: every tensor of it, in order, by its place in the result: ``captures.conv1.output``.
        passes: the most passes that the explanations would take, checks included, each example counted; the operator's
            limit is held against this.
    """

    reply_bytes: int
    tensors: Mapping[str, Outline]
    passes: int = 0


@dataclass(frozen=True)
class InspectResult:
    """The answer to one question.

    Attributes:
        predictions: the model's outputs by name, batch first; of the edited model, where there are edits.
        classes: the predicted class an example; empty for a model without classes.
        targets: [batch], the class indices that gradients are about, [batch, k] of a top-k target; None where no
            target was needed or it is no class.
        target_values: of that shape, the target scalars; None where no target was needed.
        captures: by module name, or by the operator's address.
        input_gradients: by input name, of the input's shape.
        parameter_gradients: by parameter name: the gradient of the sum of all examples' targets.
        attributions: in the order of the request.
        unedited: with ``compare``, what the unedited model returned, by name; else empty.
        unedited_classes: the same as classes, for the unedited model.
        warnings: what a careful reader should know.
        provenance: where this comes from.
        timings: where the time went.
        estimate: with ``dry_run``, what the reply would be; then predictions, captures, gradients and attributions are
            empty.
    """

    predictions: Mapping[str, Array]
    classes: tuple[ClassPrediction, ...] = ()
    targets: Array | None = None
    target_values: Array | None = None
    captures: Mapping[str, ModuleCapture] = field(default_factory=dict)
    input_gradients: Mapping[str, Array] = field(default_factory=dict)
    parameter_gradients: Mapping[str, Array] = field(default_factory=dict)
    attributions: tuple[AttributionResult, ...] = ()
    unedited: Mapping[str, Array] = field(default_factory=dict)
    unedited_classes: tuple[ClassPrediction, ...] = ()
    warnings: tuple[Warning, ...] = ()
    provenance: Provenance = field(default_factory=Provenance)
    timings: Timings = field(default_factory=Timings)
    estimate: Estimate | None = None


@dataclass(frozen=True)
class InputSpec:
    """A forward argument: its name, data type (``""`` if the model does not say), shape (-1 is any size, empty
    if the model does not say) and whether forward has a default for it."""

    name: str
    data_type: str = ""
    shape: tuple[int, ...] = ()
    optional: bool = False


@dataclass(frozen=True)
class OutputSpec:
    """One of forward's results: its name, data type and shape for the model's own example."""

    name: str
    data_type: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ModuleInfo:
    """One module of the tree: its name, class, number of parameters, and, for the model's own example, the shapes
    of what its first call returned and how often it was called."""

    name: str
    type: str
    parameters: int
    output_shapes: tuple[tuple[int, ...], ...] = ()
    calls: int = 0
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class OperatorInfo:
    """An operator inside a module's forward: its address (``layer3.1:relu#0``), and, for the model's own example, the
    shapes of what it first returned and how often it ran."""

    address: str
    output_shapes: tuple[tuple[int, ...], ...]
    calls: int


@dataclass(frozen=True)
class ModelName:
    """A model in a version."""

    model: str
    version: str


@dataclass(frozen=True)
class ModelDetail:
    """One model with its insides."""

    model: ModelName
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    labels: tuple[str, ...]
    media_types: tuple[str, ...]
    modules: tuple[ModuleInfo, ...]
    provenance: Provenance
    operators: tuple[OperatorInfo, ...] = ()
