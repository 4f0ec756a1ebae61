"""Pictures of results: all that came back is in them, and can be read."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from PIL import Image

import cutaway as ca
from cutaway.contract.requests import InspectRequest
from cutaway.contract.results import ClassPrediction, Provenance
from cutaway.contract.results.explanations import RowCheck
from cutaway.contract.tensors import Array
from cutaway.views import plots
from cutaway.views.inspection import Inspection
from tests.support.made_results import capture, check, image, numbers, table
from tests.support.made_results import text as made_text

LONG = "model.encoder.stages.11.blocks.17.attention.output.projection"


def attribution(method: str, name: str, values: Array, *verdicts: ca.Verdict, layer: str = "") -> ca.AttributionResult:
    return ca.AttributionResult(method, layer, {name: values}, checks=tuple(map(check, verdicts)))


def result_of_image_model(side: int = 8, channels: int = 1, classes: int = 10) -> ca.InspectResult:
    """What an image model answers about a batch of two."""
    image = numbers(2, channels, side, side)
    return ca.InspectResult(
        {"logits": numbers(2, classes) - 5},
        classes=(ClassPrediction(0, "zero", 0.25), ClassPrediction(classes - 1, "the last of all classes" * 9, 0.75)),
        targets=np.array([0, classes - 1]),
        target_values=np.array([1.5, -2.5]),
        captures={
            "conv1": capture(output=numbers(2, 32, side, side), grad_output=numbers(2, 32, side, side)),
            LONG: capture(input=numbers(2, 512)),
        },
        input_gradients={"image": 1e-7 * image},
        attributions=(
            attribution("Saliency", "image", abs(image), ca.Verdict.AGREES),
            attribution("IntegratedGradients", "image", 1e5 * image, ca.Verdict.AGREES, ca.Verdict.DISAGREES),
            attribution("LayerActivation", "conv1", numbers(2, 16, side, side), ca.Verdict.INCONCLUSIVE, layer="conv1"),
            attribution("LayerGradCam", LONG, numbers(2, 1, side, side), ca.Verdict.NOT_APPLICABLE, layer=LONG),
        ),
        provenance=Provenance(model="net", version="2.0", weights_sha256="0123456789abcdef"),
    )


def result_of_text_model(tokens: int = 11) -> ca.InspectResult:
    """What a sentence encoder answers about a batch of two: no classes, tables of tokens and features."""
    return ca.InspectResult(
        {"embedding": numbers(2, 384)},
        captures={
            LONG: capture(output=numbers(2, tokens, 384)),
            "attention": capture(output=numbers(2, 12, tokens, tokens)),
        },
        attributions=(
            attribution("LayerGradientXActivation", "embeddings", numbers(2, tokens, 384), layer="embeddings"),
            attribution("LayerGradCam", "embeddings", numbers(2, 1, 384), layer="embeddings"),
        ),
    )


def result_of_several_targets() -> ca.InspectResult:
    """What an image model answers about the four largest classes of each of two examples."""
    image = numbers(2, 3, 1, 8, 8)
    return ca.InspectResult(
        {"logits": numbers(2, 10)},
        classes=(ClassPrediction(7, "", 0.5), ClassPrediction(1, "", 0.5)),
        targets=np.array([[7, 3, 2, 5], [1, 4, 6, 9]]),
        target_values=np.array([[1.5, 0.25, 0.125, 0.0], [4.0, 3.0, 2.0, 1.0]]),
        captures={"conv": capture(grad_output=numbers(2, 4, 3, 6, 6)), "top": capture(output=numbers(2, 3))},
        input_gradients={"image": numbers(2, 4, 3, 8, 8)},
        attributions=tuple(
            ca.AttributionResult("Saliency", "", {"image": image[:, 0]}, targets=np.array(row))
            for row in ([7, 1], [3, 4])
        ),
    )


def result_of_edited_model() -> ca.InspectResult:
    """What an image model answers with edits and without."""
    return ca.InspectResult(
        {"logits": numbers(2, 3)},
        classes=(ClassPrediction(0, "cat", 0.25), ClassPrediction(1, "dog", 0.5)),
        unedited={"logits": numbers(2, 3, seed=1)},
        unedited_classes=(ClassPrediction(2, "owl", 0.75), ClassPrediction(2, "owl", 0.9)),
    )


def written(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.texts)


def extents(figure: Figure) -> list[tuple[str, Bbox]]:
    renderer = FigureCanvasAgg(figure).get_renderer()
    return [(text.get_text(), text.get_window_extent(renderer)) for text in figure.texts]


@pytest.fixture(scope="module")
def drawn() -> str:
    """What stands in the picture of an image model's answer, drawn once."""
    return written(plots.figure(result_of_image_model(), {"image": numbers(2, 1, 8, 8)}))


