"""Captum's classes that wrap another method.

- `NoiseTunnel`: any method on noisy copies of the inputs, combined: SmoothGrad, its square, VarGrad.
- `LLMAttribution`, `LLMGradientAttribution`: a method of perturbations, or of the gradient at a layer, of a language
  model, which explains a text behind a prompt.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from inspect import signature
from types import SimpleNamespace
from typing import Any, cast

import torch
from captum import attr
from torch import Tensor

from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.requests import (
    Attribution,
    Combination,
    Expectation,
    FeatureAblation,
    KernelShap,
    LayerAttribution,
    LayerGradientShap,
    LayerGradientXActivation,
    LayerIntegratedGradients,
    Lime,
    LLMAttribution,
    NoiseTunnel,
    ShapleyValues,
    ShapleyValueSampling,
)
from cutaway.contract.results import Cause
from cutaway.engine.hooks.tokens import MASK, TEXT
from cutaway.engine.methods import spec
from cutaway.engine.methods.captum_patches import with_rows_apart
from cutaway.engine.model.inspected_model import CONTINUATION, Generation, Inputs, InspectedModel
from cutaway.engine.passes.findings import Finding
from cutaway.engine.passes.pass_recorder import AttributionProblem, Changes, Pass, Values, run_passes
from cutaway.engine.passes.reference_inputs import MissingObservation, Reference
from cutaway.engine.references.expected_gradients import token_expected_gradients, token_passes
from cutaway.engine.references.observation import Fold, Folding
from cutaway.engine.runtime.numerics import EXACT, SUM


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


# A text behind a prompt. Captum runs the model's own forward on one prompt, and not the function that it was given.


def with_llm_attribution(base: spec.Method) -> spec.Method:
    """Returns the row of the table for ``base`` inside Captum's `LLMAttribution`, or `LLMGradientAttribution`."""
    method = replace(
        base,
        formula=f"{base.formula} of one pass over prompt and text",
        tolerances=EXACT,  # Captum's passes have other lengths, and round in other ways
        batchable=False,
        is_watched=False,
    )
    if base.runs_backward:
        if base.uses_randomness:
            base = replace(base, reference=token_expected_gradients)
            method = replace(method, reference_passes=token_passes, refuse=_refuse_noise, limitation=lambda _: _AT_ENDS)
        return replace(
            method,
            reference=partial(_of_prompt, base),
            formula=f"{method.formula}, summed over the features of each token of the prompt",
            satisfies_completeness=lambda _: False,  # at other layers than embeddings, tokens of the text have values
            model_context=_tokens_at_layer,
        )
    return replace(method, reference_passes=base.reference_passes or partial(_passes, base), limitation=_read_again)


def _passes(base: spec.Method, problem: AttributionProblem) -> Iterable[Pass]:
    """Runs separate passes, which the tokens of a text share."""
    with problem.shared.used() if problem.shared else nullcontext():
        yield from run_passes(problem, base.points(problem), differentiate=False)


def _of_prompt(base: spec.Method, problem: AttributionProblem, call: int) -> Fold[Reference]:
    """Returns the base's reference, [1, tokens, size], summed to [1, tokens of the prompt]."""
    found = yield from base.reference(problem, call)
    tokens = problem.inputs["input_ids"].shape[1]
    values, terms = (
        {name: tensor.sum(dim=-1)[:, :tokens] for name, tensor in side.items()} for side in (found.values, found.terms)
    )
    return found._replace(values=values, terms=terms)


def _tokens_at_layer(problem: AttributionProblem) -> AbstractContextManager[None]:
    """Returns a context that requires a layer whose output has an axis of tokens, where a text is explained."""
    if LLMAttribution in _known(problem):
        return nullcontext()
    tokens = sum(problem.inputs[name].shape[1] for name in ("input_ids", CONTINUATION) if name in problem.inputs) - 1

    def refuse(calls: Sequence[Sequence[Tensor]]) -> None:
        for tensors in calls if CONTINUATION in problem.inputs else ():
            shapes = [list(tensor.shape) for tensor in tensors]
            if len(shapes) > 1 or len(shapes[0]) != 3 or shapes[0][1] != tokens:
                text = f"explains tokens, and {problem.layer!r} returns {', '.join(map(str, shapes))}"
                raise _inapplicable(f"{text}: name a layer that returns [1, {tokens}, size], such as the embedding")

    return spec.readable_output(problem, refuse)


