"""Finds small changes of inputs that change the class: greedily, then pruned; and runs the model on what was found."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from cutaway.contract import requests, results
from cutaway.contract.errors import Reason, at, error
from cutaway.contract.requests import CheckMode
from cutaway.contract.results import Cause, Check, CounterfactualResult, RowCheck, Verdict
from cutaway.contract.tensors import Array
from cutaway.contract.values import changed, near_names
from cutaway.engine.checks.model_properties import dependent_rows, random_forward
from cutaway.engine.execution.attacks import check_of_rows, classes_of, classifies, doubted, doubts, moved_to
from cutaway.engine.execution.collect import arrays
from cutaway.engine.execution.fitting import rows_that_fit
from cutaway.engine.execution.main_pass import MainPass
from cutaway.engine.execution.row_parts import in_parts
from cutaway.engine.hooks.observe import observing
from cutaway.engine.hooks.tokens import MASK
from cutaway.engine.methods.feature_metrics import MAX_ROWS_PER_PASS
from cutaway.engine.model.inspected_model import Inputs
from cutaway.engine.model.session import ran_out_of_memory, timed
from cutaway.engine.passes.features import MAX_EVALUATIONS, baselines, feature_numbers
from cutaway.engine.passes.pass_recorder import AttributionProblem, ResolvedAttribution
from cutaway.engine.passes.targets import Loss
from cutaway.engine.planning.plan import RequestPlan
from cutaway.engine.runtime.numerics import ONE_PASS, tensor_like, to_numpy


class Change(NamedTuple):
    """A change that a row may have.

    Attributes:
        feature: the number of the column, token or group; a row has at most one change of each.
        writes: what it writes: the input, the places in the flat row, and the values.
        distance: of a column with a range, how far the value is from the row's own; infinite for others.
    """

    feature: int
    writes: tuple[tuple[str, Tensor, Tensor], ...]
    distance: float = math.inf


class _Column(NamedTuple):
    """The place of a column, and the values that it may take; ``is_range``: whether they have distances."""

    input: str
    place: int
    values: Tensor
    is_range: bool


@dataclass(frozen=True)
class Possible:
    """The changes that a request allows, resolved and validated.

    Attributes:
        inputs: those of the request.
        asked: the request for a counterfactual.
        columns: the columns that may change.
        groups: by input, the number of the group of each element, [1, ...] or [batch, ...].
        starts: by input, the value of each element that groups get.
    """

    inputs: Inputs
    asked: requests.Counterfactual
    columns: Sequence[_Column]
    groups: Mapping[str, Tensor] = field(default_factory=dict)
    starts: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The inputs that may change."""
        tokens = self.asked.tokens
        of_tokens = [] if tokens is None else [tokens.input] * bool(tokens.replacements) + [MASK] * tokens.remove
        return [*dict.fromkeys([*(column.input for column in self.columns), *of_tokens, *self.groups])]

    @property
    def most(self) -> int:
        """The most changes to choose from that a row has."""
        tokens = self.asked.tokens
        per_token = 0 if tokens is None else len(tokens.replacements) + tokens.remove
        count = 1 + max((int(groups.max()) for groups in self.groups.values()), default=-1)
        length = 0 if tokens is None else self.inputs[tokens.input].shape[1]
        return sum(len(column.values) for column in self.columns) + per_token * length + count

    def of_row(self, row: int) -> list[Change]:
        """Returns the changes that row may have, each of which changes a value."""
        return [*self._of_columns(row), *self._of_tokens(row), *self._of_groups(row)]

    def _of_columns(self, row: int) -> Iterator[Change]:
        for number, (name, place, values, is_range) in enumerate(self.columns):
            own = self.inputs[name][row].reshape(-1)[place]
            for value in values[values != own]:
                distance = float((value.double() - own.double()).abs()) if is_range else math.inf
                yield Change(number, ((name, torch.tensor([place], device=own.device), value[None]),), distance)

    def _of_tokens(self, row: int) -> Iterator[Change]:
        if (tokens := self.asked.tokens) is None:
            return
        ids, mask = self.inputs[tokens.input][row], self.inputs.get(MASK)
        for place, own in enumerate(ids.tolist()):
            is_padding = mask is not None and mask.shape == self.inputs[tokens.input].shape and not mask[row, place]
            if own in tokens.keep or is_padding:
                continue
            here, number = torch.tensor([place], device=ids.device), len(self.columns) + place
            for other in tokens.replacements:
                if other != own:
                    yield Change(number, ((tokens.input, here, ids.new_tensor([other])),))
            if tokens.remove and mask is not None:
                yield Change(number, ((MASK, here, mask.new_zeros(1)),))

    def _of_groups(self, row: int) -> Iterator[Change]:
        writes: dict[int, list[tuple[str, Tensor, Tensor]]] = {}
        for name, groups in self.groups.items():
            own, start = self.inputs[name][row].reshape(-1), self.starts[name][row].reshape(-1)
            numbers, differs = groups[min(row, len(groups) - 1)].reshape(-1).cpu(), (own != start).cpu()
            order = numbers.argsort(stable=True)
            found, sizes = numbers[order].unique_consecutive(return_counts=True)
            for number, places in zip(found.tolist(), order.split(sizes.tolist())):
                if differs[places].any():
                    here = places.to(own.device)
                    writes.setdefault(number, []).append((name, here, start[here]))
        for number, several in writes.items():
            yield Change(-1 - number, tuple(several))


