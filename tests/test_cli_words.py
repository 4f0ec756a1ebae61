"""The words that ``cutaway inspect`` takes: typed, they are what Python would have made."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import cutaway as ca
from cutaway import cli
from cutaway.cli import attributions, captures, conditions, edits, places, targets, words
from cutaway.cli.attributions import attribution
from cutaway.cli.captures import capture, parameter
from cutaway.cli.conditions import condition
from cutaway.cli.edits import edit
from cutaway.cli.targets import target, together
from cutaway.requests import LrpRule, Metric, Reduction
from tests.command import said


def offered_in_python(base: type) -> set[type]:
    """The kinds of ``base`` that `cutaway` has."""
    kinds = {kind for kind in vars(ca).values() if isinstance(kind, type) and issubclass(kind, base)}
    return kinds - {base}


def test_every_kind_is_offered() -> None:
    """Each method, verb, target, reduction, rule and metric that Python offers can be asked for by name; the help lists
    all of them, and how noise is combined."""
    assert set(attributions.METHODS.values()) == offered_in_python(ca.Attribution)
    assert set(edits.VERBS.values()) == offered_in_python(ca.Edit)
    assert set(targets.TARGETS.values()) == offered_in_python(ca.Target)
    assert len([key for key in captures.KEYS.values() if key.field == "reduce"]) == len(offered_in_python(Reduction))
    rules, metrics = words.short_names(LrpRule), words.short_names(Metric)
    assert set(rules.values()) == offered_in_python(LrpRule)
    assert set(metrics.values()) == offered_in_python(Metric)
    help_text = said("inspect", "--help")
    names = {*attributions.METHODS, *edits.VERBS, *targets.TARGETS, *captures.KEYS, *ca.Combination}
    shown = {*names, *(f"rules.NAME={rule}" for rule in rules), *(f"metrics={metric}" for metric in metrics)}
    assert [name for name in shown if f" {name}" not in help_text] == []


def test_every_parameter_can_be_typed() -> None:
    """No field of a method, a verb, a target, a condition or a capture is left to Python alone."""
    for method in attributions.METHODS.values():
        assert {*words.keys(method), "target"} == {field.name for field in fields(method)}
    for kind in targets.TARGETS.values():
        assert {*words.keys(kind)} == {field.name for field in fields(kind)}
    for verb in edits.VERBS.values():
        known = {key.field for key in places.place_keys(verb).values()}
        assert {*known, *places.WHERE} >= {field.name for field in fields(verb)}
    assert {key.field for key in conditions.KEYS.values()} == {field.name for field in fields(ca.ExplainIf)}
    known = {key.field for key in captures.KEYS.values()}
    assert {*known, *places.WHERE} == {field.name for field in fields(ca.Capture)}


def test_a_typed_attribution_is_what_python_makes() -> None:
    """Whatever the types of its parameters, and whatever it explains."""
    typed = "IntegratedGradients,n_steps=7,baselines.a=0.5,baselines.b=1,quadrature=riemann_left,inputs=a,inputs=b"
    assert attribution(f"{typed},multiply_by_inputs=false,target=3") == ca.IntegratedGradients(
        n_steps=7,
        baselines={"a": 0.5, "b": 1.0},
        quadrature=ca.Quadrature.RIEMANN_LEFT,
        inputs=("a", "b"),
        multiply_by_inputs=False,
        target=ca.ClassIndex((3,)),
    )
    assert attribution("layergradcam:feature_blocks.1,relu=True") == ca.LayerGradCam(
        layer="feature_blocks.1", relu=True
    )
    assert attribution("Saliency,target=neuron:conv2:3+1+1").target == ca.Neuron("conv2", (3, 1, 1))


@pytest.mark.parametrize(
    ("typed", "made"),
    [
        ("NeuronGradient,neuron=conv2:3+1+1", ca.NeuronGradient(neuron=ca.Neuron("conv2", (3, 1, 1)))),
        (
            "neuron_deep_lift,neuron=fc:2,baselines.x=0.5",
            ca.NeuronDeepLift(neuron=ca.Neuron("fc", (2,)), baselines={"x": 0.5}),
        ),
        (
            "LRP,rules.conv1=gamma:0.5,rules.blocks.0.fc=epsilon:0.1,rules.a=identity,rules.b=alpha_one_beta_zero",
            ca.LRP(
                rules={
                    "conv1": ca.Gamma(0.5),
                    "blocks.0.fc": ca.Epsilon(0.1),
                    "a": ca.RelevanceIdentity(),
                    "b": ca.AlphaOneBetaZero(),
                }
            ),
        ),
        (
            "layer_lrp:conv,rules.a=Gamma,rules.b=AlphaOneBetaZero,rules.c=relevance_identity",
            ca.LayerLRP(layer="conv", rules={"a": ca.Gamma(), "b": ca.AlphaOneBetaZero(), "c": ca.RelevanceIdentity()}),
        ),
        ("Saliency,noise=vargrad", ca.Saliency(noise=ca.NoiseTunnel(ca.Combination.VARGRAD))),
        ("Saliency,noise=smoothgrad:10:0.2", ca.Saliency(noise=ca.NoiseTunnel(n_samples=10, stdev=0.2))),
        ("Saliency,noise=::0.2", ca.Saliency(noise=ca.NoiseTunnel(stdev=0.2))),
        (
            "Saliency,metrics=infidelity:10:0.03,metrics=sensitivity_max,metrics=infidelity::1",
            ca.Saliency(metrics=(ca.Infidelity(10, 0.03), ca.SensitivityMax(), ca.Infidelity(stdev=1))),
        ),
        ("InternalInfluence:fc,max_delta=0.01", ca.InternalInfluence(layer="fc", max_delta=0.01)),
        (
            "Occlusion,windows.a=1+3+3,windows.b=2,strides.a=1+2+2",
            ca.Occlusion(windows={"a": (1, 3, 3), "b": (2,)}, strides={"a": (1, 2, 2)}),
        ),
        ("LayerFeatureAblation:conv,baseline=-1", ca.LayerFeatureAblation(layer="conv", baseline=-1)),
    ],
)
def test_what_a_parameter_is_made_of_stands_between_colons(typed: str, made: ca.Attribution) -> None:
    """Neurons, noise, rules and metrics are typed in Python's order, those of several kinds behind the kind's name,
    however it is spelt; a part that is left out is at its default."""
    assert attribution(typed) == made


def test_a_token_is_told_from_a_number() -> None:
    """``token:0`` is a token's id, and 0 a number, which says the same to Python's ``==``."""
    typed = attribution("LayerIntegratedGradients:words,baselines.ids=token:7,baselines.mask=7")
    baselines = vars(typed)["baselines"]
    assert {name: (type(given), given) for name, given in baselines.items()} == {
        "ids": (ca.TokenId, 7),
        "mask": (float, 7),
    }


@pytest.mark.parametrize(
    ("typed", "made"),
    [
        ("at_least=0.5", ca.ExplainIf(probability_at_least=0.5)),
        (
            "at_least=0.5,at_most=0.9,classes=3+5",
            ca.ExplainIf(probability_at_least=0.5, probability_at_most=0.9, classes=(3, 5)),
        ),
        ("probability_at_most=1,classes=3,classes=5", ca.ExplainIf(probability_at_most=1, classes=(3, 5))),
    ],
)
def test_a_condition_is_bounds_joined_by_commas(typed: str, made: ca.ExplainIf) -> None:
    """Each bound has Python's name, and a shorter one."""
    assert condition(typed) == made


