"""Short forms of parts of a request, such as ``LayerGradCam:conv2,relu=true``, their list in the help, and completion.

A short form becomes the mapping that a file would hold. The text behind ``=`` is YAML.
`cutaway.contract.request_reader` reads the mapping.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, get_args

import typer
import yaml
from typer.completion import get_completion_inspect_parameters, install_callback, show_callback

from cutaway.contract.errors import CutawayError
from cutaway.contract.request_reader.files import load_arrays, parse_yaml, read_text, read_yaml
from cutaway.contract.request_reader.reader import CLASSES, data_type, read, read_request
from cutaway.contract.requests import (
    INPUT_FIELDS,
    Attack,
    Attribution,
    Capture,
    Edit,
    ExplainIf,
    Generate,
    InspectRequest,
    LrpRule,
    Metric,
    Reduction,
    Sweep,
    Target,
)
from cutaway.contract.requests.fields import place, plain
from cutaway.contract.wire.codec import type_hints

# The file of ``cutaway inspect --request``: errors name the lines of its fields.


@dataclass(frozen=True)
class RequestFile:
    """A request and the file that it is from.

    Attributes:
        request: the request, without its model and its inputs.
        name: the path of the file, or ``standard input``.
        root: the file as YAML nodes, which know their lines.
    """

    request: InspectRequest
    name: str
    root: yaml.Node | None

    @contextmanager
    def locating(self, combined: InspectRequest) -> Iterator[None]:
        """Adds file and line to an error in the block that is about a field of the file.

        Args:
            combined: the request that is sent. Its lists begin with those of the file; a field that is no list may be
                from an option, and then has no line.
        """
        try:
            yield
        except CutawayError as failure:
            if self._holds(failure.field, combined) and (line := _line(self.root, failure.field)):
                failure.message += f" ({self.name}, line {line})"
            raise

    def _holds(self, field: str, combined: InspectRequest) -> bool:
        """Returns whether ``field`` of ``combined`` is from the file."""
        name, index = re.fullmatch(r"(\w*)(?:\[(\d+)\])?.*", field, re.DOTALL).groups()  # type: ignore[union-attr]  # any text
        own = getattr(self.request, name, None)
        return int(index) < len(own or ()) if index else getattr(combined, name, None) is own


def read_request_file(path: str) -> RequestFile:
    """Reads a file with the fields of a request; ``-`` is standard input. Paths of arrays are relative to the file.

    Raises:
        typer.BadParameter: the file is wrong; the message has its name, and the line of the field at fault.
    """
    name = "standard input" if path == "-" else path
    try:
        text = read_text(Path(path))
        fields = parse_yaml(text, name)
    except CutawayError as failure:
        raise usage_error(failure) from None
    root = yaml.compose(text, yaml.SafeLoader)
    try:
        return RequestFile(read_request(load_arrays(fields, Path(path).parent)), name, root)
    except CutawayError as failure:
        line = _line(root, failure.field)
        place = f"{name}, line {line}" if line else name
        raise typer.BadParameter(f"{place}: {usage_error(failure).message}") from None


def _line(root: yaml.Node | None, field: str) -> int | None:
    """Returns the line, from 1, of ``field`` or of what it would be in: ``captures[1]`` for ``captures[1].module``."""
    node: yaml.Node | None = root
    line = None
    for part in re.findall(r"[^.\[\]]+", field):
        mark, node = _child(node, part)
        if mark is None:
            break
        line = mark.line + 1
    return line


def _child(node: yaml.Node | None, part: str) -> tuple[yaml.Mark | None, yaml.Node | None]:
    """Returns where an element of a list or the key of a mapping begins, and its node; nothing if there is none."""
    if isinstance(node, yaml.SequenceNode) and part.isdecimal() and int(part) < len(node.value):
        return node.value[int(part)].start_mark, node.value[int(part)]
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if plain(key.value) == plain(part):
                return key.start_mark, value
    return None, None


P = ParamSpec("P")
T = TypeVar("T")


def attribution(text: str) -> Attribution:
    """Reads ``METHOD[:LAYER][,KEY=VALUE...]``."""
    head, *pairs = _split(text)
    return _read(Attribution, {"method": head, **_fields(pairs)})


def capture(text: str) -> Capture:
    """Reads ``WHERE[@POINT,...][,KEY=VALUE...]``."""
    head, *pairs = _split(text)
    return _read(Capture, {**place(head), **_fields(pairs)})


def edit(text: str) -> Edit:
    """Reads ``EDIT:WHERE[@POINT][,KEY=VALUE...]``."""
    head, *pairs = _split(text)
    return _read(Edit, {"edit": head, **_fields(pairs)})


def target(texts: Sequence[str]) -> Target:
    """Reads class indices, labels or the name of a target; one for all examples, or one an example."""
    indices = all(re.fullmatch(r"-?\d+", text) for text in texts)
    return _read(Target, [int(text) for text in texts] if indices else texts[0] if len(texts) == 1 else list(texts))


def explain_if(text: str) -> ExplainIf:
    """Reads ``KEY=VALUE[,KEY=VALUE...]``."""
    return _read(ExplainIf, _fields(_split(text)))


def generate(text: str) -> Generate:
    """Reads ``TOKENS[,KEY=VALUE...]``."""
    head, *pairs = _split(text)
    return _read(
        Generate, {**({"max_new_tokens": int(head)} if head.isdecimal() else _fields([head])), **_fields(pairs)}
    )


def sweep(text: str) -> Sweep:
    """Reads ``MODULE[,KEY=VALUE...]``."""
    head, *pairs = _split(text)
    return _read(Sweep, {"module": head, **_fields(pairs)})


def attack(text: str) -> Attack:
    """Reads ``ATTACK[,KEY=VALUE...]``."""
    head, *pairs = _split(text)
    return _read(Attack, {"attack": head, **_fields(pairs)})


def floating_type(name: str) -> str:
    """Reads the name of a floating data type."""
    return _reported(data_type, name)


def pair(text: str) -> tuple[str, str]:
    """Splits ``KEY=VALUE``."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise typer.BadParameter(f"{text!r} is not KEY=VALUE")
    return key, value


