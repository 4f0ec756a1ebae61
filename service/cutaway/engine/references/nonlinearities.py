"""The nonlinearities of one forward pass: modules that Captum's DeepLIFT overrides, and operators that it does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from cutaway.engine.hooks.capture_spec import watching
from cutaway.engine.hooks.recording import RecordedCall
from cutaway.engine.passes.pass_recorder import AttributionProblem, cached_per_problem
from cutaway.engine.references.observation import observe_forward, operator_of
from cutaway.engine.references.rescale_rule import MODULE_RULES, OPERATOR_RULES, Rule, rescale, rescale_max_pool
from cutaway.engine.runtime.pytree import Path
from cutaway.requests import Point


class TensorPaths(NamedTuple):
    """The paths of one call's input tensor, and of the output tensor that is a function of it."""

    input: Path
    output: Path


class Nonlinearity(NamedTuple):
    """A nonlinearity of the model.

    Attributes:
        name: the name of a module, or the address of an operator: ``block2:relu#0``.
        rule: how it passes multipliers back.
        calls: its calls in one forward pass.
        is_module: whether it is a module of a class that Captum overrides.
    """

    name: str
    rule: Rule
    calls: Sequence[TensorPaths]
    is_module: bool


@cached_per_problem
def nonlinearities(problem: AttributionProblem) -> list[Nonlinearity]:
    """Returns the nonlinearities that run in one forward pass."""
    modules = problem.model.tree.modules
    rules = {name: MODULE_RULES[type(module)] for name, module in modules.items() if type(module) in MODULE_RULES}
    both = watching(Point.INPUT, Point.OUTPUT)
    sites = {**dict.fromkeys(rules, both), **{f"**:{operator}#*": both for operator in OPERATOR_RULES}}
    calls = observe_forward(problem, sites)
    operators = {name: OPERATOR_RULES.get(operator_of(name), rescale) for name in calls if name not in rules}
    return [
        Nonlinearity(name, rule, paths, is_module=name in rules)
        for name, rule in {**rules, **operators}.items()
        if (paths := _paths(rule, calls[name]))
    ]


def _paths(rule: Rule, calls: Sequence[RecordedCall]) -> list[TensorPaths]:
    paths = [_call_paths(rule, call.at(Point.INPUT), call.at(Point.OUTPUT)) for call in calls]
    # A call that is not a function of one tensor has no rule. Nor then have the other calls, which are known by number.
    return [call_paths for call_paths in paths if call_paths is not None] if all(paths) else []


def _call_paths(rule: Rule, inputs: Mapping[Path, Tensor], outputs: Mapping[Path, Tensor]) -> TensorPaths | None:
    """Returns the paths of the first floating output and of the one floating input that fits it."""
    for path, output in outputs.items():
        if output.is_floating_point():
            fitting = [
                input_path
                for input_path, tensor in inputs.items()
                if tensor.is_floating_point() and (rule is rescale_max_pool or tensor.shape == output.shape)
            ]
            return TensorPaths(fitting[0], path) if len(fitting) == 1 else None
    return None
