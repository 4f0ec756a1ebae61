"""``cutaway inspect``: what is typed is asked for, and what comes back is shown, drawn and saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote

import numpy as np
import pytest
from google.protobuf import json_format
from PIL import Image

import cutaway as ca
from cutaway.cli import files
from cutaway.contract.results import AttributionResult, MetricResult, TokenAttribution
from cutaway.v1 import inspection_pb2
from tests.support.cli import said, squeezed

LABELS = ("cat", "dog", "owl")  # of the model "pets"

Shown: TypeAlias = Callable[..., str]
Found: TypeAlias = Callable[..., ca.InspectResult]


def test_inspect_prints_the_prediction_that_the_client_gets(shown: Shown, found: Found) -> None:
    """The printed class, label and probability are those of the Python client for the same file."""
    expected = found().classes[0]
    assert f"0 {expected.index} {expected.label} {expected.probability:.1%}" in shown()


def test_inspect_prints_all_that_was_asked_for(shown: Shown) -> None:
    """Captures by point and call, gradients, attributions, verdicts, warnings, timings and provenance."""
    asked = ["--capture", "conv*@output,grad_output", "--capture", "relu", "--capture", "unused", "--input-gradient"]
    asked += ["--attribution", "integratedgradients,n_steps=16", "--attribution", "LayerGradCam:conv,relu=true"]
    text = shown(*asked, pictures=2, columns=200)
    for words in (
        *("conv grad_output 0 float32[2, 4, 6, 6]", "relu output 1 float32[2, 4, 6, 6]", "image float32[2, 1, 8, 8]"),
        *("IntegratedGradients image [2, 1, 8, 8]", "LayerGradCam conv [2, 1, 6, 6]", "AGREES LayerGradCam"),
        *("MODULE_NOT_CALLED unused:", "Time in ms", "forward and"),
    ):
        assert words in text


def test_inspect_explains_the_target_that_is_given(shown: Shown, found: Found) -> None:
    """--target is one class for all examples, or one for each."""
    text, expected = shown("--target", 2, "--target", 0, pictures=2), found(2, target=[2, 0]).target_values
    assert expected is not None
    assert f"% owl {expected[0]:.3g} 1 " in text
    assert f"% cat {expected[1]:.3g} Time" in text


def test_inspect_explains_targets_of_all_kinds(shown: Shown, found: Found, tmp_path: Path) -> None:
    """The value printed for a target in a request file is that of the same target in Python."""
    vector = np.array([[1.0, -2.0, 0.5]], np.float32)
    np.save(tmp_path / "vector.npy", vector)
    targets: dict[str, ca.Target] = {
        "{multi_index: [[2]]}": ca.MultiIndex(((2,),)),
        "{cross_entropy: {labels: [2], reduction: mean}}": ca.CrossEntropy((2,), ca.LossReduction.MEAN),
        "{mean_squared_error: vector.npy}": ca.MeanSquaredError(vector),
        "{cotangent: vector.npy}": ca.Cotangent(vector),
        "sum": ca.OutputSum(),
        "{norm: 1}": ca.OutputNorm(1),
        "{neuron: {module: conv, index: [3, 1, 1]}}": ca.Neuron("conv", (3, 1, 1)),
    }
    file = tmp_path / "request.yaml"
    for words, target in targets.items():
        expected = found(target=target).target_values
        assert expected is not None
        file.write_text(f"target: {words}")
        assert f" {expected[0]:.3g} Time" in shown("--request", file), words


def test_inspect_explains_the_largest_classes(shown: Shown, found: Found, tmp_path: Path) -> None:
    """A top-k target has a row for each class, and each explanation says of which class it is."""
    file = tmp_path / "request.yaml"
    file.write_text("{target: {top_k: 2}, captures: [{parameter: conv.weight, reduce: {norm: 1}}]}")
    text = shown("--request", file, "--input-gradient", "--attribution", "Saliency", columns=120)
    expected = found(target=ca.TopK(2))
    assert expected.targets is not None
    assert expected.target_values is not None
    names = "Saliency", "Saliency (2)"
    for name, number, value in zip(names, expected.targets[0], expected.target_values[0], strict=True):
        assert f" 0 {LABELS[number]} {value:.3g} " in text
        assert f"{name} image [1, 1, 8, 8] {LABELS[number]} " in text
    assert "image float32[1, 2, 1, 8, 8]" in text
    assert "conv.weight float32[2, 4, 3, 3]" in text  # of each class, without the axis of the one input channel


def test_inspect_reads_arrays(address: str, tmp_path: Path) -> None:
    """A .npy goes to the model's one input or to the one named, a .npz to those that it names."""
    array = np.random.default_rng(0).random((2, 1, 8, 8), np.float32)
    np.save(tmp_path / "one.npy", array)
    np.savez(tmp_path / "named.npz", image=array)
    answers = {
        squeezed(said("inspect", "pets", tmp_path / file, *named, "--address", address)).partition("Time")[0]
        for file, *named in (["one.npy"], ["one.npy", "--name", "image"], ["named.npz"])
    }
    assert len(answers) == 1


