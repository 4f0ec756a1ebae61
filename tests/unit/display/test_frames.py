"""Results as tables of pandas and as datasets of xarray: every number in its place, under its name."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import cutaway as ca
from cutaway.contract.requests import InspectRequest
from cutaway.views.inspection import Inspection
from tests.support.made_results import capture, image, numbers, table, text


def test_attributions_are_tidy() -> None:
    """A row for each number, with its example, feature, target and verdict."""
    result = table(rows=3)
    frame = result.to_pandas()
    assert list(frame.columns) == [
        *("example", "attribution", "title", "method", "layer", "input", "position", "feature", "value", "target"),
        *("verdict", "cause"),
    ]
    assert len(frame) == 2 * 3 * 30
    row = frame[(frame.example == 2) & (frame.method == "DeepLift") & (frame.feature == "feature 17")]
    assert row.position.item() == 17
    assert row.value.item() == result.attributions[1].values["x"][2, 17]
    assert (row.verdict.item(), row.cause.item(), row.target.item()) == ("DISAGREES", "MODULE_REUSED", None)
    series = ca.AttributionResult("Saliency", "", {"x": numbers(1, 2, 3)})
    named = replace(table(rows=1), attributions=(series,), feature_names={"x": ("a", "b", "c")})
    assert list(named.to_pandas().feature) == ["a", "b", "c"] * 2  # the names are those of the last axis
    means = frame[frame.attribution == 0].groupby("feature").value.mean()
    assert means["feature 5"] == pytest.approx(result.attributions[0].values["x"][:, 5].mean(), rel=1e-6)


def test_positions_have_a_column_for_each_axis() -> None:
    """Also beside attributions with fewer axes."""
    result = image(rows=2, side=4, channels=3)
    vector = ca.AttributionResult("LayerActivation", "fc", {"fc": numbers(2, 5)}, targets=np.array([3, 1]))
    frame = replace(result, attributions=(*result.attributions, vector)).to_pandas()
    row = frame[(frame.method == "Saliency") & (frame.example == 1)].iloc[2 * 16 + 1 * 4 + 3]
    assert (row.position, row.position_2, row.position_3) == (2, 1, 3)
    assert row.value == result.attributions[0].values["image"][1, 2, 1, 3]
    rows = frame[frame.layer == "fc"]
    assert rows.position_2.isna().all()
    assert list(rows.target) == [3] * 5 + [1] * 5


def test_tokens_are_rows() -> None:
    """Of an embedding the token's sum is the number, and its text the feature; there may be fewer texts."""
    frame = text(("the", "fox")).to_pandas()
    assert list(frame.feature) == ["the", "fox"]
    tokens = text().attributions[0].tokens
    assert tokens is not None
    np.testing.assert_array_equal(frame.value, tokens.values[0])
    short = replace(text(("the", "fox")).attributions[0], tokens=replace(tokens, texts=(("the",),)))
    assert list(replace(text(), attributions=(short,)).to_pandas().feature) == ["the", ""]


def test_predictions_are_tidy() -> None:
    frame = table(rows=2).with_labels(["no", "yes"]).to_pandas("predictions")
    assert list(frame.columns) == [
        *("example", "output", "position", "feature", "value", "predicted", "label", "probability"),
    ]
    assert list(frame.feature) == ["label 0", "label 1"] * 2  # the reply's own labels come first
    assert list(frame.predicted) == [0, 0, 1, 1]
    np.testing.assert_array_equal(frame.value.to_numpy().reshape(2, 2), table().predictions["logits"])
    assert list(text().to_pandas("predictions").label) == [""] * 4


def test_empty_results_have_the_columns() -> None:
    empty = Inspection.of(ca.InspectResult({}), InspectRequest("net"))
    assert list(empty.to_pandas().columns)[:3] == ["example", "attribution", "title"]
    assert len(empty.to_pandas("predictions")) == 0
    assert dict(empty.to_xarray().sizes) == {"example": 0}


def test_bfloat16_is_float32_there() -> None:
    """Neither pandas nor xarray knows it."""
    half = numbers(2, 3).astype(ml_dtypes.bfloat16)
    result = replace(table(), predictions={"logits": half}, captures={"fc": capture(output=half)})
    assert result.to_pandas("predictions").value.dtype == np.float32
    assert result.to_xarray()["capture:fc@output"].dtype == np.float32


