"""What Captum's DeepLIFT stumbles over, said of the place in the model and of what to do."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from cutaway.engine.hooks import observing
from cutaway.engine.references.rescale import OF_MODULES
from cutaway.engine.seen import Seen
from cutaway.engine.wishes import watching
from cutaway.engine.witness import Question
from cutaway.errors import CutawayError, Reason, error
from cutaway.requests import Point

_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)


def explained(question: Question, failure: Exception) -> Exception:
    """``failure`` in other words, where the model's own ways are what Captum fails at."""
    said = str(failure.__cause__ or failure)
    for sentence, why in _WHY.items():
        if sentence in said and (found := why(question)):
            return _inapplicable(question, found)
    if _is_of_the_batch(failure) and (found := _not_doubled(question)):
        return _inapplicable(question, found)
    return failure


def _inapplicable(question: Question, why: str) -> CutawayError:
    return error(Reason.METHOD_INAPPLICABLE, f"Captum's {type(question.request).__name__} cannot be applied: {why}")


def _reused(question: Question) -> str:
    calls = _calls(question).calls
    twice = [name for name, each in calls.items() if len(each) > 1]
    if twice:
        return (
            f"the module {twice[0]!r} is called {len(calls[twice[0]])} times in one forward, and Captum overrides one "
            "call of a module: build the model with a module for each call"
        )
    shared = [(name, others) for name, others in question.subject.tree.aliases.items() if name in calls]
    if shared:
        name, others = shared[0]
        return (
            f"the module {name!r} also sits in the model as {others[0]!r}, and Captum hooks it in each place: build "
            "the model with a module for each place"
        )
    return ""


def _not_one_tensor(question: Question) -> str:
    for name, calls in _calls(question).calls.items():
        for call in calls:
            for what, point in (("takes", Point.INPUT), ("returns", Point.OUTPUT)):
                if set(call.kinds.get(point, {})) != {""}:
                    return (
                        f"the module {name!r} {what} something else than one tensor by itself ("
                        f"{', '.join(call.kinds.get(point, {})) or 'no tensor'}), which is all that Captum's hooks "
                        "know: build the model so that it does, with no keyword and no indices"
                    )
    return ""


def _dilated(question: Question) -> str:
    pools = {name: each for name, each in question.subject.tree.modules.items() if type(each) in _POOLS}
    for name, pool in pools.items():
        if set(_each(pool.dilation)) != {1}:
            return f"the windows of {name!r} are dilated, which Captum cannot undo; explain a layer behind it"
    return ""


def _each(size: object) -> tuple[object, ...]:
    return tuple(size) if isinstance(size, (tuple, list)) else (size,)


def _not_flat(question: Question) -> str:
    return (
        f"the layer {question.layer!r} returns tensors inside of a tuple or dict inside of another (a recurrent "
        "layer's state?), which Captum does not open; explain the layer before or behind it"
    )


def _not_by_rows(question: Question) -> str:
    if (found := _not_doubled(question)) or not question.layer:
        return found
    return (
        f"axis 0 of what the layer {question.layer!r} returns is not the batch, along which Captum halves and "
        "averages; explain a layer whose axis 0 is"
    )


def _not_reached(question: Question) -> str:
    others = [name for name in question.inputs if name not in question.explained]
    also = f"; explain {', '.join(others)} as well" if others else ""
    return f"no gradient leads from {', '.join(question.explained)} to a nonlinear module that Captum hooks{also}"


def _not_doubled(question: Question) -> str:
    doubled = {name: torch.cat([tensor, tensor]) for name, tensor in question.inputs.items()}
    why = "it runs inputs and baselines as one batch"
    try:
        with torch.no_grad(), question.subject.dice():
            output = question.read(doubled)
    except CutawayError as failure:
        return f"{why}, of {2 * question.rows} rows, and {failure.message}"
    if output.shape[:1] == (2 * question.rows,):
        return ""
    return (
        f"{why}, and for {2 * question.rows} rows {question.chosen.source!r} has shape {list(output.shape)}: axis 0 "
        "must be the batch, whatever its size"
    )


def _is_of_the_batch(failure: Exception) -> bool:
    """Whether a batch of another size may be what failed: not where the caller's time is up, say."""
    return not isinstance(failure, CutawayError) or failure.reason == Reason.MODEL_FAILED


def _calls(question: Question) -> Seen:
    names = [name for name, module in question.subject.tree.modules.items() if type(module) in OF_MODULES]
    with (
        torch.no_grad(),
        question.subject.dice(),
        observing(question.subject.tree, dict.fromkeys(names, watching())) as seen,
        seen.forward(),
    ):
        question.subject.run(question.inputs)
    return seen


_WHY: dict[str, Callable[[Question], str]] = {
    "does not contain some of": _reused,
    "Backward hooks not supported for module with": _not_one_tensor,
    "tuple index out of range": _not_one_tensor,
    "invalid output_size": _dilated,
    "Given input is not a torch.Tensor": _not_flat,
    "is invalid for input of size": _not_by_rows,
    "cannot register a hook on a tensor that doesn't require gradient": _not_reached,
}
"""By what Captum or PyTorch says."""
