"""Edits that change nothing are told of, and edits that cannot be made are refused, each for its own reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.adapters import Adapter
from cutaway.gateway import serve
from tests.oracles.edits import ROWS, TARGET, TIMES, WIDTH, Block, Net, Thrifty, X
from tests.oracles.hooks import noise
from tests.support.small_models import Words

EMBED = "words"


class Odd(nn.Module):
    """[batch, 6] to [batch, 4] logits; its parts are used in ways in which an edit does nothing."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(6, 4)
        self.never = nn.Linear(6, 4)
        self.ignored = nn.Identity()
        self.cut_off = nn.Identity()
        self.flat = nn.Identity()
        self.steps = nn.Identity()
        self.mute = Mute()

    def forward(self, x: Tensor) -> Tensor:
        logits = self.body(x)
        self.ignored(logits)
        self.mute(logits)
        logits = self.flat(logits.reshape(-1, 2)).reshape(logits.shape)
        logits = self.steps(logits) + self.steps(logits * 0)
        return logits + self.cut_off(x).detach().sum(dim=1, keepdim=True) * 0.5


class Mute(nn.Module):
    """Returns no tensor."""

    def forward(self, x: Tensor) -> str:
        return "nothing"


@pytest.fixture(scope="module")
def front_door() -> Iterator[ca.Client]:
    """A gateway over models that edits have trouble with."""
    models: dict[str, nn.Module | Adapter] = {
        "net": Net(),
        "thrice": Net(Block, TIMES),
        "thrifty": Net(Thrifty, TIMES),
        "odd": Odd(),
        "words": Words(),
    }
    with serve(models) as server, ca.Client(server.address) as connected:
        yield connected


INPUTS: dict[str, dict[str, Any]] = {
    **{model: {"x": X.numpy()} for model in ("net", "thrice", "thrifty", "odd")},
    "words": {"ids": np.arange(6).reshape(3, 2), "weight": noise(3, 2).numpy()},
}


@pytest.fixture
def client(front_door: ca.Client) -> Iterator[ca.Client]:
    """A client; after the test, a plain question to every model gets the answer that it had before."""
    before = [front_door.inspect(model, given) for model, given in INPUTS.items()]
    yield front_door
    after = [front_door.inspect(model, given) for model, given in INPUTS.items()]
    for one, other in zip(before, after):
        assert np.array_equal(one.predictions["output"], other.predictions["output"])
        assert not other.warnings


def without_effect(result: ca.InspectResult) -> list[tuple[str, str]]:
    """The edits that are said to have changed nothing, and why."""
    assert {warning.code for warning in result.warnings} <= {ca.WarningCode.EDIT_WITHOUT_EFFECT}
    return [(warning.subject, warning.message.rpartition(": ")[2]) for warning in result.warnings]


GRADIENTS: dict[str, Any] = {"input_gradients": True, "target": TARGET}
SAME = "the {} of {!r} already was what the edit makes of it"

IDLE: dict[str, tuple[ca.Edit, dict[str, Any], str]] = {
    "factor 1": (ca.Scale("body", factor=1), {}, SAME.format("output", "body")),
    "nothing added": (ca.Add("body", at="input", addend=0), {}, SAME.format("input", "body")),
    "bounds that hold": (ca.Clamp("body", minimum=-1e9, maximum=1e9), {}, SAME.format("output", "body")),
    "all of the weight on itself": (
        ca.Mix("body", weight=1, permutation=(2, 0, 1)), {}, SAME.format("output", "body")),
    "rows mixed with themselves": (
        ca.Mix("body", weight=0.5, permutation=(0, 1, 2)), {}, SAME.format("output", "body")),
    "what is there in its place": (
        ca.Replace("body", at="input", tensor=X.numpy()), {}, SAME.format("input", "body")),
    "a gradient times 1": (
        ca.Scale("body", at="grad_output", factor=1), GRADIENTS, SAME.format("grad_output", "body")),
    "a gradient that is zero": (
        ca.Zero("body", at="grad_output", slices=(ca.Slice(1, 2, 3),)), GRADIENTS, SAME.format("grad_output", "body")),
    "a module that is never called": (
        ca.Scale("never", factor=2), {}, "the model never called 'never' for this input"),
    "a gradient that is cut off": (
        ca.Scale("cut_off", at="grad_output", factor=2), GRADIENTS, "no gradient reached the grad_output of 'cut_off'"),
    "a gradient of what is ignored": (
        ca.Scale("ignored", at="grad_input", factor=2), GRADIENTS, "no gradient reached the grad_input of 'ignored'"),
    "no backward pass": (ca.Scale("body", at="grad_input", factor=2), {}, "the request needs no backward pass"),
}  # fmt: skip


