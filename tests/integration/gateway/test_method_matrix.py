"""Every method on every architecture of the zoo, over gRPC: Captum's own answer, and no false alarm.

Each pair is asked about once here, in turn in both data types, in batches of 1 and 4 and with both ways to check;
`make matrix` asks about all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import cutaway as ca
from cutaway.contract.wire.methods import METHODS
from tests.matrix.asking import every
from tests.matrix.expected import surprise
from tests.matrix.matrix import BATCHES, DTYPES, Combination, batch_of, outcome, served
from tests.support.zoo.architecture import Architecture
from tests.support.zoo.table import ZOO

WAYS = [
    (dtype, batch, mode)
    for dtype in DTYPES
    for batch in BATCHES
    for mode in (ca.CheckMode.SAME_PASS, ca.CheckMode.INDEPENDENT)
]

ALWAYS = ("cnn", "lstm", "bert")
"""The architectures of every run; the others are slow ones, and `make matrix` asks all of them."""


@pytest.fixture(scope="module")
def client() -> Iterator[ca.Client]:
    """The zoo in both data types, served by one process."""
    with served() as client:
        yield client


def asked(architecture: Architecture) -> Iterator[Combination]:
    """Each explanation once; which way is its number's, and the architecture's."""
    several = every(architecture.name, batch_of(architecture, 4, torch.float64))
    for number, _ in enumerate(several):
        dtype, batch, mode = WAYS[(number + ZOO.index(architecture)) % len(WAYS)]
        again = every(architecture.name, batch_of(architecture, batch, dtype))
        yield Combination(architecture, again[number], dtype, batch, mode)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "architecture",
    [pytest.param(each, id=each.name, marks=[] if each.name in ALWAYS else pytest.mark.slow) for each in ZOO],
)
def test_every_method_is_captums_and_no_verdict_surprises(architecture: Architecture, client: ca.Client) -> None:
    """Within 1e-6 of Captum called by hand (2e-5 in float32); AGREES, but where Captum is known to be wrong, or to have
    nothing to say."""
    surprises = [
        f"{each.name}: {why}"
        for each in asked(architecture)
        if (why := surprise(each, outcome(client, each, compare=True)))
    ]
    assert not surprises, "\n".join(surprises)


def test_no_method_is_forgotten() -> None:
    """Some architecture is asked for each."""
    kinds = {type(each.asked) for architecture in ZOO for each in asked(architecture)}
    assert kinds == set(METHODS.kinds.values())
