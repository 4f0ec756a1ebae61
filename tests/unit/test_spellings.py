"""Every way to write a request takes the same spellings, and gives the same help for a wrong name."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
import yaml
from captum import attr, metrics

import cutaway as ca
from cutaway.cli import short_forms
from cutaway.client.request_builder import build_request
from cutaway.contract.errors import CutawayError
from cutaway.contract.requests import INPUT_FIELDS, InspectRequest
from cutaway.contract.requests.fields import field_advice, plain
from cutaway.contract.wire.methods import METHODS
from cutaway.jobs import spec
from cutaway.jobs.spec import parse_request
from tests.support.wire_strategies import canonical


def by_python(words: dict[str, Any], _: Path) -> InspectRequest:
    """As `Client.inspect` reads its arguments."""
    return build_request("", {}, **words)


def by_file(words: dict[str, Any], directory: Path) -> InspectRequest:
    """As ``cutaway inspect --request`` reads a file."""
    (directory / "request.yaml").write_text(yaml.safe_dump(words))
    try:
        return short_forms.read_request_file(str(directory / "request.yaml")).request
    except typer.BadParameter as failure:
        raise AssertionError(failure.message) from None


def by_job(words: dict[str, Any], _: Path) -> InspectRequest:
    """As a job reads its sections ``target`` and ``request``."""
    request = dict(words)
    job = spec.Job(
        model="a.mar", data="a.csv", inputs={"x": {"column": "x"}}, output="out",
        target=request.pop("target", "predicted"), request=request,
    )  # fmt: skip
    return parse_request(job.request, job.target).request


DOORS: dict[str, Callable[[dict[str, Any], Path], InspectRequest]] = {
    "python": by_python,
    "file": by_file,
    "job": by_job,
}

GRAD_CAM = {"attributions": (ca.LayerGradCam(layer="conv2"),)}
GRADIENT = {"captures": (ca.Capture("conv1", ca.Point.GRAD_OUTPUT),)}
SCALED = {"edits": (ca.Scale("fc", ca.Point.INPUT, factor=2.0),)}
MEAN = {"captures": (ca.Capture("c", reduce=ca.Mean((1,))),)}
PATH = {"attributions": (ca.IntegratedGradients(quadrature=ca.Quadrature.RIEMANN_LEFT),)}
GREY = {"attributions": (ca.DeepLift(baselines={"": 0.5}),)}
TUNNEL = {"attributions": (ca.Saliency(noise=ca.NoiseTunnel(ca.Combination.VARGRAD)),)}
JUDGED = {"attributions": (ca.Saliency(metrics=(ca.SensitivityMax(),)),)}
RULED = {"attributions": (ca.LRP(rules={"fc": ca.AlphaOneBetaZero()}),)}
HALF = {"captures": (ca.Capture("c", data_type="float16"),)}

SPELLINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *(({"attributions": name}, {"attributions": (ca.IntegratedGradients(),)})
      for name in ("integrated_gradients", "IntegratedGradients", "integratedgradients", ["INTEGRATED_GRADIENTS"])),
    *(({"attributions": each}, GRAD_CAM)
      for each in ("layer_grad_cam:conv2", "LayerGradCam:conv2", {"method": "LayerGradCam", "layer": "conv2"},
                   [{"method": "layer_grad_cam:conv2"}])),
    *(({"captures": each}, GRADIENT)
      for each in ("conv1@grad_output", {"module": "conv1", "at": "GRAD_OUTPUT"},
                   {"layer": "conv1", "at": "GradOutput"})),
    ({"captures": "relu:relu#0"}, {"captures": (ca.Capture(op="relu:relu#0"),)}),
    *(({"edits": [each]}, SCALED)
      for each in ({"edit": "Scale", "module": "fc", "at": "Input", "factor": 2},
                   {"edit": "scale:fc@input", "factor": 2})),
    ({"edits": "Zero:conv1"}, {"edits": (ca.Zero("conv1"),)}),
    *(({"captures": {"module": "c", "reduce": each}}, MEAN)
      for each in ({"mean": 1}, {"Mean": [1]}, {"MEAN": {"axes": [1]}})),
    *(({"attributions": {"method": "IntegratedGradients", "quadrature": each}}, PATH)
      for each in ("riemann_left", "RiemannLeft", "RIEMANN_LEFT")),
    ({"attributions": {"method": "DeepLift", "baselines": 0.5}}, GREY),
    *(({"attributions": {"method": "saliency", "noise": each}}, TUNNEL)
      for each in ("vargrad", "VarGrad", "VAR_GRAD")),
    ({"attributions": {"method": "saliency", "noise": {"combination": "VARGRAD"}}}, TUNNEL),
    *(({"attributions": {"method": "saliency", "metrics": [each]}}, JUDGED)
      for each in ("sensitivity_max", "SensitivityMax", "sensitivitymax")),
    ({"attributions": {"method": "saliency", "metrics": [{"SensitivityMax": {}}]}}, JUDGED),
    *(({"attributions": {"method": "lrp", "rules": {"fc": each}}}, RULED)
      for each in ("alpha_one_beta_zero", "AlphaOneBetaZero")),
    *(({"captures": {"module": "c", "data_type": each}}, HALF) for each in ("float16", "Float16", "torch.float16")),
    *(({"target": each}, {"target": ca.OutputSum()}) for each in ("sum", "OutputSum", "Sum")),
    ({"target": {"Sum": {}}}, {"target": ca.OutputSum()}),
    *(({"target": each}, {"target": ca.PredictedClass()})
      for each in ("predicted", "predicted_class", "PredictedClass")),
    ({"target": 3}, {"target": ca.ClassIndex((3,))}),
    ({"target": ["cat", "dog"]}, {"target": ca.ClassLabel(("cat", "dog"))}),
    *(({"check": each}, {"check": ca.CheckRequest(ca.CheckMode.SAME_PASS)}) for each in ("same_pass", "SamePass")),
    ({"explain_if": {"classes": [3]}}, {"explain_if": ca.ExplainIf(classes=(3,))}),
]  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(("words", "meant"), SPELLINGS, ids=[str(words) for words, _ in SPELLINGS])
def test_every_door_takes_every_spelling(
    door: str, words: dict[str, Any], meant: dict[str, Any], tmp_path: Path
) -> None:
    """Capitals, underscores, short forms and single values mean the same in Python, in a file and in a job."""
    assert canonical(DOORS[door](words, tmp_path)) == canonical(InspectRequest("", **meant))


@pytest.mark.parametrize(
    ("read", "text", "meant"),
    [
        (short_forms.attribution, "LayerGradCam:conv2", GRAD_CAM["attributions"]),
        (short_forms.attribution, "layer_grad_cam:conv2", GRAD_CAM["attributions"]),
        (short_forms.attribution, "integratedgradients,quadrature=RiemannLeft", PATH["attributions"]),
        (short_forms.attribution, "DeepLift,baselines=0.5", GREY["attributions"]),
        (short_forms.attribution, "saliency,noise=VarGrad", TUNNEL["attributions"]),
        (short_forms.capture, "conv1@GradOutput", GRADIENT["captures"]),
        (short_forms.capture, "c,data_type=torch.float16", HALF["captures"]),
        (short_forms.capture, "c,reduce={Mean: 1}", MEAN["captures"]),
        (short_forms.edit, "Scale:fc@INPUT,factor=2", SCALED["edits"]),
        (lambda text: short_forms.target([text]), "OutputSum", (ca.OutputSum(),)),
        (lambda text: short_forms.target([text]), "3", (ca.ClassIndex((3,)),)),
        (lambda text: short_forms.target([text, "3"]), "cat", (ca.ClassLabel(("cat", "3")),)),
        (short_forms.floating_type, "Float16", ("float16",)),
    ],
)  # fmt: skip
def test_options_take_the_same_spellings(read: Callable[[str], Any], text: str, meant: Any) -> None:
    """As do those of ``cutaway inspect``."""
    assert canonical((read(text),)) == canonical(meant)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ({"captures": ca.Capture("conv1", at="GRAD_OUTPUT")}, GRADIENT),  # type: ignore[arg-type]
        ({"captures": ca.Capture("c", reduce={"mean": 1})}, MEAN),  # type: ignore[arg-type]
        ({"captures": ca.Capture("c", reduce=ca.Mean(1))}, MEAN),  # type: ignore[arg-type]
        ({"captures": ca.Capture("c", data_type=np.float16)}, HALF),  # type: ignore[arg-type]
        ({"attributions": ca.Saliency(noise="vargrad")}, TUNNEL),  # type: ignore[arg-type]
        ({"attributions": ca.Saliency(metrics=("SensitivityMax",))}, JUDGED),  # type: ignore[arg-type]
        ({"attributions": ca.DeepLift(baselines=0.5)}, GREY),  # type: ignore[arg-type]
        ({"attributions": ca.LRP(rules={"fc": "AlphaOneBetaZero"})}, RULED),  # type: ignore[dict-item]
        ({"target": np.array([1, 2])}, {"target": ca.ClassIndex((1, 2))}),
        ({"seed": np.int64(3), "compare": np.True_}, {"seed": 3, "compare": True}),
    ],
)
def test_names_may_stand_in_objects_of_python(written: dict[str, Any], meant: dict[str, Any]) -> None:
    """The fields of an object are read like those of a mapping."""
    assert canonical(build_request("", {}, **written)) == canonical(InspectRequest("", **meant))


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"attributions": "IntegratedGradient"}, "attributions[0].method",
     "there is no method 'IntegratedGradient'; did you mean 'integrated_gradients'?"),
    ({"attributions": {"method": "saliency", "noise": {"nt_samples": 5}}}, "attributions[0].noise.nt_samples",
     "NoiseTunnel has no such field; did you mean 'n_samples'?"),
    ({"attributions": {"method": "Occlusion", "sliding_window_shapes": {"x": [1]}}},
     "attributions[0].sliding_window_shapes",
     "Occlusion has no such field; did you mean 'windows'?"),
    ({"attributions": {"method": "saliency", "nt_samples": 5}}, "attributions[0].nt_samples",
     "Saliency has no such field; noisy copies of the inputs are a part of the attribution: noise=NoiseTunnel("),
    ({"attributions": {"method": "kernel_shap", "perturbations_per_eval": 5}}, "attributions[0].perturbations_per_eval",
     "KernelShap has no such field; the server chooses the size of passes itself"),
    ({"attributions": {"method": "saliency", "baselines": 0}}, "attributions[0].baselines",
     "Saliency has no such field; no baseline is used here"),
    ({"attributions": {"method": "layer_grad_cam:c", "attribute_to_layer_input": True}},
     "attributions[0].attribute_to_layer_input",
     "LayerGradCam has no such field; a module is explained at its output"),
    ({"captures": "conv1@outptu"}, "captures[0].at", "'outptu' is not a choice; did you mean 'output'?"),
    ({"captures": {"module": "c", "data_type": "float17"}}, "captures[0].data_type",
     "'float17' is not a choice; did you mean 'float16'?"),
    ({"captures": {"module": "c", "reduce": "men"}}, "captures[0].reduce",
     "there is no reduction 'men'; did you mean 'mean'?"),
    ({"edits": "scal:conv1"}, "edits[0].edit", "there is no edit 'scal'; did you mean 'scale'?"),
    ({"target": "cros_entropy"}, "target",
     "there is no target 'cros_entropy'; did you mean 'cross_entropy'? A class of that name is {class_label: 'cros"),
    ({"check": "sometimes"}, "check.mode", "'sometimes' is not a choice; there are off, same_pass, independent"),
    ({"internal_batch_size": 3}, "internal_batch_size", "InspectRequest has no such field; the server chooses"),
    ({"capture": "conv1"}, "capture", "InspectRequest has no such field; did you mean 'captures'?"),
]  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(("words", "field", "message"), WRONG, ids=[field for _, field, _ in WRONG])
def test_every_door_gives_the_same_help(
    door: str, words: dict[str, Any], field: str, message: str, tmp_path: Path
) -> None:
    """A wrong name is told with the right one, or with what to do instead."""
    with pytest.raises((CutawayError, AssertionError)) as caught:
        DOORS[door](words, tmp_path)
    said = str(caught.value)
    prefix = "request." if door == "job" and "target" not in words else ""
    assert message in said
    assert f"{prefix}{field}" in said


@pytest.mark.parametrize(
    ("construct", "message"),
    [
        (lambda: ca.NoiseTunnel(nt_samples=5),  # type: ignore[call-arg]
         "NoiseTunnel has no argument 'nt_samples'; did you mean 'n_samples'?"),
        (lambda: ca.Occlusion(windows={}, sliding_window_shapes=3),  # type: ignore[call-arg]
         "did you mean 'windows'?"),
        (lambda: ca.IntegratedGradients(internal_batch_size=8),  # type: ignore[call-arg]
         "the server chooses the size of passes itself"),
        (lambda: ca.IntegratedGradients(steps=64), "did you mean 'n_steps'?"),  # type: ignore[call-arg]
        (lambda: ca.Capture("conv1", cal=0), "did you mean 'call'?"),  # type: ignore[call-arg]
        (lambda: ca.LayerGradCam(), "LayerGradCam needs 'layer'"),  # type: ignore[call-arg]
    ],
)  # fmt: skip
def test_constructors_give_the_help_too(construct: Callable[[], Any], message: str) -> None:
    """As a TypeError, whose signature is the class's own."""
    with pytest.raises(TypeError) as caught:
        construct()
    assert message in str(caught.value)
    assert list(inspect.signature(ca.NoiseTunnel).parameters) == ["combination", "n_samples", "stdev"]


