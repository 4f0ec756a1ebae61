"""A question about every row of a data set."""

from __future__ import annotations

from typing import Any

import yaml

from cutaway.errors import Reason, error
from cutaway.programs.question import Question
from cutaway.request_reader.writer import as_mapping

_HEAD = "# Name the model's archive and the data set; what else a job can hold: docs/batch.md.\n"

_FIELDS = ("attributions", "captures", "input_gradients", "arguments", "edits", "check", "explain_if")
"""Those of a request that a job has too; the others are about one reply."""


def program(question: Question) -> str:
    """Returns the job's YAML.

    Raises:
        InvalidArgument: ``INPUT_MISSING``; a job names the inputs.
    """
    request = question.request
    if not request.tensors and not request.raw:
        raise error(Reason.INPUT_MISSING, "a job names the inputs: send them, if only with no rows", "tensors")
    words = as_mapping(request.with_input())
    section = {name: words[name] for name in _FIELDS if name in words}
    if section.get("input_gradients") == []:
        section["input_gradients"] = True
    if "check" in section:
        check = section.pop("check")
        section |= {"check": check.get("mode", "same_pass"), **check}
        section.pop("mode", None)
    name, _, _ = request.model.partition("/versions/")
    job = {
        "model": {"archive": f"{name}.mar"},
        "data": {"path": "data.parquet"},
        "inputs": _inputs(question),
        **({"target": words["target"]} if "target" in words else {}),
        "request": section,
        "output": {"folder": "explained", "keep_inputs": True},
    }
    return _HEAD + yaml.safe_dump(job, sort_keys=False, default_flow_style=None, width=120, allow_unicode=True)


def _inputs(question: Question) -> dict[str, Any]:
    tensors = question.request.tensors
    if not tensors:
        return {"raw": {"column": "input"}}
    return {name: {"column": name, "shape": list(each.shape[1:])} for name, each in tensors.items()}
