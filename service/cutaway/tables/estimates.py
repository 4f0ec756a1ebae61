"""What a reply would be."""

from __future__ import annotations

from math import prod

from rich.table import Table
from rich.text import Text

from cutaway.results import Estimate
from cutaway.tables.cells import heading
from cutaway.tensors import DTYPES


def estimate_table(estimate: Estimate) -> Table:
    """Every tensor of the reply with its size, and below the size of the whole, and what explanations would take."""
    table = heading("The reply would be", "place", "tensor", "bytes", numbers=1, folds=("place",))
    for place, each in estimate.tensors.items():
        size = prod(each.shape) * DTYPES[each.data_type].itemsize
        shape = ", ".join(map(str, each.shape))
        table.add_row(Text(place), Text(f"{each.data_type}[{shape}]"), Text(f"{size:,}"))
    passes = f"; up to {estimate.passes:,} passes to explain, each example counted" if estimate.passes else ""
    table.caption = f"about {estimate.reply_bytes:,} bytes in all, with no compression{passes}"
    table.caption_justify = "left"
    return table
