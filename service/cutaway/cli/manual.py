"""The end of ``cutaway inspect --help``, which lists all parts of a request; and completion in shells."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields
from typing import Annotated, Any, Literal

import typer
from typer.completion import get_completion_inspect_parameters, install_callback, show_callback

from cutaway.contract.request_reader.reader import CLASSES, parts_of
from cutaway.contract.requests import (
    INPUT_FIELDS,
    Attack,
    Attribution,
    Edit,
    InspectRequest,
    LrpRule,
    Metric,
    Reduction,
    Target,
)

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

_PARTS = {name: kind for name, kind in parts_of(InspectRequest) if name not in INPUT_FIELDS}


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
