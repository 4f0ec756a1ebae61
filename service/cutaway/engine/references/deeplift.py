"""DeepLIFT: attributions from the multipliers that flow back to the input, or to a layer's output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from cutaway.contract.requests import Point
from cutaway.contract.results import Cause
from cutaway.engine.hooks.capture_spec import watching
from cutaway.engine.hooks.observe import observing
from cutaway.engine.hooks.recording import RecordedCall
from cutaway.engine.passes.findings import Finding
from cutaway.engine.passes.pass_recorder import AttributionProblem, Pass, Values, cached_per_problem, concatenated
from cutaway.engine.passes.reference_inputs import Evidence, MissingObservation, Reference, host, input_point
from cutaway.engine.passes.targets import ResolvedTarget
from cutaway.engine.references.deeplift_multipliers import NonlinearityCall, RescaledPasses, nonlinearities, run_both
from cutaway.engine.references.modified_backprop import hidden_rectifiers
from cutaway.engine.references.observation import operator_of, reused_neuron_module
from cutaway.engine.runtime.numerics import HALF_OF_BATCH, close


def deeplift_points(problem: AttributionProblem) -> list[Values]:
    """Returns the input, once for each baseline, then the baselines; Captum runs all of them as one batch."""
    return input_point(problem) * len(problem.baseline_points) + problem.baseline_points


def deeplift_passes(problem: AttributionProblem) -> Sequence[Pass]:
    """Runs a pass at the baselines, and one at the input through which multipliers flow back."""
    return rescaled_passes(problem)[:2]


@cached_per_problem
def rescaled_passes(problem: AttributionProblem) -> RescaledPasses:
    """Runs DeepLIFT's two passes, and returns them with what each nonlinearity passed back."""
    return run_both(as_captum_batch(problem), nonlinearities(problem))


def as_captum_batch(problem: AttributionProblem) -> AttributionProblem:
    """Returns ``problem`` with each row repeated for each baseline, and all of these rows twice.

    Captum's batch has the baselines in the second half. The quotients of the Rescale rule are ill-conditioned where
    little changes: only in a batch of the same size do the model's kernels round as in Captum's. The target is that of
    the first half.
    """
    samples, rows = len(problem.baseline_points), problem.rows
    inputs = {name: tensor.repeat_interleave(samples, dim=0) for name, tensor in problem.inputs.items()}
    points = problem.baseline_points
    baselines = {name: torch.stack([x0[name] for x0 in points], dim=1).flatten(0, 1) for name in problem.explained}
    target = problem.target.for_rows(torch.arange(rows, device=problem.model.device).repeat_interleave(samples))

    def first_half(output: Tensor) -> Tensor:
        return target.scalars(output[: samples * rows])

    return replace(
        problem,
        inputs=concatenated([inputs, inputs]),
        baselines=concatenated([baselines, baselines]),
        target=ResolvedTarget(target.source, first_half, is_neuron=target.is_neuron),
    )


def deeplift(evidence: Evidence) -> Reference:
    """Returns the mean over the baselines ``x0`` of ``(x - x0) * multiplier``.

    For a layer ``x`` is its output. Shrikumar et al. 2017, arXiv:1704.02685; several baselines (DeepLiftShap): Lundberg
    and Lee 2017, arXiv:1705.07874.

    Raises:
        MissingObservation: also if the layer returns other shapes for the baseline, or axis 0 is not the batch.
    """
    problem = evidence.problem
    before, now = (Evidence(problem, [recorded], evidence.call) for recorded in evidence.passes)
    starts, ends = (
        side.layer(Point.OUTPUT) if problem.layer else {name: host(x) for name, x in side.passes[0].points.items()}
        for side in (before, now)
    )
    values, terms = {}, {}
    for name, multiplier in now.explained_gradients().items():
        if {ends[name].shape, starts[name].shape} != {multiplier.shape}:
            raise MissingObservation(
                f"the layer {problem.layer!r} returns other tensors for the baseline than for the input"
            )
        values[name] = _mean(problem, (ends[name] - starts[name]) * multiplier)
        terms[name] = _mean(problem, (ends[name].abs() + starts[name].abs()) * multiplier.abs())
    return Reference(values, terms)