@pytest.mark.parametrize(("edit", "asked", "why"), IDLE.values(), ids=IDLE.keys())
def test_an_edit_that_changes_nothing(client: ca.Client, edit: ca.Edit, asked: dict[str, Any], why: str) -> None:
    """A no-op does not pass for an experiment: it is told of by its number, and an edit that does something is not."""
    effective = ca.Scale("body", at="input", factor=2, rows=(0,))
    assert without_effect(client.inspect("odd", INPUTS["odd"], edits=[edit], **asked)) == [("edits[0]", why)]
    if "at='input'" not in repr(edit):
        both = client.inspect("odd", INPUTS["odd"], edits=[effective, edit], **asked)
        assert without_effect(both) == [("edits[1]", why)]
    assert not without_effect(client.inspect("odd", INPUTS["odd"], edits=[effective], **asked))


@pytest.mark.parametrize("edit", [ca.Scale("ignored", factor=2), ca.Zero("mute", at="input")])
def test_a_value_that_the_model_ignores(client: ca.Client, edit: ca.Edit) -> None:
    """The edit was made, and the model did not use what was edited: the comparison says so."""
    assert not without_effect(client.inspect("odd", INPUTS["odd"], edits=[edit]))
    result = client.inspect("odd", INPUTS["odd"], edits=[edit], compare=True)
    assert without_effect(result) == [("edits", "the edited and the unedited prediction are the same to the bit")]
    useful = ca.Scale("body", factor=2)
    assert not without_effect(client.inspect("odd", INPUTS["odd"], edits=[edit, useful], compare=True))


def test_an_edit_that_undoes_another(client: ca.Client) -> None:
    """Each of two edits has its effect, though together they have none; only the comparison tells."""
    edits = [ca.Scale("body", factor=2), ca.Scale("body", factor=0.5)]
    assert not without_effect(client.inspect("odd", INPUTS["odd"], edits=edits))
    assert len(without_effect(client.inspect("odd", INPUTS["odd"], edits=edits, compare=True))) == 1


def test_gradient_edits_leave_predictions_alone(client: ca.Client) -> None:
    """Equal predictions are no sign of an idle edit where only gradients were edited."""
    edits = [ca.Scale("body", at="grad_output", factor=2)]
    assert not without_effect(client.inspect("odd", INPUTS["odd"], edits=edits, compare=True, **GRADIENTS))


def test_an_effect_in_one_call_is_an_effect(client: ca.Client) -> None:
    """An edit of every call that does something in the first of them alone is not said to have changed nothing."""
    assert not without_effect(client.inspect("odd", INPUTS["odd"], edits=[ca.Scale("steps", factor=2)]))
    (warned,) = without_effect(client.inspect("odd", INPUTS["odd"], edits=[ca.Scale("steps", factor=2, call=1)]))
    assert warned == ("edits[0]", SAME.format("output", "steps"))


def test_nan_is_nan(client: ca.Client) -> None:
    """What is no number and stays none is unchanged; a number that becomes none, or the other way round, is not."""
    nan = np.full((ROWS, 6), np.nan, np.float32)
    warnings = client.inspect("odd", {"x": nan}, edits=[ca.Scale("body", factor=2)]).warnings
    assert [warning.code.value for warning in warnings] == ["NOT_FINITE", "EDIT_WITHOUT_EFFECT"]
    assert warnings[1].message.endswith(SAME.format("output", "body"))
    for model_gets, put in ((X.numpy(), nan), (nan, X.numpy())):
        edit = ca.Replace("body", at="input", tensor=put)
        warnings = client.inspect("odd", {"x": model_gets}, edits=[edit]).warnings
        assert ca.WarningCode.EDIT_WITHOUT_EFFECT not in [warning.code for warning in warnings]


def test_an_effect_in_an_explanation_is_an_effect(client: ca.Client) -> None:
    """Where Captum's passes are the only ones that bring gradients, an edit of a gradient has its effect there."""
    edits = [ca.Scale("body", at="grad_output", factor=2)]
    result = client.inspect("odd", INPUTS["odd"], edits=edits, target=TARGET, attributions=[ca.Saliency()])
    assert not without_effect(result)


@pytest.mark.parametrize(
    "edit", [ca.Scale("last", factor=2), ca.Scale("last", factor=2, call=0), ca.Scale(op="block:add#0", factor=2)]
)
def test_an_edit_behind_the_last_capture(client: ca.Client, edit: ca.Edit) -> None:
    """Where forward stops early, an edit further on is told of; nobody says that the model does not get there."""
    captures = [ca.Capture("block.inner", call=0)]
    result = client.inspect("net", INPUTS["net"], captures=captures, predictions=False, edits=[edit])
    place = edit.module or edit.op
    assert without_effect(result) == [("edits[0]", f"forward stopped before {place!r}, behind the last capture")]


