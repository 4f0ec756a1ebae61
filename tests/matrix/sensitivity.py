"""How large an error of the backward pass must be to be found: a table of detection rates, and a picture of it.

    python -m tests.matrix.sensitivity            every network; prints the table
    python -m tests.matrix.sensitivity 3          3 networks of each family, and 3 trained ones
    python -m tests.matrix.sensitivity --write    every network; writes the table and the picture of docs/checks.md

In each network, one place passes gradients on times a factor; found is a verdict other than AGREES. The column of no
error has the false alarms: how many networks without a fault were doubted.
"""

from __future__ import annotations

import argparse
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import torch
from rich.progress import track

import cutaway as ca
from cutaway.contract.requests import CheckMode
from cutaway.contract.results import Verdict
from tests.support.checked_attributions import verdict
from tests.support.scaled_gradients import NETWORKS, explained

ERRORS: Mapping[str, float] = {
    "none": 1.0, "1 %": 1.01, "2 %": 1.02, "5 %": 1.05, "10 %": 1.1, "20 %": 1.2, "50 %": 1.5,
    "sign": -1.0,
}  # fmt: skip
"""The factors, by the size of the error."""

DTYPES = (torch.float64, torch.float32, torch.bfloat16)
RANDOM, TRAINED = 17, 4
"""How many networks of each family: 102 with random weights, and 24 that were trained."""

DOCUMENT = Path(__file__).parents[2] / "docs" / "checks.md"
PICTURE = DOCUMENT.with_name("sensitivity.png")


class Kind(NamedTuple):
    """Networks of one family, with random or with trained weights, in one data type."""

    family: str
    trained: bool
    dtype: torch.dtype

    @property
    def dtype_name(self) -> str:
        """Without ``torch.``."""
        return str(self.dtype).removeprefix("torch.")


Rates: TypeAlias = Mapping[Kind, Sequence[float]]
"""The share of the networks that did not get AGREES, for each of `ERRORS`."""


def kinds() -> list[Kind]:
    """All kinds, in the order of the table."""
    return [Kind(family, trained, dtype) for family in NETWORKS for trained in (False, True) for dtype in DTYPES]


def rate(kind: Kind, factor: float, count: int) -> float:
    """Returns the share of ``count`` networks whose explanation does not get AGREES."""
    asked, mode = ca.InputXGradient(), CheckMode.SAME_PASS
    found = [
        verdict(explained(kind.family, factor, asked, kind.dtype, mode, seed, trained=kind.trained))
        for seed in range(count)
    ]
    return sum(each is not Verdict.AGREES for each in found) / count


def table(rates: Rates) -> Iterator[str]:
    """Yields the lines of the table, in Markdown."""
    yield f"| family | weights | data type | {' | '.join(ERRORS)} |"
    yield "|---|---|---|" + "---|" * len(ERRORS)
    for kind, found in rates.items():
        weights = "trained" if kind.trained else "random"
        yield f"| {kind.family} | {weights} | {kind.dtype_name} | {' | '.join(f'{each:.0%}' for each in found)} |"


def draw(rates: Rates, path: Path) -> None:
    """Draws a panel for each family: the rate against the size of the error."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(10, 5.5), sharex=True, sharey=True, layout="constrained")
    colours = dict(zip(DTYPES, ("#1b7837", "#2166ac", "#d6604d")))
    for panel, family in zip(axes.flat, NETWORKS):
        for kind, found in rates.items():
            if kind.family == family:
                label = f"{kind.dtype_name}, {'trained' if kind.trained else 'random'}"
                style = "--" if kind.trained else "-"
                shares = [100 * each for each in found]
                panel.plot(list(ERRORS), shares, style, color=colours[kind.dtype], label=label, marker=".")
        panel.axhline(95, color="grey", linewidth=0.5)
        panel.set_title(family)
        panel.tick_params(axis="x", rotation=45)
    figure.supxlabel("error of the gradient at one place")
    figure.supylabel("found, % of the networks")
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside right upper")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measures, and prints or writes."""
    parser = argparse.ArgumentParser(prog="sensitivity", description="How large an error of a gradient is found.")
    parser.add_argument("count", nargs="?", type=int, help="networks of each family, random and trained")
    parser.add_argument("--write", action="store_true", help="write the table and the picture of docs/checks.md")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rates = {
        kind: [rate(kind, factor, options.count or (TRAINED if kind.trained else RANDOM)) for factor in ERRORS.values()]
        for kind in track(kinds(), "networks")
    }
    lines = "\n".join(table(rates))
    print(lines)
    if options.write:
        marks = "<!-- sensitivity -->\n", "<!-- end of sensitivity -->"
        text = re.sub(f"(?s){marks[0]}.*{marks[1]}", f"{marks[0]}{lines}\n{marks[1]}", DOCUMENT.read_text())
        DOCUMENT.write_text(text)
        draw(rates, PICTURE)


if __name__ == "__main__":
    main()