def test_unknown_table_is_refused() -> None:
    with pytest.raises(ca.InvalidArgument, match="'captures' is none of attributions, predictions"):
        table().to_pandas("captures")  # type: ignore[arg-type]


def test_dataset_has_every_tensor_with_named_dimensions() -> None:
    """Tensors of one owner share dimensions, so that they can be multiplied."""
    result = table(rows=3)
    data = result.to_xarray()
    nameless = replace(result, request=InspectRequest("tumours", {"": numbers(3, 30)}))
    assert nameless.to_xarray()["input:x"].dims == ("example", "x.feature")
    assert set(data.data_vars) == {
        *("input:x", "logits", "capture:fc1@output", "capture:fc1@grad_output", "gradient:x"),
        *("attribution:integrated_gradients:x", "attribution:deep_lift:x", "targets", "target_values"),
    }
    assert data["attribution:integrated_gradients:x"].dims == data["input:x"].dims == ("example", "x.feature")
    assert data["capture:fc1@output"].dims == data["capture:fc1@grad_output"].dims == ("example", "fc1@output.feature")
    chosen = data["attribution:integrated_gradients:x"].sel({"x.feature": "feature 4"})
    np.testing.assert_array_equal(chosen, result.attributions[0].values["x"][:, 4])
    product = (data["capture:fc1@output"] * data["capture:fc1@grad_output"]).sum("fc1@output.feature")
    fc1 = result.captures["fc1"]
    np.testing.assert_allclose(product, (fc1.output * fc1.grad_output).sum(axis=1), rtol=1e-5)
    assert data["attribution:deep_lift:x"].attrs["verdict"] == "DISAGREES"
    assert list(data.prediction_name.values) == ["label 0", "label 1", "label 0"]
    assert data.attrs["model"] == "tumours"


def test_dimensions_of_images_layers_and_targets() -> None:
    result = image(rows=2, side=8)
    gradients = numbers(2, 3, 3, 8, 8)  # of three targets
    result = replace(
        result,
        targets=np.zeros((2, 3), int),
        input_gradients={"image": gradients},
        parameter_gradients={"conv1.weight": numbers(2, 3)},
        captures={"conv1": capture(output=numbers(2, 16, 8, 8), grad_output=numbers(2, 3, 16, 4, 4)),
                  "fc": capture(output=numbers(7))},
    )  # fmt: skip
    dims = {name: array.dims for name, array in result.to_xarray().data_vars.items()}
    picture = ("image.channel", "image.height", "image.width")
    assert dims["attribution:saliency:image"] == ("example", *picture)
    assert dims["gradient:image"] == ("example", "target", *picture)
    assert dims["capture:conv1@output"][1:] == tuple(f"conv1@output.{role}" for role in ("channel", "height", "width"))
    other = "capture:conv1@grad_output"  # of another size than the output: dimensions of its own
    assert dims[other] == ("example", "target", *(f"{other}.{role}" for role in ("channel", "height", "width")))
    assert dims["parameter_gradient:conv1.weight"] == ("conv1.weight.axis_0", "conv1.weight.axis_1")
    assert dims["capture:fc@output"] == ("fc@output.axis_0",)
    assert text().to_xarray()["token_attribution:layer_integrated_gradients:input_ids"].dims == (
        "example",
        "tokens:layer_integrated_gradients.feature",
    )


@pytest.mark.parametrize(
    ("package", "method"), [("pandas", "to_pandas"), ("xarray", "to_xarray"), ("matplotlib", "plot")]
)
def test_missing_packages_are_named(package: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has a stable reason, and says what to install."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ca.FailedPrecondition) as caught:
        getattr(table(), method)()
    assert caught.value.reason == ca.Reason.PACKAGE_MISSING
    needs = f"{method}() needs {package}, which is not installed: pip install 'cutaway[notebook]'"
    assert str(caught.value).endswith(needs)


def test_plot_draws_the_input_and_writes_a_file(tmp_path: Path) -> None:
    result = image(rows=2)
    texts = {each.get_text() for each in result.plot(tmp_path / "shown.png", row=1).texts}
    assert "input · [3, 8, 8]" in texts
    assert "example 2 of 2" in " ".join(texts)
    assert (tmp_path / "shown.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ca.InvalidArgument, match="rows 0 to 1, not 2"):
        result.plot(row=2)
    assert table().plot(tmp_path / "shown.svg").texts
