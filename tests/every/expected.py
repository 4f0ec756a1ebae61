"""The combinations in which Captum is wrong, or there is nothing to say, and why; all others must raise no doubt."""

from __future__ import annotations

from collections.abc import Mapping

from tests.every.matrix import Combination, Outcome, is_silent

EXACT = 1e-6
"""How closely an answer must be Captum's by hand, in float64; relative to its largest magnitude."""

CLOSE = 2e-5
"""The same in float32, where two ways to run the same passes round differently."""

EXPECTED: Mapping[tuple[str, str], tuple[str, ...]] = {}
"""By architecture (or ``*``) and method: how the verdict, or the refusal, may begin."""


def surprise(each: Combination, found: Outcome) -> str:
    """What is not as it must be; nothing where all is."""
    method = type(each.asked).__name__
    allowed = EXPECTED.get((each.architecture.name, method)) or EXPECTED.get(("*", method)) or ("AGREES",)
    if not found.verdict.startswith(allowed):
        return f"{found.verdict}: {found.check.reason if found.check else ''}"
    bound = EXACT if "64" in str(each.dtype) else CLOSE
    if found.check is not None and not found.error <= bound:
        return f"{found.error:.3g} off Captum by hand"
    doubts = [check.reason for check in found.further if not is_silent(check)]
    return f"AGREES, and yet: {doubts[0]}" if doubts and allowed == ("AGREES",) else ""
