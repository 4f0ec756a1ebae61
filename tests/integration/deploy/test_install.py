"""The wheel, installed where the sources are out of reach: what users get, and not what developers have."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest
import torch
from packaging.requirements import Requirement
from safetensors.torch import save_file
from torch import nn

from cutaway.gateway import serve
from tests.support.documents import blocks

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
BASE_INSTALL = {
    *("cutaway", "google-crc32c", "googleapis-common-protos", "grpcio"),
    *("ml-dtypes", "numpy", "protobuf", "typing-extensions"),
}


class Place(NamedTuple):
    """A Python environment, and a directory to run it in from which no source can be seen."""

    bin: Path
    directory: Path

    def run(self, program: str, *arguments: str | Path, status: int = 0) -> str:
        """Run a program of this environment; its standard output, or standard error where it is to fail."""
        done = subprocess.run(self.command(program, *arguments), capture_output=True, text=True, **self.surroundings())
        assert done.returncode == status, f"{done.stdout}\n{done.stderr}"
        return done.stderr if status else done.stdout

    def command(self, program: str, *arguments: str | Path) -> list[str | Path]:
        return [self.bin / program, *arguments]

    def surroundings(self, **variables: str) -> dict[str, Any]:
        """Where and with what environment variables to run."""
        return {"cwd": self.directory, "env": _bare(os.environ) | variables}


def _bare(variables: Mapping[str, str]) -> dict[str, str]:
    """Without what would let Python look elsewhere, or Cutaway listen elsewhere."""
    leading = ("PYTHON", "VIRTUAL_ENV", "CUTAWAY_")
    return {name: value for name, value in variables.items() if not name.startswith(leading)}


def install(directory: Path, wheel: Path, *options: str, extra: str = "") -> Place:
    """A new environment in ``directory`` with ``wheel`` in it, and what its ``extra`` asks for."""
    environment = directory / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    place = Place(environment / "bin", directory / "elsewhere")
    place.directory.mkdir()
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", place.bin / "python"]
    command = [*pip, "install", "--disable-pip-version-check", *options, f"{wheel}{extra}"]
    done = subprocess.run(command, capture_output=True, text=True, **place.surroundings())
    assert done.returncode == 0, done.stderr
    return place


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as it is for a release: from the source distribution."""
    output = tmp_path_factory.mktemp("dist")
    # An isolated build fetches hatchling; where it is installed there is no need to.
    isolation = ["--no-isolation"] if importlib.util.find_spec("hatchling") else []
    command: list[str | Path] = [sys.executable, "-m", "build", *isolation, "--outdir", output, ROOT]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return next(output.glob("*.whl"))


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Place:
    """What `pip install cutaway` gives an application: the client."""
    return install(tmp_path_factory.mktemp("application"), wheel, "-c", str(ROOT / "constraints.txt"))


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Place:
    """What `pip install 'cutaway[server]'` gives an operator, less the download of torch and its kin.

    They are those of this environment, which comes last on the path. Its own .pth files, one of which leads to the
    sources, are not read: Python reads those of its site-packages only.
    """
    place = install(tmp_path_factory.mktemp("machine"), wheel, "--no-deps")
    installed = Path(place.run("python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    third_party = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    (installed / "zz_third_party.pth").write_text("".join(f"{path}\n" for path in third_party))
    return place


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Place:
    """What `pip install 'cutaway[local]'` gives, less the download: links to packages of this environment."""
    place = install(tmp_path_factory.mktemp("notebook"), wheel, "--no-deps")
    (metadata,) = place.bin.parent.glob("lib/python*/site-packages/cutaway-*.dist-info")
    for distribution in required(importlib.metadata.Distribution.at(metadata), "local"):
        for top in {file.parts[0] for file in distribution.files or ()} - {".."}:
            link = metadata.parent / top
            if not link.exists():
                link.symlink_to(Path(str(distribution.locate_file(top))))
    return place


def required(cutaway: importlib.metadata.Distribution, extra: str) -> list[importlib.metadata.Distribution]:
    """What `cutaway` with this extra requires, and all that these require, of what is installed here."""
    waiting, seen = [("cutaway", extra)], set()
    while waiting:
        seen.add(of := waiting.pop())
        requires = (cutaway if of[0] == "cutaway" else importlib.metadata.distribution(of[0])).requires
        for requirement in map(Requirement, requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": of[1]}):
                waiting += {(requirement.name, extra) for extra in ("", *requirement.extras)} - seen
    return [importlib.metadata.distribution(name) for name in {name for name, _ in seen} - {"cutaway"}]


def test_wheel_holds_what_is_no_module_too(wheel: Path) -> None:
    """The handler, log settings, the page, the types marker and the licence travel; tests and examples do not."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    sources = {path.relative_to(ROOT / "service") for path in (ROOT / "service" / "cutaway").rglob("*.py*")}
    expected = {path.as_posix() for path in sources if "__pycache__" not in path.parts}
    expected |= {"cutaway/handlers/inspection_handler.py", "cutaway/server/processes/log4j2.xml", "cutaway/py.typed"}
    expected |= {f"cutaway/cli/starts/{kind}.txt" for kind in ("table", "image", "text")}
    expected |= {f"cutaway/server/{name}" for name in ("open_inference/open_inference.binpb", "http/openapi.json")}
    page = ROOT / "service" / "cutaway" / "server" / "web" / "static"
    expected |= {
        f"cutaway/server/web/static/{path.relative_to(page).as_posix()}" for path in page.rglob("*") if path.is_file()
    }
    found = {name for name in names if ".dist-info/" not in name}
    assert found == expected
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


CLIENT = """
import importlib.metadata, importlib.util, json, sys
import numpy as np
import cutaway as ca

address, model = sys.argv[1:]
with ca.Client(address) as client:
    result = client.inspect(
        model,
        {"x": np.eye(3, dtype=np.float32)},
        captures=[ca.Capture("linear", at=("input", "output", "grad_output"))],
        input_gradients=True,
        attributions=[ca.IntegratedGradients(n_steps=8), ca.LayerGradientXActivation(layer="linear")],
    )
    try:
        client.inspect("nobody", {"x": np.eye(3)})
    except ca.NotFound as failure:
        reason = failure.reason
print(json.dumps({
    "file": ca.__file__,
    "path": sys.path,
    "version": [ca.__version__, importlib.metadata.version("cutaway")],
    "installed": sorted(each.metadata["Name"].lower().replace("_", "-") for each in importlib.metadata.distributions()),
    "importable": [name for name in ("torch", "captum", "ts", "typer", "structlog") if importlib.util.find_spec(name)],
    "models": [each.model for each in ca.Client(address).list_models()],
    "output": result.predictions["output"].tolist(),
    "captured": [each.tolist() for each in (result.captures["linear"].input, result.captures["linear"].output)],
    "gradient": result.input_gradients["x"].tolist(),
    "verdicts": [check.verdict for each in result.attributions for check in each.checks],
    "labels": [each.label for each in result.classes],
    "reason": reason,
}))
"""


class Tiny(nn.Module):
    """Three numbers to two."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def tiny() -> Tiny:
    torch.manual_seed(5)
    return Tiny()


def ask(place: Place, address: str, model: str) -> dict[str, Any]:
    """What `CLIENT`, run in ``place``, learns from the server at ``address``."""
    learned = json.loads(place.run("python", "-c", CLIENT, address, model))
    weight, bias = (each.detach().numpy() for each in tiny().parameters())
    output = np.eye(3, dtype=np.float32) @ weight.T + bias
    assert np.allclose(learned["output"], output, rtol=1e-6)
    assert np.allclose(learned["captured"][0], np.eye(3))
    assert learned["captured"][1] == learned["output"]
    assert np.allclose(learned["gradient"], weight[output.argmax(1)], rtol=1e-6)
    assert learned["verdicts"] == ["AGREES"] * len(learned["verdicts"])
    assert len(learned["verdicts"]) >= 2
    assert learned["reason"] == "MODEL_NOT_FOUND"
    assert learned["models"] == [model]
    return dict(learned)


def test_client_from_the_wheel(application: Place) -> None:
    """`pip install cutaway` is seven packages without torch among them, and enough for every part of an answer."""
    with serve({"net": tiny()}) as server:
        learned = ask(application, server.address, "net")
    assert set(learned["installed"]) == BASE_INSTALL
    assert learned["importable"] == []
    assert Path(learned["file"]).is_relative_to(application.bin.parent)
    assert not any(Path(entry).is_relative_to(ROOT) for entry in learned["path"] if entry)
    assert len(set(learned["version"])) == 1


def test_command_without_its_extra_says_what_to_install(application: Place) -> None:
    """`cutaway`, where only the client is installed, ends with one line that helps."""
    assert application.run("cutaway", "--help", status=2) == "the command line needs: pip install 'cutaway[cli]'\n"


HTTP = """
import cutaway as ca
from cutaway.server.settings import Settings
from cutaway.gateway import serve

try:
    with serve({}, settings=Settings(http_address="127.0.0.1:0")):
        pass
except ca.FailedPrecondition as failure:
    print(failure)
"""


def test_five_lines_need_neither_torchserve_nor_http(notebook: Place) -> None:
    """The README's first program runs as it is with `cutaway[local]`; one that asks for HTTP says what that needs."""
    program = next(block.text for block in blocks(ROOT / "README.md") if block.language == "python")
    *_, first, second = notebook.run("python", "-c", program + HTTP).splitlines()
    assert first.endswith("AGREES")
    assert second.startswith("PACKAGE_MISSING [http_address]: ")
    assert second.endswith(" is missing; HTTP needs: pip install 'cutaway[http]'")


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        (["serve", "--model-store", "."], "ts is missing; this needs: pip install 'cutaway[server]'"),
        (
            ["package", "net", "--adapter", "x.py:X"],
            "model_archiver is missing; this needs: pip install 'cutaway[server]'",
        ),
        (
            ["serve", "--model-store", ".", "--engine", "processes", "--http", "127.0.0.1:0"],
            "starlette is missing; this needs: pip install 'cutaway[http]'",
        ),
    ],
    ids=["TorchServe", "archives", "HTTP"],
)
def test_what_local_lacks_says_what_to_install(notebook: Place, arguments: list[str], missing: str) -> None:
    assert notebook.run("cutaway", *arguments, status=2) == f"{missing}\n"


def test_a_client_says_what_a_server_needs(application: Place) -> None:
    said = application.run("python", "-c", "from cutaway.gateway import serve", status=1)
    assert said.endswith("torch is missing; a server in this process needs: pip install 'cutaway[local]'\n")


ADAPTER = """
import torch
from torch import nn

import cutaway
from cutaway.adapters import Adapter
from cutaway.contract.results import InputSpec


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        return self.linear(x)


class Tiny(Adapter):
    inputs = (InputSpec("x", "float32", (-1, 3)),)
    labels = (cutaway.__file__, cutaway.__file__)  # which of all Cutaways runs the model

    def build(self):
        return Layer()
"""


def test_sources_are_out_of_reach(machine: Place) -> None:
    """What serves below is the wheel: neither the sources nor the examples and tests beside them can be imported."""
    script = "import json, sys, cutaway; print(json.dumps([cutaway.__file__, *sys.path]))"
    file, *path = json.loads(machine.run("python", "-c", script))
    assert Path(file).is_relative_to(machine.bin.parent)
    assert not {str(ROOT), str(ROOT / "service")} & set(path)


def test_server_from_the_wheel(machine: Place, application: Place, tmp_path: Path) -> None:
    """A model is packaged, served by TorchServe, asked and stopped by what is in the wheel; then nothing is left."""
    store, scratch = tmp_path / "store", tmp_path / "scratch"
    store.mkdir()
    scratch.mkdir()
    (tmp_path / "tiny_layer.py").write_text(ADAPTER)
    save_file(tiny().state_dict(), tmp_path / "tiny.safetensors")
    adapter, weights = f"{tmp_path / 'tiny_layer.py'}:Tiny", tmp_path / "tiny.safetensors"
    machine.run("cutaway", "package", "tiny", "--adapter", adapter, "--weights", weights, "--output", store)

    with running(machine, scratch, "--model-store", str(store)) as (process, address):
        learned = ask(application, address, "tiny")
        assert {Path(label).is_relative_to(machine.bin.parent) for label in learned["labels"]} == {True}
        family = psutil.Process(process.pid).children(recursive=True)
        ports = sorted({port for each in family for port in _listening(each)} | {int(address.rpartition(":")[2])})
        words = [word for each in family for word in each.cmdline()]
        assert any("model_service_worker" in word for word in words)
        directory = next(Path(word.partition("=")[2]) for word in words if word.startswith("-Djava.io.tmpdir="))
        assert any(directory.iterdir())
        process.send_signal(signal.SIGTERM)
        said, complaints = process.communicate()
    assert process.returncode == 0, complaints
    assert said.splitlines()[-1] == "stopped"
    assert [each for each in family if _alive(each)] == []
    assert [each for each in psutil.process_iter() if _mentions(each, tmp_path) or _mentions(each, directory)] == []
    assert [port for port in ports if _answers(port)] == []
    assert not directory.exists()
    assert list(scratch.iterdir()) == []


@contextmanager
def running(place: Place, scratch: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`cutaway serve` of ``arguments``, with ``scratch`` for temporary files; the process and its address."""
    options = [*arguments, "--address", "127.0.0.1:0", "--log-dir", str(scratch.parent / "logs")]
    with subprocess.Popen(
        place.command("python", "-m", "cutaway.cli", "serve", *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **place.surroundings(TMPDIR=str(scratch)),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            said = [line.strip() for line in _until(process.stdout, "ready: ")]
            assert said, process.stderr.read()
            assert said[-1].startswith("ready: "), (said, process.stderr.read())
            yield process, said[-1].removeprefix("ready: ")
        finally:
            process.terminate()  # does nothing where it ended already


def _until(lines: Iterator[str], start: str) -> Iterator[str]:
    for line in lines:
        yield line
        if line.startswith(start):
            return


def _listening(process: psutil.Process) -> set[int]:
    return {each.laddr.port for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN}


def _alive(process: psutil.Process) -> bool:
    """Whether it still runs; one that is dead and was only not yet buried does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _mentions(process: psutil.Process, path: Path) -> bool:
    try:
        return any(str(path) in word for word in process.cmdline())
    except psutil.Error:
        return False


def _answers(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0
