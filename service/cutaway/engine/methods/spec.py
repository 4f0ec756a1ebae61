"""`Method`, the type of a row of the table of attribution methods, and validation that methods share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from cutaway.contract.errors import CutawayError, Reason, at, error
from cutaway.contract.requests import Attribution, CheckMode, CheckRequest, Point, field_name
from cutaway.engine.model.inspected_model import Inputs, InspectedModel, dtype_text
from cutaway.engine.passes.findings import Finding
from cutaway.engine.passes.pass_recorder import (
    AttributionProblem,
    Changes,
    Pass,
    Values,
    is_row_specific_edit,
    run_passes,
)
from cutaway.engine.passes.reference_inputs import Points, input_point
from cutaway.engine.references.observation import ReferenceFold, module_calls
from cutaway.engine.runtime.numerics import APPROXIMATE, ONE_PASS, Path, Tolerances


@runtime_checkable
class TakesPasses(Protocol):
    """A reader of passes, which come one after the other."""

    def add(self, recorded: Pass) -> None:
        """Takes the next pass."""


T = TypeVar("T", bound=TakesPasses)


@dataclass(frozen=True)
class Method:
    """One attribution method: how to call the class of Captum that has its name, and what its result must equal.

    Attributes:
        reference: computes the reference attribution from raw hook outputs, pass by pass.
        formula: the reference in words, for the documentation and for check results.
        points: the inputs at which Captum must run the model, in order, for each of the ``copies``.
        init_arguments: keyword arguments for the Captum class, from the request.
        attribute_arguments: keyword arguments for its ``attribute`` method.
        differentiates: whether the method has a target.
        takes_target: whether Captum can select the target by itself. LayerFeaturePermutation of Captum 0.9 selects it a
            second time from what it has selected, and so gets a function that returns the target's values instead.
        forward_only: whether it runs forward passes only, on changed inputs.
        uses_randomness: whether it draws random numbers, and therefore needs a seed.
        vacuous: why a result of this method carries no information for this problem; None if it does.
        standard_errors: for methods that estimate from draws: the standard error of each attribution.
        satisfies_completeness: whether attributions sum to the target's change from the baseline.
        completeness_tolerances: the largest error of that sum, as a fraction of the sum of the attributions'
            magnitudes.
        sums_prove_rules: whether completeness holds exactly if the method has a rule for each operation of the model.
        satisfies_conservation: whether attributions sum to the target itself, except for what biases absorb (LRP).
        tolerances: the largest relative error between Captum's attribution and the reference.
        points_per_pass: how many points Captum runs in one pass.
        copies: the problems that Captum solves one after the other, each in passes of its own.
        batchable: whether Captum's passes process each row independently, so that several requests can share them.
        reference_passes: runs separate passes for the reference. Needed where Captum overrides gradients: its own
            passes cannot prove that the override happened. None: any passes that visit ``points`` serve.
        replaces_layer: whether Captum overrides only what the layer returns: its own passes show that, and serve too.
        is_watched: whether Captum runs the function that it gets, whose passes raw hooks record, and not the model.
        limitation: what Captum computes wrongly or omits for this model, so that even a match with the reference proves
            nothing; None if there is nothing.
        applies_to_modules: whether Captum needs an ``nn.Module`` instead of a function, because it hooks submodules.
        explains_neuron: whether a neuron is explained instead of the target.
        refuse: raises for parameters, inputs and edits that the method does not support, before anything runs. Field
            names in errors are relative to the method's message.
        refuse_features: raises, as ``refuse``, for a number of perturbed features that the method does not support.
        model_context: a context that prepares the model for Captum and restores it.
        imports: modules that Captum imports between its passes.
    """

    reference: ReferenceFold
    formula: str
    points: Callable[[AttributionProblem], Points] = input_point
    init_arguments: Callable[[Any], dict[str, Any]] = lambda _: {}
    attribute_arguments: Callable[[AttributionProblem], dict[str, Any]] = lambda _: {}
    differentiates: bool = True
    takes_target: bool = True
    forward_only: bool = False
    uses_randomness: bool = False
    vacuous: Callable[[AttributionProblem], Finding | None] = lambda _: None
    standard_errors: Callable[[AttributionProblem], Values] = lambda _: {}
    satisfies_completeness: Callable[[Any], bool] = lambda _: False
    completeness_tolerances: Tolerances = APPROXIMATE
    sums_prove_rules: bool = False
    satisfies_conservation: bool = False
    tolerances: Tolerances = ONE_PASS
    points_per_pass: Callable[[AttributionProblem], int] = lambda _: 1
    copies: Callable[[AttributionProblem], Iterable[AttributionProblem]] = lambda problem: (problem,)
    batchable: bool = False
    reference_passes: Callable[[AttributionProblem], Iterable[Pass]] | None = None
    replaces_layer: bool = False
    is_watched: bool = True
    limitation: Callable[[AttributionProblem], Finding | None] = lambda _: None
    applies_to_modules: bool = False
    explains_neuron: bool = False
    refuse: Callable[[InspectedModel, Any, Inputs, Changes], None] = lambda *_: None
    refuse_features: Callable[[Any, int], None] = lambda *_: None
    model_context: Callable[[AttributionProblem], AbstractContextManager[None]] = lambda _: nullcontext()
    imports: Sequence[str] = ()

    def run_passes(self, problem: AttributionProblem, begin: Callable[[], T], *, separate_points: bool = False) -> T:
        """Runs separate passes for the reference; of a model that fails on batches of other sizes, of the batch's.

        Args:
            problem: the problem.
            begin: returns, anew, what gets the passes.
            separate_points: each point in a pass of its own.

        Returns:
            What got all passes.
        """
        taken = begin()
        try:
            for recorded in self._passes(problem, separate_points):
                taken.add(recorded)
        except CutawayError as failure:
            if failure.reason != Reason.MODEL_FAILED or problem.batch_size:
                raise
            whole_batches = replace(problem, batch_size=problem.rows)
            return self.run_passes(whole_batches, begin, separate_points=separate_points)
        return taken

    def _passes(self, problem: AttributionProblem, separate_points: bool) -> Iterator[Pass]:
        together = 1 if separate_points else self.points_per_pass(problem)
        for number, copy in enumerate(self.copies(problem)):
            if self.reference_passes is not None:
                passes = self.reference_passes(copy)
            else:
                passes = run_passes(
                    copy, self.points(copy), self.runs_backward, to_inputs=not copy.layer, points_per_pass=together
                )
            for recorded in passes:
                recorded.copy = number
                yield recorded

    def checked(self, check: CheckRequest) -> CheckRequest:
        """Returns how the method is checked where ``check`` is asked for: of Captum's passes only if they are seen."""
        is_seen = self.is_watched or check.mode is not CheckMode.SAME_PASS
        return check if is_seen else replace(check, mode=CheckMode.INDEPENDENT)

    def compares(self, request: Attribution) -> str:
        """Returns what the check of ``request`` compares with what."""
        return f"Captum's {type(request).__name__} with {self.formula}"

    def adds_up(self, problem: AttributionProblem) -> bool:
        """Returns whether the attributions must sum to the target, or to its change from the baseline."""
        complete = bool(problem.baselines) and self.satisfies_completeness(problem.request)
        return self.satisfies_conservation or complete

    @property
    def reads_captum(self) -> bool:
        """Whether the reference is computed from Captum's own passes, as far as they show it."""
        return self.reference_passes is None or self.replaces_layer

    @property
    def has_target(self) -> bool:
        """Whether the request's target is explained."""
        return self.differentiates and not self.explains_neuron

    @property
    def runs_backward(self) -> bool:
        """Whether the method computes gradients."""
        return self.differentiates and not self.forward_only


