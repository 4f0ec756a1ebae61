"""``--json``: one document on stdout, with the fields that docs/command-line.md has."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cutaway as ca
from cutaway.cli import console_output
from cutaway.contract import errors
from cutaway.contract.results import AttributionError, AttributionResult, InspectResult, TokenAttribution
from tests.support.cli import cutaway, said
from tests.support.json_documents import PAGE, Documented
from tools.json_fields import DOCUMENTS

NOBODY = "127.0.0.1:1"
OF_GENERATIONS = {
    "generated",
    "generated[]",
    "finish_reasons",
    "finish_reasons[]",
    "unedited_texts",
    "unedited_texts[]",
    "replay",
}
"""The fields that only a request that writes tokens fills."""

EVERYTHING = """
target: {top_k: 2}
captures: [relu, {module: head, at: [output, grad_output]}, {module: conv, reduce: {top_k: 2}}, {parameter: head.bias}]
input_gradients: true
attributions:
  - {method: saliency, metrics: [sensitivity_max]}
  - {method: layer_grad_cam, layer: nowhere}
edits: [{edit: scale, module: head, factor: 2}]
compare: true
explain_if: {probability_at_least: 0.0}
attribution_errors_in_place: true
"""
ATTACK = "fgsm,search.parameter=epsilon,search.upper=0.5,search.step=0.1"
CONCEPTS = """
concepts: {layers: [head], concepts: {any: 0.npy}, random: [1.npy, 2.npy], vectors: true}
influence: {training: 0.npy, labels: [0, 1, 2, 0]}
"""
JOB = """
model: {adapter: 'tiny_pets.py:Talking'}
data: {path: rows.npy}
inputs: {input: {column: rows}}
request: {attributions: [saliency]}
output: {folder: out}
"""


@pytest.fixture
def job(tiny: Path) -> Path:
    tiny.with_name("job.yaml").write_text(JOB)
    np.save(tiny.with_name("rows.npy"), np.ones((3, 1, 8, 8), np.float32))
    return tiny.with_name("job.yaml")


def document(*arguments: object) -> Any:
    """What the command printed as JSON, on one line."""
    text = said(*arguments, "--json")
    assert text.count("\n") == 1
    return json.loads(text)


def refused(*arguments: object) -> tuple[int, Any]:
    """The exit status of the command, which must fail, and its JSON error."""
    done = cutaway(*arguments, "--json")
    assert not done.stdout
    (line,) = done.stderr.splitlines()
    (found,) = json.loads(line).items()
    assert found[0] == "error"
    Documented("error").check(found[1])
    assert found[1]["exit_status"] == done.returncode
    return done.returncode, found[1]


def test_models_and_layers_are_as_documented(address: str) -> None:
    """Their fields are those of the Python client."""
    found = document("models", "--address", address)
    Documented("models").check(found)
    listed = [{"model": "pair", "version": "1.0"}, {"model": "pets", "version": "1.0"}]
    assert found == {"models": listed, "unserved": []}
    found = document("layers", "pets", "--ops", "--depth", 0, "--address", address)
    Documented("layers").check(found)
    with ca.Client(address) as client:
        detail = client.get_model("pets", operators=True)
    assert [module["name"] for module in found["modules"]] == [module.name for module in detail.modules]
    assert found["operators"][0]["address"] == detail.operators[0].address
    (only,) = found["inputs"]
    assert only == {
        "name": "image", "data_type": "float32", "shape": [-1, 1, 8, 8], "optional": False, "feature_names": []
    }  # fmt: skip


def test_inspect_is_as_documented(address: str, image: Path, tmp_path: Path, found: Callable[..., Any]) -> None:
    """Everything that a result can hold has its row, in a reply and in an estimate."""
    (tmp_path / "request.yaml").write_text(EVERYTHING)
    documented, ask = Documented("inspect"), ["inspect", "pets", image, "--address", address]
    shown = document(*ask, "--request", tmp_path / "request.yaml")
    documented.check(shown)
    documented.check(document(*ask, "--capture", "conv", "--dry-run"))
    documented.check(document(*ask, "--capture", "unused"))
    documented.check(document(*ask, "--attribution", "saliency", "--attack", ATTACK))
    documented.check(document(*ask, "--attribution", "saliency", "--attribution", "input_x_gradient", "--agreement"))
    for number, examples in enumerate(np.random.default_rng(0).random((3, 4, 1, 8, 8), np.float32)):
        np.save(tmp_path / f"{number}.npy", examples)
    (tmp_path / "concepts.yaml").write_text(CONCEPTS)
    documented.check(document(*ask, "--request", tmp_path / "concepts.yaml"))
    (tmp_path / "changes.yaml").write_text("counterfactual: {masks: {image: {segments: 9}}}")
    documented.check(document(*ask, "--request", tmp_path / "changes.yaml"))
    known, seen = ({path.partition(".")[0] for path in paths} for paths in (documented.types, documented.seen))
    assert known - seen <= OF_GENERATIONS
    expected = found(edits=[ca.Scale("head", factor=2.0)])
    np.testing.assert_array_equal(shown["predictions"]["output"]["values"], expected.predictions["output"])
    assert shown["captures"]["relu"]["calls"][1]["leaves"]["output"][""]["shape"] == [1, 4, 6, 6]
    assert shown["attributions"][-1]["error"]["reason"] == "MODULE_NOT_FOUND"
    assert shown["attributions"][0]["checks"][0]["verdict"] == "AGREES"


def test_large_tensors_have_no_values(address: str, image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Up to --max-values elements, 1000 by default, a tensor has its values; then only its data type and shape."""
    ask = ["inspect", "pets", image, "--capture", "conv", "--address", address]

    def values(*more: object) -> Any:
        found = document(*ask, *more)["captures"]["conv"]["calls"][0]["leaves"]["output"][""]
        assert (found["data_type"], found["shape"]) == ("float32", [1, 4, 6, 6])
        return found["values"]

    assert np.shape(values("--max-values", 144)) == (1, 4, 6, 6)
    assert values("--max-values", 143) is None
    assert values("--max-values", 0) is None
    assert np.shape(values()) == (1, 4, 6, 6)
    for size in (1000, 1001):
        console_output.print_json({"tensor": np.zeros(size)})
        assert (json.loads(capsys.readouterr().out)["tensor"]["values"] is None) == (size == 1001)


