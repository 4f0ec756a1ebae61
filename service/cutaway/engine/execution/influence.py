"""Finds the training rows that made a prediction: Captum's influence, compared with raw gradients and raw hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.nn.functional import cross_entropy, normalize

from cutaway.contract.errors import Reason, at, error
from cutaway.contract.requests import CheckMode, Influence, InfluenceMethod, Point
from cutaway.contract.results import Cause, Check, InfluenceResult, InspectResult, Verdict
from cutaway.contract.values import changed
from cutaway.engine.execution.concepts import model_doubt, shapes_of_rows, translated_errors
from cutaway.engine.execution.fitting import gradients_that_fit, rows_of_hessian
from cutaway.engine.execution.main_pass import MainPass
from cutaway.engine.hooks.capture_spec import watching
from cutaway.engine.hooks.observe import observing
from cutaway.engine.methods.influence import LEAST_EIGENVALUE, MOST_ROWS, NO_FUSED_ATTENTION, Rows, method_of
from cutaway.engine.model.failures import failures_of
from cutaway.engine.model.inspected_model import Inputs, gradients, graph_nodes
from cutaway.engine.model.session import timed
from cutaway.engine.planning.plan import RequestPlan
from cutaway.engine.runtime.numerics import krylov, symmetric, to_numpy
from cutaway.engine.runtime.rng import seeded

_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3}
"""How far scores may differ, as a part of the product of both lengths; of half precision 0.05."""

_ROUNDINGS = 16
"""The rounding errors of a product with the Hessian, in units of the data type, relative to its length."""

_SMALLEST = 1e-3
"""The length of a vector behind the Hessian, of the largest one, below which its scores count as those of this one."""

_EXCUSED = 8
"""An error is put down to rounding errors up to so many times what these move the scores."""

_END = 1e-3
"""Arnoldi's iteration ends at a new vector of this length, of that of the first product with the Hessian."""


