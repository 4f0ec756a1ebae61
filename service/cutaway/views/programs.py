"""Programs that repeat a request: in Python, in TypeScript, by curl, or as a job for every row of a data set."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import numpy as np
import yaml
from google.protobuf import json_format

from cutaway.contract.errors import Reason, at, error
from cutaway.contract.request_reader.reader import CLASSES, choice
from cutaway.contract.requests import (
    JOB_FIELDS,
    OF_ONE_REPLY,
    Attack,
    Attribution,
    Capture,
    ClassIndex,
    ConceptExamples,
    Edit,
    InspectRequest,
    NeuronAttribution,
    Point,
    Raw,
    Target,
    TokenId,
)
from cutaway.contract.tensors import Array, dtype_name
from cutaway.contract.wire import requests as wire_requests
from cutaway.contract.wire.message_walk import parse, stated_bytes, tensors_in
from cutaway.v1 import inspection_pb2

FILE = "question.json"
"""The file, in the contract's JSON, from which a program reads a question that it does not hold itself."""

_MOST_INPUT_BYTES = 1 << 16
"""Inputs with more are read from `FILE`: the longest text that a program, or a command of the shell, holds well."""

_MOST_BYTES = 1 << 20
"""The most bytes of the tensors beside the inputs."""


class Question(NamedTuple):
    """A request that a program repeats.

    Attributes:
        request: the question; large inputs have no rows.
        message: the same in the contract's form.
        in_file: whether programs read it from `FILE`: it was given without its inputs, or these are large, have names
            of features, or are no plain texts.
        address: the server, ``http://127.0.0.1:8080/``.
        has_token: whether it was asked with a token.
    """

    request: InspectRequest
    message: inspection_pb2.InspectRequest
    in_file: bool
    address: str
    has_token: bool


def question_of(data: bytes, address: str, *, has_token: bool) -> Question:
    """Returns the question in a serialised `cutaway.v1.InspectRequest`, which may lack its inputs.

    Raises:
        InvalidArgument: it is no request, or ``address`` is no URL of HTTP.
        ResourceExhausted: ``REQUEST_TOO_LARGE``, for the tensors beside the inputs.
    """
    if not _is_address(address):
        raise error(Reason.INVALID_VALUE, f"is {address!r:.80}, not the URL of a server by HTTP", "address")
    message = parse(inspection_pb2.InspectRequest, data)
    in_file = message.WhichOneof("input") is None
    if in_file:
        message.tensors.SetInParent()
    if _input_bytes(message) > _MOST_INPUT_BYTES:
        in_file = True
        _drop_rows(message)
    size = sum(map(stated_bytes, tensors_in(message)))
    if size > _MOST_BYTES:
        problem = f"the tensors beside the inputs have {size} bytes; a program holds at most {_MOST_BYTES}"
        raise error(Reason.REQUEST_TOO_LARGE, problem)
    request = wire_requests.decode(message.SerializeToString())
    in_file = in_file or bool(request.feature_names) or not all(map(_is_text, request.raw))
    return Question(request, message, in_file, address, has_token)


def _is_address(address: str) -> bool:
    """Returns whether it is a URL of HTTP with a host, and nothing but a port and a path behind it."""
    try:
        parts = urlsplit(address)
        plain = f"{parts.scheme}://{parts.netloc}{parts.path}" == address and parts.port != 0
    except ValueError:
        return False
    known = parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc
    return bool(known) and plain and address.isprintable() and " " not in address


def _input_bytes(message: inspection_pb2.InspectRequest) -> int:
    return sum(map(stated_bytes, tensors_in(message.tensors))) + sum(
        len(example.data) for example in message.raw.examples
    )


def _drop_rows(message: inspection_pb2.InspectRequest) -> None:
    """Leaves of each input its name, its type and the shape of a row; of raw bytes, their media type."""
    for tensor in tensors_in(message.tensors):
        tensor.ClearField("data")
        tensor.ClearField("compression")
        if tensor.shape:
            tensor.shape[0] = 0
    for example in message.raw.examples:
        example.data = b""


