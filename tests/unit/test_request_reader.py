"""Requests from plain words: a file or a job says what Python would have made, or the error names the field."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import assume, given, settings

import cutaway as ca
from cutaway.contract.errors import CutawayError, Reason
from cutaway.contract.request_reader.files import load_arrays, load_yaml
from cutaway.contract.request_reader.reader import CLASSES, read, read_request
from cutaway.contract.requests import INPUT_FIELDS, Attack, InspectRequest
from cutaway.contract.tensors import Array
from cutaway.jobs import spec
from cutaway.jobs.spec import parse_request
from cutaway.views.programs import as_mapping
from tests.support.request_files import REQUESTS
from tests.support.wire_strategies import canonical, questions, with_arrays


@pytest.mark.parametrize("text", REQUESTS)
def test_a_file_says_what_python_says(text: str, tmp_path: Path) -> None:
    """Every class that can be named and every type of field, with its short forms."""
    (tmp_path / "request.yaml").write_text(text)
    assert canonical(read_request(load_yaml(tmp_path / "request.yaml"))) == canonical(REQUESTS[text])


NOT_OF_ROWS = ("parameter:", "predictions:", "sweep:", "direct:", "by_token:", "attacks:", "counterfactual:")
"""What is about one reply, and no part of a job."""


@pytest.mark.parametrize("text", [text for text in REQUESTS if not any(word in text for word in NOT_OF_ROWS)])
def test_a_job_says_the_same(text: str) -> None:
    """The sections ``request`` and ``target`` of a job are read by the same reader."""
    sections = yaml.safe_load(text)
    target = sections.pop("target", None) or "predicted"
    job = spec.Job(
        model={"archive": "a.mar"},
        data={"path": "a.npy"},
        inputs={"x": {"column": "x"}},
        output={"folder": "out"},
        target=target,
        request=sections,
    )
    assert canonical(parse_request(job.request, job.target).request) == canonical(REQUESTS[text])


@pytest.mark.parametrize("base", CLASSES)
def test_every_class_can_be_named(base: Any) -> None:
    """Each class of Python has a name, which the tests above read."""
    offered = {kind for kind in vars(ca).values() if isinstance(kind, type) and issubclass(kind, base)} - {base}
    assert set(CLASSES[base].values()) == offered
    for name, kind in CLASSES[base].items():
        tagged = base in (ca.Attribution, ca.Edit, Attack)
        with pytest.raises(CutawayError, match=r"needs this field|has no such field") as caught:
            read(base, {"method": name, "edit": name, "attack": name, "x": 0} if tagged else {name: {"x": 0}})
        assert kind.__name__ in str(caught.value)


def for_files(array: Array) -> Array:
    """float32 in place of bfloat16, which numpy's files do not have."""
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def in_file(directory: Path, array: Array) -> str:
    """The name of a new file with an array."""
    path = directory / f"{len(list(directory.iterdir()))}.npy"
    np.save(path, array)
    return path.name


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(questions)
def test_every_field_can_be_said(question: InspectRequest) -> None:
    """Whatever a request holds, but its model, inputs and examples as bytes, can be written down as YAML and files of
    arrays."""
    concepts, influence = question.concepts, question.influence
    examples = [*concepts.concepts.values(), *concepts.random] if concepts else []
    examples += [influence.training] if influence else []
    assume(all(not each.raw and bool(each.tensors) != bool(each.data_set) for each in examples))
    request = with_arrays(for_files, dataclasses.replace(question, model="", tensors={}, raw=(), feature_names={}))
    with TemporaryDirectory() as directory:
        words = as_mapping(request, partial(in_file, Path(directory)))
        del words["model"]
        loaded = load_arrays(yaml.safe_load(yaml.safe_dump(words, sort_keys=False)), Path(directory))
    assert canonical(read_request(loaded)) == canonical(request)


