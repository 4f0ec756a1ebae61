"""Compare the engine with the reference on new random examples, and say how much was compared.

python -m tests.fuzz 20000
python -m tests.fuzz 1000 --seed 7     # the same examples again
"""

from __future__ import annotations

import argparse
import random
import time

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.asking import questions
from tests.fuzz.comparing import check, tally

ROUND = 500
"""Examples under one seed: a new one comes upon new models, and Hypothesis forgets what it remembered."""


def main() -> None:
    """Run; an example on which the two differ is made small, shown and raised, with the seed it came from."""
    parser = argparse.ArgumentParser(prog="fuzz", description="Compare the engine with a slow reference.")
    parser.add_argument("examples", type=int, nargs="?", default=20_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    asked = parser.parse_args()
    torch.set_num_threads(1)  # tensors are tiny
    began = time.monotonic()
    rest, number = asked.examples, asked.seed
    while rest > 0:
        print(f"fuzz: seed {number}, {tally['examples']} examples so far", flush=True)
        _round(min(rest, ROUND), number)
        rest, number = asked.examples - tally["examples"], number + 1
    print(f"fuzz: {tally.pop('examples')} examples agree, in {time.monotonic() - began:.0f} s; compared:")
    for what, count in sorted(tally.items()):
        print(f"{count:9} {what}")


def _round(examples: int, number: int) -> None:
    """Some examples, the same for the same ``number``."""
    profile = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    profile(seed(number)(given(questions())(check)))()


if __name__ == "__main__":
    main()
