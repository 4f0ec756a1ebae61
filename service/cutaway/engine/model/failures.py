"""Exceptions of the code of a model's owner, as errors of the contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from traceback import walk_tb

import torch
from torch import Tensor, nn

from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.results import InputSpec
from cutaway.engine.model.session import is_out_of_memory


@contextmanager
def failures_of(
    code: str,
    what: Callable[[], str] = str,
    reason: Reason = Reason.MODEL_FAILED,
    why: Callable[[BaseException], str] = lambda failure: "",
) -> Iterator[None]:
    """Turns an exception of the owner's ``code`` into an error.

    Args:
        code: in words.
        what: returns what it ran on.
        reason: of the error.
        why: returns more than the exception says.
    """
    try:
        yield
    except CutawayError:
        raise
    except (Exception, SystemExit) as failure:  # sys.exit in a model does not end the server
        if is_out_of_memory(failure):
            raise
        text = (str(failure).strip().splitlines() or [""])[0][:400]
        raised = f"{code} raised {type(failure).__name__}{what()}{': ' if text else ''}{text}{why(failure)}"
        raise error(reason, raised) from failure


def column_names(specs: Sequence[InputSpec], name: str, size: int) -> Sequence[str]:
    """Returns the names of the ``size`` elements of a row of the input ``name``; empty if they have none."""
    names = next((spec.feature_names for spec in specs if spec.name == name), ())
    return names if len(names) == size else ()


def unknown_id(
    failure: BaseException, modules: Mapping[str, nn.Module], inputs: Mapping[str, Tensor], specs: Sequence[InputSpec]
) -> str:
    """Returns which embedding of ``modules`` has no vector for an id, and where this is in ``inputs``; ``""`` if
    ``failure`` has another cause, or happened outside of an embedding."""
    frames = (
        [frame for frame, _ in walk_tb(failure.__traceback__)]
        if isinstance(failure, (IndexError, RuntimeError))
        else []
    )
    for frame in frames:
        module, ids = frame.f_locals.get("self"), frame.f_locals.get("input")
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and isinstance(ids, Tensor):
            name = next((name for name, own in modules.items() if own is module), "")
            wrong = ids[(ids < 0) | (ids >= module.num_embeddings)]
            if wrong.numel():
                known = f"is an {type(module).__name__} of the ids 0 to {module.num_embeddings - 1}"
                return f"; {name!r} {known}, and got {int(wrong[0])}{_place(ids, inputs, specs)}"
    return ""


def _place(ids: Tensor, inputs: Mapping[str, Tensor], specs: Sequence[InputSpec]) -> str:
    """Returns, in words, the input that ``ids`` are, or its column; ``""`` if they are none."""
    for name, tensor in inputs.items():
        if tensor.is_floating_point():
            continue
        if torch.equal(ids, tensor):
            return f" in {name!r}"
        columns = tensor.reshape(len(tensor), -1)
        for number in range(columns.shape[1]):
            if ids.numel() == len(columns) and torch.equal(ids.flatten(), columns[:, number]):
                names = column_names(specs, name, columns.shape[1])
                return f" in {names[number]!r} of {name!r}" if names else f" in column {number} of {name!r}"
    return ""
