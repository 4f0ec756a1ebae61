"""Any method, of noisy copies of the inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from captum import attr
from torch import Tensor

from cutaway.engine.copies import MAX_SAMPLES
from cutaway.engine.distance import ROUNDINGS
from cutaway.engine.evidence import Evidence, Reference, Silent
from cutaway.engine.finding import Finding
from cutaway.engine.method import Method
from cutaway.engine.shortcuts import shortened
from cutaway.engine.subject import Inputs, dtype_text
from cutaway.engine.witness import Pass, Question, Values
from cutaway.errors import Reason, error
from cutaway.requests import Attribution, Combination, Expectation, NoiseTunnel
from cutaway.results import Cause


def tunnelled(base: Method) -> Method:
    """What becomes of a row of the table inside a noise tunnel."""
    return replace(
        base,
        captum=partial(_tunnel, base.captum),
        reference=partial(_reference, base),
        points=lambda question: [point for each in noisy(question) for point in base.points(each)],
        identity=f"the combination, over the seed's noisy copies of the inputs, of {base.identity}",
        options=partial(_options, base),
        draws=True,
        moot=partial(_moot, base),
        adds_up=lambda _: False,
        conserves=False,
        copies=lambda question: _noise(question).n_samples,
        own=None if base.own is None else partial(_own, base.own),
    )


def _tunnel(captum: Callable[..., Any], *given: Any, **settings: Any) -> attr.NoiseTunnel:
    explainer = shortened(captum(*given, **settings))
    if not hasattr(explainer.attribute, "__wrapped__"):
        explainer.attribute = _wrapped(explainer.attribute)
    return attr.NoiseTunnel(explainer)


def _wrapped(attribute: Callable[..., Any]) -> Callable[..., Any]:
    """Captum calls what its decorator for logs has wrapped, which LayerLRP's has not."""

    def unlogged(_: Any, *given: Any, **options: Any) -> Any:
        return attribute(*given, **options)

    logged = partial(attribute)
    logged.__wrapped__ = unlogged  # type: ignore[attr-defined]
    return logged


def _options(base: Method, question: Question) -> dict[str, Any]:
    """One copy at a time, so that each pass has the batch's rows in their places."""
    noise = _noise(question)
    return {
        **base.options(question),
        "nt_type": noise.combination.value,
        "nt_samples": noise.n_samples,
        "nt_samples_batch_size": 1,
        "stdevs": float(noise.stdev),
    }


def _noise(question: Question) -> NoiseTunnel:
    return question.request.noise or NoiseTunnel()


def noisy(question: Question) -> Iterator[Question]:
    """``question``, of each copy of the explained inputs: noise is drawn in float32 copy by copy, input by input."""
    noise = _noise(question)
    numbers = torch.Generator(question.subject.device).manual_seed(question.seed or 0)
    for _ in range(noise.n_samples):
        copies = {name: tensor + noise.stdev * _like(tensor, numbers) for name, tensor in _explained(question)}
        yield replace(question, inputs={**question.inputs, **copies})


def _explained(question: Question) -> Iterator[tuple[str, Tensor]]:
    return zip(question.explained, question.arguments)


def _like(tensor: Tensor, numbers: torch.Generator) -> Tensor:
    return torch.randn(tensor.shape, generator=numbers, device=tensor.device, dtype=torch.float32)


def _own(passes: Callable[[Question], Sequence[Pass]], question: Question) -> Sequence[Pass]:
    return [each for copy in noisy(question) for each in passes(copy)]


