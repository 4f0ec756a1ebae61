"""How large an error of the backward pass must be to be found: a table of detection rates.

    python -m tests.matrix.sensitivity          20 networks of each family
    python -m tests.matrix.sensitivity 5        5 of each

In each network, one place passes gradients on times a factor; found is a verdict other than AGREES. The column of the
factor 1 has the false alarms: how many networks without a fault were doubted.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator

import torch

import cutaway as ca
from cutaway.requests import CheckMode
from cutaway.results import Verdict
from tests.support.checked_attributions import verdict
from tests.support.scaled_gradients import NETWORKS, explained

FACTORS = (1.0, 1.001, 1.01, 1.02, 1.05, 1.1, 1.2, 1.5, -1.0)
DTYPES = (torch.float64, torch.float32, torch.bfloat16)
NETWORKS_OF_A_FAMILY = 20


def rate(network: str, factor: float, dtype: torch.dtype, count: int) -> float:
    """Returns the share of ``count`` new networks whose explanation does not get AGREES."""
    asked, mode = ca.InputXGradient(), CheckMode.SAME_PASS
    found = [verdict(explained(network, factor, asked, dtype, mode, seed)) for seed in range(count)]
    return sum(each is not Verdict.AGREES for each in found) / count


def table(count: int) -> Iterator[str]:
    """Yields the lines of the table, in Markdown."""
    yield "| family | data type | " + " | ".join(f"{factor:g}" for factor in FACTORS) + " |"
    yield "|---|---|" + "---|" * len(FACTORS)
    for network in NETWORKS:
        for dtype in DTYPES:
            rates = " | ".join(f"{rate(network, factor, dtype, count):.0%}" for factor in FACTORS)
            yield f"| {network} | {str(dtype).removeprefix('torch.')} | {rates} |"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for line in table(int(sys.argv[1]) if len(sys.argv) > 1 else NETWORKS_OF_A_FAMILY):
        print(line, flush=True)
