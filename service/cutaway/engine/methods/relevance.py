"""Layer-wise relevance propagation: Captum follows modules, with a rule for each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from captum import attr
from captum.attr._core.lrp import SUPPORTED_LAYERS_WITH_RULES
from captum.attr._utils import lrp_rules
from torch import nn

from cutaway.engine.evidence import host
from cutaway.engine.method import EXACT, Method
from cutaway.engine.references import relevance as references
from cutaway.engine.references import wiring
from cutaway.engine.subject import Inputs, Subject
from cutaway.engine.witness import Changes, Question
from cutaway.errors import CutawayError, Reason, at, error
from cutaway.requests import (
    LRP,
    AlphaOneBetaZero,
    Attribution,
    Epsilon,
    Gamma,
    LayerLRP,
    LrpRule,
    Propagation,
    RelevanceIdentity,
    field_name,
)

_WITHOUT = (nn.Embedding, nn.EmbeddingBag, nn.RNNBase)
"""Modules that no rule fits: they take whole numbers, or return several tensors."""

_CAPTUMS = ("rule", "activations", "activation")
"""Attributes of modules that Captum sets or deletes."""

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


# What is refused.


def _refuse(subject: Subject, request: Propagation, inputs: Inputs, edits: Changes) -> None:
    with at("rules"):
        for name, rule in request.rules.items():
            with at(name):
                _refuse_rule(subject, name, rule)
        given = {subject.tree.resolve(name) for name in request.rules}
        for name, module in references.leaf_modules(subject.tree).items():
            if name not in given:
                _refuse_without_rule(name, module)
    _refuse_attributes(subject)
    _refuse_edits(request, edits)
    if isinstance(request, LayerLRP):
        _refuse_layer(subject, request.layer, inputs)


def _refuse_rule(subject: Subject, name: str, rule: LrpRule) -> None:
    own = subject.tree.resolve(name)
    module = subject.tree[name]
    kind = type(module).__name__
    if own not in references.leaf_modules(subject.tree):
        raise error(Reason.INVALID_VALUE, f"{name!r} is made of other modules, which have the rules: name one of those")
    if isinstance(module, _WITHOUT):
        raise error(Reason.METHOD_INAPPLICABLE, f"relevance passes through no {kind}: there is no rule for it")
    if type(module) in references.UNCHANGED and not isinstance(rule, RelevanceIdentity):
        raise error(Reason.INVALID_VALUE, f"relevance passes a {kind} unchanged, whatever its rule: leave it out")
    if isinstance(rule, Epsilon) and not (rule.epsilon > 0 and math.isfinite(rule.epsilon)):
        raise error(Reason.INVALID_VALUE, f"{rule.epsilon}; a number above 0", "epsilon")
    if isinstance(rule, Gamma) and not (rule.gamma >= 0 and math.isfinite(rule.gamma)):
        raise error(Reason.INVALID_VALUE, f"{rule.gamma}; a number from 0", "gamma")
    if isinstance(rule, AlphaOneBetaZero) and isinstance(module, _NORMS):
        raise error(Reason.INVALID_VALUE, f"it does not fit a {kind}, whose weights multiply a normalised input")
    if isinstance(rule, (Gamma, AlphaOneBetaZero)):
        _refuse_shared_weight(subject, own, module)


def _refuse_shared_weight(subject: Subject, own: str, module: nn.Module) -> None:
    for name, other in subject.tree.modules.items():
        if name != own and any(each is getattr(module, "weight", None) for each in other._parameters.values()):
            raise error(
                Reason.METHOD_INAPPLICABLE,
                f"the rule changes the weight, which {name!r} shares, and Captum would change it there too: Epsilon "
                "changes none",
            )


def _refuse_without_rule(name: str, module: nn.Module) -> None:
    if type(module) in SUPPORTED_LAYERS_WITH_RULES or type(module) in references.UNCHANGED:
        return
    kind = type(module).__name__
    if isinstance(module, _WITHOUT):
        raise error(Reason.METHOD_INAPPLICABLE, f"{name!r} is a {kind}, through which relevance cannot pass")
    if not name:
        raise error(Reason.METHOD_INAPPLICABLE, f"the model is one {kind} without modules: there is nothing to rule")
    raise error(
        Reason.METHOD_INAPPLICABLE,
        f"{name!r} is a {kind}, for which Captum has no rule: give one, rules[{name!r}], as Epsilon() for what adds up "
        "or moves numbers, Gamma() or AlphaOneBetaZero() for what has weights, RelevanceIdentity() for an activation",
    )


def _refuse_attributes(subject: Subject) -> None:
    for name, module in subject.tree.modules.items():
        for taken in ("rule", "activations"):
            there = getattr(module, taken, None)
            if hasattr(module, taken) and not isinstance(there, (lrp_rules.PropagationRule, type(None))):
                raise error(
                    Reason.METHOD_INAPPLICABLE,
                    f"the module {name!r} has an attribute {taken!r} of its own, where Captum keeps another thing",
                )


def _refuse_edits(request: Propagation, edits: Changes) -> None:
    reweighted = [name for name, rule in request.rules.items() if isinstance(rule, (Gamma, AlphaOneBetaZero))]
    for place, numbered in edits.items():
        if any(edit.point.is_gradient for _, edit in numbered):
            raise error(
                Reason.EDIT_INAPPLICABLE,
                f"the gradient at {place!r} is edited, and what flows back here is relevance: edit values",
            )
        if numbered and reweighted:
            raise error(
                Reason.EDIT_INAPPLICABLE,
                f"the rule of {reweighted[0]!r} lets Captum run the model with other weights, where an edit at "
                f"{place!r} meets other values: Epsilon changes none",
            )


def _refuse_layer(subject: Subject, layer: str, inputs: Inputs) -> None:
    module = subject.tree[layer]
    if subject.tree.resolve(layer) not in references.leaf_modules(subject.tree) or type(module) in references.UNCHANGED:
        raise error(
            Reason.METHOD_INAPPLICABLE,
            f"{layer!r} is a {type(module).__name__}, and Captum keeps the relevance of layers that have a rule: "
            "name one of those, such as the last one inside, or before, it",
            "layer",
        )
    if not any(tensor.is_floating_point() for tensor in inputs.values()):
        raise error(Reason.INPUT_NOT_DIFFERENTIABLE, "relevance needs an input of floats to flow to; there is none")


# The model as Captum wants it.


def _captums(rule: LrpRule) -> lrp_rules.PropagationRule:
    if isinstance(rule, Epsilon):
        return lrp_rules.EpsilonRule(rule.epsilon)
    if isinstance(rule, Gamma):
        return lrp_rules.GammaRule(rule.gamma)
    return lrp_rules.Alpha1_Beta0_Rule() if isinstance(rule, AlphaOneBetaZero) else lrp_rules.IdentityRule()


@contextmanager
def _prepared(question: Question) -> Iterator[None]:
    """Captum reads rules from its modules, leaves attributes and other memory behind, and hooks every input of a layer
    that has a rule, which must then be differentiable."""
    _refuse_target(question)
    model = question.subject.module
    modules = [(module, dict(vars(module))) for module in question.subject.tree.modules.values()]
    weights = [(parameter, parameter.data) for parameter in model.parameters()]
    further = [tensor for tensor in question.further if tensor.is_floating_point() and not tensor.requires_grad]
    try:
        for module, _ in modules:
            _without(module)
        for tensor in further:
            tensor.requires_grad_()
        for name, rule in references.rules_of(question).items():
            module = question.subject.tree.modules[name]
            if type(module) not in references.UNCHANGED:
                vars(module)["rule"] = _captums(rule)
        with _said_plainly(question):
            yield
    finally:
        for tensor in further:
            tensor.requires_grad_(False)
        for parameter, numbers in weights:
            parameter.data = numbers
            vars(parameter).pop("hook_registered", None)
        for module, before in modules:
            _put_back(module, before)


def _without(module: nn.Module) -> None:
    """Set aside the rules that the model's owner left for Captum: the request says all."""
    for name in ("rule", "activations"):
        vars(module).pop(name, None)


