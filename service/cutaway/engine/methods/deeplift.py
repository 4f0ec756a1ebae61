"""DeepLIFT with the Rescale rule, from one baseline or from a distribution of baselines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from cutaway.contract import requests
from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.requests import Point
from cutaway.engine.hooks.capture_spec import watching
from cutaway.engine.hooks.recording import RecordedCall
from cutaway.engine.methods import spec
from cutaway.engine.methods.captum_patches import rescaled_softmax
from cutaway.engine.methods.neurons import neuron_selectable
from cutaway.engine.model.inspected_model import Inputs, InspectedModel
from cutaway.engine.passes.pass_recorder import AttributionProblem, Changes, concatenated
from cutaway.engine.references import deeplift as references
from cutaway.engine.references import expected_gradients
from cutaway.engine.references.deeplift import limitation
from cutaway.engine.references.deeplift_multipliers import MODULE_RULES
from cutaway.engine.references.observation import observe_forward, reused_neuron_module, whole
from cutaway.engine.runtime.numerics import EXACT

# Translation of errors of Captum's DeepLIFT: the module that caused them, and a remedy.

_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)


def with_cause(problem: AttributionProblem, failure: Exception) -> Exception:
    """Returns the error that says why Captum's DeepLIFT cannot explain this model; ``failure`` itself if no cause in
    the model is found."""
    text = str(failure.__cause__ or failure)
    causes = [cause for sentence, cause in _CAUSES.items() if sentence in text]
    # A batch of another size may be the cause of any error, but not of an expired deadline, for example.
    if not isinstance(failure, CutawayError) or failure.reason == Reason.MODEL_FAILED:
        causes.append(_batch_size)
    for cause in causes:
        if explanation := cause(problem):
            return spec.inapplicable(f"Captum's {type(problem.request).__name__} cannot be applied: {explanation}")
    return failure


def _reused(problem: AttributionProblem) -> str:
    calls_by_name = _calls(problem)
    for name, calls in calls_by_name.items():
        if len(calls) > 1:
            return (
                f"the module {name!r} is called {len(calls)} times in one forward pass, and Captum overrides one call "
                "of a module: build the model with a module for each call"
            )
    for name, others in problem.model.tree.aliases.items():
        if name in calls_by_name:
            return (
                f"the module {name!r} is registered as {others[0]!r} too, and Captum hooks it for each name: build the "
                "model with a module for each"
            )
    return ""


def _not_one_tensor(problem: AttributionProblem) -> str:
    for name, calls in _calls(problem).items():
        for call in calls:
            for verb, point in (("takes", Point.INPUT), ("returns", Point.OUTPUT)):
                if set(call.dtypes.get(point, {})) != {""}:
                    return (
                        f"the module {name!r} {verb} something else than one tensor by itself "
                        f"({', '.join(call.dtypes.get(point, {})) or 'no tensor'}), which Captum's hooks do not "
                        "support: build the model so that it does, with no keyword and no indices"
                    )
    return ""


def _dilated(problem: AttributionProblem) -> str:
    for name, module in problem.model.tree.modules.items():
        if type(module) in _POOLS and module.dilation not in (1, (1,), (1, 1), (1, 1, 1)):
            return f"the windows of {name!r} are dilated, which Captum cannot undo; explain a layer behind it"
    return ""


def _nested_output(problem: AttributionProblem) -> str:
    return (
        f"the layer {problem.layer!r} returns tensors inside of a tuple or dict inside of another (a recurrent "
        "layer's state?), which Captum does not open; name one of them by layer_path"
    )


def _not_batch_first(problem: AttributionProblem) -> str:
    """Explains an error about the axis 0 of a layer, which Captum takes for the batch of inputs and baselines."""
    if (explanation := _batch_size(problem)) or not problem.layer:
        return explanation
    return (
        f"axis 0 of what the layer {problem.layer!r} returns is not the batch, which Captum splits into "
        "inputs and baselines; explain a layer whose axis 0 is"
    )


def _no_gradient(problem: AttributionProblem) -> str:
    others = [name for name in problem.inputs if name not in problem.explained]
    also = f"; explain {', '.join(others)} as well" if others else ""
    return f"no gradient leads from {', '.join(problem.explained)} to a nonlinear module that Captum hooks{also}"


def _batch_size(problem: AttributionProblem) -> str:
    """Explains what is wrong if the model does not take a batch of twice the size."""
    rows = 2 * problem.rows
    why = "it runs inputs and baselines as one batch"
    try:
        with torch.no_grad(), problem.model.kept_rng_state():
            output = problem.read(concatenated([problem.inputs, problem.inputs]))
    except CutawayError as failure:
        return f"{why}, of {rows} rows, and {failure.message}"
    if output.shape[:1] == (rows,):
        return ""
    return (
        f"{why}, and for {rows} rows {problem.target.source!r} has shape {list(output.shape)}: axis 0 must be the "
        "batch, whatever its size"
    )


def _calls(problem: AttributionProblem) -> Mapping[str, Sequence[RecordedCall]]:
    """Returns the calls of the modules that Captum overrides, in one forward pass."""
    modules = problem.model.tree.modules.items()
    return observe_forward(problem, {name: watching() for name, module in modules if type(module) in MODULE_RULES})


_CAUSES: dict[str, Callable[[AttributionProblem], str]] = {
    "does not contain some of": _reused,
    "Backward hooks not supported for module with": _not_one_tensor,
    "tuple index out of range": _not_one_tensor,
    "invalid output_size": _dilated,
    "Given input is not a torch.Tensor": _nested_output,
    "is invalid for input of size": _not_batch_first,
    "cannot register a hook on a tensor that doesn't require gradient": _no_gradient,
}
"""Functions that name the cause in the model or return ``""``, by a part of the error's message."""


