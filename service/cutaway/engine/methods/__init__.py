"""The table of attribution methods: a new method is a new row, in the file of its family.

A row says which Captum class answers it, with which arguments; which reference from raw hook outputs its answer must
equal, and how closely; and whether its attributions must add up.
"""

from __future__ import annotations

from cutaway.engine.method import Method
from cutaway.engine.methods import (
    backprop,
    deeplift,
    expectations,
    gradients,
    neurons,
    paths,
    perturbations,
    relevance,
    surrogates,
    units,
)
from cutaway.engine.tunnel import tunnelled
from cutaway.requests import Attribution

TABLE: dict[type[Attribution], Method] = {
    **gradients.ROWS,
    **backprop.ROWS,
    **paths.ROWS,
    **perturbations.ROWS,
    **neurons.ROWS,
    **units.ROWS,
    **deeplift.ROWS,
    **relevance.ROWS,
    **surrogates.ROWS,
    **expectations.ROWS,
}


def method_of(request: Attribution) -> Method:
    """The row of ``request``; with noise around it, what becomes of that row."""
    method = TABLE[type(request)]
    return method if request.noise is None else tunnelled(method)
