"""Runs an unpacked image as Kubernetes would, and tests it: ``python -m tests.support.container ROOT CONFIG``.

``scripts/container`` builds the image and calls this. The image's own user, environment and commands are used, as the
first process of namespaces of its own: without privileges, on a root file system that cannot be written to, with no
network but its own loopback.
"""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from examples.digits.package import package

START_TIMEOUT_S = 180.0
OPENSHIFT = "1000650000:0"
"""A user as OpenShift draws one for a namespace, with no name, and of the group root."""

GRACE_S = 60.0
"""More than Cutaway's default: a call must end within it on a slow machine too."""

_ENTER = """\
mount --make-rprivate /
mount --bind "$1" "$1"
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
mount -t tmpfs -o mode=1777,nosuid,nodev,"$2" tmpfs "$1/tmp"
log=$(stat --format=mode=0%a,uid=%u,gid=%g "$1/var/log/cutaway") # a volume that the image makes is like its folder
mount -t tmpfs -o "$log",nosuid,nodev,noexec tmpfs "$1/var/log/cutaway"
mount --bind "$3" "$1/models"
mount -o remount,bind,ro "$1/models"
mount -o remount,bind,ro "$1"
ip link set lo up
hostname localhost
root=$1 user=$4
shift 4
exec setpriv --no-new-privs --inh-caps=-all chroot --userspec="$user" --groups= "$root" env --chdir=/tmp "$@"
"""

_CALL = """
import sys
import numpy as np
import cutaway as ca

with ca.Client("127.0.0.1:50051") as client:
    print(*(model.model for model in client.list_models()), flush=True)
    image = np.random.default_rng(1).random((1, 1, 8, 8), np.float32)
    asked = [ca.IntegratedGradients(n_steps=1024)] * int(sys.argv[1]) + [ca.LayerGradCam(layer="conv2")]
    result = client.inspect("digits", {"image": image}, captures=[ca.Capture("conv*")], attributions=asked)
verdicts = [check.verdict for each in result.attributions for check in each.checks]
assert verdicts and set(verdicts) == {"AGREES"}, verdicts
assert result.captures["conv2"].output.shape == (1, 32, 8, 8), result.captures["conv2"].output.shape
print("answered:", result.predictions["output"].shape, *verdicts)
"""


@dataclass(frozen=True)
class Image:
    """What an image says of itself.

    Attributes:
        root: where its files lie.
        config: its configuration, as Docker names it.
    """

    root: Path
    config: dict

    @property
    def user(self) -> int:
        return int(self.config["User"].partition(":")[0])

    @property
    def group(self) -> int:
        return int(self.config["User"].partition(":")[2])

    @property
    def command(self) -> list[str]:
        return [*self.config["Entrypoint"], *self.config["Cmd"]]

    @property
    def health_check(self) -> list[str]:
        kind, *command = self.config["Healthcheck"]["Test"]
        assert kind == "CMD", "a health check in a shell needs a shell"
        return command


@dataclass(frozen=True)
class Container:
    """A running image: its first process, and what that has said."""

    image: Image
    process: psutil.Process
    outside: subprocess.Popen[bytes]
    said: Path

    @property
    def words(self) -> str:
        """What it has said so far."""
        return self.said.read_text()

    def run(self, *command: str, status: int = 0) -> str:
        """Run a command inside, as the image's user; what it says."""
        space = ["nsenter", f"--target={self.process.pid}", "--mount", "--pid", "--net", "--root", "--wd"]
        whole = [
            *space,
            f"--setuid={self.image.user}",
            f"--setgid={self.image.group}",
            "env",
            "-i",
            *self.image.config["Env"],
            *command,
        ]
        done = subprocess.run(whole, capture_output=True, text=True, timeout=60)
        assert done.returncode == status, f"{shlex.join(command)}: {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def call(self, attributions: int) -> subprocess.Popen[str]:
        """Start a client in the container's network, outside of it otherwise; it is about to ask for so many."""
        command = ["nsenter", f"--target={self.process.pid}", "--net", sys.executable, "-c", _CALL, str(attributions)]
        client = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert client.stdout is not None
        assert client.stdout.readline() == "digits\n", client.stdout.read()
        return client

    def members(self) -> list[psutil.Process]:
        """Every process in the container's process namespace."""
        space = Path(f"/proc/{self.process.pid}/ns/pid").readlink()
        return [each for each in psutil.process_iter() if _namespace(each) == space]


def _namespace(process: psutil.Process) -> Path | None:
    try:
        return Path(f"/proc/{process.pid}/ns/pid").readlink()
    except OSError:  # it ended meanwhile
        return None


@contextmanager
def started(image: Image, store: Path, *, temporary: str = "exec") -> Iterator[Container]:
    """The image, started as it says, with ``store`` at ``/models`` and ``/tmp`` mounted with option ``temporary``."""
    with tempfile.TemporaryDirectory() as scratch:
        said = Path(scratch) / "said"
        space = ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child"]
        enter = ["sh", "-euc", _ENTER, "sh", str(image.root), temporary, str(store), image.config["User"]]
        variables = ["-i", *image.config["Env"], f"CUTAWAY_GRACE_S={GRACE_S:g}"]
        with said.open("wb") as output:
            outside = subprocess.Popen([*space, *enter, *variables, *image.command], stdout=output, stderr=output)
        try:
            _until(lambda: _first(outside).name() == image.command[0], outside, said)
            yield Container(image, _first(outside), outside, said)
        finally:
            outside.kill()
            outside.wait()