def _put_back(module: nn.Module, before: Mapping[str, object]) -> None:
    now = {name: value for name, value in vars(module).items() if name not in _CAPTUMS}
    had = {name: now.get(name, value) for name, value in before.items() if name in now or name in _CAPTUMS}
    vars(module).clear()
    vars(module).update({**had, **now})


def _refuse_target(question: Question) -> None:
    """Captum begins with the target's value wherever its gradient is 1: that is relevance for one element only."""
    if question.chosen.indices is not None:
        return
    if question.chosen.is_neuron:  # what lies behind it would change its relevance
        raise error(Reason.METHOD_INAPPLICABLE, "Captum's LRP begins at what the model returns: a neuron is none of it")
    with torch.no_grad():
        output = question.read(question.inputs).detach()
    with torch.enable_grad():
        output.requires_grad_()
        (gradient,) = torch.autograd.grad(question.chosen.of(output).sum(), output)
    rows = host(gradient).reshape(question.rows, -1)
    if not bool(((rows != 0).sum(dim=1) == 1).all() and (rows.sum(dim=1) == 1).all()):
        raise error(
            Reason.METHOD_INAPPLICABLE,
            "LRP hands back one element of what the model returns, and the target is none: explain a class or a "
            "multi-index",
        )


@contextmanager
def _said_plainly(question: Question) -> Iterator[None]:
    """What Captum says of modules without their names, said with them."""
    try:
        yield
    except Exception as failure:
        said = _plainly(question, failure)
        if said is None:
            raise
        raise said from failure


