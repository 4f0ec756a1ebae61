"""The measured servers, each its own process: ours as an operator runs it, and the peers."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file

from bench import environments
from bench.pipe import ROOT, CannotRun, Pipe
from cutaway.server.archive import builder
from cutaway.server.processes import torchserve as ours
from cutaway.server.processes.environment import WAITING
from cutaway.server.processes.torchserve import find_java
from examples.digits.digits_adapter import DigitsCNN
from examples.digits.package import package_trained
from examples.digits.train import train_and_save

WORKERS = 1
BATCH = 16
DELAY_MS = 1
"""Batch delay of every server that forms batches, in milliseconds."""

STOCK_BATCH = 1
"""Batch size of peers with their defaults."""


class Server(NamedTuple):
    """A running server.

    Attributes:
        address: ``host:port`` of its listener.
        pid: its process id.
        http_address: ``host:port`` of HTTP, if that was asked for.
    """

    address: str
    pid: int
    http_address: str = ""


class Store:
    """A directory with the measured models, each built on first use."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def weights(self) -> Path:
        """The weights file of the digits network, trained once."""
        found = self.directory / "digits.safetensors"
        if not found.exists():
            train_and_save(found)
        return found

    def of(self, *models: str, **options: str) -> Path:
        """Returns a model store with ``models`` (``digits``, ``resnet``, ``wall``); ``options`` go to the adapters."""
        store = self.directory / "-".join((*models, *options.values()))
        if not store.exists():
            for model in models:
                package_trained(self.weights(), store) if model == "digits" else _package(model, store, options)
        return store

    def real(self, network: str) -> Path:
        """Returns a model store with a network of `bench.real`."""
        store = self.directory / f"real-{network}"
        if not store.exists():
            builder.build(
                model=network,
                adapter=f"{Path(__file__).with_name('real.py')}:RealAdapter",
                weights=None,
                options={"network": network},
                batch_size=BATCH,
                max_batch_delay_ms=DELAY_MS,
                workers=WORKERS,
                response_timeout_s=600,
                destination=store,
            )
        return store

    def digits_files(self, directory: Path) -> Path:
        """Writes the digits network for peers: ``digits_net.py``, and its weights as a torch file."""
        directory.mkdir(parents=True, exist_ok=True)
        source = f"from torch import Tensor, nn\n\n\n{inspect.getsource(DigitsCNN)}"
        (directory / "digits_net.py").write_text(source)
        torch.save(load_file(self.weights()), directory / "digits.pt")
        return directory


def _package(model: str, store: Path, options: Mapping[str, str]) -> None:
    adapters = {"resnet": "ResNetAdapter", "wall": "WallAdapter"}
    builder.build(
        model=model,
        adapter=f"{Path(__file__).with_name('served.py')}:{adapters[model]}",
        weights=None,
        options=options,
        batch_size=BATCH,
        max_batch_delay_ms=DELAY_MS,
        workers=WORKERS,
        response_timeout_s=300,
        destination=store,
    )


ENGINES = {engine: (f"--engine={engine}",) for engine in ("torchserve", "processes", "embedded")}
"""Options of ``cutaway serve`` by engine: where the models run."""


_UNDISTURBED = {"CUTAWAY_IDLE_TESTS_S": "0"}
"""While the peer is measured, our workers are idle: their tests would take its time."""


@contextmanager
def cutaway(store: Path, engine: str = "torchserve", **variables: str) -> Iterator[Server]:
    """Runs ``cutaway serve`` over ``store`` with an engine of `ENGINES`, and with the environment ``variables``."""
    command = [sys.executable, "-m", "cutaway.cli", "serve", "--model-store", str(store), *ENGINES[engine]]
    command += ["--address", "127.0.0.1:0", "--log-dir", str(store / "logs")]
    environment = {**os.environ, **_UNDISTURBED, **variables}
    with (
        (store / "serve.log").open("w+") as errors,
        subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as process,
    ):
        try:
            said = http = ""
            while not said.startswith("ready: "):
                said = process.stdout.readline() if process.stdout else ""
                if said.startswith("http: "):
                    http = said.rpartition("/")[2].strip()
                if not said:
                    status = process.wait()
                    errors.seek(0)
                    raise CannotRun(f"cutaway serve ended with status {status}: {errors.read()[-300:].strip()}")
            yield Server(said.removeprefix("ready: ").strip(), process.pid, http)
        finally:
            process.terminate()
            process.communicate()


@contextmanager
def torchserve(directory: Path, handler: str, **settings: int) -> Iterator[dict[str, str]]:
    """Runs a TorchServe of the peer's environment with one model, ``peer``, whose files are in ``directory``.

    Yields:
        The addresses ``grpc`` and ``rest``.
    """
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).parent / "peers" / handler, directory)
    model = {"modelName": "peer", "handler": handler, "modelVersion": "1.0", "configFile": "model-config.yaml"}
    if (directory / "digits.pt").exists():
        model |= {"modelFile": "digits_net.py", "serializedFile": "digits.pt"}
    (directory / "MAR-INF").mkdir(exist_ok=True)
    manifest = {"createdOn": "", "runtime": "python", "model": model, "archiverVersion": "0.12.0"}
    (directory / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
    config = {"minWorkers": WORKERS, "maxWorkers": WORKERS, "batchSize": BATCH, "maxBatchDelay": DELAY_MS, **settings}
    (directory / "model-config.yaml").write_text(json.dumps(config))  # JSON is YAML
    quiet = Path(ours.__file__).with_name("log4j2.xml")
    arguments = (str(directory), str(find_java()), str(quiet))
    with Pipe(
        "bench.peers.torchserve", *arguments, python=environments.python("torchserve"), variables=WAITING
    ) as peer:
        yield peer.hear()


@contextmanager
def litserve(directory: Path, batch: int) -> Iterator[str]:
    """Runs LitServe with the digits network of ``directory`` and Captum at the given batch size; yields its address."""
    arguments = (str(directory), str(WORKERS), str(batch), str(DELAY_MS))
    with Pipe(
        "bench.peers.litserve_digits", *arguments, python=environments.python("litserve"), variables=WAITING
    ) as peer:
        yield peer.hear()


@contextmanager
def by_hand(directory: Path, **variables: str) -> Iterator[str]:
    """Runs the service by hand with the digits network of ``directory``, and with the environment ``variables``;
    yields its address."""
    with Pipe("bench.peers.by_hand_service", str(directory), variables={**WAITING, **variables}) as peer:
        yield peer.hear()


@contextmanager
def real_by_hand(network: str) -> Iterator[str]:
    """Runs the service by hand with a network of `bench.real`; yields its address."""
    with Pipe("bench.peers.real_service", network, variables=WAITING) as peer:
        yield peer.hear()


@contextmanager
def stream() -> Iterator[str]:
    """Runs a bare grpc.aio server that streams bytes; yields its address."""
    with Pipe("bench.peers.stream") as peer:
        yield peer.hear()
