"""What each token of a text adds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cutaway.results import AttributionResult, TokenAttribution
from cutaway.tables.cells import MOST_ROWS, heading, module_text, number
from cutaway.tensors import Array

_MOST_TOKENS = 20  # of an example; the rest is counted


def token_tables(answer: AttributionResult) -> Iterator[RenderableType]:
    """A table for each example, of the tokens that add most, in the text's order; none where there are no tokens."""
    if answer.tokens is None:
        return
    rows = len(answer.tokens.values)
    for row in range(min(rows, MOST_ROWS)):
        about = "" if answer.targets is None else f", class {answer.targets[row]}"
        title = f"Tokens of example {row}: {answer.method} at {module_text(answer.layer)}{about}"
        yield Group(Text(title, style="bold"), _example(answer.tokens, row))  # a table's own title folds at its width
    if rows > MOST_ROWS:
        yield Text(f"and the tokens of {rows - MOST_ROWS} more examples", style="dim")


def _example(tokens: TokenAttribution, row: int) -> Table:
    values = tokens.values[row].astype(np.float64)
    shown = _largest(values)
    table = heading("", "position", "token", "value", numbers=1, folds=("token",))
    for position in shown:
        table.add_row(str(position), _token(tokens, row, position), number(float(values[position])))
    if len(values) > len(shown):
        table.caption, table.caption_justify = f"and {len(values) - len(shown)} smaller ones", "left"
    return table


def _largest(values: Array) -> list[int]:
    """Where the largest magnitudes are, in order; what is no number counts as the largest."""
    magnitudes = np.where(np.isnan(values), np.inf, np.abs(values))
    return sorted(np.argsort(-magnitudes, kind="stable")[:_MOST_TOKENS].tolist())


def _token(tokens: TokenAttribution, row: int, position: int) -> Text:
    """The token's text, on one line; its id where there is none."""
    texts = tokens.texts[row] if row < len(tokens.texts) else ()
    text = texts[position] if position < len(texts) else ""
    if not text:
        return Text(str(tokens.ids[row][position]), style="dim")
    return Text(text if text.isprintable() else repr(text)[1:-1])
