"""Translates errors of Captum's DeepLIFT: which module of the model caused them, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from cutaway.engine.hooks.capture_spec import watching
from cutaway.engine.hooks.recording import RecordedCall
from cutaway.engine.methods.validation import inapplicable
from cutaway.engine.passes.pass_recorder import AttributionProblem
from cutaway.engine.passes.repeated_batch import concatenated
from cutaway.engine.references.observation import observe_forward
from cutaway.engine.references.rescale_rule import MODULE_RULES
from cutaway.errors import CutawayError, Reason
from cutaway.requests import Point

_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)


def translated(problem: AttributionProblem, failure: Exception) -> Exception:
    """Returns an error that names the module at fault; ``failure`` itself if the model is not the cause."""
    text = str(failure.__cause__ or failure)
    causes = [cause for sentence, cause in _CAUSES.items() if sentence in text]
    # A batch of another size may be the cause of any error, but not of an expired deadline, for example.
    if not isinstance(failure, CutawayError) or failure.reason == Reason.MODEL_FAILED:
        causes.append(_batch_size)
    for cause in causes:
        if explanation := cause(problem):
            return inapplicable(f"Captum's {type(problem.request).__name__} cannot be applied: {explanation}")
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
        "layer's state?), which Captum does not open; explain the layer before or behind it"
    )


def _not_batch_first(problem: AttributionProblem) -> str:
    if (explanation := _batch_size(problem)) or not problem.layer:
        return explanation
    return (
        f"axis 0 of what the layer {problem.layer!r} returns is not the batch, along which Captum halves and "
        "averages; explain a layer whose axis 0 is"
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
"""By a part of the message of Captum or PyTorch: explains what in the model causes it, or returns ``""``."""