@pytest.mark.parametrize(
    "words",
    [
        *("Saliency", "IntegratedGradients", "LayerActivation", "LayerGradCam"),
        *("image · [1, 8, 8]", "conv1 · [16, 8, 8]"),
        *("input · [1, 8, 8]", "logits", "prediction · [10]"),
        *("Gradient", "output · [32, 8, 8]", "grad_output · [32, 8, 8]", "input · [512]"),
        *("net 2.0", "zero  (25.0%)", "explained: zero, value 1.5", "example 1 of 2", "weights 01234567"),
    ],
)
def test_everything_that_came_back_has_a_panel(drawn: str, words: str) -> None:
    """Each thing that was asked for is in the picture, under its name and with its shape."""
    assert words in drawn


def test_verdicts_stand_beside_what_they_are_about() -> None:
    """An attribution shows the worst of its verdicts for the row; one that was not checked shows none."""
    marks = [line for line in written(plots.figure(result_of_image_model())).splitlines() if line[0] in "✓✗?–"]
    assert marks == ["✓ agrees", "✗ disagrees", "? inconclusive", "– no check"]
    assert not any(mark in written(plots.figure(result_of_text_model())) for mark in "✓✗?–")
    rows = (RowCheck(0.0, ca.Verdict.AGREES), RowCheck(1.0, ca.Verdict.DISAGREES))
    own = replace(
        attribution("Saliency", "x", numbers(2, 3)), checks=(replace(check(ca.Verdict.DISAGREES), rows=rows),)
    )
    for row, mark in enumerate(("✓ agrees", "✗ disagrees")):
        assert mark in written(plots.figure(ca.InspectResult({"y": numbers(2, 1)}, attributions=(own,)), row=row))


def test_tables_are_summarised() -> None:
    """Of an attribution [tokens, features] each token's sum is shown, of an activation each token's norm."""
    figure = plots.figure(result_of_text_model())
    assert [axes.get_xlabel() for axes in figure.axes if axes.get_xlabel()] == ["sum", "norm"]


def test_any_row_can_be_shown() -> None:
    """The picture is of the row that was asked for."""
    assert "(75.0%)" in written(plots.figure(result_of_image_model(), row=1))


def test_several_targets_have_a_panel_each() -> None:
    """Gradients and attributions of a top-k target are drawn class by class, and the header names the first classes."""
    text = written(plots.figure(result_of_several_targets(), row=1))
    assert "explained: class 1, class 4, class 6, …, value 4, 3, 2, …" in text
    assert all(f"image · class {number} · [3, 8, 8]" in text for number in (1, 4, 6, 9))
    assert all(f"image · class {number} · [1, 8, 8]" in text for number in (1, 4))
    assert "grad_output · [4, 3, 6, 6]" in text


def test_a_target_that_is_no_class_has_a_value() -> None:
    """The header says what was explained, as far as there is something to say."""
    result = ca.InspectResult({"embedding": numbers(2, 4)}, target_values=np.array([1.5, 2.5]))
    assert "explained: value 2.5" in written(plots.figure(result, row=1))
    assert "explained" not in written(plots.figure(ca.InspectResult({"embedding": numbers(2, 4)})))


def test_the_unedited_prediction_stands_beside_the_edited_one() -> None:
    """Both are drawn, each with its own class."""
    figure = plots.figure(result_of_edited_model(), {"image": numbers(2, 1, 8, 8)})
    assert "prediction · [3]" in written(figure)
    assert "unedited · [3]" in written(figure)
    pointed_out = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert pointed_out == ["cat · 25.0%", "owl · 75.0%"]


