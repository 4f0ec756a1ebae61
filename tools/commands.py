"""The commands of ``cutaway`` with their arguments and options, for docs/command-line.md."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer.main

from cutaway.cli import application


def commands() -> dict[str, Any]:
    """Returns each command by its words, ``batch run`` for example; the program itself is ``""``.

    They are Click's objects, of which typer has its own copy; `Any`, because typer does not export their classes.
    """
    program = typer.main.get_command(application.app)
    return dict(_below("", program))


def _below(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _below(f"{words} {name}".lstrip(), inner)


def sections() -> Iterator[str]:
    """Yields the lines of the page: a section for each command, with tables of its arguments and options."""
    for words, command in commands().items():
        yield from (f"### `{f'cutaway {words}'.rstrip()}`", "", inspect.cleandoc(command.help or ""), "")
        context = command.context_class(command, info_name=f"cutaway {words}".rstrip())
        yield from ("```", " ".join([context.info_name, *command.collect_usage_pieces(context)]), "```", "")
        for kind in ("argument", "option"):
            yield from _table(kind, [each for each in command.params if each.param_type_name == kind], context)
        if command.epilog:
            yield from _epilog(command.epilog)


def _table(kind: str, parameters: list[Any], context: Any) -> Iterator[str]:
    records = [record for each in parameters if (record := each.get_help_record(context))]
    if records:
        yield from (f"| {kind} | meaning |", "|---|---|")
        for name, meaning in records:
            yield f"| `{_cell(name)}` | {_cell(meaning).replace('*', chr(92) + '*')} |"
        yield ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _epilog(text: str) -> Iterator[str]:
    """Yields the paragraphs; those that Click does not fold, which begin with a backspace, as code."""
    for paragraph in text.strip().split("\n\n"):
        kept, mark, code = paragraph.rpartition("\b\n")
        yield from ("```", code, "```", "") if mark else (kept + code, "")
