"""MiniLM over the sentences of this project's own documentation: what each token contributes, and the page about it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from cutaway.jobs import Job, read, report, run
from examples.sentences.package import package
from tests.support.manifests import ROOT

PAGES = (
    "README.md",
    *(f"docs/{name}.md" for name in ("architecture", "checks", "security", "operations", "batch", "inspector")),
)
FEWEST = 200


def trial(directory: Path) -> list[str]:
    """Every sentence has a number for each of its tokens, and a place on the page."""
    sentences = _sentences()
    (directory / "sentences.csv").write_text("\n".join(["text", *(f'"{each}"' for each in sentences)]), "utf-8")
    package(directory)
    folder = directory / "explained"
    job = Job(
        model={"archive": directory / "sentences-1.0.mar"},
        data={"path": str(directory / "sentences.csv")},
        inputs={"raw": {"column": "text", "media_type": "text/plain"}},
        target={"class_index": 7},
        request={
            "attributions": [
                {"method": "layer_gradient_x_activation", "layer": "embeddings.word_embeddings"},
                {"method": "layer_integrated_gradients", "layer": "embeddings.word_embeddings", "n_steps": 16},
            ],
        },
        output={"folder": folder, "shard_rows": 64, "keep_inputs": True},
        engine={"kind": "local", "batch": 16},
    )
    summary = run(job)
    results = read(folder)
    tokens = results["tokens"]
    attributions = results["attribution:layer_gradient_x_activation:embeddings.word_embeddings"]
    longest = max(len(each) for each in tokens)
    fitting = [len(each) <= np.shape(values)[0] for each, values in zip(tokens, attributions)]
    page = report(folder)
    lines = [
        f"{summary.rows} sentences, {summary.bad} bad, {summary.seconds:.0f} s; {summary.verdicts}",
        f"tokens: {sum(map(len, tokens))}, {longest} at most",
        f"page: {page.stat().st_size / 2**20:.1f} MiB",
    ]
    if summary.rows < FEWEST or summary.bad or not all(fitting):
        raise AssertionError("\n".join(lines))
    return lines


def _sentences() -> list[str]:
    """Whole sentences of prose, without code, tables or quotation marks."""
    found: list[str] = []
    for page in PAGES:
        text = re.sub(r"```.*?```", "", (ROOT / page).read_text("utf-8"), flags=re.DOTALL)
        prose = [part for part in text.split("\n\n") if not re.match(r"[#|<!\-]", part.strip())]
        prose = [re.sub(r"\[(.*?)\]\(.*?\)|[*`]", r"\1", part) for part in prose]
        whole = re.split(r"(?<=[.?!])\s+", " ".join(" ".join(prose).split()))
        found += [each for each in whole if len(each.split()) > 3 and '"' not in each]
    return list(dict.fromkeys(found))
