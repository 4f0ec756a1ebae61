"""What tables are made of: a style, and how names, tensors and numbers are written."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from cutaway.tensors import Array, dtype_name

_ROOT = "(the model)"
MOST_ROWS = 20
"""Of a batch; the rest is counted."""
_MOST_VALUES = 4  # of a tensor that is shown by its first values


def module_text(name: str) -> str:
    """``name``, with a word for the module that is the whole model and has none."""
    return name or _ROOT


def shape_text(array: Array) -> str:
    """``float32[8, 10]``."""
    return f"{dtype_name(array)}[{', '.join(map(str, array.shape))}]"


def heading(title: str, *columns: str, numbers: int = 0, folds: Collection[str] = ()) -> Table:
    """An empty table in the style of all others.

    Args:
        title: what stands above it.
        columns: their names.
        numbers: how many columns, from the last, are set flush right.
        folds: columns that take several lines where the terminal is narrow.
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, title=title)
    table.title_justify, table.title_style = "left", "bold"
    for index, column in enumerate(columns):
        right = index >= len(columns) - numbers
        table.add_column(column, justify="right" if right else "left", no_wrap=column not in folds, overflow="fold")
    return table


def count_rest(table: Table, rows: int) -> None:
    """Say below ``table`` how many of ``rows`` it does not show."""
    if rows > MOST_ROWS:
        table.caption, table.caption_justify = f"and {rows - MOST_ROWS} more", "left"


def percent(probability: float) -> Text:
    """``93.1%``; what is likelier than not stands out."""
    return Text(f"{probability:.1%}", style="bold" if probability >= 0.5 else "")


def first_values(array: Array) -> Text:
    """The first few elements of ``array``."""
    values = [number(value) for value in printable(array.reshape(-1)[:_MOST_VALUES]).tolist()]
    more = [Text("...")] if array.size > _MOST_VALUES else []
    return Text(" ").join([*values, *more])


def statistics(array: Array) -> tuple[Text, Text, Text]:
    """The least element, the mean and the largest; a dash each where there is none."""
    if not array.size:
        return Text("-"), Text("-"), Text("-")
    values = printable(array)
    return number(values.min().item()), number(values.mean().item()), number(values.max().item())


def printable(array: Array) -> Array:
    """``array`` in a data type whose elements are Python's own numbers, and whose mean does not overflow."""
    return array if array.dtype.kind in "iu" else array.astype(np.float64)


def number(value: float) -> Text:
    """An integer whole, another number to three digits; what is no finite number stands out."""
    if isinstance(value, int):
        return Text(str(value))
    return Text(f"{value:.3g}", style="" if math.isfinite(value) else "bold red")
