"""A result as a notebook shows it: complete, escaped, self-contained and of limited size."""

from __future__ import annotations

import base64
import io
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from IPython.core.formatters import DisplayFormatter
from IPython.core.interactiveshell import InteractiveShell
from PIL import Image

import cutaway as ca
from cutaway.contract.requests import InspectRequest, Raw
from cutaway.contract.results import Warning as ResultWarning
from cutaway.contract.results.explanations import AttributionError
from cutaway.views import plots
from cutaway.views.inspection import Inspection
from tests.support.made_results import HOSTILE, capture, check, image, numbers, table, text

MAX_CHARACTERS = 400_000


class Page(HTMLParser):
    """What a browser finds in a piece of HTML: tags, attributes, texts by the class around them."""

    VOID = frozenset({"img"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[tuple[str, str]] = []
        self.feed(html)
        assert not self._open, "an element is not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self._open.append((tag, dict(attrs).get("class") or ""))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self._open[-1][1] or self._open[-1][0], data))

    def of(self, kind: str) -> list[str]:
        """The texts in elements of that class, or, without a class, of that tag."""
        return [data for where, data in self.texts if where == kind]

    @property
    def text(self) -> str:
        return " ".join(data for where, data in self.texts if where != "style")


def page(result: Inspection) -> Page:
    return Page(result._repr_html_())


def test_notebooks_show_the_page() -> None:
    """IPython's own formatter, which Jupyter asks, offers HTML and the text beside it."""
    formatter = DisplayFormatter()
    formatter.active_types = ["text/plain", "text/html"]
    shown, _ = formatter.format(table())
    assert shown["text/html"] == table()._repr_html_()
    assert shown["text/plain"] == repr(table())


def test_notebooks_show_a_figure() -> None:
    """Also where nobody has asked for Matplotlib's inline figures."""
    formatter = DisplayFormatter()
    formatter.active_types = ["text/plain", "image/png"]
    shown, _ = formatter.format(table().plot())
    assert shown["image/png"].startswith(b"\x89PNG")


def test_notebooks_show_an_error_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Not the frames of this package, which are nobody's question."""
    shell = InteractiveShell.instance()
    try:
        shell.run_cell("import cutaway as ca\nca.Client('a b')", silent=True)
    finally:
        InteractiveShell.clear_instance()
    shown = "".join(capsys.readouterr())
    with pytest.raises(ca.InvalidArgument) as caught:
        ca.Client("a b")
    assert shown.strip() == f"InvalidArgument: {caught.value}"


def test_table_has_bars_with_names_and_values() -> None:
    """The ten features that count most by their names, with what was sent; the rest as a sum."""
    result = table()
    shown = page(result)
    values = result.attributions[0].values["x"][0]
    most = np.argsort(-np.abs(values))[:10]
    labels = [label for label in shown.of("span") if label.startswith("feature ")]
    assert [label.split(" = ")[0] for label in labels[:10]] == [f"feature {index}" for index in most]
    sent = result.request.tensors["x"][0]
    assert float(labels[0].split(" = ")[1].replace("−", "-")) == pytest.approx(sent[most[0]], rel=0.01)
    rest = np.delete(values, most).sum()
    note = next(note for note in shown.of("note") if "smaller sum to" in note)
    assert note.startswith("… 20 smaller sum to ")
    assert float(note.rpartition(" ")[2].replace("−", "-")) == pytest.approx(rest, rel=0.01)
    assert "logits: label 0, 75.0%" in shown.of("name")
    assert {"label 0", "label 1"} <= set(shown.of("span"))


def test_verdicts_have_badges_reasons_and_remedies() -> None:
    """Also where rows differ: the badge of an example is that of its own row."""
    rows = (ca.RowCheck(0.0, ca.Verdict.AGREES), ca.RowCheck(1.0, ca.Verdict.INCONCLUSIVE))
    by_row = replace(check(ca.Verdict.INCONCLUSIVE, "terms cancel", ca.Cause.CANCELLATION), rows=rows)
    result = table()
    different = replace(result.attributions[0], checks=(by_row,))
    failed = ca.AttributionResult("Lrp", "", {}, error=ca.results.AttributionError(3, "METHOD_INAPPLICABLE", "no rule"))
    result = replace(result, attributions=(*result.attributions, different, failed))
    shown = page(result)
    badges = [text for kind, text in shown.texts if kind.startswith("badge ")]
    assert badges[:4] == ["AGREES", "DISAGREES", "INCONCLUSIVE", "FAILED"]
    assert badges[4:8] == ["AGREES", "DISAGREES", "AGREES", "FAILED"]
    assert badges[8:] == ["AGREES", "DISAGREES", "INCONCLUSIVE", "FAILED"]
    for words in (
        "DeepLift (MODULE_REUSED): fc1 is called twice: use a module for each call: largest error 2.0e−7",
        "IntegratedGradients: equals Captum with raw hooks",
        "Lrp: METHOD_INAPPLICABLE: no rule",
        "MODULE_NOT_CALLED: fc9: was not called",
        "capture:fc1@output: float32[2, 8]",
    ):
        assert words in shown.text


def series(steps: int = 96, features: int = 3) -> Inspection:
    """What a model of a series [time, features] returns about one example."""
    values = numbers(1, steps, features) * np.geomspace(1, 9, features).astype(np.float32)
    names = tuple(f"vital {number}" for number in range(features))
    result = ca.InspectResult(
        {"output": numbers(1, 2)},
        attributions=(ca.AttributionResult("IntegratedGradients", "", {"vitals": values}),),
        feature_names={"vitals": names},
    )
    return Inspection.of(result, InspectRequest("ward", {"vitals": numbers(1, steps, features, seed=1)}))


@pytest.mark.parametrize("steps", [96, 5000])
def test_a_series_is_lines_over_time_above_its_attribution(steps: int) -> None:
    """Each feature by its name, in their order; the extremes of a long one stay."""
    result = series(steps)
    html = result._repr_html_()
    shown = Page(html)
    sent, order = result.request.tensors["vitals"][0], range(3)
    assert shown.of("of") == [f"vital {number}" for number in order]
    lines = [value for name, value in shown.attributes if name == "points"]
    for line, feature in zip(lines, order, strict=True):
        points = np.array([pair.split(",") for pair in line.split()], float)
        own = sent[:, feature]
        own = (
            own
            if steps < 240
            else np.array([part[np.abs(part - own.mean()).argmax()] for part in np.array_split(own, 240)])
        )
        np.testing.assert_allclose(points[:, 1], 20 - 20 * (own - own.min()) / np.ptp(own), atol=0.06)
        assert points[:, 0].tolist() == list(range(len(own)))
    strips = [value for name, value in shown.attributes if name == "src"]
    widths = [Image.open(io.BytesIO(base64.b64decode(strip.partition(",")[2]))).size for strip in strips]
    assert widths == [(min(steps, 240), 1)] * 3
    assert "time: 0 to" in shown.text
    assert len(html) < 60_000


def test_a_series_says_how_many_features_it_shows() -> None:
    assert ", 6 of 30 features" in page(series(features=30)).text


def test_a_number_has_the_name_of_its_input_and_what_was_sent() -> None:
    """A bar in its place among those of the features, and on their scale; not a shape."""
    values = {"money": np.array([[0.25, -1.0]]), "region": np.array([-0.5])}
    one = ca.AttributionResult("FeatureAblation", "", values)
    result = ca.InspectResult({}, attributions=(one,), feature_names={"money": ("debt", "rent")})
    sent = {"money": np.array([[7.0, 9.0]]), "region": np.array([3])}
    shown = page(Inspection.of(result, InspectRequest("loans", sent)))
    assert shown.of("span")[1:] == ["rent = 9", "−1", "region = 3", "−0.5", "debt = 7", "0.25"]
    widths = [value.partition("width:")[2] for name, value in shown.attributes if name == "style"]
    assert widths == ["80.0%", "40.0%", "20.0%"]
    assert "float64[]" not in shown.text


def test_only_a_method_with_a_sign_is_red_or_blue() -> None:
    """Magnitudes, as those of saliency, are neither for the class nor against it."""
    one = table(rows=1, features=3)
    for method, values, kinds in (
        ("Saliency", [3.0, 2.0, 1.0], ["size"] * 3),
        ("Saliency", [3.0, -2.0, 1.0], ["for", "against", "for"]),
        ("IntegratedGradients", [3.0, 2.0, 1.0], ["for"] * 3),
    ):
        attribution = ca.AttributionResult(method, "", {"x": np.array([values])})
        shown = page(replace(one, attributions=(attribution,)))
        assert [
            kind for name, kind in shown.attributes if name == "class" and kind in ("size", "for", "against")
        ] == kinds


def test_a_map_without_a_sign_is_neither_red_nor_blue() -> None:
    """Its picture has another colour, which that of a method with a sign never has."""
    values = np.abs(numbers(1, 3, 8, 8))
    for method in ("Saliency", "IntegratedGradients"):
        attribution = ca.AttributionResult(method, "", {"image": values})
        shown = page(replace(image(rows=1), attributions=(attribution,)))
        (url,) = [value for name, value in shown.attributes if name == "src"]
        with Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) as drawn:
            red, green, blue, _ = np.moveaxis(np.asarray(drawn, int), -1, 0)
        assert (red > blue).all() == (green < blue).all() == (method != "Saliency")


def test_vectors_of_several_inputs_are_told_apart() -> None:
    """Where their elements have no names, by the inputs'."""
    values = {"x": np.array([[2.0, 1.0]]), "y": np.array([[-3.0]])}
    result = ca.InspectResult({}, attributions=(ca.AttributionResult("DeepLift", "", values),))
    shown = page(Inspection.of(result, InspectRequest("net")))
    assert shown.of("span")[1::2] == ["y 0", "x 0", "x 1"]


def test_labels_keep_what_differs() -> None:
    """Where all begin alike, as codes of a thousand classes do."""
    labels = [f"n0000{index} European animal" for index in range(4)]
    one = replace(table(rows=1, classes=4), labels=dict(enumerate(labels)), classes=())
    result = replace(one, classes=(ca.results.ClassPrediction(1, labels[1], 0.5),))
    shown = [text for text in page(result).of("span") if text.endswith(" animal")]
    assert sorted(shown) == [f"…{index} European animal" for index in range(4)]


def test_the_map_of_a_small_layer_is_smooth() -> None:
    """Over the picture; one of the picture's own size keeps its pixels."""
    one = image(rows=1)
    layers = (ca.AttributionResult("LayerGradCam", "conv", {"conv": numbers(1, 1, side, side)}) for side in (2, 4))
    shown = page(replace(one, attributions=(one.attributions[0], *layers)))
    assert sum("smooth" in value for name, value in shown.attributes if name == "class") == 1


def test_image_is_drawn_once_and_lies_below_its_heat_maps() -> None:
    result = image(rows=1, attributions=2)
    html = result._repr_html_()
    shown = Page(html)
    pictures = [value for name, value in shown.attributes if name == "src"]
    assert len(pictures) == 3
    assert all(each.startswith("data:image/png;base64,") for each in pictures)
    assert html.count("background-image:url(data:image/png;base64,") == 1
    assert shown.tags.count("i") == 3  # below each of them
    assert sum("picture" in value for name, value in shown.attributes if name == "class") == 4


def test_two_results_on_one_page_keep_their_own_pictures() -> None:
    """Classes are global in a notebook."""
    first, second = image(rows=1), image(rows=1, side=10)
    styles = [
        {value for name, value in page(each).attributes if value.startswith("picture p")} for each in (first, second)
    ]
    assert styles[0]
    assert not styles[0] & styles[1]


def test_raw_picture_and_text_are_those_sent() -> None:
    """A raw picture is what was sent, in its colours; heat maps cover all of it, as the adapter resized it."""
    square = image(rows=1)

    def sent(width: int, size: int | None = None) -> Page:
        file = io.BytesIO()
        Image.fromarray(np.zeros((40, width, 3), np.uint8)).save(file, "PNG")
        raw = Raw(file.getvalue()[:size], "image/png")
        return page(replace(square, request=InspectRequest("net", raw=(raw,))))

    assert sent(40).tags.count("i") == 2
    assert sent(90).tags.count("i") == 2
    (style,) = {value for _, value in sent(90).attributes if value.startswith("width:150px")}
    assert style == "width:150px;height:67px"
    assert "image/png, 60 bytes" in sent(90, 60).of("p")
    assert "the fox" in page(text()).of("p")


def test_tokens_have_colours_and_their_sum() -> None:
    shown = page(text(("the", "fox", "</span>")))
    sums = text(("the", "fox", "</span>")).attributions[0].tokens
    assert sums is not None
    assert [word for word in shown.of("span") if word in ("the", "fox", "</span>")] == ["the", "fox", "</span>"]
    numbers_below = [float(each.replace("−", "-")) for each in shown.of("small")]
    assert numbers_below == pytest.approx(sums.values[0], rel=0.01)
    assert sum(name == "style" and "background:rgba(" in value for name, value in shown.attributes) == 3


def hostile() -> Inspection:
    """Every text of the server's and the caller's is HTML."""
    bad = ca.AttributionResult(
        HOSTILE, HOSTILE, {HOSTILE: numbers(1, 3)}, checks=(check(ca.Verdict.DISAGREES, HOSTILE),)
    )
    failed = replace(bad, values={}, error=ca.results.AttributionError(3, HOSTILE, HOSTILE, HOSTILE))
    result = table(rows=1, name=HOSTILE)
    return replace(
        result,
        predictions={HOSTILE: numbers(1, 2)},
        captures={HOSTILE: capture(output=numbers(1, 2))},
        parameter_gradients={HOSTILE: numbers(2)},
        attributions=(*result.attributions, bad, failed, *text((HOSTILE,)).attributions),
        warnings=(ResultWarning(ca.WarningCode.NO_GRADIENT, HOSTILE, HOSTILE),),
        request=InspectRequest("net", raw=(Raw(HOSTILE.encode(), "text/plain"),)),
        labels={0: HOSTILE, 1: HOSTILE},
    )


def test_every_text_is_escaped() -> None:
    """No tag, no attribute and no control character comes from a name; nothing is fetched."""
    html = hostile()._repr_html_()
    shown = Page(html)
    assert set(shown.tags) == {"div", "style", "h3", "h4", "ul", "li", "span", "small", "b", "p"}
    assert {name for name, _ in shown.attributes} <= {"class", "style", "title", "src", "alt"}
    assert "<script>alert(1)" in shown.text
    assert not [character for character in html if not character.isprintable() and character != "\n"]
    assert "http" not in html
    assert len(html) < 60_000


def several_images() -> Inspection:
    """Many large inputs, and attributions of each."""
    names = [f"image{index}" for index in range(20)]
    pictures = {name: numbers(4, 3, 160, 160, seed=index) for index, name in enumerate(names)}
    attributions = (ca.AttributionResult("Saliency", "", pictures),) * 20
    return Inspection.of(
        ca.InspectResult({"y": numbers(4, 3)}, attributions=attributions), InspectRequest("net", pictures)
    )


@pytest.mark.parametrize(
    "result",
    [
        image(rows=5, side=224, attributions=40),
        several_images(),
        table(rows=1000, features=5000, classes=1000),
        text(("token",) * 100_000, "word " * 100_000),
        replace(table(), captures={f"layer{n}": capture(output=numbers(2, 1)) for n in range(10_000)}),
        replace(table(), attributions=table().attributions * 100),
        replace(table(), feature_names={}, labels=dict.fromkeys((0, 1), "long label " * 1000)),
    ],
    ids=["images", "several images", "table", "text", "captures", "attributions", "labels"],
)
def test_page_is_small_and_says_what_it_leaves_out(result: Inspection) -> None:
    html = result._repr_html_()
    assert len(html) < MAX_CHARACTERS
    shown = Page(html).text
    assert "…" in shown
    rows = len(next(iter(result.predictions.values())))
    if rows > 3:
        assert f"… {rows - 3:,} more examples are not shown" in shown
    if len(result.attributions) > 6:
        assert re.search(r"… \d+ more attributions are not shown", shown)


def test_what_deserves_a_look_is_never_left_out() -> None:
    """A doubted and a failed attribution behind many right ones are in the text, on the page and in the figure."""
    one = table()
    right = replace(one.attributions[0], checks=(check(),))
    wrong = replace(right, method="Wrong", checks=(check(ca.Verdict.DISAGREES),))
    failed = replace(right, method="Failed", values={}, checks=(), error=AttributionError(8, "OUT_OF_MEMORY", "why"))
    result = replace(one, attributions=(*[right] * 40, wrong, failed))
    drawn = "\n".join(text.get_text() for text in plots.figure(result).texts)
    assert "✗ disagrees" in drawn
    for shown in (str(result), Page(result._repr_html_()).text, drawn):
        assert shown.find("Failed") < shown.find("Wrong") < shown.find(right.method)
        assert "why" in shown
        assert re.search("… [0-9]+ more|24 of 43, the worst first", shown)
    few = str(replace(result, attributions=(right, wrong, failed)))  # all of them, in the order of the request
    assert few.find(right.method) < few.find("Wrong") < few.find("Failed")


@pytest.mark.parametrize(
    "result",
    [
        Inspection.of(ca.InspectResult({}), InspectRequest("net")),
        Inspection.of(ca.InspectResult({"y": numbers(2)}), InspectRequest("net", {"x": numbers(2)})),
        Inspection.of(ca.InspectResult({"y": np.full((2, 3), np.nan)}), InspectRequest("net")),
        Inspection.of(ca.InspectResult({"y": numbers(2, 0)}), InspectRequest("net", {"x": numbers(2, 0, 3, 3)})),
        replace(table(), targets=None, feature_names={"x": ("too", "few")}),
        replace(table(), targets=np.zeros((2, 3), int)),
        replace(table(), request=InspectRequest("tumours", {"x": numbers(1, 30)})),
        replace(text(), classes=table(1).classes, targets=np.array([5])),
        Inspection.of(ca.InspectResult({}, captures={"fc": ca.ModuleCapture(())}), InspectRequest("net")),
    ],
)
def test_unusual_results_are_shown(result: Inspection) -> None:
    """No example, scalars, NaN, empty tensors, names that do not fit, several targets, fewer inputs than results."""
    assert page(result).tags[0] == "div"
    assert len(repr(result).splitlines()) <= 30


def test_without_pillow_the_page_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but pictures is there."""
    monkeypatch.setitem(sys.modules, "PIL", None)
    shown = page(image(rows=1))
    assert "img" not in shown.tags
    needs = "needs pillow, which is not installed: pip install 'cutaway[notebook]'"
    assert any(needs in note for note in shown.of("note"))
    assert "logits: three, 50.0%" in shown.of("name")


def test_what_a_prediction_rests_on() -> None:
    """Changed columns and training rows beside each example, concepts once; no name is markup."""
    made = table()
    (values,) = made.attributions[0].values.values()
    changed = np.zeros(values.shape, bool)
    changed[0, 1] = True
    found = ca.results.CounterfactualResult(
        {"x": values}, {"x": changed}, classes=np.zeros(len(values), np.int64),
        succeeded=np.ones(len(values), bool), changes=np.ones(len(values), np.int64),
        probabilities=np.ones(len(values)), passes=np.ones(len(values), np.int64),
    )  # fmt: skip
    rows = np.arange(7 * len(values)).reshape(len(values), 7)
    influence = ca.InfluenceResult("tracin", rows, rows / 2, rows[:, ::-1], -rows / 2, check=check(ca.Verdict.AGREES))
    concepts = tuple(
        ca.ConceptResult(HOSTILE, f"fc{number}", np.zeros((len(values), 2)), shares=(0.5,), p_value=0.25)
        for number in range(2)
    )
    shown = page(replace(made, counterfactual=found, influence=influence, concepts=concepts))
    lines = shown.of("li")
    assert any("label 0 with 1 change" in line for line in lines)
    assert any("AGREES  tracin  [0] helped by rows 0, 1, 2, harmed by 6, 5, 4" in line for line in lines)
    assert sum("share 0.50, p 0.25" in line for line in lines) == len(concepts)
    assert "script" not in shown.tags