def passes_at(
    points: Callable[[AttributionProblem], Points],
    points_per_pass: Callable[[AttributionProblem], int] = lambda _: 1,
) -> Callable[[AttributionProblem], Iterable[Pass]]:
    """Returns a value for ``reference_passes``: separate passes, with gradients, at ``points``.

    Methods that explain a neuron need them: Captum's passes do not show at which neuron a backward pass began.
    """
    return lambda problem: run_passes(
        problem, points(problem), differentiate=True, points_per_pass=points_per_pass(problem)
    )


@contextmanager
def attributes_restored(modules: Iterable[nn.Module], names: Sequence[str]) -> Iterator[None]:
    """Enters a context that restores the attributes ``names`` of ``modules``, which Captum sets or deletes, in their
    order; it keeps what else has changed."""
    before = [(vars(module), dict(vars(module))) for module in modules]
    try:
        yield
    finally:
        for attributes, earlier in before:
            if not any(name in attributes or name in earlier for name in names):
                continue
            now = {name: value for name, value in attributes.items() if name not in names}
            kept = {name: now.get(name, value) for name, value in earlier.items() if name in now or name in names}
            attributes.clear()
            attributes.update({**kept, **now})


# Validation that several methods share. Each ``refuse`` function raises `InvalidArgument`.


def inapplicable(message: str, field: str = "") -> CutawayError:
    """Returns an error with the reason ``METHOD_INAPPLICABLE``."""
    return error(Reason.METHOD_INAPPLICABLE, message, field)


MAX_SAMPLES = 4096
"""The most samples, and so copies, of a row."""


def refuse_samples(n_samples: int, what: str = "samples") -> None:
    """Refuses a number of samples that is below 1 or above `MAX_SAMPLES`."""
    if not 1 <= n_samples <= MAX_SAMPLES:
        raise error(Reason.INVALID_VALUE, f"{n_samples} {what}; from 1 to {MAX_SAMPLES}", "n_samples")


def refuse_stdev(stdev: float) -> None:
    """Refuses a standard deviation that is negative or not finite."""
    if not 0 <= stdev < math.inf:
        raise error(Reason.INVALID_VALUE, f"{stdev}; a finite number from 0 up", "stdev")


def refuse_integers(what: str, name: str, tensor: Tensor) -> None:
    """Refuses an integer input; ``what``: what happens to the input."""
    if not tensor.is_floating_point():
        raise inapplicable(f"{what} {name!r}, which is {dtype_text(tensor)}: name inputs of floats to be explained")


