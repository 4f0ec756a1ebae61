"""The hook cookbook: what people do with PyTorch's hooks, row by row, over gRPC, also through TorchServe.

Where a recipe's numbers are exact they are written here; elsewhere the same hook, written by hand in this process, says
what must come back, bit for bit.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

import cutaway as ca
from cutaway.gateway import serve
from tests.oracles.hooks import Handmade
from tests.support.adapters import cookbook_adapter
from tests.support.garbage import uncollected
from tests.support.models import SUBJECTS, Subject
from tests.support.serving import Server
from tests.support.waiting import until

MODELS = ("squares", "product", "shifted", "regression", "pooled", "twice")
POINTS = tuple(ca.Point)

TWOS, ONES = {"x": np.full((1, 4), 2, np.float32)}, {"x": np.ones((1, 4), np.float32)}
FACTORS = {"a": np.array([7], np.float32), "b": np.array([13], np.float32)}


@pytest.fixture(scope="module")
def cook() -> Iterator[ca.Client]:
    """A client of a gateway over the cookbook's models, in this process."""
    models = {model: getattr(cookbook_adapter, f"{model.capitalize()}Adapter")() for model in MODELS}
    with serve(models) as running, ca.Client(running.address) as client:
        yield client


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[ca.Client]:
    """A client of the shared server, which has a network of handwritten digits."""
    with ca.Client(server.address) as connected:
        yield connected


@pytest.fixture(scope="module")
def digits(store: Path) -> Subject:
    """The same network, in this process."""
    return SUBJECTS["digits"](store)


@contextmanager
def hooked(*handles: RemovableHandle) -> Iterator[None]:
    """Take the hooks off again when the block ends."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def equal(ours: Any, theirs: Any) -> bool:
    """The same numbers to the last bit, in the same data type and shape."""
    theirs = theirs.detach().numpy() if isinstance(theirs, Tensor) else np.asarray(theirs, np.float32)
    return ours.dtype == theirs.dtype and np.array_equal(ours, theirs)


def mean(client: ca.Client, *edits: ca.Edit) -> ca.InspectResult:
    """Ask for the gradient of a mean of squares."""
    target = ca.PredictedClass(output="mean")
    captures = [ca.Capture("x", at=("grad_input", "grad_output"))]
    return client.inspect("squares", TWOS, target=target, input_gradients=True, captures=captures, edits=edits)


def test_row_1_the_gradient_of_a_mean_of_squares(cook: ca.Client) -> None:
    """Of x = [2, 2, 2, 2], mean(x²) is 4, and its gradient 1 everywhere."""
    result = mean(cook)
    assert equal(result.predictions["mean"], [4])
    assert equal(result.input_gradients["x"], [[1, 1, 1, 1]])
    assert equal(result.captures["x"].grad_output, [[1, 1, 1, 1]])


@pytest.mark.parametrize("point", ["grad_input", "grad_output"])
@pytest.mark.parametrize("factor", [2, 50])
def test_row_1_the_gradient_scaled(cook: ca.Client, point: ca.Point, factor: float) -> None:
    """A gradient edit at x multiplies what arrives there, and leaves the prediction alone."""
    result = mean(cook, ca.Scale("x", at=point, factor=factor))
    assert equal(result.input_gradients["x"], [[factor] * 4])
    assert equal(result.captures["x"].grad_input, [[factor] * 4])
    assert equal(result.captures["x"].grad_output, [[factor if point == "grad_output" else 1] * 4])
    assert equal(result.predictions["mean"], [4])
    assert not result.warnings


def test_row_2_the_gradient_of_a_sum_of_squares_scaled(cook: ca.Client) -> None:
    """Of x = [1, 1, 1, 1], the gradient of sum(x²) is 2; multiplied by 1.6 it is 3.2 to float32."""
    result = cook.inspect(
        "squares",
        ONES,
        target=ca.PredictedClass(output="sum"),
        input_gradients=True,
        edits=[ca.Scale("x", at="grad_output", factor=1.6)],
    )
    assert equal(result.input_gradients["x"], [[3.2, 3.2, 3.2, 3.2]])
    assert equal(result.target_values.astype(np.float32), [4])  # type: ignore[union-attr]


@pytest.mark.parametrize(("addend", "at_a", "at_b", "at_c"), [(0, 13, 7, 1), (2, 39, 21, 3)])
def test_row_3_the_gradients_of_a_product(cook: ca.Client, addend: float, at_a: int, at_b: int, at_c: int) -> None:
    """Of a·b = c at 7 and 13, the gradients are 13, 7 and 1; with 2 added at c they are 39, 21 and 3."""
    result = cook.inspect(
        "product",
        FACTORS,
        input_gradients=True,
        captures=[ca.Capture("?", at="grad_output"), ca.Capture(op="c:mul#0", at="grad_output")],
        edits=[ca.Add("c", at="grad_output", addend=addend)] if addend else [],
    )
    assert equal(result.predictions["output"], [91])
    assert equal(result.input_gradients["a"], [at_a])
    assert equal(result.input_gradients["b"], [at_b])
    found = {name: capture.grad_output.item() for name, capture in result.captures.items()}
    assert found == {"a": at_a, "b": at_b, "c": at_c, "c:mul#0": at_c}


@pytest.mark.parametrize("output", ["half", "mean"])
@pytest.mark.parametrize("where", [{"module": "y"}, {"op": ":add#0"}], ids=["module", "operator"])
def test_row_4_the_gradient_of_an_intermediate(cook: ca.Client, output: str, where: dict[str, Any]) -> None:
    """Autograd frees y = x + 2; the gradient of ½(y₁² + y₂²) there, and of mean(y²), is y itself. The tensor needs no
    name of its own: the addition's address will do."""
    result = cook.inspect(
        "shifted",
        {"x": np.array([[1, 5]], np.float32)},
        target=ca.PredictedClass(output=output),
        captures=[ca.Capture(**where, at=("output", "grad_output"))],
    )
    (capture,) = result.captures.values()
    assert equal(capture.output, [[3, 7]])
    assert equal(capture.grad_output, [[3, 7]])


