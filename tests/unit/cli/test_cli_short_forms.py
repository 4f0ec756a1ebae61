"""Short forms of requests on the command line, and files of requests: they are what Python would have made."""

from __future__ import annotations

import io
import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
import yaml
from typer.testing import CliRunner

import cutaway as ca
from cutaway.cli import application, short_forms
from cutaway.contract.request_reader.reader import CLASSES, read_request
from cutaway.contract.requests import INPUT_FIELDS, InspectRequest
from tests.support.cli import said
from tests.support.request_files import REQUESTS
from tests.support.wire_strategies import canonical


@pytest.mark.parametrize("text", REQUESTS)
def test_a_request_file_says_what_python_says(text: str, tmp_path: Path) -> None:
    """--request reads what a job's sections hold."""
    (tmp_path / "request.yaml").write_text(text)
    assert canonical(short_forms.read_request_file(str(tmp_path / "request.yaml")).request) == canonical(REQUESTS[text])


def test_arrays_of_a_request_file_lie_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their paths are relative to the file, an option's to where the command runs; ``-`` is standard input."""
    np.save(tmp_path / "half.npy", np.full(3, 0.5))
    (tmp_path / "request.yaml").write_text("{target: {cotangent: half.npy}}")
    expected = canonical(ca.Cotangent(np.full(3, 0.5)))
    assert canonical(short_forms.read_request_file(str(tmp_path / "request.yaml")).request.target) == expected
    typed = short_forms.attribution(f"Saliency,target={{cotangent: {tmp_path / 'half.npy'}}}")
    assert canonical(typed.target) == expected
    monkeypatch.setattr("sys.stdin", io.StringIO("{target: sum}"))
    assert short_forms.read_request_file("-").request == InspectRequest("", target=ca.OutputSum())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Saliency", ca.Saliency()),
        ("saliency,target=3", ca.Saliency(target=ca.ClassIndex((3,)))),
        ("LayerGradCam:conv2,relu=true", ca.LayerGradCam(layer="conv2", relu=True)),
        ("layer_grad_cam:feature_blocks.1", ca.LayerGradCam(layer="feature_blocks.1")),
        (
            "IntegratedGradients,n_steps=7,baselines.a=0.5,baselines.b=1,quadrature=riemann_left,inputs=[a,b]",
            ca.IntegratedGradients(
                n_steps=7, baselines={"a": 0.5, "b": 1.0}, quadrature=ca.Quadrature.RIEMANN_LEFT, inputs=("a", "b")
            ),
        ),
        (
            "LRP,rules.blocks.0.fc={gamma: 0.5},rules.a=identity",
            ca.LRP(rules={"blocks.0.fc": ca.Gamma(0.5), "a": ca.RelevanceIdentity()}),
        ),
        (
            "Saliency,noise={combination: vargrad, n_samples: 9},metrics=[infidelity]",
            ca.Saliency(noise=ca.NoiseTunnel(ca.Combination.VARGRAD, 9), metrics=(ca.Infidelity(),)),
        ),
        ("conv*", ca.Capture("conv*")),
        ("conv@grad_output", ca.Capture("conv", ca.Point.GRAD_OUTPUT)),
        ("**.fc@input,grad_input", ca.Capture("**.fc", (ca.Point.INPUT, ca.Point.GRAD_INPUT))),
        ("layer3.1:relu#0", ca.Capture(op="layer3.1:relu#0")),
        (
            "rnn@output,grad_output,call=2,path='[0]'",
            ca.Capture("rnn", (ca.Point.OUTPUT, ca.Point.GRAD_OUTPUT), call=2, path="[0]"),
        ),
        ("c,reduce={mean: [2, 3]},data_type=float16", ca.Capture("c", reduce=ca.Mean((2, 3)), data_type="float16")),
        ("zero:conv1", ca.Zero("conv1")),
        ("zero:layer3.1:relu#0", ca.Zero(op="layer3.1:relu#0")),
        ("Zero::add#0@grad_output", ca.Zero(at=ca.Point.GRAD_OUTPUT, op=":add#0")),
        ("scale:fc@grad_input,factor=0.5,call=0", ca.Scale("fc", ca.Point.GRAD_INPUT, factor=0.5, call=0)),
        ("mix:conv2,weight=0.3,permutation=[1,0]", ca.Mix("conv2", weight=0.3, permutation=(1, 0))),
    ],
)
def test_a_short_form_is_a_name_a_place_and_fields(text: str, expected: ca.Attribution | ca.Capture | ca.Edit) -> None:
    """A bare name captures outputs, points follow an @, a colon makes an operator, a dot an element of a mapping."""
    reader = {ca.Capture: short_forms.capture, ca.Edit: short_forms.edit}
    kinds = [kind for kind in reader if isinstance(expected, kind)]
    assert (reader[kinds[0]] if kinds else short_forms.attribution)(text) == expected


