"""The style of all tables, and the form of names, tensors and numbers in their cells."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from cutaway.contract.tensors import Array, dtype_name

MAX_ROWS = 20
"""The most examples in a table; the others are counted."""
_MAX_VALUES = 4  # how many elements of a tensor `first_values` shows


def module_text(name: str) -> str:
    """Returns ``name``; for the module that is the whole model, and has an empty name, ``(the model)``."""
    return name or "(the model)"


def shape_text(array: Array) -> str:
    """Returns data type and shape, such as ``float32[8, 10]``."""
    return f"{dtype_name(array)}[{', '.join(map(str, array.shape))}]"


def empty_table(title: str, *columns: str, numbers: int = 0, folds: Collection[str] = ()) -> Table:
    """Returns a table without rows, in the style of all tables.

    Args:
        title: the line above the table.
        columns: the names of the columns.
        numbers: how many columns, counted from the last, are aligned right.
        folds: columns whose cells take several lines where the terminal is narrow.
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, title=title)
    table.title_justify, table.title_style, table.caption_justify = "left", "bold", "left"
    for index, column in enumerate(columns):
        right = index >= len(columns) - numbers
        table.add_column(column, justify="right" if right else "left", no_wrap=column not in folds, overflow="fold")
    return table


def count_hidden_rows(table: Table, rows: int) -> None:
    """Writes below ``table`` how many of ``rows`` it does not show."""
    if rows > MAX_ROWS:
        table.caption = f"and {rows - MAX_ROWS} more"


def percent_text(probability: float) -> Text:
    """Returns ``93.1%``, bold from 50% up."""
    return Text(f"{probability:.1%}", style="bold" if probability >= 0.5 else "")


def first_values(array: Array) -> Text:
    """Returns the first few elements of ``array``."""
    values = [number_text(value) for value in printable(array.reshape(-1)[:_MAX_VALUES]).tolist()]
    more = [Text("...")] if array.size > _MAX_VALUES else []
    return Text(" ").join([*values, *more])


def statistics(array: Array) -> tuple[Text, Text, Text]:
    """Returns the minimum, mean and maximum of ``array``; dashes for an array without elements."""
    if not array.size:
        return Text("-"), Text("-"), Text("-")
    values = printable(array)
    return number_text(values.min().item()), number_text(values.mean().item()), number_text(values.max().item())


def printable(array: Array) -> Array:
    """Returns integers as they are and all other numbers as float64: Python can print them, and means are finite."""
    return array if array.dtype.kind in "iu" else array.astype(np.float64)


def number_text(value: float) -> Text:
    """Returns an integer with all digits, another number with three; NaN and infinity in red."""
    if isinstance(value, int):
        return Text(str(value))
    return Text(f"{value:.3g}", style="" if math.isfinite(value) else "bold red")
