"""Results print what is in them in a few lines, whatever their size and whatever names a server sent."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from matplotlib.text import Text
from rich.console import Console

import cutaway as ca
from cutaway.contract.results import (
    ClassPrediction,
    InputSpec,
    ModelName,
    ModuleInfo,
    OperatorInfo,
    OutputSpec,
    Provenance,
)
from cutaway.contract.results import Warning as ResultWarning
from cutaway.contract.results.summary import byte_count, harmless
from cutaway.views.tables import result_tables
from tests.support.made_results import DISAGREES, HOSTILE, capture, check, numbers, table, text

ALL_ASCII = {chr(code) for code in range(32, 127)}


def test_summary_says_what_is_there() -> None:
    """Model, batch, time, bytes, shapes, top classes, verdicts with their causes, warnings; and no array."""
    shown = str(table())
    expected = [
        "Inspection: tumours 1.0 · 2 examples · 0.012 s · ",
        "logits  float32[2, 2]",
        "[0]  label 0  75.0%",
        "fc1 output  float32[2, 8]",
        "fc1 grad_output  float32[2, 8]",
        "x  float32[2, 30]",
        "AGREES  IntegratedGradients  x  float32[2, 30]",
        "DISAGREES  DeepLift  x  float32[2, 30]: MODULE_REUSED: fc1 is called twice",
        "MODULE_NOT_CALLED  fc9: was not called",
    ]
    for part in expected:
        assert part in shown
    assert "array(" not in shown
    assert repr(table()) == shown


def test_bytes_are_those_of_all_tensors() -> None:
    assert repr(ca.InspectResult({"y": numbers(2, 5)})).startswith("InspectResult: 2 examples · 40 bytes")
    assert [byte_count(count) for count in (0, 999, 1000, 999_949, 999_950, 2 * 10**9, 5 * 10**12)] == [
        *("0 bytes", "999 bytes", "1.0 kB", "999.9 kB", "1.0 MB", "2.0 GB", "5000.0 GB"),
    ]


def huge() -> ca.InspectResult:
    """10,000 captures, a batch of 1,000, and many of all else."""
    small = np.zeros((1000, 1), np.float32)
    attribution = ca.AttributionResult("DeepLift", "", {f"x{n}": small for n in range(50)}, checks=(DISAGREES,) * 3)
    return ca.InspectResult(
        {f"out{n}": small for n in range(50)},
        classes=(ClassPrediction(1, "one", 0.5),) * 1000,
        captures={f"layer{n}": capture(output=small, grad_output=small) for n in range(10_000)},
        input_gradients={f"x{n}": small for n in range(50)},
        parameter_gradients={f"w{n}": small for n in range(50)},
        attributions=(attribution,) * 100,
        unedited={f"out{n}": small for n in range(50)},
        warnings=(ResultWarning(ca.WarningCode.NO_GRADIENT, "fc", "no gradient " * 1000),) * 100,
        explained_rows=np.ones(1000, bool),
    )


def test_summary_has_at_most_30_lines_and_says_what_it_leaves_out() -> None:
    lines = repr(huge()).splitlines()
    assert len(lines) == 30
    assert max(map(len, lines)) <= 120
    left_out = [line.strip() for line in lines if line.strip().startswith("… ") or "  … " in line]
    assert [line.split("… ")[1] for line in left_out] == [
        *("49 more", "997 more", "49 more", "19,995 more", "49 more", "49 more", "95 more: 95 DISAGREES", "97 more"),
    ]


def test_a_cut_shows_the_worst_and_says_how_the_others_came_out() -> None:
    """Of any order: what failed or disagrees is in sight in print and in a notebook."""
    values = {"x": numbers(1, 2)}
    agrees = ca.AttributionResult("Saliency", "", values, checks=(check(ca.Verdict.AGREES),))
    doubtful = replace(agrees, checks=(check(ca.Verdict.INCONCLUSIVE),))
    failed = ca.AttributionResult.failed("LRP", "", ca.InvalidArgument("LAYER_NOT_FOUND", "no such layer"))
    all_of_them = (agrees,) * 30 + (doubtful,) * 3 + (replace(agrees, checks=(DISAGREES,)), failed)
    result = ca.Inspection({"y": numbers(1, 2)}, attributions=all_of_them)
    lines = [line[15:] for line in repr(result).splitlines()[2:]]
    words = [line.split("  ")[0] for line in lines[:-1]]
    assert words == ["FAILED", "DISAGREES", *["INCONCLUSIVE"] * 3]
    assert lines[-1] == "… 30 more: 30 AGREES"
    assert "… 29 more attributions are not shown: 29 AGREES" in result._repr_html_()


def test_variants_of_a_method_have_titles_of_their_own() -> None:
    """By what was asked; numbered where that is the same, or not known. In all views."""
    asked = (
        *(ca.Saliency(), *(ca.Saliency(noise=ca.NoiseTunnel(n_samples=count)) for count in (3, 4))),
        *(ca.IntegratedGradients(n_steps=2), ca.IntegratedGradients(baselines={"x": 1.0})),
        *(ca.LayerGradCam(layer="a"), ca.LayerGradCam(layer="b"), ca.LayerGradCam(layer="b", relu=True)),
        *(ca.IntegratedGradients(baselines={"x": 2.0}), ca.DeepLift(baselines={"x": 1.0})),
    )
    found = [
        ca.AttributionResult(type(each).__name__, getattr(each, "layer", ""), {"x": numbers(1, 2)}) for each in asked
    ]
    expected = [
        *("Saliency", "Saliency, NoiseTunnel, n_samples 3", "Saliency, NoiseTunnel, n_samples 4"),
        *("IntegratedGradients, n_steps 2", "IntegratedGradients, baselines"),
        *("LayerGradCam at a", "LayerGradCam at b", "LayerGradCam at b, relu True"),
        *("IntegratedGradients, baselines (2)", "DeepLift"),
    ]
    request = ca.InspectRequest("m", attributions=asked)
    result = ca.Inspection({"y": numbers(1, 2)}, attributions=tuple(found), request=request)
    assert result.titles() == expected
    assert list(result.to_pandas()["title"].unique()) == expected
    page, terminal = result._repr_html_(), StringIO()
    Console(file=terminal, width=300).print(*result_tables(result))
    drawn = {each.get_text() for each in result.plot().findobj(Text)}
    for title in expected:
        own = title.replace(" at a", "").replace(" at b", "")
        assert title in page
        assert own in terminal.getvalue()
        assert any(own.endswith(each.removeprefix("…")) for each in drawn if each), own
    assert replace(result, request=ca.InspectRequest("m")).titles()[:3] == ["Saliency", "Saliency (2)", "Saliency (3)"]


@pytest.mark.parametrize(
    "value",
    [
        table(name=HOSTILE),
        ca.CapturedCall({ca.Point.OUTPUT: {HOSTILE: numbers(1)}}),
        ca.ModuleCapture((ca.CapturedCall({ca.Point.OUTPUT: {HOSTILE: numbers(1)}}),)),
        ca.AttributionResult(HOSTILE, HOSTILE, {HOSTILE: numbers(1)}, checks=(check(ca.Verdict.DISAGREES, HOSTILE),)),
        ca.ModelDetail(
            ModelName(HOSTILE, HOSTILE),
            (InputSpec(HOSTILE),),
            (OutputSpec(HOSTILE, "float32", (1,)),),
            (HOSTILE,) * 100,
            (HOSTILE,),
            (ModuleInfo(HOSTILE, HOSTILE, 1),),
            Provenance(),
            (OperatorInfo(HOSTILE, (), 1),),
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_hostile_names_are_harmless_and_cut(value: object) -> None:
    """No control character, no change of direction, no line of the server's making, no 100 kB."""
    shown = repr(value)
    assert set(shown) - ALL_ASCII <= set("\n·…")
    assert max(map(len, shown.splitlines())) <= 140
    assert "\n" not in shown or len(shown.splitlines()) <= 30
    assert not any(line.startswith("line") for line in shown.splitlines())


