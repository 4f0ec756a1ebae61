"""The matrix as a page: a row for each architecture, a column for each method, verdicts and causes inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape

from tests.matrix.expected import exemptions
from tests.matrix.matrix import Combination, Outcome

Cells = Mapping[tuple[str, str], Sequence[tuple[Combination, Outcome]]]
"""What was asked and answered, by architecture and method."""

WORST_FIRST = ("DISAGREES", "INCONCLUSIVE", "refused", "AGREES")

MEANINGS = {
    "AGREES": "Captum's attribution is what raw hooks say it must be.",
    "INCONCLUSIVE": "The comparison proves nothing for this model or input; the cause says why.",
    "DISAGREES": "Captum's attribution is not what the method must return here; the cause says why.",
    "refused": "The method cannot be applied to this model; the error says why.",
}

_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem; color: #1a1a1a; background: #fff; }
table { border-collapse: collapse; font-size: 12px; }
th, td { border: 1px solid #ddd; padding: 3px 6px; text-align: left; vertical-align: top; }
thead th { writing-mode: vertical-rl; transform: rotate(180deg); font-weight: 500; }
tbody th, .corner { position: sticky; left: 0; background: #fff; white-space: nowrap; }
.AGREES { background: #d9f0d3; } .INCONCLUSIVE { background: #fff3c4; }
.DISAGREES { background: #fbd0c9; } .refused { background: #e8e8e8; } .none { background: #fff; color: #999; }
.legend span { padding: 2px 8px; margin-right: 8px; } small { color: #555; display: block; max-width: 9rem; }
.scroll { overflow-x: auto; }
"""


def page(outcomes: Sequence[tuple[Combination, Outcome]]) -> str:
    """Returns the page as HTML."""
    cells: dict[tuple[str, str], list[tuple[Combination, Outcome]]] = {}
    for each, found in outcomes:
        cells.setdefault((each.architecture.name, type(each.asked).__name__), []).append((each, found))
    architectures, methods = (list(dict.fromkeys(key[place] for key in cells)) for place in (0, 1))
    head = "".join(f"<th>{escape(method)}</th>" for method in methods)
    rows = "\n".join(
        f"<tr><th>{escape(name)}</th>{''.join(_cell(cells.get((name, method), ())) for method in methods)}</tr>"
        for name in architectures
    )
    counts = Counter(_kind(found) for _, found in outcomes)
    legend = "".join(
        f'<p class="legend"><span class="{kind}">{kind}</span> {counts[kind]:,} answers. {escape(meaning)}</p>'
        for kind, meaning in MEANINGS.items()
    )
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Verdicts by model and method</title><style>{_STYLE}</style>
<h1>Verdicts by model and method</h1>
<p>Each cell is one method on one model, in two data types, for one row and for four, in both modes of the check. It has
the worst verdict, how many of the answers have it, and its cause. Hover a cell for the reason.</p>
{legend}
<div class="scroll"><table><thead><tr><th class="corner"></th>{head}</tr></thead><tbody>
{rows}
</tbody></table></div></html>
"""


def _cell(answers: Sequence[tuple[Combination, Outcome]]) -> str:
    if not answers:
        return '<td class="none">–</td>'
    each, worst = min(answers, key=lambda answer: WORST_FIRST.index(_kind(answer[1])))
    kind = _kind(worst)
    alike = sum(_kind(found) == kind for _, found in answers)
    why = next((exempt.why for exempt in exemptions(each) if worst.verdict.startswith(exempt.begins)), "")
    cause = worst.check.cause.value if worst.check and worst.check.cause else ""
    reason = worst.check.reason if worst.check else worst.refusal
    details = f"<small>{escape(cause)}{': ' if cause and why else ''}{escape(why)}</small>" if cause or why else ""
    share = "" if alike == len(answers) else f" {alike} of {len(answers)}"
    return f'<td class="{kind}" title="{escape(reason, quote=True)}">{kind}{share}{details}</td>'


def _kind(found: Outcome) -> str:
    return found.verdict.partition(" ")[0].rstrip(":")