def test_gradients_at_parameters_are_of_all_examples() -> None:
    """A parameter's gradient is drawn whole, also where its first axis is as long as the batch."""
    result = ca.InspectResult({"logits": numbers(2, 3)}, parameter_gradients={"fc.weight": numbers(2, 5)})
    assert "gradient · [2, 5]" in written(plots.figure(result, row=1))


@pytest.mark.parametrize(
    "result",
    [
        ca.InspectResult({}),
        ca.InspectResult({}, parameter_gradients={"fc.bias": numbers(3)}),
        ca.InspectResult({}, captures={"fc": ca.ModuleCapture(())}),
    ],
)
def test_an_answer_about_no_example_is_drawn(result: ca.InspectResult) -> None:
    """Where nothing says how long the batch is, there is one row to be drawn."""
    assert "example 1 of 1" in written(plots.figure(result))


@pytest.mark.parametrize(
    "result",
    [
        result_of_image_model(),
        ca.InspectResult({}, captures={"fc": capture(output=numbers(2), grad_output=numbers(2, 3))}),
        ca.InspectResult({}, input_gradients={"image": numbers(2, 1, 8, 8)}),
        ca.InspectResult({}, attributions=(attribution("Saliency", "image", numbers(2, 8, 8)),)),
        ca.InspectResult({}, target_values=np.array([1.0, 2.0])),
        ca.InspectResult({}, unedited={"logits": numbers(2, 3)}),
    ],
)
def test_any_part_says_how_many_rows_there_are(result: ca.InspectResult) -> None:
    """Where predictions are left out, too; a row that is not there is refused."""
    assert "example 2 of 2" in written(plots.figure(result, {"image": numbers(2, 1, 8, 8)}, row=1))
    with pytest.raises(ca.InvalidArgument, match="rows 0 to 1, not 2") as refused:
        plots.figure(result, row=2)
    assert refused.value.reason == ca.Reason.INVALID_VALUE


def test_features_stand_by_name() -> None:
    """The largest first, whatever their sign; a long name is cut, and nothing in it is markup."""
    names = ("age", "$x$ & <b>", "a name that is much longer than a panel is wide")
    saliency = attribution("Saliency", "x", np.array([[0.5, -3.0, 1.0]], np.float32), ca.Verdict.AGREES)
    result = ca.InspectResult({"output": numbers(1, 2)}, attributions=(saliency,), feature_names={"x": names})
    texts = [text.get_text() for axes in plots.figure(result).axes for text in axes.texts]
    expected = ["$x$ & <b>", "a name that is much…", "age"]
    assert [text for text in texts if text in expected] == expected


def test_names_with_what_was_sent_stay_in_the_figure() -> None:
    """The name is cut, not the number."""
    names = ("income per year and household", "debt")
    one = ca.AttributionResult("DeepLift", "", {"x": np.array([[1.0, 2.0]])})
    result = ca.InspectResult({}, attributions=(one,), feature_names={"x": names})
    drawn = Inspection.of(result, InspectRequest("loans", {"x": np.array([[52_000.0, 1200.5]])})).plot()
    texts = [text for axes in drawn.axes for text in axes.texts]
    assert [text.get_text() for text in texts][::2] == ["debt = 1,200.5", "income per ye… = 52,000"]
    renderer = FigureCanvasAgg(drawn).get_renderer()
    assert all(text.get_window_extent(renderer).x0 >= 0.4 * drawn.dpi for text in texts)


def test_what_cannot_be_drawn_harms_nothing() -> None:
    """NaN, infinities, empty and scalar tensors, other first axes, several calls: a picture all the same."""
    arrays = np.full((2, 3, 4), np.nan), np.array([np.inf, 1.0]), np.zeros((2, 0, 4)), numbers(7, 2, 3, 4, 5)
    calls = tuple(
        ca.CapturedCall({ca.Point.OUTPUT: {"[0]": array, ".state": array}})
        for array in (*arrays, np.ones((2, 4, 4), bool))
    )
    figure = plots.figure(ca.InspectResult({"output": numbers(2, 3)}, captures={"$x_{1": ca.ModuleCapture(calls)}))
    figure.savefig(Path("/dev/null"), format="png")
    assert "$x_{1, call 4" in written(figure)
    assert "output.state · [7, 2, 3, 4, 5]" in written(figure)


