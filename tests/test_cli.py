"""The ``cutaway`` command as a person uses it: typed words in, text and an exit status out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from rich.console import Console
from torch import Tensor, nn
from typer.testing import CliRunner

import cutaway as ca
from cutaway import archive, cli, tables
from cutaway.adapters import ImageAdapter
from cutaway.cli import words
from cutaway.gateway import serve
from tests.serving import serving

RED, BOLD = "\x1b[31m", "\x1b[1m"
NOBODY = "127.0.0.1:1"

ADAPTER = """
from torch import nn

from cutaway.adapters import ImageAdapter


class Tiny(ImageAdapter):
    size, mode, argument = (8, 8), "L", "input"

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
"""


class Net(nn.Module):
    """Has what a tree can show: numbered modules alike, one called twice, one never, one with two names."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.relu = nn.ReLU()
        self.feature_blocks = nn.ModuleList(nn.Sequential(nn.Conv2d(4, 4, 1), nn.Sigmoid()) for _ in range(3))
        self.unused = nn.Linear(3, 3)
        self.twin = self.conv
        self.head = nn.Linear(144, 3)

    def forward(self, image: Tensor) -> Tensor:
        hidden = self.relu(self.conv(image))
        for block in self.feature_blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(self.relu(hidden).flatten(1))
        return logits


class Pets(ImageAdapter):
    """`Net`, reading image files."""

    size, mode, labels = (8, 8), "L", ("cat", "dog", "owl")

    def build(self) -> nn.Module:
        torch.manual_seed(0)
        return Net()


class Pair(nn.Module):
    """Two inputs, no classes, no example."""

    def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        return {"sum[0]": left + right, "ids": torch.full((len(left), 2), 123456)}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serve({"pets": Pets(), "pair": Pair()}) as served:
        yield served.address


@pytest.fixture
def image(tmp_path: Path) -> Path:
    file = tmp_path / "pet.png"
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(file)
    return file


