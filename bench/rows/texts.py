"""Rows about texts that a GPT-2 of 124 million random weights writes, served by ``--engine processes``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import cutaway as ca
from bench import environments, servers
from bench.pipe import CannotRun, Pipe
from bench.row import Bench, Found, Row
from bench.rows.inside import timed
from bench.rows.loads import over
from cutaway.server.archive import builder
from cutaway.server.processes.environment import WAITING

WRITERS, TOKENS, LONG = 16, 40, 128
BLOCK = 6
_PROMPT = np.random.default_rng(0).integers(1, 250, (1, 20))
_VECTOR = np.random.default_rng(1).normal(0, 0.1, 768).astype(np.float32)
_INSIDE = {
    "captures": [ca.Capture("transformer.h.*", position=-1)],
    "edits": [ca.AddVector(f"transformer.h.{BLOCK}", _VECTOR, steps=range(1, TOKENS))],
}


def table() -> Iterator[Row]:
    """Yields the rows."""
    what = "GPT-2 of 124 M"
    inside = f"{what}, {TOKENS} tokens, steered, 12 blocks captured"
    callers = f"{what}, {TOKENS} tokens, with replay: {WRITERS} callers one after another / together"
    yield Row("text_lone", f"{inside}: seconds / `generate` with hooks by hand", False, 1.15, lone)
    yield Row("text_nnsight", f"{inside}: seconds / nnsight 0.8's generation with the same", False, 1, nnsight)
    yield Row("text_captures", f"{what}, {TOKENS} tokens: with captures of 12 blocks / without", False, 1.3, captures)
    yield Row("text_replay", f"{what}, {LONG} tokens: with replay / without", False, 1.3, replay)
    yield Row("text_together", callers, True, 4, together)


def lone(bench: Bench) -> Found:
    """Measures a lone caller against `generate` with the same hooks by hand; both write the same tokens."""
    with _served(bench) as (client, directory), Pipe("bench.peers.texts", str(directory), variables=WAITING) as hand:
        return _against(bench, client, "by hand", hand)


def nnsight(bench: Bench) -> Found:
    """Measures a lone caller against nnsight, which runs in the process of its caller; both write the same tokens."""
    with (
        _served(bench) as (client, directory),
        Pipe(
            "bench.peers.nnsight_texts", str(directory), python=environments.python("nnsight"), variables=WAITING
        ) as theirs,
    ):
        return _against(bench, client, "nnsight", theirs)


def _against(bench: Bench, client: ca.Client, name: str, peer: Pipe) -> Found:
    asked = {"prompt": _PROMPT[0].tolist(), "vector": _VECTOR.tolist(), "block": BLOCK, "tokens": TOKENS}
    ours, theirs = _written(client, TOKENS, check="off", **_INSIDE), peer.ask(asked)["tokens"]
    if ours != theirs:
        raise CannotRun(f"the two write other tokens: {ours} and {theirs}")
    return over(
        {
            "ours": lambda: timed(lambda: _written(client, TOKENS, check="off", **_INSIDE)),
            name: lambda: float(peer.ask(asked)["seconds"]),
        },
        bench.rounds,
        "s",
    )


def captures(bench: Bench) -> Found:
    """Measures what captures of the last token of each block cost."""
    with _served(bench) as (client, _):
        return _compared(
            bench,
            lambda: _written(client, TOKENS, check="off", captures=_INSIDE["captures"]),
            lambda: _written(client, TOKENS, check="off"),
        )


def replay(bench: Bench) -> Found:
    """Measures what the replay costs."""
    with _served(bench) as (client, _):
        return _compared(bench, lambda: _written(client, LONG), lambda: _written(client, LONG, check="off"))


def together(bench: Bench) -> Found:
    """Measures callers that wait together against the same calls one after another, each steered otherwise."""

    def write(number: int) -> list[int]:
        edit = ca.AddVector(f"transformer.h.{BLOCK}", _VECTOR, scale=0.1 * number, steps=range(1, TOKENS))
        return _written(client, TOKENS, edits=[edit])

    with _served(bench) as (client, _), ThreadPoolExecutor(WRITERS) as threads:
        return _compared(
            bench,
            lambda: [write(number) for number in range(WRITERS)],
            lambda: list(threads.map(write, range(WRITERS))),
        )


def _compared(bench: Bench, one: Callable[[], object], other: Callable[[], object]) -> Found:
    return over({"first": lambda: timed(one), "second": lambda: timed(other)}, bench.rounds, "s")


def _written(client: ca.Client, tokens: int, **asked: Any) -> list[int]:
    result = client.inspect("gpt", {"input_ids": _PROMPT}, generate=ca.Generate(tokens), **asked)
    written: list[int] = result.predictions["tokens"][0].tolist()
    if len(written) != tokens or (result.replay and result.replay.verdict is not ca.Verdict.AGREES):
        raise CannotRun(f"{len(written)} tokens, replay {result.replay}")
    return written


@contextmanager
def _served(bench: Bench) -> Iterator[tuple[ca.Client, Path]]:
    directory, store = bench.store.directory / "gpt2", bench.store.directory / "text"
    if not store.exists():
        _save(directory)
        weights, others = builder.of_transformers(directory)
        builder.build(
            model="gpt",
            adapter=builder.CAUSAL_LM,
            weights=weights,
            options={},
            extra_files=others,
            batch_size=WRITERS,
            max_batch_delay_ms=servers.DELAY_MS,
            workers=servers.WORKERS,
            response_timeout_s=600,
            destination=store,
        )
    with servers.cutaway(store, "processes") as server, ca.Client(server.address, timeout=600) as client:
        yield client, directory


def _save(directory: Path) -> None:
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(transformers.GPT2Config()).save_pretrained(directory)
    bytes_alone = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=bytes_alone, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(directory)
