"""Finds the training rows that made a prediction: Captum's influence, compared with raw gradients and raw hooks.

The model's own weights are the only checkpoint. Captum reads only the first tensor of a training row, and fails on a
single layer; so its data sets hold numbers of rows, and the model runs on what they stand for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from tempfile import TemporaryDirectory
from typing import Any

import torch
from captum.influence import SimilarityInfluence, TracInCP, TracInCPFast
from captum.influence._core.similarity_influence import cosine_similarity, euclidean_distance
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cutaway.contract.errors import Reason, at, error
from cutaway.contract.requests import CheckMode, Influence, InfluenceMethod, Point
from cutaway.contract.results import Cause, Check, InfluenceResult, InspectResult, Verdict
from cutaway.contract.values import changed
from cutaway.engine.execution.concepts import translated_errors
from cutaway.engine.execution.main_pass import MainPass
from cutaway.engine.hooks.capture_spec import watching
from cutaway.engine.hooks.observe import observing
from cutaway.engine.model.inspected_model import Inputs, failures_of, gradients
from cutaway.engine.model.session import timed
from cutaway.engine.passes.pass_recorder import concatenated
from cutaway.engine.planning.plan import RequestPlan
from cutaway.engine.runtime.numerics import to_numpy
from cutaway.engine.runtime.rng import seeded

_MOST_ROWS = 16
"""The most training rows of a pass of Captum's: it keeps the gradients of all of them."""

_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3}
"""How far scores may differ, as a part of the product of both lengths; of half precision 0.05."""

_SIMILARITIES = {InfluenceMethod.COSINE: cosine_similarity, InfluenceMethod.EUCLIDEAN: euclidean_distance}


