"""Operators that write into a tensor, and what the model goes on with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import cutaway as ca
from cutaway.contract.requests import Point, PointName
from tests.oracles.hooks import Change, equal
from tests.oracles.operators import POINTS, ROW, VALUES, Probe, Twin, Wired, ask, by_hand


def add_and_use_the_old_name(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    old = h
    h += m.b(x)
    return m.head(old)


def add_and_use_the_old_name_twin(m: Any, x: Tensor, p: Probe) -> Tensor:
    one, other = p.given([m.a(x), m.b(x)])
    return m.head(p.returned(one + other))


def ignore(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    F.relu_(h)
    return m.head(h)


def ignore_twin(m: Any, x: Tensor, p: Probe) -> Tensor:
    (h,) = p.given([m.a(x)])
    return m.head(p.returned(F.relu(h)))


def ignore_by_keyword(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    torch.relu_(input=h)
    return m.head(h)


def add_to_a_column(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    h[:, 0] += m.b(x)[:, 1]
    return m.head(h)


def add_to_a_column_twin(m: Any, x: Tensor, p: Probe) -> Tensor:
    h = m.a(x)
    one, other = p.given([h[:, 0], m.b(x)[:, 1]])
    return m.head(torch.cat([p.returned(one + other)[:, None], h[:, 1:]], 1))


def put_the_column_back(m: Any, x: Tensor, p: Probe) -> Tensor:
    h = m.a(x)
    column = h[:, 0] + m.b(x)[:, 1]
    whole, part = p.given([torch.cat([column[:, None], h[:, 1:]], 1), column])
    return m.head(p.returned(torch.cat([part[:, None], whole[:, 1:]], 1)))


def double_a_view(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    h.view(-1).mul_(2)
    return m.head(h)


def double_a_view_twin(m: Any, x: Tensor, p: Probe) -> Tensor:
    h = m.a(x)
    (flattened,) = p.given([h.view(-1)])
    return m.head(p.returned(flattened * 2).view_as(h))


def clip_a_transposed_view(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    h.t()[1:].relu_()
    return m.head(h)


def clip_a_transposed_view_twin(m: Any, x: Tensor, p: Probe) -> Tensor:
    h = m.a(x)
    (rows,) = p.given([h.t()[1:]])
    return m.head(torch.cat([h.t()[:1], p.returned(rows.relu())]).t().contiguous())


def again_and_again(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    h.mul_(2)
    h.add_(1)
    h.mul_(m.b(x))
    h.mul_(3)
    return m.head(h)


def again_and_again_twin(m: Any, x: Tensor, p: Probe) -> Tensor:
    one, other = p.given([m.a(x) * 2 + 1, m.b(x)])
    return m.head(p.returned(one * other) * 3)


def twice_the_same(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    h.sub_(0.1)
    h.sub_(m.b(x))
    return m.head(h)


def twice_the_same_twin(m: Any, x: Tensor, p: Probe) -> Tensor:
    one, other = p.given([m.a(x) - 0.1, m.b(x)])
    return m.head(p.returned(one - other))


def double_the_input(m: Any, x: Tensor) -> Tensor:
    x.mul_(2)
    return m.head(m.a(x))


def double_the_input_twin(m: Any, x: Tensor, p: Probe) -> Tensor:
    (h,) = p.given([x])
    return m.head(m.a(p.returned(h * 2)))


def write_a_frozen_tensor(m: Any, x: Tensor) -> Tensor:
    h = torch.zeros(3, 4)
    h[:2] = m.a(x)[1:]
    return m.head(h)


def write_a_frozen_tensor_twin(m: Any, x: Tensor, p: Probe) -> Tensor:
    blank, rows = p.given([torch.zeros(3, 4), m.a(x)[1:]])
    return m.head(p.returned(torch.cat([rows, blank[2:]])))


def turn_it_round(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    h.t_()
    return m.head(h.flatten()[:12].view(3, 4))


def turn_it_round_twin(m: Any, x: Tensor, p: Probe) -> Tensor:
    (h,) = p.given([m.a(x)])
    return m.head(p.returned(h.t()).flatten()[:12].view(3, 4))


def need_what_was_written(m: Any, x: Tensor) -> Tensor:
    h = torch.exp_(m.a(x))  # its backward needs what it wrote
    return m.head(h * m.b(x))


def need_what_was_written_twin(m: Any, x: Tensor, p: Probe) -> Tensor:
    (h,) = p.given([m.a(x)])
    return m.head(p.returned(torch.exp(h)) * m.b(x))


WRITING = {
    "x += y, used under its old name": (":add_#0", add_and_use_the_old_name, add_and_use_the_old_name_twin),
    "what is returned is ignored": (":relu_#0", ignore, ignore_twin),
    "by keyword, and ignored": (":relu_#0", ignore_by_keyword, ignore_twin),
    "a column is added to": (":add_#0", add_to_a_column, add_to_a_column_twin),
    "a column is put back": (":setitem#0", add_to_a_column, put_the_column_back),
    "a view is doubled": (":mul_#0", double_a_view, double_a_view_twin),
    "a view of a view": (":relu_#0", clip_a_transposed_view, clip_a_transposed_view_twin),
    "the second of three": (":mul_#1", again_and_again, again_and_again_twin),
    "twice the same": (":sub_#1", twice_the_same, twice_the_same_twin),
    "the model's input": (":mul_#0", double_the_input, double_the_input_twin),
    "a tensor without a gradient": (":setitem#0", write_a_frozen_tensor, write_a_frozen_tensor_twin),
    "the shape alone": (":t_#0", turn_it_round, turn_it_round_twin),
    "a backward that needs what was written": (":exp_#0", need_what_was_written, need_what_was_written_twin),
}


@pytest.mark.parametrize("name", WRITING)
def test_what_an_operator_writes_is_seen_whatever_the_model_goes_on_with(name: str) -> None:
    """In-place operators, on tensors and on views of them: as in the same function written without any."""
    op, wiring, twin = WRITING[name]
    probe = Probe()
    prediction, gradient = by_hand(Twin(twin, probe), ROW)
    for points in (*((point,) for point in POINTS), POINTS):
        result = ask(Wired(wiring), ROW, captures=(ca.Capture(op=op, at=points),), input_gradients=())
        assert equal(result.predictions["output"], prediction)
        assert equal(result.input_gradients["x"], gradient)
        for point in points:
            ours = list(result.captures[op].calls[0].leaves[point].values())
            assert all(map(equal, ours, probe.seen[point])), (points, point)
            assert len(ours) == len(probe.seen[point])


CHANGES: dict[str, tuple[Callable[..., ca.Edit], Change]] = {
    "scale": (lambda **where: ca.Scale(**where, factor=1.5), lambda value: value * 1.5),
    "clamp": (lambda **where: ca.Clamp(**where, minimum=-0.3, maximum=0.4), lambda value: value.clamp(-0.3, 0.4)),
}
"""Edits, and the same by hand; the backward of the second needs the value before it."""


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("name", WRITING)
def test_an_edit_where_an_operator_writes_reaches_whatever_the_model_goes_on_with(
    name: str, point: Point, change: str
) -> None:
    """The same for edits: prediction and gradient are those of the function written anew."""
    op, wiring, twin = WRITING[name]
    edit, by = CHANGES[change]
    prediction, gradient = by_hand(Twin(twin, Probe(point, by)), ROW)
    result = ask(Wired(wiring), ROW, edits=(edit(op=op, at=point),), input_gradients=())
    assert equal(result.predictions["output"], prediction)
    assert equal(result.input_gradients["x"], gradient)


def sum_into_a_buffer(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        buffer = torch.empty(3, 4)
        torch.add(m.a(x), m.b(x), out=buffer)
    return m.head(buffer)


def test_what_an_operator_writes_by_out_is_its_output_and_not_its_input() -> None:
    """``out=`` is written and never read: it is no input, and an edit of the output is in it."""
    made = Wired(sum_into_a_buffer)
    one, other = made.a(ROW["x"]).detach(), made.b(ROW["x"]).detach()
    call = (
        ask(Wired(sum_into_a_buffer), ROW, captures=(ca.Capture(op=":add#0", at=VALUES),)).captures[":add#0"].calls[0]
    )
    assert {path: equal(value, expected) for (path, value), expected in zip(
        call.leaves[Point.INPUT].items(), (one, other), strict=True)} == {"[0]": True, "[1]": True}  # fmt: skip
    assert equal(call.output, one + other)
    for point, sum_of_both in ((Point.INPUT, 2 * one + 2 * other), (Point.OUTPUT, 2 * (one + other))):
        result = ask(Wired(sum_into_a_buffer), ROW, edits=(ca.Scale(op=":add#0", at=point, factor=2),))
        assert equal(result.predictions["output"], made.head(sum_of_both))


def either(m: Any, x: Tensor) -> Tensor:
    mask = x > 0
    both = mask
    both |= x < -1
    return m.head(m.a(x) * mask)


@pytest.mark.parametrize("point", VALUES)
def test_a_mask_that_is_written_to_is_edited_under_all_its_names(point: Point) -> None:
    """Operators on booleans write too, under names without an underscore."""
    made = Wired(either)
    mask = torch.zeros(3, 4) if point is Point.OUTPUT else ROW["x"] < -1
    edit = ca.Zero(op=":ior#0", at=point, path="[0]" if point is Point.INPUT else "")
    result = ask(Wired(either), ROW, edits=(edit,))
    assert equal(result.predictions["output"], made.head(made.a(ROW["x"]) * mask))


@pytest.mark.parametrize("point", ["grad_input", "grad_output"])
def test_a_gradient_that_would_take_a_view_from_its_base_is_refused(point: PointName) -> None:
    """A view that the model writes into, and whose gradient is asked for: refused, where a copy would have lost what
    was written. Its values are there."""
    with pytest.raises(ca.FailedPrecondition) as caught:
        ask(Wired(double_a_view), ROW, captures=(ca.Capture(op=":view#0", at=point),))
    assert caught.value.reason == "NOT_DIFFERENTIABLE"
    result = ask(Wired(double_a_view), ROW, captures=(ca.Capture(op=":view#0", at=VALUES),))
    assert equal(result.predictions["output"], by_hand(Wired(double_a_view), ROW)[0])


def count(m: Any, x: Tensor) -> Tensor:
    m.counter.add_(1)
    return m.head(m.a(x) + m.counter)


def test_a_counter_that_an_edit_reached_is_put_back() -> None:
    """An operator that writes into a buffer, edited and listened to: afterwards the buffer is as it was, and in no
    graph."""
    model = Wired(count)
    model.register_buffer("counter", torch.zeros(4))
    edit = ca.Scale(op=":add_#0", factor=3.0)
    result = ask(model, ROW, edits=(edit,), captures=(ca.Capture(op=":add_#0", at=POINTS),))
    assert equal(result.captures[":add_#0"].output, torch.full((4,), 3.0))
    assert equal(result.predictions["output"], model.head(model.a(ROW["x"]) + 3))
    (counter,) = model.buffers()
    assert torch.equal(counter, torch.zeros(4))
    assert not counter.requires_grad