@pytest.mark.parametrize("verb", [ca.Client.inspect, ca.Client.inspect_stream], ids=lambda verb: verb.__name__)
def test_the_client_spells_out_every_field(verb: Any) -> None:
    """Its signature has each field of a request once, with a default that means what the request's own means."""
    parameters = dict(inspect.signature(verb).parameters)
    for name in ("self", "inputs", "stream", "timeout", "progress"):
        parameters.pop(name, None)
    fields = {field.name for field in dataclasses.fields(InspectRequest)} - {*INPUT_FIELDS, "omit_predictions"}
    assert parameters.keys() == fields | {"predictions"}
    given = {name: each.default for name, each in parameters.items() if name != "model"}
    assert build_request("m", {}, **given) == InspectRequest("m")


METRICS = {ca.Infidelity: metrics.infidelity, ca.SensitivityMax: metrics.sensitivity_max}


def parameters_of_captum(kind: type) -> set[str]:
    """The names of what Captum's constructor and ``attribute`` take for a class of ours."""
    theirs: Any = getattr(attr, kind.__name__, None)
    functions = (METRICS[kind],) if kind in METRICS else (theirs.__init__, theirs.attribute)
    return {name for function in functions for name in inspect.signature(function).parameters} - {"self", "kwargs"}


@pytest.mark.parametrize("kind", [*METHODS.kinds.values(), ca.NoiseTunnel, *METRICS], ids=lambda kind: kind.__name__)
def test_every_name_of_captum_is_known(kind: Any) -> None:
    """Each parameter that Captum has is a field of the same name, or the advice says more than which fields there are.

    What is explained is no parameter of ours, but the request's input.
    """
    known = {field.name for field in kind.__dataclass_fields__.values()}
    for name in parameters_of_captum(kind) - known - {"inputs", "attributions"}:
        assert not field_advice(name, known).startswith("there are "), name


class Unwritten(list[int]):
    """A list that takes too long to write out."""

    def __str__(self) -> str:
        raise AssertionError("it was written out")


def test_a_list_is_no_name_and_of_a_text_so_much_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """As large as a message may be, they would hold up every other caller."""
    longest, near = [0], difflib.get_close_matches

    def noted(name: str, *more: Any) -> Any:
        longest.append(len(name))
        return near(name, *more)

    monkeypatch.setattr(difflib, "get_close_matches", noted)
    assert plain(Unwritten([0])) == ""
    for value in (Unwritten([0]), "x" * 10**6):
        with pytest.raises(CutawayError, match="off, same_pass, independent"):
            build_request("", {}, check=value)
    with pytest.raises(CutawayError):
        build_request("", {}, target="sun" * 10**6, attributions=["saliency"], captures=["a"], check="s" * 10**6)
    assert 0 < max(longest) <= 200


def test_only_one_place_compares_names() -> None:
    """So that no other one compares texts as long as a message."""
    sources = Path(ca.__file__).parent.rglob("*.py")
    assert [source.stem for source in sources if "difflib" in source.read_text("utf-8")] == ["values"]
