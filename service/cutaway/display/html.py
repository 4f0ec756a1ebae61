"""A result as one piece of HTML for notebooks: self-contained, and of limited size whatever the size of the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256

import numpy as np

from cutaway.display.class_labels import class_labels
from cutaway.display.example import Picture, attribution_panel, input_panel, prediction_panels
from cutaway.display.markup import Markup, element
from cutaway.display.panels import badge
from cutaway.display.pictures import short_number
from cutaway.display.sent_inputs import sent_inputs
from cutaway.display.style import STYLE
from cutaway.requests import InspectRequest
from cutaway.results import AttributionResult, InspectResult
from cutaway.results.captured import captured_tensors
from cutaway.results.summary import batch_size, summarise
from cutaway.results.text import first, harmless, outline

EXAMPLES = 3
"""The number of examples shown."""

ATTRIBUTIONS = 6
"""The number of attributions shown for each example."""

_TARGETS = 3
_LINES = 12  # of captures, gradients and warnings


def page(result: InspectResult, request: InspectRequest, labels: Sequence[str]) -> str:
    """Returns ``result`` as HTML.

    Args:
        result: the result.
        request: its request, whose inputs are drawn below the attributions.
        labels: of the classes; may be empty.
    """
    rows = batch_size(result)
    heading = summarise(result).partition("\n")[0].partition(": ")[2]
    # Classes of pictures are global in a notebook: another result must not use the same.
    prefix = f"c{sha256(summarise(result).encode() + str(id(result)).encode()).hexdigest()[:8]}"
    pictures: list[Picture] = []
    examples = [_example(result, request, labels, row, prefix, pictures) for row in range(min(rows, EXAMPLES))]
    grounds = "".join(f".cutaway .{picture.style}{{background-image:url({picture.url})}}" for picture in pictures)
    return element(
        "div",
        element("style", Markup(STYLE + grounds)),
        element("h3", heading),
        *_verdicts(result),
        *examples,
        *_left_out(rows, EXAMPLES, "examples"),
        *_listed("Captures and gradients", list(_shapes(result))),
        *_listed("Warnings", [f"{each.code}: {each.subject}: {each.message}" for each in result.warnings]),
        class_="cutaway",
    )


def _example(
    result: InspectResult,
    request: InspectRequest,
    labels: Sequence[str],
    row: int,
    prefix: str,
    pictures: list[Picture],
) -> Markup:
    """Draws one example; adds the pictures of its inputs to ``pictures``."""
    side: list[Markup] = []
    grounds: dict[str, Picture] = {}
    inputs = sent_inputs(result, request, row)
    for name, sent in list(inputs.items())[:ATTRIBUTIONS]:
        panel, picture = input_panel(name, sent, f"{prefix}-{row}-{len(grounds)}")
        side += [panel] if panel is not None else []
        if picture is not None:
            grounds[name] = picture
    pictures += grounds.values()
    side += prediction_panels(result, row, labels)
    shown = result.attributions[:ATTRIBUTIONS]
    tiles = [attribution_panel(each, row, inputs, grounds, result.feature_names) for each in shown]
    return element(
        "div",
        element("h4", f"example {row}{_target(result, labels, row)}"),
        element("div", element("div", *side, class_="side"), element("div", *tiles, class_="tiles"), class_="columns"),
        *_left_out(len(result.attributions), ATTRIBUTIONS, "attributions"),
        class_="example",
    )


def _target(result: InspectResult, labels: Sequence[str], row: int) -> str:
    """Returns what the attributions of one example explain, and what their colours mean."""
    if not result.attributions:
        return ""
    if result.targets is None or not result.classes:
        return " · attributions of the target: red is for it, blue against it"
    known, targets = class_labels(result, labels), np.atleast_1d(result.targets[row]).tolist()
    named = ", ".join(harmless(known.get(index, ""), 40) or str(index) for index in targets[:_TARGETS])
    return f" · attributions of class {named}: red is for it, blue against it"


def _verdicts(result: InspectResult) -> Iterator[Markup]:
    """Yields what the checks found, in words: the verdict, its cause, and what to do about it."""
    lines = [_verdict(each) for each in result.attributions[:_LINES]]
    if lines:
        yield element("ul", *lines)
        yield from _left_out(len(result.attributions), _LINES, "attributions")


def _verdict(attribution: AttributionResult) -> Markup:
    name = attribution.method + (f" at {harmless(attribution.layer, 80)}" if attribution.layer else "")
    failure, check = attribution.error, attribution.worst_check
    if failure is not None:
        return element("li", badge("FAILED"), f" {name}: {failure.reason}: {failure.message}")
    if check is None:
        return element("li", badge("NOT CHECKED"), f" {name}")
    cause = f" ({check.cause})" if check.cause is not None else ""
    words = check.reason or f"equals {harmless(check.compared, 200)}"
    error = f": largest error {short_number(check.max_relative_error)}, tolerance {short_number(check.tolerance)}"
    return element("li", badge(check.verdict.value), f" {name}{cause}: {words}{error}")


def _shapes(result: InspectResult) -> Iterator[str]:
    for tensor in captured_tensors(result):
        call = f" call {tensor.call}" if tensor.calls > 1 else ""
        yield f"{harmless(tensor.module)}{call} {tensor.point.value}{harmless(tensor.path)}: {outline(tensor.array)}"
    for title, arrays in (("gradient of", result.input_gradients), ("gradient of", result.parameter_gradients)):
        yield from (f"{title} {harmless(name)}: {outline(array)}" for name, array in arrays.items())


def _listed(title: str, lines: Sequence[str]) -> Iterator[Markup]:
    if lines:
        yield element("h4", title)
        yield element("ul", *(element("li", line) for line in first(lines, _LINES, len(lines))))


def _left_out(total: int, shown: int, noun: str) -> Iterator[Markup]:
    if total > shown:
        yield element("p", f"… {total - shown:,} more {noun} are not shown", class_="note")