def cutaway(*arguments: object, columns: int = 80, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command with its output piped, as scripts do, on a screen that is ``columns`` wide."""
    colours = ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE")
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("CUTAWAY_", *colours))}
    return subprocess.run(
        [sys.executable, "-m", "cutaway.console", *map(str, arguments)],
        env={**bare, "COLUMNS": str(columns), **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )


def said(*arguments: object, columns: int = 80, **variables: str) -> str:
    """What the command printed; it must have succeeded."""
    done = cutaway(*arguments, columns=columns, **variables)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def squeezed(text: str) -> str:
    """``text`` with every run of spaces and line breaks as one space."""
    return " ".join(text.split())


# Asking


def test_lists_models_with_versions(address: str) -> None:
    """`models` prints every model's name and version."""
    lines = [line.split() for line in said("models", "--address", address).splitlines()]
    assert ["pets", "1.0"] in lines
    assert ["pair", "1.0"] in lines


def test_the_address_can_come_from_the_environment(address: str) -> None:
    """CUTAWAY_ADDRESS stands in for --address."""
    assert "pets" in said("models", CUTAWAY_ADDRESS=address)


def test_layers_says_what_goes_in_and_what_comes_out(address: str) -> None:
    """`layers` names inputs, outputs, labels and media types; a size that is free is said to be."""
    text = said("layers", "pets", "--address", address)
    assert "image: float32[batch, 1, 8, 8]" in text
    assert "output: float32[batch, 3]" in text
    assert "cat, dog, owl" in text
    assert "image/png" in text


def test_layers_shows_the_module_tree(address: str) -> None:
    """Each module comes with its type, its output's shape and its parameters; what the example never calls says so."""
    text = squeezed(said("layers", "pets", "--address", address))
    assert "conv = twin Conv2d [1, 4, 6, 6] 40" in text
    assert "relu ReLU [1, 4, 6, 6], 2 calls 0" in text
    assert "unused Linear not called 12" in text
    assert "head Linear [1, 3] 435" in text


def test_layers_shows_numbered_modules_that_are_alike_once(address: str) -> None:
    """They share a row under the glob that finds them all; --all shows each, --depth hides what is deeper."""
    text = squeezed(said("layers", "pets", "--address", address))
    assert "feature_blocks.*.0 3 x Conv2d [1, 4, 6, 6] 20" in text
    assert "feature_blocks.1" not in text
    with ca.Client(address) as client:
        found = client.inspect("pets", {"image": np.zeros((1, 1, 8, 8), np.float32)}, captures=["feature_blocks.*.0"])
    assert len(found.captures) == 3
    assert "feature_blocks.2.1 Sigmoid" in squeezed(said("layers", "pets", "--all", "--address", address))
    shallow = said("layers", "pets", "--depth", 1, "--address", address)
    assert "feature_blocks " in shallow
    assert "feature_blocks.*" not in shallow


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


def test_inspect_prints_the_prediction_that_the_client_gets(address: str, image: Path) -> None:
    """The printed class, label and probability are those of the Python client for the same file."""
    with ca.Client(address) as client:
        expected = client.inspect("pets", ca.Raw(image.read_bytes(), "image/png")).classes[0]
    text = squeezed(said("inspect", "pets", image, "--address", address))
    assert f"0 {expected.index} {expected.label} {expected.probability:.1%}" in text


def test_inspect_prints_all_that_was_asked_for(address: str, image: Path) -> None:
    """Captures by point and call, gradients, attributions, verdicts, warnings, timings and provenance."""
    asked = ["--capture", "conv*@output,grad_output", "--capture", "relu", "--capture", "unused", "--input-gradient"]
    asked += ["--attribution", "integratedgradients,n_steps=16", "--attribution", "LayerGradCam:conv,relu=true"]
    text = squeezed(said("inspect", "pets", image, image, *asked, "--address", address, columns=200))
    assert "conv grad_output 0 float32[2, 4, 6, 6]" in text
    assert "relu output 1 float32[2, 4, 6, 6]" in text
    assert "image float32[2, 1, 8, 8]" in text
    assert "IntegratedGradients image [2, 1, 8, 8]" in text
    assert "LayerGradCam conv [2, 1, 6, 6]" in text
    assert "AGREES LayerGradCam" in text
    assert "MODULE_NOT_CALLED unused:" in text
    assert "Time in ms" in text
    assert "forward and" in text


def test_inspect_explains_the_target_that_is_given(address: str, image: Path) -> None:
    """--target is one class for all examples, or one for each."""
    text = squeezed(said("inspect", "pets", image, image, "--target", 2, "--target", 0, "--address", address))
    with ca.Client(address) as client:
        raw = ca.Raw(image.read_bytes(), "image/png")
        expected = client.inspect("pets", [raw, raw], target=[2, 0]).target_values
    assert expected is not None
    assert f"% 2 {expected[0]:.3g} 1 " in text
    assert f"% 0 {expected[1]:.3g} Time" in text


def test_inspect_reads_arrays(address: str, tmp_path: Path) -> None:
    """A .npy goes to the model's one input or to the one named, a .npz to those that it names."""
    array = np.random.default_rng(0).random((2, 1, 8, 8), np.float32)
    np.save(tmp_path / "one.npy", array)
    np.savez(tmp_path / "named.npz", image=array)
    answers = {
        squeezed(said("inspect", "pets", tmp_path / file, *named, "--address", address)).partition("Time")[0]
        for file, *named in (["one.npy"], ["one.npy", "--name", "image"], ["named.npz"])
    }
    assert len(answers) == 1


def test_inspect_shows_outputs_of_a_model_without_classes(address: str, tmp_path: Path) -> None:
    """Each output is shown by name, shape and first values: integers whole, names as they are."""
    np.save(tmp_path / "left.npy", np.full((1, 2), 0.25, np.float32))
    np.savez(tmp_path / "right.npz", right=np.ones((1, 2), np.float32))
    files = [tmp_path / "left.npy", tmp_path / "right.npz"]
    text = squeezed(said("inspect", "pair", *files, "--name", "left", "--address", address))
    assert "sum[0] float32[1, 2] 1.25 1.25" in text
    assert "ids int64[1, 2] 123456 123456" in text


def test_inspect_saves_every_tensor(address: str, image: Path, tmp_path: Path) -> None:
    """--save writes what came back, bit for bit, under keys that a person can read."""
    file = tmp_path / "answer.npz"
    text = said(
        *("inspect", "pets", image, "--capture", "relu", "--capture", "**.0", "--input-gradient"),
        *("--attribution", "Saliency", "--save", file, "--address", address),
    )
    with ca.Client(address) as client:
        expected = client.inspect(
            "pets",
            ca.Raw(image.read_bytes(), "image/png"),
            captures=["relu"],
            input_gradients=True,
            attributions=[ca.Saliency()],
        )
    with np.load(file) as saved:
        assert f"saved {len(saved.files)} tensors to {file}" in text.replace("\n", "")
        np.testing.assert_array_equal(saved["predictions/output"], expected.predictions["output"])
        np.testing.assert_array_equal(saved["captures/relu[1]/output"], expected.captures["relu"].calls[1].output)
        np.testing.assert_array_equal(saved["input_gradients/image"], expected.input_gradients["image"])
        np.testing.assert_array_equal(
            saved["attributions/0-Saliency/values/image"], expected.attributions[0].values["image"]
        )
        assert saved["captures/feature_blocks.0.0/output"].shape == (1, 4, 6, 6)


def test_inspect_draws(address: str, image: Path, tmp_path: Path) -> None:
    """--plot leaves a picture."""
    file = tmp_path / "answer.png"
    said("inspect", "pets", image, "--attribution", "Saliency", "--plot", file, "--address", address)
    with Image.open(file) as picture:
        assert picture.format == "PNG"


def test_piped_output_is_plain_and_fits_the_width(address: str, image: Path) -> None:
    """No colour codes reach a file or a pipe, and at 80 columns no line is longer."""
    for command in (["models"], ["layers", "pets"], ["inspect", "pets", image, "--attribution", "IntegratedGradients"]):
        text = said(*command, "--address", address)
        assert "\x1b" not in text
        assert max(map(len, text.splitlines())) <= 80


def test_asking_needs_no_torch(address: str, image: Path) -> None:
    """`models`, `layers` and `inspect` run where torch and Captum are not installed."""
    for command in (["models"], ["layers", "pets"], ["inspect", "pets", str(image), "--capture", "conv"]):
        done = _without(("torch", "captum"), [*command, "--address", address])
        assert done.returncode == 0, done.stderr


def _without(packages: tuple[str, ...], arguments: list[str]) -> subprocess.CompletedProcess[str]:
    program = f"""
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
sys.argv = ["cutaway", *{arguments!r}]
from cutaway.console import main
main()
"""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)


