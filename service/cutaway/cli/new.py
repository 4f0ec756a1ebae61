"""``cutaway new``: starts for what people write themselves."""

from __future__ import annotations

import keyword
from enum import Enum
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from cutaway.archive.names import name_fault
from cutaway.cli import console_output

_STARTS = Path(__file__).with_name("starts")

app = typer.Typer(help="Write a start for an adapter.", no_args_is_help=True, rich_markup_mode=None)


class Kind(str, Enum):
    """What a model takes."""

    TABLE = "table"
    IMAGE = "image"
    TEXT = "text"


@app.callback()
def _group() -> None:
    """Makes ``adapter`` a command of its own, although it is the only one."""


@app.command()
def adapter(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the model.", show_default=False)],
    kind: Annotated[Kind, typer.Option(help="What the model takes.")] = Kind.TABLE,
    output: Annotated[Path, typer.Option(metavar="DIR", file_okay=False, help="The directory for the file.")] = Path(
        "."
    ),
) -> None:
    """Write an adapter that runs at once, with marks where to change it."""
    if fault := name_fault(name):
        raise typer.BadParameter(fault, param_hint="NAME")
    words = [word for word in name.replace("-", "_").replace(".", "_").split("_") if word]
    module, title = "_".join(words).lower() + "_adapter", "".join(word.capitalize() for word in words)
    if not title.isidentifier() or keyword.iskeyword(title):
        raise typer.BadParameter(f"{name!r} makes no name of a class; begin with a letter", param_hint="NAME")
    file = output / f"{module}.py"
    text = Template((_STARTS / f"{kind.value}.txt").read_text("utf-8"))
    output.mkdir(parents=True, exist_ok=True)
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text.substitute(name=name, Name=title, file=file.name))
    except FileExistsError:
        raise typer.BadParameter(f"{file} exists already, and is left as it is", param_hint="NAME") from None
    console_output.print_line(f"written {file}")
    console_output.print_line(f"next: cutaway package {name} --adapter {file}:{title} --output models")