def edited(edit: ca.Edit, model: str = "net", **asked: Any) -> Callable[[ca.Client], object]:
    """Ask ``model`` with ``edit``, behind one that is in order."""
    first = () if model == "words" else (ca.Add(next(iter(FIRST[model])), addend=1),)
    return lambda client: client.inspect(model, INPUTS[model], edits=[*first, edit], **asked)


FIRST = {"net": ["first"], "thrice": ["first"], "thrifty": ["first"], "odd": ["body"]}

# What is wrong: the call, the reason, the field, and the beginning of what is said.
BAD: dict[str, tuple[Callable[[ca.Client], object], str, str, str]] = {
    "row past the batch": (
        edited(ca.Zero("block", rows=(0, ROWS))), "ROW_RANGE", "edits[1].rows[1]", "row 3; the batch has rows 0 to 2"),
    "rows where no axis is the batch": (
        edited(ca.Zero("flat", rows=(0,)), "odd"), "ROW_RANGE", "edits[1].rows",
        "the value has shape [6, 2]: none of its axes is the batch, so it has no rows"),
    "mixed rows where no axis is the batch": (
        edited(ca.Mix("flat", weight=0.5, permutation=(1, 0, 2)), "odd"), "ROW_RANGE", "edits[1].mix.permutation",
        "the value has shape [6, 2]: none of its axes is the batch"),
    "permutation with a row past the batch": (
        edited(ca.Mix("block", weight=0.5, permutation=(0, 3, 1))), "PERMUTATION_INVALID", "edits[1].mix.permutation",
        "[0, 3, 1] does not name one of the batch's rows 0 to 2 for each of them"),
    "a permutation of fewer rows": (
        edited(ca.Mix("block", weight=0.5, permutation=(0, 1))), "PERMUTATION_INVALID", "edits[1].mix.permutation",
        "[0, 1] does not name one of the batch's rows 0 to 2 for each of them"),
    "a direction of length 0": (
        edited(ca.ClampDirection("block", np.zeros(5), maximum=1.0)), "INVALID_VALUE",
        "edits[1].clamp_direction.vector", "a vector of length 0, or with NaN, has no direction"),
    "a direction of another size": (
        edited(ca.SwapDirections("block", np.ones(5), np.ones(4))), "EDIT_SHAPE", "edits[1].swap_directions.other",
        "the vector has shape [4], and the last axis of [3, 5] is another"),
    "replacement of another shape": (
        edited(ca.Replace("block", tensor=np.ones((ROWS, 4), np.float32))), "EDIT_SHAPE", "edits[1].replace.tensor",
        "a tensor of shape [3, 4] does not broadcast against the [3, 5] edited"),
    "replacement larger than the value": (
        edited(ca.Replace("block", tensor=np.ones((2, ROWS, WIDTH), np.float32))), "EDIT_SHAPE",
        "edits[1].replace.tensor", "a tensor of shape [2, 3, 5] does not broadcast against the [3, 5] edited"),
    "addend larger than the part": (
        edited(ca.Add("block", addend=np.ones((ROWS, WIDTH), np.float32), rows=(0,))), "EDIT_SHAPE",
        "edits[1].add.tensor", "a tensor of shape [3, 5] does not broadcast against the [1, 5] edited"),
    "gradient of another shape": (
        edited(ca.Replace("block", at="grad_input", tensor=np.ones(4, np.float32)), **GRADIENTS), "EDIT_SHAPE",
        "edits[1].replace.tensor", "a tensor of shape [4] does not broadcast against the [3, 5] edited"),
    "token ids scaled": (
        edited(ca.Scale(EMBED, at="input", factor=2), "words"), "EDIT_DTYPE", "edits[0]",
        "Scale needs floating numbers; the value is torch.int64"),
    "token ids mixed": (
        edited(ca.Mix(EMBED, at="input", weight=0.5, permutation=(1, 0, 2)), "words"), "EDIT_DTYPE", "edits[0]",
        "Mix needs floating numbers; the value is torch.int64"),
    "token ids replaced by floats": (
        edited(ca.Replace(EMBED, at="input", tensor=np.ones(2, np.float32)), "words"), "EDIT_DTYPE",
        "edits[0].replace.tensor", "the value is torch.int64, the edit's tensor float32: send the same"),
    "tensor that float32 cannot hold": (
        edited(ca.Replace("block", tensor=np.asarray(-1e300))), "INVALID_VALUE",
        "edits[1].replace.tensor", "holds -1e+300, which float32 cannot hold"),
    "call that is not made": (
        edited(ca.Zero("block", call=3), "thrice"), "CALL_NOT_FOUND", "edits[1].call",
        "there is no call 3 of 'block': it was called 3 times"),
    "call of what is never called": (
        edited(ca.Zero("never", call=0), "odd"), "CALL_NOT_FOUND", "edits[1].call",
        "there is no call 0 of 'never': it was called never"),
    "call of an operator that is not made": (
        edited(ca.Zero(op="block:relu#0", call=1)), "CALL_NOT_FOUND", "edits[1].call",
        "there is no call 1 of 'block:relu#0': it was called once"),
    "operator with another name": (
        edited(ca.Zero(op="block:rellu#0")), "OP_NOT_FOUND", "edits[1].op",
        "no operator 'block:rellu#0' ran; nearest: block:relu#0"),
    "operator without a number": (
        edited(ca.Zero(op="block:relu")), "OP_NOT_FOUND", "edits[1].op", "'block:relu' is no operator's address"),
    "operator of a module that is not there": (
        edited(ca.Zero(op="blok:relu#0")), "MODULE_NOT_FOUND", "edits[1].op",
        "no module is named 'blok'; nearest: block"),
    "glob of operators": (
        edited(ca.Zero(op="block:relu#*")), "INVALID_VALUE", "edits[1].op",
        "'block:relu#*': an edit names one operator, and no glob"),
    "module that is not there": (
        edited(ca.Zero("blok")), "MODULE_NOT_FOUND", "edits[1].module", "no module is named 'blok'; nearest: block"),
    "glob that matches nothing": (
        edited(ca.Zero("blok*")), "MODULE_NOT_FOUND", "edits[1].module", "the glob 'blok*' matches no module"),
    "output of what returns no tensor": (
        edited(ca.Zero("mute"), "odd"), "POINT_NOT_FOUND", "edits[1].point",
        "'mute' returns no tensor: it has no output"),
    "path that is not there": (
        edited(ca.Zero("block", path="[1]")), "PATH_NOT_FOUND", "edits[1].path",
        "no tensor at '[1]' of the output of 'block'; there is ''"),
    "gradient of token ids": (
        edited(ca.Zero(EMBED, at="grad_input"), "words", input_gradients=["weight"]), "POINT_NOT_DIFFERENTIABLE",
        "edits[0].point", "the input of 'words' is int64 and has no gradient; take the gradient where numbers begin: "
        "GRAD_OUTPUT of 'words'"),
    "slice past the axis": (
        edited(ca.Zero("block", slices=(ca.Slice(0), ca.Slice(1, 2, 6)))), "SLICE_RANGE", "edits[1].slices[1]",
        "from 2 to 6 is no part of axis 1, which has size 5"),
    "slice past the rows named": (
        edited(ca.Zero("block", rows=(0, 1), slices=(ca.Slice(0, 2),))), "SLICE_RANGE", "edits[1].slices[0]",
        "from 2 to 2 is no part of axis 0, which has size 2"),
    "slices of one axis": (
        edited(ca.Zero("block", slices=(ca.Slice(1, 1), ca.Slice(-1, 2)))), "SLICE_RANGE", "edits[1].slices[1].axis",
        "axis 1 is sliced twice"),
    "slice of an axis that is not there": (
        edited(ca.Zero("block", slices=(ca.Slice(2),))), "AXIS_RANGE", "edits[1].slices[0].axis",
        "there is no axis 2 in the shape [3, 5]"),
    "slice of a gradient past the axis": (
        edited(ca.Zero("block", at="grad_output", slices=(ca.Slice(1, 5),)), **GRADIENTS), "SLICE_RANGE",
        "edits[1].slices[0]", "from 5 to 5 is no part of axis 1, which has size 5"),
    "one call where calls are made again": (
        edited(ca.Scale("block.inner", at="input", factor=2, call=1), "thrifty", **GRADIENTS), "EDIT_INAPPLICABLE",
        "edits[1].call",
        "'block.inner' is called several times, and again during the backward pass (activation checkpointing)"),
    "gradient that is explained": (
        edited(ca.Scale("block", at="grad_output", factor=2), target=TARGET,
               attributions=[ca.LayerGradientXActivation(layer="block")]),
        "EDIT_INAPPLICABLE", "attributions[0].layer_gradient_x_activation.layer",
        "the gradient at 'block' is edited and explained at once"),
}  # fmt: skip


@pytest.mark.parametrize(("bad", "reason", "field", "says"), BAD.values(), ids=BAD.keys())
def test_a_bad_edit(client: ca.Client, bad: Callable[[ca.Client], object], reason: str, field: str, says: str) -> None:
    """Every bad edit has its own reason, names the field at fault, and says what would be right."""
    with pytest.raises(ca.CutawayError) as caught:
        bad(client)
    assert (caught.value.reason, caught.value.field) == (reason, field), caught.value
    assert isinstance(caught.value, ca.InvalidArgument)
    assert caught.value.message.startswith(says)
