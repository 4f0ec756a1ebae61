"""Validates the input tensors of a request against what the model takes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from cutaway.contract.errors import CutawayError, Reason, at, error
from cutaway.contract.requests import Argument
from cutaway.contract.results import InputSpec
from cutaway.contract.tensors import FLOATING, Array
from cutaway.contract.values import near_names
from cutaway.engine.model.inspected_model import Inputs, InspectedModel, dtype_text
from cutaway.engine.model.session import Cancellation

T = TypeVar("T")


def specs_from_signature(module: nn.Module) -> list[InputSpec]:
    """Returns the names of the arguments of ``module.forward``, and which are optional.

    There are none if it has no signature, as a compiled ScriptModule, or takes an argument without its name.
    """
    parameters = _parameters(module)
    if any(
        p.kind is p.POSITIONAL_ONLY or (p.kind is p.VAR_POSITIONAL and not _is_open(parameters)) for p in parameters
    ):
        return []
    named = (p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
    return [InputSpec(p.name, optional=p.default is not p.empty) for p in named]


def takes_any_name(module: nn.Module) -> bool:
    """Returns whether ``module.forward`` has ``**kwargs``, in which a misspelt name may vanish."""
    return _is_open(_parameters(module))


def _parameters(module: nn.Module) -> Sequence[inspect.Parameter]:
    try:
        return tuple(inspect.signature(module.forward).parameters.values())
    except ValueError:
        return ()


def _is_open(parameters: Sequence[inspect.Parameter]) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in parameters)


def check_feature_names(spec: InputSpec) -> None:
    """Raises ``ADAPTER_INVALID`` unless the features of an input have as many names as there are, each its own."""
    names = spec.feature_names
    repeated = sorted({name for name in names if names.count(name) > 1})
    expected = spec.shape[-1] if len(spec.shape) > 1 else -1
    if repeated or not all(names):
        what = f"{repeated[0]!r} names two features" if repeated else "a feature has no name"
    elif names and expected not in (-1, len(names)):
        what = f"{len(names)} feature names, and the last axis has {expected} elements"
    else:
        return
    raise error(Reason.ADAPTER_INVALID, f"input {spec.name}: {what}", "inputs")


def named(specs: Sequence[InputSpec], tensors: Mapping[str, T]) -> Mapping[str, T]:
    """Returns ``tensors``, or what belongs to them; one tensor without a name gets that of the model's only input, or
    of the only one that forward has no default for.

    Raises:
        InvalidArgument: ``INPUT_MISSING``, if there is no such input.
    """
    if [*tensors] != [""]:
        return tensors
    names = [spec.name for spec in specs if not spec.optional or len(specs) == 1]
    if len(names) != 1:
        takes = f"the model takes {', '.join(spec.name for spec in specs)}" if specs else "its inputs have any names"
        raise error(Reason.INPUT_MISSING, f"one tensor without a name, and {takes}: send tensors by name")
    return {names[0]: tensors[""]}


def in_declared_types(specs: Sequence[InputSpec], tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Returns float64 tensors in the floating type that the model declares, and whole numbers in the wider one: NumPy's
    floats are float64 unless told otherwise, and its integers int32 on some machines.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, for a number that the declared type cannot hold.
    """
    declared = {spec.name: getattr(torch, spec.data_type) for spec in specs if spec.data_type}
    return {name: _rounded(name, tensor, declared.get(name, tensor.dtype)) for name, tensor in tensors.items()}