def influence_passes(plan: RequestPlan) -> int:
    """Returns how many passes of one example the influence of ``plan`` takes at most."""
    asked, training = plan.request.influence, plan.training
    if asked is None or training is None:
        return 0
    count = _count(training)
    # TracInCPFast runs the request's rows again for each batch; the last are those of `self_influence`.
    traced = 0 if asked.method in _SIMILARITIES else plan.rows * (-(-count // _MOST_ROWS) - 1) + count + 1
    return plan.rows + count + traced + (plan.rows + count) * (plan.request.check.mode is not CheckMode.OFF)


def _count(inputs: Inputs) -> int:
    return len(next(iter(inputs.values())))


def estimated(plan: RequestPlan) -> InfluenceResult | None:
    """Returns a result with zeros of the shapes that the influence of ``plan`` has; None without it."""
    asked, training = plan.request.influence, plan.training
    if asked is None or training is None:
        return None
    method, count, zero = InfluenceMethod(asked.method), _count(training), torch.zeros((), dtype=torch.float64)
    scores = to_numpy(zero.expand(plan.rows, min(asked.k, count)))
    rows = to_numpy(zero.long().expand(plan.rows, min(asked.k, count)))
    own = None if method in _SIMILARITIES else to_numpy(zero.expand(count))
    return InfluenceResult(method.value, rows, scores, rows, scores, own)


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
        self._plan, self._asked, self._model = main.plan, asked, main.plan.model
        with at("influence.training"), failures_of("joining the rows", reason=Reason.INPUT_SHAPE):
            self._rows = concatenated([training, main.plan.inputs])
        self._method, self._count = InfluenceMethod(asked.method), _count(training)
        self._is_similarity = self._method in _SIMILARITIES
        self._target, self._labels = main.targets[0], torch.empty(0, dtype=torch.int64)
        self._layer = self._model.tree.resolve(asked.layer) if asked.layer else ""
        self._owner = self._model.tree[self._layer] if asked.layer else self._model.module
        self._sites = {self._layer: watching(Point.OUTPUT)} if asked.layer else {}
        if not self._is_similarity:
            self._labels = self._all_labels(main)
            self._model.guard.enable_gradients()
            self._parameters = self._reached()

    def result(self) -> InfluenceResult:
        """Returns the rows that helped and harmed most, with the verdict."""
        with translated_errors("influence"):
            scores, own = self._similar() if self._is_similarity else self._traced()
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
            check=None if self._plan.request.check.mode is CheckMode.OFF else self._check(scores, own),
        )

    def _all_labels(self, main: MainPass) -> Tensor:
        """Returns the labels of all rows; those of the request are what its target is about.

        Raises:
            InvalidArgument: ``TARGET_MISMATCH`` or ``TARGET_RANGE``.
        """
        classes, output = main.target_classes, main.outputs.get(self._target.source)
        if classes is None or output is None or output.ndim != 2:
            what = "the loss is the cross-entropy of [rows, classes]: let the target be a class of such an output"
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

    def _inputs(self, numbers: Tensor) -> Inputs:
        index = numbers.to(self._model.device).long()
        return {name: tensor[index] for name, tensor in self._rows.items()}

    def _run(self, numbers: Tensor) -> Tensor:
        """Returns the output that the loss is of, for rows by their numbers."""
        return self._model.run(self._inputs(numbers))[self._target.source]

    def _reached(self) -> list[nn.Parameter]:
        """Returns the parameters that scores are about: those of the layer, or all that the loss depends on.

        Raises:
            FailedPrecondition: ``NOT_DIFFERENTIABLE``, where it depends on none.
            InvalidArgument: ``METHOD_INAPPLICABLE``, where the layer does not compute the output.
        """
        owner = self._owner
        named = [parameter for parameter in owner.parameters() if parameter.is_floating_point()]
        first = torch.tensor([0])
        with observing(self._model.tree, self._sites) as seen, seen.forward():
            output = self._run(first)
        if self._method is InfluenceMethod.TRACIN_FAST:
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

    def _similar(self) -> tuple[Tensor, None]:
        size = next(size for size in range(_MOST_ROWS, 0, -1) if self._count % size == 0)  # Captum needs whole batches
        metric = _SIMILARITIES[self._method]

        def of_only_layer(test: Any, train: Tensor) -> Tensor:
            given = test[0] if isinstance(test, (list, tuple)) else test
            found: Tensor = metric(given.flatten(1).double(), train.flatten(1).double())  # half has no distance
            return found

        module = _Numbered(self._owner, self._run, ())
        with TemporaryDirectory(prefix="cutaway-influence-") as folder:
            captum = SimilarityInfluence(
                module, ["layer"], range(self._count), folder, "model", of_only_layer, "max", size
            )
            order, values = captum.influence(self._own_numbers(), top_k=self._count)["layer"]
        return torch.zeros(values.shape, dtype=torch.float64).scatter_(1, order, values.double()), None

    def _traced(self) -> tuple[Tensor, Tensor]:
        numbers = torch.arange(self._count)
        rows = torch.utils.data.TensorDataset(numbers, self._labels[: self._count].cpu())
        arguments = (rows, [self._asked.learning_rate])
        owner, is_fast = self._owner, self._method is InfluenceMethod.TRACIN_FAST
        module = _Numbered(owner if is_fast else nn.Identity(), self._run, self._parameters)
        options: dict[str, Any] = {"checkpoints_load_func": lambda _, rate: rate, "batch_size": _MOST_ROWS}
        if is_fast:
            captum: Any = TracInCPFast(
                module, owner, *arguments, loss_fn=nn.CrossEntropyLoss(reduction="sum"), **options
            )
        else:
            captum = TracInCP(module, *arguments, loss_fn=nn.CrossEntropyLoss(reduction="none"), **options)
        with self._on_device():
            scores = captum.influence((self._own_numbers(), self._labels[self._count :]))
            own = captum.self_influence()
        return scores.detach().double().cpu(), own.detach().double().cpu()

    def _on_device(self) -> torch.device:
        return self._model.device  # a context in which new tensors lie there

    def _own_numbers(self) -> Tensor:
        return torch.arange(self._count, self._count + self._plan.rows)

    # Ours.

    def _vectors(self, numbers: Sequence[int]) -> Iterator[Tensor]:
        """Yields for each row, alone, what is multiplied: the gradient of its loss, or the activation; float64."""
        sites = self._sites if self._is_similarity else {}
        for number in numbers:
            row = torch.tensor([number])
            with observing(self._model.tree, sites) as seen, seen.forward():
                output = self._run(row)
            if self._is_similarity:
                yield seen.calls[self._layer][-1].at(Point.OUTPUT)[""].double().flatten()
                continue
            loss = cross_entropy(output, self._labels[row.to(self._labels.device)], reduction="none")
            arrived = gradients(loss, self._parameters)
            yield torch.cat([each.double().flatten().cpu() for each in arrived if each is not None])

    def _check(self, scores: Tensor, own: Tensor | None) -> Check:
        """Compares Captum's scores with products of raw vectors, one training row after the other."""
        mine = torch.stack([*self._vectors(self._own_numbers().tolist())])
        rate, lengths = (1.0 if self._is_similarity else self._asked.learning_rate), mine.norm(dim=1)
        tolerance = self._plan.request.check.relative_tolerance or _TOLERANCE.get(self._model.dtype, 0.05)
        worst, finite, zero = 0.0, True, bool((lengths == 0).any())
        products = list[tuple[Tensor, Tensor]]()
        for number, vector in enumerate(self._vectors(range(self._count))):
            length, product = vector.norm(), mine @ vector
            expected, size = rate * product, abs(rate) * lengths * length
            if self._method is InfluenceMethod.COSINE:
                expected, size = product / (lengths * length), torch.ones_like(lengths)
            elif self._method is InfluenceMethod.EUCLIDEAN:
                expected, size = (mine - vector).norm(dim=1), lengths + length
            zero |= not length
            found = [(scores[:, number], expected, size)]
            if own is not None:
                found.append(
                    (own[number : number + 1], (rate * length**2).reshape(1), (abs(rate) * length**2).reshape(1))
                )
            for theirs, ours, scale in found:
                finite &= bool(theirs.isfinite().all() and ours.isfinite().all())
                worst = max(worst, float(((theirs - ours).abs() / scale.clamp_min(1e-300)).max()))
            products.append((scores[:, number], expected))
        theirs, ours = (torch.stack(each).flatten() for each in zip(*products))
        verdict, cause, reason = Verdict.AGREES, None, ""
        if not finite or (zero and self._method is InfluenceMethod.COSINE):
            what = "NaN or infinite" if not zero else "of length 0, which has no direction"
            verdict, cause, reason = Verdict.INCONCLUSIVE, Cause.NOT_FINITE, f"a gradient or an activation is {what}"
        elif not worst <= tolerance:
            reason = "Captum's scores are not the products of raw gradients" if rate and own is not None else ""
            verdict, cause, reason = Verdict.DISAGREES, Cause.UNKNOWN, reason or "Captum's similarities are not ours"
        return Check(
            compared="scores of all training rows",
            mode=CheckMode.INDEPENDENT,
            max_absolute_error=float((theirs - ours).abs().max()),
            max_relative_error=worst,
            cosine=float(torch.cosine_similarity(theirs, ours, dim=0)),
            tolerance=tolerance,
            verdict=verdict,
            reason=reason,
            cause=cause,
        )


class _Numbered(nn.Module):
    """A module that runs the model on rows by their numbers, with the parameters that are differentiated."""

    def __init__(self, layer: nn.Module, run: Any, parameters: Sequence[nn.Parameter]) -> None:
        super().__init__()
        self.layer, self._run, self._chosen = layer, run, list(parameters)

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Yields the chosen ones."""
        return iter(self._chosen)

    def forward(self, numbers: Tensor) -> Tensor:
        """Returns the output of the model."""
        found: Tensor = self._run(numbers)
        return found