WRONG: dict[str, tuple[str, str]] = {
    "{atributions: []}": ("atributions", "InspectRequest has no such field; did you mean 'attributions'?"),
    "{model: digits}": ("model", "InspectRequest has no such field"),
    "{attributions: [3]}": (
        "attributions[0]",
        "must be the method's name, or a mapping with the field 'method', not 3",
    ),
    "{attributions: [{absolute: true}]}": ("attributions[0].method", "is missing; there are deconvolution, deep_lift"),
    "{attributions: [salienci]}": ("attributions[0].method", "there is no method 'salienci'; did you mean 'saliency'?"),
    "{attributions: [{method: Zzz}]}": ("attributions[0].method", "there is no method 'Zzz'; there are deconvolution,"),
    "{attributions: [saliency, {method: saliency, absolut: true}]}": (
        "attributions[1].absolut",
        "Saliency has no such field; did you mean 'absolute'?",
    ),
    "{attributions: [{method: saliency, absolute: 1}]}": ("attributions[0].absolute", "must be true or false, not 1"),
    "{attributions: [{method: integrated_gradients, n_steps: 1.5}]}": (
        "attributions[0].n_steps",
        "must be a whole number, not 1.5",
    ),
    "{attributions: [{method: integrated_gradients, n_steps: true}]}": (
        "attributions[0].n_steps",
        "must be a whole number, not True",
    ),
    "{attributions: [{method: integrated_gradients, max_delta: x}]}": (
        "attributions[0].max_delta",
        "must be a number, not 'x'",
    ),
    "{attributions: [{method: integrated_gradients, quadrature: gauss}]}": (
        "attributions[0].quadrature",
        "'gauss' is not a choice; did you mean 'gausslegendre'?",
    ),
    "{attributions: [{method: deep_lift, baselines: {x: y}}]}": (
        "attributions[0].baselines.x",
        "must be a number, a .npy file, lists of numbers or {token_id: 0}, not 'y'",
    ),
    "{attributions: [{method: deep_lift, baselines: {x: {token_id: y}}}]}": (
        "attributions[0].baselines.x.token_id",
        "must be a whole number, not 'y'",
    ),
    "{attributions: [{method: deep_lift, baselines: y}]}": (
        "attributions[0].baselines",
        "must be a number, a .npy file, lists of numbers or {token_id: 0}, not 'y'",
    ),
    "{attributions: [{method: deep_lift_shap, baselines: {x: y}}]}": (
        "attributions[0].baselines.x",
        "must be a .npy file or lists of numbers, not 'y'",
    ),
    "{attributions: [{method: deep_lift_shap, baselines: {x: [[1], [2, 3]]}}]}": (
        "attributions[0].baselines.x",
        "must be a .npy file or lists of numbers, not [[1], [2, 3]]",
    ),
    "{attributions: [gradient_shap]}": ("attributions[0].baselines", "GradientShap needs this field"),
    "{attributions: [layer_grad_cam]}": ("attributions[0].layer", "LayerGradCam needs this field"),
    "{attributions: [{method: layer_grad_cam, layer: 0}]}": (
        "attributions[0].layer",
        "must be a text; put it in quotes, not 0",
    ),
    "{attributions: [{method: neuron_gradient, neuron: {index: [1]}}]}": (
        "attributions[0].neuron.module",
        "Neuron needs this field",
    ),
    "{attributions: [{method: lrp, rules: {conv: gama}}]}": (
        "attributions[0].rules.conv",
        "there is no rule 'gama'; did you mean 'gamma'?",
    ),
    "{attributions: [{method: lrp, rules: {conv: {gamma: x}}}]}": (
        "attributions[0].rules.conv.gamma.gamma",
        "must be a number, not 'x'",
    ),
    "{attributions: [{method: lrp, rules: {conv: {identity: 1}}}]}": (
        "attributions[0].rules.conv.identity",
        "must be a mapping of names to values, not 1",
    ),
    "{attributions: [{method: saliency, metrics: [zzz]}]}": (
        "attributions[0].metrics[0]",
        "there is no metric 'zzz'; there are complexity, comprehensiveness, deletion,",
    ),
    "{attributions: [{method: saliency, noise: smothgrad}]}": (
        "attributions[0].noise.combination",
        "'smothgrad' is not a choice; did you mean 'smoothgrad'?",
    ),
    "{attributions: [{method: occlusion, windows: {image: 3}}]}": (
        "attributions[0].windows.image",
        "must be a list, such as [3], not 3",
    ),
    "{captures: [{module: conv, at: outptu}]}": (
        "captures[0].at",
        "'outptu' is not a choice; did you mean 'output'?",
    ),
    "{captures: [{module: conv, at: [input, x]}]}": ("captures[0].at[1]", "'x' is not a choice; there are input, "),
    "{captures: [{module: conv, layer: conv}]}": ("captures[0].layer", "Capture has no such field"),
    "{captures: [{module: conv, cal: 0}]}": ("captures[0].cal", "Capture has no such field; did you mean 'call'?"),
    "{captures: [{module: conv, reduce: {mean: 1, max: 2}}]}": (
        "captures[0].reduce",
        "must be one reduction by its name, which is one of max, mean, norm, project, top_k, not {'mean': 1, 'max': 2}",
    ),
    "{captures: [{module: conv, slices: [{axis: 1, start: x}]}]}": (
        "captures[0].slices[0].start",
        "must be a whole number, not 'x'",
    ),
    "{edits: [{edit: scal, module: conv, factor: 2}]}": (
        "edits[0].edit",
        "there is no edit 'scal'; did you mean 'scale'?",
    ),
    "{edits: [{edit: scale, module: conv}]}": ("edits[0].factor", "Scale needs this field"),
    "{edits: [{edit: zero, module: conv, factor: 1}]}": ("edits[0].factor", "Zero has no such field"),
    "{edits: [{edit: add, module: conv, addend: x}]}": (
        "edits[0].addend",
        "must be a number, a .npy file or lists of numbers, not 'x'",
    ),
    "{target: cros_entropy}": ("target", "there is no target 'cros_entropy'; did you mean 'cross_entropy'?"),
    "{target: top_k}": ("target.top_k.k", "TopK needs this field"),
    "{target: {sum: 3}}": ("target.sum", "must be a mapping of names to values, not 3"),
    "{target: [cat, 3]}": (
        "target",
        "['cat', 3] is no target; send a class index or label, one for each example, or a",
    ),
    "{target: {multi_index: [0, 3]}}": ("target.multi_index.indices[0]", "must be a list, such as [0], not 0"),
    "{attributions: [{method: occlusion, windows: 8}]}": (
        "attributions[0].windows",
        "must be a list, such as [8], not 8",
    ),
    "{attributions: [{method: lrp, rules: gamma}]}": ("attributions[0].rules", "by name, such as {x: 'gamma'}"),
    "{target: {cross_entropy: {labels: [1], reduction: men}}}": (
        "target.cross_entropy.reduction",
        "'men' is not a choice; did you mean 'mean'?",
    ),
    "{check: never}": ("check.mode", "'never' is not a choice; there are off, same_pass, independent"),
    "{check: off, relative_tolerance: x}": ("check.relative_tolerance", "must be a number, not 'x'"),
    "{explain_if: 0.5}": ("explain_if", "must be a mapping of names to values, not 0.5"),
    "{explain_if: {at_most: 0.5}}": ("explain_if.at_most", "ExplainIf has no such field; did you mean 'probability_"),
}