def in_own_type(
    model: InspectedModel, inputs: Inputs, cancellation: Cancellation, arguments: Mapping[str, Argument]
) -> Inputs:
    """Returns float64 ``inputs`` of no declared type in the type of the model's parameters, if the model refuses them.

    The first calls for a kind of inputs run a pass, which no request counts: a model may take float64 and mean it. One
    that fails in its own type too says nothing about other requests.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, for a number that the type cannot hold.
    """
    if is_in_own_type(model, inputs):
        return inputs

    def refuses(inputs: Inputs) -> bool | None:
        """Returns None for a failure that the data type has nothing to do with."""
        try:
            with torch.no_grad(), model.unrecorded():
                model.run(inputs)
        except CutawayError as failure:
            return True if _complains(failure, "float64") else None
        return False

    def rounded() -> Inputs:
        return {name: _rounded(name, tensor, model.dtype) for name, tensor in inputs.items()}

    with model.session(cancellation, arguments):
        key = _refusal(model, inputs)
        refused = model.properties[key] if key in model.properties else refuses(inputs)
        if refused is False or (refused and refuses(rounded()) is False):
            model.remembered(key, lambda: refused)
    return rounded() if refused else inputs


def is_in_own_type(model: InspectedModel, inputs: Inputs) -> bool:
    """Returns whether `in_own_type` is known to return ``inputs`` as they are, and others of their kind."""
    doubles = [name for name, tensor in inputs.items() if tensor.dtype is torch.float64]
    return not doubles or model.dtype is torch.float64 or model.properties.get(_refusal(model, inputs)) is False


def _refusal(model: InspectedModel, inputs: Inputs) -> Hashable:
    return "float64 refused", model.kind_of(inputs)


