"""One TorchServe, as a process of our own.

The ``torchserve`` command leaves behind a server known by one pid file for the whole machine. Here the JVM is
started directly, as ``ts/model_server.py`` does it: it and its workers are ours to end, it listens only on
loopback, on ports that were free, and what it writes goes when it goes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import psutil

from cutaway import archive, threads
from cutaway.errors import CutawayError, Reason, error
from cutaway.gateway.java import find_java
from cutaway.gateway.processes import ProcessGroup
from cutaway.scratch import scratch_directory

LOG_NAME = "torchserve.log"
KEY_NAME = "key_file.json"
_LOG_CONFIG = Path(__file__).with_name("log4j2.xml")
_ATTEMPTS = 5  # at starting, should somebody else take a port first
_TAIL_BYTES = 16 << 10
_SHOWN = 2000  # characters of the log in an error
_TOKEN_MINUTES = 100 * 365 * 24 * 60  # each start makes new ones
_FRAMING_BYTES = 64 << 10  # for a model's name, a deadline and the like around a message

_CONFIG = """\
inference_address=http://127.0.0.1:{ports.rest}
management_address=http://127.0.0.1:{ports.rest}
grpc_inference_address=127.0.0.1
grpc_inference_port={ports.inference}
grpc_management_address=127.0.0.1
grpc_management_port={ports.management}
initial_worker_port={ports.first_worker}
max_request_size={largest}
max_response_size={largest}
# The front door decides how many calls may wait; a full queue here is reported like a model without workers.
job_queue_size=1000
# Other users of this machine reach these ports too: a call carries a token, from a file that they cannot read.
disable_token_authorization=false
token_expiration_min={token_minutes}
# Nobody can bring models along: the archives named at the start are all there is.
enable_model_api=false
allowed_urls=file:///nowhere
install_py_dep_per_model=false
enable_envvars_config=false
# The front door has metrics; these would start a Python process every minute.
enable_metrics_api=false
disable_system_metrics=true
"""


class _Ports(NamedTuple):
    rest: int = 0
    inference: int = 0
    management: int = 0
    first_worker: int = 0  # a port only where Unix sockets cannot be used, else part of their names


class Endpoint(NamedTuple):
    """Where a TorchServe takes calls, and the token that they carry."""

    address: str
    token: str


class TorchServe:
    """A context manager that runs one TorchServe.

    Args:
        model_store: the directory that holds the archives.
        models: the archives' file names; the first of several versions of a model is its default.
        workers: how many workers each model gets, or None for what its archive says.
        batch: how many calls TorchServe gathers for a worker, or None for what the archive says.
        max_message_bytes: the largest request and the largest reply; a larger reply costs the worker its life.
        log_dir: where ``torchserve.log`` goes, or None to lose it with the server.
        number: which it is, from 0, of several that share this machine; the second logs to ``torchserve-2.log``.
        of: how many they are.
        heap_bytes: the largest heap of the JVM, or None for its default, a quarter of the memory.
        start_timeout_s: how long it may take until it listens.
        grace_s: how long calls under way may go on when the ``with`` block is left.
    """

    def __init__(
        self,
        model_store: Path,
        models: Sequence[str],
        *,
        workers: int | None = None,
        batch: int | None = None,
        max_message_bytes: int,
        log_dir: Path | None = None,
        number: int = 0,
        of: int = 1,
        heap_bytes: int | None = None,
        start_timeout_s: float = 120.0,
        grace_s: float = 10.0,
    ) -> None:
        self._archives = [model_store / name for name in models]
        self._workers = workers
        self._batch = batch
        self._max_message_bytes = max_message_bytes
        self._log_dir = log_dir
        self._log_name = LOG_NAME if number == 0 else f"torchserve-{number + 1}.log"
        self._of = of
        self._heap_bytes = heap_bytes
        self._start_timeout_s = start_timeout_s
        self._grace_s = grace_s
        self._ports = _Ports()
        self._token = ""
        self._log = _Log()
        self._group: ProcessGroup | None = None
        self._cleanup = ExitStack()

    def __enter__(self) -> TorchServe:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(self._grace_s)

    @property
    def inference(self) -> Endpoint:
        """Where gRPC's ``InferenceAPIsService`` listens."""
        return Endpoint(f"127.0.0.1:{self._ports.inference}", self._token)

    @property
    def management_address(self) -> str:
        """Where gRPC's ``ManagementAPIsService`` listens."""
        return f"127.0.0.1:{self._ports.management}"

    @property
    def rest_address(self) -> str:
        """Where both of them listen for plain HTTP."""
        return f"127.0.0.1:{self._ports.rest}"

    def start(self) -> None:
        """Start the server and return once it listens; its workers load their models from then on."""
        java = find_java()
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._start(java)
            except CutawayError:
                if attempt == _ATTEMPTS or "Failed to bind" not in self._log.tail():
                    raise

    def wait_listening(self, timeout_s: float) -> None:
        """Return once both gRPC ports accept connections; raise if the server ends or takes too long."""
        deadline = time.monotonic() + timeout_s
        while not self._listens():
            status = self.poll()
            if status is not None:
                raise self._failed(f"TorchServe ended with status {status} before it listened")
            if time.monotonic() > deadline:
                raise self._failed(f"TorchServe did not listen within {timeout_s:g} s")
            time.sleep(0.05)

    def poll(self) -> int | None:
        """None while the server runs, else its exit status."""
        if self._group is None:
            raise error(Reason.INTERNAL, "TorchServe was not started")
        return self._group.poll()

    def stop(self, grace_s: float = 10.0) -> None:
        """End the server. Calls under way may go on for ``grace_s``; nothing of it is left afterwards."""
        with self._cleanup:
            if self._group is not None:
                self._group.terminate(grace_s)

    def log_tail(self) -> str:
        """The end of what the server has logged since it was last started, also once it has stopped."""
        return self._log.tail()

    def _start(self, java: Path) -> None:
        with ExitStack() as undo:
            directory = Path(undo.enter_context(scratch_directory()))
            self._ports = _Ports(*_free_ports(len(_Ports._fields)))
            self._log = _Log((self._log_dir or directory) / self._log_name)
            undo.callback(self._log.close)
            self._write_files(directory)
            with self._log.path.open("ab") as output:
                self._group = ProcessGroup(self._command(java, directory), directory, self._environment(), output)
            undo.callback(self._group.kill)
            self.wait_listening(self._start_timeout_s)
            self._token = json.loads((directory / KEY_NAME).read_text())["inference"]["key"]
            self._cleanup = undo.pop_all()

    def _write_files(self, directory: Path) -> None:
        config = _CONFIG.format(
            ports=self._ports, token_minutes=_TOKEN_MINUTES, largest=self._max_message_bytes + _FRAMING_BYTES
        )
        (directory / "config.properties").write_text(config)
        # gRPC's own Java code logs past log4j: twenty lines for every message that is too large.
        (directory / "logging.properties").write_text(".level=OFF\n")
        # Unpacked here and not by TorchServe: it cannot give a model another number of workers than its archive
        # says, and would only log that an archive is damaged, and serve the others.
        for path in self._archives:
            archive.unpack(path, directory / "store" / path.stem, workers=self._workers, batch=self._batch)

    def _command(self, java: Path, directory: Path) -> list[str]:
        home = _torchserve_home()
        heap = [] if self._heap_bytes is None else [f"-Xmx{self._heap_bytes}"]
        return [
            *(str(java), *heap),
            # What it runs is small: better code, and a collector with threads, cost a core more than they bring.
            *("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
            "-XX:-UsePerfData",  # writes to /tmp, and leaves it there when killed
            f"-Djava.io.tmpdir={directory}",  # for the workers' sockets: two servers would share those in /tmp
            f"-Dmodel_server_home={home}",
            f"-Dlog4j.configurationFile={_LOG_CONFIG.as_uri()}",
            f"-Dcutaway.log={self._log.path}",
            f"-Djava.util.logging.config.file={directory}/logging.properties",
            *("-cp", f"{home}/ts/frontend/*", "org.pytorch.serve.ModelServer"),
            *("--python", sys.executable),
            *("-f", str(directory / "config.properties")),
            *("-s", str(directory / "store"), "-ncs"),
            *("-m", *(path.stem for path in self._archives)),
        ]

    def _environment(self) -> dict[str, str]:
        """Our own environment, which the workers inherit, less what would overrule the configuration."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TS_")}
        environment["PYTHONUNBUFFERED"] = "1"  # what a model prints is in the log before it crashes
        environment["CUTAWAY_MAX_MESSAGE_BYTES"] = str(self._max_message_bytes)
        environment["CUTAWAY_REPLICAS"] = str(self._of)
        threads.wait_briefly(environment)
        # Large tensors in large pages: most of the time of a 64 MiB capture was the kernel handing out small ones.
        environment.setdefault("THP_MEM_ALLOC_ENABLE", "1")
        if path := environment.get("PYTHONPATH"):  # the workers run in another directory
            environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, path.split(os.pathsep)))
        return environment

    def _listens(self) -> bool:
        """Whether both ports are the server's own by now, rather than those of somebody who came first."""
        if self._group is None:
            return False
        try:
            connections = psutil.Process(self._group.pid).net_connections("tcp")
        except psutil.Error:
            return False
        open_ports = {item.laddr.port for item in connections if item.status == psutil.CONN_LISTEN}
        return {self._ports.inference, self._ports.management} <= open_ports

    def _failed(self, what: str) -> CutawayError:
        return error(Reason.BACKEND_UNAVAILABLE, f"{what}; its log ends:\n{self._log.tail()[-_SHOWN:]}")


class _Log:
    """The file that a server logs to, from where it began to."""

    def __init__(self, path: Path = Path(os.devnull)) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path.resolve()
        with path.open("ab") as log:
            self._begin = log.tell()
        self._last_words: str | None = None

    def tail(self) -> str:
        if self._last_words is not None:
            return self._last_words
        with self.path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            begin = self._begin if self._begin <= size else 0  # else it was rotated
            log.seek(max(begin, size - _TAIL_BYTES))
            return log.read().decode(errors="replace")

    def close(self) -> None:
        """Keep the tail, for the file may go."""
        self._last_words = self.tail()


def _free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on at the moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [item.getsockname()[1] for item in sockets]


def _torchserve_home() -> Path:
    spec = importlib.util.find_spec("ts")
    if spec is None or spec.origin is None:
        raise error(Reason.BACKEND_UNAVAILABLE, "TorchServe is not installed: pip install 'cutaway[server]'")
    return Path(spec.origin).parent.parent