_ONE_PASS = "runs inputs and baselines in one pass"

_CAPTUM_ATTRIBUTES = ("input", "output")
"""The attributes that Captum sets on hooked modules, and leaves there if no gradient reaches the module."""


def _refuse(model: InspectedModel, request: Any, inputs: Inputs, edits: Changes) -> None:
    spec.refuse_row_edits(request, edits, _ONE_PASS)
    for name, numbered in edits.items():
        module = model.tree.modules.get(name if name in model.tree.modules else name.rpartition(":")[0])
        if type(module) in MODULE_RULES and any(edit.point.is_gradient for _, edit in numbered):
            raise error(
                Reason.EDIT_INAPPLICABLE,
                f"the gradient at {name!r} is edited, and the method overrides it: it can do one only",
            )
    samples = request.baselines if isinstance(request, requests.Expectation) else {}
    for name, of_input in samples.items():
        if len(of_input) < 2:
            raise error(
                Reason.INVALID_VALUE,
                "one sample is no distribution: send two or more, or ask "
                f"{type(request).__name__.removesuffix('Shap')}",
                f"baselines.by_input.{name}",
            )


def _arguments(problem: AttributionProblem) -> dict[str, Any]:
    spec.refuse_row_target(problem, _ONE_PASS)
    return {"baselines": tuple(problem.baselines[name] for name in problem.explained)}


@contextmanager
def _modules_restored(problem: AttributionProblem) -> Iterator[None]:
    """Enters a context that removes what Captum leaves on modules, and translates Captum's errors."""
    hooked = [module for module in problem.model.tree.modules.values() if type(module) in MODULE_RULES]
    with spec.attributes_restored(hooked, _CAPTUM_ATTRIBUTES):
        try:
            with rescaled_softmax():
                yield
        except Exception as failure:
            translation = with_cause(problem, failure)
            if translation is failure:
                raise
            raise translation from failure


