"""Layer-wise relevance propagation (LRP): Captum hooks modules, with a rule for each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from captum.attr._core.lrp import SUPPORTED_LAYERS_WITH_RULES
from captum.attr._utils import lrp_rules
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from cutaway.contract import requests
from cutaway.contract.errors import CutawayError, Reason, at, error
from cutaway.engine.methods.spec import Method, attributes_restored, inapplicable
from cutaway.engine.model.inspected_model import Inputs, InspectedModel
from cutaway.engine.passes.pass_recorder import AttributionProblem, Changes
from cutaway.engine.passes.reference_inputs import host, input_point
from cutaway.engine.references import lrp as references
from cutaway.engine.references import lrp_limits
from cutaway.engine.references.observation import whole
from cutaway.engine.runtime.numerics import EXACT

_WITHOUT_RULE = (nn.Embedding, nn.EmbeddingBag, nn.RNNBase)
"""Modules that no rule fits: they take integers, or return several tensors."""

_CAPTUM_ATTRIBUTES = ("rule", "activations", "activation")
"""Attributes of modules that Captum sets or deletes."""

_REWEIGHTING = (requests.Gamma, requests.AlphaOneBetaZero)
"""Rules that change a layer's weights."""

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


# Validation.


def _refuse(model: InspectedModel, request: requests.Propagation, inputs: Inputs, edits: Changes) -> None:
    for name, module in model.tree.modules.items():
        if is_parametrized(module):
            raise inapplicable(
                f"{name!r} has parametrizations, and Captum gives rules to the modules inside it instead of to the "
                "layer: call torch.nn.utils.parametrize.remove_parametrizations on it when the model is built"
            )
    with at("rules"):
        for name, rule in request.rules.items():
            with at(name):
                _refuse_rule(model, name, rule)
        ruled = {model.tree.resolve(name) for name in request.rules}
        for name, module in references.leaf_modules(model.tree).items():
            if name not in ruled:
                _refuse_without_rule(name, module)
    _refuse_attributes(model)
    _refuse_edits(request, edits)
    if isinstance(request, requests.LayerLRP):
        _refuse_layer(model, request.layer, inputs)


def _refuse_rule(model: InspectedModel, name: str, rule: requests.LrpRule) -> None:
    """Refuses a rule of the request that does not fit its module, or whose number is out of range."""
    resolved = model.tree.resolve(name)
    module = model.tree[name]
    kind = type(module).__name__
    if resolved not in references.leaf_modules(model.tree):
        raise error(
            Reason.INVALID_VALUE, f"{name!r} is made of other modules, and rules are for those: name one of them"
        )
    if isinstance(module, _WITHOUT_RULE):
        raise inapplicable(f"relevance passes through no {kind}: there is no rule for it")
    if type(module) in references.IDENTITY_MODULES and not isinstance(rule, requests.RelevanceIdentity):
        raise error(Reason.INVALID_VALUE, f"relevance passes a {kind} unchanged, whatever its rule: leave it out")
    if isinstance(rule, requests.Epsilon) and not (rule.epsilon > 0 and math.isfinite(rule.epsilon)):
        raise error(Reason.INVALID_VALUE, f"{rule.epsilon}; a number above 0", "epsilon")
    if isinstance(rule, requests.Gamma) and not (rule.gamma >= 0 and math.isfinite(rule.gamma)):
        raise error(Reason.INVALID_VALUE, f"{rule.gamma}; a number from 0", "gamma")
    if isinstance(rule, requests.AlphaOneBetaZero) and isinstance(module, _NORMS):
        raise error(Reason.INVALID_VALUE, f"it does not fit a {kind}, whose weights multiply a normalised input")
    if isinstance(rule, _REWEIGHTING):
        _refuse_fixed_weight(model, resolved, module)


def _refuse_fixed_weight(model: InspectedModel, resolved: str, module: nn.Module) -> None:
    weight = getattr(module, "weight", None)
    if isinstance(vars(module).get("weight"), Tensor):
        raise inapplicable(
            "a hook makes the weight anew before each forward pass, and so undoes what the rule changes: use Epsilon, "
            "or remove the hook, as torch.nn.utils.remove_weight_norm does"
        )
    for name, other in model.tree.modules.items() if weight is not None else ():
        if name != resolved and any(parameter is weight for parameter in other._parameters.values()):
            raise inapplicable(
                f"the rule changes the weight, which {name!r} shares, and Captum would change it there too: use "
                "Epsilon, which changes no weights"
            )