# Failing


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["layers", "pest"], "MODEL_NOT_FOUND [model]: no model 'pest'; did you mean 'pets'?"),
        (["inspect", "pets", "IMAGE", "--capture", "cnv"], "MODULE_NOT_FOUND [captures[0].module]: no module"),
        (["inspect", "pets", "IMAGE", "--target", "7"], "TARGET_RANGE [target.class_index]:"),
        (["inspect", "pets", "--text", "a cat"], "RAW_UNSUPPORTED [raw.examples[0].media_type]: 'text/plain' is none"),
        (["inspect", "pets", "BROKEN"], "INVALID_VALUE: "),
        (["inspect", "pets", "IMAGE", "--save", "nowhere/x.npz"], "INVALID_VALUE [save]: nowhere/x.npz cannot be"),
        (["inspect", "pets", "IMAGE", "--plot", "nowhere/x.png"], "INVALID_VALUE [plot]: nowhere/x.png cannot be"),
        (["inspect", "pets", "IMAGE", "--timeout", "0.000001"], "DEADLINE_EXCEEDED: no answer within 1e-06 s"),
    ],
)
def test_an_error_is_one_line(arguments: list[str], message: str, address: str, image: Path, tmp_path: Path) -> None:
    """What the server or a file refuses is one line with reason, field and message, and status 1."""
    broken = tmp_path / "broken.npy"
    broken.write_bytes(b"\x93NUMPY")
    files = {"IMAGE": image, "BROKEN": broken}
    done = cutaway(*(files.get(word, word) for word in arguments), "--address", address)
    assert done.returncode == 1
    assert done.stderr.startswith(message), done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_error_is_red_on_a_terminal(address: str) -> None:
    """Colour is used where somebody looks."""
    done = cutaway("layers", "pest", "--address", address, FORCE_COLOR="1", TERM="xterm")
    assert done.stderr.startswith(f"{RED}MODEL_NOT_FOUND")
    assert BOLD in cutaway("models", "--address", address, FORCE_COLOR="1", TERM="xterm").stdout


