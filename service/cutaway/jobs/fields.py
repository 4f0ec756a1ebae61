"""Where in ``job.yaml`` a fault lies, of which a worker says where in the contract's request it lies."""

from __future__ import annotations

from cutaway.errors import CutawayError

_PLACES = {
    "tensors.by_name.": "inputs.",
    "raw": "inputs.raw",
    **{part: f"request.{part}" for part in ("attributions", "captures", "input_gradients", "edits", "explain_if")},
    "check": "request.check",
}
"""How fields begin: in the contract, and in a job."""


def in_job(failure: CutawayError) -> CutawayError:
    """``failure``, with the job's field in place of the contract's."""
    for there, here in _PLACES.items():
        if failure.field.startswith(there):
            failure.field = here + failure.field.removeprefix(there)
            break
    return failure
