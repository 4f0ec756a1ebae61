"""Names as people write them: spellings that are alike, the nearest right name, and Captum's names of parameters.

Every way to make a request takes its help from here: the constructors of this package, which
`explain_wrong_arguments` changes, and `cutaway.contract.request_reader`, which reads mappings, YAML and the command line.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from difflib import get_close_matches
from functools import wraps
from typing import Any

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

_TUNNEL = "noisy copies of the inputs are a part of the attribution: noise=NoiseTunnel(n_samples=5, stdev=0.1)"
_PASSES = "the server chooses the size of passes itself, and no value depends on it: leave it out"
_FUNCTION = "a request holds no functions: Captum's default is used"
_FIXED = "it cannot be set: Captum's default is used"
_OUTPUT = "a module is explained at its output: name the module whose output is that input"
_SILENT = "a server shows no progress: leave it out"
_MODEL = "the call names the model: leave it out"

_ADVICE = {
    "additional_forward_args": "tensors are inputs of the request, and all other values are its arguments",
    "attr_dim_summation": _FIXED,
    "attribute_to_layer_input": _OUTPUT,
    "attribute_to_neuron_input": _OUTPUT,
    "attribution_method": "the attribution holds the noise tunnel: Saliency(noise=NoiseTunnel())",
    "baselines": "no baseline is used here; methods such as IntegratedGradients and FeatureAblation use one",
    "custom_attribution_func": _FUNCTION,
    "device_ids": "the server knows the model's devices: leave it out",
    "draw_baseline_from_distrib": "GradientShap draws baselines from samples of a distribution",
    "enable_cross_tensor_attribution": "equal numbers in the masks of several inputs are one feature",
    "eps": _FIXED,
    "explanation_func": "a metric belongs to its attribution: Saliency(metrics=(SensitivityMax(),))",
    "feature_mask": "features cannot be grouped here",
    "forward_func": _MODEL,
    "grad_kwargs": _FIXED,
    "internal_batch_size": _PASSES,
    "interpolate_mode": _FIXED,
    "interpretable_model": _FUNCTION,
    "layer": "methods of layers are called so, as LayerGradCam; a neuron has a module: neuron=Neuron('fc1', (3,))",
    "layer_mask": "each unit of the layer is a feature",
    "max_examples_per_batch": _PASSES,
    "memory_efficient": _PASSES,
    "model": _MODEL,
    "multiply_by_inputs": "only IntegratedGradients has it; all other methods keep Captum's default",
    "n_samples": _TUNNEL,
    "norm_ord": _FIXED,
    "normalize": _FIXED,
    "nt_samples": _TUNNEL,
    "nt_samples_batch_size": _PASSES,
    "nt_type": _TUNNEL,
    "perm_func": _FUNCTION,
    "perturb_func": _FUNCTION,
    "perturbations_per_eval": _PASSES,
    "return_convergence_delta": "the result has convergence_delta without it: leave it out",
    "return_input_shape": "attributions always have the shape of the input: leave it out",
    "show_progress": _SILENT,
    "similarity_func": _FUNCTION,
    "stdev": _TUNNEL,
    "stdevs": _TUNNEL,
    "target": "the target is a field of the attribution, or of the request",
    "verbose": _SILENT,
}
"""What to do instead, by a name that the part of the request does not have."""


def plain(name: object) -> str:
    """Returns ``name`` without underscores and capitals, so that ``LayerGradCam`` is the same as ``layer_grad_cam``."""
    return str(name).replace("_", "").lower()


def suggestion(name: str, known: Iterable[str]) -> str:
    """Returns the name in ``known`` that is most like ``name``, or all of them, as the end of an error message."""
    known = list(known)
    near = get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"


def field_advice(name: str, known: Iterable[str]) -> str:
    """Returns what to do instead of a field ``name`` that is not ``known``, as the end of an error message."""
    known = list(known)
    ours = CAPTUM_NAMES.get(name)
    if ours in known:
        return f"did you mean {ours!r}?"
    return _ADVICE.get(name) or suggestion(name, known)


def explain_wrong_arguments(kind: Any) -> None:
    """Gives the `TypeError` of a dataclass for an unknown keyword argument the advice of `field_advice`.

    The constructor is replaced after the class is made: type checkers, editors and `inspect.signature` see the own one.
    """
    construct = kind.__init__
    known = [field.name for field in fields(kind)]

    @wraps(construct)
    def __init__(self: object, *values: Any, **named: Any) -> None:
        try:
            construct(self, *values, **named)
        except TypeError:
            for name in named:
                if name not in known:
                    advice = field_advice(name, known)
                    raise TypeError(f"{kind.__name__} has no argument {name!r}; {advice}") from None
            raise

    kind.__init__ = __init__