def _rounded(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns a tensor of float64 in another floating ``dtype``, and one of integers in a wider one; others as they
    are."""
    if not (dtype.is_floating_point or tensor.is_floating_point()) and tensor.dtype in _NARROWER.get(dtype, ()):
        return tensor.to(dtype)
    if tensor.dtype is not torch.float64 or not dtype.is_floating_point or dtype is torch.float64:
        return tensor
    rounded = tensor.to(dtype)
    if not bool((rounded.isfinite() == tensor.isfinite()).all()):
        what = f"holds {float(tensor.abs().max())}, which {dtype_text(rounded)}, the model's type, cannot hold"
        raise error(Reason.INVALID_VALUE, what, name)
    return rounded


_SHORT = (torch.uint8, torch.int8)
_NARROWER = {torch.int64: (*_SHORT, torch.int16, torch.int32), torch.int32: (*_SHORT, torch.int16), torch.int16: _SHORT}
"""The types whose every number an integer type has."""


def validate_inputs(specs: Sequence[InputSpec], tensors: Mapping[str, Tensor], *, any_name: bool = False) -> Inputs:
    """Returns ``tensors`` in the order of ``specs``; with ``any_name``, others follow.

    Raises:
        InvalidArgument: ``INPUT_MISSING``, ``INPUT_UNKNOWN``, ``INPUT_EMPTY``, ``INPUT_DTYPE``, ``INPUT_SHAPE`` or
            ``BATCH_MISMATCH``, with the name of the tensor.
    """
    _check_names(specs, tensors, any_name)
    if not tensors:
        raise error(Reason.INPUT_EMPTY, "no input tensor was sent")
    by_name = {spec.name: spec for spec in specs}
    ordered = {name: tensors[name] for name in (*by_name, *sorted(tensors.keys() - by_name)) if name in tensors}
    for name, tensor in ordered.items():
        with at(name):
            _check_tensor(by_name.get(name, InputSpec(name)), tensor)
    rows = {name: tensor.shape[0] for name, tensor in ordered.items()}
    if len(set(rows.values())) > 1:
        listed = ", ".join(f"{name} has {count}" for name, count in rows.items())
        remedy = "repeat an input that all rows have in common"
        raise error(Reason.BATCH_MISMATCH, f"all inputs need the same number of rows on axis 0: {listed}; {remedy}")
    return ordered


def check_features(
    specs: Sequence[InputSpec], tensors: Mapping[str, Tensor], feature_names: Mapping[str, Sequence[str]]
) -> None:
    """Checks the names that a request has for the features of ``tensors`` against those that the model has.

    Columns in another order are refused, not moved: baselines, masks and the reply would have another order than the
    caller's table.

    Raises:
        InvalidArgument: ``INPUT_FEATURES``, or ``INPUT_UNKNOWN`` for names of no tensor, with the name of the tensor.
    """
    known = {spec.name: spec.feature_names for spec in specs}
    for name, features in feature_names.items():
        with at(name):
            if name not in tensors:
                raise error(Reason.INPUT_UNKNOWN, "the names of features, and no tensor of this name is sent")
            own, shape = known.get(name, ()), list(tensors[name].shape)
            if own and tuple(features) != tuple(own):
                raise error(Reason.INPUT_FEATURES, _other_features(features, own))
            if shape[1:][-1:] != [len(features)]:
                what = f"{len(features)} names of features, and the shape is {shape}: name all of the last axis"
                raise error(Reason.INPUT_FEATURES, what)


def _other_features(features: Sequence[str], own: Sequence[str]) -> str:
    """Returns what is wrong with ``features``, which are not the model's ``own``, and what would be right."""
    sent, taken = set(features), set(own)
    unknown = [name for name in features if name not in taken]
    missing = [name for name in own if name not in sent]
    problems = []
    if unknown:
        problems.append(f"no feature of the model is {_listed(unknown, 5, own)}")
    if missing:
        problems.append(f"missing: {_listed(missing, 5)}")
    if not problems and len(features) > len(own):
        problems.append("a name comes twice")
    if not problems:
        one, other = next((one, other) for one, other in zip(features, own) if one != other)
        problems.append(f"another order than the model's: {one!r:.80} is in the place of {other!r:.80}")
    return f"{'; '.join(problems)}; the model takes, in this order, {_listed(own, 30)}"


def _listed(names: Sequence[str], most: int, known: Sequence[str] = ()) -> str:
    """Returns the first names, each with the nearest of those that are ``known``; of many, comparing takes seconds."""
    texts = [f"{name!r:.80}" for name in names[:most]]
    for number, name in enumerate(names[:most]):
        for near in near_names(name, known[:1000], n=1):
            texts[number] += f" (did you mean {near!r:.80}?)"
    return ", ".join(texts) + (f" and {len(names) - most} more" if len(names) > most else "")


def validate_arguments(
    specs: Sequence[InputSpec], tensors: Collection[str], arguments: Mapping[str, Argument], *, any_name: bool = False
) -> Sequence[InputSpec]:
    """Returns the ``specs`` of the inputs that are left when ``arguments`` take their places.

    Args:
        specs: what the model takes; empty if unknown.
        tensors: the names of the request's tensors.
        arguments: those of the request that are no tensors.
        any_name: whether the model takes other names too.

    Raises:
        InvalidArgument: ``INPUT_UNKNOWN``, ``INPUT_DTYPE``, or ``INVALID_VALUE`` for a name that is a tensor's too.
    """
    by_name = {spec.name: spec for spec in specs}
    for name, value in arguments.items():
        with at(name):
            if name in tensors:
                raise error(Reason.INVALID_VALUE, "a tensor is sent for it too; leave one out")
            if specs and name not in by_name:
                if any_name:
                    continue
                raise unknown_input(name, list(by_name))
            if specs and (by_name[name].data_type or by_name[name].shape):
                raise error(Reason.INPUT_DTYPE, f"got {value!r:.40}, the model takes {_description(by_name[name])}")
    return [spec for spec in specs if spec.name not in arguments]


def unknown_input(name: str, known: Sequence[str]) -> CutawayError:
    """Returns the error for ``name``, which is none of the ``known`` inputs."""
    near = near_names(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return error(Reason.INPUT_UNKNOWN, f"the model takes {', '.join(known)}, not {name!r}{hint}")


def _check_names(specs: Sequence[InputSpec], tensors: Mapping[str, Tensor], any_name: bool) -> None:
    if not specs:
        return
    known = [spec.name for spec in specs]
    for name in tensors:
        if name not in known and not any_name:
            with at(name):
                raise unknown_input(name, known)
    for spec in specs:
        if not spec.optional and spec.name not in tensors:
            raise error(Reason.INPUT_MISSING, f"the model needs {_description(spec)}", spec.name)


def _check_tensor(spec: InputSpec, tensor: Tensor) -> None:
    if tensor.ndim == 0:
        text = "a scalar has no batch axis; axis 0 must be the batch; a number that is no tensor goes into arguments"
        raise error(Reason.INPUT_SHAPE, text)
    if tensor.shape[0] == 0:
        raise error(Reason.INPUT_EMPTY, f"the shape is {list(tensor.shape)}: a batch of no rows; send at least one")
    if spec.data_type and dtype_text(tensor) != spec.data_type:
        is_whole = spec.data_type in FLOATING and not (tensor.is_floating_point() or tensor.is_complex())
        remedy = f"; send x.astype({spec.data_type!r}), scaled as the model takes it" if is_whole else ""
        raise error(Reason.INPUT_DTYPE, f"got {dtype_text(tensor)}, the model takes {_description(spec)}{remedy}")
    if spec.shape and not _matches(spec.shape, tensor.shape):
        remedy = "; x[None] is a batch of one" if _matches(spec.shape[1:], tensor.shape) else ""
        if tensor.ndim > 2 and _matches(spec.shape, tensor.movedim(-1, 1).shape):
            remedy = "; np.moveaxis(x, -1, 1) has the channels where the model takes them"
        raise error(Reason.INPUT_SHAPE, f"got {list(tensor.shape)}, the model takes {_description(spec)}{remedy}")


def _matches(spec: Sequence[int], shape: Sequence[int]) -> bool:
    return len(spec) == len(shape) and all(expected in (-1, size) for expected, size in zip(spec, shape))


def _description(spec: InputSpec) -> str:
    sizes = ", ".join("any" if size == -1 else str(size) for size in spec.shape)
    return f"{spec.name}: {spec.data_type or 'a tensor'}{f' [{sizes}]' if spec.shape else ''}"


_COMPLAINTS = {
    "int64": re.compile(r"\b([Ll]ong|int64|mixed dtype)\b"),
    "float64": re.compile(r"\b([Dd]ouble|float64|mixed dtype)\b"),
    "float32": re.compile(r"\b([Ff]loat|float32|mixed dtype)\b"),
}
"""Patterns of PyTorch's errors where it takes another type than these, which callers send without meaning it."""


def naming_undeclared_type(failure: CutawayError, model: InspectedModel, tensors: Mapping[str, Array]) -> CutawayError:
    """Returns ``failure``, or, where PyTorch complains of a type that lists of numbers have, one that names the input.

    They have none of their own: without a declared one, whole numbers are int64, and others float32. An embedding takes
    the first, and a linear layer does not, so that only the caller knows.
    """
    declared = {spec.name for spec in model.inputs if spec.data_type}
    own = str(model.dtype).removeprefix("torch.")
    remedies = {
        "int64": "send float32 if it takes floats (in JSON, one number with a point)",
        "float32": f"send {own}, the type of the model's parameters",
    }
    for name, array in named(model.inputs, tensors).items():
        kind = str(array.dtype)
        if name not in declared and kind in remedies and kind != own and _complains(failure, kind):
            what = f"{name} is {kind}, and the model declares no type for it: {remedies[kind]}"
            return error(Reason.MODEL_FAILED, f"{failure.message}; {what}", f"tensors.by_name.{name}")
    return failure


def _complains(failure: CutawayError, data_type: str) -> bool:
    """Returns whether PyTorch complains of a data type that callers send without meaning it."""
    told = failure.message.partition(": ")[2]  # behind what the model ran on
    return failure.reason == Reason.MODEL_FAILED and _COMPLAINTS[data_type].search(told) is not None