def refuse_half_precision(name: str, tensor: Tensor) -> None:
    """Refuses an input of 16-bit floats for methods that add noise: Captum's noise makes it float32."""
    if torch.finfo(tensor.dtype).bits < 32:
        raise inapplicable(
            f"Captum adds float32 noise, even if its stdev is 0, and the input {name!r} is {dtype_text(tensor)}: load "
            "the model in float32, or use a method without noise"
        )


def refuse_row_edits(request: Attribution, edits: Changes, how: str) -> None:
    """Refuses edits of particular rows; ``how``: how Captum runs passes in which rows have other numbers."""
    for name, numbered in edits.items():
        if any(is_row_specific_edit(edit) for _, edit in numbered):
            raise inapplicable(
                f"Captum's {type(request).__name__} {how}, where the rows that the edit of {name!r} names have other "
                "numbers: edit all rows alike, by a number"
            )


def refuse_row_target(problem: AttributionProblem, how: str) -> None:
    """Refuses a target of particular rows or of the whole batch; ``how``: as in `refuse_row_edits`."""
    if problem.target.is_row_specific:
        raise inapplicable(
            f"Captum's {type(problem.request).__name__} {how}, where the target's rows have other numbers, and a loss "
            "of the batch another value: ask for a class, a neuron, or a sum or norm of an output with a row an example"
        )


def refuse_row_numbers(problem: AttributionProblem, how: str, instead: str) -> None:
    """Refuses edits and targets of particular rows; ``how``: as in `refuse_row_edits`; ``instead``: what to request."""
    if problem.target.is_row_specific or any(map(is_row_specific_edit, problem.edits)):
        raise inapplicable(
            f"Captum's {type(problem.request).__name__} {how}, where rows have other numbers than in the target or in "
            f"edits; {instead}"
        )


# Module outputs that Captum can read: one tensor, alone or in a tuple of one, or several in a tuple.

_NOT_A_TENSOR = ("has no attribute 'clone'", "has no attribute 'device'", "Given input is not a torch.Tensor")
"""How Captum's message ends if it treats another object as a tensor: it copies each element of a tuple, be it None."""


@contextmanager
def readable_output(
    problem: AttributionProblem, refuse: Callable[[Sequence[Sequence[Tensor]]], None] = lambda _: None
) -> Iterator[None]:
    """Enters a context that requires a layer, or a neuron's module, whose output Captum can read.

    Args:
        problem: defines the module.
        refuse: raises for outputs that the method does not support; gets the tensors of each call, [batch, *features].

    Raises:
        InvalidArgument: ``METHOD_INAPPLICABLE``: a call returns no tensor or too many, integers, or not [batch, ...].
    """
    with at(module_field(problem)):
        refuse([_tensors(problem, call.at(Point.OUTPUT)) for call in module_calls(problem)])
    yield


def module_field(problem: AttributionProblem) -> str:
    """Returns the request field of the layer, or of the neuron's module."""
    return f"{field_name(type(problem.request))}.{'layer' if problem.layer else 'neuron.module'}"


def met_no_tensor(problem: AttributionProblem, failure: CutawayError) -> bool:
    """Returns whether Captum failed at the module's output, because something in it is no tensor."""
    cause = failure.__cause__
    is_one = bool(problem.module) and not problem.further_layers  # of several it is not known which
    return is_one and isinstance(cause, (AttributeError, AssertionError)) and str(cause).endswith(_NOT_A_TENSOR)


def _tensors(problem: AttributionProblem, outputs: Mapping[Path, Tensor]) -> Sequence[Tensor]:
    is_tuple = list(outputs) == [f"[{number}]" for number in range(len(outputs))]
    if not outputs or not (is_tuple or "" in outputs) or (len(outputs) > 1 and not problem.layer):
        raise unreadable(problem, f"the tensors {', '.join(outputs)}" if outputs else "no tensor")
    for tensor in outputs.values():
        if not tensor.is_floating_point():
            raise unreadable(problem, f"a tensor of {dtype_text(tensor)}")
        if tensor.shape[:1] != (problem.rows,):
            shape = f"{list(tensor.shape)}, whose axis 0 is not the batch of {problem.rows}"
            raise unreadable(problem, f"a tensor of shape {shape}")
    return list(outputs.values())


def unreadable(problem: AttributionProblem, output: str) -> CutawayError:
    """Returns an error for a module that returns ``output``."""
    tensors, remedy = "one tensor of floats, [batch, ...], alone or in a tuple by itself", ""
    if problem.layer:
        tensors = "tensors of floats, [batch, ...], one alone or a tuple of them"
        outputs = (call.at(Point.OUTPUT).items() for call in module_calls(problem))
        paths = dict.fromkeys(
            path for items in outputs for path, tensor in items if path and tensor.is_floating_point()
        )
        remedy = f", or one of its tensors by layer_path, of {', '.join(paths)}" if paths else ""
    return inapplicable(
        f"the module {problem.module!r} returns {output}; the method needs one that returns {tensors}: name such a "
        f"module, before or behind it{remedy}"
    )