def _reference(base: Method, evidence: Evidence) -> Reference:
    """The base's reference for each copy, from the passes at it; then their mean, the mean of their squares, or their
    variance."""
    noise = _noise(evidence.question)
    each, odd = divmod(len(evidence.passes), noise.n_samples)
    if odd or not each:
        raise Silent(f"{len(evidence.passes)} passes are not the same number for each of {noise.n_samples} copies")
    found = [
        base.reference(Evidence(copy, evidence.passes[number * each : (number + 1) * each], evidence.call))
        for number, copy in enumerate(noisy(evidence.question))
    ]
    values, terms = _stacked([one.values for one in found]), _stacked([one.terms for one in found])
    if noise.combination is Combination.SMOOTHGRAD:
        return Reference(_each(_mean, values), _each(_mean, terms))
    if noise.combination is Combination.SMOOTHGRAD_SQUARE:
        return Reference(_each(_mean_square, values), _each(_mean_square, terms))
    # A variance is what is left of large squares, and known only as well as they are.
    dtype = evidence.question.subject.dtype
    doubt = max(1.0, base.tolerances.of(dtype) / (ROUNDINGS * torch.finfo(dtype).eps))
    return Reference(_each(_variance, values), {name: doubt * _mean_square(each) for name, each in terms.items()})


def _stacked(found: Sequence[Values]) -> Values:
    """[copies, ...] by name."""
    shapes = [{name: value.shape for name, value in each.items()} for each in found]
    if any(each != shapes[0] for each in shapes):
        raise Silent("the shapes of what is explained are not the same for every copy")
    return {name: torch.stack([each[name] for each in found]) for name in found[0]}


def _each(combine: Callable[[Tensor], Tensor], values: Values) -> Values:
    return {name: combine(each) for name, each in values.items()}


def _mean(copies: Tensor) -> Tensor:
    return copies.mean(dim=0)


def _mean_square(copies: Tensor) -> Tensor:
    return copies.square().mean(dim=0)


def _variance(copies: Tensor) -> Tensor:
    return copies.var(dim=0, correction=0)


def _moot(base: Method, question: Question) -> Finding | None:
    noise = _noise(question)
    if noise.combination is Combination.VARGRAD and (noise.n_samples < 2 or not noise.stdev):
        return Finding(
            Cause.NOT_MOVED,
            f"{noise.n_samples} copies with noise of {noise.stdev:g} are all the same, and have no variance: send two "
            "or more, and noise above 0",
        )
    return base.moot(question)


def refuse_noise(base: Method, request: Attribution, inputs: Inputs, explained: Sequence[str]) -> None:
    """Refuse what cannot be explained through noise, before anything runs.

    Args:
        base: the request's row of the table.
        request: with its noise.
        inputs: by name.
        explained: those to which noise is added.

    Raises:
        InvalidArgument: the field is below ``noise_tunnel``.
    """
    noise, method = request.noise or NoiseTunnel(), type(request).__name__
    if not 1 <= noise.n_samples <= MAX_SAMPLES:
        raise error(Reason.INVALID_VALUE, f"{noise.n_samples} copies; from 1 to {MAX_SAMPLES}", "n_samples")
    if not 0 <= noise.stdev < math.inf:
        raise error(Reason.INVALID_VALUE, f"{noise.stdev}; a finite number from 0 up", "stdev")
    if base.draws:
        raise error(
            Reason.METHOD_INAPPLICABLE,
            f"{method} draws random numbers of its own, between which the noise would be drawn: ask it without noise, "
            "or a method that draws nothing",
        )
    for name in explained:
        _refuse_dtype(name, inputs[name])
    if isinstance(request, Expectation):
        _refuse_samples(method, request, len(inputs[explained[0]]))


def _refuse_dtype(name: str, tensor: Tensor) -> None:
    if not tensor.is_floating_point():
        raise error(
            Reason.METHOD_INAPPLICABLE,
            f"noise is added to {name!r}, which is {dtype_text(tensor)}: name inputs of floats to be explained",
        )
    if torch.finfo(tensor.dtype).bits < 32:
        raise error(
            Reason.METHOD_INAPPLICABLE,
            f"Captum adds float32 noise, and the input {name!r} is {dtype_text(tensor)}: load the model in float32",
        )


def _refuse_samples(method: str, request: Expectation, rows: int) -> None:
    samples = max(map(len, request.baselines.values()))
    if samples != rows:
        raise error(
            Reason.METHOD_INAPPLICABLE,
            f"inside a noise tunnel Captum takes the baselines of {method} for baselines of the rows, and there are "
            f"{samples} for {rows}: send as many samples as rows, or ask without noise",
        )