_MOST_VALUES = 1000
_PARTS = 16


def possible_changes(plan: RequestPlan) -> Possible:
    """Returns the changes that the counterfactual of a request may have.

    Raises:
        InvalidArgument: what may change is not there, or has no such values.
    """
    asked = cast(requests.Counterfactual, plan.request.counterfactual)
    with at("counterfactual"):
        if not (asked.columns or asked.tokens or asked.masks):
            raise error(Reason.INVALID_VALUE, "say what may change: columns, tokens or masks")
        if requests.is_several(plan.request.target):
            raise error(
                Reason.INVALID_VALUE, "each row has one class to leave or to reach: name one target", "targeted"
            )
        if asked.targeted and isinstance(plan.request.target, requests.PredictedClass):
            raise error(Reason.INVALID_VALUE, "the class to reach is the target's: name it as target", "targeted")
        if asked.tokens is not None:
            with at("tokens"):
                _refuse_tokens(asked.tokens, plan.inputs)
        columns = []
        for name, column in asked.columns.items():
            with at(f"columns.{name}"):
                columns.append(_column(plan, name, column))
        pictures = [name for name, tensor in plan.inputs.items() if "" in asked.masks and tensor.ndim == 4]
        grouped = tuple(dict.fromkeys([*pictures, *(name for name in asked.masks if name)]))
        for name in grouped:
            if name not in plan.inputs:
                what = f"there is no input {name!r:.80}; there are {', '.join(plan.inputs)}"
                raise error(Reason.INPUT_UNKNOWN, what, "masks")
        groups = feature_numbers(asked, plan.inputs, grouped) if asked.masks else {}
        start = baselines(asked.baselines, plan.inputs, grouped, plan.model.special_tokens)
        found = Possible(plan.inputs, asked, columns, groups, start)
        if found.most > MAX_EVALUATIONS:
            what = f"{found.most} changes to choose from, and at most {MAX_EVALUATIONS} are tried: allow fewer values"
            raise error(Reason.INVALID_VALUE, what)
        return found


def _refuse_tokens(tokens: requests.TokenChanges, inputs: Inputs) -> None:
    ids, mask = inputs.get(tokens.input), inputs.get(MASK)
    if ids is None or ids.ndim != 2 or ids.is_floating_point():
        what = f"{tokens.input!r:.80} is no input of token ids, [batch, tokens]; there are {', '.join(inputs)}"
        raise error(Reason.INPUT_UNKNOWN, what, "input")
    if not (tokens.replacements or tokens.remove):
        raise error(Reason.INVALID_VALUE, "say how tokens change: send ids, or remove=True", "replacements")
    if tokens.remove and (mask is None or mask.shape != ids.shape):
        raise error(Reason.INVALID_VALUE, f"a token is removed by {MASK!r}, of the shape of the ids: send it", "remove")
    with at("replacements"):
        tensor_like(np.array(tokens.replacements, np.int64), ids)