def _refuse_without_rule(name: str, module: nn.Module) -> None:
    if type(module) in SUPPORTED_LAYERS_WITH_RULES or type(module) in references.IDENTITY_MODULES:
        return
    kind = type(module).__name__
    if isinstance(module, _WITHOUT_RULE):
        raise inapplicable(f"{name!r} is a {kind}, through which relevance cannot pass")
    if not name:
        raise inapplicable(f"the model is one {kind} without modules: no module has a rule")
    raise inapplicable(
        f"{name!r} is a {kind}, for which Captum has no rule: give one, rules[{name!r}]: Epsilon() if the module adds "
        "or moves values, Gamma() or AlphaOneBetaZero() if it has weights, RelevanceIdentity() for an activation"
    )


def _refuse_attributes(model: InspectedModel) -> None:
    """Refuses modules with attributes of their own that Captum's LRP would overwrite. Attributes that Captum left
    behind are allowed."""
    for name, module in model.tree.modules.items():
        for attribute in ("rule", "activations"):
            value = getattr(module, attribute, None)
            if value is not None and not isinstance(value, lrp_rules.PropagationRule) and not _is_left(module, value):
                raise inapplicable(
                    f"the module {name!r} has an attribute {attribute!r}, which Captum overwrites: rename it"
                )


def _is_left(module: nn.Module, value: Any) -> bool:
    """Returns whether Captum left ``value`` behind: activations by device, and none of a module that did not run."""
    by_device = isinstance(value, dict) and all(isinstance(key, torch.device) for key in value)
    return by_device and (bool(value) or type(module).__module__.startswith("torch.nn."))


def _refuse_edits(request: requests.Propagation, edits: Changes) -> None:
    reweighted = [module for module, rule in request.rules.items() if isinstance(rule, _REWEIGHTING)]
    for name, numbered in edits.items():
        if any(edit.point.is_gradient for _, edit in numbered):
            raise error(
                Reason.EDIT_INAPPLICABLE,
                f"the gradient at {name!r} is edited, and what flows back here is relevance: edit values",
            )
        if numbered and reweighted:
            raise error(
                Reason.EDIT_INAPPLICABLE,
                f"for the rule of {reweighted[0]!r} Captum runs the model with other weights, and the edit at {name!r} "
                "would act on other values: use Epsilon, which changes no weights",
            )


def _refuse_layer(model: InspectedModel, layer: str, inputs: Inputs) -> None:
    module = model.tree[layer]
    if (
        model.tree.resolve(layer) not in references.leaf_modules(model.tree)
        or type(module) in references.IDENTITY_MODULES
    ):
        raise inapplicable(
            f"{layer!r} is a {type(module).__name__}, and Captum keeps the relevance of layers that have a rule: "
            "name one of those, such as the last one inside, or before, it",
            "layer",
        )
    if not any(tensor.is_floating_point() for tensor in inputs.values()):
        raise error(Reason.INPUT_NOT_DIFFERENTIABLE, "relevance needs an input of floats, and there is none")


# The model while Captum runs.


def _captum_rule(rule: requests.LrpRule) -> lrp_rules.PropagationRule:
    if isinstance(rule, requests.Epsilon):
        return lrp_rules.EpsilonRule(rule.epsilon)
    if isinstance(rule, requests.Gamma):
        return lrp_rules.GammaRule(rule.gamma)
    return lrp_rules.Alpha1_Beta0_Rule() if isinstance(rule, requests.AlphaOneBetaZero) else lrp_rules.IdentityRule()


