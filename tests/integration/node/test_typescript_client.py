"""The TypeScript client: compiled, packed, and in Node against a real server, with the numbers of the Python client."""

from __future__ import annotations

import base64
import io
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import cutaway as ca
from cutaway.adapters import Adapter
from cutaway.adapters.causal_lm import CausalLMAdapter
from cutaway.contract.results.arrays import by_name, tensors
from cutaway.contract.wire import results as wire_results
from cutaway.gateway import serve
from cutaway.server.settings import Settings
from cutaway.v1 import inspection_pb2
from examples.digits.digits_adapter import Digits
from tests.support import node
from tests.support.adapters.mirror_adapter import MirrorAdapter
from tests.support.causal_lms import saved
from tests.support.digits import WEIGHTS
from tests.support.documents import ROOT
from tests.support.doors import message, outcome, plain, post, seeded
from tests.support.gated_model import Doored
from tests.support.mixed.mix import Request, draw, one_of_each, small_models
from tests.support.pages import BROWSER, in_a_browser, opened, running_browser
from tests.support.reply_equality import differences
from tests.support.serving import Server
from tests.support.token_files import EVERY, entry, write

pytestmark = pytest.mark.slow  # it is compiled first

CLIENT = ROOT / "clients" / "typescript"
Chosen: TypeAlias = Callable[[list[Request]], list[Request]]
MIXED = pytest.mark.parametrize("chosen", [one_of_each, list])
IMAGE = np.asarray([(index % 17) / 16 for index in range(64)], np.float32).reshape(1, 1, 8, 8)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the client beside the protos, compiled."""
    root = tmp_path_factory.mktemp("typescript")
    (root / "protos").symlink_to(ROOT / "protos")
    copy = root / "clients" / "typescript"
    shutil.copytree(CLIENT, copy, ignore=shutil.ignore_patterns("node_modules", "dist"))
    node.install(copy)
    _npm(copy, "run", "build")
    return copy


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A server with tokens, and room for half a megabyte in one message; one of its models writes texts."""
    tokens = write(tmp_path_factory.mktemp("tokens") / "tokens.toml", entry("app", {"*": EVERY}))
    writer = CausalLMAdapter(directory=saved(tmp_path_factory.mktemp("gpt2")))
    torch.manual_seed(0)
    settings = Settings(
        tokens=tokens, http_address="127.0.0.1:0", metrics_address="127.0.0.1:0", max_message_bytes=1 << 19
    )
    models: dict[str, Any] = {"net": nn.Sequential(nn.Linear(4, 64), nn.ReLU()), "gpt": writer, "doored": Doored()}
    with serve(models, settings=settings) as server:
        metrics = f"http://{server.metrics_address}/metrics"
        yield {"url": f"http://{server.http_address}", "token": "app", "metrics": metrics}


