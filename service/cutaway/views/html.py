"""A result as one piece of HTML for notebooks: self-contained, and of limited size whatever the size of the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

import numpy as np

from cutaway.contract.requests import InspectRequest
from cutaway.contract.results import AttributionResult, InspectResult
from cutaway.contract.results.arrays import CLASSES, by_name, entries
from cutaway.contract.results.summary import batch_size, first, harmless, outline, summarise
from cutaway.views.example import Markup, Picture, attribution_panel, badge, element, input_panel, prediction_panels
from cutaway.views.pictures import class_labels, sent_inputs, short_number

# Text and background are those of the notebook, light or dark.
STYLE = """
.cutaway{font:13px/1.45 system-ui,sans-serif;max-width:60rem;color:inherit}
.cutaway h3{font-size:15px;margin:.2em 0}.cutaway h4{font-size:12px;margin:1em 0 .3em;opacity:.7;font-weight:600}
.cutaway .note{opacity:.7;font-size:12px;margin:.2em 0}
.cutaway .example{border-top:1px solid #8886;padding:.5em 0}
.cutaway .columns{display:flex;flex-wrap:wrap;gap:12px 26px}.cutaway .side{flex:0 0 15rem}
.cutaway .tiles{flex:1 1 22rem;display:flex;flex-wrap:wrap;gap:14px 22px;align-content:flex-start}
.cutaway .tile{max-width:100%;min-width:0;overflow-wrap:anywhere;margin-bottom:8px}
.cutaway .tile p{margin:.2em 0}
.cutaway .name{font-weight:600;font-size:12px;margin-bottom:4px}.cutaway .name .badge{margin-left:6px}
.cutaway .picture{position:relative;display:block;width:150px;background-size:100% 100%;image-rendering:pixelated}
.cutaway .picture i{position:absolute;inset:0;background-size:100% 100%;filter:grayscale(1);opacity:.75}
.cutaway .picture img{position:relative;display:block;width:100%;height:100%;margin:0;max-width:none}
.cutaway .blank{background:#fff}
.cutaway .bars{display:grid;grid-template-columns:minmax(0,max-content) 110px max-content;gap:2px 8px;font-size:12px;
  align-items:center}
.cutaway .bars span:nth-child(3n+1){max-width:13rem;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.cutaway .bars span:nth-child(3n){font-variant-numeric:tabular-nums;text-align:right}
.cutaway .track{position:relative;height:11px;background:#8882}
.cutaway .track b{position:absolute;top:0;bottom:0;background:#7b8794}
.cutaway .track b.for{background:#c8373c}.cutaway .track b.against{background:#2d6ec8}
.cutaway .track b.best{background:#1f8a5b}
.cutaway .tokens{max-width:42rem;line-height:2.5}
.cutaway .tokens span{display:inline-block;padding:1px 5px;border-radius:3px;margin:0 1px;line-height:1.25;
  text-align:center;white-space:pre}
.cutaway .tokens small{display:block;font-size:10px;opacity:.75}
.cutaway .badge{display:inline-block;color:#fff;font-size:10px;font-weight:700;border-radius:3px;padding:0 5px;
  white-space:nowrap}
.cutaway .agrees{background:#1a7f37}.cutaway .disagrees,.cutaway .failed{background:#cf222e}
.cutaway .inconclusive{background:#9a6700}.cutaway .not-applicable,.cutaway .not-checked{background:#656d76}
.cutaway ul{margin:.2em 0;padding-left:1.2em}.cutaway li{overflow-wrap:anywhere}
"""


EXAMPLES = 3
"""The number of examples shown."""

ATTRIBUTIONS = 6
"""The number of attributions shown per example."""

CHARACTERS = 300_000
"""The most characters of pictures and attributions; what has no room is left out."""

_INPUTS = 3  # of an example
_TARGETS = 3
_LINES = 12  # of other arrays, and of warnings
_DRAWN = (
    *CLASSES,
    *("output", "unedited", "targets", "target_values", "attribution", "token_ids", "token_attribution"),
)


def page(result: InspectResult, request: InspectRequest, labels: Sequence[str]) -> str:
    """Returns ``result`` as HTML.

    Args:
        result: the result.
        request: its request, whose inputs are drawn below the attributions.
        labels: of the classes; may be empty.
    """
    rows, room = batch_size(result), _Room(CHARACTERS)
    pictures: dict[str, str] = {}
    examples = [_example(result, request, labels, row, pictures, room) for row in range(min(rows, EXAMPLES))]
    grounds = "".join(f".cutaway .{style}{{background-image:url({url})}}" for style, url in pictures.items())
    return element(
        "div",
        element("style", Markup(STYLE + grounds)),
        element("h3", summarise(result).partition("\n")[0].partition(": ")[2]),
        *_verdicts(result),
        *examples,
        *_left_out(rows, len(examples), "examples"),
        *_listed("Other arrays", list(_shapes(result))),
        *_listed("Warnings", [f"{warning.code}: {warning.subject}: {warning.message}" for warning in result.warnings]),
        class_="cutaway",
    )


class _Room:
    """The characters that a page may still take.

    Args:
        characters: of the whole page.
    """

    def __init__(self, characters: int) -> None:
        self._left = characters

    def takes(self, markup: str) -> bool:
        """Returns whether ``markup`` has room, which it then takes."""
        fits = len(markup) <= self._left
        self._left -= len(markup) if fits else 0
        return fits


def _example(
    result: InspectResult,
    request: InspectRequest,
    labels: Sequence[str],
    row: int,
    pictures: dict[str, str],
    room: _Room,
) -> Markup:
    """Draws one example; adds the pictures of its inputs to ``pictures``, by their CSS class."""
    side: list[Markup] = []
    grounds: dict[str, Picture] = {}
    inputs = sent_inputs(result, request, row)
    for name, sent in list(inputs.items())[:_INPUTS]:
        panel, picture = input_panel(name, sent)
        if picture is not None and room.takes(picture.url):
            grounds[name] = picture
        if panel is not None and (picture is None or name in grounds):
            side.append(panel)
    pictures |= {picture.style: picture.url for picture in grounds.values()}
    side += prediction_panels(result, row, labels)
    panels = (
        attribution_panel(attribution, row, inputs, grounds, result.feature_names)
        for attribution in result.attributions[:ATTRIBUTIONS]
    )
    tiles = list(takewhile(room.takes, panels))
    return element(
        "div",
        element("h4", f"example {row}{_target(result, labels, row)}"),
        element("div", element("div", *side, class_="side"), element("div", *tiles, class_="tiles"), class_="columns"),
        *_left_out(len(inputs), _INPUTS, "inputs"),
        *_left_out(len(result.attributions), len(tiles), "attributions"),
        class_="example",
    )


def _target(result: InspectResult, labels: Sequence[str], row: int) -> str:
    """Returns the target of the attributions of one example, and the meaning of their colours."""
    if not result.attributions:
        return ""
    if result.targets is None or not result.classes:
        return " · attributions of the target: red is for it, blue against it"
    known, targets = class_labels(result, labels), np.atleast_1d(result.targets[row]).tolist()
    named = ", ".join(harmless(known.get(index, ""), 40) or str(index) for index in targets[:_TARGETS])
    return f" · attributions of class {named}: red is for it, blue against it"


def _verdicts(result: InspectResult) -> Iterator[Markup]:
    """Yields the outcomes of the checks in words: the verdict, its cause, and the remedy."""
    lines = [_verdict(attribution) for attribution in result.attributions[:_LINES]]
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
    for name, entry in by_name(entries(result)).items():
        if entry.kind not in _DRAWN:
            yield f"{harmless(name)}: {outline(entry.array)}"


def _listed(title: str, lines: Sequence[str]) -> Iterator[Markup]:
    if lines:
        yield element("h4", title)
        yield element("ul", *(element("li", line) for line in first(lines, _LINES, len(lines))))


def _left_out(total: int, shown: int, noun: str) -> Iterator[Markup]:
    if total > shown:
        yield element("p", f"… {total - shown:,} more {noun} are not shown", class_="note")
