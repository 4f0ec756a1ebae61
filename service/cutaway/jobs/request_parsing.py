"""The request of a job, from the sections ``request`` and ``target`` of its spec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from cutaway.errors import Reason, at, error
from cutaway.jobs.spec import Request
from cutaway.request_reader.reader import read, read_request
from cutaway.requests import Attribution, InspectRequest, PredictedClass, Target, field_name


class RequestTemplate(NamedTuple):
    """The request that a job sends for every batch.

    Attributes:
        request: the request, without a model and inputs.
        names: for each attribution, the name of its columns.
        by_label: whether the target is the label of each row.
    """

    request: InspectRequest
    names: tuple[str, ...]
    by_label: bool


def parse_request(section: Request, target: Any) -> RequestTemplate:
    """Reads the sections ``request`` and ``target`` of a spec.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, with the field at fault.
    """
    with at("target"):
        resolved = PredictedClass() if target in ("predicted", "label") else read(Target, target)
    attributions = [{"method": each} if isinstance(each, str) else dict(each) for each in section.attributions]
    names = [attribution.pop("name", None) for attribution in attributions]
    with at("request"):
        request = read_request({**dict(section), "attributions": attributions, "seed": None})
        for index, capture in enumerate(request.captures):
            if capture.parameter:
                problem = "the gradient of a parameter does not belong to single rows"
                raise error(Reason.INVALID_VALUE, problem, f"captures[{index}].parameter")
        return RequestTemplate(
            replace(request, target=resolved), _names(request.attributions, names), target == "label"
        )


def _names(attributions: Sequence[Attribution], names: Sequence[str | None]) -> tuple[str, ...]:
    """Returns each attribution's own name, or its method's; numbered from the second on where several are alike."""
    taken: list[str] = []
    for index, (attribution, name) in enumerate(zip(attributions, names)):
        if name in taken:
            raise error(Reason.INVALID_VALUE, f"{name!r} is the name of two attributions", f"attributions[{index}]")
        base = name or field_name(type(attribution))
        unique, number = base, 2
        while unique in taken:
            unique, number = f"{base}_{number}", number + 1
        taken.append(unique)
    return tuple(taken)