def test_a_picture_has_an_end() -> None:
    """Of very many captures some are shown, of all depths, and the heading says so."""
    captures = {f"layer{index}": capture(output=numbers(1, 4)) for index in range(40)}
    figure = plots.figure(ca.InspectResult({"output": numbers(1, 3)}, captures=captures))
    assert "Captured: 24 of 40, from the first to the last" in written(figure)
    shown = [index for index in range(40) if any(f"layer{index} " in f"{text} " for text in written(figure).split())]
    assert (shown[0], shown[-1], len(shown)) == (0, 39, 24)
    assert max(np.diff(shown)) == 2


@pytest.mark.parametrize(
    ("result", "image"),
    [
        (result_of_image_model(), numbers(2, 1, 8, 8)),
        (result_of_image_model(side=64, channels=3, classes=1000), numbers(2, 3, 64, 64)),
        (result_of_text_model(), None),
        (result_of_text_model(tokens=200), None),
        (result_of_several_targets(), numbers(2, 1, 8, 8)),
        (result_of_edited_model(), numbers(2, 1, 8, 8)),
        (result_of_edited_model(), None),
    ],
    ids=["digits", "photos", "short text", "long text", "several targets", "edited", "edited, no image"],
)
@pytest.mark.parametrize("row", [0, 1])
def test_everything_can_be_read(result: ca.InspectResult, image: Array | None, row: int) -> None:
    """No title lies over another, and nothing is cut off, however long the names are."""
    figure = plots.figure(result, None if image is None else {"image": image}, row)
    for (one, here), (other, there) in combinations(extents(figure), 2):
        assert not here.overlaps(there), f"{one!r} lies over {other!r}"
    drawn, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert 0 <= drawn.x0 < drawn.x1 <= width
    assert 0 <= drawn.y0 < drawn.y1 <= height


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_pictures_are_saved(tmp_path: Path, suffix: str) -> None:
    """A picture is a file of a reasonable size, in each of three formats."""
    path = tmp_path / f"picture{suffix}"
    plots.figure(result_of_image_model(), {"image": numbers(2, 1, 8, 8)}).savefig(path, dpi=plots.DOTS_PER_INCH)
    assert 10_000 < path.stat().st_size < 1_000_000
    if suffix == ".png":
        with Image.open(path) as picture:
            assert picture.width == pytest.approx(1620, abs=30)
            assert picture.height > picture.width


def test_settings_of_matplotlib_stay() -> None:
    """Drawing changes nobody else's settings, and nobody else's settings change the picture."""
    with matplotlib.rc_context({"axes.facecolor": "black", "font.family": "serif"}):
        before = dict(matplotlib.rcParams)
        figure = plots.figure(result_of_image_model())
        assert dict(matplotlib.rcParams) == before
    assert figure.texts[0].get_fontfamily() == ["DejaVu Sans"]
    assert {matplotlib.colors.to_hex(axes.get_facecolor()) for axes in figure.axes} == {"#ffffff"}


def test_matplotlib_is_imported_when_it_is_needed() -> None:
    """The command line starts without Matplotlib, and a server never loads it."""
    code = "import sys, cutaway.views.plots; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


SIGNS: dict[str, Callable[[Array], Array]] = {
    "all": lambda values: values,
    "positive": lambda values: np.where(values > 0, values, 0),
    "negative": lambda values: np.where(values < 0, -values, 0),
    "absolute": np.abs,
}