def test_row_5_a_loss_and_all_its_gradients(cook: ca.Client) -> None:
    """A mean squared error over two examples: the loss, and its gradients at output, input and weight."""
    result = cook.inspect(
        "regression",
        {"x": np.array([[1], [2]], np.float32)},
        target=ca.MeanSquaredError(np.ones((2, 1), np.float32), reduction=ca.LossReduction.MEAN),
        input_gradients=True,
        captures=[ca.Capture("linear", at="grad_output"), ca.Capture(parameter="linear.weight")],
    )
    assert result.target_values is not None
    assert result.target_values.sum() == 5
    assert equal(result.captures["linear"].grad_output, [[1], [3]])
    assert equal(result.input_gradients["x"], [[2], [6]])
    assert equal(result.parameter_gradients["linear.weight"], [[7]])


def test_row_6_the_activation_of_a_pool(cook: ca.Client) -> None:
    """An activation in the midst of a network is what a forward hook sees in this process."""
    model = cookbook_adapter.PooledAdapter().build().eval()
    x = torch.randn(1, 3, 10, 10, generator=torch.Generator().manual_seed(1))
    seen: list[Tensor] = []
    with hooked(model.pool.register_forward_hook(lambda _, args, output: seen.append(output))):  # type: ignore[union-attr]
        prediction = model(x)
    result = cook.inspect("pooled", {"x": x.numpy()}, captures=["pool"])
    assert result.captures["pool"].output.shape == (1, 8, 4, 4)
    assert equal(result.captures["pool"].output, seen[0])
    assert equal(result.predictions["output"], prediction)