def _column(plan: RequestPlan, key: str, column: requests.Column) -> _Column:
    name, place = _place(plan, key)
    like = plan.inputs[name]
    values = np.array(column.values, np.float64)
    if not len(values):
        values = _range(column, like)
    elif (column.lower, column.upper, column.step) != (None, None, None):
        raise error(Reason.INVALID_VALUE, "a range, or values, not both", "values")
    if not np.isfinite(values).all():
        raise error(Reason.INVALID_VALUE, "a column takes finite numbers", "values")
    if not like.is_floating_point():
        if (values % 1).any():
            raise error(Reason.INVALID_VALUE, f"{name!r:.80} has whole numbers: send such values and steps", "values")
        values = values.astype(bool if like.dtype is torch.bool else np.int64)
    return _Column(name, place, tensor_like(values, like), not column.values)


def _range(column: requests.Column, like: Tensor) -> Array:
    lower, upper = column.lower, column.upper
    if lower is None or upper is None or not lower <= upper:
        raise error(Reason.INVALID_VALUE, "send values, or a range from lower up to upper", "lower")
    if column.step is None and like.is_floating_point():
        return np.linspace(lower, upper, _PARTS + 1)
    step = column.step or 1.0
    if not (upper - lower) / step < _MOST_VALUES:
        raise error(Reason.INVALID_VALUE, f"more than {_MOST_VALUES} values from lower to upper", "step")
    return lower + step * np.arange(math.floor((upper - lower) / step + 1e-9) + 1)


