"""Trains two small models, serves them and looks inside: ``python -m examples.demo``, from the repository's root.

The server is started as a user would start it, over TorchServe and then, for comparison, in one process. The
picture, the model store and the servers' logs are in ``build/demo``. The exit status is 0 only if every server
came up, no check disagrees and both servers gave the same numbers.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from rich.columns import Columns
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

import cutaway as ca
from cutaway.contract.results.arrays import tensors
from cutaway.contract.tensors import Array
from cutaway.views import plots, tables
from examples.digits.data import Examples, as_png, held_out, training
from examples.digits.package import package_trained
from examples.digits.train import train_and_save
from examples.letters import train as letters

BUILD = Path("build/demo")
STORE = BUILD / "model_store"
LETTERS = BUILD / "letters"
PICTURE = BUILD / "digit.png"
IMAGE = Path("examples/digits/seven.png")

NEXT = (
    f"cutaway serve --model-store {STORE} --engine processes --http 127.0.0.1:8080",
    f"cutaway inspect digits {IMAGE} --attribution IntegratedGradients --plot {BUILD}/inside.png",
    f"cutaway new adapter mine --kind table --output {BUILD}",
)
"""What to do after the demo, in an activated environment; the second command from another terminal."""

CAPTURES = (ca.Capture("conv1"), ca.Capture("conv2", at=("output", "grad_output")), ca.Capture("fc1", at="input"))
ATTRIBUTIONS = (
    ca.Saliency(),
    ca.InputXGradient(),
    ca.IntegratedGradients(n_steps=64),
    ca.LayerActivation(layer="relu1"),
    ca.LayerGradientXActivation(layer="conv2"),
    ca.LayerGradCam(layer="relu2"),
    ca.LayerGradientXActivation(layer="relu3"),
)

CHANNELS = 32
"""Of conv2."""

BLOCK = "transformer.h.1"
"""Where the language model is steered."""

_PACKAGE = ("package", "letters", "--transformers", str(LETTERS), "--output", str(STORE), "--force")
_SERVE = ("serve", "--model-store", str(STORE), "--address", "127.0.0.1:0")
_READY = re.compile(r"^ready: (\S+)\n", re.MULTILINE)
_START_TIMEOUT_S = 240.0
_STOP_TIMEOUT_S = 60.0
_SAME = 1e-4  # two processes may add in another order

console = Console(highlight=False)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description="Look inside a served model.")
    parser.add_argument("--digit", type=int, default=3, metavar="N", help="which of the held-out digits to ask about")
    digits = held_out()
    digit = parser.parse_args().digit
    if not 0 <= digit < len(digits.labels):
        parser.error(f"--digit is from 0 to {len(digits.labels) - 1}")
    for number in (signal.SIGINT, signal.SIGTERM):  # leave by an exception, so that what was started is stopped
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    try:
        sys.exit(demo(Examples(digits.pixels[digit : digit + 1], digits.labels[digit : digit + 1])))
    except ca.CutawayError as failure:
        sys.exit(f"the server could not answer: {failure}")


def demo(digit: Examples) -> int:
    """The whole of it, about one digit; returns the exit status."""
    make_models()
    result = ask_server(digit, name="TorchServe")
    show(result, digit)
    plots.figure(result, {"image": digit.images}).savefig(PICTURE, dpi=plots.DOTS_PER_INCH)
    console.print(f"\n[bold]The whole picture:[/] {PICTURE}")
    again = ask_server(digit, "--engine=embedded", name="one process, without TorchServe and Java")
    status = conclude(result, again)
    say_what_is_next()
    return status


def say_what_is_next() -> None:
    """Print three commands that work with what the demo has left."""
    _headline("Next: activate the environment with  . .venv/bin/activate")
    for command in NEXT:
        console.print(Text(f"$ {command}", style="cyan"), soft_wrap=True)
    console.print("The first starts a server that stays. Open http://127.0.0.1:8080/ then: the page shows its insides.")


def make_models() -> None:
    """Train the digits network and the language model, and put them into the model store."""
    _headline("Two models")
    STORE.mkdir(parents=True, exist_ok=True)
    weights = BUILD / "digits.safetensors"
    console.print("training a network on handwritten digits: a few seconds")
    start = time.perf_counter()
    accuracy = train_and_save(weights)
    console.print(
        f"trained on {len(training().labels)} handwritten digits in {time.perf_counter() - start:.1f} s; "
        f"reads {accuracy:.1%} of {len(held_out().labels)} others right"
    )
    console.print(f"packaged as {package_trained(weights, STORE)}")
    console.print("training a language model on this project's documents: a quarter of a minute")
    start = time.perf_counter()
    loss = letters.train_and_save(LETTERS)
    console.print(f"trained in {time.perf_counter() - start:.0f} s; its loss is {loss:.2f} a letter")
    console.print(Text(f"$ cutaway {shlex.join(_PACKAGE)}", style="cyan"), soft_wrap=True)
    subprocess.run([sys.executable, "-m", "cutaway.cli", *_PACKAGE], check=True)


def ask_server(digit: Examples, *options: str, name: str) -> ca.InspectResult:
    """Start a server, ask it about ``digit``, stop it."""
    _headline(f"Served by {name}")
    command = [*_SERVE, *options]
    console.print(Text(f"$ cutaway {shlex.join(command)}", style="cyan"), soft_wrap=True)
    start = time.perf_counter()
    log = BUILD / f"{options[0].removeprefix('--engine=') if options else 'torchserve'}.log"
    console.print(Text(f"it starts in some seconds; its log: {log}"), soft_wrap=True)
    with served(command, log) as address:
        console.print(f"ready at {address} after {time.perf_counter() - start:.1f} s")
        with ca.Client(address) as client:
            first, _ = ask(client, digit)
            later, result = ask(client, digit)
            console.print(f"one call for all of it: {first:.0f} ms; the same again: {later:.0f} ms")
            if not options:
                console.print("", what_if(client, digit))
                console.print("", *caught(client, digit), sep="\n")
                console.print("", *steered(client), "", *caught_again(client), sep="\n")
    return result


def ask(client: ca.Client, digit: Examples) -> tuple[float, ca.InspectResult]:
    """Ask for everything in one call; returns the milliseconds it took, and the answer."""
    start = time.perf_counter()
    result = client.inspect(
        "digits",
        ca.Raw(as_png(digit.pixels[0]), "image/png"),
        captures=CAPTURES,
        input_gradients=True,
        attributions=ATTRIBUTIONS,
        check="same_pass",
    )
    return (time.perf_counter() - start) * 1000, result


def caught(client: ca.Client, digit: Examples) -> list[Text]:
    """Captum's DeepLIFT of this very network, from a grey baseline: wrong, and found out."""
    image = ca.Raw(as_png(digit.pixels[0]), "image/png")
    asked = ca.DeepLift(baselines={"image": 0.3})
    (answer,) = client.inspect("digits", image, attributions=[asked]).attributions
    check, total = answer.checks
    return [
        Text("A wrong explanation, caught: Captum's DeepLIFT of this network", style="italic"),
        Text.assemble(tables.verdict_text(check.verdict), f" ({check.cause}): {check.reason}"),
        Text(f"its sum is off by {total.max_relative_error:.1%} of all that it attributes"),
    ]