def test_the_condition_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """--explain-if is what the client is asked; without it, every example is explained."""
    asked: list[object] = []

    def inspect(_: ca.Client, *__: object, explain_if: ca.ExplainIf | None, **___: object) -> ca.InspectResult:
        asked.append(explain_if)
        return ca.InspectResult({})

    monkeypatch.setattr(ca.Client, "inspect", inspect)
    np.savez(tmp_path / "x.npz", x=np.zeros((1, 2)))
    for option in (["--explain-if", "at_most=0.5"], []):
        done = CliRunner().invoke(cli.app, ["inspect", "net", str(tmp_path / "x.npz"), *option])
        assert done.exit_code == 0, done.output
    assert asked == [ca.ExplainIf(probability_at_most=0.5), None]


@pytest.mark.parametrize(
    ("typed", "made"),
    [
        ("conv*", ca.Capture("conv*", ca.Point.OUTPUT)),
        ("**.fc@input,grad_input", ca.Capture("**.fc", (ca.Point.INPUT, ca.Point.GRAD_INPUT))),
        ("rnn@output,call=2,path=[0]", ca.Capture("rnn", (ca.Point.OUTPUT,), call=2, path="[0]")),
        ('m,path=["a,b=c"],call=0', ca.Capture("m", ca.Point.OUTPUT, call=0, path='["a,b=c"]')),
        ("layer3.1:relu#0", ca.Capture(at=ca.Point.OUTPUT, op="layer3.1:relu#0")),
        (":add#0@grad_output", ca.Capture(at=(ca.Point.GRAD_OUTPUT,), op=":add#0")),
        ("c,mean=2+3", ca.Capture("c", ca.Point.OUTPUT, reduce=ca.Mean((2, 3)))),
        ("c,max=-1", ca.Capture("c", ca.Point.OUTPUT, reduce=ca.Max((-1,)))),
        ("c,norm=1,dtype=float16", ca.Capture("c", ca.Point.OUTPUT, reduce=ca.Norm((1,)), data_type="float16")),
        ("c,top=5", ca.Capture("c", ca.Point.OUTPUT, reduce=ca.TopElements(5))),
        ("c,top=5:1", ca.Capture("c", ca.Point.OUTPUT, reduce=ca.TopElements(5, axis=1))),
        ("c,slice=1:0:8:2", ca.Capture("c", ca.Point.OUTPUT, slices=(ca.Slice(1, 0, 8, 2),))),
        ("c,slice=1::-1,slice=2", ca.Capture("c", ca.Point.OUTPUT, slices=(ca.Slice(1, stop=-1), ca.Slice(2)))),
    ],
)
def test_a_capture_is_a_place_points_and_keys(typed: str, made: ca.Capture) -> None:
    """A bare name brings back outputs; points follow an @, keys follow both; a colon makes it an operator."""
    assert capture(typed) == made


