"""Servers on a GPU, as operators run them: the device, a call that breaks it, and calls beside that one."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

import cutaway as ca
from cutaway.server.archive import builder
from tests.support.serving import Server, serving

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

ENGINES = ("processes", "embedded", "torchserve")
REAL = Path(__file__).parents[2] / "bench" / "real.py"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ResNet-50 and a BERT of random weights."""
    directory = tmp_path_factory.mktemp("store")
    for name in ("resnet50", "bert"):
        builder.build(
            model=name, version="1.0", adapter=f"{REAL}:RealAdapter", weights=None, options={"network": name},
            batch_size=8, max_batch_delay_ms=2, workers=1, response_timeout_s=120, destination=directory, force=True,
            random_weights=True,
        )  # fmt: skip
    return directory


@pytest.fixture(scope="module", params=ENGINES)
def server(request: pytest.FixtureRequest, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with each engine."""
    if request.param == "torchserve":
        pytest.importorskip("ts")
    with serving(store, tmp_path_factory.mktemp("logs") / "logs", "--engine", request.param) as running:
        yield running


def tokens(seed: int, most: int = 30_000) -> dict[str, np.ndarray]:
    return {"ids": np.random.default_rng(seed).integers(0, most, (1, 128))}


def image(seed: int) -> dict[str, np.ndarray]:
    return {"image": np.random.default_rng(seed).standard_normal((1, 3, 224, 224)).astype(np.float32)}


def test_models_run_on_the_gpu(server: Server) -> None:
    with ca.Client(server.address, timeout=120) as client:
        for name, inputs in (("bert", tokens(0)), ("resnet50", image(0))):
            result = client.inspect(name, inputs, input_gradients=name == "resnet50")
            assert result.provenance.device == "cuda:0"


def test_callers_beside_each_other_get_their_own_answers(server: Server) -> None:
    """Calls of both models, in batches, are equal to those of a caller alone up to the rounding of a batch."""
    asks = [("bert", tokens(seed), ["blocks.5"]) for seed in range(6)]
    asks += [("resnet50", image(seed), ["stages.1"]) for seed in range(6)]
    with ca.Client(server.address, timeout=120) as client:

        def ask(one: tuple[str, dict[str, np.ndarray], list[str]]) -> np.ndarray:
            name, inputs, layers = one
            return client.inspect(name, inputs, captures=layers).captures[layers[0]].output

        alone = [ask(one) for one in asks]
        with ThreadPoolExecutor(12) as pool:
            together = list(pool.map(ask, asks))
    for one, other in zip(alone, together, strict=True):
        assert np.abs(one - other).max() <= 5e-3 * np.abs(one).max()


def test_a_token_that_does_not_exist_fails_its_own_call_alone(server: Server) -> None:
    """On a GPU it ends CUDA in its process: another worker takes its place, and callers beside it get their answers."""
    if "embedded" in " ".join(server.process.args):  # type: ignore[arg-type]
        pytest.skip("one process: nobody can take its place")
    wrong = {"ids": np.full((1, 128), 40_000)}
    with ca.Client(server.address, timeout=120) as client, ThreadPoolExecutor(8) as pool:
        expected = client.inspect("bert", tokens(1), captures=["blocks.5"]).captures["blocks.5"].output
        honest = [pool.submit(client.inspect, "bert", tokens(1), captures=["blocks.5"]) for _ in range(6)]
        broken = pool.submit(client.inspect, "bert", wrong, captures=["blocks.5"])
        honest += [pool.submit(client.inspect, "bert", tokens(1), captures=["blocks.5"]) for _ in range(6)]
        with pytest.raises(ca.CutawayError) as caught:
            broken.result()
        for each in honest:
            got = each.result().captures["blocks.5"].output
            assert np.abs(got - expected).max() <= 5e-3 * np.abs(expected).max()
    # CUDA's own libraries may end the process before it has replied, such as when memory for captures is given back.
    assert caught.value.reason in ("MODEL_FAILED", "WORKER_KILLED")
