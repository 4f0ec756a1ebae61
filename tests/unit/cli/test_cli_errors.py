"""The ``cutaway`` command's errors: what is refused, in which words, with which status."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import cutaway as ca
from cutaway.cli import application
from tests.support.cli import cutaway, squeezed, without
from tests.support.serving import package

RED, BOLD = "\x1b[31m", "\x1b[1m"
NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["layers", "pest"], "MODEL_NOT_FOUND [model]: no model 'pest'; did you mean 'pets'?"),
        (["inspect", "pets", "IMAGE", "--capture", "cnv"], "MODULE_NOT_FOUND [captures[0].module]: no module"),
        (["inspect", "pets", "IMAGE", "--target", "7"], "TARGET_RANGE [target.class_index]:"),
        (["inspect", "pets", "IMAGE", "--capture", "conv:conv2d#1"], "OP_NOT_FOUND [captures[0].op]: no operator"),
        (["inspect", "pets", "IMAGE", "--request", "REQUEST"], "PARAMETER_NOT_FOUND [captures[0].parameter]: no"),
        (["inspect", "pets", "IMAGE", "--edit", "zero:cnv"], "MODULE_NOT_FOUND [edits[0].module]: no module"),
        (["inspect", "pets", "--text", "a cat"], "RAW_UNSUPPORTED [raw.examples[0].media_type]: 'text/plain' is none"),
        (["inspect", "pets", "BROKEN"], "INVALID_VALUE: "),
        (["inspect", "pets", "IMAGE", "--save", "nowhere/x.npz"], "INVALID_VALUE [save]: nowhere/x.npz cannot be"),
        (["inspect", "pets", "IMAGE", "--plot", "nowhere/x.png"], "INVALID_VALUE [plot]: nowhere/x.png cannot be"),
    ],
)
def test_an_error_is_one_line(arguments: list[str], message: str, address: str, image: Path, tmp_path: Path) -> None:
    """What the server or a file refuses is one line with reason, field and message, and status 1."""
    broken = tmp_path / "broken.npy"
    broken.write_bytes(b"\x93NUMPY")
    (tmp_path / "request.yaml").write_text("captures: [{parameter: conv.wei}]")
    files = {"IMAGE": image, "BROKEN": broken, "REQUEST": tmp_path / "request.yaml"}
    done = cutaway(*(files.get(word, word) for word in arguments), "--address", address)
    assert done.returncode == 1
    assert done.stderr.startswith(message), done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_no_reply_in_time_is_worth_another_try(address: str, image: Path) -> None:
    """A deadline has the exit status of errors that may go away, and its line says what helps."""
    done = cutaway("inspect", "pets", image, "--timeout", "0.000001", "--address", address)
    assert done.returncode == 5
    assert done.stderr.startswith("DEADLINE_EXCEEDED: no reply within 1e-06 s")
    assert "--timeout waits longer" in done.stderr


def test_an_error_is_red_on_a_terminal(address: str) -> None:
    """Colour is used where somebody looks."""
    done = cutaway("layers", "pest", "--address", address, FORCE_COLOR="1", TERM="xterm")
    assert done.stderr.startswith(f"{RED}MODEL_NOT_FOUND")
    assert BOLD in cutaway("models", "--address", address, FORCE_COLOR="1", TERM="xterm").stdout


def test_without_a_server_the_error_says_how_to_start_one() -> None:
    """Nobody at the address: UNAVAILABLE's reason, the address, and the command that starts a server."""
    done = cutaway("models", "--address", NOBODY)
    assert done.returncode == 5
    assert done.stderr.startswith("SERVER_UNREACHABLE: no server answers (")
    assert f") at {NOBODY}; start one with: cutaway serve --model-store DIR" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["IMAGE", "--attribution", "Salienci"], "method: there is no method 'Salienci'; did you mean 'saliency'?"),
        (["IMAGE", "--attribution", "Zzz"], "method: there is no method 'Zzz'; there are deconvolution, deep_lift,"),
        (["IMAGE", "--attribution", "Saliency,absolut=true"], "absolut: Saliency has no such field; did you mean"),
        (["IMAGE", "--attribution", "Saliency,absolute=1"], "absolute: must be true or false, not 1"),
        (["IMAGE", "--attribution", "Occlusion,sliding_window_shapes.image=[3,3]"], "did you mean 'windows'?"),
        (
            ["IMAGE", "--attribution", "Saliency,nt_samples=9"],
            "nt_samples: Saliency has no such field; noisy copies of",
        ),
        (["IMAGE", "--reply-dtype", "float17"], "'float17' is not a choice; did you mean 'float16'?"),
        (["IMAGE", "--target", "cros_entropy"], "there is no target 'cros_entropy'; did you mean 'cross_entropy'?"),
        (["IMAGE", "--attribution", "Saliency,metrics=[zzz]"], "metrics[0]: there is no metric 'zzz'; there are"),
        (["IMAGE", "--attribution", "Saliency,inputs=[a"], "inputs: '[a' is not YAML: "),
        (["IMAGE", "--attribution", "DeepLift,baselines.image=x"], "baselines.image: must be a number, a .npy file"),
        (["IMAGE", "--attribution", "LayerGradCam"], "layer: LayerGradCam needs this field"),
        (["IMAGE", "--capture", "conv@outptu"], "at: 'outptu' is not a choice; did you mean 'output'?"),
        (["IMAGE", "--capture", "conv,cal=0"], "cal: Capture has no such field; did you mean 'call'?"),
        (["IMAGE", "--edit", "scal:conv,factor=2"], "edit: there is no edit 'scal'; did you mean 'scale'?"),
        (["IMAGE", "--edit", "scale:conv"], "factor: Scale needs this field"),
        (["IMAGE", "--edit", "zero:conv@grad"], "at: 'grad' is not a choice; "),
        (["IMAGE", "--edit", "replace:conv,tensor=no.npy"], "tensor: no.npy cannot be read: No such file or directory"),
        (["IMAGE", "--compare"], "without an --edit there is nothing to compare"),
        (["IMAGE", "--explain-if", "0.5"], "'0.5' is not KEY=VALUE"),
        (["IMAGE", "--explain-if", "probability_at_leest=1"], "did you mean 'probability_at_least'?"),
        (["IMAGE", "--request", "nowhere.yaml"], "nowhere.yaml cannot be read: No such file or directory"),
        (["IMAGE", "--request", "REQUEST"], "captures[0].cal: Capture has no such field; did you mean 'call'?"),
        (["IMAGE", "--request", "DRY", "--plot", "answer.png"], "a dry run has no tensors to draw or save"),
        (["IMAGE", "--check", "never"], "'same_pass'"),
        (["IMAGE", "--plot", "answer.txt"], "answer.txt must end with .png, .svg or .pdf"),
        (["nowhere.png"], "'nowhere.png' does not exist"),
        ([], "give a file or --text"),
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
    (tmp_path / "request.yaml").write_text("captures: [{module: conv, cal: 0}]")
    (tmp_path / "dry.yaml").write_text("dry_run: true")
    files = {"IMAGE": image, "ARRAY": array, "REQUEST": tmp_path / "request.yaml", "DRY": tmp_path / "dry.yaml"}
    given = [str(files.get(word, word)) for word in arguments]
    done = CliRunner().invoke(application.app, ["inspect", "pets", *given, "--address", NOBODY])
    assert done.exit_code == 2
    assert message in done.output, done.output


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("captures:\n  - conv\n  - {module: conv, cal: 0}", "line 3: captures[1].cal: Capture has no such field"),
        ("seed: 1\nattributions: [{method: deep_lift,\n  baselines: {image: x}}]", "line 3: attributions[0].baselines"),
        ("seed: 1\nnonsense: 1", "line 2: nonsense: InspectRequest has no such field"),
        ("seed: 1\n  edits: []", "is not YAML: line 2: mapping values are not allowed here"),
        ("", "holds no mapping of field names to values"),
    ],
)
@pytest.mark.parametrize("source", ["file", "standard input"])
def test_an_error_in_a_request_file_has_its_line(
    content: str, message: str, source: str, image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File, or standard input, and line stand before the field; nothing is sent."""
    file = tmp_path / "request.yaml"
    file.write_text(content)
    monkeypatch.setattr("sys.stdin", io.StringIO(content))
    given = "-" if source == "standard input" else file
    done = cutaway("inspect", "pets", image, "--request", given, "--address", NOBODY)
    assert done.returncode == 2
    name = str(file) if source == "file" else source
    assert re.search(f"{re.escape(name)},? {re.escape(message)}", done.stderr), done.stderr


def test_an_error_that_the_server_finds_has_its_line(address: str, image: Path, tmp_path: Path) -> None:
    """Where the field at fault is from the request file, and not from an option."""
    file = tmp_path / "request.yaml"
    ask = ["inspect", "pets", image, "--request", file, "--address", address]
    file.write_text("seed: 1\ncaptures:\n  - conv\n  - module: cnv\n")
    done = cutaway(*ask)
    assert done.returncode == 1
    assert done.stderr.startswith("MODULE_NOT_FOUND [captures[1].module]: ")
    assert done.stderr.endswith(f" ({file}, line 4)\n")
    file.write_text("seed: 1\ntarget: 7\n")
    assert cutaway(*ask).stderr.endswith(f" ({file}, line 2)\n")
    done = cutaway(*ask, "--target", 8)
    assert (done.returncode, "line" in done.stderr) == (1, False)
    file.write_text("captures: [conv]")
    done = cutaway(*ask, "--capture", "cnv")
    assert done.stderr.startswith("MODULE_NOT_FOUND [captures[1].module]: ")
    assert "line" not in done.stderr


def test_a_bare_array_for_a_model_with_two_inputs_needs_a_name(address: str, tmp_path: Path) -> None:
    """The error says which names there are."""
    np.save(tmp_path / "left.npy", np.zeros((1, 2), np.float32))
    done = cutaway("inspect", "pair", tmp_path / "left.npy", "--address", address)
    assert done.returncode == 2
    assert "pair takes left, right" in squeezed(done.stderr)


def test_the_base_install_says_what_is_missing() -> None:
    """Without typer, rich or yaml, `cutaway` says in one line what to install, and ends with status 2."""
    for missing in ("typer", "rich", "yaml"):
        done = without((missing,), ["models"])
        assert done.returncode == 2
        assert done.stderr == "the command line needs: pip install 'cutaway[cli]'\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "words", "extra"),
    [
        # The gateway loads none of them: its workers would.
        *((package, ["serve", "--model-store", "STORE"], "server") for package in ("torch", "captum", "ts")),
        ("torch", ["package", "tiny", "--adapter", "tiny.py:Tiny"], "server"),
        ("torch", ["serve", "--engine=processes", "--model-store", "STORE"], "local"),
        ("matplotlib", ["inspect", "pets", "IMAGE", "--plot", "x.png", "--address", "ADDRESS"], "cli"),
        ("ts", ["serve", "--engine=embedded", "--model-store", "STORE"], ""),
    ],
)
def test_a_command_without_its_packages_says_what_is_missing(
    package: str, words: list[str], extra: str, address: str, image: Path, tmp_path: Path
) -> None:
    """In one line with the extra to install, and with status 2; models of this process need no TorchServe."""
    known = {"STORE": str(tmp_path), "IMAGE": str(image), "ADDRESS": address}
    done = without((package,), [known.get(word, word) for word in words])
    if extra:
        missing = f"{package} is missing; this needs: pip install 'cutaway[{extra}]'\n"
        assert (done.returncode, done.stderr) == (2, missing)
    else:
        assert "no .mar archive" in done.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("CUTAWAY_TLS_CERT", "no such setting; did you mean CUTAWAY_TLS_CERTIFICATE?"),
        ("CUTAWAY_TOKENS_FILE", "no such setting; did you mean CUTAWAY_TOKENS?"),
        ("CUTAWAY_X", "no such setting; settings: ADDRESS, DEFAULT_DEADLINE_S, "),
    ],
)
def test_a_misspelt_setting_is_refused(name: str, said: str, tmp_path: Path) -> None:
    """Ignored, it would leave a server without the certificate or the tokens that its operator gave it."""
    done = cutaway("serve", "--model-store", tmp_path, columns=80, **{name: "x"})
    assert done.returncode == 1
    assert done.stderr.startswith(f"INVALID_VALUE [{name}]: {said}"), done.stderr


@pytest.mark.parametrize(
    "name",
    ["CUTAWAY_TOKEN", "CUTAWAY_IMAGE", "CUTAWAY_PORT", "CUTAWAY_PORT_50051_TCP_ADDR", "CUTAWAY_WEB_SERVICE_HOST"],
)
def test_what_others_set_is_no_setting(name: str, tmp_path: Path) -> None:
    """Clients, Compose and Kubernetes have variables of their own."""
    done = cutaway("serve", "--model-store", tmp_path, columns=80, **{name: "x"})
    assert done.stderr.startswith("MODEL_NOT_FOUND"), done.stderr


def test_no_url_becomes_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a path is meant, in options, arguments and settings."""
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text("class A: pass")
    for words in (
        ["package", "tiny", "--adapter", "a.py:A", "--output", "s3://bucket/models"],
        ["serve", "--model-store", ".", "--log-dir", "gs://bucket/logs"],
        ["new", "adapter", "tiny", "--output", "https://host/x"],
        ["inspect", "tiny", "--save", "az://bucket/x.npz"],
        ["batch", "report", "s3://bucket/out"],
        ["batch", "run", "s3://bucket/job.yaml"],
    ):
        done = cutaway(*words)
        assert (done.returncode, "is a URL, and this is a path" in " ".join(done.stderr.split())) == (2, True), (
            done.stderr
        )
    done = cutaway("serve", "--model-store", ".", CUTAWAY_LOG_DIR="s3://bucket/logs")
    assert done.stderr.startswith("INVALID_VALUE [CUTAWAY_LOG_DIR]: 's3:/bucket/logs' is a URL")
    with pytest.raises(ca.InvalidArgument, match="is a URL"):
        package(Path("s3://bucket/models"), "tiny", "a.py:A")
    assert [path.name for path in tmp_path.iterdir()] == ["a.py"]


def test_serve_refuses_what_cannot_be(tmp_path: Path) -> None:
    """Workers in one process, a store that is not there and a setting that is no number are refused in words."""
    serve = ["serve", "--model-store", tmp_path]
    for more, message in (
        (["--engine=embedded", "--workers", 2], "has no workers"),
        (["--engine=processes", "--replicas", 2], "has replicas"),
        (["--model-store", tmp_path / "nowhere"], "does not exist"),
    ):
        done = cutaway(*serve, *more)
        assert (done.returncode, message in done.stderr) == (2, True)
    done = cutaway(*serve, CUTAWAY_GRACE_S="soon")
    assert done.returncode == 1
    assert done.stderr.startswith("INVALID_VALUE [CUTAWAY_GRACE_S]: ")
