"""What ``cutaway inspect --help`` says below its options: every word that they take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cutaway.cli import attributions, edits, targets
from cutaway.requests import Combination

_CAPTURES = (
    "  call=N           only this call, from 0",
    "  path=PATH        only the tensor at this path: [0] or .logits",
    "  slice=AXIS:START:STOP:STEP",
    "                   a part along an axis, cut first; repeatable",
    "  mean=AXES max=AXES norm=AXES",
    "                   over axes, as in mean=2+3",
    "  top=K[:AXIS]     the largest elements along an axis, with their positions",
    "  dtype=TYPE       what floating tensors are sent as, such as float16",
)

_EDITS = "Each also takes call=N, rows=0+2, path=PATH and slice=AXIS:START:STOP:STEP; a tensor is a .npy file."

_PARAMETERS = (
    f"A NAME is an input's, of rules a module's; a COMBINATION is {', '.join(Combination)}. A baseline is a number, a "
    ".npy file or token:ID; a distribution, for the methods that average over one, and a mask are .npy files; windows "
    "and strides are sizes, as in windows.image=1+3+3."
)


def _section(heading: str, lines: Iterable[str], note: str = "") -> Iterator[str]:
    """A paragraph, and below it lines that Click leaves as they are: a backspace tells it so."""
    yield from (heading, "", "\b", *lines, "")
    if note:
        yield from (note, "")


HELP = "\n".join(
    [
        *_section("What may follow a capture; a parameter takes neither call nor path:", _CAPTURES),
        *_section("Edits:", map(edits.usage, edits.VERBS.values()), _EDITS),
        *_section(
            "Methods and their parameters with defaults, asked for as METHOD,KEY=VALUE,KEY=VALUE; each also takes "
            "target=TARGET, inputs=NAME, noise and metrics:",
            map(attributions.usage, attributions.METHODS.values()),
        ),
        *_section(
            "What parameters are made of; what is in brackets has a default:",
            (f"  {form}" for form in attributions.forms()),
            _PARAMETERS,
        ),
        *_section(
            "Targets, each also with output=NAME; a bare number is a class:",
            map(targets.usage, targets.TARGETS.values()),
            "Several numbers are joined by a +, as in neuron:conv2:3+1+1; VALUES and TENSOR are .npy files.",
        ),
    ]
)
