"""Tables of results and of models, made by hand: nothing is left out, nothing needs a prediction to be there."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console, RenderableType

import cutaway as ca
from cutaway.cli import console_output, model_tables
from cutaway.contract.errors import Reason, error
from cutaway.contract.requests import CheckMode
from cutaway.contract.results import (
    AttributionError,
    Better,
    ClassPrediction,
    MetricResult,
    ModelDetail,
    ModelName,
    ModuleInfo,
    OperatorInfo,
    Provenance,
    TokenAttribution,
    Warning,
)
from cutaway.views import tables
from cutaway.views.inspection import Inspection
from tests.support.cli import cutaway, squeezed

LOGITS = np.array([[0.25, 1.5], [2.0, -1.0]], np.float32)


def printed(*blocks: RenderableType, width: int = 120) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        for block in blocks:
            console.print(block)
    return captured.get()


def text(*blocks: RenderableType) -> str:
    return squeezed(printed(*blocks).replace("─", ""))


def classes(result: ca.InspectResult) -> str:
    return text(tables.prediction_table(result))


def attributions(*results: ca.AttributionResult) -> str:
    return text(tables.attribution_table(ca.InspectResult({}, attributions=results)))


def predicted(*labels: str) -> tuple[ClassPrediction, ...]:
    """The classes 1 and 0 with probabilities 50% and 75%."""
    return tuple(map(ClassPrediction, (1, 0), labels or ("", ""), (0.5, 0.75)))


def test_numbers_that_are_none_stand_out() -> None:
    """Not-a-number and infinity are shown as such, and in red."""
    console = Console(width=80, force_terminal=True, color_system="standard")
    result = ca.InspectResult({}, input_gradients={"[bold]x": np.array([np.nan, 1.0], np.float32)})
    with console.capture() as captured:
        console.print(tables.gradient_table(result))
    assert "\x1b[1;31m" in captured.get()
    assert "[bold]x" in captured.get()


def test_the_unedited_prediction_stands_beside_the_edited_one() -> None:
    """Class and label show an arrow where they changed, the probability always; of outputs the values are shown."""
    before = (ClassPrediction(0, "cat", 0.4), ClassPrediction(0, "cat", 0.7))
    outputs, unedited = {"logits": LOGITS}, {"logits": -LOGITS}
    shown = classes(ca.InspectResult(outputs, predicted("dog", "cat"), unedited=unedited, unedited_classes=before))
    assert "0 0 -> 1 cat -> dog 40.0% -> 50.0%" in shown
    assert "1 0 cat 70.0% -> 75.0%" in shown
    assert "logits float32[2, 2] 0.25 1.5 2 -1 -0.25 -1.5 -2 1" in classes(ca.InspectResult(outputs, unedited=unedited))
    alone = classes(ca.InspectResult({}, unedited={"logits": LOGITS}))
    assert "output tensor unedited" in alone
    assert "logits float32[2, 2] 0.25 1.5 2 -1" in alone


def test_targets_stand_beside_classes() -> None:
    """One class an example needs no table of its own; a target that is no class shows its value alone."""
    norm = ca.InspectResult({"logits": LOGITS}, predicted(), target_values=np.array([1.5, 2.0]))
    shown = text(*tables.result_tables(replace(norm, targets=np.array([1, 0]))))
    assert "0 1 50.0% 1 1.5" in shown
    assert "Targets" not in shown
    assert "probability target's value" in classes(norm)


def test_several_targets_an_example_have_a_row_each() -> None:
    """So do those of a model without classes, and those of an answer without predictions; long lists are counted."""
    several = ca.InspectResult(
        {"logits": LOGITS},
        predicted(),
        targets=np.array([[1, 0], [0, 1]]),
        target_values=np.array([[1.5, 0.25], [2.0, -1.0]]),
    )
    shown = text(*tables.result_tables(several))
    assert "target's value" not in shown
    assert "0 1 1.5 0 0 0.25 1 0 2 1 1 -1" in shown
    alone = text(*tables.result_tables(ca.InspectResult({}, target_values=np.array([1.5, 2.0]))))
    assert "Targets example value" in alone
    assert "0 1.5 1 2" in alone
    many = ca.InspectResult({}, targets=np.zeros((7, 3), np.int64), target_values=np.zeros((7, 3)))
    assert "and 1 more" in text(tables.target_table(many))


def test_captures_say_where_the_largest_elements_were() -> None:
    """Positions stand beside what was reduced to its largest elements, and beside nothing else."""
    top = ca.CapturedCall({ca.Point.OUTPUT: {"": LOGITS}}, {ca.Point.OUTPUT: {"": np.array([[7, 3], [300, 12]])}})
    whole = {"layer3.1:relu#0": ca.ModuleCapture((ca.CapturedCall({ca.Point.OUTPUT: {"[0]": LOGITS}}),))}
    seen = {"fc": ca.ModuleCapture((top,)), **whole}
    shown = text(tables.capture_table(ca.InspectResult({}, captures=seen)))
    assert "fc output float32[2, 2] 7 3 300 12 -1 0.688 2" in shown
    assert "layer3.1:relu#0 output[0] float32[2, 2] -1 0.688 2" in shown
    assert "positions" not in text(tables.capture_table(ca.InspectResult({}, captures=whole)))


def test_parameter_gradients_have_a_table() -> None:
    """By the parameter's name, with shape and range."""
    shown = text(*tables.result_tables(ca.InspectResult({}, parameter_gradients={"fc.weight": LOGITS})))
    assert "Parameter gradients" in shown
    assert "fc.weight float32[2, 2] -1 0.688 2" in shown


