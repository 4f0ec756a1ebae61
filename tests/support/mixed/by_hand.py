"""Edits, captures, gradients and explanations with PyTorch's own hooks, written out by hand: no line of the service.

hand = ByHand(model, inputs)
hand.after("relu1", lambda value: value * 0.5)
hand.see("fc1", "output", "grad_output")
hand.answer()  # {"predictions.output": ..., "captures.fc1#0.output": ...}, named as `answers.flat` names them
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from cutaway.contract.tensors import Array
from tests.oracles.hooks import Change, Hooks, first

Answer = dict[str, Array]

Explain = Callable[[Callable[..., Tensor], Tensor], Tensor]
"""From a function that Captum can call, and the classes that it predicts, to an explanation."""

Columns = Callable[[Tensor], Sequence[Tensor]]
"""From an output to target scalars: [batch], or of a top-k target several of them."""


def unchanged(value: Tensor) -> Tensor:
    """``value``."""
    return value


class ByHand:
    """One question to one model, asked with hooks.

    Args:
        model: the network.
        inputs: a batch by name.
        forward: runs the model on the inputs' tensors and returns the output that targets are read from.
        output: that output's name.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Mapping[str, Tensor],
        forward: Callable[..., Tensor] | None = None,
        output: str = "output",
    ) -> None:
        self.model = model
        self.inputs = dict(inputs)
        self.forward = forward or model
        self.output = output
        self._hooks = Hooks(model)
        self._looks: list[tuple[str, str, Change, str, str]] = []
        self._differentiates = False
        self._columns: Columns | None = None
        self._classes: Tensor | None = None
        self._aims = False
        self._gradients: dict[str, Change] = {}
        self._predicts = True

    # What is changed: each tensor that goes into a module or comes out of it, and the gradients there.

    def before(self, module: str, change: Change) -> None:
        """Change what goes into a module."""
        self._hooks.change(module, "input", change)

    def after(self, module: str, change: Change, *, call: int | None = None) -> None:
        """Change what comes out of a module."""
        self._hooks.change(module, "output", change, call=call)

    def backward_after(self, module: str, change: Change) -> None:
        """Change the gradient at what comes out of a module."""
        self._hooks.change(module, "grad_output", change)

    def backward_before(self, module: str, change: Change) -> None:
        """Change the gradient at what goes into a module."""
        self._hooks.change(module, "grad_input", change)

    # What is looked at.

    def see(self, module: str, *points: str, then: Change = unchanged, name: str = "", path: str = "") -> None:
        """Note what hooks on a module see. ``name`` is what the reply calls the place, ``path`` which tensor it is."""
        self._hooks.see(module, *points)
        self._looks += [(module, point, then, name or module, path) for point in points]
        self._differentiates |= any(point.startswith("grad_") for point in points)

    def of(self, scalars: Change) -> None:
        """Which scalar of each row is the target."""
        self._columns = lambda output: [scalars(output)]

    def of_classes(self, classes: Tensor) -> None:
        """Which class of each row is the target: [batch], or [batch, k] for several targets at once."""
        self._classes = classes
        columns = classes.unbind(dim=1) if classes.ndim == 2 else [classes]
        self._columns = lambda output: [output.gather(1, each[:, None])[:, 0] for each in columns]

    def of_predicted_classes(self) -> None:
        """The predicted classes are the target, also where no gradient is taken here."""
        self._aims = True

    def gradients(self, *inputs: str, parameters: Mapping[str, Change] | None = None) -> None:
        """Take gradients at inputs and parameters; of the latter note what ``parameters`` makes of them."""
        self._differentiates = True
        self._gradients = {**dict.fromkeys(inputs, unchanged), **(parameters or {})}

    def silent(self) -> None:
        """Leave the predictions out."""
        self._predicts = False

    # The answer.

    def answer(self, *explain: Explain) -> Answer:
        """Run it all; afterwards the hooks are gone."""
        with self._hooks:
            found = self._asked()
            found.update({f"attributions[{index}]": self._explained(each) for index, each in enumerate(explain)})
        return {name: tensor.detach().clone().numpy() for name, tensor in found.items()}

    def _asked(self) -> dict[str, Tensor]:
        given = {name: tensor.clone() for name, tensor in self.inputs.items()}
        parameters = dict(self.model.named_parameters())
        roots = {name: given[name] if name in given else parameters[name] for name in self._gradients}
        flags = {name: root.requires_grad for name, root in roots.items()}
        for root in roots.values():
            root.requires_grad_()
        with torch.set_grad_enabled(self._differentiates):
            output = self.forward(*given.values())
        found = {f"predictions.{self.output}": output} if self._predicts else {}
        if self._differentiates or self._aims or self._columns:
            found.update(self._backwards(output, roots))
        for name in set(roots) - set(given):
            roots[name].requires_grad_(flags[name])
        return found | self._noted()

    def _backwards(self, output: Tensor, roots: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if self._columns is None:
            self.of_classes(output.detach().argmax(dim=1))
        assert self._columns is not None
        columns = self._columns(output)
        several = self._classes is not None and self._classes.ndim == 2
        taken = [self._backward(column, roots) for column in columns if self._differentiates]
        found = {"target_values": torch.stack(list(columns), dim=1) if several else columns[0]}
        found["target_values"] = found["target_values"].detach().double()
        if self._classes is not None:
            found["targets"] = self._classes
        for name in roots:
            axis = 1 if name in self.inputs else 0
            gradient = torch.stack([each[name] for each in taken], dim=axis) if several else taken[0][name]
            kind = "input" if name in self.inputs else "parameter"
            found[f"{kind}_gradients.{name}"] = self._gradients[name](gradient)
        return found

    def _backward(self, scalars: Tensor, roots: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self.model.zero_grad(set_to_none=True)
        for root in roots.values():
            root.grad = None
        scalars.sum().backward(retain_graph=True)
        gradients = {name: root.grad.clone() for name, root in roots.items() if root.grad is not None}
        self.model.zero_grad(set_to_none=True)
        return gradients

    def _noted(self) -> dict[str, Tensor]:
        found = {}
        for module, point, then, place, path in self._looks:
            values = [then(first(each)) for each in getattr(self._hooks, point).get(module, [])]
            calls = values[::-1] if point.startswith("grad_") else values  # the last call's gradient comes first
            if self._classes is not None and self._classes.ndim == 2 and point.startswith("grad_"):
                calls = [torch.stack(values, dim=1)]  # one pass for each of several targets
            found.update({f"captures.{place}#{call}.{point}{path}": value for call, value in enumerate(calls)})
        return found

    def _explained(self, explain: Explain) -> Tensor:
        tensors = tuple(tensor.clone() for tensor in self.inputs.values())
        with torch.no_grad():
            classes = self.forward(*tensors).argmax(dim=1)
        return explain(self.forward, classes)