@contextmanager
def _neuron_modules_restored(problem: AttributionProblem) -> Iterator[None]:
    with neuron_selectable(problem), _modules_restored(problem):
        yield


_RULE = "multipliers of a pass in which raw hooks let (y - y0) / (x - x0) pass back through each nonlinearity"


def _row(kind: type[requests.Attribution]) -> spec.Method:
    of_layer, of_neuron = issubclass(kind, requests.LayerAttribution), issubclass(kind, requests.NeuronAttribution)
    difference = "raw output at x - raw output at the baseline" if of_layer else "x - baseline"
    mean = ", the mean over the samples" if issubclass(kind, requests.Expectation) else ""
    return spec.Method(
        whole(references.deeplift),
        f"({difference}) * {_RULE}{mean}",
        points=references.deeplift_points,
        attribute_arguments=_arguments,
        satisfies_completeness=lambda _: True,
        completeness_tolerances=EXACT,
        sums_prove_rules=True,
        reference_passes=references.deeplift_passes,
        limitation=limitation,
        applies_to_modules=True,
        explains_neuron=of_neuron,
        refuse=_refuse,
        model_context=_neuron_modules_restored if of_neuron else _modules_restored,
    )


_KINDS: tuple[type[requests.Attribution], ...] = (
    *(requests.DeepLift, requests.LayerDeepLift, requests.NeuronDeepLift),
    *(requests.DeepLiftShap, requests.LayerDeepLiftShap, requests.NeuronDeepLiftShap),
)

ROWS = {kind: _row(kind) for kind in _KINDS}


# Expected gradients: the mean over points drawn between baselines and noisy copies of the input.

_ONE_PASS_A_DRAW = "runs all samples in one pass"


def _expected_gradient_arguments(problem: AttributionProblem) -> dict[str, Any]:
    request = cast(requests.ExpectedGradient, problem.request)
    if request.n_samples > 1:
        spec.refuse_row_target(problem, _ONE_PASS_A_DRAW)
    return {
        "baselines": tuple(problem.baselines[name] for name in problem.explained),
        "n_samples": request.n_samples,
        "stdevs": float(request.stdev),
    }


def _refuse_distributions(
    _: InspectedModel, request: requests.ExpectedGradient, inputs: Inputs, edits: Changes
) -> None:
    spec.refuse_samples(request.n_samples)
    spec.refuse_stdev(request.stdev)
    for name in request.baselines:
        spec.refuse_half_precision(name, inputs[name])
    if request.n_samples > 1:
        spec.refuse_row_edits(request, edits, _ONE_PASS_A_DRAW)


_expected_gradient_row = partial(
    spec.Method, attribute_arguments=_expected_gradient_arguments, uses_randomness=True, refuse=_refuse_distributions
)
_MEAN = "the mean over the seed's draws"

ROWS |= {
    requests.GradientShap: _expected_gradient_row(
        whole(expected_gradients.expected_gradients),
        f"(noisy x - baseline) * the raw gradient between the two, {_MEAN}",
        points=expected_gradients.sample_points,
        points_per_pass=expected_gradients.samples_per_pass,
    ),
    requests.LayerGradientShap: _expected_gradient_row(
        whole(expected_gradients.layer_expected_gradients),
        f"(raw output at noisy x - raw output at the baseline) * the layer's raw gradient between the two, {_MEAN}",
        points=expected_gradients.layer_sample_points,
        reference_passes=expected_gradients.layer_passes,
        model_context=spec.readable_output,
    ),
    requests.NeuronGradientShap: _expected_gradient_row(
        whole(expected_gradients.expected_gradients),
        f"(noisy x - baseline) * the neuron's raw gradient between the two, {_MEAN}",
        points=expected_gradients.sample_points,
        reference_passes=spec.passes_at(expected_gradients.sample_points, expected_gradients.samples_per_pass),
        limitation=reused_neuron_module,
        explains_neuron=True,
        model_context=neuron_selectable,
    ),
}