def test_attributions_of_several_targets_are_told_apart() -> None:
    """What is explained for several classes says for which; what is explained once needs no such column."""
    answers = [ca.AttributionResult("Saliency", "", {"x": LOGITS}, targets=np.array(row)) for row in ([1, 0], [0, 1])]
    assert "Saliency x [2, 2] 1 0 -1 2 Saliency (2) x [2, 2] 0 1 -1 2" in attributions(*answers)
    assert "class" not in attributions(answers[0])


def explained(**fields: Any) -> ca.AttributionResult:
    """An explanation of a layer, of which ``fields`` are known."""
    return ca.AttributionResult("LayerLRP", "fc[0]", {"fc[0]": LOGITS}, **fields)


def check(verdict: ca.Verdict, reason: str = "", cause: ca.Cause | None = None) -> ca.Check:
    return ca.Check("this with that", ca.CheckMode.SAME_PASS, 0.5, 0.5, 0.9, 1e-4, verdict, reason, cause)


def test_a_check_says_its_cause_beside_the_reason() -> None:
    """The word that programs branch on stands before the reason; where the two agree there is neither."""
    checks = (
        check(ca.Verdict.INCONCLUSIVE, "take more steps", ca.Cause.TOO_FEW_STEPS),
        check(ca.Verdict.DISAGREES, "", ca.Cause.UNKNOWN),
        check(ca.Verdict.DISAGREES, "no idea"),
        check(ca.Verdict.AGREES),
    )
    shown = attributions(explained(checks=checks))
    assert "this with that TOO_FEW_STEPS: take more steps DISAGREES" in shown
    assert "this with that UNKNOWN DISAGREES" in shown
    assert "this with that no idea AGREES" in shown
    assert shown.endswith("this with that")


def test_steps_are_shown_where_any_were_taken() -> None:
    """Beside the delta; a method without a path leaves the place empty, and without any path there is no column."""
    path = ca.AttributionResult("IntegratedGradients", "", {"x": LOGITS}, np.array([0.0, -0.25]), n_steps=200)
    plain = ca.AttributionResult("Saliency", "", {"x": LOGITS})
    both = attributions(path, plain)
    assert "max delta steps" in both
    assert "IntegratedGradients x [2, 2] -1 2 0.25 200 Saliency x [2, 2] -1 2" in both
    assert both.endswith("-1 2")
    assert "steps" not in attributions(plain)


def test_metrics_have_a_table() -> None:
    """A metric a row, in order, with a number for each of the first examples; without metrics there is no table."""
    metrics = (
        MetricResult("infidelity", np.array([0.5, np.nan]), np.array([2.0, 3.0]), better=Better.LOWER),
        MetricResult("sensitivity_max", np.ones(6)),
    )
    shown = attributions(explained(metrics=metrics))
    assert "Metrics metric method of by example random better" in shown
    assert "infidelity LayerLRP fc[0] 0.5 nan 2 3 lower sensitivity_max LayerLRP fc[0] 1 1 1 1 ..." in shown
    assert "Metrics" not in attributions(explained())


def test_tokens_stand_beside_what_they_add() -> None:
    """An example a table; a token is its text on one line, or its id where the text is not known."""
    values = np.array([[0.5, -1.25], [0.0, np.nan]], np.float32)
    tokens = TokenAttribution("ids", np.array([[101, 7], [102, 8]]), values, (("[CLS]", "a\nb"), ("é",)))
    shown = attributions(explained(tokens=tokens, targets=np.array([3, 1])))
    assert "Tokens of example 0: LayerLRP at fc[0], element 3 position token value 0 [CLS] 0.5 1 a\\nb -1.25" in shown
    assert "Tokens of example 1: LayerLRP at fc[0], element 1 position token value 0 é 0 1 8 nan" in shown
    assert "Tokens" not in attributions(explained())
    unknown = attributions(explained(tokens=TokenAttribution("", tokens.ids, values)))
    assert "LayerLRP at fc[0] position token value 0 101 0.5 1 7 -1.25" in unknown