def _mean(
    problem: AttributionProblem, batch: Float64[Tensor, "captum_rows *features"]
) -> Float64[Tensor, "rows *features"]:
    """Returns the mean over baselines in the first half of [2 * rows * baselines, *features]: [rows, *features].

    A layer may have several rows for each example.
    """
    half, samples = batch[: len(batch) // 2], len(problem.baseline_points)
    if 2 * len(half) != len(batch) or len(half) % samples:
        raise MissingObservation(f"axis 0 of what the layer {problem.layer!r} returns is not the batch")
    return half.reshape(-1, samples, *half.shape[1:]).mean(dim=1)


# Limitations of Captum's DeepLIFT: models for which it leaves out or mixes contributions.


@cached_per_problem
def limitation(problem: AttributionProblem) -> Finding | None:
    """Reports the first property of the model for which Captum's result is wrong."""
    return reused_neuron_module(problem) or next(_findings(problem), None)


class _Fault(NamedTuple):
    """A property of a nonlinearity's call for which Captum's result is wrong.

    Attributes:
        cause: for programs.
        concerns: whether a call has it.
        reason: for people: a format of ``call``, the first that has it, and of ``names``, of up to three that have.
    """

    cause: Cause
    concerns: Callable[[NonlinearityCall], bool]
    reason: str


_REUSED = _Fault(
    Cause.MODULE_REUSED,
    lambda call: call.number + 1 < call.times,
    "the module {call.name!r} is called {call.times} times in one forward pass, and Captum keeps the input and output "
    "of the last call only: build the model with a module for each call",
)
_UNDEFINED = _Fault(
    Cause.NOT_FINITE,
    lambda call: call.divides_zeros,
    "the model computes in float16, where the 1e-10 that Captum compares with is 0: it divides 0 by 0 at "
    "{call.name!r}, where input and baseline are the same; load the model in another data type",
)
_MIXING = (
    _Fault(
        Cause.OVERRIDE_LOST,
        lambda call: bool(call.previous_module),
        "{call.name!r} takes the very tensor that {call.previous_module!r} returns, and Captum reads the gradient for "
        "{call.previous_module!r} before it overrides it for {call.name!r}: pass a copy, x.clone(), from one to the "
        "other",
    ),
    _Fault(
        Cause.OVERRIDE_LOST,
        lambda call: call.is_bypassed,
        "the input of {names} is also used elsewhere (a skip connection?), and Captum overrides the gradient of both "
        "uses at once: pass a copy, x.clone(), to the module",
    ),
    _Fault(
        Cause.OVERRIDE_LOST,
        lambda call: call.shares_maxima,
        "windows of {call.name!r} overlap and share a maximum, for which Captum keeps one window's part only: build "
        "the model with stride = kernel_size, or explain a layer behind",
    ),
)


def _findings(problem: AttributionProblem) -> Iterator[Finding]:
    passes = rescaled_passes(problem)
    calls = [call for call in passes.calls if call.has_effect]
    modules = [call for call in calls if call.nonlinearity.is_module]
    yield from _faults(modules, _REUSED)
    operators = [call.name for call in calls if not call.nonlinearity.is_module]
    yield from _operators(operators or hidden_rectifiers(problem))
    yield from _faults([call for call in passes.calls if call.nonlinearity.is_module], _UNDEFINED)
    yield from _faults(modules, *_MIXING)
    yield from _coupled(problem, modules)


def _faults(calls: Sequence[NonlinearityCall], *faults: _Fault) -> Iterator[Finding]:
    for cause, concerns, reason in faults:
        if concerned := [call for call in calls if concerns(call)]:
            names = dict.fromkeys(repr(call.name) for call in concerned)
            yield Finding(cause, reason.format(call=concerned[0], names=", ".join([*names][:3])))


def _operators(addresses: Sequence[str]) -> Iterator[Finding]:
    names = list(dict.fromkeys(addresses))
    if names:
        operators = dict.fromkeys(operator_of(name) or "a rectifier" for name in names)
        yield Finding(
            Cause.FUNCTIONAL_NONLINEARITY,
            f"{', '.join(operators)} at {', '.join(names[:3])}: Captum has the Rescale rule for "
            "certain modules only, and differentiates this as it is: build the model with nn.ReLU, nn.ELU, "
            "nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Softmax or nn.MaxPool modules, one for each call",
        )


def _coupled(problem: AttributionProblem, modules: Sequence[NonlinearityCall]) -> Iterator[Finding]:
    """Reports activations that depend on whether inputs and baselines run as one batch, as in Captum, or alone."""
    passes = rescaled_passes(problem)
    names = [call.name for call in modules] + ([problem.layer] if problem.layer else [])
    sites = dict.fromkeys(names, watching(Point.INPUT, Point.OUTPUT))
    batch = as_captum_batch(problem)
    baselines, rows = {**batch.inputs, **batch.baselines}, batch.rows // 2
    inputs = {name: torch.cat([tensor[:rows], baselines[name][rows:]]) for name, tensor in batch.inputs.items()}
    tree = problem.model.tree
    with torch.no_grad(), problem.model.kept_rng_state(), observing(tree, sites) as recording, recording.forward():
        output = problem.read(inputs)
    coupled = [call.name for call in modules if not _is_same_call(call, recording.calls[call.name])]
    if problem.layer and not _is_same_layer(passes, recording.calls[problem.layer]):
        coupled.append(problem.layer)
    if coupled or not _is_made_of(host(output), host(passes.at_input.output), host(passes.at_baseline.output)):
        yield Finding(
            Cause.ROWS_COUPLED,
            "Captum runs inputs and baselines as one batch and halves it along axis 0; the values there are not "
            f"those of inputs and baselines alone{f' at {coupled[0]!r}' if coupled else ''}: rows of the model depend "
            "on each other, or are on another axis; let each row depend on itself alone, along axis 0",
        )


def _is_same_layer(passes: RescaledPasses, calls: Sequence[RecordedCall]) -> bool:
    sides = [side[0].at(Point.OUTPUT) for side in (calls, passes.at_input.layer, passes.at_baseline.layer) if side]
    if len(sides) < 3 or not sides[0].keys() == sides[1].keys() == sides[2].keys():
        return False
    return all(_is_made_of(*(host(side[path]) for side in sides)) for path in sides[0])


def _is_same_call(call: NonlinearityCall, calls: Sequence[RecordedCall]) -> bool:
    paths, activations = call.paths, call.activations
    if activations is None or len(calls) <= call.number:
        return False
    inputs, outputs = (calls[call.number].at(point) for point in (Point.INPUT, Point.OUTPUT))
    return (
        paths.input in inputs
        and paths.output in outputs
        and _is_made_of(host(inputs[paths.input]), activations.input, activations.baseline_input)
        and _is_made_of(host(outputs[paths.output]), activations.output, activations.baseline_output)
    )


def _is_made_of(batch: Tensor, at_input: Tensor, at_baseline: Tensor) -> bool:
    """Returns whether the halves of ``batch`` are those of ``at_input`` and of ``at_baseline``."""
    if not batch.shape == at_input.shape == at_baseline.shape or not batch.ndim:
        return False
    half = len(batch) // 2
    return close(at_input[:half], batch[:half], HALF_OF_BATCH) and close(
        at_baseline[half:], batch[half:], HALF_OF_BATCH
    )
