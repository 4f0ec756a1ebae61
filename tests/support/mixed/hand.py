"""The answer to a request by PyTorch's own hooks and plain Captum: what `ByHand` is told is read off the request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import cutaway as ca
from cutaway.client.request_builder import build_request
from cutaway.contract.requests import Capture, Edit, InspectRequest, Point
from tests.fuzz import places
from tests.fuzz.arithmetic import edited, scalars
from tests.fuzz.ledger import part
from tests.matrix.byhand import plain
from tests.support.mixed.by_hand import Answer, ByHand, Explain

SEED = 0


class Whole(nn.Module):
    """A network with its owner's forward, called with keywords, as Captum by hand calls it."""

    def __init__(self, network: nn.Module, forward: Callable[..., Tensor]) -> None:
        super().__init__()
        self.network, self._forward = network, forward

    def get_submodule(self, target: str) -> nn.Module:
        return self.network.get_submodule(target)

    def forward(self, **inputs: Tensor) -> Tensor:
        return self._forward(*inputs.values())


class Hand:
    """One request to a network, as hooks and calls of Captum.

    Args:
        network: its modules. A twin that has modules where the served one has operators, or other names, says in
            ``places`` where each place is: a module by path.
        inputs: a batch by name.
        forward: runs the network; returns the output that targets are read from.
        output: that output's name.
        asked: what `cutaway.Client.inspect` is given beside the model and its inputs.
    """

    def __init__(
        self,
        network: nn.Module,
        inputs: Mapping[str, Tensor],
        forward: Callable[..., Tensor],
        output: str,
        asked: Mapping[str, Any],
    ) -> None:
        self._request: InspectRequest = build_request("model", inputs, **asked)
        self._hand = ByHand(network, inputs, forward, output)
        self._network, self._inputs, self._forward = network, inputs, forward
        self._rows = len(next(iter(inputs.values())))
        self._positions: Answer = {}

    def answer(self) -> Answer:
        """Run it all."""
        request = self._request
        unedited = {f"unedited.{self._hand.output}": self._plain().numpy()} if request.compare else {}
        for edit in request.edits:
            self._change(edit)
        explain = [each for asked in request.attributions for each in self._explain(asked)]
        self._aim()
        for capture in request.captures:
            self._see(capture)
        parameters = {each.parameter: self._kept(each) for each in request.captures if each.parameter}
        roots = [] if request.input_gradients is None else list(request.input_gradients or self._inputs)
        if roots or parameters:
            self._hand.gradients(*roots, parameters=parameters)
        if request.omit_predictions:
            self._hand.silent()
        return {**self._hand.answer(*explain), **unedited, **self._positions}

    @torch.no_grad()
    def _plain(self) -> Tensor:
        return self._forward(*self._inputs.values())

    def _at(self, name: str, path: str) -> dict[str, str]:
        """The modules at a place, by path."""
        there = getattr(self._network, "places", {}).get(name, {path: name.partition(":")[0]})
        return {each: module for each, module in there.items() if path in ("", each)}

    def _change(self, edit: Edit) -> None:
        change: Callable[[Tensor], Tensor] = lambda value: edited(edit, value, self._rows)  # noqa: E731
        for module in self._at(edit.op or edit.module, edit.path).values():
            match edit.point:
                case Point.INPUT:
                    self._hand.before(module, change)
                case Point.OUTPUT:
                    self._hand.after(module, change, call=edit.call)
                case Point.GRAD_INPUT:
                    self._hand.backward_before(module, change)
                case Point.GRAD_OUTPUT:
                    self._hand.backward_after(module, change)

    def _see(self, capture: Capture) -> None:
        for name in self._matching(capture):
            for path, module in self._at(name, capture.path).items():
                where = f"captures.{name}#0.{capture.points[0]}{path} positions"
                self._hand.see(module, *capture.points, then=self._kept(capture, where), name=name, path=path)

    def _matching(self, capture: Capture) -> list[str]:
        glob = capture.op or capture.module
        if not places.is_glob(glob):
            return [glob] if glob else []
        modules = dict(self._network.named_modules())
        operators = [f"{name}:relu#0" for name, module in modules.items() if isinstance(module, nn.ReLU)]
        return [name for name in (operators if capture.op else modules) if places.matches(glob, name)]

    def _aim(self) -> None:
        """The request's target, where it is not the predicted class, or an explanation needs that."""
        target = self._request.target
        if isinstance(target, ca.PredictedClass):
            asked = [each for each in self._request.attributions if not isinstance(each, ca.LayerActivation)]
            if any(each.target is None for each in asked):
                self._hand.of_predicted_classes()
        elif isinstance(target, ca.Neuron):
            index, seen = target.index, list[Tensor]()

            def note(value: Tensor) -> Tensor:
                seen.append(value)
                return value

            self._hand.after(target.module, note)
            self._hand.of(lambda _: seen[-1].flatten(1)[:, np.ravel_multi_index(index, seen[-1].shape[1:])])
        elif classes := list(self._classes(target)):
            self._hand.of_classes(torch.stack(classes, dim=1) if isinstance(target, ca.TopK) else classes[0])
        else:
            self._hand.of(lambda output: scalars(target, output, self._rows)[0].values)

    def _classes(self, target: ca.Target) -> Iterator[Tensor]:
        """The classes of all rows; several times for the top classes, and not at all for other targets."""
        found = [each.classes for each in scalars(target, self._plain(), self._rows)]
        yield from (torch.tensor(classes) for classes in found if classes is not None)

    def _explain(self, asked: ca.Attribution) -> Iterator[Explain]:
        whole, bare = Whole(self._network, self._forward), replace(asked, target=None)
        for classes in self._classes(asked.target or self._request.target):
            yield lambda _, __, classes=classes: plain(bare, whole, self._inputs, lambda out: out, classes, SEED)[0]  # type: ignore[misc]

    def _kept(self, capture: Capture, where: str = "") -> Callable[[Tensor], Tensor]:
        """What is kept of a tensor; where its largest elements were goes to the answer as ``where``."""

        def kept(tensor: Tensor) -> Tensor:
            found = part(capture, tensor, batched=not capture.parameter)
            if found.positions is not None:
                self._positions[where] = found.positions.numpy()
            return found.values

        return kept
