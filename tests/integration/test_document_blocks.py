"""The code of the documentation works: Python is run, YAML is read by what it is for, commands exist.

A block that cannot be run says why, in a comment of Markdown before it: ``<!-- not run: REASON -->``.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli
import trustme
import yaml

import cutaway as ca
from cutaway.contract.request_reader.files import load_arrays
from cutaway.contract.request_reader.reader import read_request
from cutaway.contract.requests import InspectRequest
from cutaway.gateway import serve
from cutaway.jobs import Job
from cutaway.server.embedded import Served
from cutaway.server.settings import Settings
from examples.digits.data import held_out
from examples.digits.digits_adapter import Digits
from tests.support.digits import WEIGHTS
from tests.support.documents import PAGES, ROOT, Block, blocks, by_hand, commands
from tools import commands as command_line

NOT_RUN = {"batch.md": 1, "from-torchserve.md": 1, "clients.md": 3, "operations.md": 1}
"""How many blocks of a page say that they are not run."""

UNCHECKED = {"", "javascript", "mermaid", "sql", "text", "ts"}
"""Languages of blocks of which only commands are checked, those that other tests run, and those that nothing reads."""

OTHERS_OPTIONS = {"--handler", "--only", "--time", "--tmpfs"}
"""Options of other programs than the command line, named in the text alone."""

WITH_PYTHON = [page for page in PAGES if any(block.language == "python" for block in blocks(page))]
OTHERS = [block for page in PAGES for block in blocks(page) if block.language not in {"python", *UNCHECKED}]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    """The digits of the examples, served in this process."""
    with serve({"digits": Digits(weights=WEIGHTS)}, settings=Settings(http_address="127.0.0.1:0")) as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the files that examples name."""
    np.save(tmp_path / "gradient.npy", np.ones((1, 10), np.float32))
    for name in ("bright", "random-0", "random-1", "random-2"):
        np.save(tmp_path / f"{name}.npy", np.ones((4, 1, 8, 8), np.float32))
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    mine = authority.issue_cert("me")
    mine.cert_chain_pems[0].write_to_path(str(tmp_path / "me.pem"))
    mine.private_key_pem.write_to_path(str(tmp_path / "me-key.pem"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUTAWAY_TOKEN", "a-token")
    return tmp_path


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.name)
def test_python_runs(page: Path, server: Served, folder: Path) -> None:
    """Block after block of a page, with the names that index.md says examples have; ``# ask: gpt`` is the language
    model of test_owner_guides.py."""
    address = server.address
    with ca.Client(address) as client:
        names: dict[str, Any] = {"ca": ca, "np": np, "os": os, "time": time, "__name__": "example"}
        names |= {"client": client, "address": address, "http_address": server.http_address}
        names |= {"image": held_out().images[:1]}
        for block in blocks(page):
            if block.language == "python" and not block.reason and not block.text.startswith("# ask: gpt"):
                text = block.text.replace("127.0.0.1:50051", address).replace("127.0.0.1:8080", server.http_address)
                exec(compile("\n" * block.line + text, str(page), "exec"), names)


def read_yaml(block: Block) -> None:
    """A job, or a request: what its fields say."""
    sections = yaml.safe_load(block.text)
    if "data" in sections:
        Job.model_validate(sections)
    else:
        assert set(sections) <= {field.name for field in fields(InspectRequest)}, f"{block}: no job and no request"
        read_request(load_arrays(sections, Path()))


def part_of(example: str) -> Callable[[Block], None]:
    """A reader of what stands in ``example``, which other tests compile and run; indented otherwise there."""

    def read(block: Block) -> None:
        whole = [line.strip() for line in (ROOT / "examples" / example).read_text("utf-8").splitlines()]
        assert "\n".join(line.strip() for line in block.text.splitlines()).strip() in "\n".join(whole)

    return read


READERS: dict[str, Callable[[Block], Any]] = {
    "go": part_of("go/main.go"),
    "yaml": read_yaml,
    "json": lambda block: json.loads(block.text),
    "toml": lambda block: tomli.loads(block.text),
}


@pytest.mark.parametrize("block", OTHERS, ids=str)
def test_files_are_read(block: Block, folder: Path) -> None:
    """Each by the reader of its kind; a block in a language that nothing here reads says so."""
    if not block.reason:
        READERS[block.language](block)


def test_few_blocks_are_not_run() -> None:
    """Those that are counted here."""
    found = Counter(block.page.name for page in PAGES for block in blocks(page) if block.reason)
    assert found == NOT_RUN


COMMANDS = command_line.commands()
TEXTS = [
    *PAGES,
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "examples").rglob("*.md")),
]
"""Pages by people."""


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist_with_their_options(page: Path) -> None:
    """Each command of ours that a page names is parsed; in the text, it may lack its arguments."""
    for _, *words in commands(page, "cutaway"):
        name = ""
        while words and f"{name} {words[0]}".strip() in COMMANDS:
            name = f"{name} {words.pop(0)}".strip()
        command = COMMANDS[name]
        if words and words[-1] in {word for option in command.params if not is_flag(option) for word in option.opts}:
            words.append("its value")
        if words != ["COMMAND", "--help"]:
            _, surplus, _ = command.make_parser(command.context_class(command, info_name=name)).parse_args(words)
            assert not surplus, f"{page.name}: cutaway {name} takes no {surplus}"


def is_flag(option: Any) -> bool:
    return bool(getattr(option, "is_flag", False))


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_in_the_text_exist(page: Path) -> None:
    """An option that a page names alone is one of some command of ours."""
    ours = {word for command in COMMANDS.values() for option in command.params for word in option.opts} | {"--help"}
    named = set(re.findall(r"`(--[a-z][a-z-]*)", by_hand(page)))
    assert named <= ours | OTHERS_OPTIONS


def test_targets_of_make_exist() -> None:
    """Every `make ...` of a page."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = {words[1] for page in TEXTS for words in commands(page, "make")}
    assert "docs-site" in targets
    assert {name for name in named if "=" not in name} <= targets