def steered(client: ca.Client) -> list[Text]:
    """What the language model writes, and what it writes if a vector is added in each step: towards capital letters."""
    capitals, small = "THE SERVER READS THE TEXT", "the server reads the text"
    seen = client.inspect("letters", [capitals, small], captures=ca.Capture(BLOCK, position=-1)).captures[BLOCK].output
    edit = ca.AddVector(BLOCK, seen[0] - seen[1], scale=1.0, norm="match")
    result = client.inspect(
        "letters", "The server ", generate=ca.Generate(60, temperature=0.5), seed=1, edits=edit, compare=True
    )
    (receipt,), verdict = result.receipts, result.replay.verdict if result.replay else ca.Verdict.INCONCLUSIVE
    return [
        Text("A language model, steered: it goes on from 'The server '", style="italic"),
        Text(f"as it is: {result.unedited_texts[0]!r}"),
        Text(f"towards capitals: {result.texts[0]!r}"),
        Text.assemble(
            tables.verdict_text(verdict),
            f": one pass over the whole text gives the same; the edit ran in {len(receipt.steps)} steps",
        ),
    ]


def caught_again(client: ca.Client) -> list[Text]:
    """Captum's LLMAttribution of this very language model, as it is by default: wrong, and found out."""
    text = ca.SequenceLogProbability(("reads",))
    asked = ca.FeatureAblation(llm_attribution=ca.LLMAttribution())
    (answer,) = client.inspect("letters", "The server ", target=text, attributions=asked).attributions
    (check,) = answer.checks
    return [
        Text("A wrong explanation, caught: why would it write 'reads'? Captum's LLMAttribution", style="italic"),
        Text.assemble(tables.verdict_text(check.verdict), f" ({check.cause}): {check.reason}"),
        Text(f"its values are off by {check.max_relative_error:.0%} of the largest"),
    ]


