"""Checks of fields, and names as people write them: like spellings, the nearest name, Captum's parameters.

The constructors of this package, which `advise_on_wrong_arguments` changes, take their help from here. So does
`cutaway.contract.request_reader`, which reads mappings, YAML and the command line.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from functools import wraps
from typing import Annotated, Any, TypeAlias, TypeVar, cast

from cutaway.contract.errors import Reason, error
from cutaway.contract.values import near_names

# Checks beside a field's type: ``Annotated[int, at_least_one]``. The codec runs them, because protobuf's own errors
# name no field.


def at_least_one(value: int) -> int:
    """Returns ``value``, a count; 0 is also what a field holds that was never set.

    Raises:
        InvalidArgument: ``INVALID_VALUE``.
    """
    if value < 1:
        raise error(Reason.INVALID_VALUE, f"{value}; at least 1")
    return value


def not_nan(value: float) -> None:
    """Raises `InvalidArgument` for NaN."""
    if math.isnan(value):
        raise error(Reason.INVALID_VALUE, "NaN is no number; send one")


def distinct(elements: Iterable[object]) -> None:
    """Raises `InvalidArgument` for the first element that is there twice."""
    seen = set()
    for index, element in enumerate(elements):
        if element in seen:
            raise error(Reason.INVALID_VALUE, f"{element} is there already; name each once", f"[{index}]")
        seen.add(element)


def bounded(is_allowed: Callable[[float], bool], allowed: str) -> Callable[[float], None]:
    """Returns a check that raises `InvalidArgument`, saying what is ``allowed``; ``is_allowed`` is False for NaN."""

    def check(value: float) -> None:
        if not is_allowed(value):
            raise error(Reason.INVALID_VALUE, f"{value}; {allowed}")

    return check


def given(missing: str) -> Callable[[object], None]:
    """Returns a check that raises `InvalidArgument` with the message ``missing`` for an empty value."""

    def check(value: object) -> None:
        if not value:
            raise error(Reason.INVALID_VALUE, missing)

    return check


Probability: TypeAlias = Annotated[float, bounded(lambda value: 0 <= value <= 1, "a probability is from 0 to 1")]
Finite: TypeAlias = Annotated[float, bounded(lambda value: 0 <= value < math.inf, "a finite number from 0 up")]
Positive: TypeAlias = Annotated[float, bounded(lambda value: 0 < value < math.inf, "a finite number above 0")]
Number: TypeAlias = Annotated[float, not_nan]
Count: TypeAlias = Annotated[int, at_least_one]


CAPTUM_NAMES = {
    "abs": "absolute",
    "eps": "epsilon",
    "feature_mask": "masks",
    "layer": "module",
    "layer_baselines": "baseline",
    "method": "quadrature",
    "n_perturb_samples": "n_samples",
    "neuron_selector": "neuron",
    "nt_samples": "n_samples",
    "nt_type": "combination",
    "perturb_radius": "radius",
    "relu_attributions": "relu",
    "sliding_window_shapes": "windows",
    "stdevs": "stdev",
}
"""Our names of Captum's parameters, where they differ."""

_ADVICE = {
    name: advice
    for names, advice in (
        (
            "nt_samples nt_type stdevs n_samples stdev",
            "noisy copies of the inputs are a part of the attribution: noise=NoiseTunnel(n_samples=5, stdev=0.1)",
        ),
        (
            "internal_batch_size max_examples_per_batch memory_efficient nt_samples_batch_size perturbations_per_eval",
            "the server chooses the size of passes itself, and no value depends on it: leave it out",
        ),
        (
            "custom_attribution_func interpretable_model perm_func perturb_func similarity_func",
            "a request holds no functions: Captum's default is used",
        ),
        (
            "attr_dim_summation eps grad_kwargs interpolate_mode norm_ord normalize",
            "it cannot be set: Captum's default is used",
        ),
        (
            "attribute_to_layer_input attribute_to_neuron_input",
            "a module is explained at its output: name the module whose output is that input",
        ),
        ("show_progress", "the call shows a bar: progress=True"),
        ("verbose", "a server prints nothing: leave it out"),
        ("forward_func model", "the call names the model: leave it out"),
        ("device_ids", "the server knows the model's devices: leave it out"),
        ("return_convergence_delta", "the result has convergence_delta without it: leave it out"),
        ("return_input_shape", "attributions always have the shape of the input: leave it out"),
        ("additional_forward_args", "tensors are inputs of the request, and all other values are its arguments"),
        ("attribution_method", "the attribution holds the noise tunnel: Saliency(noise=NoiseTunnel())"),
        ("explanation_func", "the attribution holds its metrics: Saliency(metrics=(SensitivityMax(),))"),
        ("baselines", "no baseline is used here; methods such as IntegratedGradients and FeatureAblation use one"),
        ("draw_baseline_from_distrib", "GradientShap draws baselines from samples of a distribution"),
        ("enable_cross_tensor_attribution", "equal numbers in the masks of several inputs are one feature"),
        (
            "feature_mask masks",
            "features are grouped by FeatureAblation, ShapleyValues, KernelShap and Lime, which have masks",
        ),
        ("layer_mask", "each unit of the layer is a feature"),
        (
            "layer",
            "methods of layers are called so, as LayerGradCam; a neuron has a module: Neuron('fc1', (3,))",
        ),
        ("multiply_by_inputs", "only IntegratedGradients has it; all other methods keep Captum's default"),
        ("target", "the target is a field of the attribution, or of the request"),
    )
    for name in names.split()
}
"""Advice for names that a part of the request does not have, by name."""


