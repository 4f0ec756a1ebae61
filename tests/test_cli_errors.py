"""The ``cutaway`` command's errors: what is refused, in which words, with which status; and how words are read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

import cutaway as ca
from cutaway import cli
from cutaway.cli import words
from cutaway.gateway import serve
from tests.command import Pair, Pets, cutaway, said, squeezed, without

RED, BOLD = "\x1b[31m", "\x1b[1m"
NOBODY = "127.0.0.1:1"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serve({"pets": Pets(), "pair": Pair()}) as served:
        yield served.address


@pytest.fixture
def image(tmp_path: Path) -> Path:
    file = tmp_path / "pet.png"
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(file)
    return file


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
    assert done.stderr.startswith("SERVER_UNREACHABLE: no server answers (")
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
        done = without((package,), ["models"])
        assert done.returncode == 2
        assert done.stderr == "the command line needs: pip install 'cutaway[cli]'\n"


def test_a_command_without_its_packages_says_what_is_missing(address: str, image: Path, tmp_path: Path) -> None:
    """Without torch `serve` names the extra to install, without matplotlib `--plot` does; status 2."""
    done = without(("torch",), ["serve", "--model-store", str(tmp_path)])
    assert done.returncode == 2
    assert done.stderr == "torch is missing; this needs: pip install 'cutaway[server]'\n"
    plot = ["--plot", str(tmp_path / "x.png")]
    done = without(("matplotlib",), ["inspect", "pets", str(image), *plot, "--address", address])
    assert done.returncode == 2
    assert done.stderr == "matplotlib is missing; this needs: pip install 'cutaway[cli]'\n"


def test_serve_refuses_what_cannot_be(tmp_path: Path) -> None:
    """Workers in one process, a store that is not there and a setting that is no number are refused in words."""
    done = cutaway("serve", "--model-store", tmp_path, "--embedded", "--workers", 2)
    assert (done.returncode, "have no workers" in done.stderr) == (2, True)
    done = cutaway("serve", "--model-store", tmp_path / "nowhere")
    assert (done.returncode, "does not exist" in done.stderr) == (2, True)
    done = cutaway("serve", "--model-store", tmp_path, CUTAWAY_GRACE_S="soon")
    assert done.returncode == 1
    assert done.stderr.startswith("INVALID_VALUE [CUTAWAY_GRACE_S]: ")


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