def test_parts_that_are_rare_are_as_documented(capsys: pytest.CaptureFixture[str]) -> None:
    """Tokens, errors and standard errors of an attribution; subclasses print no fields of their own."""
    tokens = TokenAttribution("ids", np.ones((1, 2), np.int64), np.ones((1, 2)), (("a", "\u202e\x1b"),))
    failed = AttributionError(3, "INVALID_VALUE", "no", "attributions[0]")
    attribution = AttributionResult("Lime", "", {}, tokens=tokens, standard_errors={"x": np.ones(2)}, error=failed)

    @dataclass(frozen=True)
    class Own(InspectResult):
        own: int = 0

    console_output.print_json(Own({}, attributions=(attribution,)), InspectResult)
    text = capsys.readouterr().out
    assert text.isascii()
    assert text.isprintable() or text.endswith("\n")
    assert "\x1b" not in text
    documented = Documented("inspect")
    documented.check(json.loads(text))
    assert "attributions[].tokens.texts" in documented.seen


def test_numbers_that_json_lacks_are_texts(capsys: pytest.CaptureFixture[str]) -> None:
    """What is not finite, in a tensor and outside, is text as in protobuf's JSON; bfloat16 has its exact values."""
    values = np.array([np.nan, np.inf, -np.inf, 0.5], ml_dtypes.bfloat16)
    console_output.print_json({"tensor": values, "number": float("-inf")})
    found = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert found["tensor"] == {"data_type": "bfloat16", "shape": [4], "values": ["NaN", "Infinity", "-Infinity", 0.5]}
    assert found["number"] == "-Infinity"


