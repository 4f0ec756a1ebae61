"""A result as one piece of HTML for notebooks: self-contained, and of limited size whatever the size of the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile

import numpy as np

from cutaway.contract.errors import CutawayError, Reason
from cutaway.contract.requests import InspectRequest
from cutaway.contract.results import AttributionResult, InspectResult
from cutaway.contract.results.arrays import CLASSES, by_name, entries, examples_first
from cutaway.contract.results.explanations import outcome_of_row
from cutaway.contract.results.summary import (
    Titled,
    batch_size,
    class_labels,
    class_name,
    evidence_lines,
    first,
    harmless,
    outcome,
    outcomes,
    outline,
    predicted_class,
    summarise,
    worst_first,
)
from cutaway.contract.tensors import Array
from cutaway.views.pictures import (
    AGAINST,
    COARSE,
    FOR,
    MAGNITUDE,
    SIGNLESS,
    STEPS,
    Markup,
    Picture,
    SentInput,
    as_image,
    by_feature,
    coarse,
    colour,
    distinct,
    element,
    element_weights,
    heat,
    layout_of,
    line,
    photograph,
    picture_size,
    sent_inputs,
    short_number,
    strongest,
    thinned,
    without_ones,
)

# Text and background are those of the notebook, light or dark.
STYLE = """
.cutaway{font:13px/1.45 system-ui,sans-serif;max-width:60rem;color:inherit}
.cutaway h3{font-size:15px;margin:.2em 0}.cutaway h4{font-size:12px;margin:1em 0 .3em;opacity:.7;font-weight:600}
.cutaway .note{opacity:.7;font-size:12px;margin:.2em 0}
.cutaway .example{border-top:1px solid #8886;padding:.5em 0}
.cutaway .columns{display:flex;flex-wrap:wrap;gap:12px 26px}.cutaway .side{flex:0 0 18rem}
.cutaway .tiles{flex:1 1 22rem;display:flex;flex-wrap:wrap;gap:14px 22px;align-content:flex-start}
.cutaway .tile{max-width:100%;min-width:0;overflow-wrap:anywhere;margin-bottom:8px}
.cutaway .tile p{margin:.2em 0}
.cutaway .name{font-weight:600;font-size:12px;margin-bottom:4px}.cutaway .name .badge{margin-left:6px}
.cutaway .picture{position:relative;display:block;width:150px;background-size:100% 100%;image-rendering:pixelated}
.cutaway .picture i{position:absolute;inset:0;background-size:100% 100%;filter:grayscale(1);opacity:.75}
.cutaway .picture img{position:relative;display:block;width:100%;height:100%;margin:0;max-width:none}
.cutaway .blank{background:#fff;outline:1px solid #8884}.cutaway .smooth{image-rendering:auto}
.cutaway .bars{display:grid;grid-template-columns:minmax(0,max-content) 110px max-content;gap:2px 8px;font-size:12px;
  align-items:center}
.cutaway .bars span:nth-child(3n+1){max-width:13rem;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.cutaway .bars span:nth-child(3n){font-variant-numeric:tabular-nums;text-align:right}
.cutaway .track{position:relative;height:11px;background:#8882}
.cutaway .track b{position:absolute;top:0;bottom:0;background:#7b8794}
.cutaway .track b.best{background:#1f8a5b}
.cutaway .tokens{max-width:42rem;line-height:2.5}
.cutaway .tokens span{display:inline-block;padding:1px 5px;border-radius:3px;margin:0 1px;line-height:1.25;
  text-align:center;white-space:pre}
.cutaway .tokens small{display:block;font-size:10px;opacity:.75}
.cutaway .badge{display:inline-block;color:#fff;font-size:10px;font-weight:700;border-radius:3px;padding:0 5px;
  white-space:nowrap}
.cutaway .agrees{background:#1a7f37}.cutaway .disagrees,.cutaway .failed{background:#cf222e}
.cutaway .inconclusive{background:#9a6700}.cutaway .not-applicable,.cutaway .not-checked{background:#656d76}
.cutaway .series{display:grid;grid-template-columns:minmax(0,max-content) 15rem max-content;gap:0 8px;font-size:12px;
  align-items:center}
.cutaway .series .of{grid-column:1}.cutaway .series svg{width:100%;height:26px;overflow:visible}
.cutaway .series polyline{fill:none;stroke:currentColor;vector-effect:non-scaling-stroke}
.cutaway .series img,.cutaway .series p{grid-column:2}
.cutaway .series img{width:100%;height:7px;margin:0 0 6px;max-width:none;background:#fff;
  image-rendering:pixelated}
.cutaway ul{margin:.2em 0;padding-left:1.2em}.cutaway li{overflow-wrap:anywhere}
""" + "".join(
    f".cutaway .track b.{name}{{background:rgb{rgb}}}"
    for name, rgb in (("for", FOR), ("against", AGAINST), ("size", MAGNITUDE))
)


EXAMPLES = 3
"""The number of examples shown."""

ATTRIBUTIONS = 6
"""The number of attributions shown per example."""

CHARACTERS = 300_000
"""The most characters of pictures and attributions; what has no room is left out."""

_INPUTS, _TARGETS = 3, 3  # of an example
_LINES = 12  # of other arrays, and of warnings
_DRAWN = (
    *CLASSES,
    *("output", "unedited", "targets", "target_values", "attribution"),
    *("token_ids", "token_attribution", "baseline_token_ids"),
)


def page(result: InspectResult, request: InspectRequest) -> str:
    """Returns ``result`` as HTML.

    Args:
        result: the result.
        request: its request, whose inputs are drawn below the attributions.
    """
    rows, room = batch_size(result), _Room(CHARACTERS)
    pictures: dict[str, str] = {}
    shown = examples_first(result)
    examples = [_example(shown, request, row, pictures, room) for row in range(min(rows, EXAMPLES))]
    grounds = "".join(f".cutaway .{style}{{background-image:url({url})}}" for style, url in pictures.items())
    return element(
        "div",
        element("style", Markup(STYLE + grounds)),
        element("h3", summarise(result).partition("\n")[0].partition(": ")[2]),
        *_verdicts(result),
        *examples,
        *_left_out(rows, len(examples), "examples"),
        *_listed("Attacks and concepts", list(evidence_lines(result))),
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
        """Returns whether ``markup`` fits into the characters left; if it does, subtracts its length from them."""
        fits = len(markup) <= self._left
        self._left -= len(markup) if fits else 0
        return fits


def _example(
    result: InspectResult,
    request: InspectRequest,
    row: int,
    pictures: dict[str, str],
    room: _Room,
) -> Markup:
    """Draws one example; adds the pictures of its inputs to ``pictures``, by their CSS class."""
    side: list[Markup] = []
    grounds: dict[str, Picture] = {}
    inputs = sent_inputs(result, request, row)
    for name, sent in list(inputs.items())[:_INPUTS]:
        panel, picture = _input_panel(name, sent, result.feature_names.get(name, ()))
        if picture is not None and room.takes(picture.url):
            grounds[name] = picture
        if panel is not None and (picture is None or name in grounds):
            side.append(panel)
    pictures |= {picture.style: picture.url for picture in grounds.values()}
    side += _prediction_panels(result, row)
    attributed = worst_first(result, ATTRIBUTIONS)
    at_inputs = (each.values for each in result.attributions if not each.at_layer)
    weights = element_weights([{name: _row(own, row) for name, own in values.items()} for values in at_inputs])
    panels = (
        _attribution_panel(title, attribution, row, inputs, grounds, result.feature_names, weights)
        for title, attribution in attributed[:ATTRIBUTIONS]
    )
    tiles = list(takewhile(room.takes, panels))
    return element(
        "div",
        element("h4", f"example {row}{_target(result, row)}"),
        element("div", element("div", *side, class_="side"), element("div", *tiles, class_="tiles"), class_="columns"),
        *_left_out(len(inputs), _INPUTS, "inputs"),
        *_left_out(len(attributed), len(tiles), "attributions", attributed[len(tiles) :]),
        *_listed("Agreement and evidence", list(evidence_lines(result, row))),
        class_="example",
    )


def _target(result: InspectResult, row: int) -> str:
    """Returns the target of the attributions of one example, and the meaning of their colours."""
    if not result.attributions:
        return ""
    if result.targets is None or not result.classes:
        return " · attributions of the target: red is for it, blue against it"
    targets = np.atleast_1d(result.targets[row]).tolist()
    named = ", ".join(class_name(result, index) for index in targets[:_TARGETS])
    return f" · attributions of {named}: red is for it, blue against it"


def _verdicts(result: InspectResult) -> Iterator[Markup]:
    """Yields the outcomes of the checks in words: the verdict, its cause, and the remedy."""
    attributed = worst_first(result, _LINES)
    if attributed:
        yield element("ul", *(_verdict(title, attribution) for title, attribution in attributed[:_LINES]))
        yield from _left_out(len(attributed), _LINES, "attributions", attributed[_LINES:])


def _verdict(name: str, attribution: AttributionResult) -> Markup:
    failure, check = attribution.error, attribution.worst_check
    if failure is not None:
        return element("li", _badge(outcome(attribution)), f" {name}: {failure.reason}: {failure.message}")
    if check is None:
        return element("li", _badge(outcome(attribution)), f" {name}")
    cause = f" ({check.cause})" if check.cause is not None else ""
    words = check.reason or f"equals {harmless(check.compared, 200)}"
    error = f": largest error {short_number(check.max_relative_error)}, tolerance {short_number(check.tolerance)}"
    return element("li", _badge(check.verdict.value), f" {name}{cause}: {words}{error}")


def _shapes(result: InspectResult) -> Iterator[str]:
    for name, entry in by_name(entries(result)).items():
        if entry.kind not in _DRAWN and not entry.kind.startswith("agreement_"):
            yield f"{harmless(name)}: {outline(entry.array)}"


def _listed(title: str, lines: Sequence[str]) -> Iterator[Markup]:
    if lines:
        yield element("h4", title)
        yield element("ul", *(element("li", line) for line in first(lines, _LINES, len(lines))))


def _left_out(total: int, shown: int, noun: str, attributed: Sequence[Titled] = ()) -> Iterator[Markup]:
    """Yields how many were left out; of attributions, also how they came out."""
    if total > shown:
        told = f": {outcomes(attributed)}" if attributed else ""
        yield element("p", f"… {total - shown:,} more {noun} are not shown{told}", class_="note")


# Arrays of one example as HTML: bars, heat maps over the input, coloured tokens.

_MAX_BARS = 10
_MAX_OUTPUTS = 6
_MAX_TOKENS = 160
_LABEL = 40


def _badge(verdict: str) -> Markup:
    """Returns a verdict on a ground of its colour."""
    kind = verdict.lower().replace("_", "-").replace(" ", "-")
    return element("span", verdict.replace("_", " "), class_=f"badge {kind}")


def _signed_bars(names: Sequence[str], values: Array, signless: bool, weights: Array) -> Markup:
    """Draws the largest magnitudes of a vector as bars on both sides of 0, those of the largest weights first, and
    writes the sum of the others."""
    shown = np.sort(np.argsort(-np.abs(values), kind="stable")[:_MAX_BARS])
    shown, rest = shown[np.argsort(-weights[shown], kind="stable")], np.delete(values, shown)
    left_out = [f"… {rest.size:,} smaller sum to {short_number(float(rest.sum()))}"] if rest.size else []
    rows = [(names[index], float(values[index])) for index in shown.tolist()]
    kinds = ["size" if signless else "for" if value >= 0 else "against" for _, value in rows]
    return element("div", _bars(rows, kinds), *(element("p", text, class_="note") for text in left_out))


def _output_bars(labels: Sequence[str], values: Array, best: int | None) -> Markup:
    """Draws the highest values of an output as bars; the predicted class has a colour of its own."""
    shown = np.argsort(-values, kind="stable")[:_MAX_OUTPUTS].tolist()
    if best is not None and best < values.size and best not in shown:
        shown[-1] = best
    rows = list(zip(distinct([labels[index] for index in shown]), map(float, values[shown])))
    left_out = [element("p", f"… {values.size - len(shown):,} lower", class_="note")] * (values.size > len(shown))
    return element("div", _bars(rows, ["best" if index == best else "" for index in shown]), *left_out)


def _bars(rows: Sequence[tuple[str, float]], kinds: Sequence[str]) -> Markup:
    """Draws a bar for every name and value, in the colour of its CSS class in ``kinds``."""
    finite = [value if np.isfinite(value) else 0.0 for _, value in rows]
    low, high = min(0.0, *finite, 0.0), max(0.0, *finite, 0.0)
    span = (high - low) or 1.0
    cells: list[Markup] = []
    for kind, (name, value), length in zip(kinds, rows, finite):
        left, width = (min(length, 0.0) - low) / span, abs(length) / span
        bar = element("b", class_=kind, style=f"left:{100 * left:.1f}%;width:{100 * width:.1f}%")
        cells += [element("span", harmless(name, _LABEL), title=harmless(name, 4 * _LABEL))]
        cells += [element("span", bar, class_="track"), element("span", short_number(value))]
    return element("div", *cells, class_="bars")


def _token_colours(texts: Sequence[str], values: Array, against: str) -> Markup:
    """Draws tokens in the colours of their attributions, with the numbers below, and what they are compared with."""
    count = min(len(texts), values.size)
    shown = values[:count]
    scale = strongest(np.asarray(shown, np.float64))
    spans = [
        element("span", harmless(text, _LABEL), element("small", short_number(value)),
                style=f"background:{colour(value, scale)}")
        for text, value in zip(texts[:_MAX_TOKENS], shown.tolist())
    ]  # fmt: skip
    more = f"… {count - _MAX_TOKENS:,} more tokens" if count > _MAX_TOKENS else ""
    notes = " · ".join(filter(None, (f"sum {short_number(float(shown.sum()))}", more, against)))
    return element("div", element("div", *spans, class_="tokens"), element("p", notes, class_="note"))


def _category_bar(texts: Sequence[str], values: Array, against: str) -> Markup:
    """Draws the attribution of a category as a bar, and writes what it is compared with."""
    return element("div", _signed_bars(texts, values, False, np.abs(values)), element("p", against, class_="note"))


def _heat_map(values: Array, ground: Picture | None, signless: bool) -> Markup:
    """Draws [height, width] as a heat map; over the input, if their shapes fit."""
    small = coarse(values)
    drawn = [_heat(small, strongest(small), signless, f"heat map {outline(values)}")]
    kind, sides = "picture blank", values.shape
    if ground is not None and ground.takes(values.shape):
        drawn, sides = [element("i", class_=ground.style), *drawn], ground.sides
        kind += " smooth" * (COARSE * max(values.shape) < max(ground.sides))
    return element("span", *drawn, class_=kind, style=picture_size(sides))


def _heat(values: Array, scale: float, signless: bool, text: str) -> Markup:
    """Draws `heat`; without Pillow, the text of the error takes its place."""
    try:
        return element("img", src=Markup(heat(values, scale, signless)), alt=text)
    except CutawayError as failure:
        if failure.reason != Reason.PACKAGE_MISSING:
            raise
        return element("p", str(failure), class_="note")


def _numbers(values: Array) -> Markup:
    """Writes the shape and the range of an array that no picture fits."""
    finite = values[np.isfinite(values)]
    extent = f": {short_number(float(finite.min()))} to {short_number(float(finite.max()))}" if finite.size else ""
    return element("p", f"{outline(values)}{extent}", class_="note")


_TEXT = 500  # characters of an input text
_OUTPUTS = 3


def _input_panel(name: str, sent: SentInput, names: Sequence[str]) -> tuple[Markup | None, Picture | None]:
    """Draws an input that is a picture or a text; returns also the picture. Numbers are drawn with their
    attributions."""
    if sent.values is None:
        return _tile(name, element("p", harmless(sent.text, _TEXT))), None
    image = as_image(sent.values, names)
    if image is None:
        return None, None
    try:
        picture = Picture(image, sent.raw, photograph(image))
    except CutawayError as failure:
        if failure.reason != Reason.PACKAGE_MISSING:
            raise
        return _tile(name, element("p", str(failure), class_="note")), None
    return _tile(name, element("span", class_=f"picture {picture.style}", style=picture_size(picture.sides))), picture


def _prediction_panels(result: InspectResult, row: int) -> Iterator[Markup]:
    """Draws the outputs of one example; the predicted class is read from the first. Of a text, draws what was
    written."""
    if row < len(result.texts):
        verdict = "NOT CHECKED" if result.replay is None else result.replay.of_row(row).verdict.value
        ended = f"text, ended by {result.finish_reasons[row].value}"
        yield _tile(_titled(ended, verdict), element("p", harmless(result.texts[row], _TEXT)))
        for text in result.unedited_texts[row : row + 1]:
            yield _tile("unedited text", element("p", harmless(text, _TEXT)))
        return
    passes = (("", result.predictions, result.classes), ("unedited ", result.unedited, result.unedited_classes))
    for prefix, outputs, classes in passes:
        for number, (name, array) in enumerate(list(outputs.items())[:_OUTPUTS]):
            values = _row(array, row)
            predicted = classes[row] if not number and row < len(classes) else None
            known_as = f": {', '.join(predicted_class(result, predicted))}" if predicted is not None else ""
            title = f"{prefix}{harmless(name)}{known_as}"
            if values.ndim == 1 and values.size:
                known = class_labels(result) if predicted is not None else {}
                texts = [known.get(index) or f"{'class ' * bool(known)}{index}" for index in range(values.size)]
                yield _tile(title, _output_bars(texts, values, predicted.index if predicted is not None else None))
            else:
                yield _tile(title, _numbers(values))


def _attribution_panel(
    title: str,
    attribution: AttributionResult,
    row: int,
    inputs: Mapping[str, SentInput],
    grounds: Mapping[str, Picture],
    feature_names: Mapping[str, Sequence[str]],
    weights: Mapping[str, Array],
) -> Markup:
    """Draws one attribution of one example with its verdict: tokens, a heat map over the input, or bars."""
    if attribution.error is not None:
        return _tile(_titled(title, outcome(attribution)), element("p", attribution.error.message, class_="note"))
    verdict = outcome_of_row(attribution.checks, row).verdict.value if attribution.checks else "NOT CHECKED"
    tokens = attribution.tokens
    if tokens is not None:
        draw = _category_bar if tokens.is_category else _token_colours
        texts = tokens.row_texts(row, tokens.input or attribution.layer)
        return _tile(_titled(title, verdict), draw(texts, _row(tokens.values, row), tokens.against(row)))
    signless = attribution.method in SIGNLESS and not any((array < 0).any() for array in attribution.values.values())
    arrays = {name: _row(array, row) for name, array in attribution.values.items()}
    vectors = {name: array for name, array in arrays.items() if layout_of(array) in ("number", "bars") and array.size}
    weights = {} if attribution.at_layer else weights
    panels = [_vectors(vectors, inputs, feature_names, weights, signless)] if vectors else []
    panels += [
        _panel(name, array, inputs, grounds, None if attribution.at_layer else feature_names.get(name, ()), signless)
        for name, array in arrays.items()
        if name not in vectors
    ][:_OUTPUTS]
    return _tile(_titled(title, verdict), *panels)


def _vectors(
    vectors: Mapping[str, Array],
    inputs: Mapping[str, SentInput],
    feature_names: Mapping[str, Sequence[str]],
    weights: Mapping[str, Array],
    signless: bool,
) -> Markup:
    """Draws what is about numbers and vectors as bars of one scale, the largest weights first, beside what was sent."""
    rows: list[tuple[str, float]] = []
    for name, values in vectors.items():
        several = f"{name} " if len(vectors) > 1 else ""
        known, sent = feature_names.get(name, ()), inputs[name].values if name in inputs else None
        own = [name] if values.ndim == 0 else [f"{several}{index}" for index in range(values.size)]
        texts: Sequence[str] = known if len(known) == values.size else own
        if sent is not None and sent.shape == values.shape:
            texts = [f"{text} = {short_number(each)}" for text, each in zip(texts, sent.reshape(-1).tolist())]
        rows += zip(texts, values.reshape(-1).tolist())
    order = [weights.get(name, np.abs(values)).reshape(-1) for name, values in vectors.items()]
    labels, numbers = zip(*rows)
    return _signed_bars(labels, np.array(numbers), signless, np.concatenate(order))


def _panel(
    name: str,
    values: Array,
    inputs: Mapping[str, SentInput],
    grounds: Mapping[str, Picture],
    names: Sequence[str] | None,
    signless: bool,
) -> Markup:
    """Draws one attributed array of one example: lines over time, a heat map, else shape and range."""
    sent = inputs[name].values if name in inputs else None
    sent = sent if sent is not None and sent.shape == values.shape else None
    if layout_of(values, names) == "series":
        return _series(without_ones(values), None if sent is None else without_ones(sent), names or (), signless)
    planes = without_ones(values)
    if planes.ndim not in (2, 3) or min(planes.shape[-2:]) < 2:
        return _numbers(values)
    ground = grounds.get(name) or next(iter(grounds.values()), None)
    picture = planes if planes.ndim == 2 else np.asarray(planes.sum(axis=0))
    return _heat_map(picture, ground, signless)


def _series(values: Array, sent: Array | None, names: Sequence[str], signless: bool) -> Markup:
    """Draws a series [time, features]: for each feature what was sent as a line, and below it its attributions."""
    scale, cells = strongest(values), []
    for feature in by_feature(values):
        name = names[feature] if names else f"feature {feature}"
        cells += [element("span", harmless(name, _LABEL), title=harmless(name, 4 * _LABEL), class_="of")]
        cells += [element("span") if sent is None else line(sent[:, feature])]
        cells += [element("span", short_number(float(values[:, feature].sum())), class_="note")]
        strip = thinned(values[:, feature], STEPS)[None]
        cells += [_heat(strip, scale, signless, f"attributions of {harmless(name)}")]
    left_out = f", {len(cells) // 4} of {values.shape[1]} features" if values.shape[1] > len(cells) // 4 else ""
    note = element("p", f"time: 0 to {len(values) - 1}{left_out}; right: the sum over time", class_="note")
    return element("div", element("div", *cells, class_="series"), note)


def _row(array: Array, row: int) -> Array:
    """Returns one example of ``array`` in a data type that numpy computes with."""
    return np.asarray(array[row] if array.ndim and row < len(array) else array, np.float64)


def _titled(title: str, verdict: str) -> Markup:
    return element("span", title, _badge(verdict))


def _tile(title: str, *panels: Markup) -> Markup:
    return element("div", element("div", title, class_="name"), *panels, class_="tile")