@contextmanager
def _captum_state(problem: AttributionProblem) -> Iterator[None]:
    """Enters a context in which modules carry Captum's rules; afterwards they are as before.

    Captum reads rules from the modules, and leaves attributes and other memory behind. It hooks every input of a layer
    that has a rule; such an input must require a gradient.
    """
    _refuse_target(problem)
    modules = problem.model.tree.modules
    weights = [(parameter, parameter.data) for parameter in problem.model.module.parameters()]
    further = [
        tensor for tensor in problem.additional_inputs if tensor.is_floating_point() and not tensor.requires_grad
    ]
    with attributes_restored(modules.values(), _CAPTUM_ATTRIBUTES):
        try:
            for module in modules.values():
                # Rules that the model's owner left for Captum do not count: those of the request do.
                for name in ("rule", "activations"):
                    vars(module).pop(name, None)
            for tensor in further:
                tensor.requires_grad_()
            for name, rule in references.requested_rules(problem).items():
                if type(modules[name]) not in references.IDENTITY_MODULES:
                    vars(modules[name])["rule"] = _captum_rule(rule)
            yield
        except Exception as failure:
            if named := _named_error(problem, failure):
                raise named from failure
            raise
        finally:
            for tensor in further:
                tensor.requires_grad_(False)
            for parameter, data in weights:
                parameter.data = data
                vars(parameter).pop("hook_registered", None)


def _refuse_target(problem: AttributionProblem) -> None:
    """Refuses targets that are not one element of the output.

    Captum begins with the target's value wherever its gradient is 1, which is relevance for one element only.
    """
    if problem.target.positions is not None:
        return
    if problem.target.is_neuron:  # layers behind it would change its relevance
        raise inapplicable("Captum's LRP begins at an output of the model, and a neuron is none: explain a class")
    with torch.no_grad():
        output = problem.read(problem.inputs).detach()
    with torch.enable_grad():
        output.requires_grad_()
        (gradient,) = torch.autograd.grad(problem.target.scalars(output).sum(), output)
    rows = host(gradient).reshape(problem.rows, -1)
    if not bool(((rows != 0).sum(dim=1) == 1).all() and (rows.sum(dim=1) == 1).all()):
        raise inapplicable(
            "LRP explains one element of the model's output, and the target is not one element: explain a class or a "
            "multi-index"
        )


def _named_error(problem: AttributionProblem, failure: Exception) -> CutawayError | None:
    """Translates an error of Captum, which does not name the module at fault; None if the model is not the cause."""
    text = str(failure)
    if "used more than once" in text:
        return inapplicable(_reused(problem))
    if "cannot register a hook on a tensor" in text:
        return inapplicable(
            "a layer that has a rule takes a tensor that depends on no input of floats, so that no relevance can flow: "
            "use it outside of that layer"
        )
    if "has changed the size" in text or isinstance(failure, KeyError):
        rules = references.requested_rules(problem).items()
        names = ", ".join(name for name, rule in rules if isinstance(rule, requests.RelevanceIdentity))
        return inapplicable(
            "RelevanceIdentity fits a layer that returns another tensor than it takes, of the same shape, and one of "
            f"these does not: {names}",
            f"{requests.field_name(type(problem.request))}.rules",
        )
    if "Device IDs must be provided" in text:
        return error(
            Reason.NOT_DIFFERENTIABLE,
            f"the target does not depend on {problem.layer!r} through differentiable operations",
        )
    return None


def _reused(problem: AttributionProblem) -> str:
    tree = problem.model.tree
    for layer in references.relevance_layers(problem):
        is_ruled = not layer.operator and type(tree.modules[layer.name]) not in references.IDENTITY_MODULES
        if is_ruled and len(layer.calls) > 1:
            return (
                f"{layer.name!r} is called {len(layer.calls)} times in one forward pass, and Captum keeps the "
                "relevance of one call: build the model with a module for each call"
            )
    aliases = ", ".join(f"{name} is also {', '.join(others)}" for name, others in tree.aliases.items())
    return f"a module is registered under several names, and Captum hooks it for each: {aliases}"


_row = partial(
    Method,
    reference=whole(references.relevance),
    # Captum runs one pass to see the inputs of layers, and one backwards.
    points=lambda problem: input_point(problem) * 2,
    satisfies_conservation=True,
    completeness_tolerances=EXACT,
    reference_passes=references.relevance_passes,
    limitation=lrp_limits.limitation,
    applies_to_modules=True,
    refuse=_refuse,
    model_context=_captum_state,
)

_SHARES = "in proportion to a * w / z, from raw activations and weights"

ROWS: dict[type[requests.Attribution], Method] = {
    requests.LRP: _row(formula=f"f(x), handed back from layer to layer {_SHARES}"),
    requests.LayerLRP: _row(formula=f"f(x), handed back to the layer's output {_SHARES}"),
}