def _is_text(example: Raw) -> bool:
    """Returns whether an example is plain UTF-8 text, so that a program may send the text in place of a `Raw`."""
    try:
        example.data.decode()
    except UnicodeDecodeError:
        return False
    return example.media_type == "text/plain"


# Python: values in terms of ``cutaway`` as ``ca`` and ``numpy`` as ``np``.


def literal(value: Any) -> str:
    """Returns the expression for a value; a tuple that holds only a choice is written as the choice."""
    if isinstance(value, Enum):
        return literal(value.value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False) if value.isprintable() else repr(value)
    if isinstance(value, TokenId):
        return f"ca.{value!r}"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, np.ndarray):
        numbers = ", ".join(_python_number(number) for number in value.ravel())
        return f'np.array([{numbers}], "{dtype_name(value)}").reshape({literal(value.shape)})'
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{literal(name)}: {literal(element)}' for name, element in value.items())}}}"
    if isinstance(value, tuple):
        if len(value) == 1:
            return literal(value[0]) if isinstance(value[0], Enum) else f"({literal(value[0])},)"
        return f"({', '.join(map(literal, value))})"
    if is_dataclass(value):
        return f"ca.{type(value).__name__}({', '.join(arguments(value))})"
    return repr(value)


def arguments(value: Any) -> list[str]:
    """Returns the arguments by which a dataclass is made: those that are not the default."""
    return [f"{name}={literal(own)}" for name, own in given(value).items()]


def _python_number(value: Any) -> str:
    text = "-0.0" if str(value) == "-0" else str(value)  # as bfloat16 writes it, which Python reads as a whole number
    return text if "n" not in text else f'float("{text}")'


_FROM_FILE = """import cutaway as ca
from cutaway.v1.inspection_pb2 import InspectRequest
from cutaway.contract.wire import requests
from google.protobuf import json_format

with open("{file}", encoding="utf-8") as file:  # in the contract's JSON
    question = json_format.Parse(file.read(), InspectRequest(model={model}))
request = requests.decode(question.SerializeToString())
with ca.Client({client}) as client:
    result = client.ask(request)
print(result)
"""

_WHOLE = """import cutaway as ca
{setup}
with ca.Client({client}) as client:
    result = client.inspect(
{lines}    )
print(result)
"""


def python_program(question: Question) -> str:
    """Returns a Python program that asks ``question``."""
    client = _python_client(question)
    imports = "import os\n\n" if question.has_token else ""
    if question.in_file:
        return imports + _FROM_FILE.format(file=FILE, client=client, model=literal(question.request.model))
    request = question.request
    setup = "".join(f"input{at} = {literal(array)}\n" for at, array in enumerate(request.tensors.values()))
    lines = [literal(request.model), _python_inputs(request), *_python_keywords(request)]
    has_arrays = any("np.array(" in text for text in (setup, *lines))
    text = _WHOLE.format(
        client=client,
        setup=f"import numpy as np\n\n{setup}" if has_arrays else "",
        lines="".join(f"        {line},\n" for line in lines),
    )
    return imports + text


def _python_client(question: Question) -> str:
    address = urlsplit(question.address)
    tls = ["tls=True"] if address.scheme == "https" else []
    token = ['token=os.environ["CUTAWAY_TOKEN"]'] if question.has_token else []
    return ", ".join([literal(address.netloc + address.path.rstrip("/")), 'transport="connect"', *tls, *token])


def _python_inputs(request: InspectRequest) -> str:
    if request.raw:
        texts = [literal(example.data.decode()) for example in request.raw]
        return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    return f"{{{', '.join(f'{literal(name)}: input{at}' for at, name in enumerate(request.tensors))}}}"


