"""The examples keep what they promise: real data, real weights, archives that load, a demo that tells the truth."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import cutaway as ca
from cutaway.adapters.causal_lm import CausalLMAdapter
from cutaway.gateway import serve
from cutaway.server.archive import reader
from cutaway.server.worker.worker import Worker
from examples import demo
from examples.digits import train
from examples.digits.data import Examples, as_png, held_out, training
from examples.digits.digits_adapter import Digits, DigitsCNN
from examples.letters import train as letters
from examples.sentences.package import model_directory
from examples.sentences.sentences_adapter import Sentences
from tests.support.digits import WEIGHTS, network, package_digits

TEXTS = (
    "A man is playing a guitar on stage.",
    "Somebody performs a song on a guitar.",
    "The stock market fell sharply today.",
    "Share prices dropped a lot this afternoon, after the central bank had raised its interest rates again.",
)


@pytest.fixture(scope="module")
def client() -> Iterator[ca.Client]:
    """Both examples, served through their adapters in this process."""
    minilm = model_directory()
    adapters = {
        "digits": Digits(weights=WEIGHTS),
        "sentences": Sentences(directory=minilm, weights=minilm / "model.safetensors"),
    }
    with serve(adapters) as server, ca.Client(server.address) as client:
        yield client


# Digits


def test_digits_reads_what_it_never_saw() -> None:
    """At least 97 % of real digits that training never saw are read right."""
    assert train.accuracy(network()) >= train.REQUIRED_ACCURACY == 0.97


@pytest.mark.slow
def test_training_teaches() -> None:
    """A network that is trained here and now reads nine of ten digits that training never saw; guessing, one of ten."""
    assert train.accuracy(train.train()) > 0.9


def test_held_out_digits_are_held_out() -> None:
    """The split is the same each time, has each digit once, and both halves know all ten classes."""
    pixels = np.concatenate([training().pixels, held_out().pixels])
    assert len(pixels) == 1797
    assert len(held_out().labels) == 360
    assert np.array_equal(held_out().pixels, held_out().pixels)
    assert set(training().labels) == set(held_out().labels) == set(range(10))


def test_training_repeats_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training twice gives the same weights, and leaves torch's seed and threads as they were."""
    monkeypatch.setattr(train, "_EPOCHS", 1)
    seed, threads = torch.initial_seed(), torch.get_num_threads()
    one, other = (train.train().state_dict() for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert (torch.initial_seed(), torch.get_num_threads()) == (seed, threads)


def test_a_bad_network_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network below the required accuracy ends the program, with the two numbers, and is not saved."""
    monkeypatch.setattr(train, "train", lambda: DigitsCNN().eval())
    with pytest.raises(SystemExit, match=r"held-out accuracy is .*%, below the 97% that must be reached"):
        train.train_and_save(tmp_path / "digits.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_png_is_the_digit_that_training_saw() -> None:
    """A digit sent as a PNG file reaches the network as the very numbers that training computes for it."""
    digits = held_out()
    for index in range(10):
        decoded = Digits().decode(as_png(digits.pixels[index]), "image/png")["image"]
        assert np.array_equal(decoded.numpy(), digits.images[index : index + 1])


def test_digits_are_served(client: ca.Client) -> None:
    """Through its adapter the model reads PNG files as well as it reads tensors, and names its classes."""
    digits = held_out()
    files = client.inspect("digits", [ca.Raw(as_png(pixels)) for pixels in digits.pixels])
    tensors = client.inspect("digits", {"image": digits.images})
    assert np.array_equal(files.predictions["output"], tensors.predictions["output"])
    read = np.array([int(row.label) for row in files.classes])
    assert (read == digits.labels).mean() >= train.REQUIRED_ACCURACY


# Sentences


def test_sentences_are_those_of_sentence_transformers(client: ca.Client) -> None:
    """Embeddings equal those of the sentence-transformers package with the same files, padding or not, to 1e-5."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    reference = sentence_transformers.SentenceTransformer(str(model_directory()), device="cpu").encode(list(TEXTS))
    together = client.inspect("sentences", [ca.Raw(text.encode()) for text in TEXTS]).predictions["embedding"]
    alone = [client.inspect("sentences", ca.Raw(text.encode())).predictions["embedding"][0] for text in TEXTS]
    np.testing.assert_allclose(together, reference, atol=1e-5, rtol=0)
    np.testing.assert_allclose(alone, reference, atol=1e-5, rtol=0)


def test_like_sentences_lie_close(client: ca.Client) -> None:
    """Sentences of one meaning are closer than sentences of two; all have length 1."""
    embeddings = client.inspect("sentences", [ca.Raw(text.encode()) for text in TEXTS]).predictions["embedding"]
    close = embeddings @ embeddings.T
    np.testing.assert_allclose(close.diagonal(), 1, atol=1e-5)
    assert min(close[0, 1], close[2, 3]) > max(close[:2, 2:].max(), 0.4)


def test_sentences_can_be_explained(client: ca.Client) -> None:
    """Which token matters for an element of the embedding: attributions of text agree with raw hooks."""
    answer = client.inspect(
        "sentences", ca.Raw(TEXTS[0].encode()), attributions=[ca.LayerGradientXActivation(layer="embeddings")]
    ).attributions[0]
    assert answer.values["embeddings"].shape == (1, 11, 384)
    assert answer.checks[0].verdict is ca.Verdict.AGREES


def test_long_texts_are_refused(client: ca.Client) -> None:
    """A text past the 256 tokens that the encoder was made for is refused, never cut."""
    with pytest.raises(ca.InvalidArgument) as refused:
        client.inspect("sentences", ca.Raw(b"word " * 300))
    assert refused.value.reason == ca.Reason.TEXT_TOO_LONG


# Archives


@pytest.mark.parametrize(
    ("model", "adapter"), [("digits", "digits_adapter.py:Digits"), ("sentences", "sentences_adapter.py:Sentences")]
)
def test_archives_load(store: Path, tmp_path: Path, model: str, adapter: str) -> None:
    """What the examples package is sound, and loads from the archive's own files alone."""
    manifest = reader.read(store / f"{model}-1.0.mar")
    assert (manifest.model, manifest.adapter) == (model, adapter)
    reader.unpack(store / f"{model}-1.0.mar", tmp_path)
    assert Worker.load(tmp_path, device="cpu").name.model == model


# The demo


@pytest.fixture(scope="module")
def digit() -> Examples:
    digits = held_out()
    return Examples(digits.pixels[:1], digits.labels[:1])


@pytest.fixture(scope="module")
def result(client: ca.Client, digit: Examples) -> ca.InspectResult:
    """What the demo's one question brings back."""
    _, answer = demo.ask(client, digit)
    return answer


def test_the_demo_asks_for_everything(result: ca.InspectResult) -> None:
    """One call brings captures at three points, input gradients and all six methods, each of which agrees."""
    assert {name: set(module.calls[0].leaves) for name, module in result.captures.items()} == {
        "conv1": {ca.Point.OUTPUT},
        "conv2": {ca.Point.OUTPUT, ca.Point.GRAD_OUTPUT},
        "fc1": {ca.Point.INPUT},
    }
    assert set(result.input_gradients) == {"image"}
    assert len({answer.method for answer in result.attributions}) == 6
    assert all(check.verdict is ca.Verdict.AGREES for answer in result.attributions for check in answer.checks)


def test_the_demo_shows_what_came_back(
    result: ca.InspectResult, digit: Examples, capsys: pytest.CaptureFixture[str]
) -> None:
    """Label, probability and truth, every capture, every method with its verdict, and the stages' times are told."""
    demo.show(result, digit)
    told = capsys.readouterr().out
    assert f"The model says {result.classes[0].label}, with a probability of" in told
    assert f"Its writer meant {digit.labels[0]}: right." in told
    for word in ("conv1", "grad_output", "fc1", "IntegratedGradients", "AGREES", "completeness", "forward", "weights"):
        assert word in told
    assert told.count("\n") < 80


def test_the_demo_ends_well_only_if_all_is_well(result: ca.InspectResult, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit status is 0 for equal answers that agree, and 1 where a check disagrees or the servers differ."""
    assert demo.conclude(result, result) == 0
    assert "exactly the same numbers" in capsys.readouterr().out
    other = replace(result, predictions={"output": result.predictions["output"] + 1})
    assert demo.conclude(result, other) == 1
    assert "the servers differ by" in capsys.readouterr().out
    first, *rest = result.attributions
    doubted = replace(first.checks[0], verdict=ca.Verdict.DISAGREES, reason="do not rely on it")
    assert demo.conclude(replace(result, attributions=(replace(first, checks=(doubted,)), *rest)), result) == 1
    assert "disagrees Saliency: do not rely on it" in capsys.readouterr().out


def test_the_demo_steers_a_language_model_and_proves_it(tmp_path: Path) -> None:
    """Also where it has learned nothing: the text changes, one pass gives the same; Captum's class has a verdict."""
    letters.train_and_save(tmp_path, steps=2)
    adapter = CausalLMAdapter(directory=tmp_path)
    with serve({"letters": adapter}) as server, ca.Client(server.address) as client:
        _, plain, steered, proof = demo.steered(client)
        _, verdict, _ = demo.caught_again(client)
    assert plain.plain.split(": ", 1)[1] != steered.plain.split(": ", 1)[1]
    assert proof.plain.startswith("AGREES")
    assert re.search(r"in [1-9]\d* steps$", proof.plain)  # a text may end before its 60 letters
    assert "use_cached_outputs" in verdict.plain


def test_training_letters_is_little_work_and_not_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Forward passes have less than 1e11 multiply-adds, a few seconds of one core. Each few seconds a
    line says how far it is."""
    monkeypatch.setattr(letters, "_TOLD_EVERY_S", 0)
    letters.train_and_save(tmp_path, steps=2)
    told = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in told] == ["1 of 2 steps", "2 of 2 steps"]
    parameters = sum(weight.numel() for weight in load_file(tmp_path / "model.safetensors").values())
    assert parameters * letters._STEPS * letters._BATCH * letters._LENGTH < 1e11


def test_the_demo_says_what_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line is there before whatever takes seconds: a training, or a server's start, with the name of its log."""

    def begins(last_line: str, result: Any = None) -> Callable[..., Any]:
        def begun(*_: object, **__: object) -> Any:
            assert capsys.readouterr().out.splitlines()[-1].startswith(last_line)
            if result is None:
                raise SystemExit
            return result

        return begun

    monkeypatch.setattr(demo, "BUILD", tmp_path)
    monkeypatch.setattr(demo, "STORE", tmp_path)
    monkeypatch.setattr(demo, "train_and_save", begins("training a network", 0.99))
    monkeypatch.setattr(demo, "package_trained", lambda *_: tmp_path)
    monkeypatch.setattr(letters, "train_and_save", begins("training a language model", 1.5))
    monkeypatch.setattr(subprocess, "run", begins("$ cutaway package letters", 0))
    demo.make_models()
    for options, log in ((), "torchserve.log"), (("--engine=embedded",), "embedded.log"):
        monkeypatch.setattr(demo, "served", begins(f"it starts in some seconds; its log: {tmp_path / log}"))
        with pytest.raises(SystemExit):
            demo.ask_server(held_out(), *options, name="it")


def test_the_demo_draws_digits() -> None:
    """A digit is drawn in characters, from blank to full, two for each pixel."""
    lines = demo.drawn(np.array([[0, 128], [255, 64]], np.uint8)).plain.splitlines()
    assert lines == ["  ▒▒", "██░░"]


@pytest.mark.slow
def test_the_demo_stops_its_server(tmp_path: Path) -> None:
    """A server answers for as long as it is needed and is gone afterwards, whatever happened meanwhile."""
    package_digits(tmp_path)
    command = ["serve", "--model-store", str(tmp_path), "--address", "127.0.0.1:0", "--engine=embedded"]
    with pytest.raises(ca.NotFound), demo.served(command, tmp_path / "log") as address, ca.Client(address) as client:
        client.inspect("letters", {"image": held_out().images})
    with ca.Client(address) as client, pytest.raises(ca.Unavailable):
        client.list_models()


def test_the_demo_says_why_a_server_did_not_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A server that does not start ends the demo with status 1 and the server's own words."""
    with pytest.raises(SystemExit) as ended, demo.served(["serve", "--model-store", "nowhere"], tmp_path / "log"):
        pass
    assert ended.value.code == 1
    assert "the server did not start" in (told := capsys.readouterr().out)
    assert "nowhere" in told
