"""Answers a question that was asked before: with hooks for just its places, and what its first answer said.

The general way leaves a `Repeated` behind its first answer to a question that has a main pass and nothing else. It
serves for inputs of the same types and shapes. Where the model does otherwise than at first, the general way answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import fields
from operator import attrgetter

import torch
from torch import Tensor

from cutaway.contract import requests
from cutaway.contract.errors import at
from cutaway.contract.requests import Point
from cutaway.contract.results import CapturedCall, InspectResult, ModuleCapture, Timings
from cutaway.contract.values import changed
from cutaway.engine.checks.row_independence import dependence_warnings
from cutaway.engine.execution.collect import arrays
from cutaway.engine.execution.main_pass import MainPass, may_share
from cutaway.engine.execution.value_warnings import value_warnings
from cutaway.engine.hooks.capture_spec import CaptureSpec
from cutaway.engine.hooks.observe import keeping_outputs
from cutaway.engine.hooks.operators import is_address
from cutaway.engine.hooks.recording import Recording
from cutaway.engine.model.inspected_model import Inputs, InspectedModel, Outputs, elements, gradients
from cutaway.engine.model.session import NEVER_CANCELLED, Cancellation, ran_out_of_memory, timed
from cutaway.engine.passes.pass_recorder import Values
from cutaway.engine.passes.targets import resolve_for_output
from cutaway.engine.planning.plan import MOST_PLACES, MOST_RECENT, RequestPlan
from cutaway.engine.runtime.numerics import dense, one_thread, to_numpy

_parts: Callable[[requests.InspectRequest], tuple[object, ...]] = attrgetter(
    *(field.name for field in fields(requests.InspectRequest) if field.name not in (*requests.INPUT_FIELDS, "target"))
)


def identity(request: requests.InspectRequest) -> Hashable:
    """Returns the identities of the parts of ``request``, without its inputs. Requests with equal ones ask the same.

    The decoder returns the same object for equal parts of requests, so that no comparison by value is needed.
    """
    target = request.target
    return target if isinstance(target, requests.ClassIndex) else id(target), *map(id, _parts(request))


def planned_before(
    model: InspectedModel, request: requests.InspectRequest, inputs: Inputs, cancellation: Cancellation
) -> RequestPlan | None:
    """Returns the plan of a question that was asked before, about other ``inputs``; None for one that was not."""
    known: RequestPlan | None = model.recent.get((_PLAN, _question(request, inputs)))
    return None if known is None else changed(known, request=request, inputs=inputs, cancellation=cancellation)


def kept_plan(plan: RequestPlan, request: requests.InspectRequest) -> RequestPlan:
    """Returns ``plan``; keeps it for `planned_before` if it asks no more and no less than ``request``."""
    if _is_plain(plan) and identity(plan.request) == identity(request):
        _keep(plan.model, (_PLAN, _question(request, plan.inputs)), _without_input(plan))
    return plan


_PLAN = "plan"


def _question(request: requests.InspectRequest, inputs: Inputs) -> Hashable:
    """Returns what questions have in common that ask the same about inputs of the same types and shapes."""
    return identity(request), *((name, tensor.shape, tensor.dtype) for name, tensor in inputs.items())


def _without_input(plan: RequestPlan) -> RequestPlan:
    return changed(plan, request=plan.request.with_input(), inputs={}, parts=(), cancellation=NEVER_CANCELLED)


def _keep(model: InspectedModel, key: Hashable, value: object) -> None:
    if len(model.recent) >= MOST_RECENT:
        model.recent.clear()
    model.recent[key] = value


def answered_again(plan: RequestPlan) -> InspectResult | None:
    """Returns the result of a question that was asked before; None where the general way has to answer."""
    known: Repeated | None = plan.model.recent.get(_question(plan.request, plan.inputs))
    if known is None or known.is_unlike or plan.listener is not None:
        return None
    result = known.answer(plan)
    if result is None:
        known.is_unlike = True  # or each such request would run the model twice
        plan.model.passes.reset()
    return result


def remembered(main: MainPass, result: InspectResult) -> InspectResult:
    """Returns ``result``; keeps what the next answers to its question need, if they may be given so."""
    plan, model = main.plan, main.plan.model
    key = _question(plan.request, plan.inputs)
    if key not in model.recent and _is_plain(plan) and not result.warnings and _is_whole(main):
        _keep(model, key, Repeated(main, result))
    return result


def _is_plain(plan: RequestPlan) -> bool:
    """Returns whether a main pass on a CPU is all that ``plan`` is about, with outputs of modules as they are."""
    request, model = plan.request, plan.model
    is_more = plan.attributions or plan.failed or plan.parameters or plan.unread or plan.unasked
    return (
        not (is_more or request.explain_if or model.takes_any_name)
        and model.device.type == "cpu"
        and plan.missing is None
        and plan.listener is None
        and len(plan.sites) <= MOST_PLACES
        and may_share(request)
        and all(specs in _OUTPUTS and not is_address(name) for name, specs in plan.sites.items())
    )


_OUTPUTS = tuple({Point.OUTPUT: CaptureSpec(call=call)} for call in (None, 0))


def _is_whole(main: MainPass) -> bool:
    """Returns whether each module was called once and returned one tensor, and all gradients arrived."""
    return main.plan.gradients_of == tuple(main.input_gradients) and all(
        len(calls := main.recording.calls[name]) == 1 and [place for *place, _ in calls[0].entries()] == _ONLY
        and not calls[0].without_array
        for name in main.plan.sites
    )  # fmt: skip


_ONLY = [[Point.OUTPUT, ""]]


class Repeated:
    """A prepared answer, which the first answer to a question leaves.

    Args:
        main: its main pass.
        result: the answer.

    Attributes:
        plan: the plan of the question, without inputs, whose parts are its key.
        is_unlike: whether the model did otherwise later.
    """

    def __init__(self, main: MainPass, result: InspectResult) -> None:
        plan, self.is_unlike = main.plan, False
        self.plan = _without_input(plan)
        self._needs_target, self._differentiates = plan.needs_target, plan.differentiates
        self._source = main.targets[0].source if main.targets else ""
        self._batch, self._outputs = main.batch, [*_kinds(main.outputs).items()]  # the first one may be explained
        self._modules = {name: plan.model.tree.modules[name] for name in plan.sites}
        self._captured = _kinds({name: main.recording.calls[name][0].at(Point.OUTPUT)[""] for name in plan.sites})
        self._said = changed(
            result, predictions={}, classes=(), targets=None, target_values=None, captures={}, input_gradients={}
        )

    def answer(self, plan: RequestPlan) -> InspectResult | None:
        """Returns the result of ``plan``; None if the model did otherwise than at first, or ran out of memory."""
        timings, leaves = Timings(), {name: plan.inputs[name].detach().requires_grad_() for name in plan.gradients_of}
        try:
            with timed(timings, "forward_ms"):
                seen, outputs = self._run(plan, {**plan.inputs, **leaves})
            if _kinds(seen) != self._captured or [*_kinds(outputs).items()] != self._outputs:
                return None
            main = MainPass(plan, Recording(), timings, outputs, {}, self._batch)
            if self._needs_target:
                main = self._with_target(main)
            if leaves:
                with timed(timings, "backward_ms"):
                    arrived = _gradients(main, leaves)
                if arrived is None:
                    return None
                main = main._replace(input_gradients=arrived)
        except Exception as failure:
            if ran_out_of_memory(failure):
                return None
            raise
        return self._result(main, seen)

    def _run(self, plan: RequestPlan, inputs: Inputs) -> tuple[dict[str, Tensor | None], Outputs]:
        """Returns copies of what the modules returned, None for what no prepared answer has, and the outputs."""
        with keeping_outputs(self._modules) as seen, torch.set_grad_enabled(self._differentiates):
            return seen, plan.model.run(inputs)

    def _with_target(self, main: MainPass) -> MainPass:
        plan, source = main.plan, main.outputs[self._source]
        with at("target"):
            targets = resolve_for_output(plan.request.target, self._source, source, self._batch.rows, plan.model)
        return main._replace(targets=targets, source=source)

    def _result(self, main: MainPass, seen: Mapping[str, Tensor | None]) -> InspectResult:
        plan = main.plan
        outputs = {name: output.detach().clone() for name, output in main.outputs.items()}
        source = next((copy for name, copy in outputs.items() if main.outputs[name] is main.source), None)
        main = main._replace(outputs=outputs, source=source)
        done = plan.model.passes
        classes, values, shows = main.target_classes, main.target_values, not plan.request.omit_predictions
        return changed(
            self._said,
            predictions=arrays(outputs) if shows else {},
            classes=main.predictions if shows else (),
            targets=None if classes is None else to_numpy(classes),
            target_values=None if values is None else to_numpy(values),
            captures={  # in the order of the request
                name: ModuleCapture((CapturedCall({Point.OUTPUT: {"": to_numpy(tensor)}}, {}),))
                for name in self._captured
                if (tensor := seen[name]) is not None
            },
            input_gradients=arrays(main.input_gradients),
            warnings=(*value_warnings(main, values), *dependence_warnings(plan.model, plan.inputs)),
            provenance=changed(
                self._said.provenance, seed=plan.seed or 0, forwards=done.forwards, backwards=done.backwards
            ),
            timings=main.timings,
        )


_SHORT_MS, _LITTLE, _MEASURED, _LONG_S = 2.0, 1.25, 10, 0.05


def find_short_passes(model: InspectedModel, example: Callable[[], Inputs | None]) -> None:
    """Finds by an ``example`` up to what size of inputs passes run in one thread, from the model's first request on.

    The model is alone in its process, whose setting this is. Several threads save little of a short pass, and those
    that wait for work take a core from the gateway. Numbers may depend on the threads, so nothing decides anew later.
    """
    with suppress(Exception):  # of the example: a request for it gets the same error
        inputs = example() if model.device.type == "cpu" and torch.get_num_threads() > 1 else None
        if inputs is not None:
            with model.session(), model.unrecorded(), torch.no_grad():
                model.short_elements = int(elements(inputs) * _short_share(model, inputs))


def _short_share(model: InspectedModel, inputs: Inputs) -> float:
    """Returns how many passes of ``inputs`` take one thread a short time; 0 if several threads are better for one."""
    if (several_ms := _fastest_ms(model, inputs)) > _SHORT_MS:
        return 0.0
    with one_thread():
        one_ms = _fastest_ms(model, inputs)
    return _SHORT_MS / one_ms if one_ms < _LITTLE * several_ms else 0.0


def _fastest_ms(model: InspectedModel, inputs: Inputs) -> float:
    """Returns the time of the fastest of some passes; of the first one, if that is long."""
    durations = list[float]()
    while len(durations) < _MEASURED and sum(durations) < _LONG_S:
        start = time.perf_counter()
        model.run(inputs)
        durations.append(time.perf_counter() - start)
    return min(durations) * 1000


def in_few_threads(plans: Collection[RequestPlan]) -> AbstractContextManager[None]:
    """Returns the context of ``plans``: one thread if they have main passes alone, short ones; see
    `find_short_passes`."""
    model = next((plan.model for plan in plans), None)
    is_short = model is not None and sum(elements(plan.inputs) for plan in plans) <= model.short_elements
    if model is None or not is_short or not all(map(_is_plain, plans)):
        return nullcontext()
    return _in_one_thread(model)


@contextmanager
def _in_one_thread(model: InspectedModel) -> Iterator[None]:
    with model.undivided(), one_thread():  # others between its passes would have one thread too
        yield


def _gradients(main: MainPass, leaves: Values) -> Values | None:
    """Returns the gradients at ``leaves``; None if one does not arrive, which is an error or a warning."""
    if main.source is None or not main.source.requires_grad:
        return None
    (target,) = main.targets
    arrived = {
        name: dense(gradient)
        for name, gradient in zip(leaves, gradients(target.scalars(main.source), [*leaves.values()]))
        if gradient is not None
    }
    return arrived if len(arrived) == len(leaves) else None


def _kinds(tensors: Mapping[str, Tensor | None]) -> dict[str, tuple[torch.Size, torch.dtype] | None]:
    return {name: None if tensor is None else (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
