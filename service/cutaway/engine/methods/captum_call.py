"""The table of attribution methods, and the calls of Captum's attributions and attacks."""

from __future__ import annotations

import importlib
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from captum import attr, robust
from torch import Tensor, nn

from cutaway.contract import requests
from cutaway.contract.errors import CutawayError, Reason, at, error
from cutaway.engine.methods import deeplift, gradients, lrp, neurons, perturbations, spec
from cutaway.engine.methods.captum_patches import quicker_captum, with_rows_apart, with_single_root
from cutaway.engine.methods.wrappers import captum_tunnel, llm_values, with_llm_attribution, with_noise_tunnel
from cutaway.engine.model.inspected_model import Inputs, InspectedModel
from cutaway.engine.model.session import is_out_of_memory
from cutaway.engine.passes.pass_memory import SharedPasses
from cutaway.engine.passes.pass_recorder import (
    AttributionProblem,
    ResolvedAttribution,
    Values,
)
from cutaway.engine.passes.reference_inputs import layer_value_name
from cutaway.engine.passes.targets import neuron_selector
from cutaway.engine.references.observation import module_calls
from cutaway.engine.runtime.numerics import dense, has_array
from cutaway.engine.runtime.rng import LARGEST_SEED, seeded

# Captum tells whoever calls it about its hooks; nobody here does, and a server in a notebook would show it in red.
warnings.filterwarnings("ignore", "Setting (forward, )?backward hooks", UserWarning)

# The table of attribution methods: a new method is a new row, in the file of its family.

_FAMILIES = (gradients, perturbations, neurons, deeplift, lrp)

TABLE: dict[type[requests.Attribution], spec.Method] = {
    kind: row for family in _FAMILIES for kind, row in family.ROWS.items()
}


def method_of(request: requests.Attribution) -> spec.Method:
    """Returns the row of ``request``, inside the class of Captum that wraps it if the request has one."""
    method = TABLE[type(request)]
    if request.llm_attribution is not None:
        return with_llm_attribution(method)
    return method if request.noise is None else with_noise_tunnel(method, request.noise)


def shares_passes(attribution: ResolvedAttribution) -> bool:
    """Returns whether several targets of ``attribution`` share Captum's passes: none has a gradient, or a hook. Captum
    explains all tokens of a text at once."""
    is_plain = method_of(attribution.request).forward_only and not attribution.modules
    return is_plain or attribution.request.llm_attribution is not None


def with_shared_passes(attribution: ResolvedAttribution, targets: int) -> ResolvedAttribution:
    """Returns ``attribution`` with passes that its ``targets`` share, if there are several and they can."""
    is_shared = targets > 1 and shares_passes(attribution)
    return replace(attribution, shared=SharedPasses()) if is_shared else attribution


def explain(problem: AttributionProblem, forward: Callable[..., Tensor]) -> Values:
    """Returns Captum's attributions.

    Args:
        problem: the attribution problem.
        forward: runs the model on the explained inputs, then the others; returns the tensor with the target.

    Raises:
        InvalidArgument: ``METHOD_INAPPLICABLE``: Captum cannot apply the method to this model or input.
        FailedPrecondition: ``NOT_DIFFERENTIABLE``: no gradient connects the target with the input or layer.
    """
    method = method_of(problem.request)
    layer: tuple[Any, ...] = (problem.model.tree[problem.module],) if problem.module else ()
    if problem.further_layers:
        layer = ([problem.model.tree[name] for name in problem.layers],)
    options = method.attribute_arguments(problem)
    import_apart(method.imports, problem.model)
    latest: list[Tensor] = []

    def run(*tensors: Tensor) -> Tensor:
        latest[:] = [tensor.detach() for tensor in tensors]
        return forward(*tensors)

    called: Callable[..., Tensor] = run
    if isinstance(problem.request, requests.NeuronAttribution):
        options["neuron_selector"] = _neuron_selector(problem, problem.request)
    if method.has_target and method.takes_target and (target := problem.target.captum_target) is not None:
        options["target"] = target
    elif method.has_target:  # Captum's targets are elements of an output; for others it gets the scalar

        def called(*tensors: Tensor) -> Tensor:
            return problem.target.scalars(run(*tensors))

    with (
        _translated_errors(problem, latest),
        # Captum keeps state of its own on modules that it hooks.
        problem.model.undivided() if method.applies_to_modules else nullcontext(),
        method.model_context(problem),
        quicker_captum(),
        drawing(problem),
        problem.shared.used() if problem.shared else nullcontext(),
    ):
        if problem.request.llm_attribution is not None:
            with at("llm_attribution"):
                return _named(problem, llm_values(problem, problem.request.llm_attribution, **options))
        if method.applies_to_modules:
            called = _Module(problem.model.module, called)
        captum = getattr(attr, type(problem.request).__name__)
        explainer = with_rows_apart(with_single_root(captum(called, *layer, **method.init_arguments(problem.request))))
        if problem.request.noise is not None:
            explainer = captum_tunnel(explainer)
        additional = problem.additional_inputs or None
        result = explainer.attribute(_leaves(problem), additional_forward_args=additional, **options)
    return _named(problem, result)