def test_row_7_a_layer_fed_twice_its_input(client: ca.Client, digits: Subject) -> None:
    """A pre-hook that doubles a layer's input: the prediction is that of the layer fed twice its input."""
    result = client.inspect("digits", digits.inputs, edits=[ca.Scale("conv2", at="input", factor=2)], compare=True)
    plain = digits.model(*digits.inputs.values())
    with hooked(module(digits, "conv2").register_forward_pre_hook(lambda _, args: (args[0] * 2,))):
        doubled = digits.model(*digits.inputs.values())
    assert equal(result.predictions["output"], doubled)
    assert equal(result.unedited["output"], plain)
    assert not torch.equal(doubled, plain)


def test_row_8_manifold_mixup(client: ca.Client, digits: Subject) -> None:
    """A forward hook that mixes each row's activation with another row's: out ← λ·out + (1 − λ)·out[perm]."""
    share, permutation = 0.3, [2, 0, 1]
    result = client.inspect(
        "digits", digits.inputs, edits=[ca.Mix("relu1", weight=share, permutation=tuple(permutation))]
    )
    with hooked(
        module(digits, "relu1").register_forward_hook(
            lambda _, args, output: share * output + (1 - share) * output[permutation]
        )
    ):
        mixed = digits.model(*digits.inputs.values())
    assert equal(result.predictions["output"], mixed)
    assert not torch.equal(mixed, digits.model(*digits.inputs.values()))


def test_row_9_inputs_and_outputs_on_the_host(client: ca.Client, digits: Subject) -> None:
    """A layer's inputs and outputs come out together, as a hook in this process sees them."""
    result = client.inspect("digits", digits.inputs, captures=[ca.Capture("fc1", at=("input", "output"))])
    seen = by_hand(digits, "fc1")
    assert equal(result.captures["fc1"].input, seen.input["fc1"][0][0])
    assert equal(result.captures["fc1"].output, seen.output["fc1"][0])


@pytest.mark.parametrize("fits", [True, False])
def test_row_9_no_memory_is_kept(fits: bool) -> None:
    """What was captured leaves as a copy: none of the model's own tensors outlives the request, on whatever device,
    also where an edit fails in the midst of the backward pass; nor does it need a garbage collection."""
    model = cookbook_adapter.TwiceAdapter().build()
    flowed: list[weakref.ref[Tensor]] = []

    def watch(_: nn.Module, args: Any, output: Tensor) -> None:
        flowed.extend(weakref.ref(tensor) for tensor in (*args, output))

    captures = [ca.Capture("layer", at=POINTS), ca.Capture(parameter="layer.weight")]
    part = ca.Slice(1, 0, 1 if fits else 4)
    edits = [ca.Scale("layer", factor=2), ca.Scale("layer", at="grad_input", factor=2, slices=(part,))]
    with serve({"twice": model}) as server, ca.Client(server.address) as client:
        refused: AbstractContextManager[Any] = (
            nullcontext() if fits else pytest.raises(ca.InvalidArgument, match="no part of axis 1")
        )
        with uncollected():
            with hooked(model.layer.register_forward_hook(watch)), refused:  # type: ignore[union-attr]
                client.inspect("twice", {"x": np.ones((2, 3), np.float32)}, captures=captures, edits=edits)
            assert len(flowed) == 3 * 4  # two passes find the axis of the rows
            until(lambda: all(tensor() is None for tensor in flowed))  # the worker's thread may be in its last lines


@pytest.mark.parametrize("factor", [1.0, -3.0])
def test_row_10_a_layers_gradients(client: ca.Client, digits: Subject, factor: float) -> None:
    """A full backward hook sees the gradients at a layer's input and output; where it scales the one at the input, all
    upstream follows and nothing downstream does."""
    names = ("conv1", "relu1", "conv2", "relu2", "fc1")
    result = client.inspect(
        "digits",
        digits.inputs,
        captures=[ca.Capture(name, at=POINTS) for name in names],
        edits=[ca.Scale("conv2", at="grad_input", factor=factor)] if factor != 1 else [],
    )

    def scaled(_: nn.Module, grad_input: Any, grad_output: Any) -> tuple[Tensor, ...]:
        return (grad_input[0] * factor,)

    with hooked(module(digits, "conv2").register_full_backward_hook(scaled)):
        edited = by_hand(digits, *names)
    plain = by_hand(digits, *names)
    for name in names:
        if name != "conv1":  # the gradient at the model's input was not asked for
            assert equal(result.captures[name].grad_input, edited.grad_input[name][0][0])
        assert equal(result.captures[name].grad_output, edited.grad_output[name][0][0])
        downstream = name in ("conv2", "relu2", "fc1")
        changed = not torch.equal(edited.grad_output[name][0][0], plain.grad_output[name][0][0])
        assert changed == (factor != 1 and not downstream), name


