"""The table of attribution methods: a new method is a new row, in the file of its family."""

from __future__ import annotations

from cutaway.contract.requests import Attribution
from cutaway.engine.methods import deeplift, gradients, lrp, neurons, paths, perturbations
from cutaway.engine.methods.noise_tunnel import with_noise_tunnel
from cutaway.engine.methods.spec import Method

_FAMILIES = (
    *(gradients, gradients, paths, perturbations, neurons, perturbations, deeplift, lrp, perturbations),
    deeplift,
)

TABLE: dict[type[Attribution], Method] = {kind: row for family in _FAMILIES for kind, row in family.ROWS.items()}


def method_of(request: Attribution) -> Method:
    """Returns the row of ``request``, inside a noise tunnel if the request has one."""
    method = TABLE[type(request)]
    return method if request.noise is None else with_noise_tunnel(method)
