"""Tests the target with concepts: Captum's TCAV, compared with raw hooks and a fit of our own, and its significance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import combinations
from math import isfinite, prod
from typing import NamedTuple

import torch
from torch import Tensor

from cutaway.contract.errors import CutawayError, Reason, at, error
from cutaway.contract.requests import TCAV, CheckMode, ConceptClassifier, Point, Saliency
from cutaway.contract.results import Cause, Check, ConceptResult, InspectResult, Verdict
from cutaway.contract.values import changed
from cutaway.engine.checks.model_properties import dependent_rows, random_forward, wrong_backward
from cutaway.engine.execution.main_pass import MainPass
from cutaway.engine.hooks.axes import row_axes
from cutaway.engine.hooks.capture_spec import CaptureSpec, ShapeSpec, watching
from cutaway.engine.hooks.observe import observing
from cutaway.engine.methods.captum_call import first_line, import_apart
from cutaway.engine.methods.concepts import CaptumTcav, Plane, Versus, fitted, held_out, logistic_fit, p_value, t_test
from cutaway.engine.model.inspected_model import Inputs, arguments_kind, gradients
from cutaway.engine.model.session import is_out_of_memory, timed
from cutaway.engine.passes.findings import Finding
from cutaway.engine.passes.pass_recorder import AttributionProblem, ResolvedAttribution, read_target
from cutaway.engine.planning.plan import RequestPlan
from cutaway.engine.runtime.numerics import to_numpy
from cutaway.engine.runtime.rng import LARGEST_SEED, seeded

_MOST_ROWS = 32
"""The most examples of a pass."""

_MOST_NUMBERS = 1 << 21
"""The most numbers of vectors of which Captum makes lists at once, with 32 bytes each."""

_TOLERANCE = 1e-3
"""How far Captum's vectors, of length 1, may be from ours: both classifiers stop near their optimum."""


def tested_layers(plan: RequestPlan, asked: TCAV) -> dict[str, tuple[int, ...]]:
    """Returns the layers of a test, and the shape of one row of what each returns; takes a forward pass, once for each
    shape of the inputs. The model is in a session.

    Raises:
        InvalidArgument: with the field at fault.
    """
    shapes = tuple((name, tensor.shape) for name, tensor in plan.inputs.items())
    key = tested_layers, asked.layers, shapes, arguments_kind(plan.request.arguments)
    return dict(plan.model.remembered(key, lambda: _find(plan, asked)))


def _find(plan: RequestPlan, asked: TCAV) -> dict[str, tuple[int, ...]]:
    fields = dict[str, str]()
    for number, pattern in enumerate(asked.layers):
        with at(f"concepts.layers[{number}]"):
            fields |= dict.fromkeys(plan.model.tree.match(pattern), f"concepts.layers[{number}]")
    return shapes_of_rows(plan, fields)