def test_harmless_keeps_what_people_write() -> None:
    """Letters of every script, emoji of several characters; what moves the cursor or turns the text is escaped."""
    assert harmless("Größe 数 می‌خواهم 👩‍🔬") == "Größe 数 می‌خواهم 👩‍🔬"
    assert harmless("a\x1b[2Jb\u202ec\nd\re\ud800") == "a\\x1b[2Jb\\u202ec d\\re\\ud800"
    assert harmless("\x1b" * 60) == ("\\x1b" * 60)[:59] + "…"
    assert harmless("a" * 61) == "a" * 59 + "…"


def test_parts_describe_themselves_in_one_line() -> None:
    result = table()
    assert repr(result.captures["fc1"]) == ("ModuleCapture(1 call: output  float32[2, 8], grad_output  float32[2, 8])")
    assert repr(result.captures["fc1"].calls[0]) == "CapturedCall(output  float32[2, 8], grad_output  float32[2, 8])"
    assert repr(ca.ModuleCapture(())) == "ModuleCapture(0 calls)"
    assert repr(result.attributions[0]) == "AttributionResult(AGREES  IntegratedGradients  x  float32[2, 30])"
    assert repr(text().attributions[0]) == (
        "AttributionResult(NOT CHECKED  LayerIntegratedGradients at embed  float32[1, 2, 4])"
    )
    failed = ca.AttributionResult("Lrp", "", {}, error=ca.results.AttributionError(3, "METHOD_INAPPLICABLE", "no rule"))
    assert repr(failed) == "AttributionResult(FAILED  Lrp: METHOD_INAPPLICABLE: no rule)"


