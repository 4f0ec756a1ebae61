"""Runs every method once while annotations of three packages are checked at each call, tensor shapes among them.

``python -m tests.support.checked_annotations`` prints the methods that ran. Checks double the time of a test, hence a
process of its own.
"""

from __future__ import annotations

from jaxtyping import install_import_hook

PACKAGES = [f"cutaway.engine.{package}" for package in ("passes", "references", "methods")]
CHECKER = "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"  # an int is a float, as for mypy

with install_import_hook(PACKAGES, CHECKER):
    import torch
    from jaxtyping import TypeCheckError

    from cutaway.adapters import TensorAdapter, load_model
    from cutaway.contract.requests import CheckMode, CheckRequest, ClassIndex, InspectRequest
    from cutaway.engine.execution.inspect import inspect
    from cutaway.engine.references.observation import expand_rows
    from tests.matrix.asking import every
    from tests.matrix.matrix import batch_of
    from tests.support.zoo.table import ZOO

CHECK = CheckRequest(CheckMode.INDEPENDENT)


def wrong_shape_is_found() -> bool:
    """Whether annotations are checked: a matrix is no value for each row."""
    try:
        expand_rows(torch.ones(2, 3), torch.ones(2, 3))
    except TypeCheckError:
        return True
    return False


def run_every_method() -> set[str]:
    """Runs each method, and its reference, on the first architecture of the zoo that allows it; returns their names."""
    ran: set[str] = set()
    for architecture in ZOO:
        inputs = batch_of(architecture, 2, torch.float32)
        requests = {type(request).__name__: request for request in every(architecture.name, inputs)}
        if requests.keys() <= ran:
            continue
        model = load_model(TensorAdapter(architecture.build().float()), "cpu")
        target = ClassIndex(architecture.target[:2], output=architecture.output)
        for name in requests.keys() - ran:
            inspect(model, InspectRequest("m", target=target, attributions=(requests[name],), check=CHECK), inputs)
        ran |= requests.keys()
    return ran


if __name__ == "__main__":
    if not wrong_shape_is_found():
        raise SystemExit("annotations are not checked")
    print(*run_every_method())