@pytest.mark.parametrize("sign", SIGNS)
def test_an_attribution_is_drawn_as_it_is_asked_for(sign: Any) -> None:
    """Its sign, after the sum of colours; over the image, of a layer too; in these colours, as far as they go."""
    result = image(rows=1)
    drawn: Any = result.plot(sign=sign, blend=0.4, cmap="jet", outlier_percent=10, interpolation="bilinear")
    pairs = [axes.images for axes in drawn.axes if len(axes.images) == 2]
    sent = result.request.tensors["image"][0].astype(float)
    levels = np.moveaxis((sent - sent.min()) / (sent.max() - sent.min()), 0, -1)
    explained = [each.astype(float) for each in result.attributions[0].values.values()]
    expected = [explained[0][0].sum(0), result.attributions[1].values["conv1"][0, 0].astype(float)]
    for (below, above), values in zip(pairs, expected, strict=True):
        np.testing.assert_allclose(below.get_array(), levels)
        np.testing.assert_allclose(above.get_array(), SIGNS[sign](values), rtol=1e-6)
        assert below.get_extent() == above.get_extent()
        assert (above.get_alpha(), above.get_cmap().name, above.get_interpolation()) == (0.4, "jet", "bilinear")
        high = np.quantile(np.abs(SIGNS[sign](values)), 0.9)
        assert above.get_clim() == pytest.approx((-high if sign == "all" else 0, high))
    bars: Any = table().plot(sign=sign)
    features = [axes.patches for axes in bars.axes if len(axes.patches) == 16]
    values = table().attributions[0].values["x"][0]  # behind the gradient, which is drawn as it is
    largest = sorted(SIGNS[sign](values).astype(float), key=abs)[-16:]
    np.testing.assert_allclose(sorted(abs(bar.get_width()) for bar in features[1]), np.abs(largest), rtol=1e-6)


def test_a_photo_shows_through_its_map() -> None:
    """In grey, as far as a number is small, up to the one which 0.5 percent exceed; the map of a layer is smooth."""
    coarse = numbers(1, 1, 16, 16)
    one = image(rows=1, side=64)
    layer = ca.AttributionResult("LayerGradCam", "conv1", {"conv1": coarse})
    result = replace(one, attributions=(one.attributions[0], layer))
    drawn: Any = result.plot()
    pairs = [axes.images for axes in drawn.axes if len(axes.images) == 2]
    sent = result.request.tensors["image"][0].astype(float)
    grey = sent.mean(axis=0)
    pictures = result.attributions[0].values["image"][0].astype(float).sum(axis=0), coarse[0, 0]
    for (below, above), values, smooth in zip(pairs, pictures, ("auto", "bilinear"), strict=True):
        np.testing.assert_allclose(below.get_array(), (grey - grey.min()) / np.ptp(grey))
        most = np.quantile(np.abs(values), 0.995) if values.size > 2000 else np.abs(values).max()
        np.testing.assert_allclose(above.get_alpha(), 0.9 * np.minimum(np.abs(values) / most, 1), rtol=1e-6)
        assert above.get_interpolation() == smooth


def test_a_photo_of_another_shape_lies_below_no_map() -> None:
    """What an adapter has cut off would stand at the wrong places."""
    result = image(rows=1)
    cut = replace(result, request=InspectRequest("net", {"image": numbers(1, 3, 8, 16)}))
    assert all(len(axes.images) < 2 for axes in cut.plot().axes)


VITALS = ("heart rate", "breaths", "temperature")


def series(steps: int = 40, names: tuple[str, ...] = VITALS) -> Inspection:
    """What a model of a series [time, features] returns."""
    values = numbers(1, steps, 3) * np.array([1, 5, 2], np.float32)
    result = ca.InspectResult(
        {"output": numbers(1, 2)},
        attributions=(ca.AttributionResult("IntegratedGradients", "", {"vitals": values}),),
        feature_names={"vitals": names},
    )
    return Inspection.of(result, InspectRequest("ward", {"vitals": numbers(1, steps, 3, seed=1)}))