def _split(text: str) -> list[str]:
    """Splits ``text`` before each ``,KEY=``; other commas belong to a value."""
    return re.split(r",(?=[\w.]+=)", text)


def _fields(pairs: Iterable[str]) -> dict[str, Any]:
    """Returns the field of each ``KEY=VALUE``; ``baselines.image=0.5`` is one element of a mapping."""
    fields: dict[str, Any] = {}
    for key, value in map(pair, pairs):
        name, dot, element = key.partition(".")
        try:
            loaded = read_yaml(value)
        except yaml.YAMLError as failure:
            raise typer.BadParameter(f"{key}: {value!r} is not YAML: {' '.join(str(failure).split())}") from None
        if dot:
            fields.setdefault(name, {})[element] = loaded
        else:
            fields[name] = loaded
    return fields


def _read(kind: type[T], value: Any) -> T:
    return _reported(lambda: read(kind, load_arrays(value, Path())))


def _reported(function: Callable[P, T], *values: P.args, **named: P.kwargs) -> T:
    """Calls ``function``; its errors are errors in the command line."""
    try:
        return function(*values, **named)
    except CutawayError as failure:
        raise usage_error(failure) from None


def usage_error(failure: CutawayError) -> typer.BadParameter:
    """Returns ``failure`` as an error in the command line, which typer prints with the option's name."""
    return typer.BadParameter(f"{failure.field}: {failure.message}" if failure.field else failure.message)


# Completion in shells knows commands, options and methods, and contacts no server.

Shell = Literal["bash", "zsh", "fish", "powershell", "pwsh"]

get_completion_inspect_parameters()  # registers the shells, as typer does for options of its own