def _plainly(question: Question, failure: Exception) -> CutawayError | None:
    text = str(failure)
    if "used more than once" in text:
        return error(Reason.METHOD_INAPPLICABLE, _reused(question))
    if "cannot register a hook on a tensor" in text:
        return error(
            Reason.METHOD_INAPPLICABLE,
            "a layer that has a rule takes a tensor that depends on no input of floats, where no relevance can flow: "
            "compute with it outside of that layer",
        )
    if "has changed the size" in text or isinstance(failure, KeyError):
        names = [name for name, rule in references.rules_of(question).items() if isinstance(rule, RelevanceIdentity)]
        return error(
            Reason.METHOD_INAPPLICABLE,
            "RelevanceIdentity fits a layer that returns another tensor than it takes, of the same shape, and one of "
            "these does not: " + ", ".join(names),
            f"{field_name(type(question.request))}.rules",
        )
    if "Device IDs must be provided" in text:
        return error(
            Reason.NOT_DIFFERENTIABLE,
            f"the target does not depend on {question.layer!r} through differentiable operations",
        )
    return None


def _reused(question: Question) -> str:
    tree = question.subject.tree
    often = {place.name: len(place.calls) for place in references.places(question) if not place.operator}
    names = [
        name for name, calls in often.items() if calls > 1 and type(tree.modules[name]) not in references.UNCHANGED
    ]
    if names:
        return (
            f"{names[0]!r} is called {often[names[0]]} times in one forward, and Captum keeps the relevance of one "
            "call: build the model with a module of its own for each place"
        )
    also = ", ".join(f"{own} is also {', '.join(others)}" for own, others in tree.aliases.items())
    return f"a module stands in several places, and Captum hooks it in each: {also}"


ROWS: dict[type[Attribution], Method] = {
    LRP: Method(
        attr.LRP,
        references.relevance,
        references.at_input_twice,
        "f(x), handed back from layer to layer in proportion to a * w / z, from raw activations and weights",
        conserves=True,
        sums=EXACT,
        own=references.relevance_passes,
        overlooked=wiring.overlooked,
        applies_to_modules=True,
        refuse=_refuse,
        prepared=_prepared,
    ),
    LayerLRP: Method(
        attr.LayerLRP,
        references.relevance,
        references.at_input_twice,
        "f(x), handed back to the layer's output in proportion to a * w / z, from raw activations and weights",
        conserves=True,
        sums=EXACT,
        own=references.relevance_passes,
        overlooked=wiring.overlooked,
        applies_to_modules=True,
        refuse=_refuse,
        prepared=_prepared,
    ),
}