def test_inspect_shows_outputs_of_a_model_without_classes(address: str, tmp_path: Path) -> None:
    """Each output is shown by name, shape and first values: integers whole, names as they are."""
    np.save(tmp_path / "left.npy", np.full((1, 2), 0.25, np.float32))
    np.savez(tmp_path / "right.npz", right=np.ones((1, 2), np.float32))
    files = [tmp_path / "left.npy", tmp_path / "right.npz"]
    text = squeezed(said("inspect", "pair", *files, "--name", "left", "--address", address))
    assert "sum[0] float32[1, 2] 1.25 1.25" in text
    assert "ids int64[1, 2] 123456 123456" in text


def test_inspect_edits_and_compares(shown: Shown, found: Found, tmp_path: Path) -> None:
    """Typed edits do what those of Python do, in their order; --compare shows both predictions."""
    addend = np.array([0.0, 0.0, 9.0], np.float32)
    np.save(tmp_path / "addend.npy", addend)
    typed = ["zero:conv", f"add:head,addend={tmp_path / 'addend.npy'},rows=[1]", "scale:relu:relu#0,factor=0.5,call=1"]
    edits = [ca.Zero("conv"), ca.Add("head", addend=addend, rows=(1,)), ca.Scale(op="relu:relu#0", factor=0.5, call=1)]
    expected = found(2, edits=edits, compare=True)
    text = shown(*(word for edit in typed for word in ("--edit", edit)), "--compare", pictures=2)
    assert expected.classes[1].label == "owl" != expected.unedited_classes[1].label
    for before, after in zip(expected.unedited_classes, expected.classes):
        assert f"{before.probability:.1%} -> {after.probability:.1%}" in text
    assert f"{expected.unedited_classes[1].label} -> owl" in text


def test_inspect_captures_operators_and_parts(shown: Shown) -> None:
    """An operator's address is captured like a module's name; options cut and reduce what comes back."""
    captures = ["relu:relu#0@output,grad_output,call=1", "**:conv2d#0,reduce={mean: [2, 3]}"]
    captures += ["head,reduce={top_k: 2}", "conv,slices=[{axis: 1, start: 0, stop: 2}]"]
    text = shown(*(word for capture in captures for word in ("--capture", capture)), pictures=2, columns=120)
    assert "relu:relu#0 grad_output float32[2, 4, 6, 6]" in text
    assert "feature_blocks.1.0:conv2d#0 output float32[2, 4]" in text
    assert "head output float32[2, 2]" in text
    assert "conv output float32[2, 2, 6, 6]" in text


def test_inspect_leaves_predictions_out(shown: Shown, tmp_path: Path) -> None:
    """--no-predictions answers, draws and saves all else."""
    picture, file = tmp_path / "answer.png", tmp_path / "answer.npz"
    text = shown("--no-predictions", "--capture", "conv,call=0", "--plot", picture, "--save", file, pictures=2)
    assert "Prediction" not in text
    assert "conv output float32[2, 4, 6, 6]" in text
    with Image.open(picture) as drawn:
        assert drawn.format == "PNG"
    with np.load(file) as saved:
        assert saved.files == ["capture:conv@output"]


