"""A question about every row of a data set."""

from __future__ import annotations

from typing import Any

import yaml

from cutaway.errors import Reason, error
from cutaway.programs.question import Question
from cutaway.request_reader.writer import as_mapping

_HEAD = "# Name the model's archive and the data set; what else a job can hold: docs/batch.md.\n"

_FIELDS = ("attributions", "captures", "input_gradients", "arguments", "edits", "check", "explain_if", "seed")
"""Those of a request that a job has too; the others are about one reply."""

_LARGEST_SEED = 2**62
"""Each row has one of its own behind it."""


def program(question: Question) -> str:
    """Returns the job's YAML.

    Raises:
        InvalidArgument: ``INPUT_MISSING``; a job names the inputs. ``INVALID_VALUE``, for a seed that is too large.
    """
    request = question.request
    if not request.tensors and not request.raw:
        raise error(Reason.INPUT_MISSING, "a job names the inputs: send them, if only with no rows", "tensors")
    if (request.seed or 0) > _LARGEST_SEED:
        raise error(Reason.INVALID_VALUE, f"a job's is at most {_LARGEST_SEED}", "options.seed")
    words = as_mapping(request.with_input())
    section = {name: words[name] for name in _FIELDS if name in words}
    if section.get("input_gradients") == []:
        section["input_gradients"] = True
    if "check" in section:
        check = section.pop("check")
        section |= {"check": check.get("mode", "same_pass"), **check}
        section.pop("mode", None)
    left = ", ".join(name for name in words if name not in (*_FIELDS, "model", "target", "tensors"))
    name, _, _ = request.model.partition("/versions/")
    job = {
        "model": {"archive": f"{name}.mar"},
        "data": {"path": "data.parquet"},
        "inputs": _inputs(question),
        **({"target": words["target"]} if "target" in words else {}),
        "request": section,
        "output": {"folder": "explained", "keep_inputs": True},
    }
    head = _HEAD + (left and f"# Left out, because a job has none of it: {left}.\n")
    return head + _text(job)


def _text(job: dict[str, Any]) -> str:
    """Returns the YAML; with escapes where a character is none that people see, or that YAML takes for a line's end."""

    def written(*, allow_unicode: bool) -> str:
        text = yaml.safe_dump(job, sort_keys=False, default_flow_style=None, width=120, allow_unicode=allow_unicode)
        return str(text)

    text = written(allow_unicode=True)
    return text if all(map(str.isprintable, text.split("\n"))) else written(allow_unicode=False)


def _inputs(question: Question) -> dict[str, Any]:
    tensors = question.request.tensors
    if not tensors:
        kinds = {each.media_type for each in question.request.raw}
        media_type = {"media_type": kinds.pop()} if len(kinds) == 1 and kinds != {"text/plain"} else {}
        return {"raw": {"column": "input", **media_type}}
    return {name: {"column": name, "shape": list(each.shape[1:])} for name, each in tensors.items()}