def what_if(client: ca.Client, digit: Examples) -> Table:
    """What the prediction hangs on: each channel of conv2 is set to zero, in a request of its own."""
    image = ca.Raw(as_png(digit.pixels[0]), "image/png")
    found = []
    for channel in range(CHANNELS):
        edit = ca.Zero("conv2", slices=(ca.Slice(axis=1, start=channel, stop=channel + 1),))
        result = client.inspect("digits", image, edits=[edit], compare=True)
        before, after = result.unedited_classes[0], result.classes[0]
        logits = result.predictions["output"][0]
        left = np.exp(logits[before.index] - logits.max()) / np.exp(logits - logits.max()).sum()
        found.append((left, channel, before, after))
    title = "What if a channel of conv2 were zero? The worst:"
    table = tables.empty_table(title, "channel", "then it says", "before", "of which is left", numbers=1)
    for left, channel, before, after in sorted(found, key=lambda each: each[0])[:3]:
        table.add_row(str(channel), after.label, f"{before.label} ({before.probability:.1%})", f"{left:.1%}")
    return table


@contextmanager
def served(command: Sequence[str], log: Path) -> Iterator[str]:
    """The address of a server that runs for as long as the block does; what it says goes to ``log``."""
    environment = {"CUTAWAY_LOG_DIR": str(BUILD / "logs"), **os.environ}
    with log.open("w") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "cutaway.cli", *command],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        try:
            yield _address(server, log)
        finally:
            _stop(server)


def _address(server: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline and server.poll() is None:
        if ready := _READY.search(log.read_text()):
            return ready[1]
        time.sleep(0.1)
    console.print(f"[bold red]the server did not start[/]; the end of {log}:")
    console.print(log.read_text()[-2000:], markup=False)
    raise SystemExit(1)


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def show(result: ca.InspectResult, digit: Examples) -> None:
    """Everything that came back."""
    predicted, label = result.classes[0], digit.labels[0]
    said = Text.assemble(
        "\n\nThe model says ",
        (predicted.label, "bold"),
        f", with a probability of {predicted.probability:.1%}.\n",
        f"Its writer meant {label}: ",
        ("right", "green") if predicted.index == label else ("wrong", "red"),
        ".",
    )
    console.print()
    console.print(Columns([drawn(digit.pixels[0]), said], padding=(0, 4)))
    console.print("", tables.capture_table(result), "", tables.gradient_table(result), "", verdict_table(result), "")
    console.print(tables.timing_table(result))
    console.print()
    console.print(tables.provenance_line(result))


def drawn(pixels: Array) -> Text:
    """A digit in characters, two for each pixel."""
    inks = " ░▒▓█"
    rows = (pixels.astype(int) * len(inks) // 256).tolist()
    return Text("\n".join("".join(2 * inks[ink] for ink in row) for row in rows))


def verdict_table(result: ca.InspectResult) -> Table:
    """Each attribution, and whether it is what raw PyTorch hooks saw."""
    title = "Attributions, by Captum, each checked against raw PyTorch hooks"
    table = tables.empty_table(title, "method", "of", "verdict", "error", "allowed", "delta", numbers=3)
    for answer in result.attributions:
        delta = "" if answer.convergence_delta is None else f"{np.abs(answer.convergence_delta).max():.1e}"
        for index, check in enumerate(answer.checks):
            table.add_row(
                "  its sum (completeness)" if index else answer.method,
                "" if index else answer.layer or ", ".join(answer.values),
                tables.verdict_text(check.verdict),
                f"{check.max_relative_error:.1e}",
                f"{check.tolerance:.0e}",
                delta if index else "",
            )
    return table


def conclude(result: ca.InspectResult, again: ca.InspectResult) -> int:
    """Say whether all is well; the exit status."""
    apart = difference(result, again)
    disagreeing = [
        f"{answer.method}: {check.reason}"
        for answer in (*result.attributions, *again.attributions)
        for check in answer.checks
        if check.verdict is ca.Verdict.DISAGREES
    ]
    for what in disagreeing:
        console.print(f"[bold red]disagrees[/] {what}")
    same = "exactly the same numbers" if apart == 0 else f"the same numbers to within {apart:.1e}"
    console.print(f"both servers gave {same}" if apart <= _SAME else f"[bold red]the servers differ by {apart:.1e}[/]")
    return 0 if apart <= _SAME and not disagreeing else 1


def difference(one: ca.InspectResult, other: ca.InspectResult) -> float:
    """The largest absolute difference between any two numbers of two answers to one question."""
    pairs = zip(tensors(one), tensors(other), strict=True)
    return max(float(np.abs(mine.array.astype(np.float64) - theirs.array).max()) for mine, theirs in pairs)


def _headline(text: str) -> None:
    console.print()
    console.print(Rule(Text(text, style="bold"), align="left", style="dim"))


if __name__ == "__main__":
    main()
