"""Results as tables for a terminal: rich renderables, for the command line and for any script.

    from rich.console import Console

    Console().print(tables.attribution_table(result))

Names that a model's author chose go into `Text`, never into markup: ``layers[0]`` must stay what it is.
"""

from __future__ import annotations

from cutaway.tables.answers import provenance_line, timing_table, warning_lines
from cutaway.tables.attributions import VERDICT_STYLES, attribution_table, explains_several, verdict_text
from cutaway.tables.captures import CapturedTensor, capture_table, captured, gradient_table, parameter_table
from cutaway.tables.cells import heading, module_text, shape_text
from cutaway.tables.estimates import estimate_table
from cutaway.tables.predictions import has_targets, prediction_table, target_table

__all__ = [
    "VERDICT_STYLES",
    "CapturedTensor",
    "attribution_table",
    "capture_table",
    "captured",
    "estimate_table",
    "explains_several",
    "gradient_table",
    "has_targets",
    "heading",
    "module_text",
    "parameter_table",
    "prediction_table",
    "provenance_line",
    "shape_text",
    "target_table",
    "timing_table",
    "verdict_text",
    "warning_lines",
]
