"""A question in Python."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from cutaway.programs.literals import arguments, literal
from cutaway.programs.question import FILE, Question
from cutaway.requests import Capture, ClassIndex, InspectRequest, Point, Target

_FROM_FILE = """import cutaway as ca
from cutaway.v1.inspection_pb2 import InspectRequest
from cutaway.wire import requests
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
    setup = "".join(f"input{at} = {literal(each)}\n" for at, each in enumerate(request.tensors.values()))
    lines = [literal(request.model), _inputs(request), *_keywords(request)]
    has_arrays = any("np.array(" in each for each in (setup, *lines))
    text = _WHOLE.format(
        client=client,
        setup=f"import numpy as np\n\n{setup}" if has_arrays else "",
        lines="".join(f"        {each},\n" for each in lines),
    )
    return imports + text


def _client(question: Question) -> str:
    address = urlsplit(question.address)
    tls = ["tls=True"] if address.scheme == "https" else []
    token = ['token=os.environ["CUTAWAY_TOKEN"]'] if question.has_token else []
    return ", ".join([literal(address.netloc + address.path.rstrip("/")), 'transport="connect"', *tls, *token])


def _inputs(request: InspectRequest) -> str:
    if request.raw:
        texts = [literal(each.data.decode()) for each in request.raw]
        return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    return f"{{{', '.join(f'{literal(name)}: input{at}' for at, name in enumerate(request.tensors))}}}"


def _keywords(request: InspectRequest) -> list[str]:
    """Returns the arguments of ``client.inspect``, which takes short forms of some fields."""
    short = {
        "target": _target(request.target),
        "captures": _several("captures", [each.module if _is_bare(each) else each for each in request.captures]),
        "edits": _several("edits", request.edits),
        "attributions": _several("attributions", request.attributions),
        "input_gradients": f"input_gradients={literal(request.input_gradients or True)}",
        "omit_predictions": "predictions=False",
    }
    return [short.get(each.partition("=")[0], each) for each in arguments(request.with_input({}))[1:]]


def _target(target: Target) -> str:
    if isinstance(target, ClassIndex) and len(target.indices) == 1 and target.output == "":
        return f"target={target.indices[0]}"
    return f"target={literal(target)}"


def _is_bare(capture: Capture) -> bool:
    return capture == Capture(capture.module, (Point.OUTPUT,))


def _several(name: str, values: Sequence[object]) -> str:
    """Returns an argument with several values, each in a line of its own where one line is too long."""
    texts = [literal(each) for each in values]
    line = f"{name}=[{', '.join(texts)}]"
    lines = "".join(f"            {each},\n" for each in texts)
    return line if len(line) < _LONGEST else f"{name}=[\n{lines}        ]"


_LONGEST = 110
