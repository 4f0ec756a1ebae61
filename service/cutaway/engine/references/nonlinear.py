"""The nonlinearities that run in one forward: modules that Captum overrides, and everything else that it does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cutaway.engine.hooks import observing
from cutaway.engine.leaves import Path
from cutaway.engine.references.rescale import OF_FUNCTIONS, OF_MODULES, Rule, rescale, unpool
from cutaway.engine.seen import Call
from cutaway.engine.wishes import watching
from cutaway.engine.witness import Question, once
from cutaway.requests import Point


class Port(NamedTuple):
    """Where one call takes the tensor that it is a function of, and where it returns what it makes of it."""

    taken: Path
    returned: Path


class Place(NamedTuple):
    """A nonlinearity.

    Attributes:
        name: of a module, or an operator's address: ``block2:relu#0``.
        rule: what it hands back.
        calls: its calls in one forward.
        is_module: whether it is a module of a kind that Captum overrides.
    """

    name: str
    rule: Rule
    calls: Sequence[Port]
    is_module: bool

    @property
    def operator(self) -> str:
        """``relu`` for ``block2:relu#0``."""
        return self.name.rpartition(":")[2].partition("#")[0]


@once
def nonlinearities(question: Question) -> list[Place]:
    """Run forward once, and see."""
    tree = question.subject.tree
    rules = {name: OF_MODULES[type(each)] for name, each in tree.modules.items() if type(each) in OF_MODULES}
    both = watching(Point.INPUT, Point.OUTPUT)
    taps = {**dict.fromkeys(rules, both), **{f"**:{function}#*": both for function in OF_FUNCTIONS}}
    with torch.no_grad(), question.subject.dice(), observing(tree, taps) as seen, seen.forward():
        question.subject.run(question.inputs)
    places = [Place(name, rule, _ports(rule, seen.calls[name]), is_module=True) for name, rule in rules.items()]
    for name, calls in seen.calls.items():
        owner = name.rpartition(":")[0]
        if name not in rules and owner not in rules:
            bare = Place(name, rescale, (), is_module=False)
            rule = OF_FUNCTIONS.get(bare.operator, rescale)
            places.append(bare._replace(rule=rule, calls=_ports(rule, calls)))
    return [place for place in places if place.calls]


def _ports(rule: Rule, calls: Sequence[Call]) -> list[Port]:
    found = [_port(rule, call.at(Point.INPUT), call.at(Point.OUTPUT)) for call in calls]
    # A call that is no function of one tensor has no rule; nor then have its neighbours, which are told by number.
    return [port for port in found if port is not None] if all(found) else []


def _port(rule: Rule, taken: Mapping[Path, Tensor], returned: Mapping[Path, Tensor]) -> Port | None:
    for path, tensor in _floating(returned):
        fitting = [each for each, given in _floating(taken) if rule is unpool or given.shape == tensor.shape]
        if len(fitting) == 1:
            return Port(fitting[0], path)
        return None
    return None


def _floating(tensors: Mapping[Path, Tensor]) -> Iterator[tuple[Path, Tensor]]:
    return ((path, tensor) for path, tensor in tensors.items() if tensor.is_floating_point())