def test_a_pair_needs_both_sides() -> None:
    """``=`` alone says nothing."""
    for text in ("no equals sign", "=value"):
        with pytest.raises(typer.BadParameter, match="is not KEY=VALUE"):
            short_forms.pair(text)


def test_the_help_lists_all_that_a_request_can_hold() -> None:
    """Every class with every field; and its example is a request."""
    text = " ".join(said("inspect", "--help").split())
    for names in CLASSES.values():
        for name, kind in names.items():
            assert f" {name} " in text
            assert [field.name for field in fields(kind) if field.name not in text] == []
    for kind in (InspectRequest, ca.Capture, ca.Slice, ca.NoiseTunnel, ca.ExplainIf):
        missing = [field.name for field in fields(kind) if f" {field.name}" not in text]
        assert [name for name in missing if name not in INPUT_FIELDS] == []
    request = read_request(yaml.safe_load(short_forms.EXAMPLE))
    assert (len(request.attributions), len(request.captures), len(request.edits)) == (2, 1, 1)


PAGE = (Path(__file__).parents[3] / "docs" / "asking.md").read_text("utf-8")


def test_the_example_of_the_documentation_is_a_request() -> None:
    """docs/asking.md shows a file that can be read."""
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    request = read_request(yaml.safe_load(example.replace("gradient.npy", "[0.5]")))
    assert (len(request.attributions), len(request.captures), len(request.edits)) == (4, 4, 2)


@pytest.mark.parametrize(("option", "words"), re.findall(r"^\| `--(.*?)` \| `(.*?)` \|$", PAGE, re.MULTILINE))
def test_a_documented_short_form_is_what_the_page_says(option: str, words: str) -> None:
    """The table of docs/asking.md: an option, and the same in a file."""
    (field, value), request = yaml.safe_load(words).popitem(), read_request(yaml.safe_load(words))
    name, text, *_ = shlex.split(option)
    if name == "target":
        assert value == [3, 5]
        assert option == "target 3 --target 5"
        return
    typed = getattr(short_forms, name.replace("-", "_"))(text)
    assert getattr(request, field) == (typed if name == "explain-if" else (typed,))


def test_options_add_to_a_request_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the options say is added to the lists of the file, and otherwise stands in place of what the file says."""
    requests: list[InspectRequest] = []

    def ask(_: ca.Client, request: InspectRequest, **_more: Any) -> ca.InspectResult:
        requests.append(request)
        return ca.InspectResult({})

    monkeypatch.setattr(ca.Client, "ask", ask)
    array = np.zeros((1, 2))
    np.savez(tmp_path / "x.npz", x=array)
    (tmp_path / "request.yaml").write_text(
        "{target: sum, captures: [a], edits: [{edit: zero, module: a}], attributions: [saliency], seed: 1,"
        " compare: true, explain_if: {probability_at_most: 0.5}, check: off, relative_tolerance: 0.1,"
        " reply_data_type: float16, max_reply_bytes: 9}"
    )
    options: list[Any] = ["--capture", "b", "--edit", "zero:b", "--attribution", "LRP", "--target", 3, "--target", 5]
    options += ["--explain-if", "classes=[3]", "--check", "independent", "--seed", 2, "--reply-dtype", "float32"]
    options += ["--input-gradient", "--no-predictions", "--compress", "--dry-run"]
    file = ["--request", str(tmp_path / "request.yaml")]
    for more in (file, [*map(str, options), *file], []):
        done = CliRunner().invoke(application.app, ["inspect", "net", str(tmp_path / "x.npz"), *more])
        assert done.exit_code == 0, done.output
    from_file = InspectRequest(
        "net",
        target=ca.OutputSum(),
        captures=(ca.Capture("a"),),
        edits=(ca.Zero("a"),),
        compare=True,
        attributions=(ca.Saliency(),),
        explain_if=ca.ExplainIf(probability_at_most=0.5),
        check=ca.CheckRequest(ca.CheckMode.OFF, 0.1),
        seed=1,
        reply_data_type="float16",
        max_reply_bytes=9,
    )
    both = InspectRequest(
        "net",
        target=ca.ClassIndex((3, 5)),
        captures=(ca.Capture("a"), ca.Capture("b")),
        input_gradients=(),
        edits=(ca.Zero("a"), ca.Zero("b")),
        compare=True,
        attributions=(ca.Saliency(), ca.LRP()),
        explain_if=ca.ExplainIf(classes=(3,)),
        check=ca.CheckRequest(ca.CheckMode.INDEPENDENT, 0.1),
        omit_predictions=True,
        seed=2,
        reply_data_type="float32",
        compression="zstd",
        max_reply_bytes=9,
        dry_run=True,
    )
    inputs = [request.tensors for request in requests]
    assert [list(tensors) for tensors in inputs] == [["x"]] * 3
    without_inputs = [InspectRequest(**{**vars(request), "tensors": {}}) for request in requests]
    assert without_inputs == [from_file, both, InspectRequest("net")]