def test_without_a_server_the_error_says_how_to_start_one() -> None:
    """Nobody at the address: UNAVAILABLE's reason, the address, and the command that starts a server."""
    done = cutaway("models", "--address", NOBODY)
    assert done.returncode == 1
    assert done.stderr.startswith(f"BACKEND_UNAVAILABLE: no answer from {NOBODY} (")
    assert "cutaway serve --model-store DIR" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["IMAGE", "--attribution", "Salienci"], "no method 'Salienci'; did you mean Saliency?"),
        (["IMAGE", "--attribution", "Zzz"], "no method 'Zzz'; there are InputXGradient, IntegratedGradients,"),
        (["IMAGE", "--attribution", "Saliency,absolut=true"], "Saliency has no 'absolut'; did you mean absolute?"),
        (["IMAGE", "--attribution", "Saliency,absolute=1"], "absolute: true or false, not '1'"),
        (["IMAGE", "--attribution", "IntegratedGradients,n_steps=x"], "n_steps: a whole number, not 'x'"),
        (["IMAGE", "--attribution", "IntegratedGradients,baselines.image=x"], "baselines: a number, not 'x'"),
        (["IMAGE", "--attribution", "IntegratedGradients,quadrature=riemann"], "quadrature: no 'riemann'; "),
        (["IMAGE", "--attribution", "LayerGradCam"], "LayerGradCam needs layer: LayerGradCam:LAYER relu=false"),
        (["IMAGE", "--capture", "conv@outptu"], "no point 'outptu'; did you mean output?"),
        (["IMAGE", "--capture", "@output"], "'@output' names no module"),
        (["IMAGE", "--check", "never"], "'same_pass'"),
        (["IMAGE", "--plot", "answer.txt"], "answer.txt ends with none of .png, .svg, .pdf"),
        (["nowhere.png"], "'nowhere.png' does not exist"),
        ([], "give a file, or --text"),
        (["IMAGE", "ARRAY"], "cannot be mixed"),
        (["ARRAY", "--name", "image", "--name", "other"], "1 .npy files need as many names, not 2"),
    ],
)
def test_a_mistyped_command_is_refused_before_anybody_is_asked(
    arguments: list[str], message: str, image: Path, tmp_path: Path
) -> None:
    """What the command line can tell by itself is a usage error, with what would be right, and status 2."""
    array = tmp_path / "array.npy"
    np.save(array, np.zeros((1, 1, 8, 8), np.float32))
    files = {"IMAGE": image, "ARRAY": array}
    given = [str(files.get(word, word)) for word in arguments]
    done = CliRunner().invoke(cli.app, ["inspect", "pets", *given, "--address", NOBODY])
    assert done.exit_code == 2
    assert message in done.output


def test_a_bare_array_for_a_model_with_two_inputs_needs_a_name(address: str, tmp_path: Path) -> None:
    """The error says which names there are."""
    np.save(tmp_path / "left.npy", np.zeros((1, 2), np.float32))
    done = cutaway("inspect", "pair", tmp_path / "left.npy", "--address", address)
    assert done.returncode == 2
    assert "pair takes left, right" in squeezed(done.stderr)


def test_the_base_install_says_what_is_missing() -> None:
    """Without typer or rich, `cutaway` says in one line what to install, and ends with status 2."""
    for package in ("typer", "rich"):
        done = _without((package,), ["models"])
        assert done.returncode == 2
        assert done.stderr == "the command line needs: pip install 'cutaway[cli]'\n"


def test_a_command_without_its_packages_says_what_is_missing(address: str, image: Path, tmp_path: Path) -> None:
    """Without torch `serve` names the extra to install, without matplotlib `--plot` does; status 2."""
    done = _without(("torch",), ["serve", "--model-store", str(tmp_path)])
    assert done.returncode == 2
    assert done.stderr == "torch is missing; this needs: pip install 'cutaway[server]'\n"
    plot = ["--plot", str(tmp_path / "x.png")]
    done = _without(("matplotlib",), ["inspect", "pets", str(image), *plot, "--address", address])
    assert done.returncode == 2
    assert done.stderr == "matplotlib is missing; this needs: pip install 'cutaway[cli]'\n"


# Typed words


def test_every_parameter_of_a_method_can_be_typed() -> None:
    """A typed attribution equals the one made in Python, whatever the types of its parameters."""
    typed = "IntegratedGradients,n_steps=7,baselines.a=0.5,baselines.b=1,quadrature=riemann_left,inputs=a,inputs=b"
    assert words.attribution(f"{typed},multiply_by_inputs=false,target=3") == ca.IntegratedGradients(
        n_steps=7,
        baselines={"a": 0.5, "b": 1.0},
        quadrature=ca.Quadrature.RIEMANN_LEFT,
        inputs=("a", "b"),
        multiply_by_inputs=False,
        target=ca.ClassIndex((3,)),
    )
    assert words.attribution("layergradcam:feature_blocks.1,relu=True") == ca.LayerGradCam(
        layer="feature_blocks.1", relu=True
    )


def test_every_method_is_offered() -> None:
    """Each method that Python offers can be asked for by name; the help lists all."""
    offered = {kind for kind in vars(ca).values() if isinstance(kind, type) and issubclass(kind, ca.Attribution)}
    assert set(words.METHODS.values()) == offered - {ca.Attribution}
    help_text = said("inspect", "--help")
    assert all(words.usage(kind).split()[0] in help_text for kind in words.METHODS.values())