@pytest.mark.parametrize("text", WRONG)
def test_an_error_names_the_field_and_what_would_be_right(text: str) -> None:
    """Unknown, missing and mistyped fields, each with its exact path."""
    field, message = WRONG[text]
    with pytest.raises(CutawayError) as caught:
        read_request(yaml.safe_load(text))
    assert (caught.value.reason, caught.value.field) == (Reason.INVALID_VALUE, field)
    assert message in caught.value.message


@pytest.mark.parametrize("field", INPUT_FIELDS)
def test_inputs_are_no_part_of_a_file(field: str) -> None:
    """They are given beside it."""
    with pytest.raises(ca.InvalidArgument, match="has no such field") as caught:
        read_request({field: {}})
    assert caught.value.field == field


def test_tensors_are_files(tmp_path: Path) -> None:
    """Where Python takes an array, the name of a .npy file is replaced by its array, relative to the directory given;
    a file that holds none is refused by its place, and so is a pickle."""
    array = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "array.npy", array)
    edit = {"edit": "replace", "module": "fc", "tensor": "array.npy"}
    words = {"edits": [edit], "target": {"cotangent": "array.npy"}}
    request = read_request(load_arrays(words, tmp_path))
    np.testing.assert_array_equal(vars(request.edits[0])["tensor"], array, strict=True)
    np.testing.assert_array_equal(vars(request.target)["tensor"], array, strict=True)
    np.savez(tmp_path / "several.npz", array=array)
    (tmp_path / "several.npz").rename(tmp_path / "several.npy")
    np.save(tmp_path / "pickle.npy", np.array([{}]), allow_pickle=True)
    for bad in ("several", "pickle", "none"):
        edit["tensor"] = f"{bad}.npy"
        with pytest.raises(CutawayError, match=rf"{bad}\.npy (holds no array|cannot be read)") as caught:
            load_arrays(words, tmp_path)
        assert caught.value.field == "edits[0].tensor"


