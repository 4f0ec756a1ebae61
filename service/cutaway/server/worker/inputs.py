"""The inputs of requests to one model: decoded, named, checked, and where the model is."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from torch import Tensor

from cutaway.adapters import Adapter, decoded
from cutaway.contract.errors import at
from cutaway.contract.requests import InspectRequest
from cutaway.engine.model.input_validation import check_features, named, validate_arguments, validate_inputs
from cutaway.engine.model.inspected_model import Inputs, InspectedModel, arguments_kind
from cutaway.engine.model.session import Cancellation
from cutaway.engine.runtime.numerics import from_numpy

_MOST_KINDS = 1024
"""The most kinds of valid inputs (names, types and shapes) that a worker remembers."""


class RequestInputs:
    """Reads the inputs of requests; knows the kinds of tensors and arguments that were valid before.

    Args:
        model: the model.
        adapter: decodes raw inputs.
    """

    def __init__(self, model: InspectedModel, adapter: Adapter) -> None:
        self._model, self._adapter = model, adapter
        self._valid: dict[Hashable, tuple[str, ...]] = {}

    def of(self, request: InspectRequest, cancellation: Cancellation) -> Inputs:
        """Returns the inputs of ``request`` in the model's order.

        Raises:
            InvalidArgument: they are not what the model takes; with the field at fault.
        """
        specs = self._model.inputs
        with at("raw" if request.raw else "tensors.by_name"):
            tensors = decoded(self._adapter, request.raw, cancellation) if request.raw else named(
                specs, {name: from_numpy(array) for name, array in request.tensors.items()}
            )  # fmt: skip
        if request.feature_names:
            with at("tensors.feature_names"):
                check_features(specs, tensors, named(specs, request.feature_names))
        shapes = (*((name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()),)
        kind = shapes, arguments_kind(request.arguments)
        order = self._valid.get(kind)
        if order is None:
            if len(self._valid) >= _MOST_KINDS:
                self._valid.clear()
            order = self._valid[kind] = self._validated_names(request, tensors)
        return {name: tensors[name].to(self._model.device) for name in order}

    def _validated_names(self, request: InspectRequest, tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
        with at("arguments"):
            any_name = self._model.takes_any_name
            specs = validate_arguments(self._model.inputs, tensors, request.arguments, any_name=any_name)
        with at("raw" if request.raw else "tensors.by_name"):
            return tuple(validate_inputs(specs, tensors, any_name=any_name))