def test_inspect_saves_every_tensor(shown: Shown, found: Found, tmp_path: Path) -> None:
    """--save writes what came back, bit for bit: both predictions, positions, gradients, calls and attributions."""
    file, request = tmp_path / "answer.npz", tmp_path / "request.yaml"
    request.write_text("captures: [{parameter: conv.weight}]")
    words = ["--edit", "scale:conv,factor=2", "--compare", "--capture", "head,reduce={top_k: 2}", "--request", request]
    words += ["--capture", "relu", "--capture", "**.0", "--input-gradient", "--attribution", "Saliency"]
    text = shown(*words, "--save", file, "--plot", tmp_path / "answer.png")
    answer = found(
        captures=[ca.Capture("head", reduce=ca.TopElements(2)), ca.Capture(parameter="conv.weight"), "relu"],
        edits=[ca.Scale("conv", factor=2)],
        compare=True,
        input_gradients=True,
        attributions=[ca.Saliency()],
    )
    expected = {
        "output": answer.predictions["output"],
        "unedited:output": answer.unedited["output"],
        "unedited:prediction": np.array([answer.unedited_classes[0].index]),
        "capture:head@output": answer.captures["head"].output,
        "capture:relu@output#1": answer.captures["relu"].calls[1].output,
        "positions:head@output": answer.captures["head"].calls[0].positions[ca.Point.OUTPUT][""],
        "gradient:image": answer.input_gradients["image"],
        "parameter_gradient:conv.weight": answer.parameter_gradients["conv.weight"],
        "attribution:saliency:image": answer.attributions[0].values["image"],
    }
    with np.load(file) as saved:
        assert f"saved {len(saved.files)} tensors to {file}" in text
        assert saved["capture:feature_blocks.0.0@output"].shape == (1, 4, 6, 6)
        for key, array in expected.items():
            np.testing.assert_array_equal(saved[key], array, key)


def test_tokens_and_metrics_are_saved_too(tmp_path: Path) -> None:
    """Ids and sums of tokens, and each metric of the question: two of a kind do not hide each other."""
    judged = tuple(MetricResult("infidelity", np.array([float(number)])) for number in range(2))
    tokens = TokenAttribution("ids", np.array([[1, 2]]), np.array([[0.5, -0.5]]), (("a", "b"),))
    answer = AttributionResult("LayerActivation", "words", {}, tokens=tokens, metrics=judged)
    file = tmp_path / "answer.npz"
    assert files.save(ca.InspectResult({}, attributions=(answer,)), file) == 4
    with np.load(file) as saved:
        found = {key: saved[key].tolist() for key in saved.files}
    assert found == {
        "token_ids:layer_activation:ids": [[1, 2]],
        "token_attribution:layer_activation:ids": [[0.5, -0.5]],
        "metric:layer_activation:infidelity": [0.0],
        "metric:layer_activation:infidelity#1": [1.0],
    }


def test_a_question_opens_in_the_inspector(
    address: str, image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--web prints the address of the same question in the page, inputs included, and opens it; large inputs stay."""
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    web = ["--web", "http://127.0.0.1:8080/", "--address", address]
    text = said("inspect", "pets", image, "--capture", "conv@output", *web)
    (link,) = opened
    assert link in text
    page, _, question = link.partition("/#/ask?question=")
    assert page == "http://127.0.0.1:8080"
    request = json_format.Parse(unquote(question), inspection_pb2.InspectRequest())
    assert request.raw.examples[0].data == image.read_bytes()
    assert [each.module for each in request.captures] == ["conv"]
    large = tmp_path / "large.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (400, 400), np.uint8)).save(large)
    said("inspect", "pets", large, *web)
    assert "raw" not in unquote(opened[-1])
    assert len(opened[-1]) <= files.MAX_CHARS