def test_a_parameter_has_keys_of_its_own() -> None:
    """It is reduced and cut as captures are; its name is never taken for a module's."""
    assert parameter("fc.weight") == ca.Capture(parameter="fc.weight")
    assert parameter("fc.weight,slice=0:0:2,norm=0+1") == ca.Capture(
        parameter="fc.weight", slices=(ca.Slice(0, 0, 2),), reduce=ca.Norm((0, 1))
    )


@pytest.mark.parametrize(
    ("typed", "made"),
    [
        ("scale:conv1,factor=0.5", ca.Scale("conv1", factor=0.5)),
        ("zero:layer3.1:relu#0", ca.Zero(op="layer3.1:relu#0")),
        ("Zero::add#0@grad_output", ca.Zero(at=ca.Point.GRAD_OUTPUT, op=":add#0")),
        ("clamp:fc@grad_input,minimum=-1,maximum=1", ca.Clamp("fc", ca.Point.GRAD_INPUT, minimum=-1, maximum=1)),
        ("mix:conv2,weight=0.3,permutation=1+0", ca.Mix("conv2", weight=0.3, permutation=(1, 0))),
        ("add:conv1,addend=2.5,rows=0+2,call=0", ca.Add("conv1", addend=2.5, rows=(0, 2), call=0)),
        ("zero:rnn,path=[1],slice=1:3", ca.Zero("rnn", path="[1]", slices=(ca.Slice(1, 3),))),
    ],
)
def test_an_edit_is_a_verb_a_place_and_keys(typed: str, made: ca.Edit) -> None:
    """``VERB:WHERE@POINT,KEY=VALUE``; a place with a colon is an operator's."""
    assert edit(typed) == made


