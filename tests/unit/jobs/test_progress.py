"""What a person sees while a job runs: a bar that moves with every batch, the outcome below it, each warning once."""

from __future__ import annotations

import io
import re
import warnings
from pathlib import Path

from rich.console import Console

from cutaway.jobs.progress import Bar, ProgressLines
from cutaway.jobs.running import Summary, shown_once

VERDICTS = {f"attribution_{index}": {"AGREES": 1000, "INCONCLUSIVE": 7} for index in range(6)}


def test_a_long_outcome_leaves_the_bar_its_place() -> None:
    """The bar, the rate and the time stay on their line, and each attribution has its own below them."""
    terminal, page = (Console(file=io.StringIO(), width=70, force_terminal=True, color_system=None) for _ in range(2))
    bar = Bar(terminal)
    bar.on_start(2000, Summary(Path("out")))
    bar.on_rows(64)
    bar.on_shard(Summary(Path("out"), rows=64, verdicts=VERDICTS))
    with page.capture() as captured:
        page.print(bar._bar.get_renderable())
    bar.on_end()
    first, *below = captured.get().splitlines()
    assert first.startswith("━")
    assert first.index("64/2000") > 40
    assert [line.split()[0] for line in below] == list(VERDICTS)
    assert "1,000 AGREES" in below[0]


def test_lines_of_a_log_follow_batches_and_not_shards() -> None:
    """A shard of an hour has lines, with rows a second and time left; the last line is that of the last shard."""
    said: list[str] = []
    lines = ProgressLines(said.append, every_s=0.0)
    lines.on_start(100, Summary(Path("out"), rows=20))
    lines.on_rows(40)
    lines.on_rows(40)
    lines.on_shard(Summary(Path("out"), rows=100, verdicts={"saliency": {"AGREES": 100}}))
    assert said[0] == "100 rows, 20 of them already written"
    assert re.fullmatch(r"60 of 100 rows, [\d,]+ rows/s, [\d,]+ s left", said[1])
    assert re.fullmatch(r"100 of 100 rows, [\d,]+ rows/s, 0 s left; saliency 100 AGREES", said[2])
    assert len(said) == 3


def test_a_repeated_warning_is_shown_once() -> None:
    """Also where Python's own filter has forgotten it; another text is another warning; then all is as before."""
    hooks, other = "hooks will be removed", "something else"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with shown_once():
            for text in (hooks, hooks, other, hooks):
                warnings.warn(text, UserWarning, stacklevel=1)
        warnings.warn(hooks, UserWarning, stacklevel=1)
    assert [str(each.message) for each in caught] == [hooks, other, hooks]