def import_apart(names: Sequence[str], model: InspectedModel) -> None:
    """Imports modules while other requests run: Captum would do it between two passes, and take a second."""
    if all(name in sys.modules for name in names):
        return
    with model.kept_rng_state():  # scikit-learn imports it, and it draws random numbers, which others draw meanwhile
        importlib.import_module("rich.default_styles")
    with model.apart():
        for name in names:
            importlib.import_module(name)


def _neuron_selector(problem: AttributionProblem, request: requests.NeuronAttribution) -> tuple[slice | int, ...]:
    calls = module_calls(problem) if request.neuron.slices else ()
    output = next(iter(calls[-1].at(requests.Point.OUTPUT).values())) if calls else None
    return request.neuron.index if output is None else neuron_selector(request.neuron, output)


@contextmanager
def drawing(problem: AttributionProblem) -> Iterator[None]:
    """Seeds what Captum draws in the block, if it draws.

    It draws between the model's passes. Passes of a model that draws too do not advance the generators, and get numbers
    of another seed: equal numbers would not be independent of Captum's.
    """
    if problem.seed is None:
        yield
        return
    model, of_model = problem.model, (problem.seed + 1) & LARGEST_SEED
    with seeded(problem.seed, model.device), model.drawing_from(of_model, beside_draws=True):
        yield


def _leaves(problem: AttributionProblem) -> tuple[Tensor, ...]:
    """Returns copies of the explained inputs, which require gradients if the method uses any."""
    leaves = tuple(tensor.detach().clone() for tensor in problem.arguments)
    for tensor in leaves:
        if tensor.is_floating_point() and not method_of(problem.request).forward_only:
            tensor.requires_grad_()
    return leaves


