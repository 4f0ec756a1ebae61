"""``cutaway new adapter``: what it writes runs at once, and nothing is overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

import cutaway as ca
from cutaway.adapters import create_adapter, find_adapter
from cutaway.gateway import serve
from tests.support.cli import cutaway, said

INPUTS = {"table": [[1.0, 2.0, 3.0]], "text": "a text", "image": None}


@pytest.mark.parametrize("kind", ["table", "image", "text"])
def test_what_is_written_is_packaged_and_answers(kind: str, tmp_path: Path) -> None:
    """With attributions that agree; and the next command is the one that was said."""
    written, following = said("new", "adapter", "my-model", "--kind", kind, "--output", tmp_path).splitlines()
    file = tmp_path / "my_model_adapter.py"
    assert written == f"written {file}"
    assert following == f"next: cutaway package my-model --adapter {file}:MyModel --output models"
    command = following.removeprefix("next: cutaway ").replace("models", str(tmp_path / "models")).split()
    assert said(*command).startswith("built ")
    adapter = create_adapter(find_adapter(f"{file.name}:MyModel", tmp_path), {}, tmp_path, None)
    with serve({"my-model": adapter}) as server, ca.Client(server.address) as client:
        example = {name: value.numpy() for name, value in (adapter.example() or {}).items()}
        method = ca.LayerIntegratedGradients(layer="embedding") if kind == "text" else ca.Saliency()
        found = client.inspect("my-model", INPUTS[kind] or example, target=adapter.labels[1], attributions=method)
        assert {check.verdict for check in found.attributions[0].checks} == {ca.Verdict.AGREES}
        assert found.classes[0].label in adapter.labels


def test_a_file_that_exists_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "net_adapter.py").write_text("mine")
    refused = cutaway("new", "adapter", "net", "--output", tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "exists already, and is left as it is" in refused.stderr
    assert (tmp_path / "net_adapter.py").read_text() == "mine"


@pytest.mark.parametrize("name", ["3d", "a b", "-"])
def test_a_name_that_cannot_be_served_is_refused(name: str, tmp_path: Path) -> None:
    assert cutaway("new", "adapter", "--output", tmp_path, "--", name).returncode == 2
    assert not list(tmp_path.iterdir())