def _python_keywords(request: InspectRequest) -> list[str]:
    """Returns the arguments of ``client.inspect``, which takes short forms of some fields."""
    short = {
        "target": _python_target(request.target),
        "captures": _python_list(
            "captures", [capture.module if _is_bare(capture) else capture for capture in request.captures]
        ),
        "edits": _python_list("edits", request.edits),
        "attributions": _python_list("attributions", request.attributions),
        "input_gradients": f"input_gradients={literal(request.input_gradients or True)}",
        "omit_predictions": "predictions=False",
    }
    return [
        short.get(argument.partition("=")[0], argument)
        for argument in arguments(request.with_input({}, feature_names={}))[1:]
    ]


def _python_target(target: Target) -> str:
    if isinstance(target, ClassIndex) and len(target.indices) == 1 and target.output == "":
        return f"target={target.indices[0]}"
    return f"target={literal(target)}"


def _is_bare(capture: Capture) -> bool:
    return capture == Capture(capture.module, (Point.OUTPUT,)) and not set(":@") & set(capture.module)


def _python_list(name: str, values: Sequence[object]) -> str:
    """Returns an argument with several values, each in a line of its own where one line is too long."""
    texts = [literal(value) for value in values]
    line = f"{name}=[{', '.join(texts)}]"
    lines = "".join(f"            {text},\n" for text in texts)
    return line if len(line) < _LONGEST_LINE else f"{name}=[\n{lines}        ]"


_LONGEST_LINE = 110


# TypeScript.

