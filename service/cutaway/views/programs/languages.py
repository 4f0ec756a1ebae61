"""Programs in TypeScript and for the shell, jobs, and the table of all languages."""

from __future__ import annotations

import json
import shlex
from typing import Any
from urllib.parse import quote

import yaml
from google.protobuf import json_format

from cutaway.contract.errors import Reason, at, error
from cutaway.contract.request_reader.reader import choice
from cutaway.contract.request_reader.writer import as_mapping
from cutaway.contract.requests import JOB_FIELDS, OF_ONE_REPLY
from cutaway.contract.tensors import Array, dtype_name
from cutaway.contract.wire import requests as wire_requests
from cutaway.views.programs import python
from cutaway.views.programs.question import FILE, Question

# TypeScript.

_PROGRAM = """{imports}import {{ {names} }} from "@cutaway/client";

const client = new Client({address}{token});
const result = await client.inspect({question});
console.log(result.predictions, result.attributions);
"""

_ARRAYS = {"float64": "Float64Array", "int64": "BigInt64Array", "bool": "Uint8Array"}
"""TypeScript's array classes by data type; half precision and the other floating types become float32."""


def typescript_program(question: Question) -> str:
    """Returns a TypeScript program that asks ``question``."""
    names = ["Client", "questionOf"]
    model = json.dumps(question.request.model)
    if question.request.tensors and not question.in_file:
        names += ["DataType", "tensor"]
    from_file = f'questionOf({{ ...JSON.parse(await readFile("{FILE}", "utf8")), model: {model} }})'
    return _PROGRAM.format(
        imports='import { readFile } from "node:fs/promises";\n' if question.in_file else "",
        names=", ".join(names),
        address=json.dumps(question.address),
        token=', { token: process.env.CUTAWAY_TOKEN ?? "" }' if question.has_token else "",
        question=from_file if question.in_file else _written(question),
    )


def _written(question: Question) -> str:
    request = question.request
    parts = json_format.MessageToDict(wire_requests.encode(request.with_input()))
    del parts["tensors"]
    text = json.dumps(parts, indent=2).replace("\n", "\n  ")
    if request.raw:
        inputs = json.dumps([example.data.decode() for example in request.raw])
    else:
        tensors = [f"{json.dumps(name)}: {_tensor(array)}" for name, array in request.tensors.items()]
        inputs = f"{{ {', '.join(tensors)} }}"
    written = f"{{\n  ...questionOf({text}),\n  inputs: {inputs},\n}}"
    return written.replace('"__proto__":', '["__proto__"]:')  # a name of its own, not what the object descends from


def _tensor(array: Array) -> str:
    name = dtype_name(array)
    kind = _ARRAYS.get(name) or ("Float32Array" if "float" in name else f"{name.title()}Array")
    numbers = ", ".join(_number(number, name) for number in array.ravel())
    shape = ", ".join(map(str, array.shape))
    return f"tensor({kind}.from([{numbers}]), [{shape}], DataType.{name.upper()})"


def _number(value: Any, type_name: str) -> str:
    if type_name == "int64":
        return f"{value}n"
    text = str(int(value) if type_name == "bool" else value)
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(text, text)


# The shell.

_LONGEST = 100_000
"""A longer argument is refused by Linux, which allows 128 KiB."""


def curl_program(question: Question) -> str:
    """Returns the command."""
    url = f"{question.address.rstrip('/')}/v1/models/{quote(question.request.model)}:inspect"
    token = ' \\\n  -H "Authorization: Bearer $CUTAWAY_TOKEN"' if question.has_token else ""
    text = shlex.quote(json_format.MessageToJson(question.message, indent=None))
    data = f"@{FILE}" if question.in_file or len(text) > _LONGEST else text
    return f"curl -s {shlex.quote(url)} -H 'Content-Type: application/json'{token} \\\n  --data {data}\n"


# A job for every row of a data set.

_HEAD = "# Name the model's archive and the data set; what else a job can hold: docs/batch.md.\n"

MAX_SEED = 2**62
"""The largest seed of a job: each row has one of its own behind it."""


def job_program(question: Question) -> str:
    """Returns the job's YAML.

    Raises:
        InvalidArgument: ``INPUT_MISSING``; a job names the inputs. ``INVALID_VALUE``, for a seed that is too large.
    """
    request = question.request
    if not request.tensors and not request.raw:
        raise error(Reason.INPUT_MISSING, "a job names the inputs: send them, if only with no rows", "tensors")
    if (request.seed or 0) > MAX_SEED:
        raise error(Reason.INVALID_VALUE, f"a job's is at most {MAX_SEED}", "options.seed")
    words = as_mapping(request.with_input())
    section = {name: words[name] for name in JOB_FIELDS if name in words}
    if request.input_gradients == ():
        section["input_gradients"] = True
    left = ", ".join(name for name in OF_ONE_REPLY if name in words)
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
    """Returns the YAML. If a character is not printable, all characters beyond ASCII are escaped."""

    def written(*, allow_unicode: bool) -> str:
        text = yaml.safe_dump(job, sort_keys=False, default_flow_style=None, width=120, allow_unicode=allow_unicode)
        return str(text)

    text = written(allow_unicode=True)
    return text if all(map(str.isprintable, text.split("\n"))) else written(allow_unicode=False)


def _inputs(question: Question) -> dict[str, Any]:
    tensors = question.request.tensors
    if not tensors:
        kinds = {example.media_type for example in question.request.raw}
        media_type = {"media_type": kinds.pop()} if len(kinds) == 1 and kinds != {"text/plain"} else {}
        return {"raw": {"column": "input", **media_type}}
    return {name: {"column": name, "shape": list(array.shape[1:])} for name, array in tensors.items()}


LANGUAGES = {
    "python": python.program,
    "typescript": typescript_program,
    "curl": curl_program,
    "job": job_program,
}


def program_of(question: Question, language: str) -> str:
    """Returns the question as a program.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, for a language that is not in `LANGUAGES`.
    """
    with at("language"):
        program = choice(LANGUAGES, language)
    return program(question)