def plain(name: object) -> str:
    """Returns ``name`` without underscores and capitals, so that ``LayerGradCam`` is the same as ``layer_grad_cam``; ""
    for a list or a mapping, which may have a million elements and is no name."""
    return "" if isinstance(name, (list, tuple, dict)) else str(name).replace("_", "").lower()


def suggestion(name: str, known: Iterable[str]) -> str:
    """Returns the name in ``known`` that is most like ``name``, or all of them, as the end of an error message."""
    known = list(known)
    near = near_names(name.lower(), known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"


def place(text: str) -> dict[str, Any]:
    """Returns the fields for ``WHERE[@POINT,...]``; only the address of an operator has a colon."""
    where, at_points, points = text.partition("@")
    fields: dict[str, Any] = {"op" if ":" in where else "module": where}
    if at_points:
        fields["at"] = points.split(",") if "," in points else points
    return fields


def field_advice(name: str, known: Iterable[str]) -> str:
    """Returns what to do instead of a field ``name`` that is not ``known``, as the end of an error message."""
    known = list(known)
    ours = "layer" if name == "module" else CAPTUM_NAMES.get(name)
    if ours in known:
        return f"did you mean {ours!r}?"
    return _ADVICE.get(name) or suggestion(name, known)


def advise_on_wrong_arguments(kind: Any) -> None:
    """Gives the `TypeError` of a dataclass for wrong arguments what would be right.

    The constructor is replaced after the class is made: type checkers, editors and `inspect.signature` see the own one.
    """
    construct = kind.__init__

    @wraps(construct)
    def __init__(self: object, *values: Any, **named: Any) -> None:
        try:
            construct(self, *values, **named)
        except TypeError:
            if problem := _wrong_arguments(kind, values, named):
                raise TypeError(problem) from None
            raise

    kind.__init__ = __init__


def _wrong_arguments(kind: Any, values: tuple[Any, ...], named: Iterable[str]) -> str:
    """Returns what is wrong with the arguments of a dataclass, and what would be right; empty if nothing is known."""
    name, known = kind.__name__, {item.name: item for item in fields(kind) if item.init}
    for given_name in named:
        if given_name not in known:
            return f"{name} has no argument {given_name!r}; {field_advice(given_name, known)}"
    positional = [item for item in known.values() if not item.kw_only]
    required = [item for item in known.values() if item.default is MISSING and item.default_factory is MISSING]
    if len(values) > len(positional):
        example = f", such as {name}({required[0].name}=...)" if required else ""
        model = "; the call names the model" if any(hasattr(value, "named_modules") for value in values) else ""
        return f"arguments of {name} have names{example}{model}"
    for item in required:
        if item.name not in named and item not in positional[: len(values)]:
            return f"{name} needs {item.name!r}, as {name}({item.name}=...): {_documented(kind, item.name)}"
    return ""


def _documented(kind: Any, name: str) -> str:
    """Returns what the documentation of a dataclass, or of what it is a kind of, says of an argument."""
    for each in kind.__mro__:
        found = re.search(rf"^ +{name}: (.*?)(?:\n +\w+: |\n *\n|\Z)", each.__doc__ or "", re.M | re.S)
        if found:
            return " ".join(found[1].split()).rstrip(".")
    return "it has no default"


C = TypeVar("C", bound=Callable[..., Any])


def advising(advice: Callable[[str, Iterable[str]], str]) -> Callable[[C], C]:
    """Returns a decorator that answers an unknown argument of a function with ``advice``, for its name and those that
    are known."""

    def decorated(function: C) -> C:
        known = list(inspect.signature(function).parameters)

        @wraps(function)
        def advised(*values: Any, **named: Any) -> Any:
            for name in named:
                if name not in known:
                    raise TypeError(f"{function.__name__} has no argument {name!r}; {advice(name, known[1:])}")
            return function(*values, **named)

        return cast("C", advised)

    return decorated