def test_of_many_tokens_those_that_add_most_are_shown() -> None:
    """By magnitude, in the text's order; the rest is counted, tokens and examples alike."""
    values = np.tile(np.concatenate([np.full(30, 0.125), [-9.0], np.full(18, 2.0), [np.nan]]), (23, 1))
    tokens = TokenAttribution("ids", np.arange(23 * 50).reshape(23, 50), values)
    shown = attributions(explained(tokens=tokens))
    first, second, *_ = shown.split("Tokens of example")[1:]
    assert first.startswith(" 0: LayerLRP at fc[0] position token value 30 30 -9 31 31 2 ")
    assert first.endswith(" 48 48 2 49 49 nan and 30 smaller ones ")
    assert second.startswith(" 1: LayerLRP at fc[0] position token value 30 80 -9 ")
    assert shown.count("Tokens of example") == 20
    assert shown.endswith("and 30 smaller ones and the tokens of 3 more examples")


@pytest.mark.parametrize("result", [ca.InspectResult({}), ca.InspectResult({}, captures={"fc": ca.ModuleCapture(())})])
def test_an_answer_without_predictions_is_shown(result: ca.InspectResult) -> None:
    """What was left out has no table."""
    assert "Prediction" not in text(*tables.result_tables(result))


# Models


def detail(*operators: OperatorInfo, calls: int = 1) -> ModelDetail:
    """A model with two blocks that are alike as modules."""
    kinds = {"": "Net", "blocks": "Sequential", "blocks.0": "Block", "blocks.1": "Block"}
    modules = tuple(ModuleInfo(name, kind, 0, ((1, 4),), calls) for name, kind in kinds.items())
    return ModelDetail(ModelName("net", "1.0"), (), (), (), (), modules, Provenance(), operators)


def operator(address: str, calls: int = 1) -> OperatorInfo:
    return OperatorInfo(address, ((1, 4),), calls)


def operators(model: ModelDetail, depth: int | None = None, *, expand: bool = False) -> str:
    return text(model_tables.operator_table(model_tables.Tree(model, depth, expand)))


def test_operators_stand_in_the_order_of_the_tree() -> None:
    """Each under the module that runs it; those of modules that are alike share a row, under a glob that finds them."""
    model = detail(operator("blocks.0:relu#0", 2), operator("blocks.1:relu#0", 2), operator(":__getitem__#1"))
    assert operators(model).endswith(
        ":__getitem__#1 __getitem__ [1, 4] blocks.*:relu#0 2 x relu [1, 4], 2 calls 3 operators, 2 shown."
    )
    assert "blocks.0:relu#0 relu [1, 4], 2 calls blocks.1:relu#0 relu" in operators(model, expand=True)
    assert "blocks" not in operators(model, 0)


def test_modules_with_other_operators_are_not_alike() -> None:
    """Nothing hides behind a glob that would not find it."""
    model = detail(operator("blocks.0:relu#0"), operator("blocks.1:gelu#0"))
    tree = model_tables.Tree(model, None, expand=False)
    assert "blocks.*" not in text(model_tables.ModuleTable(tree), model_tables.operator_table(tree))


def test_operators_of_a_model_without_an_example_are_not_known() -> None:
    """Which is said, in place of an empty table."""
    assert operators(detail(calls=0)) == "Operators are not known: the model has no example input."


def test_rows_that_were_not_explained_say_so() -> None:
    """Where a condition was asked for, each example says whether it met it."""
    result = ca.InspectResult({"logits": LOGITS}, predicted(), explained_rows=np.array([True, False]))
    assert "0 1 50.0% yes 1 0 75.0% no" in classes(result)
    assert "explained" not in classes(replace(result, explained_rows=None))


def test_an_error_stands_in_its_attributions_place() -> None:
    """Beside the others; a standard error in a column of its own."""
    values, error = {"x": np.ones((1, 2), np.float32)}, AttributionError(3, "METHOD_INAPPLICABLE", "no such thing")
    shown = attributions(
        ca.AttributionResult("Lime", "", values, standard_errors={"x": np.array([[0.25, 0.5]])}),
        ca.AttributionResult("LayerGradCam", "conv", {}, error=error),
    )
    assert "Lime x [1, 2] 1 1 0.5" in shown
    assert "LayerGradCam METHOD_INAPPLICABLE: no such thing" in shown


_HOSTILE = "\x1b[31mred\x1b]0;title\x07\x9b2J\u202egnp\r\ud800over"