def test_a_job_reads_the_same_files(tmp_path: Path) -> None:
    """Arrays that a job.yaml names lie beside it, and become part of what the job is."""
    np.save(tmp_path / "half.npy", np.full((1, 4), 0.5, np.float32))
    (tmp_path / "job.yaml").write_text(
        "{model: {archive: a.mar}, data: {path: a.npy}, inputs: {x: {column: x}}, output: {folder: out},"
        " target: {cotangent: half.npy},"
        " request: {attributions: [{method: deep_lift, baselines: {x: half.npy}}]}}"
    )
    job = spec.Job.load(tmp_path / "job.yaml")
    assert job.as_json()["target"] == {"cotangent": [[0.5] * 4]}
    assert job.as_json()["data"]["path"] == str(tmp_path / "a.npy")
    (attribution,) = parse_request(job.request, job.target).request.attributions
    np.testing.assert_array_equal(vars(attribution)["baselines"]["x"], np.full((1, 4), 0.5), strict=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"{a: ", "is not YAML: "),
        (b"\xff\xfe\xff", "is not YAML: "),
        (b"", "holds no mapping of field names to values"),
        (b"[saliency]", "holds no mapping of field names to values"),
        (b"a: &a [1]\nb: [*a, *a]", "is not YAML: line 2: aliases are not read: write the value"),
        (b"a: &a [*a]", "is not YAML: line 1: aliases are not read"),
        (b"a: {b: 1, c: 2, b: 3}", "is not YAML: line 1: the key 'b' is there twice"),
        (b"a: 1\nb: 2\na: 3", "is not YAML: line 3: the key 'a' is there twice"),
        (b"{a: 1, <<: {b: 2, a: 3}}", "is not YAML: line 1: the key 'a' is there twice"),
        (b"a: " + b"[" * 2000, "is not YAML: line 1: it is nested too deeply"),
        (b"a: " + b"{b: " * 200 + b"1" + b"}" * 200, "is not YAML: line 1: it is nested too deeply"),
        (b"a: " + b"9" * 5000, "is not YAML: a value cannot be read: "),
        (b"a: 2026-13-45", "is not YAML: a value cannot be read: "),
        (b"a: !!int ''", "is not YAML: a value cannot be read: "),
        (b"a: !!bool x", "is not YAML: a value cannot be read: "),
        (b"{[1]: 2}", "is not YAML: line 1: found unhashable key"),
        (b"a: !!python/object:os.system x", "is not YAML: line 1: could not determine a constructor"),
    ],
)
def test_a_file_that_holds_no_request_is_refused(content: bytes | None, message: str, tmp_path: Path) -> None:
    """With its name and what is wrong with it."""
    file = tmp_path / "request.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(CutawayError, match=f"request.yaml {message}"):
        load_yaml(file)
