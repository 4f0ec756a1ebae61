"""A question in TypeScript."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf import json_format

from cutaway.programs.question import FILE, Question
from cutaway.schema.tensors import Array, dtype_name
from cutaway.wire import requests as wire_requests

_PROGRAM = """{imports}import {{ {names} }} from "@cutaway/client";

const client = new Client({address}{token});
const result = await client.inspect({question});
console.log(result.predictions, result.attributions);
"""

_ARRAYS = {"float64": "Float64Array", "int64": "BigInt64Array", "bool": "Uint8Array"}
"""By type, where that is not in its name: half precision and the rest of the floating types are float32."""


def program(question: Question) -> str:
    """Returns the program."""
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
        inputs = json.dumps([each.data.decode() for each in request.raw])
    else:
        tensors = [f"{json.dumps(name)}: {_tensor(each)}" for name, each in request.tensors.items()]
        inputs = f"{{ {', '.join(tensors)} }}"
    written = f"{{\n  ...questionOf({text}),\n  inputs: {inputs},\n}}"
    return written.replace('"__proto__":', '["__proto__"]:')  # a name of its own, not what the object descends from


def _tensor(array: Array) -> str:
    name = dtype_name(array)
    kind = _ARRAYS.get(name) or ("Float32Array" if "float" in name else f"{name.title()}Array")
    numbers = ", ".join(_number(each, name) for each in array.ravel())
    shape = ", ".join(map(str, array.shape))
    return f"tensor({kind}.from([{numbers}]), [{shape}], DataType.{name.upper()})"


def _number(value: Any, type_name: str) -> str:
    if type_name == "int64":
        return f"{value}n"
    text = str(int(value) if type_name == "bool" else value)
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(text, text)