def test_no_text_of_others_controls_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """In tables of every kind, lines, errors, misuses and printed results; what was there is shown as its escape."""
    array = np.zeros((1, 2), np.float32)
    result = Inspection(
        {_HOSTILE: array},
        captures={_HOSTILE: ca.ModuleCapture((ca.CapturedCall({ca.Point.OUTPUT: {_HOSTILE: array}}),))},
        input_gradients={_HOSTILE: array},
        attributions=(
            ca.AttributionResult(_HOSTILE, _HOSTILE, {_HOSTILE: array}),
            ca.AttributionResult(_HOSTILE, _HOSTILE, {}, error=AttributionError(3, _HOSTILE, _HOSTILE)),
        ),
        classes=(ClassPrediction(0, _HOSTILE, 0.5),),
        warnings=(Warning(ca.WarningCode.NO_GRADIENT, _HOSTILE, _HOSTILE),),
        provenance=Provenance(model=_HOSTILE, device=_HOSTILE),
        request=ca.InspectRequest("net", tensors={_HOSTILE: array}),
    )
    modules = ModuleInfo("", _HOSTILE, 0), ModuleInfo(_HOSTILE, _HOSTILE, 0)
    detail = ModelDetail(ModelName(_HOSTILE, _HOSTILE), (), (), (_HOSTILE,), (_HOSTILE,), modules, Provenance())
    tree = model_tables.Tree(detail, None, False)
    failure = error(Reason.INVALID_VALUE, _HOSTILE, _HOSTILE)
    console_output.print_blocks(
        *tables.result_tables(result), model_tables.summary(detail), model_tables.ModuleTable(tree)
    )
    console_output.print_line(_HOSTILE)
    console_output.print_line(_HOSTILE, to_stderr=True)
    console_output.print_error(str(failure), console_output.of_call(failure))
    print(result, detail, failure)
    output, errors = capsys.readouterr()
    for text in (output, errors):
        assert r"\x1b[31mred\x1b]0;title" in text
        assert not [each for each in set(text) if not (each.isprintable() or each == "\n")]


@pytest.mark.parametrize(
    "arguments", [["layers", _HOSTILE[:8]], ["inspect", "net", "--edit", _HOSTILE[:8]], [_HOSTILE[:8]]]
)
def test_no_argument_controls_the_terminal(arguments: list[str]) -> None:
    """Programs pass names that others have chosen."""
    done = cutaway(*arguments, "--address", "127.0.0.1:1")
    assert done.returncode
    assert "\x1b" not in done.stderr + done.stdout


def test_no_text_in_the_log_controls_the_terminal() -> None:
    """Of an event, its fields, another library's, and an exception."""
    script = f"""
import logging as library
import structlog
from cutaway.server.observability import logging
logging.configure("text")
hostile = {_HOSTILE!r}
structlog.get_logger().warning(hostile, path=hostile, paths=[hostile])
library.getLogger("x").error("%s", hostile)
try:
    raise ValueError(hostile)
except ValueError:
    structlog.get_logger().exception("failed")
    library.getLogger("x").exception("failed")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.count(r"\x9b2J") == 6
    assert not [each for each in set(done.stderr) if not (each.isprintable() or each == "\n")]


def test_attacks_have_a_table_and_a_line() -> None:
    """An example a row, with the verdict on it; without a class, a search or a check there are dashes."""
    left = ("why", ca.Cause.OUT_OF_BOUNDS)
    rows = (ca.RowCheck(0, ca.Verdict.AGREES), ca.RowCheck(1, ca.Verdict.DISAGREES, *left))
    check = ca.Check("c", CheckMode.SAME_PASS, 0, 0, 1, 0, ca.Verdict.DISAGREES, *left, rows=rows)
    whole = ca.AttackResult(
        "FGSM", {"x": LOGITS}, classes=np.array([3, 4]), losses=np.array([0.5, 2.0]), succeeded=np.array([True, False]),
        linf=np.array([0.1, 0.25]), parameters=np.array([0.1, np.nan]), checks=(check,),
    )  # fmt: skip
    result = ca.InspectResult({}, attacks=(whole, ca.AttackResult("PGD", {"x": LOGITS}, losses=np.ones(1))))
    shown = text(*tables.result_tables(result))
    assert "FGSM AGREES 0 3 yes 0.5 0.1 0.1 FGSM DISAGREES 1 4 no 2 0.25 nan PGD - 0 - - 1 - -" in shown
    lines = repr(result).splitlines()
    assert "DISAGREES  FGSM  1 of 2 reached the aim  changes of at most 0.25  least 0.1, nan: OUT_OF_BOUNDS" in lines[1]
    assert "NOT CHECKED  PGD" in lines[2]
