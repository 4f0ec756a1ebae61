"""Runs the matrix, says what became of it, and writes it as a page: ``python -m tests.matrix [ARCHITECTURE ...]``."""

from __future__ import annotations

import argparse
import time
import warnings
from collections import Counter
from pathlib import Path

import torch

from tests.matrix.expected import surprise
from tests.matrix.matrix import Combination, Outcome, combinations, outcome, served
from tests.matrix.page import page


def main() -> None:
    """Asks everything; exits with status 1 where something is not as it must be."""
    parser = argparse.ArgumentParser(prog="matrix", description="Every method on every architecture, over gRPC.")
    parser.add_argument("architectures", nargs="*", help="only these")
    parser.add_argument("--page", type=Path, default=Path("build/matrix.html"), help="where the page is written")
    options = parser.parse_args()
    only = options.architectures
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)  # tensors are tiny
    began = time.monotonic()
    verdicts: Counter[str] = Counter()
    surprises = 0
    outcomes: list[tuple[Combination, Outcome]] = []
    with served() as client:
        for each in combinations():
            if only and each.architecture.name not in only:
                continue
            found = outcome(client, each, compare=True)
            verdicts[found.verdict.split(":")[0]] += 1
            outcomes.append((each, found))
            if why := surprise(each, found):
                surprises += 1
                print(f"{each.name}: {why}")
    for verdict, count in verdicts.most_common():
        print(f"{count:6} {verdict}")
    options.page.parent.mkdir(parents=True, exist_ok=True)
    options.page.write_text(page(outcomes))
    print(f"page: {options.page}")
    print(f"{verdicts.total()} combinations in {time.monotonic() - began:.0f} s, {surprises} not as they must be")
    raise SystemExit(1 if surprises else 0)


if __name__ == "__main__":
    main()