def test_row_11_input_and_gradient_of_the_same_call(cook: ca.Client) -> None:
    """What went into a call and the gradient at what came out of it come as a pair, call by call."""
    model = cookbook_adapter.TwiceAdapter().build().eval()
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
    pairs: list[dict[str, Tensor]] = []

    def pair(_: nn.Module, args: Any, output: Tensor) -> None:
        pairs.append({"input": args[0]})
        mine = pairs[-1]
        output.register_hook(lambda gradient: mine.update(gradient=gradient))

    with hooked(model.layer.register_forward_hook(pair)):  # type: ignore[union-attr]
        model(x)[:, 1].sum().backward()
    result = cook.inspect(
        "twice", {"x": x.numpy()}, target=1, captures=[ca.Capture("layer", at=("input", "grad_output"))]
    )
    assert len(result.captures["layer"].calls) == len(pairs) == 2
    for call, seen in zip(result.captures["layer"].calls, pairs):
        assert equal(call.input, seen["input"])
        assert equal(call.grad_output, seen["gradient"])
    assert not torch.equal(pairs[0]["gradient"], pairs[1]["gradient"])


EDITS: dict[str, tuple[ca.Edit, ...]] = {
    "of a value": (ca.Scale("relu1", factor=3),),
    "of a gradient": (ca.Zero("conv2", at="grad_input"),),
    "of both, at operators too": (ca.Clamp(op="conv2:conv2d#0", minimum=0), ca.Add("fc1", at="grad_output", addend=1)),
    "that fails before forward": (ca.Scale("no_such_layer", factor=3),),
    "that fails within forward": (ca.Replace("relu1", tensor=np.ones((5, 5), np.float32)),),
}


@pytest.mark.parametrize("edits", EDITS.values(), ids=EDITS.keys())
def test_row_12_nothing_is_left_behind(client: ca.Client, digits: Subject, edits: tuple[ca.Edit, ...]) -> None:
    """Whatever hooks a request needed, and however it ended, the next one sees a model without any."""

    def plain() -> ca.InspectResult:
        captures = [ca.Capture("conv1", at=POINTS), ca.Capture("fc1", at=POINTS)]
        return client.inspect("digits", digits.inputs, captures=captures, input_gradients=True)

    before, failed = plain(), False
    try:
        client.inspect("digits", digits.inputs, edits=edits, input_gradients=True, attributions=[ca.Saliency()])
    except ca.InvalidArgument:
        failed = True
    after = plain()
    assert failed == (edits in (EDITS["that fails before forward"], EDITS["that fails within forward"]))
    assert equal(after.predictions["output"], digits.model(*digits.inputs.values()))
    assert np.array_equal(after.input_gradients["image"], before.input_gradients["image"])
    for name in ("conv1", "fc1"):
        (ours,), (theirs,) = after.captures[name].calls, before.captures[name].calls
        assert ours.leaves.keys() == theirs.leaves.keys() == set(POINTS)
        assert all(np.array_equal(ours.at(point), theirs.at(point)) for point in POINTS)


def module(digits: Subject, name: str) -> nn.Module:
    """A module of the network in this process."""
    return digits.model.get_submodule(name)


def by_hand(digits: Subject, *names: str) -> Handmade:
    """What hand-written hooks on ``names`` see, of the predicted class."""

    def scalar(output: Tensor) -> Tensor:
        return output.gather(1, output.argmax(dim=1, keepdim=True))

    return Handmade(digits.model, names, lambda: digits.model(*digits.inputs.values()), scalar)
