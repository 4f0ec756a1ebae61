"""Methods that override what rectifiers let through on the way back.

Captum overrides ``nn.ReLU`` modules and knows no other ReLU. The references override functions too, so that a model
that calls them is found out, with what the method would have said.
"""

from __future__ import annotations

from captum import attr
from torch import nn

from cutaway.engine.evidence import at_input
from cutaway.engine.method import Method
from cutaway.engine.references import backprop as references
from cutaway.engine.subject import Inputs, Subject
from cutaway.engine.witness import Changes
from cutaway.errors import Reason, error
from cutaway.requests import Attribution, Deconvolution, GuidedBackprop, GuidedGradCam


def _refuse_edited_rectifiers(subject: Subject, request: Attribution, inputs: Inputs, edits: Changes) -> None:
    for name, numbered in edits.items():
        gradient = any(edit.point.is_gradient for _, edit in numbered)
        if gradient and isinstance(subject.tree.modules.get(name), nn.ReLU):
            raise error(
                Reason.EDIT_INAPPLICABLE,
                f"the gradient at the nn.ReLU {name!r} is edited, and the method overrides it: it can do one only",
            )


ROWS: dict[type[Attribution], Method] = {
    GuidedBackprop: Method(
        attr.GuidedBackprop,
        references.gradient,
        at_input,
        "df/dx of a pass in which raw hooks let only what is positive of the gradient leave each ReLU",
        own=references.guided_passes,
        moot=references.moot,
        overlooked=references.overlooked,
        applies_to_modules=True,
        refuse=_refuse_edited_rectifiers,
        by_row=True,
    ),
    Deconvolution: Method(
        attr.Deconvolution,
        references.gradient,
        at_input,
        "df/dx of a pass in which raw hooks pass on what is positive of the gradient that reaches each ReLU",
        own=references.deconvolved_passes,
        moot=references.moot,
        overlooked=references.overlooked,
        applies_to_modules=True,
        refuse=_refuse_edited_rectifiers,
        by_row=True,
    ),
    GuidedGradCam: Method(
        attr.GuidedGradCam,
        references.guided_grad_cam,
        references.at_input_twice,
        "guided df/dx * the layer's raw output's channels, weighted by the mean of their raw gradients, where positive",
        own=references.guided_cam_passes,
        moot=references.moot,
        overlooked=references.overlooked,
        applies_to_modules=True,
        refuse=_refuse_edited_rectifiers,
    ),
}