def test_model_describes_itself() -> None:
    modules = (ModuleInfo("", "Net", 90), *(ModuleInfo(f"fc{n}", "Linear", 1, ((2, 5),), 1) for n in range(500)))
    inputs = (InputSpec("x", "float32", (-1, 3)), InputSpec("mask", optional=True))
    outputs = (OutputSpec("logits", "float32", (1, 10)),)
    labels = tuple(f"label {n}" for n in range(1000))
    model = ca.ModelDetail(ModelName("net", "1.0"), inputs, outputs, labels, (), modules, Provenance())
    lines = repr(model).split("\n")
    assert lines[0] == "ModelDetail: net 1.0 · 501 modules · 90 parameters"
    assert [line.split(maxsplit=1)[-1] for line in lines[1:5]] == [
        *("x  float32[any, 3]", "any type (optional)", "logits  float32[1, 10]"),
        "label 0, label 1, label 2, label 3, label 4, … 995 more",
    ]
    assert "(the model)  Net" in lines[5]
    assert lines[-1].strip() == "… 488 more"
    assert len(lines) <= 30


def test_dry_run_shows_its_estimate() -> None:
    result = replace(ca.InspectResult({}), estimate=ca.Estimate(34_100, {"y": ca.Outline("float32", (1,))}, 2))
    assert repr(result).startswith("InspectResult: a dry run: 34.1 kB, 1 tensor, 2 passes")


def test_worst_verdict_stands_for_all() -> None:
    """A check that does not apply hides no other; without checks there is none."""
    kinds = (ca.Verdict.NOT_APPLICABLE, ca.Verdict.AGREES, ca.Verdict.INCONCLUSIVE, ca.Verdict.DISAGREES)
    for count, verdict in enumerate(kinds, 1):
        attribution = ca.AttributionResult("Saliency", "", {}, checks=tuple(map(check, kinds[:count])))
        assert attribution.verdict is verdict
    assert ca.AttributionResult("Saliency", "", {}).verdict is None