def _first(outside: subprocess.Popen[bytes]) -> psutil.Process:
    """The process that is the first one inside; before it is there, the one that makes it."""
    process = psutil.Process(outside.pid)
    return next(iter(process.children()), process)


def _until(reached: Callable[[], bool], outside: subprocess.Popen[bytes], said: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not reached():
        assert outside.poll() is None, f"it ended:\n{said.read_text()}"
        assert time.monotonic() < deadline, f"it takes too long:\n{said.read_text()}"
        time.sleep(0.05)


@contextmanager
def running(image: Image, store: Path, *, temporary: str = "exec") -> Iterator[Container]:
    """The same, once it is ready."""
    with started(image, store, temporary=temporary) as container:
        _until(lambda: "ready: " in container.words, container.outside, container.said)
        yield container


def check_privileges(container: Container) -> str:
    """Nothing in there is root, or can become it."""
    members = container.members()
    for process in members:
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
        assert set(status["Uid"].split()) == {str(container.image.user)}, status["Uid"]
        assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0, "capabilities"
        assert status["NoNewPrivs"].strip() == "1", "may gain privileges"
    return f"{len(members)} processes, all of user {container.image.user}, without capabilities"


def check_files(container: Container) -> str:
    """Nothing can be written to but what is mounted for it."""
    for place in ("/", "/opt/cutaway", "/models", "/etc"):
        refusal = container.run("touch", f"{place}/here", status=1)
        assert "Read-only file system" in refusal, refusal
    written = container.run("find", "/tmp", "/var/log/cutaway", "-type", "f").split()
    assert "/var/log/cutaway/torchserve.log" in written, written
    return f"only /tmp and /var/log/cutaway can be written to ({len(written)} files there)"


def check_health(container: Container) -> str:
    """The image's health check passes, and fails where nobody serves."""
    container.run(*container.image.health_check)
    refusal = container.run("env", "CUTAWAY_ADDRESS=127.0.0.1:1", *container.image.health_check, status=1)
    return f"its health check passes; where nobody listens: {refusal.splitlines()[0][:60]}"


def check_answer(container: Container) -> str:
    """A client outside is answered, and every check agrees."""
    said, _ = container.call(1).communicate(timeout=60)
    assert said.startswith("answered: "), said
    return said.strip()


def check_orphans(container: Container) -> str:
    """Who has lost its parent is buried when it ends, as the workers of a TorchServe that was killed are."""
    container.run("sh", "-c", "sleep 0.2 &")
    time.sleep(1.0)
    assert not any(each.status() == psutil.STATUS_ZOMBIE for each in container.members()), "a zombie is left"
    return "no zombies"


def check_end(container: Container) -> str:
    """SIGTERM during a call: the call is answered, the exit status is 0, in time, and nothing is left."""
    members = container.members()
    call = container.call(attributions=24)
    time.sleep(0.3)
    assert call.poll() is None, "the call must be under way"
    begun = time.monotonic()
    container.process.send_signal(signal.SIGTERM)
    status = container.outside.wait(3 * GRACE_S)
    took = time.monotonic() - begun
    said, _ = call.communicate(timeout=60)
    assert status == 0, f"exit status {status}:\n{container.words}"
    assert said.startswith("answered: "), said
    assert "stopped" in container.words.splitlines(), container.words
    assert not any(each.is_running() for each in members), "processes are left"
    return f"SIGTERM during a call: answered, exit status 0 after {took:.1f} s, nothing left"


def check_early_end(image: Image, store: Path) -> str:
    """SIGTERM in the first moment, while Python starts, ends it too."""
    with started(image, store) as container:
        begun = time.monotonic()
        container.process.send_signal(signal.SIGTERM)
        status = container.outside.wait(GRACE_S)
        took = time.monotonic() - begun
    assert status in (0, 128 + signal.SIGTERM), f"exit status {status}"
    return f"SIGTERM in the first moment: exit status {status} after {took:.1f} s"


CHECKS = (check_privileges, check_files, check_health, check_answer, check_orphans, check_end)


def main(arguments: Sequence[str]) -> None:
    root, config = arguments
    image = Image(Path(root), json.loads(Path(config).read_text())["Docker"]["config"])
    with tempfile.TemporaryDirectory() as store:
        Path(store).chmod(0o755)
        package(Path(store))
        print(f"container: {check_early_end(image, Path(store))}")
        for each in (image, Image(image.root, image.config | {"User": OPENSHIFT})):
            begun = time.monotonic()
            with running(each, Path(store)) as container:
                print(f"container: ready after {time.monotonic() - begun:.1f} s: {shlex.join(image.command)}")
                for check in CHECKS:
                    print(f"container: {check(container)}")
    print(f"container: {2 * len(CHECKS) + 1} passed, 0 failed")


if __name__ == "__main__":
    main(sys.argv[1:])
