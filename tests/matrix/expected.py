"""The combinations in which Captum is wrong, or there is nothing to say, and why; all others must raise no doubt."""

from __future__ import annotations

from typing import NamedTuple

import cutaway as ca
from tests.matrix.matrix import Combination, Outcome, is_silent

EXACT = 1e-6
"""How closely an answer must be Captum's by hand, in float64; relative to its largest magnitude."""

CLOSE = 2e-5
"""The same in float32, where two ways to run the same passes round differently."""

UNRECTIFIED = ("gru", "vit", "convnext", "mixer", "mixture-of-experts")
GELU = ("vit", "convnext", "mixer")
GUIDED = ("GuidedBackprop", "Deconvolution", "GuidedGradCam")
GUIDED_NEURON = ("NeuronGuidedBackprop", "NeuronDeconvolution")
DEEP_LIFT = ("DeepLift", "DeepLiftShap", "NeuronDeepLift", "NeuronDeepLiftShap")
LAYER_DEEP_LIFT = ("LayerDeepLift", "LayerDeepLiftShap")
LRP = ("LRP", "LayerLRP")


class Exempt(NamedTuple):
    """Explanations that are not plainly right, of some models (``*``: of all), by some methods, and why.

    Attributes:
        begins: how the verdict and its cause, or the refusal, begins.
        batch: only in batches of this size; 0 for all.
    """

    models: tuple[str, ...]
    methods: tuple[str, ...]
    begins: str
    why: str
    batch: int = 0

    def covers(self, model: str, asked: ca.Attribution, batch: int = 0) -> bool:
        """Whether an explanation falls under it."""
        here = "*" in self.models or model in self.models
        return here and type(asked).__name__ in self.methods and self.batch in (0, batch)


EXEMPT = (
    Exempt(("*",), ("FeaturePermutation", "LayerFeaturePermutation"), "INCONCLUSIVE NOT_MOVED", "no other row", 1),
    Exempt(("*",), ("Lime",), "INCONCLUSIVE NOT_MOVED", "Lime's penalty leaves nothing of small effects"),
    Exempt(UNRECTIFIED, GUIDED + GUIDED_NEURON, "INCONCLUSIVE NOT_MOVED", "no ReLU to override"),
    Exempt(("resnet", "unet"), GUIDED_NEURON, "INCONCLUSIVE NOT_MOVED", "no ReLU before the neuron"),
    Exempt(("mobilenet",), GUIDED + GUIDED_NEURON, "DISAGREES FUNCTIONAL_NONLINEARITY", "a functional relu"),
    Exempt(("mobilenet", *GELU), DEEP_LIFT, "DISAGREES FUNCTIONAL_NONLINEARITY", "Captum has no rule for GELU, ReLU6"),
    Exempt(("unet",), LAYER_DEEP_LIFT, "DISAGREES FUNCTIONAL_NONLINEARITY", "a functional softmax"),
    Exempt(("cnn",), ("DeepLift", "NeuronDeepLift"), "INCONCLUSIVE OVERRIDE_LOST",
           "Captum loses the override of a ReLU before a MaxPool; here it makes no difference"),
    Exempt(("cnn",), ("DeepLiftShap", "NeuronDeepLiftShap"), "DISAGREES OVERRIDE_LOST", "here it makes one"),
    Exempt(("resnet", "unet", "many-to-many"), DEEP_LIFT + LAYER_DEEP_LIFT, "refused: METHOD_INAPPLICABLE",
           "a module is called twice"),
    Exempt(("mixture-of-experts",), DEEP_LIFT, "INCONCLUSIVE NOTHING_SEEN", "the baseline goes to other experts"),
    Exempt(("gru",), DEEP_LIFT, "INCONCLUSIVE FUNCTIONAL_NONLINEARITY", "no rule inside a GRU: its sum misses"),
    Exempt(("gru",), ("KernelShap",), "AGREES", "Captum fits in float32, under weights of 1e6: its sum misses"),
    Exempt(("mobilenet",), LAYER_DEEP_LIFT, "AGREES", "ways lead around the layer: the sum misses"),
    Exempt(("mixture-of-experts",), ("IntegratedGradients", "NeuronIntegratedGradients"), "AGREES",
           "tokens change their expert on the path: the target jumps, and the sum misses"),
    Exempt(("densenet", "resnet"), LRP, "DISAGREES FUNCTIONAL_NONLINEARITY", "a functional mean, or addition"),
    Exempt(("unet", "mobilenet", "many-to-many", "mixture-of-experts", "gru", *GELU), LRP,
           "refused: METHOD_INAPPLICABLE", "layers without a rule"),
)  # fmt: skip


def surprise(each: Combination, found: Outcome) -> str:
    """What is not as it must be; nothing where all is."""
    exempt = [one for one in exemptions(each) if found.verdict.startswith(one.begins)]
    if not exempt and found.verdict != "AGREES":
        return f"{found.verdict}: {found.check.reason if found.check else ''}"
    bound = EXACT if "64" in str(each.dtype) else CLOSE
    if found.check is not None and not found.error <= bound:
        return f"{found.error:.3g} off Captum by hand"
    doubts = [check.reason for check in found.further if not is_silent(check)]
    return f"AGREES, and yet: {doubts[0]}" if doubts and not exempt else ""


def exemptions(each: Combination) -> list[Exempt]:
    """Those that the combination falls under."""
    return [one for one in EXEMPT if one.covers(each.architecture.name, each.asked, each.batch)]
