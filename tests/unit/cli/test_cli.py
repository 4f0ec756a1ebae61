"""The ``cutaway`` command from end to end: packaging, serving, listing what is served and what is in it."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import cutaway as ca
from cutaway.adapters import create_adapter, find_adapter
from cutaway.cli import model_tables
from cutaway.contract.results import ModelName, Provenance
from cutaway.gateway import serve
from cutaway.server.archive import reader
from tests.support.cli import cutaway, said, squeezed, without
from tests.support.serving import serving


def test_lists_models_with_versions(address: str) -> None:
    """`models` prints every model's name and version; CUTAWAY_ADDRESS stands in for --address."""
    text = said("models", "--address", address)
    assert text == said("models", CUTAWAY_ADDRESS=address)
    assert [line.split() for line in text.splitlines()[-2:]] == [["pair", "1.0"], ["pets", "1.0"]]


def test_layers_shows_inputs_outputs_and_the_module_tree(address: str) -> None:
    """Each module comes with its type, its output's shape and its parameters; what the example never calls says so."""
    text = squeezed(said("layers", "pets", "--address", address))
    for words in (
        *("image: float32[batch, 1, 8, 8]", "output: float32[batch, 3]", "cat, dog, owl", "image/png"),
        *("conv = twin Conv2d [1, 4, 6, 6] 40", "relu ReLU [1, 4, 6, 6], 2 calls 0", "head Linear [1, 3] 435"),
        "unused Linear not called 12",
    ):
        assert words in text


def test_layers_shows_numbered_modules_that_are_alike_once(address: str) -> None:
    """They share a row under the glob that finds them all; --all shows each, --depth hides what is deeper."""
    text = squeezed(said("layers", "pets", "--address", address))
    assert "feature_blocks.*.0 3 x Conv2d [1, 4, 6, 6] 20" in text
    assert "feature_blocks.1" not in text
    assert len(captured(address, "feature_blocks.*.0")) == 3
    assert "feature_blocks.2.1 Sigmoid" in squeezed(said("layers", "pets", "--all", "--address", address))
    shallow = said("layers", "pets", "--depth", 1, "--address", address)
    assert "feature_blocks " in shallow
    assert "feature_blocks.*" not in shallow


def captured(address: str, place: str | ca.Capture) -> Mapping[str, ca.ModuleCapture]:
    with ca.Client(address) as client:
        return client.inspect("pets", {"image": np.zeros((1, 1, 8, 8), np.float32)}, captures=[place]).captures


def test_layers_shows_operators(address: str) -> None:
    """--ops lists them by the addresses that find them, in the tree's order, those of modules alike once."""
    text = squeezed(said("layers", "pets", "--ops", "--address", address))
    assert ":flatten#0 flatten [1, 144]" in text
    assert "relu:relu#0 relu [1, 4, 6, 6], 2 calls" in text
    assert "feature_blocks.*.0:conv2d#0 3 x conv2d [1, 4, 6, 6]" in text
    assert "feature_blocks.2.0:conv2d#0" in said("layers", "pets", "--ops", "--all", "--address", address)
    assert "Operators" not in said("layers", "pets", "--address", address)
    assert len(captured(address, ca.Capture(op="feature_blocks.*.0:conv2d#0"))) == 3


def test_layers_keeps_names_whole_on_a_narrow_screen(address: str) -> None:
    """Where full names would not fit, modules are indented under their parents instead of being broken."""
    lines = said("layers", "pets", "--address", address, columns=66).splitlines()
    assert any(line.startswith("  *  ") and "3 x Sequential" in line for line in lines)
    assert max(map(len, lines)) <= 66


def test_layers_without_an_example_says_so(address: str) -> None:
    """A model that came without an example has no shapes, and nothing in it is said to be unused."""
    text = squeezed(said("layers", "pair", "--address", address))
    assert "Output shapes are not known" in text
    assert "not called" not in text


def test_piped_output_is_plain_and_fits_the_width(address: str, image: Path, tmp_path: Path) -> None:
    """No colour codes reach a file or a pipe, and at 80 columns no line is longer."""
    request = tmp_path / "request.yaml"
    request.write_text("{target: {top_k: 2}, captures: [{parameter: conv.weight}]}")
    asked = ["--request", request, "--attribution", "IntegratedGradients", "--edit", "scale:conv,factor=2", "--compare"]
    asked += ["--capture", "feature_blocks.*.0:conv2d#0,reduce={top_k: 3}"]
    for command in (["models"], ["layers", "pets", "--ops"], ["inspect", "pets", image, *asked]):
        text = said(*command, "--address", address)
        assert "\x1b" not in text
        assert max(map(len, text.splitlines())) <= 80


def test_asking_needs_no_torch(address: str, image: Path) -> None:
    """`models`, `layers` and `inspect` run where torch and Captum are not installed."""
    for command in (["models"], ["layers", "pets"], ["inspect", "pets", str(image), "--capture", "conv"]):
        done = without(("torch", "captum"), [*command, "--address", address])
        assert done.returncode == 0, done.stderr


def test_help_leads_a_newcomer(address: str) -> None:
    """`--help` names every command and shows first steps; `--version` is the package's."""
    text = said("--help")
    assert all(f"\n  {command} " in text for command in ("package", "serve", "models", "layers", "inspect"))
    assert "cutaway inspect digits seven.png" in text
    assert said("--version") == f"cutaway {ca.__version__}\n"


