"""KServe's own clients, by gRPC and by HTTP, and Triton's newest, which need other versions of packages than we do: in
an environment of their own, which is kept."""

from __future__ import annotations

import json
import subprocess
import venv
from pathlib import Path

import numpy as np
import pytest

import cutaway as ca
from cutaway.gateway import serve
from cutaway.server.settings import Settings
from tests.integration.open_inference.models import Classes, X

FOLDER = Path(__file__).parent
ENVIRONMENT = Path(__file__).parents[3] / "build" / "kserve"


@pytest.fixture(scope="module")
def python() -> Path:
    """The interpreter of the environment; skips without network."""
    wanted, installed = FOLDER / "kserve_requirements.txt", ENVIRONMENT / "installed.txt"
    program = ENVIRONMENT / "bin" / "python"
    if not installed.exists() or installed.read_bytes() != wanted.read_bytes():
        venv.create(ENVIRONMENT, clear=True, with_pip=True)
        command = [str(program), "-m", "pip", "install", "--quiet", "--retries=1", "-r", str(wanted)]
        done = subprocess.run(command, capture_output=True, text=True)
        if "Failed to establish a new connection" in done.stderr:
            pytest.skip("pip does not reach its index")
        assert done.returncode == 0, done.stderr
        installed.write_bytes(wanted.read_bytes())
    return program


@pytest.mark.slow
def test_kserves_clients_get_what_ours_gets(python: Path, tmp_path: Path) -> None:
    sent, got = tmp_path / "x.npy", tmp_path / "got.npz"
    np.save(sent, X)
    with (
        serve({"classes": Classes()}, settings=Settings(http_address="127.0.0.1:0")) as server,
        ca.Client(server.address) as client,
    ):
        expected = client.inspect("classes", X, captures="conv", attributions="IntegratedGradients")
        arguments = [server.address, server.http_address, str(sent), str(got)]
        done = subprocess.run(
            [str(python), str(FOLDER / "kserve_client.py"), *arguments], capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["rest"] == [True, True, True, False]
    assert told["grpc"] == [True, True, True]
    assert (told["typed id"], told["raw id"]) == ("seven", "seven")
    assert "no model 'nobody'" in told["rest error"]
    arrays = {
        "output": expected.predictions["output"],
        "capture:conv@output": expected.captures["conv"].output,
        "attribution:integrated_gradients:image": expected.attributions[0].values["image"],
    }
    with np.load(got) as found:
        assert {*found} == {f"{way}:{name}" for way in ("json", "bytes", "typed", "raw") for name in arrays}
        for key in found:
            array = arrays[key.partition(":")[2]]
            assert (found[key].dtype, found[key].tobytes()) == (array.dtype, array.tobytes()), key