def test_a_capture_is_a_glob_and_points() -> None:
    """A bare pattern brings back outputs; the points follow an @."""
    assert words.capture("conv*").points == (ca.Point.OUTPUT,)
    assert words.capture("**.fc@input,grad_input") == ca.Capture("**.fc", (ca.Point.INPUT, ca.Point.GRAD_INPUT))
    with pytest.raises(typer.BadParameter):
        words.pair("no equals sign")


def test_numbers_that_are_none_stand_out() -> None:
    """Not-a-number and infinity are shown as such, and in red."""
    console = Console(width=80, force_terminal=True, color_system="standard")
    result = ca.InspectResult({}, input_gradients={"[bold]x": np.array([np.nan, 1.0], np.float32)})
    with console.capture() as captured:
        console.print(tables.gradient_table(result))
    assert "\x1b[1;31m" in captured.get()
    assert "[bold]x" in captured.get()


# The command itself, and serving


def test_help_leads_a_newcomer(address: str) -> None:
    """`--help` names every command and shows first steps; `--version` is the package's."""
    text = said("--help")
    assert all(f"\n  {command} " in text for command in ("package", "serve", "models", "layers", "inspect"))
    assert "cutaway inspect digits seven.png" in text
    assert said("--version") == f"cutaway {ca.__version__}\n"


def test_packages_then_serves_then_answers(tmp_path: Path, image: Path) -> None:
    """From an adapter's file to an answer, by the commands that each step prints."""
    (tmp_path / "tiny_pets.py").write_text(ADAPTER)
    made = said("package", "tiny", "--adapter", f"{tmp_path / 'tiny_pets.py'}:Tiny", "--output", tmp_path)
    assert f"built {tmp_path / 'tiny.mar'} (" in made
    assert f"next: cutaway serve --model-store {tmp_path}\n" in made
    with serving(tmp_path, tmp_path / "logs", "--embedded") as server:
        assert server.said == ["serving tiny 1.0", f"ready: {server.address}"]
        assert "tiny 1.0" in said("inspect", "tiny", image, "--address", server.address)
        assert server.stop() == 0


def test_package_hands_everything_over(tmp_path: Path) -> None:
    """Version, options and further files end up in an archive that reads back; an old archive is kept unless forced."""
    (tmp_path / "tiny_pets.py").write_text(ADAPTER)
    (tmp_path / "words.txt").write_text("cat")
    command = ["package", "tiny", "--adapter", f"{tmp_path / 'tiny_pets.py'}:Tiny", "--output", tmp_path]
    more = ["--version", "2.1", "--option", "a=b=c", "--option", "d=e", "--extra", tmp_path / "words.txt"]
    said(*command, *more, "--batch-size", 4, "--max-batch-delay", 3, "--workers", 2, "--response-timeout", 9)
    manifest = archive.read(tmp_path / "tiny.mar")
    assert (manifest.version, manifest.options) == ("2.1", {"a": "b=c", "d": "e"})
    archive.unpack(tmp_path / "tiny.mar", tmp_path / "unpacked")
    assert (tmp_path / "unpacked" / "words.txt").read_text() == "cat"
    config = (tmp_path / "unpacked" / archive.MODEL_CONFIG).read_text().split()
    assert [config[config.index(f"{key}:") + 1] for key in ("batchSize", "maxBatchDelay", "minWorkers")] == list("432")
    refused = cutaway(*command)
    assert refused.returncode == 1
    assert refused.stderr.startswith("INVALID_VALUE [destination]: ")
    said(*command, "--force")
    assert archive.read(tmp_path / "tiny.mar").version == "1.0"


def test_serve_refuses_what_cannot_be(tmp_path: Path) -> None:
    """Workers in one process, a store that is not there and a setting that is no number are refused in words."""
    done = cutaway("serve", "--model-store", tmp_path, "--embedded", "--workers", 2)
    assert (done.returncode, "have no workers" in done.stderr) == (2, True)
    done = cutaway("serve", "--model-store", tmp_path / "nowhere")
    assert (done.returncode, "does not exist" in done.stderr) == (2, True)
    done = cutaway("serve", "--model-store", tmp_path, CUTAWAY_GRACE_S="soon")
    assert done.returncode == 1
    assert done.stderr.startswith("INVALID_VALUE [CUTAWAY_GRACE_S]: ")