@pytest.mark.slow  # test_readme.py has the same, with the README's own commands
def test_packages_then_serves_then_answers(tmp_path: Path, tiny: Path, image: Path) -> None:
    """From an adapter's file to an answer, by the commands that each step prints."""
    made = said("package", "tiny", "--adapter", f"{tiny}:Tiny", "--output", tmp_path)
    assert f"built {tmp_path / 'tiny-1.0.mar'} (" in made
    assert f"next: cutaway serve --model-store {tmp_path}\n" in made
    with serving(tmp_path, tmp_path / "logs", "--engine=embedded") as server:
        assert server.said == ["serving tiny 1.0", f"ready: {server.address}"]
        assert "tiny 1.0" in said("inspect", "tiny", image, "--address", server.address)
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        ("Broken", "ADAPTER_INVALID: Broken.load raised FileNotFoundError: the weights went missing"),
        ("Leaving", "ADAPTER_INVALID: Leaving.load raised SystemExit: the license has expired"),
        ("Separate", "ADAPTER_INVALID: Separate.load raised ModuleNotFoundError: No module named 'tiny_layers'"),
        ("Unseeded", "WEIGHTS_MISSING: the parameters are random: the archive has no weights, and two builds differ"),
        ("Wide", "ADAPTER_INVALID [adapter]: the example cannot be run: "),
        ("Unready", "ADAPTER_INVALID [adapter]: the example cannot be run: FileNotFoundError: no example.png; change"),
    ],
)
def test_a_model_that_cannot_be_served_is_not_packaged(tmp_path: Path, tiny: Path, adapter: str, message: str) -> None:
    """The command loads the model and runs its example before it says that the archive is built; an error leaves no
    file behind."""
    before = sorted(tmp_path.rglob("*"))
    refused = cutaway("package", "tiny", "--adapter", f"{tiny}:{adapter}", "--output", tmp_path)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith(message)
    assert len(refused.stderr.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
@pytest.mark.parametrize(("adapter", "status"), [("Threaded", 0), ("ThreadedAndBroken", 1)])
def test_a_thread_of_a_model_does_not_keep_the_command(tmp_path: Path, tiny: Path, adapter: str, status: int) -> None:
    """Also one that is no daemon, and waits for ever."""
    command = ["package", "tiny", "--adapter", f"{tiny}:{adapter}", "--output", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", "cutaway.cli", *command], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == status, done.stderr
    assert ("built" in done.stdout, "the weights went missing" in done.stderr) == (not status, bool(status))


def test_random_parameters_are_packaged_on_demand(tmp_path: Path, tiny: Path) -> None:
    """--random-weights allows them, here and where the archive is served."""
    said("package", "tiny", "--adapter", f"{tiny}:Unseeded", "--output", tmp_path, "--random-weights")
    assert reader.read(tmp_path / "tiny-1.0.mar").random_weights


def test_package_lets_an_adapter_import_its_extra_files(tmp_path: Path, tiny: Path) -> None:
    """As a worker of TorchServe does; the path of imports is left as it was."""
    layers, path = tmp_path / "tiny_layers.py", list(sys.path)
    layers.write_text("from torch import nn\n\n\ndef network():\n    return nn.Flatten()\n")
    said("package", "tiny", "--adapter", f"{tiny}:Separate", "--extra", layers, "--output", tmp_path)
    assert sys.path == path


def test_modules_that_a_token_hides_are_left_out() -> None:
    """A token without the scope `inspect` sees no modules."""
    detail = ca.ModelDetail(ModelName("net", "1.0"), (), (), (), (), (), Provenance())
    shown = io.StringIO()
    Console(width=100, file=shown).print(model_tables.ModuleTable(model_tables.Tree(detail, None, expand=False)))
    assert "(the model) (hidden)" in squeezed(shown.getvalue())


def test_an_input_is_not_drawn_over(address: str, image: Path) -> None:
    """A picture is not written over the file that was asked about."""
    before = image.read_bytes()
    refused = cutaway("inspect", "pets", image, "--plot", image, "--address", address)
    assert refused.returncode == 2
    assert "would be overwritten" in refused.stderr
    assert image.read_bytes() == before


def test_package_hands_everything_over(tmp_path: Path, tiny: Path) -> None:
    """Version, options and further files end up in an archive that reads back; an old archive is kept unless forced."""
    (tmp_path / "words.txt").write_text("cat")
    command = ["package", "tiny", "--adapter", f"{tiny}:Tiny", "--output", tmp_path]
    more = ["--version", "2.1", "--option", "a=b=c", "--option", "d=e", "--extra", tmp_path / "words.txt"]
    said(*command, *more, "--batch-size", 4, "--max-batch-delay", 3, "--workers", 2, "--response-timeout", 9)
    manifest = reader.read(tmp_path / "tiny-2.1.mar")
    assert (manifest.version, manifest.options) == ("2.1", {"a": "b=c", "d": "e"})
    reader.unpack(tmp_path / "tiny-2.1.mar", tmp_path / "unpacked")
    assert (tmp_path / "unpacked" / "words.txt").read_text() == "cat"
    config = (tmp_path / "unpacked" / reader.MODEL_CONFIG).read_text().split()
    assert [config[config.index(f"{key}:") + 1] for key in ("batchSize", "maxBatchDelay", "minWorkers")] == list("432")
    refused = cutaway(*command, *more)
    assert refused.returncode == 1
    assert refused.stderr.startswith("INVALID_VALUE [destination]: ")
    said(*command, "--version", "2.1", "--force")
    assert reader.read(tmp_path / "tiny-2.1.mar").options == {}
    said(*command)  # another version is another archive
    assert reader.read(tmp_path / "tiny-1.0.mar").version == "1.0"


# ``cutaway new adapter``

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