_TYPESCRIPT = """{imports}import {{ {names} }} from "@cutaway/client";

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
    return _TYPESCRIPT.format(
        imports='import { readFile } from "node:fs/promises";\n' if question.in_file else "",
        names=", ".join(names),
        address=json.dumps(question.address),
        token=', { token: process.env.CUTAWAY_TOKEN ?? "" }' if question.has_token else "",
        question=from_file if question.in_file else _typescript_question(question),
    )


def _typescript_question(question: Question) -> str:
    request = question.request
    parts = json_format.MessageToDict(wire_requests.encode(request.with_input()))
    del parts["tensors"]
    text = json.dumps(parts, indent=2).replace("\n", "\n  ")
    if request.raw:
        inputs = json.dumps([example.data.decode() for example in request.raw])
    else:
        tensors = [f"{json.dumps(name)}: {_typescript_tensor(array)}" for name, array in request.tensors.items()]
        inputs = f"{{ {', '.join(tensors)} }}"
    written = f"{{\n  ...questionOf({text}),\n  inputs: {inputs},\n}}"
    return written.replace('"__proto__":', '["__proto__"]:')  # a name of its own, not what the object descends from


def _typescript_tensor(array: Array) -> str:
    name = dtype_name(array)
    kind = _ARRAYS.get(name) or ("Float32Array" if "float" in name else f"{name.title()}Array")
    numbers = ", ".join(_typescript_number(number, name) for number in array.ravel())
    shape = ", ".join(map(str, array.shape))
    return f"tensor({kind}.from([{numbers}]), [{shape}], DataType.{name.upper()})"


def _typescript_number(value: Any, type_name: str) -> str:
    if type_name == "int64":
        return f"{value}n"
    text = str(int(value) if type_name == "bool" else value)
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(text, text)


# The shell.

_LONGEST_ARGUMENT = 100_000
"""A longer argument is refused by Linux, which allows 128 KiB."""


def curl_program(question: Question) -> str:
    """Returns the command."""
    url = f"{question.address.rstrip('/')}/v1/models/{quote(question.request.model)}:inspect"
    token = ' \\\n  -H "Authorization: Bearer $CUTAWAY_TOKEN"' if question.has_token else ""
    text = shlex.quote(json_format.MessageToJson(question.message, indent=None))
    data = f"@{FILE}" if question.in_file or len(text) > _LONGEST_ARGUMENT else text
    return f"curl -s {shlex.quote(url)} -H 'Content-Type: application/json'{token} \\\n  --data {data}\n"


# A job for every row of a data set.

_JOB_HEAD = "# Name the model's archive and the data set; what else a job can hold: docs/batch.md.\n"

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
    for part in (*section.get("captures", ()), *section.get("edits", ())):
        part.pop("steps", None)  # those of a generation, which is left out
    left = ", ".join(name for name in OF_ONE_REPLY if name in words)
    name, _, _ = request.model.partition("/versions/")
    job = {
        "model": {"archive": f"{name}.mar"},
        "data": {"path": "data.parquet"},
        "inputs": _job_inputs(question),
        **({"target": words["target"]} if "target" in words else {}),
        "request": section,
        "output": {"folder": "explained", "keep_inputs": True},
    }
    head = _JOB_HEAD + (left and f"# Left out, because a job has none of it: {left}.\n")
    return head + _job_yaml(job)


def _job_yaml(job: dict[str, Any]) -> str:
    """Returns the YAML. If a character is not printable, all characters beyond ASCII are escaped."""

    def written(*, allow_unicode: bool) -> str:
        text = yaml.safe_dump(job, sort_keys=False, default_flow_style=None, width=120, allow_unicode=allow_unicode)
        return str(text)

    text = written(allow_unicode=True)
    return text if all(map(str.isprintable, text.split("\n"))) else written(allow_unicode=False)


def _job_inputs(question: Question) -> dict[str, Any]:
    tensors = question.request.tensors
    if not tensors:
        kinds = {example.media_type for example in question.request.raw}
        media_type = {"media_type": kinds.pop()} if len(kinds) == 1 and kinds != {"text/plain"} else {}
        return {"raw": {"column": "input", **media_type}}
    return {name: {"column": name, "shape": list(array.shape[1:])} for name, array in tensors.items()}


LANGUAGES = {
    "python": python_program,
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


# Requests as plain mappings, which `cutaway.contract.request_reader.reader` reads.

_TAGS = {Attack: "attack", Attribution: "method", Edit: "edit"}
"""The field that names the class, by base class; other classes have their name around their fields."""


def given(value: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass that differ from their defaults, to the sign of a zero, by name."""
    owned = ((attribute, getattr(value, attribute.name)) for attribute in fields(value))
    return {attribute.name: own for attribute, own in owned if not _is_same(own, _default(attribute))}


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _is_same(own: Any, default: Any) -> bool:
    """Returns whether ``own`` equals its field's default. Compares the ``repr``, which tells 0.0 from -0.0."""
    if isinstance(own, tuple) and len(own) == 1 and isinstance(own[0], Enum):
        return bool(own[0] == default)  # a choice stands for a tuple of it
    return repr(own) == repr(default)


def as_mapping(value: Any, array: Callable[[Array], Any] = np.ndarray.tolist) -> Any:
    """Returns a request, or a part of one, in mappings, lists, texts and numbers, without what has its default.

    Args:
        value: the request, or the part.
        array: returns what stands for an array.
    """
    if isinstance(value, TokenId):
        return {"token_id": int(value), **({"keep_special": True} if value.keep_special else {})}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, np.ndarray):
        return array(value)
    if isinstance(value, Mapping):
        return {name: as_mapping(element, array) for name, element in value.items()}
    if isinstance(value, (tuple, list)):
        return [as_mapping(element, array) for element in value]
    if not is_dataclass(value):
        return value
    if isinstance(value, ConceptExamples) and not (value.raw or value.data_set):
        return as_mapping(value.tensors, array)
    words = {name: as_mapping(own, array) for name, own in given(value).items()}
    if isinstance(value, NeuronAttribution):
        words["neuron"] = words["neuron"]["neuron"]  # which is always a neuron, and needs no name
    for base, kinds in CLASSES.items():
        for name, kind in kinds.items():
            if type(value) is kind:
                return {_TAGS[base]: name, **words} if base in _TAGS else {name: words}
    return words