def test_package_and_token_are_as_documented(tiny: Path, tmp_path: Path) -> None:
    """Package says where the archive is; a token comes with the entry that has its SHA-256."""
    done = cutaway("package", "tiny", "--adapter", f"{tiny}:Talking", "--output", tmp_path, "--json")
    found = json.loads(done.stdout)
    Documented("package").check(found)
    assert "loading the weights" in done.stderr  # what a model prints is no part of the document
    archive = tmp_path / "tiny-1.0.mar"
    assert found == {"archive": str(archive), "bytes": archive.stat().st_size}
    found = document("token", "me", "--models", "pets")
    Documented("token").check(found)
    assert hashlib.sha256(found["token"].encode()).hexdigest() in found["entry"]


def test_batch_is_as_documented(job: Path) -> None:
    """Plan, run and report print one document each; lines of progress are on stderr."""
    found = json.loads(cutaway("batch", "plan", job, "--json").stdout)
    Documented("batch plan").check(found)
    assert found["rows"] == 3
    done = cutaway("batch", "run", job, "--json")
    found = json.loads(done.stdout)
    Documented("batch run").check(found)
    assert (done.returncode, found["rows"], found["bad"]) == (0, 3, 0)
    assert "\n3 rows\n" in f"\n{done.stderr}"
    found = document("batch", "report", found["folder"])
    Documented("batch report").check(found)
    assert Path(found["report"]).is_file()


def test_every_document_is_on_the_page() -> None:
    """With --json in its help; and no other command has it."""
    for command in DOCUMENTS.keys() - {"error"}:
        assert "--json" in said(*command.split(), "--help"), command
        assert f"`cutaway {command}`" in PAGE.read_text("utf-8")
    assert "--json" not in said("serve", "--help")


def test_an_error_is_json_too(address: str, image: Path, tmp_path: Path) -> None:
    """With the reason, the field and the message of the line that people get, on stderr; nothing is on stdout."""
    status, found = refused("layers", "pest", "--address", address)
    assert (status, found["reason"], found["field"], found["code"]) == (1, "MODEL_NOT_FOUND", "model", "NOT_FOUND")
    assert found["message"].startswith("no model 'pest'")
    status, found = refused("inspect", "pets", image, "--capture", "cnv", "--address", address)
    assert (status, found["field"]) == (1, "captures[0].module")
    status, found = refused("models", "--address", NOBODY)
    assert (status, found["reason"], found["retryable"]) == (5, "SERVER_UNREACHABLE", True)
    status, found = refused("batch", "run", tmp_path / "nowhere.yaml")
    assert (status, found["reason"], found["exit_status"]) == (2, "INVALID_VALUE", 2)


@pytest.mark.parametrize(
    ("arguments", "field", "message"),
    [
        (["models", "--nonsense"], "", "No such option: --nonsense"),
        (["layers"], "model", "Missing argument"),
        (["inspect", "pets", "--seed", "x"], "--seed", "should be a valid integer"),
        (["inspect", "pets", "--attribution", "Salienci"], "--attribution", "did you mean 'saliency'?"),
        (["inspect", "pets"], "INPUT", "give a file or --text"),
    ],
)
def test_a_wrong_command_is_json_too(arguments: list[str], field: str, message: str) -> None:
    """Status 2, the reason USAGE, and the option."""
    status, found = refused(*arguments, *([] if "--nonsense" in arguments else ["--address", NOBODY]))
    assert (status, found["reason"]) == (2, "USAGE")
    assert found["field"] == field
    assert message in found["message"]


def test_every_class_of_errors_has_an_exit_status() -> None:
    """In the code and in the table of the page; an error of a newer server has that of its code."""
    rows = {line.split("|")[1].strip(): line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")}
    kinds = errors.CutawayError.__subclasses__()
    assert set(kinds) == set(console_output.EXIT_STATUSES)
    for kind, status in console_output.EXIT_STATUSES.items():
        assert f"`{kind.__name__}`" in rows[str(status)]
        found = console_output.of_call(errors.from_wire(kind.code, "NEW_REASON", "new"))
        assert (found.exit_status, found.code) == (status, errors.Code(kind.code).name)
    others = console_output.WRONG_COMMAND, console_output.STOPPED, console_output.READER_GONE
    assert set(map(str, others)) <= rows.keys()
    unknown = console_output.of_call(errors.from_wire(1, "CANCELLED", "cancelled"))
    assert (unknown.exit_status, unknown.code) == (6, "1")