# Typer's own options ask the parent process for the shell, and take no name of one.
Install = Annotated[
    Shell | None,
    typer.Option(
        "--install-completion",
        callback=install_callback,
        is_eager=True,
        help="Install completion for a shell, and exit.",
    ),
]
Show = Annotated[
    Shell | None,
    typer.Option(
        "--show-completion",
        callback=show_callback,
        is_eager=True,
        help="Show the completion script for a shell, and exit.",
    ),
]


def methods(incomplete: str) -> list[str]:
    """Returns the methods that begin with ``incomplete``, for ``--attribution``."""
    return _beginning([kind.__name__ for kind in CLASSES[Attribution].values()], incomplete)


def edits(incomplete: str) -> list[str]:
    """Returns the edits that begin with ``incomplete``, for ``--edit``; a colon and a module's name follow."""
    return _beginning(list(CLASSES[Edit]), incomplete)


def _beginning(names: list[str], incomplete: str) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))


EXAMPLE = """\
target: {top_k: 2}
attributions:
  - {method: integrated_gradients, n_steps: 64, baselines: {image: 0.5}}
  - {method: layer_grad_cam, layer: conv2, noise: {combination: vargrad}}
captures:
  - {module: conv1, at: [output, grad_output], reduce: {mean: [2, 3]}}
edits:
  - {edit: scale, module: fc1, slices: [{axis: 1, stop: 8}], factor: 0.5}
"""
"""A request file."""


def _parts_of(kind: Any, around: tuple[Any, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yields the fields of the dataclass ``kind`` that hold other dataclasses, and the fields of those, for the manual.

    Leaves out the base classes in `CLASSES`, and every class in ``around``: a target can hold a target, without end.
    """
    for name, hint in type_hints(kind).items():
        for part in (hint, *get_args(hint)):
            if is_dataclass(part) and part not in around:
                yield from [] if part in CLASSES else [(name, part)]
                for inner in CLASSES.get(part, {"": part}).values():
                    yield from _parts_of(inner, (*around, part))


_PARTS = {name: kind for name, kind in _parts_of(InspectRequest) if name not in INPUT_FIELDS}


def _section(heading: str, classes: Mapping[str, Any], base: Any = None) -> Iterator[str]:
    """Yields the lines of a section: the classes with their fields and defaults, without the fields of ``base``."""
    yield from (heading, "", "\b")  # Click does not fold the lines of a paragraph that starts with a backspace
    shared = _names(base) if base else []
    for name, kind in classes.items():
        line = " ".join([name, *(_usage(field) for field in fields(kind) if field.name not in shared)])
        yield textwrap.fill(line, 78, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False)
    yield ""


def _usage(field: Field[Any]) -> str:
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return f"{field.name}={'...' if default is MISSING else json.dumps(default)}"


def _names(kind: Any, *excluded: str) -> list[str]:
    return [field.name for field in fields(kind) if field.name not in excluded]


HELP = "\n".join(
    [
        f"A request file is YAML. Its fields are {', '.join(_names(InspectRequest, 'model', *INPUT_FIELDS))}:",
        "",
        "\b",
        textwrap.indent(EXAMPLE, "  "),
        "In an option, KEY=VALUE is such a field: --attribution saliency,target=3. A tensor is the name of a .npy file "
        "or lists of numbers; a baseline may also be {token_id: 0}. Fields with ... below must be given.",
        "",
        *_section("Captures and other parts:", _PARTS),
        *_section(f"Methods, each also with {', '.join(_names(Attribution))}:", CLASSES[Attribution], Attribution),
        *_section(f"Edits, each also with {', '.join(_names(Edit))}:", CLASSES[Edit], Edit),
        *_section(f"Attacks, each also with {', '.join(_names(Attack))}:", CLASSES[Attack], Attack),
        *_section("Targets, each also with output:", CLASSES[Target], Target),
        *_section("Reductions of captures:", CLASSES[Reduction]),
        *_section("Rules of LRP:", CLASSES[LrpRule]),
        *_section("Metrics:", CLASSES[Metric]),
    ]
)
