"""The documentation says what the code does."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import captum
import numpy as np
import pytest
from captum import attr

from cutaway.contract.requests import Attribution
from cutaway.contract.wire.methods import METHODS
from cutaway.engine.methods.captum_call import TABLE
from cutaway.jobs import Job
from cutaway.jobs.spec import parse_request
from examples.digits import audit
from tests.support.documents import ROOT
from tools import array_kinds, captum_names
from tools.documents import PAGES, source, tables, written


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_have_the_tables_of_the_code(path: Path) -> None:
    """Every method with its reference, tolerances and source, every cause, every reason: `make docs` writes them."""
    page = path.read_text("utf-8")
    assert all(tables()[name] in page for name in PAGES[path]), "run: make docs"
    assert written(page) == page


def test_the_page_for_those_who_know_captum_cannot_fall_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tables walk Captum's own signatures: a class or an argument that is new there has no answer, which is an
    error. The arguments of its pictures are named too."""
    page = (ROOT / "docs" / "from-captum.md").read_text("utf-8")
    pictures = page[page.index("## Pictures") :]
    assert {name for name in captum_names.parameters_of("visualize_image_attr") if name not in pictures} == set()

    def attribute(inputs: object, smoothness: float) -> None: ...

    monkeypatch.setattr(attr.Saliency, "attribute", attribute)
    with pytest.raises(KeyError, match="'smoothness' of Captum's Saliency"):
        list(captum_names.arguments())
    monkeypatch.undo()
    packages = {f"captum.{each.name}" for each in pkgutil.iter_modules(captum.__path__) if each.name[0] != "_"}
    assert packages - {"captum.log", "captum.testing"} == {each.__name__ for each in captum_names.MODULES[:-1]}
    monkeypatch.setattr(attr, "NewMethod", type("NewMethod", (), {"__module__": "captum.attr"}), raising=False)
    with pytest.raises(KeyError, match="NewMethod"):
        list(captum_names.classes())


def test_every_method_that_can_be_asked_for_has_a_row() -> None:
    """What the contract names, the engine answers."""
    assert set(TABLE) == set(METHODS.kinds.values())


@pytest.mark.parametrize("kind", list(TABLE), ids=lambda kind: kind.__name__)
def test_every_method_cites_where_it_comes_from(kind: type[Attribution]) -> None:
    """But for those that have no paper: a layer's value, and the gradient of a neuron or at it."""
    bare = {"LayerActivation", "LayerGradientXActivation", "NeuronGradient", "LayerFeatureAblation",
            "NeuronFeatureAblation"}  # fmt: skip
    assert source(kind) or kind.__name__ in bare


def test_every_public_name_of_captum_has_a_row() -> None:
    """It is served, with what it is checked against and a test that names it; or the row says what stands for it."""
    rows = [line.split(" | ") for line in tables()["captum classes"].splitlines()[2:]]
    for name, ours, _, against, test in rows:
        assert ours.strip(), f"{name}: say what stands for it, or why nothing does"
        assert bool(against.strip()) == bool(test.strip(" |")), name
        if file := test.strip("`| "):
            words = [name.strip("|` "), *re.findall(r"(?<=ca\.)\w+|(?<=method=')\w+", ours)]
            text = (ROOT / file).read_text("utf-8")
            assert any(re.search(rf"\b{word}\b", text) for word in words), f"{file} does not test {name}"
    served = [name for name, _, _, against, _ in rows if against.strip()]
    assert len(served) >= 54


def test_paths_that_documents_name_exist() -> None:
    """A stranger who follows a path in README, CONTRIBUTING or docs/ finds a file there."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        for name in re.findall(r"`([\w/.-]+/[\w.-]*)`", page.read_text("utf-8")):
            if name.endswith((".py", ".proto", ".toml", ".xml", "/")) and not name.startswith(("/", ".")):
                places = (ROOT / name, ROOT / "service" / "cutaway" / name, page.parent / name)
                assert any(place.exists() for place in places), f"{page.name} names {name}"


LONGEST = 30
"""The most words of a sentence; code and a link are a word each."""

_APART = re.compile(
    r"^```.*?^```$|^<!-- (?P<name>[\w ]+) -->$.*?^<!-- end of (?P=name) -->$|<!--.*?-->|^(?:#| *\||!\[)[^\n]*$",
    re.M | re.S,
)
"""What is no sentence: blocks of code, tables, what `make docs` writes, headings and pictures."""


def sentences(text: str) -> Iterator[str]:
    """Yields the sentences of a page; an element of a list begins one."""
    text = re.sub(r"(`+)(?:(?!\1).)+?\1|\[[^\]]*\]\([^)]*\)", "code", _APART.sub("\n", text), flags=re.S)
    for block in re.split(r"\n\s*\n|\n *(?:[-*]|\d+\.) ", text):
        yield from filter(None, re.split(r"(?<=[.!?])[)”\"*]*\s+", " ".join(block.split())))


def test_no_sentence_is_long() -> None:
    """So that a reader whose first language is another one follows; decisions, README and examples too."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    pages += (ROOT / "clients").glob("*/README.md")
    found = [
        (page, each) for page in pages if page.name != "CHANGELOG.md" for each in sentences(page.read_text("utf-8"))
    ]
    assert len(found) > 2000
    long = [f"{page.name}: {each}" for page, each in found if len(each.split()) > LONGEST]
    assert not long, "\n".join(long)
    assert [len(each.split()) for each in sentences("# A\n\nOne `a b`.\n- Two\n  [three\n  x](y). Four\n")] == [2, 2, 1]


def test_pages_are_few() -> None:
    """A reader finds what there is: at most 45 pages beside the decisions."""
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "decisions"]
    assert 20 < len(pages) <= 45


def _jobs_in_batch_md() -> list[str]:
    page = (ROOT / "docs" / "batch.md").read_text("utf-8")
    return re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def test_jobs_in_documents_are_jobs(tmp_path: Path) -> None:
    """Every YAML block of docs/batch.md is a whole job that can be read, with its request; those of the examples are
    what the examples have."""
    blocks = _jobs_in_batch_md()
    assert len(blocks) >= 2
    np.save(tmp_path / "average.npy", np.zeros((1, 30), np.float32))
    for block in blocks:
        (tmp_path / "job.yaml").write_text(block)
        job = Job.load(tmp_path / "job.yaml")
        assert parse_request(job.request, job.target).request.attributions
    examples = [(ROOT / "examples" / "tumours" / "job.yaml").read_text("utf-8"), audit.JOB]
    assert sorted(blocks) == sorted(examples)


def test_the_typescript_client_knows_the_kinds_of_tensors() -> None:
    """`make docs` writes them from the server's own."""
    assert array_kinds.FILE.read_text("utf-8") == array_kinds.source()
