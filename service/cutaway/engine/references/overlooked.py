"""What DeepLIFT says of a model that Captum does not: what its answer leaves out, or mixes, and where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from cutaway.engine.evidence import host
from cutaway.engine.finding import Finding
from cutaway.engine.hooks import observing
from cutaway.engine.references import neurons
from cutaway.engine.references.deeplift import rescaling, spread
from cutaway.engine.references.multipliers import Flow, Rescaled
from cutaway.engine.references.rescale import normalise, softmax_axis, unpool
from cutaway.engine.seen import Call
from cutaway.engine.wishes import watching
from cutaway.engine.witness import Question, once
from cutaway.requests import NeuronAttribution, Point
from cutaway.results import Cause

_ROUNDINGS = 1024
"""How many units of rounding a batch of another size may be off."""


@once
def overlooked(question: Question) -> Finding | None:
    """The first that applies."""
    seen = rescaling(question)
    flows = [flow for flow in seen.flows if flow.matters]
    of_neuron = neurons.reused(question) if isinstance(question.request, NeuronAttribution) else None
    return next((found for found in (of_neuron, *_findings(question, seen, flows)) if found is not None), None)


def _findings(question: Question, seen: Rescaled, flows: Sequence[Flow]) -> Iterator[Finding | None]:
    yield _reused(flows)
    yield _unknown(flows)
    yield _undefined(seen.flows)
    yield _behind_another(flows)
    yield _bypassed(flows)
    yield _sharing_maxima(flows)
    yield _mixed_by_softmax(flows)
    yield _not_apart(question, seen, flows)


def _reused(flows: Sequence[Flow]) -> Finding | None:
    for flow in flows:
        times = len(flow.place.calls)
        if flow.place.is_module and flow.call + 1 < times:
            return Finding(
                Cause.MODULE_REUSED,
                f"the module {flow.place.name!r} is called {times} times in one forward, and Captum keeps what went "
                "in and out of the last call only: build the model with a module for each call",
            )
    return None


def _unknown(flows: Sequence[Flow]) -> Finding | None:
    names = list(dict.fromkeys(flow.place.name for flow in flows if not flow.place.is_module))
    if not names:
        return None
    kinds = ", ".join(dict.fromkeys(flow.place.operator for flow in flows if not flow.place.is_module))
    return Finding(
        Cause.FUNCTIONAL_NONLINEARITY,
        f"{kinds} at {', '.join(names[:3])}: Captum has the Rescale rule for modules of its own list only, and "
        "differentiates this as it is: build the model with nn.ReLU, nn.ELU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, "
        "nn.Softplus, nn.Softmax or nn.MaxPool modules, one for each place",
    )


def _undefined(flows: Sequence[Flow]) -> Finding | None:
    for flow in flows:
        still = flow.ends is not None and bool((flow.ends.change_in == 0).any())
        if flow.place.is_module and flow.dtype is torch.float16 and still:
            return Finding(
                Cause.NOT_FINITE,
                f"the model computes in float16, where the 1e-10 that Captum compares with is 0: it divides 0 by 0 at "
                f"{flow.place.name!r}, where input and baseline are the same; load the model in another data type",
            )
    return None


def _behind_another(flows: Sequence[Flow]) -> Finding | None:
    for flow in flows:
        if flow.place.is_module and flow.behind:
            return Finding(
                Cause.OVERRIDE_LOST,
                f"{flow.place.name!r} takes the very tensor that {flow.behind!r} returns, and Captum reads the "
                f"gradient for {flow.behind!r} before it overrides it for {flow.place.name!r}: let the model hand on a "
                "copy, x.clone(), in between",
            )
    return None


def _bypassed(flows: Sequence[Flow]) -> Finding | None:
    names = list(dict.fromkeys(flow.place.name for flow in flows if flow.place.is_module and flow.is_bypassed))
    if not names:
        return None
    return Finding(
        Cause.OVERRIDE_LOST,
        f"what {', '.join(map(repr, names[:3]))} takes is also used beside it (a skip connection?), and Captum "
        "overrides the gradient of both ways at once: let the model hand it a copy, x.clone()",
    )


def _sharing_maxima(flows: Sequence[Flow]) -> Finding | None:
    for flow in flows:
        if flow.place.is_module and flow.place.rule is unpool and flow.shares_maxima:
            return Finding(
                Cause.OVERRIDE_LOST,
                f"windows of {flow.place.name!r} overlap and share a maximum, for which Captum keeps one window's part "
                "and loses the others': build the model with stride = kernel_size, or explain a layer behind",
            )
    return None


def _mixed_by_softmax(flows: Sequence[Flow]) -> Finding | None:
    for flow in flows:
        if flow.place.is_module and flow.place.rule is normalise and flow.ends is not None:
            returned = flow.ends.returned
            if returned.numel() > 2 * returned.shape[softmax_axis(returned)]:  # rows are there twice
                return Finding(
                    Cause.ROWS_COUPLED,
                    f"Captum normalises the softmax {flow.place.name!r} over all rows, samples and axes at once, and "
                    "so mixes them: explain the logits instead, or one example with one baseline",
                )
    return None


def _not_apart(question: Question, seen: Rescaled, flows: Sequence[Flow]) -> Finding | None:
    """Whether inputs and baselines, run as one batch as Captum does, are what they are alone."""
    mine = [flow for flow in flows if flow.place.is_module]
    taps = {name: watching(Point.INPUT, Point.OUTPUT) for name in (*(flow.place.name for flow in mine), question.layer)}
    taps.pop("", None)
    ends = spread(question)
    starts, rows = {**ends.inputs, **ends.baselines}, ends.rows // 2
    together = {name: torch.cat([tensor[:rows], starts[name][rows:]]) for name, tensor in ends.inputs.items()}
    with torch.no_grad(), question.subject.dice(), observing(question.subject.tree, taps) as found, found.forward():
        output = question.read(together)
    alone = (seen.at_input.output, seen.at_baseline.output)
    mixed = [flow.place.name for flow in mine if not _same_call(flow, found.calls[flow.place.name])]
    if question.layer and not _same_layer(seen, found.calls[question.layer]):
        mixed.append(question.layer)
    if not mixed and _halves_are(host(output), *map(host, alone)):
        return None
    return Finding(
        Cause.ROWS_COUPLED,
        "Captum runs inputs and baselines as one batch and halves it along axis 0; there they are not what they are "
        f"alone{f' at {mixed[0]!r}' if mixed else ''}: rows of the model depend on each other, or lie along another "
        "axis; let each row depend on itself alone, along axis 0",
    )


def _same_layer(seen: Rescaled, calls: Sequence[Call]) -> bool:
    sides = [each[0].at(Point.OUTPUT) for each in (calls, seen.at_input.layer, seen.at_baseline.layer) if each]
    if len(sides) < 3 or not sides[0].keys() == sides[1].keys() == sides[2].keys():
        return False
    return all(_halves_are(*(host(side[path]) for side in sides)) for path in sides[0])


def _same_call(flow: Flow, calls: Sequence[Call]) -> bool:
    port = flow.place.calls[flow.call]
    if flow.ends is None or len(calls) <= flow.call:
        return False
    call = calls[flow.call]
    taken, returned = (call.at(point) for point in (Point.INPUT, Point.OUTPUT))
    return (
        port.taken in taken
        and port.returned in returned
        and _halves_are(host(taken[port.taken]), flow.ends.taken, flow.ends.taken_before)
        and _halves_are(host(returned[port.returned]), flow.ends.returned, flow.ends.returned_before)
    )


def _halves_are(whole: Tensor, ends: Tensor, starts: Tensor) -> bool:
    """Whether the first half is that of ``ends``, and the second that of ``starts``."""
    if not whole.shape == ends.shape == starts.shape or not whole.ndim:
        return False
    half = len(whole) // 2
    return _alike(whole[:half], ends[:half]) and _alike(whole[half:], starts[half:])


def _alike(one: Tensor, other: Tensor) -> bool:
    scale = float(other.abs().max()) if other.numel() else 0.0
    return torch.allclose(one, other, rtol=0, atol=_ROUNDINGS * torch.finfo(torch.float32).eps * scale, equal_nan=True)