def test_programs_from_the_inspector_run(built: Path, server: Server) -> None:
    """What the page writes in TypeScript, for a short question and for one in a file, asks what the page asked."""
    with running_browser() as browser, opened(browser, f"http://{server.http_address}") as inspector:
        inspector.open()
        inspector.choose("digits")
        inspector.go("Ask")
        for rows in (1, 70):
            images = np.repeat(IMAGE, rows, 0)
            inspector.give(images.tolist())
            inspector.ask()
            program = inspector.program("TypeScript")
            with inspector.page.expect_download() as download:
                inspector.page.click("button:text-is('Save the question')")
            download.value.save_as(built / "question.json")
            printed = "console.log(JSON.stringify([...result.predictions.output.data, result.attributions.length]));"
            (built / "asked.mjs").write_text(program.replace(program.splitlines()[-1], printed))
            done = subprocess.run(["node", "asked.mjs"], cwd=built, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            with ca.Client(server.address) as client:
                expected = client.inspect("digits", {"image": images}).predictions["output"]
            assert json.loads(done.stdout) == [*expected.ravel().tolist(), 3]
            inspector.go("Ask")
    url = f"http://{server.http_address}/v1/models/digits/versions/1.0:program?language=typescript"
    headers = {"content-type": "application/json", "authorization": "Bearer none"}
    (built / "asked.mjs").write_bytes(post(url, (built / "question.json").read_bytes(), headers)[2])
    subprocess.run(["node", "asked.mjs"], cwd=built, check=True, stdout=subprocess.DEVNULL)


def test_it_answers_as_python_does(built: Path, server: Server, guarded: dict[str, str], tmp_path: Path) -> None:
    """Its own tests, in Node: values, types, files, pieces, errors, deadlines, tokens."""
    told = tmp_path / "told.json"
    url = f"http://{server.http_address}"
    told.write_text(json.dumps({"url": url, "guarded": guarded, "expected": _expected(server.address)}))
    done = subprocess.run(
        ["node", "--test", "--test-reporter=tap", "test/client.test.mjs"],
        cwd=built,
        capture_output=True,
        text=True,
        env=os.environ | {"CUTAWAY_TEST": str(told)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# pass 16" in done.stdout


@pytest.mark.parametrize("page", ["clients/typescript/README.md", "docs/clients.md"])
def test_the_readme_runs(page: str, built: Path, server: Server) -> None:
    """The example of a page, as it stands."""
    (block,) = re.findall("```ts\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    told = block.replace("@cutaway/client", "./dist/index.js").replace("127.0.0.1:8080", server.http_address)
    lines = (re.sub(r"^(result.*|Verdict.*);", r"console.log(\1);", line) for line in told.splitlines())
    (built / "example.mjs").write_text("\n".join(lines))
    done = subprocess.run(["node", "example.mjs"], cwd=built, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "shape: [ 1, 32, 8, 8 ]" in done.stdout
    assert ("shape: [ 1, 10 ]" in done.stdout) == ("AGREES" in done.stdout) == ("Verdict" in block)


def test_golden_files(built: Path) -> None:
    """Those of the contract: the same values from each form, and the same bytes back."""
    done = subprocess.run(["node", "--test", "test/golden.test.mjs"], cwd=built, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_published(built: Path) -> None:
    """The compiled code, its types and the README, and nothing else."""
    _npm(built, "pack", "--ignore-scripts")
    (packed,) = built.glob("*.tgz")
    with tarfile.open(packed) as archive:
        names = {name.removeprefix("package/") for name in archive.getnames()}
    assert {"package.json", "README.md", "dist/index.js", "dist/index.d.ts"} <= names
    assert not [name for name in names if not name.startswith(("dist/", "package.json", "README.md"))]


def test_types_and_layout(built: Path) -> None:
    _npm(built, "run", "check")


def test_generated_code_is_of_the_contract(built: Path) -> None:
    """`npm run generate` writes what is in the repository."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["npm", "run", "generate"], cwd=built, check=True, capture_output=True, env=environment)
    for path in sorted((CLIENT / "src" / "gen").rglob("*.ts")):
        assert (built / path.relative_to(CLIENT)).read_text() == path.read_text(), path.name


@MIXED
def test_the_same_mixed_questions_in_node(
    built: Path, store: Path, server: Server, tmp_path: Path, chosen: Chosen
) -> None:
    """Of all kinds, many of which fail: the reply, the typed arrays in it and the errors of Python."""

    def ask(questions: Path) -> Any:
        command = ["node", "test/mixed_node.mjs", str(questions), str(tmp_path / "told.json")]
        subprocess.run(command, cwd=built, check=True)
        return json.loads((tmp_path / "told.json").read_text())

    _compare(ask, store, server.address, server.http_address, tmp_path, chosen)


@in_a_browser
@MIXED
def test_the_same_mixed_questions_in_a_page(built: Path, store: Path, tmp_path: Path, chosen: Chosen) -> None:
    """The same in Chromium."""
    with _serving(_bundled(built, "mixed_page")) as page:
        settings = Settings(http_address="127.0.0.1:0", http_origins=page.origin)
        models: dict[str, Adapter] = {"digits": Digits(weights=WEIGHTS), "mirror": MirrorAdapter()}
        with serve(models, settings=settings) as server:
            _compare(page.ask, store, server.address, server.http_address, tmp_path, chosen)


def _compare(
    ask: Callable[[Path], Any], store: Path, address: str, http_address: str, directory: Path, chosen: Chosen
) -> None:
    drawn = [seeded(each) for each in chosen(draw(small_models(store), 300, seed=7))]
    requests = [base64.b64encode(message(each).SerializeToString()).decode() for each in drawn]
    (directory / "questions.json").write_text(json.dumps({"url": f"http://{http_address}", "requests": requests}))
    told = ask(directory / "questions.json")
    with ca.Client(address) as client:
        expected = [outcome(partial(client.inspect, each.model, each.inputs, **each.asked)) for each in drawn]
    wrong = [f"{each.name}: {fault}" for each, *pair in zip(drawn, told, expected) for fault in _faults(*pair)]
    assert not wrong, "\n".join(wrong[:20])
    assert (len(told), sum("reason" in each for each in told)) == (
        len(drawn),
        sum(each.answer is None for each in drawn),
    )


def _faults(told: Any, expected: ca.InspectResult | ca.CutawayError) -> Iterator[str]:
    if isinstance(expected, ca.CutawayError):
        if (told.get("reason"), told.get("field")) != (expected.reason, expected.field):
            yield f"{told!r:.200}, not {expected}"
        return
    reply = inspection_pb2.InspectResponse.FromString(base64.b64decode(told["reply"]))
    yield from differences(wire_results.decode(reply), plain(expected), 0.0)
    named = by_name(tensors(expected))
    if told["arrays"] != {name: [list(each.array.shape), _text(each.array)] for name, each in named.items()}:
        yield f"other typed arrays: {list(told['arrays'])}, {list(named)}"


def _text(array: np.ndarray[Any, Any]) -> str:
    """The bytes in base64; half precision is widened there."""
    wide = array.astype(np.float32) if array.dtype.name in ("float16", "bfloat16") else array
    return base64.b64encode(np.ascontiguousarray(wide).tobytes()).decode()


@in_a_browser
@pytest.mark.parametrize("allowed", [True, False])
def test_a_page_asks_as_far_as_it_may(built: Path, allowed: bool) -> None:
    """In Chromium, from another origin: the numbers of the Python client; from one that is not allowed, nothing."""
    with _serving(_bundled(built, "page")) as page:
        settings = Settings(http_address="127.0.0.1:0", http_origins=page.origin if allowed else "http://other.example")
        with (
            serve({"digits": Digits(weights=WEIGHTS)}, settings=settings) as server,
            ca.Client(server.address) as client,
        ):
            told = page.open(f"?model=digits&server=http://{server.http_address}")
            result = client.inspect("digits", {"image": IMAGE}, captures="conv1", input_gradients=True)
    arrays = (result.predictions["output"], result.captures["conv1"].output, result.input_gradients["image"])
    expected = [[list(array.shape), list(array.tobytes())] for array in arrays]
    assert told == ([expected, expected] if allowed else [["SERVER_UNREACHABLE", ""]])


def _bundled(built: Path, name: str) -> Path:
    """A directory with a page that runs a script of the tests."""
    page = built / name
    bundle = ["npx", "esbuild", f"test/{name}.mjs", "--bundle", "--format=esm", "--log-level=error"]
    subprocess.run([*bundle, f"--outfile={page / 'page.js'}"], cwd=built, check=True)
    (page / "index.html").write_text('<!doctype html><title>page</title><script type="module" src="page.js"></script>')
    return page


@dataclass(frozen=True)
class _Page:
    """A page, and what it sends to its own server."""

    directory: Path
    origin: str
    told: queue.Queue[bytes]

    def ask(self, questions: Path) -> Any:
        """Has the page ask ``questions``."""
        shutil.copy(questions, self.directory)
        return self.open()

    def open(self, asked: str = "") -> Any:
        """Opens it, and returns what it tells."""
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
            command.append(f"{self.origin}/{asked}")
            browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while self.told.empty() and browser.poll() is None:
                time.sleep(0.05)
            browser.terminate()
            browser.wait()
        return json.loads(self.told.get_nowait())


@contextmanager
def _serving(directory: Path) -> Iterator[_Page]:
    told: queue.Queue[bytes] = queue.Queue()

    class Pages(SimpleHTTPRequestHandler):
        def do_POST(self) -> None:
            told.put(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(204)
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Pages, directory=directory)) as pages:
        threading.Thread(target=pages.serve_forever, daemon=True).start()
        yield _Page(directory, f"http://127.0.0.1:{pages.server_port}", told)
        pages.shutdown()


def _npm(directory: Path, *arguments: str) -> None:
    done = subprocess.run(["npm", *arguments], cwd=directory, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def _expected(address: str) -> dict[str, Any]:
    """What the Python client gets for the questions of the tests in Node."""
    png = io.BytesIO()
    Image.fromarray((IMAGE[0, 0] * 255).astype(np.uint8)).save(png, "PNG")
    with ca.Client(address) as client:
        result = client.inspect(
            "digits",
            {"image": IMAGE},
            captures=["conv1", ca.Capture("conv2", at=("output", "grad_output"))],
            input_gradients=True,
            attributions=ca.IntegratedGradients(n_steps=64),
        )
        types = {
            name: client.inspect("digits", {"image": IMAGE}, reply_data_type=name)
            .predictions["output"]
            .astype(np.float64)
            .ravel()
            .tolist()
            for name in ("float16", "bfloat16", "float32", "float64")
        }
        decoded = client.inspect("digits", ca.Raw(png.getvalue(), "image/png"))
    (call,) = result.captures["conv2"].calls
    arrays = {
        "output": result.predictions["output"],
        "conv1": result.captures["conv1"].output,
        "conv2_gradient": call.leaves[ca.Point.GRAD_OUTPUT][""],
        "gradient": result.input_gradients["image"],
        "attribution": result.attributions[0].values["image"],
        "output_of_png": decoded.predictions["output"],
    }
    return {
        **{name: base64.b64encode(np.ascontiguousarray(array).tobytes()).decode() for name, array in arrays.items()},
        "conv1_shape": list(result.captures["conv1"].output.shape),
        "verdict": str(result.attributions[0].verdict),
        "label": result.classes[0].label,
        "types": types,
        "png": base64.b64encode(png.getvalue()).decode(),
    }