@pytest.mark.parametrize(
    ("typed", "made"),
    [
        ("3", ca.ClassIndex((3,))),
        ("3,output=logits", ca.ClassIndex((3,), output="logits")),
        ("class:3+5", ca.ClassIndex((3, 5))),
        ("predicted,output=logits", ca.PredictedClass(output="logits")),
        ("top:5", ca.TopK(5)),
        ("TopK:5", ca.TopK(5)),
        ("sum", ca.OutputSum()),
        ("output_sum", ca.OutputSum()),
        ("norm", ca.OutputNorm()),
        ("norm:1", ca.OutputNorm(1.0)),
        ("norm,order=1", ca.OutputNorm(1.0)),
        ("neuron:conv2:3+1+1", ca.Neuron("conv2", (3, 1, 1))),
        ("cross_entropy:4", ca.CrossEntropy((4,))),
        ("cross_entropy:4+2:mean", ca.CrossEntropy((4, 2), ca.LossReduction.MEAN)),
        ("index:0+3", ca.MultiIndex(((0, 3),))),
        ("index:0+3,indices=1+1", ca.MultiIndex(((0, 3), (1, 1)))),
    ],
)
def test_a_target_is_a_class_or_a_name_and_what_python_takes_by_position(typed: str, made: ca.Target) -> None:
    """Parts between colons are in Python's order; each may also be typed as ``KEY=VALUE``."""
    with pytest.raises(typer.BadParameter):
        target(f"{typed},KEY=VALUE")
    assert target(typed) == made


def test_tensors_are_files(tmp_path: Path) -> None:
    """Where Python takes an array, a .npy file is read; one that is no array is refused, and so is a pickle."""
    array = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "array.npy", array)
    file = tmp_path / "array.npy"
    typed = [
        vars(edit(f"replace:fc,tensor={file}"))["tensor"],
        vars(edit(f"add:fc,addend={file}"))["addend"],
        vars(target(f"cotangent:{file}"))["tensor"],
        vars(target(f"mse:{file}:mean"))["values"],
        vars(attribution(f"IntegratedGradients,baselines.x={file}"))["baselines"]["x"],
        vars(attribution(f"GradientShap,baselines.x={file}"))["baselines"]["x"],
        vars(attribution(f"KernelShap,masks.x={file}"))["masks"]["x"],
    ]
    for read in typed:
        np.testing.assert_array_equal(read, array, strict=True)
    np.savez(tmp_path / "several.npz", array=array)
    (tmp_path / "several.npz").rename(tmp_path / "several.npy")
    np.save(tmp_path / "pickle.npy", np.array([{}]), allow_pickle=True)
    for bad in ("several", "pickle", "none"):
        with pytest.raises(typer.BadParameter, match=rf"tensor: .*{bad}\.npy (holds no array|cannot be read)"):
            edit(f"replace:fc,tensor={tmp_path / bad}.npy")


def test_several_targets_are_one_for_each_example() -> None:
    """What each example may have of its own is joined; one target stays what it is."""
    assert together([]) is None
    assert together([ca.OutputSum()]) == ca.OutputSum()
    assert together([target("3"), target("class:5")]) == ca.ClassIndex((3, 5))
    assert together([target("index:0+1"), target("index:2+3")]) == ca.MultiIndex(((0, 1), (2, 3)))
    several = [target("cross_entropy:1:mean,output=x"), target("cross_entropy:2:mean,output=x")]
    assert together(several) == ca.CrossEntropy((1, 2), ca.LossReduction.MEAN, output="x")


def test_a_pair_needs_both_sides() -> None:
    """``=`` alone says nothing."""
    for typed in ("no equals sign", "=value"):
        with pytest.raises(typer.BadParameter, match="is not key=value"):
            words.pair(typed)
