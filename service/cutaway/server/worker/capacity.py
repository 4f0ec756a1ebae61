"""Says how large a worker is when it has loaded: its weights, and the largest requests that memory allows."""

from __future__ import annotations

from collections.abc import Callable

from cutaway.engine.execution.fitting import rows_that_fit
from cutaway.engine.model.inspected_model import Inputs, InspectedModel
from cutaway.server.memory import RequestMemory

_GIB = 1 << 30
_MORE = "; CUTAWAY_MEMORY_BYTES or CUTAWAY_REQUEST_MEMORY_BYTES give it more"


def what_fits(model: InspectedModel, example: Callable[[], Inputs | None], memory: RequestMemory | None) -> str:
    """Returns the bytes of the weights, and how many rows like the first of ``example`` one pass may have."""
    state = (*model.module.parameters(), *model.module.buffers())
    size = f"weights of {sum(tensor.nbytes for tensor in state) / _GIB:.2f} GiB"
    try:
        inputs = example() if memory is not None else None
        if inputs is None or memory is None:
            return size
        with model.session():
            predicted, explained = rows_that_fit(model, inputs, memory.most)
    except Exception:  # of the adapter's example: a request for it gets the same error
        return f"{size}; its example cannot be run"
    return (
        f"{size}; a request may take {memory.most / _GIB:.2f} GiB: about {predicted:,} rows like its example a pass, "
        f"{explained:,} with gradients{'' if explained else _MORE}"
    )
