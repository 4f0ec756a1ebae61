"""Python programs that repeat a request."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from cutaway.contract.request_reader.writer import given
from cutaway.contract.requests import Capture, ClassIndex, InspectRequest, Point, Target, TokenId
from cutaway.contract.tensors import dtype_name
from cutaway.views.programs.question import FILE, Question

# Values of requests as Python writes them, in terms of ``cutaway`` as ``ca`` and ``numpy`` as ``np``.


def literal(value: Any) -> str:
    """Returns the expression for a value; a tuple that holds only a choice is written as the choice."""
    if isinstance(value, Enum):
        return literal(value.value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False) if value.isprintable() else repr(value)
    if isinstance(value, TokenId):
        return f"ca.TokenId({int(value)})"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, np.ndarray):
        numbers = ", ".join(_number(number) for number in value.ravel())
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


def _number(value: Any) -> str:
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


def program(question: Question) -> str:
    """Returns the program."""
    client = _client(question)
    imports = "import os\n\n" if question.has_token else ""
    if question.in_file:
        return imports + _FROM_FILE.format(file=FILE, client=client, model=literal(question.request.model))
    request = question.request
    setup = "".join(f"input{at} = {literal(array)}\n" for at, array in enumerate(request.tensors.values()))
    lines = [literal(request.model), _inputs(request), *_keywords(request)]
    has_arrays = any("np.array(" in text for text in (setup, *lines))
    text = _WHOLE.format(
        client=client,
        setup=f"import numpy as np\n\n{setup}" if has_arrays else "",
        lines="".join(f"        {line},\n" for line in lines),
    )
    return imports + text


def _client(question: Question) -> str:
    address = urlsplit(question.address)
    tls = ["tls=True"] if address.scheme == "https" else []
    token = ['token=os.environ["CUTAWAY_TOKEN"]'] if question.has_token else []
    return ", ".join([literal(address.netloc + address.path.rstrip("/")), 'transport="connect"', *tls, *token])


def _inputs(request: InspectRequest) -> str:
    if request.raw:
        texts = [literal(example.data.decode()) for example in request.raw]
        return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    return f"{{{', '.join(f'{literal(name)}: input{at}' for at, name in enumerate(request.tensors))}}}"


def _keywords(request: InspectRequest) -> list[str]:
    """Returns the arguments of ``client.inspect``, which takes short forms of some fields."""
    short = {
        "target": _target(request.target),
        "captures": _several(
            "captures", [capture.module if _is_bare(capture) else capture for capture in request.captures]
        ),
        "edits": _several("edits", request.edits),
        "attributions": _several("attributions", request.attributions),
        "input_gradients": f"input_gradients={literal(request.input_gradients or True)}",
        "omit_predictions": "predictions=False",
    }
    return [short.get(argument.partition("=")[0], argument) for argument in arguments(request.with_input({}))[1:]]


def _target(target: Target) -> str:
    if isinstance(target, ClassIndex) and len(target.indices) == 1 and target.output == "":
        return f"target={target.indices[0]}"
    return f"target={literal(target)}"


def _is_bare(capture: Capture) -> bool:
    return capture == Capture(capture.module, (Point.OUTPUT,)) and not set(":@") & set(capture.module)


def _several(name: str, values: Sequence[object]) -> str:
    """Returns an argument with several values, each in a line of its own where one line is too long."""
    texts = [literal(value) for value in values]
    line = f"{name}=[{', '.join(texts)}]"
    lines = "".join(f"            {text},\n" for text in texts)
    return line if len(line) < _LONGEST else f"{name}=[\n{lines}        ]"


_LONGEST = 110