@pytest.mark.parametrize("names", [VITALS, ()])
def test_a_series_is_lines_over_time_above_its_attribution(names: tuple[str, ...]) -> None:
    """Input and attribution have the features in one order, by name."""
    result = series(names=names)
    drawn: Any = result.plot()
    sent, values = result.request.tensors["vitals"][0], result.attributions[0].values["vitals"][0]
    lines = [axes.lines[0].get_ydata() for axes in drawn.axes if axes.lines and len(axes.lines[0].get_ydata()) == 40]
    np.testing.assert_array_equal(lines, np.concatenate([sent, sent], axis=1).T)
    strips = [axes.images[0] for axes in drawn.axes if axes.images]
    np.testing.assert_allclose([strip.get_array()[0] for strip in strips], values.T)
    assert len({strip.get_clim() for strip in strips}) == 1
    shown = [text.get_text() for text in drawn.texts if text.get_text() in VITALS or "feature" in text.get_text()]
    named = names or [f"feature {number}" for number in range(3)]
    assert shown == [*named, *named]


def test_a_number_has_the_name_of_its_input_and_what_was_sent() -> None:
    """A bar in its place among those of the features, and on their scale."""
    values = {"money": np.array([[0.25, -1.0]]), "region": np.array([-0.5])}
    one = ca.AttributionResult("FeatureAblation", "", values)
    result = ca.InspectResult({}, attributions=(one,), feature_names={"money": ("debt", "rent")})
    sent = {"money": np.array([[7.0, 9.0]]), "region": np.array([3])}
    drawn: Any = Inspection.of(result, InspectRequest("loans", sent)).plot()
    (axes,) = drawn.axes
    texts = [text.get_text() for text in axes.texts]
    assert texts == ["rent = 9", "-1", "region = 3", "-0.5", "debt = 7", "0.25"]
    assert [bar.get_width() for bar in axes.patches] == [-1, -0.5, 0.25]
    assert "money, region" in written(drawn)


def test_tokens_stand_beside_their_sums() -> None:
    """In the order of the text, not as a table of an embedding; of many, as many as there is room for."""
    for words in (("the", "fox", "</s>"), tuple(f"word{number}" for number in range(40))):
        result = made_text(words)
        tokens = result.attributions[0].tokens
        assert tokens is not None
        drawn: Any = result.plot()
        axes = drawn.axes[-1]
        largest = np.sort(np.argsort(-np.abs(tokens.values[0]))[:16])
        assert [text.get_text() for text in axes.texts][::2] == [words[number] for number in largest]
        np.testing.assert_allclose([bar.get_width() for bar in axes.patches], tokens.values[0][largest])
        assert (", 16 of 40" in written(drawn)) == (len(words) == 40)


def test_a_figure_says_how_many_channels_it_shows() -> None:
    assert "conv1 · [16, 4, 4]" in written(plots.figure(result_of_image_model(side=4)))
    assert "[32, 4, 4], 16 of 32" in written(plots.figure(result_of_image_model(side=4)))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("sign", "posItive", "did you mean 'positive'?"),
        ("cmap", "jets", "did you mean 'jet'?"),
        ("interpolation", "cubic", "did you mean 'bicubic'?"),
        ("blend", 2, "a number from 0 to 1, not 2"),
        ("outlier_percent", -1, "a number from 0 to 99, not -1"),
    ],
)
def test_an_unknown_look_is_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(ca.InvalidArgument) as caught:
        image().plot(**{field: value})
    assert (caught.value.reason, caught.value.field) == ("INVALID_VALUE", field)
    assert message in caught.value.message


def test_classes_have_their_labels_in_a_figure() -> None:
    """Those of the reply, and all others with `with_labels`: of the target, and of several attributions of a method."""
    one = image(rows=1, attributions=2)
    targets = np.array([[3, 4]])
    several = tuple(replace(each, targets=targets[0][at : at + 1]) for at, each in enumerate(one.attributions[:2]))
    result = replace(one, attributions=several, targets=targets, target_values=np.array([[1.5, 0.5]]))
    drawn = "\n".join(text.get_text() for text in result.plot().texts)
    assert "explained: three, class 4, value 1.5, 0.5" in drawn
    assert "· three ·" in drawn
    named = result.with_labels([*"abc", "three", "four", *"fghij"])
    drawn = "\n".join(text.get_text() for text in named.plot().texts)
    assert "explained: three, four, value" in drawn
    assert "· four ·" in drawn