def shapes_of_rows(plan: RequestPlan, fields: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """Returns the shape of one row of what each module returns, in one forward pass; the model is in a session.

    Args:
        plan: the request.
        fields: the modules, and the field that named each.

    Raises:
        InvalidArgument: ``METHOD_INAPPLICABLE``: a module does not return one tensor of floats once, rows on axis 0.
    """
    model = plan.model
    axes, sites = row_axes(model, plan.inputs, list(fields)), {name: {Point.OUTPUT: ShapeSpec()} for name in fields}
    with model.passes.uncounted(), torch.no_grad(), observing(model.tree, sites) as seen, seen.forward():
        model.run(plan.inputs)
    found = {}
    for name, field in fields.items():
        calls = seen.calls[name]
        parts = calls[0].captured(Point.OUTPUT) if len(calls) == 1 else {}
        if len(calls) != 1:
            what = f"the model calls {name!r} {len(calls)} times in a pass, and Captum sees the last call alone"
        elif list(parts) != [""] or not parts[""].values.is_floating_point():
            what = f"{name!r} returns {', '.join(parts) or 'no tensor'}, and not one tensor of floats"
        elif axes.of(name, (Point.OUTPUT, "", 0), parts[""].values.shape, plan.rows) != 0:
            what = f"the output of {name!r}, {list(parts[''].values.shape)}, has its rows not on axis 0"
        else:
            found[name] = tuple(parts[""].values.shape[1:])
            continue
        raise error(Reason.METHOD_INAPPLICABLE, f"{what}: name another module", field)
    return found


def _pairs_at_once(layers: Mapping[str, Sequence[int]]) -> int:
    return max(1, _MOST_NUMBERS // (2 * sum(prod(shape) for shape in layers.values())))


def _pairs(asked: TCAV) -> list[tuple[int, int]]:
    """Returns which sets are separated: each concept from each random set, and the random sets from each other."""
    concepts, sets = len(asked.concepts), len(asked.concepts) + len(asked.random)
    return [(first, second) for first, second in combinations(range(sets), 2) if second >= concepts]


def concept_passes(plan: RequestPlan) -> int:
    """Returns how many passes of one example the test of ``plan`` takes, if it asks for one."""
    asked = plan.request.concepts
    if asked is None:
        return 0
    with plan.model.session(plan.cancellation, plan.request.arguments):
        layers = tested_layers(plan, asked)
    calls = -(-len(_pairs(asked)) // _pairs_at_once(layers)) * len(layers)
    examples = sum(len(next(iter(inputs.values()))) for _, inputs in plan.examples)
    return examples * (1 if plan.request.check.mode is CheckMode.OFF else 2) + plan.rows * (1 + calls)


def estimated(plan: RequestPlan) -> tuple[ConceptResult, ...]:
    """Returns results with zeros of the shapes that the test of ``plan`` has; the model is in a session."""
    asked = plan.request.concepts
    if asked is None:
        return ()
    sets, zero = len(asked.random), torch.zeros((), dtype=torch.float64)
    return tuple(
        ConceptResult(
            name,
            concept,
            to_numpy(zero.expand(plan.rows, sets)),
            to_numpy(zero.expand(sets, *shape)) if asked.vectors else None,
        )
        for name, shape in tested_layers(plan, asked).items()
        for concept in sorted(asked.concepts)
    )


def with_concepts(result: InspectResult, main: MainPass) -> InspectResult:
    """Returns ``result`` with the test of the request of ``main``, if it asks for one; the model is in its session."""
    asked = main.plan.request.concepts
    if asked is None or not main.targets:
        return result
    plan, seed = main.plan, asked.seed
    import_apart(("sklearn.linear_model", "scipy.special"), plan.model)
    with (
        seeded(seed, plan.model.device),
        plan.model.drawing_from((seed + 1) & LARGEST_SEED, beside_draws=True),
        plan.model.guard.removing_new_hooks(),
        timed(main.timings, "attribution_ms"),
    ):
        return changed(result, concepts=tuple(_Test(main, asked).results()))


def model_doubt(main: MainPass, most_rows: int) -> Finding | None:
    """Returns why no score is that of a row, in passes of at most ``most_rows``: a random forward, dependent rows, or a
    backward pass that is not the derivative."""
    plan, floating = main.plan, [name for name, tensor in main.plan.inputs.items() if tensor.is_floating_point()]
    explained = tuple(floating or plan.inputs)
    problem = ResolvedAttribution(plan.model, Saliency(), plan.inputs, explained).at_target(main.targets[0])
    tests: list[Callable[[AttributionProblem], Finding | None]]
    tests = [random_forward, partial(dependent_rows, largest=most_rows), *[wrong_backward] * bool(floating)]
    with plan.model.proofs.billed_to(main.timings):
        return next((finding for test in tests if (finding := test(problem)) is not None), None)


class _Outcome(NamedTuple):
    """Two sets at one layer: what Captum found, how far it is from ours, and the derivatives along its vector."""

    versus: Versus
    derivatives: Tensor
    error: float = 0.0
    cosine: float = 1.0
    reason: str = ""


class _Finding(NamedTuple):
    """The outcome of a check."""

    verdict: Verdict
    reason: str = ""
    cause: Cause | None = None


class _Test:
    """One test: passes of ours with raw hooks, and Captum's."""

    def __init__(self, main: MainPass, asked: TCAV) -> None:
        self._main, self._plan, self._asked, self._seed = main, main.plan, asked, asked.seed
        self._model, (self._target,) = main.plan.model, main.targets
        self._kind, self._layers = ConceptClassifier(asked.classifier), tested_layers(main.plan, asked)
        check = main.plan.request.check
        self._mode, self._tolerance = check.mode, check.relative_tolerance or _TOLERANCE
        self._sets = [[*_batches(inputs)] for _, inputs in main.plan.examples]
        self._gradients = self._gradients_at_layers()
        is_checked = check.mode is not CheckMode.OFF
        self._activations = [self._activations_of(number) for number in range(len(self._sets))] if is_checked else []

    def results(self) -> Iterator[ConceptResult]:
        """Yields what was found, layer by layer, concept by concept."""
        outcomes = dict[tuple[int, int], list[_Outcome]]()
        captum = CaptumTcav(
            [self._model.tree[name] for name in self._layers],
            [[tuple(batch.values()) for batch in batches] for batches in self._sets],
            tuple(self._plan.inputs.values()),
            self._run,
            self._scalars,
            self._kind,
            self._seed,
            self._model.give_way,
        )
        with translated_errors("concepts"):
            for found in captum.found(_pairs(self._asked), _pairs_at_once(self._layers)):
                outcomes |= {pair: self._outcomes(pair, each) for pair, each in found.items()}
        for number, name in enumerate(self._layers):
            at_layer = {pair: each[number] for pair, each in outcomes.items()}
            for first, concept in enumerate(sorted(self._asked.concepts)):
                yield self._result(name, number, concept, first, at_layer)

    # Passes of ours.

    def _run(self, *tensors: Tensor) -> Tensor:
        return next(iter(self._model.run(dict(zip(self._plan.inputs, tensors))).values()))

    def _scalars(self, *tensors: Tensor) -> Tensor:
        return self._target.scalars(read_target(self._model, self._target, dict(zip(self._plan.inputs, tensors))))

    def _gradients_at_layers(self) -> list[Tensor]:
        """Returns the gradients of the target at the layers, [batch, features] each, in one pass with raw hooks.

        Raises:
            FailedPrecondition: ``NOT_DIFFERENTIABLE``.
        """
        leaves = {name: tensor.detach().clone() for name, tensor in self._plan.inputs.items()}
        leaves = {name: leaf.requires_grad_() if leaf.is_floating_point() else leaf for name, leaf in leaves.items()}
        if not all(leaf.requires_grad for leaf in leaves.values()):
            self._model.guard.enable_gradients()
        sites = dict.fromkeys(self._layers, watching(Point.OUTPUT, Point.GRAD_OUTPUT))
        with observing(self._model.tree, sites) as recording:
            with recording.forward():
                scalars = self._scalars(*leaves.values())
            if scalars.requires_grad and recording.gradient_roots:
                gradients(scalars, recording.gradient_roots)
            recording.release()
        found = []
        for name in self._layers:
            gradient = recording.calls[name][0].at(Point.GRAD_OUTPUT).get("")
            if gradient is None:
                what = f"no gradient of the target reaches the output of {name!r}: name another module"
                raise error(Reason.NOT_DIFFERENTIABLE, what, "concepts.layers")
            found.append(gradient.double().flatten(1))
        return found

    def _activations_of(self, number: int) -> list[Tensor]:
        """Returns what the layers return for a set, [examples, features] each, in passes with raw hooks.

        Raises:
            InvalidArgument: ``INPUT_SHAPE``, where a layer returns another shape than for the request's rows.
        """
        batches, seen = self._sets[number], list[list[Tensor]]()
        sites = {name: {Point.OUTPUT: CaptureSpec(call=0)} for name in self._layers}
        for batch in batches:
            with torch.no_grad(), observing(self._model.tree, sites) as recording, recording.forward():
                self._model.run(batch)
            seen.append([recording.calls[name][0].at(Point.OUTPUT)[""] for name in self._layers])
        field = f"concepts.{self._plan.examples[number][0]}"
        for (name, shape), first in zip(self._layers.items(), seen[0]):
            if tuple(first.shape[1:]) != shape:
                what = f"{name!r} returns {list(first.shape[1:])} for an example, and {list(shape)} for the rows"
                remedy = "send examples of the same size, or name a module whose output has one size"
                raise error(Reason.INPUT_SHAPE, f"{what}: {remedy}", field)
        whole = [torch.cat(parts).double().flatten(1) for parts in zip(*seen)]
        for name, tensor in zip(self._layers, whole):
            if not tensor.isfinite().all():
                raise error(Reason.METHOD_INAPPLICABLE, f"{name!r} returns NaN or infinite numbers", field)
        return whole

    # Comparisons.

    def _outcomes(self, pair: tuple[int, int], found: Sequence[Versus]) -> list[_Outcome]:
        return [self._outcome(pair, number, versus) for number, versus in enumerate(found)]

    def _outcome(self, pair: tuple[int, int], layer: int, versus: Versus) -> _Outcome:
        gradient = self._gradients[layer]
        derivatives = gradient @ _unit(versus.normal)
        if not self._activations:
            return _Outcome(versus, derivatives)
        ours = self._plane(pair, layer)
        direction = _unit(ours.normal)
        apart, own = float((_unit(versus.normal) - direction).norm()), gradient @ direction
        if not apart <= self._tolerance:
            why = "Captum's vectors are not those of a fit of our own to what raw hooks saw"
            return _Outcome(versus, derivatives, apart, float(_unit(versus.normal) @ direction), why)
        doubtful = int((own.abs() <= self._tolerance * gradient.norm(dim=1)).sum())
        counts = [abs(share * len(own) - int((sign * own > 0).sum())) for share, sign in zip(versus.shares, (1, -1))]
        length = float(gradient.norm(dim=1).mean() * ours.normal.norm()) or 1.0
        mean = float((gradient @ ours.normal).mean())
        means = max(abs(value - sign * mean) / length for value, sign in zip(versus.magnitudes, (1, -1)))
        cosine = float(_unit(versus.normal) @ direction)
        if not max(counts) <= doubtful + 1e-3 * len(own):
            return _Outcome(versus, derivatives, max(counts) / len(own), cosine, "Captum counts other rows than ours")
        if not means <= self._tolerance:
            return _Outcome(versus, derivatives, means, cosine, "Captum's mean directional derivatives are not ours")
        return _Outcome(versus, derivatives, max(apart, means), cosine)

    def _plane(self, pair: tuple[int, int], layer: int) -> Plane:
        """Returns the hyperplane between two sets that a fit of our own finds."""
        both = [self._activations[number][layer] for number in pair]
        kept = [~held_out(number, len(each), self._seed) for number, each in zip(pair, both)]
        features = torch.cat([each[keep] for each, keep in zip(both, kept)])
        first = torch.arange(len(features)) < kept[0].sum()
        if self._kind is ConceptClassifier.SGD:  # it ends before its optimum: the same steps, on our activations
            return fitted(self._kind, features, first, self._seed)
        return logistic_fit(features, first)

    def _result(
        self, name: str, layer: int, concept: str, first: int, outcomes: Mapping[tuple[int, int], _Outcome]
    ) -> ConceptResult:
        concepts, sets = len(self._asked.concepts), range(len(self._asked.concepts), len(self._sets))
        own = [outcomes[first, other] for other in sets]
        shares = tuple(outcome.versus.shares[0] for outcome in own)
        of_random = []
        for number in sets:
            others = [outcomes[first, number].versus.shares[1]]
            others += [outcomes[number, other].versus.shares[0] for other in sets if other > number]
            others += [outcomes[other, number].versus.shares[1] for other in sets if other < number]
            of_random.append(sum(others) / len(others))
        vectors = torch.stack([outcome.versus.normal for outcome in own]) if self._asked.vectors else None
        seen = own + [outcome for pair, outcome in outcomes.items() if pair[0] >= concepts]
        return ConceptResult(
            layer=name,
            concept=concept,
            derivatives=to_numpy(torch.stack([outcome.derivatives for outcome in own], dim=1)),
            vectors=None if vectors is None else to_numpy(vectors.reshape(-1, *self._layers[name])),
            shares=shares,
            magnitudes=tuple(outcome.versus.magnitudes[0] for outcome in own),
            accuracies=tuple(outcome.versus.accuracy for outcome in own),
            random_shares=tuple(of_random),
            t_test=t_test(shares),
            p_value=p_value(sum(shares) / len(shares), of_random),
            check=self._check(layer, seen) if self._activations else None,
        )

    def _check(self, layer: int, outcomes: Sequence[_Outcome]) -> Check:
        worst = max(outcomes, key=lambda outcome: (outcome.reason != "", outcome.error))
        found = self._doubt(layer, outcomes)
        if worst.reason and found.cause in (None, Cause.NO_GRADIENT, Cause.NOT_MOVED):
            found = _Finding(Verdict.DISAGREES, worst.reason, Cause.UNKNOWN)
        return Check(
            compared="concept activation vectors, sign counts and magnitudes",
            mode=CheckMode.INDEPENDENT,
            max_absolute_error=worst.error,
            max_relative_error=worst.error,
            cosine=min(outcome.cosine for outcome in outcomes),
            tolerance=self._tolerance,
            **found._asdict(),
        )

    def _doubt(self, layer: int, outcomes: Sequence[_Outcome]) -> _Finding:
        """Returns why scores that agree mean nothing all the same, or that they agree."""
        gradient = self._gradients[layer]
        without, rows = int((gradient == 0).all(dim=1).sum()), len(gradient)
        if (of_model := model_doubt(self._main, _MOST_ROWS)) is not None:
            return _Finding(Verdict.INCONCLUSIVE, of_model.reason, of_model.cause)
        if not gradient.isfinite().all():
            return _Finding(Verdict.INCONCLUSIVE, "gradients at the layer are NaN or infinite", Cause.NOT_FINITE)
        if without:
            what = f"the gradient at the layer is zero in {without} of {rows} rows, which count as not positive"
            remedy = "name another layer, or a target that is no probability"
            return _Finding(Verdict.INCONCLUSIVE, f"{what}: {remedy}", Cause.NO_GRADIENT)
        if not all(isfinite(outcome.cosine) and outcome.versus.normal.any() for outcome in outcomes):
            what = "the layer returns the same for all examples of two sets"
            return _Finding(Verdict.INCONCLUSIVE, what, Cause.NOT_MOVED)
        return _Finding(Verdict.AGREES)


def _unit(vector: Tensor) -> Tensor:
    return vector / (vector.norm() or 1.0)


def _batches(inputs: Inputs) -> Iterator[Inputs]:
    """Yields batches of `_MOST_ROWS` examples at most, of nearly the same size."""
    rows = len(next(iter(inputs.values())))
    parts = -(-rows // _MOST_ROWS)
    for tensors in zip(*(tensor.tensor_split(parts) for tensor in inputs.values())):
        yield dict(zip(inputs, tensors))


@contextmanager
def translated_errors(field: str) -> Iterator[None]:
    """Turns an exception of Captum's into an error of the request's ``field``."""
    try:
        yield
    except CutawayError:
        raise
    except Exception as failure:
        if is_out_of_memory(failure):
            raise
        what = f"Captum cannot be applied: {first_line(failure)}"
        raise error(Reason.METHOD_INAPPLICABLE, what, field) from failure