class _Module(nn.Module):
    """A module that calls ``forward``, for methods of Captum that hook the modules inside ``model``."""

    def __init__(self, model: nn.Module, forward: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model = model
        self._function = forward

    def forward(self, *tensors: Tensor) -> Tensor:
        """Returns the result of the function."""
        return self._function(*tensors)


def _named(problem: AttributionProblem, result: Any) -> Values:
    """Returns Captum's result by name: by explained input, or by layer and the number of the tensor in its output."""
    if problem.further_layers:
        by_layer = (_named(replace(problem, layer=name, further_layers=()), of_layer)
                for name, of_layer in zip(problem.layers, result))  # fmt: skip
        return {name: tensor for values in by_layer for name, tensor in values.items()}
    several = isinstance(result, (tuple, list))
    tensors = [_array(problem, tensor.detach()) for tensor in (result if several else (result,))]
    if not isinstance(problem.request, requests.LayerAttribution):
        _refuse_empty(problem, tensors)
        return dict(zip(problem.explained, tensors))
    paths = [f"[{index}]" for index in range(len(tensors))] if several else [""]
    return {layer_value_name(problem.layer, path): tensor for path, tensor in zip(paths, tensors)}


def _array(problem: AttributionProblem, values: Tensor) -> Tensor:
    if not has_array(values):
        with at(spec.module_field(problem)):
            raise spec.unreadable(problem, "a nested tensor")
    return dense(values)


def _refuse_empty(problem: AttributionProblem, tensors: Sequence[Tensor]) -> None:
    """Raises where Guided Grad-CAM returns nothing, with a warning: a layer's map cannot be scaled to an input."""
    for name, tensor in zip(problem.explained, tensors):
        if not tensor.numel() and problem.inputs[name].numel():
            raise error(
                Reason.METHOD_INAPPLICABLE,
                f"the output of {problem.layer!r} cannot be scaled to the input {name!r}, of shape "
                f"{list(problem.inputs[name].shape)}: both need the same axes behind batch and channels",
            )


@contextmanager
def _translated_errors(problem: AttributionProblem, latest: list[Tensor]) -> Iterator[None]:
    """Translates the errors of Captum's call; ``latest``: what it ran the model on last."""
    method = type(problem.request).__name__
    where = f"the layer {problem.layer!r}" if problem.layer else f"the input {', '.join(problem.explained)}"
    try:
        yield
    except CutawayError as failure:
        if spec.met_no_tensor(problem, failure):
            with at(spec.module_field(problem)):
                raise spec.unreadable(problem, "something besides a tensor") from failure
        if failure.reason != Reason.MODEL_FAILED or _fails_alone(problem, latest):
            raise
        if "leaf Variable that requires grad" not in failure.message:
            text = f"under its hooks {failure.message}"
            raise _inapplicable(problem, f"Captum's {method} cannot be applied to {where}: {text}") from failure
        raise error(
            Reason.METHOD_INAPPLICABLE,
            f"Captum's {method} replaces the output of {where}, which the model then changes in place: explain the "
            "module that does so, or build it with inplace=False",
        ) from failure
    except Exception as failure:
        if is_out_of_memory(failure):
            raise
        if _has_no_gradient(text := first_line(failure)):
            several, remedy = _unreached(problem)
            raise error(
                Reason.NOT_DIFFERENTIABLE,
                f"{method}: {_explained(problem)} does not depend on {several or where} through differentiable "
                f"operations{remedy}",
            ) from failure
        if text.startswith("Tensor target dimension"):  # Captum's words for an output with another number of rows
            rows = f"in a pass of {len(latest[0])} rows, axis 0 of the output is not these rows"
            remedy = problem.model.tree.rows_on_axis_1()
            text = f"{rows}; {remedy or 'let Adapter.forward return a tensor with rows on axis 0'}"
        raise _inapplicable(problem, f"Captum's {method} cannot be applied to {where}: {text}") from failure
    finally:
        latest.clear()


def _fails_alone(problem: AttributionProblem, tensors: Sequence[Tensor]) -> bool:
    """Returns whether the model fails on ``tensors`` without Captum's hooks too, or failed before Captum ran it."""
    problem.model.guard.remove_new_hooks()
    try:
        if tensors:
            problem.forward(*tensors)
    except CutawayError:
        return True
    return not tensors


def _inapplicable(problem: AttributionProblem, text: str) -> CutawayError:
    """Returns an error with ``text``; for a module whose output is no array, one that says so."""
    point = requests.Point.OUTPUT
    calls = module_calls(problem) if problem.module else ()
    if any(call.dtypes.get(point, {}).keys() != call.captured(point).keys() for call in calls):
        failure = spec.unreadable(problem, "a tensor that is nested or inside torch.vmap")
        failure.field = spec.module_field(problem)
        return failure
    return error(Reason.METHOD_INAPPLICABLE, text)


def _unreached(problem: AttributionProblem) -> tuple[str, str]:
    """Returns, of several tensors to which not all gradients came, in words which they are, and what to do."""
    if not problem.layer:
        several = len(problem.explained) > 1
        return "", ": name in inputs only those that it depends on" if several else ""
    if path := problem.request.layer_path:
        return f"{path} of the layer {problem.layer!r}", ""
    outputs = (call.captured(requests.Point.OUTPUT) for call in module_calls(problem))
    paths = list(dict.fromkeys(path for output in outputs for path in output))
    if problem.further_layers or len(paths) < 2:
        return "", ""
    remedy = f": name one that it depends on by layer_path, of {', '.join(paths)}"
    return f"each tensor that the layer {problem.layer!r} returns", remedy


def _explained(problem: AttributionProblem) -> str:
    if not isinstance(problem.request, requests.NeuronAttribution):
        return "the target"
    index = problem.request.neuron.index
    neuron = f"the neuron {list(index) if index else 'block'} of {problem.module!r}"
    return neuron if method_of(problem.request).explains_neuron else f"the target, by way of {neuron},"


# Captum's attacks.

_MOST_TRIALS = 1000


def refuse_attack(attack: requests.Attack, inputs: Inputs, explained: Sequence[str]) -> None:
    """Raises for an attack that makes no sense for the ``explained`` inputs, before anything runs.

    Raises:
        InvalidArgument: fields are relative to the attack's message.
    """
    _refuse_bounds(attack, inputs, explained)
    _refuse_search(attack)
    flat = [name for name in explained if inputs[name].ndim < 2]
    if flat and isinstance(attack, requests.PGD) and attack.norm == requests.AttackNorm.L2:
        what = f"the input {flat[0]!r} has one number an example, whose norm is its magnitude: use Linf"
        raise error(Reason.METHOD_INAPPLICABLE, what, "pgd.norm")


def _refuse_bounds(attack: requests.Attack, inputs: Inputs, explained: Sequence[str]) -> None:
    """Refuses bounds that exclude each other, or values of the input: putting these inside would be no small change."""
    lower, upper = attack.lower_bound, attack.upper_bound
    if lower is not None and upper is not None and lower >= upper:
        raise error(Reason.INVALID_VALUE, f"{lower} is not below the upper bound {upper}", "lower_bound")
    for name in explained:
        for field, bound, is_outside in (("lower_bound", lower, torch.lt), ("upper_bound", upper, torch.gt)):
            if bound is not None and bool(is_outside(inputs[name], bound).any()):
                least, most = inputs[name].min().item(), inputs[name].max().item()
                what = f"{bound}; the input {name!r} has values from {least:.6g} to {most:.6g}, and must lie inside"
                raise error(Reason.INVALID_VALUE, what, field)


def _refuse_search(attack: requests.Attack) -> None:
    search = attack.search
    if search is None:
        return
    with at("search"):
        known = [name for name in ("epsilon", "radius", "step_size", "n_steps") if hasattr(attack, name)]
        if search.parameter not in known:
            what = f"{type(attack).__name__} has no {search.parameter!r}; there are {', '.join(known)}"
            raise error(Reason.INVALID_VALUE, what, "parameter")
        if search.upper <= search.lower + search.step:
            raise error(Reason.INVALID_VALUE, f"{search.upper}; above lower plus one step", "upper")
        if (search.upper - search.lower) / search.step > _MOST_TRIALS:
            raise error(Reason.INVALID_VALUE, f"more than {_MOST_TRIALS} values up to upper", "step")
        if search.parameter == "n_steps" and any(float(each) % 1 for each in (search.lower, search.step, search.upper)):
            raise error(Reason.INVALID_VALUE, "a number of steps is whole, as are its bounds", "step")
        if getattr(attack, "random_start", False):
            what = "it begins elsewhere each time, so that no value is the least: leave random_start out"
            raise error(Reason.INVALID_VALUE, what, "parameter")


_CAPTUM_NAMES = {"n_steps": "step_num"}
"""Captum's names of parameters of attacks, where they differ."""


class _FGSM(robust.FGSM):  # type: ignore[misc]
    """Captum's, with leaves of its own in each pass."""

    def perturb(self, inputs: tuple[Tensor, ...], *values: Any, **named: Any) -> tuple[Tensor, ...]:
        leaves = tuple(tensor.detach().clone().requires_grad_() for tensor in inputs)
        return tuple(tensor.detach() for tensor in super().perturb(leaves, *values, **named))


class _PGD(robust.PGD):  # type: ignore[misc]
    """Captum's, whose start inside an L2 ball fails for several rows, on a GPU, and in half precision."""

    def _random_point(self, center: Tensor, radius: float, norm: str, mask: Any) -> Tensor:
        rows = [slice(row, row + 1) for row in range(len(center))]
        drawn = [super(_PGD, self)._random_point(center[row].cpu(), radius, norm, mask[row].cpu()) for row in rows]
        return torch.cat(drawn).to(center)


def _captum_attack(
    attack: requests.Attack, problem: AttributionProblem, forward: Callable[..., Tensor]
) -> Callable[..., Any]:
    lower = -math.inf if attack.lower_bound is None else attack.lower_bound
    upper = math.inf if attack.upper_bound is None else attack.upper_bound

    def loss(output: Tensor, _: object) -> Tensor:
        return problem.target.scalars(output)

    captum: Any = (_PGD if isinstance(attack, requests.PGD) else _FGSM)(forward, loss, lower, upper)
    if isinstance(attack, requests.PGD):
        captum.fgsm = _FGSM(forward, loss)
    getattr(captum, "fgsm", captum).zero_thresh = attack.zero_threshold
    masks = tuple(attack_mask(problem, name) for name in problem.explained)
    additional = problem.additional_inputs or None
    return partial(
        captum.perturb, target=None, targeted=attack.targeted, additional_forward_args=additional, mask=masks
    )


def attack_mask(problem: AttributionProblem, name: str) -> Tensor:
    """Returns 1 for the elements of an input that an attack may change, and 0 for others, of the input's shape."""
    like = problem.inputs[name]
    return problem.features.numbers.get(name, torch.ones_like(like)).to(like).expand_as(like)


def _parameters(attack: requests.Attack) -> dict[str, Any]:
    """Returns the attack's own parameters by Captum's names."""
    own = [name for name in vars(attack) if name not in vars(requests.Attack())]
    named = {_CAPTUM_NAMES.get(name, name): getattr(attack, name) for name in own}
    return {name: str(value) if name == "norm" else value for name, value in named.items()}


def perturb(attack: requests.Attack, problem: AttributionProblem, forward: Callable[..., Tensor]) -> Values:
    """Returns the inputs that Captum's attack changed; the target of ``problem`` is the loss, ``forward`` as in
    `explain`."""
    inputs = tuple(tensor.detach().clone() for tensor in problem.arguments)
    with attack_errors(attack):
        found = _captum_attack(attack, problem, forward)(inputs, **_parameters(attack))
    return dict(zip(problem.explained, found))


def least_parameter(
    attack: requests.Attack,
    search: requests.MinParamPerturbation,
    problem: AttributionProblem,
    fails: Callable[..., bool],
) -> tuple[Values, float | None]:
    """Returns the inputs that Captum's search changed, and the parameter; where it finds none, the inputs themselves.

    ``fails``: whether the attack does not reach its aim, from the changed inputs and the others.
    """
    values = [search.number(value) for value in (search.lower, search.upper, search.step)]
    name = _CAPTUM_NAMES.get(search.parameter, search.parameter)
    others = {key: value for key, value in _parameters(attack).items() if key != name}
    inputs, additional = tuple(tensor.detach().clone() for tensor in problem.arguments), problem.additional_inputs
    with attack_errors(attack):
        captum = robust.MinParamPerturbation(
            fails, _captum_attack(attack, problem, problem.forward), name, *values, str(search.mode), correct_fn=bool
        )
        found, value = captum.evaluate(inputs, additional_forward_args=additional or None, attack_kwargs=others)
    return dict(zip(problem.explained, problem.arguments if found is None else found)), value


def first_line(failure: Exception) -> str:
    """Returns the first line of what Captum, or PyTorch below it, said."""
    return (str(failure).strip().splitlines() or [type(failure).__name__])[0][:300]


def _has_no_gradient(text: str) -> bool:
    return "does not require grad" in text or "appears to not have been used in the graph" in text


@contextmanager
def attack_errors(attack: requests.Attack) -> Iterator[None]:
    """Translates the errors of an attack by Captum."""
    try:
        yield
    except (RuntimeError, AssertionError, ValueError, TypeError) as failure:
        if is_out_of_memory(failure) or isinstance(failure, CutawayError):
            raise
        if _has_no_gradient(text := first_line(failure)):
            what = "the loss does not depend on all inputs that change through differentiable operations: name in "
            raise error(Reason.NOT_DIFFERENTIABLE, f"{what}inputs only those that it depends on") from failure
        what = f"Captum's {type(attack).__name__} cannot be applied: {text}"
        raise error(Reason.METHOD_INAPPLICABLE, what) from failure