@pytest.mark.parametrize("of", ["tokens of an attribution", "ids that were captured", "nothing"])
def test_attention_has_its_heads_by_name_and_tokens_on_both_axes(of: str) -> None:
    """A panel for each head, with the numbers that were chosen; an axis of another length has numbers."""
    address, words = "h.0.attn:attention_weights#0", ("[CLS]", "the", "$x$")
    weights = np.abs(numbers(1, 2, 3, 3)).astype(np.float32)
    crossed = np.abs(numbers(1, 1, 3, 5)).astype(np.float32)
    captures = {address: capture(output=weights), "h.1.cross:attention_weights#0": capture(output=crossed)}
    captures |= {"": capture(input=np.array([[4, 2, 0]]))} if of.startswith("ids") else {}
    attributions = made_text(words).attributions if of.startswith("tokens") else ()
    result = ca.InspectResult({}, captures=captures, attributions=attributions)
    asked = ca.InspectRequest("gpt", captures=(ca.Capture(op="h.0.*:attention_weights#0", heads=(3, 7)),))
    labels = ("$x$", "a", "the", "b", "[CLS]")
    drawn: Any = Inspection.of(result, asked).with_labels(labels).plot()
    told = written(drawn)
    assert all(f"head {number}" in told for number in (3, 7, 0))
    assert "h.0.attn · queries x keys · [3, 3]" in told
    axes = [each for each in drawn.axes if len(each.get_xticks()) and len(each.get_yticks())]
    ticks = [[[label.get_text() for label in axis.get_ticklabels()] for axis in (each.yaxis, each.xaxis)]
             for each in axes if each.images]  # fmt: skip
    known = list(words) if of != "nothing" else ["0", "1", "2"]
    assert ticks == [[known, known]] * 2 + [[known, ["0", "1", "2", "3", "4"]]]
    np.testing.assert_array_equal(next(each for each in axes if each.images).images[0].get_array(), weights[0, 0])


def test_a_map_lies_over_what_the_adapter_made_of_a_photo() -> None:
    """The adapter resized the file, which maps cover; the model's own input is their ground where it was captured. Of
    a layer too."""
    file = io.BytesIO()
    Image.fromarray(np.arange(30 * 40, dtype=np.uint8).reshape(30, 40)).save(file, "PNG")
    attributions = (attribution("Saliency", "x", numbers(1, 3, 24, 24)),
                    attribution("LayerGradCam", "conv", numbers(1, 1, 4, 4), layer="conv"))  # fmt: skip
    asked = InspectRequest("net", raw=(ca.Raw(file.getvalue(), "image/png"),))
    plain = ca.InspectResult({}, attributions=attributions)
    call = ca.CapturedCall({ca.Point.INPUT: {"x": numbers(1, 3, 24, 24, seed=5)}})
    seen = replace(plain, captures={"": ca.ModuleCapture((call,))})
    for result, sides in ((plain, (30, 40)), (seen, (24, 24))):
        drawn = Inspection.of(result, asked)
        grounds = [axes.images[0].get_array() for axes in drawn.plot().axes if len(axes.images) == 2]
        assert [ground.shape[:2] for ground in grounds if ground is not None] == [sides] * 2
        assert drawn._repr_html_().count("<i class=") == 2
    assert "(the model) input x  float" in str(Inspection.of(seen, asked))


def test_guided_grad_cam_and_neurons_are_drawn_at_the_input() -> None:
    """They have a layer, and values of the input's shape: one map over the picture, the sum of its channels."""
    one = image(rows=1)
    values = one.attributions[0].values
    for method in ("GuidedGradCam", "NeuronGradient"):
        result = replace(one, attributions=(ca.AttributionResult(method, "conv1", values),))
        drawn: Any = result.plot()
        told = [text.get_text() for text in drawn.texts]
        assert "At layers" not in told
        ((_, above),) = [axes.images for axes in drawn.axes if len(axes.images) == 2]
        np.testing.assert_allclose(above.get_array(), values["image"][0].astype(float).sum(axis=0), rtol=1e-6)


