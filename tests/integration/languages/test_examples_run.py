"""The examples in Go and in Java: generated, compiled and run against a real server, with the packages of Debian."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

import cutaway as ca
from cutaway.gateway import serve
from cutaway.server.settings import Settings
from examples.digits.digits_adapter import Digits
from tests.support.digits import WEIGHTS
from tests.support.documents import ROOT
from tests.support.token_files import EVERY, entry, write

GO_SOURCES = Path("/usr/share/gocode/src")
JARS = Path("/usr/share/java")
NETTY = ("common", "buffer", "codec", "codec-http", "codec-http2", "codec-socks", "handler", "handler-proxy")
NEEDED_JARS = [
    *("grpc-api", "grpc-context", "grpc-core", "grpc-stub", "grpc-protobuf", "grpc-protobuf-lite", "grpc-netty"),
    *("guava", "protobuf", "gson", "perfmark-api", "geronimo-annotation-1.3-spec"),
    *(f"netty-{name}" for name in (*NETTY, "resolver", "transport")),
    *("netty-transport-native-epoll", "netty-transport-native-unix-common"),
]
BRIEFLY = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For a Java that runs for a second: it is not worth compiling the program any better."""
IMAGE = np.asarray([(index % 17) / 16 for index in range(64)], np.float32).reshape(1, 1, 8, 8)


def go(directory: Path) -> list[str]:
    """The compiled example in Go."""
    _need("go", "protoc-gen-go-grpc")
    if not (GO_SOURCES / "google.golang.org" / "protobuf" / "cmd").exists():
        pytest.skip("no golang-google-grpc-dev and golang-google-protobuf-dev here")
    sources = _copied("go", directory / "src" / "example")
    shutil.copy(Path(__file__).with_name("old_grpc.go"), sources)
    environment = {
        "GO111MODULE": "off",
        "GOPATH": f"{directory}:{GO_SOURCES.parent}",
        "GOFLAGS": "",
        "CGO_ENABLED": "0",
    }
    plugin = "google.golang.org/protobuf/cmd/protoc-gen-go"
    _run(["go", "build", "-o", str(directory / "bin" / "protoc-gen-go"), plugin], sources, **environment)
    _generate(sources, directory / "bin")
    assert _run(["gofmt", "-l", "main.go", "tensors.go"], sources) == ""
    _run(["go", "build", "-o", str(directory / "demo"), "."], sources, **environment)
    return [str(directory / "demo")]


def java(directory: Path) -> list[str]:
    """The compiled example in Java."""
    _need("javac", "protoc", "grpc_java_plugin")
    jars = [JARS / f"{name}.jar" for name in NEEDED_JARS]
    if missing := [jar.name for jar in jars if not jar.exists()]:
        pytest.skip(f"no {', '.join(missing)} here")
    sources = _copied("java", directory / "java")
    (directory / "bin").mkdir()
    (directory / "bin" / "protoc-gen-grpc-java").symlink_to(str(shutil.which("grpc_java_plugin")))
    _generate(sources, directory / "bin")
    path = ":".join(map(str, [*jars, "classes"]))
    files = [str(file) for file in sources.rglob("*.java")]
    compiler = ["javac", *(f"-J{option}" for option in BRIEFLY), "-nowarn", "-proc:none"]
    _run([*compiler, "-cp", path, "-d", "classes", *files], sources)
    return ["java", *BRIEFLY, "-cp", path.replace("classes", str(sources / "classes")), "Inspect"]


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [go, java])
def test_it_prints_what_python_gets(compiled: Callable[[Path], list[str]], tmp_path: Path) -> None:
    """The same numbers, to the bit; with a token; the reason and the field of an error."""
    command = compiled(tmp_path)
    tokens = write(tmp_path / "tokens.toml", entry("app", {"*": EVERY}))
    with (
        serve({"digits": Digits(weights=WEIGHTS)}, settings=Settings(tokens=tokens)) as server,
        ca.Client(server.address, token="app") as client,
    ):
        told = _run([*command, server.address], tmp_path, CUTAWAY_TOKEN="app")
        expected = client.inspect(
            *("digits", IMAGE),
            captures="conv2",
            input_gradients=True,
            attributions=ca.IntegratedGradients(n_steps=32),
        )
        refused = [
            subprocess.run([*command, server.address, *model], capture_output=True, text=True, env=os.environ | token)
            for model, token in ((["nothing"], {"CUTAWAY_TOKEN": "app"}), ([], {}))
        ]
    arrays = (
        expected.captures["conv2"].output,
        expected.input_gradients["image"],
        expected.attributions[0].values["image"],
    )
    shown = re.findall(r"\[([^]]*)\] \[([^]]*)\]", told)
    assert [_numbers(shape) for shape, _ in shown] == [list(array.shape) for array in arrays]
    for (_, first), array in zip(shown, arrays, strict=True):
        assert np.array(_numbers(first), np.float32).tolist() == array.ravel()[:4].tolist()
    (label, probability), (predicted,) = re.findall(r"class (\S+) (\S+)", told)[0], expected.classes
    assert (label, float(probability)) == (predicted.label, predicted.probability)
    assert told.count("VERDICT_AGREES") == len(expected.attributions[0].checks)
    assert [done.returncode for done in refused] == [1, 1]
    assert refused[0].stderr.startswith("MODEL_NOT_FOUND: ")
    assert "at model" in refused[0].stderr
    assert refused[1].stderr.startswith("TOKEN_REQUIRED: ")


def _numbers(text: str) -> list[float]:
    return [float(each) for each in text.replace(",", " ").split()]


def _need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def _copied(language: str, target: Path) -> Path:
    """A copy of an example, from where it finds the protos as it does in the repository."""
    shutil.copytree(ROOT / "examples" / language, target)
    (target / "buf.gen.yaml").write_text(
        (target / "buf.gen.yaml").read_text().replace("../../protos", os.path.relpath(ROOT / "protos", target))
    )
    return target


def _generate(directory: Path, plugins: Path) -> None:
    path = f"{plugins}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    _run(["buf", "generate"], directory, PATH=path)


def _run(command: Sequence[str], directory: Path, **environment: str) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, env=os.environ | environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