def llm_values(problem: AttributionProblem, wrapper: LLMAttribution, **options: Any) -> Tensor:
    """Returns Captum's attributions of a text, or of one token of it, [1, tokens of the prompt].

    Args:
        problem: of one prompt, which is one input.
        wrapper: how Captum runs the model.
        options: what its method gets besides.

    Raises:
        InvalidArgument: ``METHOD_INAPPLICABLE``: the target is no text, or a token where Captum has only the text.
    """
    if problem.target.source != CONTINUATION:
        raise _inapplicable("explains the log-probability of a text: ask target=SequenceLogProbability(text)")
    known = _known(problem)
    if LLMAttribution not in known:
        known[LLMAttribution] = _attributed(problem, wrapper, **options)
    result, _ = known[LLMAttribution]
    of_text, of_tokens = result.seq_attr.unsqueeze(0), result.token_attr
    if problem.target.tokens is not None and of_tokens is None:
        raise _inapplicable(f"has no values by token of {type(problem.request).__name__}: leave by_token out")
    by_token: Tensor = of_text if problem.target.tokens is None else of_tokens
    return problem.target.scalars(by_token.T).unsqueeze(0)


def _known(problem: AttributionProblem) -> dict[Hashable, Any]:
    """Returns what is kept of Captum's run for all targets of a problem, which it explains at once."""
    return problem.cache if problem.shared is None else problem.shared.known


def _read_again(problem: AttributionProblem) -> Finding | None:
    """Reports that Captum read the prompt again, for a target of tokens behind the first one of the text."""
    _, reads_again = _known(problem).get(LLMAttribution, (None, False))
    tokens = problem.target.scalars(torch.eye(problem.inputs[CONTINUATION].shape[1]))  # 1 for those of the target
    return _READ_AGAIN if reads_again and bool(tokens[1:].any()) else None


def _attributed(problem: AttributionProblem, wrapper: LLMAttribution, **options: Any) -> tuple[Any, bool]:
    """Returns Captum's result for one prompt, and whether a pass read again what the cache had."""
    prompt, (baseline,) = problem.inputs["input_ids"], options.pop("baselines", (problem.inputs["input_ids"],))
    model, method = _Passes(problem.model), getattr(attr, type(problem.request).__name__)
    read, text = _Prompt(prompt, baseline[:1], model.tokenizer), problem.inputs[CONTINUATION][0]
    if problem.layer:
        if isinstance(problem.request, LayerGradientShap):  # Captum's is of tokens that are there, 1, or are not
            options["baselines"] = torch.zeros(len(baseline), prompt.shape[1], device=prompt.device)
        explained = method(model, problem.model.tree[problem.layer])
        return attr.LLMGradientAttribution(explained, model.tokenizer).attribute(read, target=text, **options), False
    if masks := options.pop("feature_mask", ()):
        options["feature_mask"] = masks[0]
    if "forward_in_tokens" in signature(attr.LLMAttribution.attribute).parameters:
        options["forward_in_tokens"] = wrapper.forward_in_tokens
    elif not wrapper.forward_in_tokens:
        raise _inapplicable("has a pass for each token before release 0.9: leave forward_in_tokens out")
    result = attr.LLMAttribution(with_rows_apart(method(model)), model.tokenizer).attribute(
        read, target=text, use_cached_outputs=wrapper.use_cached_outputs, **options
    )
    return result, model.reads_again


class _Prompt(attr.TextTokenInput):  # type: ignore[misc]
    """A prompt as Captum takes it, with a baseline [1, tokens] for each token, and not one for all."""

    def __init__(self, ids: Tensor, baseline: Tensor, tokenizer: Any) -> None:
        known = SimpleNamespace(encode=lambda *_, **__: ids, convert_ids_to_tokens=tokenizer.convert_ids_to_tokens)
        super().__init__("", known)
        self.ids, self.baselines = ids, baseline

    def to_model_input(self, perturbed_tensor: Tensor | None = None) -> Tensor:
        """Returns ids [copies, tokens], those of the baseline where ``perturbed_tensor`` is not 1."""
        return self.ids if perturbed_tensor is None else torch.where(perturbed_tensor == 1, self.ids, self.baselines)


