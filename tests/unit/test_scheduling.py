"""How the test files are shared among processes: nothing that takes long is done twice."""

from __future__ import annotations

from pathlib import PurePath

import pytest

from tests.support.scheduling import LONGEST, ONE_SERVER


def test_one_process_runs_all_that_need_the_sessions_server(request: pytest.FixtureRequest) -> None:
    """A file that is missing from the list would start the server, and its four workers, once more."""
    takers = {PurePath(item.path).stem for item in request.session.items if _takes_the_sessions_server(item)}
    assert takers <= set(ONE_SERVER)


def test_no_file_is_listed_twice_or_gone(request: pytest.FixtureRequest) -> None:
    """The order is of files that there are."""
    there = {file.stem for file in (request.config.rootpath / "tests").rglob("test_*.py")}
    assert len(set(LONGEST)) == len(LONGEST)
    assert set(LONGEST) <= there


def _takes_the_sessions_server(item: pytest.Item) -> bool:
    definitions = item._fixtureinfo.name2fixturedefs.get("server", ()) if isinstance(item, pytest.Function) else ()
    return bool(definitions) and definitions[-1].scope == "session"
