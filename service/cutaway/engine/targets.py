"""Which scalar, one an example, is differentiated."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cutaway.engine.subject import Outputs, dtype_text
from cutaway.errors import Reason, error
from cutaway.requests import ClassIndex, PredictedClass, Target


@dataclass(frozen=True)
class Chosen:
    """A target, made definite for one batch: the output it is read from and the element of each row.

    Attributes:
        output: the name of the output.
        indices: [batch] int64, the class of each row; None where each row's output is itself one number.
    """

    output: str
    indices: Tensor | None

    def scalars(self, outputs: Outputs) -> Tensor:
        """[batch], the target scalar of each row; differentiable."""
        return self.of(outputs[self.output])

    def of(self, output: Tensor) -> Tensor:
        """The same, from the output itself."""
        if self.indices is None:
            return output.reshape(output.shape[0])
        return output.gather(1, self.indices.to(output.device).unsqueeze(1)).squeeze(1)


def choose(target: Target, outputs: Outputs, rows: int) -> Chosen:
    """Make ``target`` definite for what the model returned for ``rows`` examples.

    Raises:
        InvalidArgument: ``OUTPUT_NOT_FOUND``, ``TARGET_SHAPE``, ``TARGET_RANGE`` or ``TARGET_MISMATCH``.
    """
    name = target.output or next(iter(outputs))
    if name not in outputs:
        raise error(Reason.OUTPUT_NOT_FOUND, f"no output {name!r}; the model returns {', '.join(outputs)}", "output")
    output = outputs[name]
    if not output.is_floating_point():
        raise error(Reason.TARGET_SHAPE, f"output {name!r} is {dtype_text(output)}: only floats have gradients")
    if output.ndim == 0 or output.shape[0] != rows:
        raise error(
            Reason.TARGET_SHAPE,
            f"output {name!r} has shape {list(output.shape)}: axis 0 is not the batch of {rows}, so no scalar belongs "
            "to an example",
        )
    if output.ndim == 1:
        _refuse_indices(target, output)
        return Chosen(name, None)
    if output.ndim != 2:
        raise error(
            Reason.TARGET_SHAPE,
            f"output {name!r} has shape {list(output.shape)}; a class target needs [batch, classes]",
        )
    return Chosen(name, _indices(target, output))


def _refuse_indices(target: Target, output: Tensor) -> None:
    if isinstance(target, ClassIndex) and any(index != 0 for index in target.indices):
        raise error(
            Reason.TARGET_RANGE,
            f"the output has one number an example, of shape {list(output.shape)}; the only target is 0",
            "class_index",
        )


def _indices(target: Target, output: Tensor) -> Tensor:
    if isinstance(target, PredictedClass):
        return output.detach().argmax(dim=1)
    if isinstance(target, ClassIndex):
        return _given(target.indices, *output.shape).to(output.device)
    raise error(Reason.NOT_IMPLEMENTED, f"the target {type(target).__name__} is not served yet")


def _given(indices: tuple[int, ...], rows: int, classes: int) -> Tensor:
    if len(indices) not in (1, rows):
        raise error(
            Reason.TARGET_MISMATCH,
            f"{len(indices)} targets for a batch of {rows}; send one for all, or {rows}",
            "class_index",
        )
    for index in indices:
        if not 0 <= index < classes:
            raise error(
                Reason.TARGET_RANGE,
                f"target {index} is out of range; the output has classes 0 to {classes - 1}",
                "class_index",
            )
    chosen = torch.tensor(indices, dtype=torch.int64)
    return chosen.expand(rows) if len(indices) == 1 else chosen
