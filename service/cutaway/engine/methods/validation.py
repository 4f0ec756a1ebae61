"""Validation of parameters, edits and targets that several methods share. Each ``refuse`` function raises
`InvalidArgument`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cutaway.engine.model.inspected_model import dtype_text
from cutaway.engine.passes.pass_recorder import AttributionProblem, Changes
from cutaway.engine.passes.repeated_batch import MAX_SAMPLES, is_row_specific_edit
from cutaway.errors import CutawayError, Reason, error
from cutaway.requests import Attribution


def inapplicable(message: str, field: str = "") -> CutawayError:
    """Returns an error with the reason ``METHOD_INAPPLICABLE``."""
    return error(Reason.METHOD_INAPPLICABLE, message, field)


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
    """Refuses a target with values for particular rows; ``how``: as in `refuse_row_edits`."""
    if problem.target.is_row_specific:
        raise inapplicable(
            f"Captum's {type(problem.request).__name__} {how}, where the target's rows have other numbers: ask for a "
            "class, a neuron, or a sum or norm of the output"
        )


def refuse_row_numbers(problem: AttributionProblem, how: str, instead: str) -> None:
    """Refuses both; ``instead``: what to request."""
    if problem.target.is_row_specific or any(map(is_row_specific_edit, problem.edits)):
        raise inapplicable(
            f"Captum's {type(problem.request).__name__} {how}, where rows have other numbers than in the target or in "
            f"edits; {instead}"
        )