class _Passes:
    """A model of transformers as Captum calls it. Each call is a pass of the request, so that others run in between.

    Attributes:
        tokenizer: its own.
        reads_again: whether a pass read tokens of which the cache had keys and values.
    """

    def __init__(self, model: InspectedModel) -> None:
        self._model = model
        self.tokenizer: Any = cast(Generation, model.generate).tokenizer
        self.reads_again = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model.module, name)

    def __call__(self, input_ids: Tensor) -> Any:
        """Returns what the model does."""
        return self.forward(input_ids)

    def forward(self, input_ids: Tensor, **given: Any) -> Any:
        """Returns what the model does."""
        ids, cache = input_ids, given.get("past_key_values")
        self.reads_again |= cache is not None and cache.get_seq_length() > 0 and ids.shape[1] > 1
        returned: list[Any] = []

        def call(_: dict[str, Any]) -> Any:
            returned.append(self._model.module(input_ids=ids, **given))
            return returned[0].logits

        try:
            self._model.run({"input_ids": ids}, call)
        except CutawayError as failure:
            if failure.reason != Reason.MODEL_FAILED or not self.reads_again:
                raise
            raise spec.inapplicable(f"{_READ_AGAIN.reason}; {failure.message}") from failure
        return returned[0]


_READ_AGAIN = Finding(
    Cause.OTHER_PASSES,
    "with use_cached_outputs=True Captum reads the prompt again for each further token, on top of its keys and values "
    "in the cache: set use_cached_outputs=False, or leave llm_attribution out",
)

_AT_ENDS = Finding(
    Cause.OTHER_PASSES,
    "between two tokens there is nothing, so Captum takes all gradients at the baseline; with several samples, later "
    "tokens of the text are behind its first one, again and again: ask LayerIntegratedGradients",
)

_WRAPPED = (
    FeatureAblation, ShapleyValueSampling, ShapleyValues, Lime, KernelShap, LayerGradientXActivation,
    LayerIntegratedGradients, LayerGradientShap,
)  # fmt: skip
"""The methods that Captum's LLMAttribution and LLMGradientAttribution take."""


def refuse_llm_attribution(
    model: InspectedModel,
    request: Attribution,
    inputs: Inputs,
    explained: Sequence[str],
    baselines: Inputs,
    edits: Changes,
) -> None:
    """Raises for a request that Captum's `LLMAttribution` does not support, before anything runs.

    Raises:
        InvalidArgument: fields are relative to ``llm_attribution``.
    """
    method = type(request).__name__
    if model.generate is None:
        raise _inapplicable("explains what a language model writes, and this model writes no texts")
    if model.generate.encoder:
        raise _inapplicable("reads prompt and text as one, and this model reads by an encoder")
    if not isinstance(request, _WRAPPED):
        taken = ", ".join(kind.__name__ for kind in _WRAPPED)
        raise _inapplicable(f"does not take {method}, but {taken}")
    if edits:
        raise _inapplicable("runs the model as it is: leave the edits out")
    if more := inputs.keys() - TEXT - {CONTINUATION}:
        what = f"explains texts alone, and there is {', '.join(sorted(more))}: leave llm_attribution out"
        raise _inapplicable(f"{what}; with masks, its values are those of Captum's ImageMaskInput")
    prompts, mask = inputs["input_ids"], inputs.get(MASK)
    if len(prompts) != 1 or not (mask is None or bool(mask.all())):
        what = f"explains one prompt without padding, and there are {len(prompts)}: send each in its own request"
        raise _inapplicable(what)
    if baselines and (tuple(explained) != ("input_ids",) or len(baselines["input_ids"].unique(dim=0)) != 1):
        raise _inapplicable("replaces tokens of input_ids alone, in all samples by the same ones")
    if isinstance(request, LayerAttribution) and request.llm_attribution != LLMAttribution():
        raise _inapplicable(f"has a cache for perturbations alone, and {method} has a pass for each token: set nothing")
    if getattr(request, "further_layers", ()):
        raise _inapplicable("explains one layer: leave further_layers out")


def _refuse_noise(_: InspectedModel, request: Any, __: Inputs, ___: Changes) -> None:
    spec.refuse_samples(request.n_samples)
    if request.stdev:
        raise error(Reason.INVALID_VALUE, f"{request.stdev}: noise has no meaning for tokens; leave it out", "stdev")


def _inapplicable(what: str) -> CutawayError:
    return spec.inapplicable(f"Captum's LLMAttribution {what}")
