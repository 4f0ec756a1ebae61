"""The kinds of a reply's tensors for the client for TypeScript, by message and field of the contract.

They are those of `cutaway.contract.results.arrays`: ``python -m tools.array_kinds`` writes them (`make docs`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cutaway.contract.results import (
    AttackResult,
    AttributionResult,
    CounterfactualResult,
    InspectResult,
    MetricResult,
    TokenAttribution,
)
from cutaway.contract.results.arrays import CAPTURE, POSITIONS, array_fields

FILE = Path(__file__).parent.parent / "clients/typescript/src/kinds.ts"

_MESSAGES = {
    InspectResult: "InspectResponse",
    AttributionResult: "Attribution",
    TokenAttribution: "TokenAttribution",
    MetricResult: "Metric",
    AttackResult: "Attack",
    CounterfactualResult: "Counterfactual",
}
_RENAMED = {"unedited": "unedited_predictions"}


def source() -> str:
    """Returns the text of the file."""
    lines = [f"  {field}: {kind!r},".replace("'", '"') for field, kind in _kinds()]
    head = "/** The kinds of tensors, by message and field. Written by tools/array_kinds.py from the server's own. */\n"
    return "\n".join([f"{head}export const KINDS: Readonly<Partial<Record<string, string>>> = {{", *lines, "};\n"])


def _kinds() -> Iterator[tuple[str, str]]:
    for kind, message in _MESSAGES.items():
        for name, field in array_fields(kind).items():
            if field.number is None:
                yield f"'{message}.{_RENAMED.get(name, name)}'", field.kind
    yield "'CapturedLeaf.tensor'", CAPTURE
    yield "'CapturedLeaf.positions'", POSITIONS


if __name__ == "__main__":
    FILE.write_text(source(), "utf-8")