def _place(plan: RequestPlan, key: str) -> tuple[str, int]:
    """Returns the input of a column, and its number in a row."""
    names = {spec.name: spec.feature_names for spec in plan.model.inputs} | dict(plan.request.feature_names)
    known = {(name, place): feature for name, features in names.items() for place, feature in enumerate(features)}
    found = [place for place, feature in known.items() if feature == key and place[0] in plan.inputs]
    numbered = re.fullmatch(r"(.*)\[(\d+)\]", key, re.DOTALL)
    if not found and numbered is not None and numbered[1] in plan.inputs:
        found = [(numbered[1], int(numbered[2]))]
    if not found and key in plan.inputs and plan.inputs[key][0].numel() == 1:
        found = [(key, 0)]
    tables = {name: tensor[0].numel() for name, tensor in plan.inputs.items() if tensor.ndim < 3}
    found = [(name, place) for name, place in found if place < tables.get(name, 0)]
    if len(found) == 1:
        return found[0]
    near = near_names(key, known.values(), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"name it as {next(iter(plan.inputs))}[0]"
    what = f"{len(found)} columns have this name" if found else "no column of a table [batch, columns] has this name"
    raise error(Reason.INPUT_UNKNOWN, f"{what}; {hint}")


def counterfactual_passes(plan: RequestPlan) -> int:
    """Returns how many passes of one example the search of a request takes at most, with its checks."""
    found = possible_changes(plan)
    changes = min(found.asked.max_changes, found.most)
    is_checked = plan.request.check.mode is not CheckMode.OFF
    # Greedy steps; pruning, twice; nearer values; and the result, with each change put back.
    search = 1 + changes * found.most + changes * (changes + 1) + found.most
    return plan.rows * (search + 1 + changes * is_checked)


# The search.

Changes: TypeAlias = Sequence[Change]


def _margins(loss: Loss, output: Tensor, targeted: bool) -> tuple[Tensor, Tensor]:
    """Returns by how much each row's aim is reached, above 0, or missed; and the rounding of that."""
    scores = loss.scores(output).double()
    index = cast(Tensor, loss.of.positions)[:, -1:]
    own, others = scores.gather(1, index)[:, 0], scores.scatter(1, index, -math.inf).amax(dim=1)
    rounding = ONE_PASS.of(output.dtype) * scores.abs().amax(dim=1)
    margins = (own - others) if targeted else (others - own)
    return margins.nan_to_num(nan=-math.inf).cpu(), rounding.nan_to_num(nan=math.inf).cpu()


class _Search:
    """A search for the changes of one row.

    Attributes:
        passes: of one row, so far.
    """

    def __init__(self, problem: AttributionProblem, row: int, possible: Possible, size: int) -> None:
        self._problem, self._row, self._possible, self._size = problem, row, possible, size
        self._changes = possible.of_row(row)
        self.passes = 0

    def run(self) -> list[Change] | None:
        """Returns the changes that reach the aim, none of which can be put back; None if none were found."""
        chosen, asked = list[Change](), self._possible.asked
        reached = self._slack([chosen])[0] > 0
        while not reached and len(chosen) < asked.max_changes:
            taken = {change.feature for change in chosen}
            options = [change for change in self._changes if change.feature not in taken]
            if not options:
                break
            found = self._slack([[*chosen, change] for change in options])
            best = int(found.argmax())
            chosen.append(options[best])
            reached = found[best] > 0
        return self._pruned(self._nearer(self._pruned(chosen))) if reached else None

    def _pruned(self, chosen: list[Change]) -> list[Change]:
        while len(chosen) > 1:
            found = self._slack([[*chosen[:number], *chosen[number + 1 :]] for number in range(len(chosen))])
            best = int(found.argmax())
            if found[best] <= 0:
                break
            chosen = [*chosen[:best], *chosen[best + 1 :]]
        return chosen

    def _nearer(self, chosen: list[Change]) -> list[Change]:
        """Returns the changes with the nearest value of each range that is enough, one column after the other."""
        for number, own in enumerate(chosen):
            nearer = [each for each in self._changes if each.feature == own.feature and each.distance < own.distance]
            nearer.sort(key=lambda each: each.distance)
            if nearer:
                found = self._slack([[*chosen[:number], each, *chosen[number + 1 :]] for each in nearer])
                enough = next((each for each, slack in zip(nearer, found.tolist()) if slack > 0), own)
                chosen = [*chosen[:number], enough, *chosen[number + 1 :]]
        return chosen

    def _slack(self, sets: Sequence[Changes]) -> Tensor:
        """Returns by how much each set of changes reaches the aim, less its rounding."""
        self.passes += len(sets)
        found = []
        for first in range(0, len(sets), self._size):
            run, count = partial(self._ran, sets[first : first + self._size]), len(sets[first : first + self._size])
            try:
                found.append(run(range(count)))
            except Exception as failure:
                if not ran_out_of_memory(failure) or count == 1:
                    raise
                found += in_parts(count, run)
        return torch.cat(found)

    def _ran(self, sets: Sequence[Changes], part: range) -> Tensor:
        many = self._problem.of_rows([self._row] * len(part))
        output = many.read(with_changes(many.inputs, [sets[number] for number in part]))
        margins, rounding = _margins(cast(Loss, many.target), output, self._possible.asked.targeted)
        return margins - rounding


def with_changes(inputs: Inputs, by_row: Sequence[Changes]) -> Inputs:
    """Returns ``inputs`` with the changes of each row."""
    names = {name for changes in by_row for change in changes for name, _, _ in change.writes}
    copies = {name: inputs[name].clone(memory_format=torch.contiguous_format) for name in names}
    for row, changes in enumerate(by_row):
        for name, places, values in (write for change in changes for write in change.writes):
            copies[name][row].view(-1)[places] = values
    return {**inputs, **copies}


# The result, and its checks.


def with_counterfactual(result: results.InspectResult, main: MainPass) -> results.InspectResult:
    """Returns ``result`` with the counterfactual of the request of ``main``, if it asks for one; the model is in its
    session.

    Raises:
        InvalidArgument: the target is no class, or what may change is not there.
    """
    if main.plan.request.counterfactual is None:
        return result
    possible = possible_changes(main.plan)
    with at("counterfactual"):
        return changed(result, counterfactual=_found(main, possible))


def loss_to_cross(main: MainPass) -> Loss:
    """Returns the loss of the class of each row.

    Raises:
        InvalidArgument: ``METHOD_INAPPLICABLE``, if the target is no class.
    """
    if not classifies(main):
        what = "it looks for another class, and the target is no class among several: name a class as target"
        raise error(Reason.METHOD_INAPPLICABLE, what, "targeted")
    return Loss.made(main.targets[0], "cross_entropy", True)


def _found(main: MainPass, possible: Possible) -> CounterfactualResult:
    plan, loss = main.plan, loss_to_cross(main)
    edits = tuple(edit for numbered in plan.edits.values() for _, edit in numbered)
    attribution = ResolvedAttribution(plan.model, requests.Saliency(), plan.inputs, tuple(possible.names), edits=edits)
    problem = attribution.at_target(loss)
    if problem.is_row_specific and plan.rows > 1:
        what = "each row is searched by itself, and an edit or the target is about the batch: send one row"
        raise error(Reason.METHOD_INAPPLICABLE, what)
    with (
        observing(plan.model.tree, {}, plan.edits, batch=main.batch) as edited,
        plan.model.passes_inside(edited.forward),
        torch.no_grad(),
        timed(main.timings, "attribution_ms"),
    ):
        size = 1 if problem.is_row_specific else MAX_ROWS_PER_PASS
        if (allowed := plan.model.request_bytes) is not None:
            size = max(1, min(size, rows_that_fit(plan.model, plan.inputs, allowed)[0]))
        searches = [_Search(problem, row, possible, size) for row in range(plan.rows)]
        chosen = [search.run() for search in searches]
    tensors = with_changes(plan.inputs, [changes or () for changes in chosen])
    moved = moved_to(main, tensors)
    classes, probabilities = classes_of(loss, moved)
    after = cast(Tensor, moved.source)
    both = {name: (tensors[name], plan.inputs[name]) for name in possible.names}
    others = {name: (now != own) & ~(now.isnan() & own.isnan()) for name, (now, own) in both.items()}
    return CounterfactualResult(
        arrays({name: tensors[name] for name in possible.names}),
        arrays(others),
        {} if plan.request.omit_predictions else arrays(moved.outputs),
        classes=np.asarray(classes),
        probabilities=np.asarray(probabilities),
        succeeded=to_numpy(loss.reached(after, possible.asked.targeted)),
        changes=np.array([len(changes or ()) for changes in chosen], np.int64),
        passes=np.array([search.passes for search in searches], np.int64),
        checks=_checks(main, problem, possible, chosen, after),
    )


_COMPARED = (
    "the class that the search found with that of a pass of all rows",
    "each change with a pass of all rows without it, in which the class comes back",
)


_NOTHING = "nothing was changed: a greedy search may miss what would change the class"


def outline_checks(mode: CheckMode) -> tuple[Check, ...]:
    """Returns the checks of a counterfactual, all of which agree."""
    agrees = [RowCheck(0.0, Verdict.AGREES)]
    return () if mode is CheckMode.OFF else tuple(check_of_rows(what, mode, 0.0, agrees) for what in _COMPARED)


def _checks(
    main: MainPass, problem: AttributionProblem, possible: Possible, found: Sequence[Changes | None], after: Tensor
) -> tuple[Check, ...]:
    """Compares what was found with passes of the request's own rows, which the search did not run."""
    mode, targeted, loss = main.plan.request.check.mode, possible.asked.targeted, cast(Loss, problem.target)
    if mode is CheckMode.OFF:
        return ()
    chosen, nothing = [changes or () for changes in found], RowCheck(0.0, Verdict.NOT_APPLICABLE, _NOTHING)
    reached = [nothing if changes is None else RowCheck(0.0, Verdict.AGREES) for changes in found]
    for row, is_reached in enumerate(loss.reached(after, targeted).tolist()):
        if is_reached is (found[row] is None):
            what = "the search found another class than this pass"
            reached[row] = RowCheck(1.0, Verdict.DISAGREES, what, Cause.UNKNOWN)
    kept = [RowCheck(0.0, Verdict.AGREES) if changes else nothing for changes in chosen]
    with problem.model.proofs.billed_to(main.timings), timed(main.timings, "check_ms"):
        for number in range(max(map(len, chosen), default=0)):
            without = [[*changes[:number], *changes[number + 1 :]] for changes in chosen]
            moved = moved_to(main, with_changes(main.plan.inputs, without))
            margins, rounding = _margins(loss, cast(Tensor, moved.source), targeted)
            for row, changes in enumerate(chosen):
                if number < len(changes) and margins[row] > 2 * rounding[row]:
                    what = f"change {number} of {len(changes)} can be put back: the class stays the new one"
                    kept[row] = RowCheck(1.0, Verdict.DISAGREES, what, Cause.NOT_LEAST)
        wrong = [*doubts(problem, random_forward, dependent_rows)]
    rows = [[doubted(outcome, row, wrong) for row, outcome in enumerate(several)] for several in (reached, kept)]
    return tuple(check_of_rows(what, mode, 0.0, outcomes) for what, outcomes in zip(_COMPARED, rows))
