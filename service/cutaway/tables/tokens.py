"""The sum of an attribution over each token of a text."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cutaway.results import AttributionResult, TokenAttribution
from cutaway.schema.tensors import Array
from cutaway.tables.cells import MAX_ROWS, empty_table, module_text, number_text

_MAX_TOKENS = 20  # of an example; the others are counted


def token_tables(attribution: AttributionResult) -> Iterator[RenderableType]:
    """Yields a table for each example: the tokens with the largest values, in the order of the text."""
    tokens = attribution.tokens
    if tokens is None:
        return
    for row in range(min(len(tokens.values), MAX_ROWS)):
        target = "" if attribution.targets is None else f", class {attribution.targets[row]}"
        title = f"Tokens of example {row}: {attribution.method} at {module_text(attribution.layer)}{target}"
        yield Group(Text(title, style="bold"), _example(tokens, row))  # a table's own title folds at its width
    if len(tokens.values) > MAX_ROWS:
        yield Text(f"and the tokens of {len(tokens.values) - MAX_ROWS} more examples", style="dim")


def _example(tokens: TokenAttribution, row: int) -> Table:
    values = tokens.values[row].astype(np.float64)
    positions = _largest(values)
    table = empty_table("", "position", "token", "value", numbers=1, folds=("token",))
    for position in positions:
        table.add_row(str(position), _token(tokens, row, position), number_text(float(values[position])))
    if len(values) > len(positions):
        table.caption = f"and {len(values) - len(positions)} smaller ones"
    return table


def _largest(values: Array) -> list[int]:
    """Returns the indices of the largest magnitudes in ascending order; NaN counts as infinite."""
    magnitudes = np.where(np.isnan(values), np.inf, np.abs(values))
    return sorted(np.argsort(-magnitudes, kind="stable")[:_MAX_TOKENS].tolist())


def _token(tokens: TokenAttribution, row: int, position: int) -> Text:
    """Returns the token's text in one line, or its id if its text is not known."""
    texts = tokens.texts[row] if row < len(tokens.texts) else ()
    text = texts[position] if position < len(texts) else ""
    if not text:
        return Text(str(tokens.ids[row][position]), style="dim")
    return Text(text if text.isprintable() else repr(text)[1:-1])
