"""The ``cutaway`` command's errors: what is refused, in which words, with which status."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from cutaway import cli
from cutaway.gateway import serve
from tests.command import Pair, Pets, cutaway, squeezed, without

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
        (["inspect", "pets", "IMAGE", "--capture", "conv:conv2d#1"], "OP_NOT_FOUND [captures[0].op]: no operator"),
        (["inspect", "pets", "IMAGE", "--parameter", "conv.wei"], "PARAMETER_NOT_FOUND [captures[0].parameter]: no"),
        (["inspect", "pets", "IMAGE", "--edit", "zero:cnv"], "MODULE_NOT_FOUND [edits[0].module]: no module"),
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
        (["IMAGE", "--attribution", "Zzz"], "no method 'Zzz'; there are Deconvolution, DeepLift, DeepLiftShap,"),
        (["IMAGE", "--attribution", "Saliency,absolut=true"], "Saliency has no 'absolut'; did you mean absolute?"),
        (["IMAGE", "--attribution", "Saliency,absolute=1"], "absolute: true or false, not '1'"),
        (["IMAGE", "--attribution", "IntegratedGradients,n_steps=x"], "n_steps: a whole number, not 'x'"),
        (
            ["IMAGE", "--attribution", "IntegratedGradients,baselines.image=x"],
            "baselines: a number, a .npy file or token:ID, not 'x'",
        ),
        (["IMAGE", "--attribution", "DeepLift,baselines.image=token:pad"], "baselines: a whole number, not 'pad'"),
        (["IMAGE", "--attribution", "DeepLiftShap,baselines.image=0"], "baselines: a .npy file, not '0'"),
        (["IMAGE", "--attribution", "GradientShap"], "GradientShap needs baselines: GradientShap baselines.NAME=..."),
        (["IMAGE", "--attribution", "NeuronGradient"], "NeuronGradient needs neuron: NeuronGradient neuron=..."),
        (["IMAGE", "--attribution", "NeuronGradient,neuron=conv"], "neuron: Neuron needs index"),
        (["IMAGE", "--attribution", "NeuronGradient,neuron=conv:x"], "neuron: index: a whole number, not 'x'"),
        (["IMAGE", "--attribution", "LRP,rules.conv=gama"], "rules: no kind 'gama'; did you mean gamma?"),
        (
            ["IMAGE", "--attribution", "LRP,rules.conv=zzz"],
            "rules: no kind 'zzz'; there are epsilon, gamma, alpha_one_beta_zero, identity",
        ),
        (["IMAGE", "--attribution", "LRP,rules.conv=gamma:x"], "rules: gamma: a number, not 'x'"),
        (
            ["IMAGE", "--attribution", "LRP,rules.conv=identity:1"],
            "rules: RelevanceIdentity takes nothing behind a colon, not '1'",
        ),
        (
            ["IMAGE", "--attribution", "Saliency,metrics=zzz"],
            "metrics: no kind 'zzz'; there are infidelity, sensitivity_",
        ),
        (
            ["IMAGE", "--attribution", "Saliency,noise=smothgrad"],
            "noise: combination: no 'smothgrad'; did you mean smooth",
        ),
        (["IMAGE", "--attribution", "Occlusion,windows.image=3x3"], "windows: a whole number, not '3x3'"),
        (["IMAGE", "--attribution", "IntegratedGradients,quadrature=riemann"], "quadrature: no 'riemann'; "),
        (["IMAGE", "--attribution", "LayerGradCam"], "LayerGradCam needs layer: LayerGradCam:LAYER relu=false"),
        (["IMAGE", "--capture", "conv@outptu"], "no point 'outptu'; did you mean output?"),
        (["IMAGE", "--capture", "@output"], "'@output' names no module"),
        (["IMAGE", "--capture", "conv,cal=0"], "Capture has no 'cal'; did you mean call?"),
        (
            ["IMAGE", "--capture", "conv,call=0,output"],
            "the point 'output' belongs right behind the module: conv1@output,",
        ),
        (["IMAGE", "--capture", "conv,mean=1,max=2"], "max: reduce is given already"),
        (["IMAGE", "--capture", "conv,slice=1:x"], "slice: start: a whole number, not 'x'"),
        (["IMAGE", "--capture", "conv,dtype=flot16"], "dtype: no 'flot16'; did you mean float16?"),
        (["IMAGE", "--parameter", "conv.weight,call=0"], "Capture has no 'call'; there are slice, dtype, mean, max,"),
        (["IMAGE", "--parameter", "conv.weight@output"], "names no parameter"),
        (["IMAGE", "--edit", "scal:conv,factor=2"], "no verb 'scal'; did you mean scale?"),
        (["IMAGE", "--edit", "scale,factor=2"], "'scale,factor=2' names no module and no operator"),
        (["IMAGE", "--edit", "scale:conv"], "Scale needs factor: scale:WHERE factor=..."),
        (["IMAGE", "--edit", "zero:conv@grad"], "no point 'grad'; "),
        (["IMAGE", "--edit", "zero:conv,factor=1"], "Zero has no 'factor'; there are call, rows, slice, path"),
        (["IMAGE", "--edit", "add:conv,addend=x"], "addend: a number or a .npy file, not 'x'"),
        (["IMAGE", "--edit", "replace:conv,tensor=no.npy"], "tensor: no.npy cannot be read: No such file or directory"),
        (["IMAGE", "--edit", "zero:conv,call=0,call=1"], "call: given 2 times"),
        (["IMAGE", "--compare"], "it needs an --edit"),
        (["IMAGE", "--target", "cros_entropy:1"], "no target 'cros_entropy'; did you mean cross_entropy?"),
        (["IMAGE", "--target", "zzz"], "no target 'zzz'; there are class, cotangent, cross_entropy, index, mse,"),
        (["IMAGE", "--target", "top"], "TopK needs k: top:K"),
        (["IMAGE", "--target", "sum:3"], "OutputSum takes nothing behind a colon, not '3'"),
        (["IMAGE", "--target", "mse:1"], "values: a .npy file, not '1'"),
        (["IMAGE", "--target", "cross_entropy:1:men"], "reduction: no 'men'; did you mean mean?"),
        (["IMAGE", "--target", "1", "--target", "sum"], "several targets are of one kind, one for each example"),
        (["IMAGE", "--target", "sum", "--target", "sum"], "several targets are of one kind, one for each example"),
        (["IMAGE", "--target", "1", "--target", "1,output=x"], "several targets differ in nothing but what each"),
        (["IMAGE", "--explain-if", "at_leest=1"], "ExplainIf has no 'at_leest'; did you mean at_least?"),
        (["IMAGE", "--explain-if", "0.5"], "'0.5' is not key=value"),
        (["IMAGE", "--explain-if", "at_most=low"], "at_most: a number, not 'low'"),
        (["IMAGE", "--explain-if", "classes=cat"], "classes: a whole number, not 'cat'"),
        (
            ["IMAGE", "--explain-if", "at_most=1,probability_at_most=1"],
            "probability_at_most: probability_at_most is given already",
        ),
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
    assert message in done.output, done.output


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
    for package in ("torch", "captum", "ts"):  # the front door loads none of them: its workers would
        done = without((package,), ["serve", "--model-store", str(tmp_path)])
        assert done.returncode == 2
        assert done.stderr == f"{package} is missing; this needs: pip install 'cutaway[server]'\n"
    done = without(("ts",), ["serve", "--embedded", "--model-store", str(tmp_path)])
    assert "no .mar archive" in done.stderr  # without TorchServe, models of this process are served
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