def test_what_has_no_panel_is_written_or_named() -> None:
    """Changes and evidence in words, metrics with their numbers, and every other array by its name."""
    made = table(rows=2)
    (values,) = made.attributions[0].values.values()
    ones = np.ones(2)
    changed = ca.results.CounterfactualResult(
        {"x": values}, {"x": np.eye(2, values.shape[1], dtype=bool)}, classes=ones.astype(int), probabilities=ones,
        succeeded=ones.astype(bool), changes=ones.astype(int), passes=ones.astype(int),
    )  # fmt: skip
    metric = ca.results.MetricResult("infidelity", np.array([0.25, 0.5]))
    rows = np.arange(6).reshape(2, 3)
    influence = ca.InfluenceResult("tracin", rows, rows, rows, rows)
    result = replace(
        made,
        counterfactual=changed,
        influence=influence,
        attacks=(ca.results.AttackResult("FGSM", {"x": values}, linf=ones),),
        concepts=(ca.ConceptResult("fc1", "stripes", np.zeros((2, 2)), shares=(0.5,)),),
        attributions=(replace(made.attributions[0], metrics=(metric,)),),
        sweep={"fc1": numbers(2, 5)},
    )
    told = written(result.plot(row=1))
    changes = f"[1] label 1 with 1 change  feature 1 = {values[1, 1]:.6g}"
    for words in (changes, "FGSM", "stripes at fc1", "tracin  [1] helped by rows 3, 4, 5", "infidelity 0.5"):
        assert words in told
    assert "not drawn: sweep:fc1" in told
    assert "not drawn" not in written(made.plot())


def test_panels_have_one_order_of_features_and_of_inputs() -> None:
    """That of the largest share a feature has in any of them; the inputs as the model has them."""
    picture, vector = numbers(1, 3, 8, 8), np.array([[3.0, 1.0, -2.0]])
    first = ca.AttributionResult("Saliency", "", {"image": picture, "table": vector})
    second = ca.AttributionResult("DeepLift", "", {"image": picture, "table": np.array([[0.1, 0.2, 0.5]])})
    names = {"table": ("age", "bmi", "hr")}
    result = ca.InspectResult({}, attributions=(first, second), feature_names=names)
    figure: Any = Inspection.of(result, InspectRequest("net", {"image": picture, "table": vector})).plot()
    bars = [[text.get_text() for text in axes.texts[::2]] for axes in figure.axes if axes.texts]
    assert bars == [["age = 3", "hr = −2", "bmi = 1"]] * 2
    details = [text.get_text().partition(" ·")[0] for text in figure.texts if " · [" in text.get_text()]
    assert details == ["input", "image", "table", "image", "table"]
    page = Inspection.of(result, InspectRequest("net", {"image": picture, "table": vector}))._repr_html_()
    assert page.index(">age = 3") < page.index(">hr = −2") < page.index(">bmi = 1")
    assert page.rindex(">age = 3") < page.rindex(">hr = −2") < page.rindex(">bmi = 1")


def test_a_photo_has_its_colours() -> None:
    """As it was sent, and so has what the adapter made of it, which is scaled colour by colour."""
    sent = np.zeros((30, 40, 3), np.uint8)
    sent[:], sent[20:], sent[5:9, 5:9] = (120, 160, 220), (60, 140, 60), (200, 90, 40)
    file = io.BytesIO()
    Image.fromarray(sent).save(file, "PNG")
    seen = np.moveaxis(sent[::2, ::2] / 255.0, -1, 0)[None]
    seen = ((seen - np.reshape((0.4, 0.5, 0.6), (3, 1, 1))) / np.reshape((0.2, 0.3, 0.1), (3, 1, 1))).astype(np.float32)
    call = ca.CapturedCall({ca.Point.INPUT: {"image": seen}})
    result = ca.InspectResult({}, captures={"": ca.ModuleCapture((call,))})
    asked = InspectRequest("net", raw=(ca.Raw(file.getvalue(), "image/png"),))
    drawn: Any = Inspection.of(result, asked).plot()
    photos = [axes.images[0].get_array() for axes in drawn.axes if axes.images][:2]
    np.testing.assert_allclose(photos[1], sent / 255)
    np.testing.assert_allclose(photos[0], sent[::2, ::2] / 255, atol=1e-6)