def influence_passes(plan: RequestPlan) -> int:
    """Returns how many passes of one example the influence of ``plan`` takes at most."""
    asked, training = plan.request.influence, plan.training
    if asked is None or training is None:
        return 0
    method, count, compared = method_of(asked), _count(training), plan.rows + _count(training)
    is_checked, checkpoints = plan.request.check.mode is not CheckMode.OFF, len(plan.model.kept.checkpoints) or 1
    if method.is_similarity:
        return compared * (1 + is_checked) + 2
    # TracInCPFast runs the request's rows again for each batch; the last are those of `self_influence`.
    once = compared + plan.rows * (-(-count // MOST_ROWS) - 1) + count + 1
    if not method.has_hessian:
        return checkpoints * (once + compared * is_checked)
    size = sum(each.numel() for each in _parameters(plan, asked))
    # A forward pass with a backward pass for each parameter; or for each step both, and another backward pass.
    hessian = count * (1 + size if asked.method == InfluenceMethod.INFLUENCE_FUNCTION else 2 * asked.iterations)
    return once + 2 * count + hessian + (hessian + compared) * is_checked


def _parameters(plan: RequestPlan, asked: Influence) -> Sequence[nn.Parameter]:
    """Returns the floating parameters of what is asked of, without regard to whether the loss depends on them."""
    tree = plan.model.tree
    owner = tree[tree.resolve(asked.layer)] if asked.layer else plan.model.module
    return [parameter for parameter in owner.parameters() if parameter.is_floating_point()]


def _count(inputs: Inputs) -> int:
    return len(next(iter(inputs.values())))


def estimated(plan: RequestPlan) -> InfluenceResult | None:
    """Returns a result with zeros of the shapes that the influence of ``plan`` has; None without it."""
    asked, training = plan.request.influence, plan.training
    if asked is None or training is None:
        return None
    count, zero = _count(training), torch.zeros((), dtype=torch.float64)
    scores = to_numpy(zero.expand(plan.rows, min(asked.k, count)))
    rows = to_numpy(zero.long().expand(plan.rows, min(asked.k, count)))
    own = to_numpy(zero.expand(count)) if method_of(asked).has_own else None
    return InfluenceResult(InfluenceMethod(asked.method).value, rows, scores, rows, scores, own)


def with_influence(result: InspectResult, main: MainPass) -> InspectResult:
    """Returns ``result`` with the influence that the request of ``main`` asks for; the model is in its session."""
    asked, model = main.plan.request.influence, main.plan.model
    training = main.plan.training
    if asked is None or training is None or not main.targets:
        return result
    with (
        seeded(0, model.device),
        model.drawing_from(1, beside_draws=True),
        model.guard.removing_new_hooks(),
        timed(main.timings, "attribution_ms"),
    ):
        return changed(result, influence=_Influenced(main, asked, training).result())


class _Influenced:
    """The rows of the request, behind those of the training data, and what each method says of both."""

    def __init__(self, main: MainPass, asked: Influence, training: Inputs) -> None:
        self._main, self._plan, self._asked, self._model = main, main.plan, asked, main.plan.model
        self._training = training
        self._method, self._row, self._count = InfluenceMethod(asked.method), method_of(asked), _count(training)
        self._target, self._labels = main.targets[0], torch.empty(0, dtype=torch.int64)
        self._layer = self._model.tree.resolve(asked.layer) if asked.layer else ""
        self._owner = self._model.tree[self._layer] if asked.layer else self._model.module
        self._sites = {self._layer: watching(Point.OUTPUT)} if asked.layer else {}
        checkpoints = self._model.kept.checkpoints if self._row.has_checkpoints else ()
        factor = asked.learning_rate if self._row.has_checkpoints else 1.0
        self._rates = [factor * each.learning_rate for each in checkpoints] or [factor]
        self._states = [each.read() for each in checkpoints]
        self._asymmetry, self._batch = 0.0, MOST_ROWS
        if self._row.has_hessian:
            self._batch = rows_of_hessian(self._model, training, MOST_ROWS)
        self._parameters, self._own_backward = list[nn.Parameter](), cast("list[str] | None", None)
        if not self._row.is_similarity:
            self._labels = self._all_labels(main)
            self._model.guard.enable_gradients()
            self._parameters = self._reached()
        if self._method is InfluenceMethod.TRACIN:
            self._batch = gradients_that_fit(self._model, self._parameters, self._plan.rows, MOST_ROWS)

    def result(self) -> InfluenceResult:
        """Returns the rows that helped and harmed most, with the verdict."""
        if self._row.is_similarity:
            shapes_of_rows(self._plan, {self._layer: "influence.layer"})
            if len({len(each) for each in self._vectors([0, self._count])}) > 1:
                what = "the module returns other sizes for training rows than for the request's"
                raise error(Reason.INPUT_SHAPE, f"{what}: name one behind a pooling", "influence.layer")
        least = self._least() if self._row.has_hessian else 0.0
        with translated_errors("influence"), self._model.device, ExitStack() as loaded:
            found, judged = self._row.scores(self._as_captum_takes_them(least, loaded), self._asked)
        scores, own = found.detach().double().cpu(), None if judged is None else judged.detach().double().cpu()
        nearest = -1 if self._method is InfluenceMethod.EUCLIDEAN else 1
        order = (nearest * scores).argsort(dim=1, descending=True, stable=True)
        most = min(self._asked.k, self._count)
        helpful, harmful = order[:, :most], order[:, -most:].flip(1)
        return InfluenceResult(
            method=self._method.value,
            helpful=to_numpy(helpful),
            helpful_scores=to_numpy(scores.gather(1, helpful)),
            harmful=to_numpy(harmful),
            harmful_scores=to_numpy(scores.gather(1, harmful)),
            self_influence=None if own is None else to_numpy(own),
            check=None if self._plan.request.check.mode is CheckMode.OFF else self._check(scores, own, least),
        )

    def _all_labels(self, main: MainPass) -> Tensor:
        """Returns the labels of all rows; those of the request are what its target is about.

        Raises:
            InvalidArgument: ``TARGET_MISMATCH`` or ``TARGET_RANGE``.
        """
        classes, output = main.target_classes, main.outputs.get(self._target.source)
        if classes is None or output is None or output.ndim != 2 or output.shape[1] < 2:
            what = (
                "the loss is the cross-entropy of [rows, classes]: name one of several classes as target, or ask cosine"
            )
            raise error(Reason.TARGET_MISMATCH, what, "target")
        labels = torch.tensor(self._asked.labels, dtype=torch.int64, device=self._model.device)
        if len(labels) != self._count:
            what = f"{len(labels)} labels, and {self._count} training rows: send one for each"
            raise error(Reason.TARGET_MISMATCH, what, "influence.labels")
        if ((labels < 0) | (labels >= output.shape[1])).any():
            what = f"the output has classes 0 to {output.shape[1] - 1}"
            raise error(Reason.TARGET_RANGE, what, "influence.labels")
        return torch.cat([labels, classes.to(labels.device)])

    # Passes.

    def _run(self, numbers: Tensor) -> Tensor:
        """Returns the output that the loss is of, for rows by their numbers; they are of one kind.

        Behind a Hessian many backward passes follow, while Captum has put tensors in the place of parameters.
        """
        is_training = int(numbers[0]) < self._count
        rows, first = (self._training, 0) if is_training else (self._plan.inputs, self._count)
        index = (numbers - first).to(self._model.device).long()
        inputs = {name: tensor[index] for name, tensor in rows.items()}
        if not self._row.has_hessian:
            return self._model.run(inputs)[self._target.source]
        with NO_FUSED_ATTENTION.applied(), self._model.undivided():
            output = self._model.run(inputs)[self._target.source]
        self._model.cancellation.end_backward(output)
        return output

    def _losses(self, numbers: Tensor) -> Tensor:
        return cross_entropy(self._run(numbers), self._labels[numbers.to(self._labels.device)], reduction="none")

    def _reached(self) -> list[nn.Parameter]:
        """Returns the parameters that scores are about: those of the layer, or all that the loss depends on.

        Raises:
            FailedPrecondition: ``NOT_DIFFERENTIABLE``, where it depends on none.
            InvalidArgument: ``METHOD_INAPPLICABLE``, where the layer does not compute the output.
        """
        owner, named = self._owner, list(_parameters(self._plan, self._asked))
        first = torch.tensor([0])
        with at("influence.training"), observing(self._model.tree, self._sites) as seen, seen.forward():
            output = self._run(first)
        if self._row.is_of_last_layer:
            called = seen.calls[self._layer]
            last = called[-1].at(Point.OUTPUT).get("") if called else None
            is_last = last is not None and last.shape == output.shape and torch.equal(last, output.detach().cpu())
            if not (isinstance(owner, nn.Linear) and is_last):
                what = f"{self._layer!r} is no nn.Linear that returns the logits: name that one, or ask tracin"
                raise error(Reason.METHOD_INAPPLICABLE, what, "influence.layer")
            named = [parameter for parameter in named if parameter is owner.weight]
        loss = cross_entropy(output, self._labels[first], reduction="none")
        arrived = gradients(loss, named) if loss.requires_grad and named else ()
        reached: list[Any] = [parameter for parameter, gradient in zip(named, arrived) if gradient is not None]
        if not reached:
            what = "the loss depends on no parameter here: name another layer, or none for all parameters"
            raise error(Reason.NOT_DIFFERENTIABLE, what, "influence.layer")
        return reached

    # Captum's scores.

    def _holding(self, number: int) -> AbstractContextManager[None]:
        """Gives the model the weights of a checkpoint; without any it keeps its own."""
        return self._model.guard.holding(self._states[number]) if self._states else nullcontext()

    def _as_captum_takes_them(self, least: float, loaded: ExitStack) -> Rows:
        def load(number: int) -> None:
            loaded.close()
            loaded.enter_context(self._holding(number))
            self._model.guard.reset()  # Captum reads parameters that the last pass may have changed

        known = {id(parameter) for parameter in self._parameters}
        named = {name: each for name, each in self._model.module.named_parameters() if id(each) in known}
        return Rows(
            run=self._run,
            layer=self._owner,
            module=self._model.module,
            parameters=named,
            labels=self._labels,
            training=self._count,
            asked_rows=self._plan.rows,
            rates=self._rates,
            load=load,
            give_way=self._model.give_way,
            least=least,
            batch=self._batch,
        )

    def _own_numbers(self) -> Sequence[int]:
        return range(self._count, self._count + self._plan.rows)

    # Ours.

    def _vectors(self, numbers: Sequence[int]) -> Iterator[Tensor]:
        """Yields for each row, alone, the gradient of its loss, or the activation; float64."""
        sites = self._sites if self._row.is_similarity else {}
        for number in numbers:
            self._model.give_way()
            row = torch.tensor([number])
            with observing(self._model.tree, sites) as seen, seen.forward():
                output = self._run(row)
            if self._row.is_similarity:
                yield seen.calls[self._layer][-1].at(Point.OUTPUT)[""].double().flatten()
                continue
            loss = cross_entropy(output, self._labels[row.to(self._labels.device)], reduction="none")
            yield self._flat(gradients(loss, self._parameters)).double().cpu()

    def _flat(self, arrived: Sequence[Tensor | None]) -> Tensor:
        zeros = (torch.zeros_like(parameter) for parameter in self._parameters)
        return torch.cat([(zero if each is None else each).flatten() for each, zero in zip(arrived, zeros)])

    def _curved(self, directions: Tensor) -> Tensor:
        """Returns the products of the Hessian of the training rows' summed losses with ``directions``, [n, parameters]
        float64: each is the gradient of the raw gradient's product with a direction.

        Raises:
            FailedPrecondition: ``NOT_DIFFERENTIABLE``: an operator of the model has no second derivative.
        """
        found, parameters = torch.zeros_like(directions), self._parameters
        for numbers in torch.arange(self._count).split(self._batch):
            self._model.give_way()
            loss, why = self._losses(numbers).sum(), Reason.NOT_DIFFERENTIABLE
            with at("influence.method"), failures_of("the model's second derivative", reason=why):
                gradient = self._flat(torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True))
                if not gradient.requires_grad:
                    continue
                self._find_own_backward(loss, gradient)
                for number, direction in enumerate(directions):
                    along = direction.to(gradient)
                    arrived = torch.autograd.grad(gradient, parameters, along, retain_graph=True, allow_unused=True)
                    found[number] += self._flat(arrived).double().cpu()
        return found

    def _find_own_backward(self, loss: Tensor, gradient: Tensor) -> None:
        """Finds functions of the model's own: PyTorch leaves out, without a word, what their backward cannot say twice.

        Raises:
            FailedPrecondition: ``NOT_DIFFERENTIABLE``: one is marked with ``@once_differentiable``.
        """
        if self._own_backward is not None:
            return
        kinds: set[type] = set(map(type, graph_nodes(loss.grad_fn)))
        self._own_backward = sorted(kind.__name__ for kind in kinds if issubclass(kind, BackwardCFunction))
        if self._own_backward and any(type(node).__name__ == "Error" for node in graph_nodes(gradient.grad_fn)):
            what = f"{self._own_backward[0]} of the model has no second derivative: ask a method of TracIn"
            raise error(Reason.NOT_DIFFERENTIABLE, what)

    def _first(self) -> Tensor:
        """Returns the vector of length 1 at which Arnoldi's iteration begins, from the request's seed."""
        with seeded(self._asked.seed, self._model.device):
            first = self._flat([torch.randn_like(parameter) for parameter in self._parameters]).double().cpu()
        return normalize(first, dim=0)

    def _least(self) -> float:
        """Returns the length of a new vector at which Arnoldi's iteration ends, from one product with the Hessian.

        Raises:
            FailedPrecondition: ``NOT_DIFFERENTIABLE``, where the loss has no curvature, or no second derivative.
        """
        least = _END * float(self._curved(self._first()[None]).norm())
        if not least:
            what = "the losses of the training rows have no curvature in these parameters: name another layer"
            raise error(Reason.NOT_DIFFERENTIABLE, what, "influence.layer")
        return least

    def _spaces(self, least: float) -> tuple[Callable[[Tensor], Tensor], ...]:
        """Returns maps of vectors, [..., parameters], to spaces in which scores are products of what they become.

        Behind a Hessian there is a second one, for a Hessian with rounding errors.
        """
        if self._method is InfluenceMethod.TRACIN_PROJECTED:
            return (self._projected(),)
        if not self._row.has_hessian:
            return (lambda vectors: vectors,)
        size, draw = sum(each.numel() for each in self._parameters), torch.Generator().manual_seed(0)
        rounding = _ROUNDINGS * torch.finfo(self._model.dtype).eps
        if self._method is InfluenceMethod.INFLUENCE_FUNCTION:
            hessian = self._symmetric(self._curved(torch.eye(size, dtype=torch.float64)))
            noise = symmetric(torch.randn(size, size, generator=draw, dtype=torch.float64)) / size**0.5
            roots = [self._root(each) for each in (hessian, hessian + rounding * float(hessian.norm(2)) * noise)]
            return tuple(partial(_through, root) for root in roots)
        basis, found = krylov(
            lambda vector: self._curved(vector[None])[0], self._first(), self._asked.iterations, least
        )
        restricted, known = self._symmetric(found), len(found)
        room = min(size, 2 * known)  # rounding errors lead out of the space
        padded = torch.block_diag(restricted, torch.zeros(room - known, room - known, dtype=torch.float64))
        error_of_product = rounding * float(restricted.norm(2)) / room**0.5

        def rounded(vector: Tensor) -> Tensor:
            noise = torch.randn(room, generator=draw, dtype=torch.float64)
            image: Tensor = padded @ vector + error_of_product * noise
            return image

        again, moved = krylov(rounded, torch.eye(room, dtype=torch.float64)[0], known + 1, 0.0)
        return partial(_through, basis, self._root(restricted)), partial(
            _through, basis, again[:known] @ self._root(symmetric(moved))
        )

    def _symmetric(self, hessian: Tensor) -> Tensor:
        """Returns the symmetric part, and notes how large the other is: a second derivative is wrong where it is."""
        self._asymmetry = float((hessian - hessian.T).norm() / hessian.norm())
        return symmetric(hessian)

    def _root(self, hessian: Tensor) -> Tensor:
        """Returns the root of the damped inverse, [n, dimension], from the largest eigenvalues above 0."""
        values, vectors = torch.linalg.eigh(hessian)
        kept = (values + self._asked.damping) > LEAST_EIGENVALUE
        roots: Tensor = vectors[:, kept] / (values[kept] + self._asked.damping).sqrt()
        return roots[:, -self._asked.dimension :]

    def _projected(self) -> Callable[[Tensor], Tensor]:
        """Returns the projection of gradients of the last weights [outputs, inputs], from the request's seed."""
        outputs, inputs = self._parameters[0].shape
        if outputs * inputs <= self._asked.dimension:
            return lambda vectors: vectors
        sizes = [min(int(self._asked.dimension**0.5), length) for length in (outputs, inputs)]
        with seeded(self._asked.seed, self._model.device), self._model.device:
            torch.empty((), dtype=torch.int64, device="cpu").random_()  # which Captum's data loader draws before
            drawn = [
                torch.normal(torch.zeros(length, size), size**-0.5).to(self._model.dtype).double().cpu()
                for length, size in zip((outputs, inputs), sizes)
            ]
        left, right = drawn

        def project(vectors: Tensor) -> Tensor:
            found: Tensor = left.T @ vectors.unflatten(-1, (outputs, inputs)) @ right
            return found.flatten(-2)

        return project

    def _reference(self, least: float) -> _Reference:
        """Returns what scores should be under the model's weights, from raw vectors, one row after the other."""
        spaces, raw = self._spaces(least), torch.stack([*self._vectors(self._own_numbers())])
        mine = [space(raw) for space in spaces]
        scores, moved, own, lengths = [], [], [], []
        for vector in self._vectors(range(self._count)):
            theirs = [space(vector) for space in spaces]
            products = [one @ other for one, other in zip(mine, theirs)]
            if self._method is InfluenceMethod.EUCLIDEAN:
                products = [(raw - vector).norm(dim=1)]
            scores.append(products[0])
            moved.append(products[-1] - products[0])
            own.append(theirs[0] @ theirs[0])
            lengths.append(self._length(vector, theirs[0]))
        of_mine, of_theirs = self._length(raw, mine[0]), torch.stack(lengths)
        if self._row.has_hessian:
            smallest = _SMALLEST * float(torch.cat([of_mine, of_theirs]).max())
            of_mine, of_theirs = of_mine.clamp_min(smallest), of_theirs.clamp_min(smallest)
        return _Reference(
            torch.stack(scores, dim=1), torch.stack(moved, dim=1), torch.stack(own), of_mine, of_theirs
        )  # fmt: skip

    def _length(self, raw: Tensor, inside: Tensor) -> Tensor:
        """Returns the length of a vector; a projection may by chance be much shorter than what it is of."""
        length: Tensor = inside.norm(dim=-1)
        return length.maximum(raw.norm(dim=-1)) if self._method is InfluenceMethod.TRACIN_PROJECTED else length

    def _check(self, scores: Tensor, own: Tensor | None, least: float) -> Check:
        """Compares Captum's scores with products of raw vectors."""
        found = []
        for number, rate in enumerate(self._rates):
            with self._holding(number):
                expected, moved, of_own, mine, theirs = self._reference(least)
            found.append((rate * expected, rate * mine[:, None] * theirs, rate * of_own, rate * theirs**2))
        expected, size, of_own, size_of_own = (torch.stack(each).sum(dim=0) for each in zip(*found))
        if self._method is InfluenceMethod.COSINE:
            expected, size = expected / size, torch.ones_like(size)
        elif self._method is InfluenceMethod.EUCLIDEAN:
            size = mine[:, None] + theirs
        pairs = [(scores, expected, size)]
        if own is not None:
            pairs.append((own, of_own, size_of_own))
        is_finite = all(bool(each.isfinite().all()) for pair in pairs for each in pair)
        worst, moves = (
            max(float((each.abs() / size.clamp_min(1e-300)).max()) for each, size in several)
            for several in ([(one - other, size) for one, other, size in pairs], [(moved, size)])
        )
        tolerance = self._plan.request.check.relative_tolerance or _TOLERANCE.get(self._model.dtype, 0.05)
        verdict, cause, reason = Verdict.AGREES, None, ""
        if not is_finite:
            zero = self._method is InfluenceMethod.COSINE and not (mine.all() and theirs.all())
            what = "of length 0, which has no direction" if zero else "NaN or infinite"
            verdict, cause, reason = Verdict.INCONCLUSIVE, Cause.NOT_FINITE, f"a gradient or an activation is {what}"
        elif (doubt := model_doubt(self._main, MOST_ROWS)) is not None:
            verdict, cause, reason = Verdict.INCONCLUSIVE, doubt.cause, doubt.reason
        elif self._asymmetry > tolerance:
            reason = "the Hessian is not symmetric: the second derivative of an operator of the model is wrong"
            verdict, cause = Verdict.DISAGREES, Cause.WRONG_BACKWARD
        elif not worst <= tolerance:
            verdict, cause, reason = Verdict.DISAGREES, Cause.UNKNOWN, self._row.fault
            if min(worst, 1.0) <= _EXCUSED * moves:
                remedy = " or fewer iterations" if self._method is InfluenceMethod.ARNOLDI else ""
                reason = f"rounding errors of the Hessian move scores as far: ask for a larger damping{remedy}"
                verdict, cause = Verdict.INCONCLUSIVE, Cause.CANCELLATION
        elif self._own_backward:
            reason = f"nothing proves the second derivative of {self._own_backward[0]}, a function of the model's own"
            verdict, cause = Verdict.INCONCLUSIVE, Cause.CHECK_FAILED
        return Check(
            compared="scores of all training rows",
            mode=CheckMode.INDEPENDENT,
            max_absolute_error=float((scores - expected).abs().max()),
            max_relative_error=worst,
            cosine=float(torch.cosine_similarity(scores.flatten(), expected.flatten(), dim=0)),
            tolerance=tolerance,
            verdict=verdict,
            reason=reason,
            cause=cause,
        )


class _Reference(NamedTuple):
    """The scores that are right: products of vectors of the request's rows and of the training rows.

    Attributes:
        scores: [rows, training rows].
        moved: how far rounding errors of a Hessian move them, [rows, training rows].
        own: the product of each training row's vector with itself.
        mine: the lengths of the vectors of the request's rows.
        theirs: those of the training rows.
    """

    scores: Tensor
    moved: Tensor
    own: Tensor
    mine: Tensor
    theirs: Tensor


def _through(*given: Tensor) -> Tensor:
    """Returns the product of vectors, which are the last of ``given``, with the matrices before them."""
    *matrices, found = given
    for matrix in matrices:
        found = found @ matrix
    return found
