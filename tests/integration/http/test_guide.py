"""The commands of docs/clients.md, run as they stand, and the error that it shows."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cutaway.adapters.causal_lm import CausalLMAdapter
from cutaway.gateway import serve
from cutaway.server.settings import Settings
from examples.digits.data import held_out
from examples.digits.digits_adapter import Digits
from tests.support.causal_lms import saved
from tests.support.digits import WEIGHTS
from tests.support.documents import ROOT, blocks
from tests.support.doors import events_in, post

PAGE = ROOT / "docs" / "clients.md"


def test_every_curl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    image = held_out().images[:1]
    Image.fromarray((image[0, 0] * 255).astype(np.uint8)).save("seven.png")
    np.save("image.npy", image)
    commands = [block.text for block in blocks(PAGE) if block.text.startswith("curl")]
    assert len(commands) == 8
    models = {"digits": Digits(weights=WEIGHTS), "gpt": CausalLMAdapter(directory=saved(tmp_path / "gpt2"))}
    with serve(models, settings=Settings(http_address="127.0.0.1:0")) as server:
        for command in commands:
            text = command.replace("127.0.0.1:8080", server.http_address).replace("curl -s", "curl -s --fail-with-body")
            done = subprocess.run(["bash", "-c", text], capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
            if ":program" in command:
                assert done.stdout.startswith("import cutaway as ca")
            elif "event-stream" in command:
                assert [name for name, _ in events_in(done.stdout.encode())] == [*["message"] * 21, "end"]
            elif "-o" not in command:
                assert json.loads(done.stdout), command
        assert next(iter(np.load("reply.npz"))) == "output"
        (shown,) = (json.loads(block.text) for block in blocks(PAGE) if block.language == "json")
        url, headers = f"http://{server.http_address}/v1/models/digits:predict", {"content-type": "application/json"}
        assert json.loads(post(url, b'{"instances": [[1, 2]]}', headers)[2]) == shown
