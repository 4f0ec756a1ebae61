"""Any method, applied to noisy copies of the inputs and combined: SmoothGrad, its square, VarGrad."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from captum import attr

from cutaway.contract.requests import Attribution, Combination, Expectation, NoiseTunnel
from cutaway.contract.results import Cause
from cutaway.engine.methods import spec
from cutaway.engine.model.inspected_model import Inputs
from cutaway.engine.passes.findings import Finding
from cutaway.engine.passes.folding import Fold, Folding
from cutaway.engine.passes.pass_recorder import AttributionProblem, Values
from cutaway.engine.passes.reference_inputs import MissingObservation, Reference
from cutaway.engine.runtime.numerics import SUM


def with_noise_tunnel(base: spec.Method, noise: NoiseTunnel) -> spec.Method:
    """Returns the row of the table for ``base`` inside a noise tunnel."""
    return replace(
        base,
        reference=partial(_reference, base, noise),
        copies=lambda problem: _noisy_copies(problem, noise),
        formula=f"the combination, over the seed's noisy copies of the inputs, of {base.formula}",
        attribute_arguments=partial(_arguments, base, noise),
        uses_randomness=True,
        vacuous=partial(_vacuous, base, noise),
        satisfies_completeness=lambda _: False,
        satisfies_conservation=False,
    )


def captum_tunnel(explainer: Any) -> attr.NoiseTunnel:
    """Returns ``explainer``, an object of Captum, inside Captum's noise tunnel."""
    attribute = explainer.attribute
    if not hasattr(attribute, "__wrapped__"):
        # Captum calls ``__wrapped__``, which its decorator for logs sets; LayerLRP has no such decorator.
        explainer.attribute = partial(attribute)
        explainer.attribute.__wrapped__ = lambda _, *args, **kwargs: attribute(*args, **kwargs)
    return attr.NoiseTunnel(explainer)


def _arguments(base: spec.Method, noise: NoiseTunnel, problem: AttributionProblem) -> dict[str, Any]:
    """Returns Captum's arguments, with one copy at a time: each pass has the batch's rows in their places."""
    return {
        **base.attribute_arguments(problem),
        "nt_type": noise.combination.value,
        "nt_samples": noise.n_samples,
        "nt_samples_batch_size": 1,
        "stdevs": float(noise.stdev),
    }


def _noisy_copies(problem: AttributionProblem, noise: NoiseTunnel) -> Iterator[AttributionProblem]:
    """Yields ``problem`` with each noisy copy of the explained inputs.

    Noise is drawn in float32, copy by copy and, within a copy, input by input.
    """
    generator = torch.Generator(problem.model.device).manual_seed(problem.seed or 0)
    for _ in range(noise.n_samples):
        copies = {
            name: tensor
            + noise.stdev * torch.randn(tensor.shape, generator=generator, device=tensor.device, dtype=torch.float32)
            for name, tensor in zip(problem.explained, problem.arguments)
        }
        yield replace(problem, inputs={**problem.inputs, **copies})


def _reference(base: spec.Method, noise: NoiseTunnel, problem: AttributionProblem, call: int) -> Fold[Reference]:
    """Returns the mean over copies of the base's reference, the mean of its square, or its variance.

    SmoothGrad: Smilkov et al. 2017, arXiv:1706.03825; VarGrad: Adebayo et al. 2018, arXiv:1810.03292.

    Raises:
        MissingObservation: a copy has no passes, or shapes are not the same for each copy.
    """
    values, terms, error = _Moments(), _Moments(), 0.0
    recorded = yield
    for number, copy in enumerate(_noisy_copies(problem, noise)):
        of_copy = Folding(base.reference(copy, call))
        if recorded is None or recorded.copy != number:
            raise MissingObservation(f"passes ran for {number} of {noise.n_samples} copies")
        while recorded is not None and recorded.copy == number:
            of_copy.add(recorded)
            recorded = yield
        reference = of_copy.result()
        values.add(reference.values)
        terms.add(reference.terms)
        error = max(error, reference.error)
    if noise.combination is Combination.SMOOTHGRAD:
        return Reference(values.means, terms.means, error)
    squares = terms.mean_squares()
    if noise.combination is Combination.SMOOTHGRAD_SQUARE:
        return Reference(values.mean_squares(), squares)
    # A variance is a small difference of large squares, and no more exact than they are.
    dtype = problem.model.dtype
    doubt = max(1.0, base.tolerances.of(dtype) / SUM.of(dtype))
    return Reference(values.variances(), {name: doubt * square for name, square in squares.items()})


class _Moments:
    """The means and variances of tensors that are added one by one, by name: Welford 1962, doi:10.2307/1266577."""

    def __init__(self) -> None:
        self.means: Values = {}
        self._squares: Values = {}
        self._count = 0

    def add(self, values: Values) -> None:
        """Adds the tensors of one copy."""
        self._count += 1
        if self._count == 1:
            self.means = {name: torch.zeros_like(value) for name, value in values.items()}
            self._squares = {name: torch.zeros_like(value) for name, value in values.items()}
        if {name: value.shape for name, value in values.items()} != {name: m.shape for name, m in self.means.items()}:
            raise MissingObservation("the shapes of what is explained are not the same for every copy")
        for name, value in values.items():
            before = value - self.means[name]
            self.means[name] = self.means[name] + before / self._count
            self._squares[name] = self._squares[name] + before * (value - self.means[name])

    def variances(self) -> Values:
        """Returns the mean squares of the distances from the means."""
        return {name: squares / self._count for name, squares in self._squares.items()}

    def mean_squares(self) -> Values:
        """Returns the means of the squares."""
        return {name: variance + self.means[name].square() for name, variance in self.variances().items()}


def _vacuous(base: spec.Method, noise: NoiseTunnel, problem: AttributionProblem) -> Finding | None:
    if noise.combination is Combination.VARGRAD and (noise.n_samples < 2 or not noise.stdev):
        return Finding(
            Cause.NOT_MOVED,
            f"{noise.n_samples} copies with noise of {noise.stdev:g} are all the same, and have no variance: send two "
            "or more, and noise above 0",
        )
    return base.vacuous(problem)


def refuse_noise(base: spec.Method, request: Attribution, inputs: Inputs, explained: Sequence[str]) -> None:
    """Raises for a request that a noise tunnel does not support, before anything runs.

    Args:
        base: the request's row of the table.
        request: the attribution, with its noise.
        inputs: the model's inputs, by name.
        explained: the names of those to which noise is added.

    Raises:
        InvalidArgument: fields are relative to ``noise_tunnel``.
    """
    noise, method = request.noise or NoiseTunnel(), type(request).__name__
    spec.refuse_samples(noise.n_samples, "copies")
    spec.refuse_stdev(noise.stdev)
    if base.uses_randomness:
        raise spec.inapplicable(
            f"{method} draws random numbers, between which the noise would be drawn: send it without noise, or use a "
            "method that draws none"
        )
    for name in explained:
        spec.refuse_integers("noise is added to", name, inputs[name])
        spec.refuse_half_precision(name, inputs[name])
    if isinstance(request, Expectation):
        samples, rows = max(map(len, request.baselines.values())), len(inputs[explained[0]])
        if samples != rows:
            raise spec.inapplicable(
                f"inside a noise tunnel Captum uses the baselines of {method} as one baseline for each row, and there "
                f"are {samples} for {rows} rows: send as many samples as rows, or no noise"
            )
