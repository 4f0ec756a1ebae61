"""What happens to a model store in a week, and what may answer meanwhile."""

from __future__ import annotations

import itertools
import math
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import cutaway as ca
from cutaway.server.archive import builder
from tests.conftest import ADAPTERS
from tests.support.prometheus import named, scraped
from tests.support.waiting import until

VERSIONS = tuple(f"1.{number}" for number in range(1, 5))
"""Those that come and go; 1.0 stays."""

STALL_S = 3.0
"""How long a copy stops in the middle: longer than the gateway waits for files to be at rest."""


@dataclass
class Span:
    """A time in monotonic seconds, which may not have ended."""

    since: float
    until: float = math.inf


class Store:
    """The archives of one model in a store, each of which multiplies by a number of its own.

    Attributes:
        served: when each version was surely served.
        answers: when each version might answer with each factor.
        files: the file of each version.
        log: of the server.
    """

    def __init__(self, directory: Path, model: str, workers: int, address: str, metrics: str) -> None:
        self.model, self._directory, self._workers = model, directory, workers
        self._address, self._metrics = address, metrics
        self.log = Path()
        self.served: dict[str, list[Span]] = defaultdict(list, {"1.0": [Span(0.0)]})
        self.answers: dict[tuple[str, float], Span] = {("1.0", 1.0): Span(0.0)}
        self._numbers = itertools.count(2)
        self.files = {"1.0": directory / f"{model}.mar"}
        self.files["1.0"].write_bytes(self._made("1.0", 1))

    def put(self, version: str) -> None:
        """Puts a version into the store, or another archive in its place, in one step."""
        with self._changing(version) as factor:
            path = self._directory / "copy.part"
            path.write_bytes(self._made(version, factor))
            self.files[version] = path.rename(self._file(version))

    def copy_slowly(self, version: str) -> None:
        """The archive of a version is half copied, until the copy goes on."""
        with self._changing(version) as factor:
            whole, path = self._made(version, factor), self._file(version)
            path.write_bytes(whole[: len(whole) // 2])
            self._until_shown(path, "NOT_WHOLE")
            time.sleep(STALL_S)
            with path.open("ab") as copy:
                copy.write(whole[len(whole) // 2 :])
            self.files[version] = path

    def remove(self, version: str) -> None:
        self.served[version][-1].until = time.monotonic()
        self.files.pop(version).unlink()
        self.settle()
        self._forget(version)

    def rename(self, version: str) -> None:
        """Gives an archive another name, which means nothing."""
        path = self.files.pop(version)
        self.files[version] = path.rename(self._file(version))
        self.settle()

    def spoil(self, version: str, content: bytes, state: str) -> None:
        """The file of a version is a broken archive for a while; the version is served all the while."""
        path = self.files[version]
        good = path.read_bytes()
        path.write_bytes(content)
        self._until_shown(path, state)
        path.write_bytes(good)
        self.settle()

    def damage(self, version: str) -> None:
        self.spoil(version, b"no archive", "NOT_WHOLE")

    def end_process(self, version: str) -> None:
        self.spoil(version, self._made(version, -1), "FAILED")

    def settle(self) -> None:
        """Waits until what is in the store is listed, and the metrics show no other archive."""
        until(lambda: self._listed() == {*self.files}, 0.2)
        until(lambda: not self._shown(), 0.2)

    def may_answer(self, version: str, factor: float, call: Span) -> bool:
        """Whether an answer with this factor is right for a call of this time."""
        span = self.answers.get((version, factor), Span(math.inf))
        return span.since <= call.until and call.since <= span.until

    def lived(self, version: str, call: Span) -> bool:
        """Whether a version was served all the while."""
        return any(span.since <= call.since and call.until <= span.until for span in self.served[version])

    def newest(self, call: Span) -> str:
        """Returns the highest version that was served all the while."""
        return max(version for version in ("1.0", *VERSIONS) if self.lived(version, call))

    @contextmanager
    def _changing(self, version: str) -> Iterator[int]:
        """Waits, after the block, until the archive that it brings is served."""
        factor, is_new, before = next(self._numbers), version not in self.files, self._times_loaded(version)
        self.answers[version, factor] = Span(time.monotonic())
        yield factor
        until(lambda: self._times_loaded(version) > before, 0.2)
        self.settle()
        self._forget(version, factor)
        if is_new:
            self.served[version].append(Span(time.monotonic()))

    def _forget(self, version: str, but: int = 0) -> None:
        for (each, factor), span in self.answers.items():
            if each == version and factor != but:
                span.until = min(span.until, time.monotonic())

    def _times_loaded(self, version: str) -> int:
        return self.log.read_text().count(f'"serving {self.model} {version}"')

    def _listed(self) -> set[str]:
        with ca.Client(self._address) as client, suppress(ca.Unavailable):  # it has come back at this moment
            return {each.version for each in client.list_models() if each.model == self.model}
        return set()

    def _until_shown(self, path: Path, state: str) -> None:
        until(lambda: (path.name, state) in self._shown(), 0.2)

    def _shown(self) -> set[tuple[str, ...]]:
        """The archives that the metrics, and so the alert about them, say are not served."""
        return {*named(scraped(self._metrics), "cutaway_archive_unserved", "archive", "state")}

    def _file(self, version: str) -> Path:
        return self.files.get(version) or self._directory / f"{self.model}-{next(self._numbers)}.mar"

    def _made(self, version: str, factor: int) -> bytes:
        adapter = f"{ADAPTERS / 'waiting_adapter.py'}:WaitingAdapter"
        with tempfile.TemporaryDirectory() as directory:
            return builder.build(
                model=self.model, version=version, adapter=adapter, weights=None, options={"factor": str(factor)},
                batch_size=8, max_batch_delay_ms=2, workers=self._workers, response_timeout_s=120, force=True,
                destination=Path(directory),
            ).read_bytes()  # fmt: skip


def _more_or_fewer(store: Store, order: random.Random) -> None:
    version = order.choice(VERSIONS)
    (store.remove if version in store.files else store.put)(version)


CHANGES: Mapping[str, Callable[[Store, random.Random], None]] = {
    "new or removed": _more_or_fewer,
    "once more new or removed": _more_or_fewer,
    "replaced": lambda store, order: store.put(order.choice([*store.files])),
    "renamed": lambda store, order: store.rename(order.choice([*store.files])),
    "half copied": lambda store, order: store.copy_slowly(order.choice(VERSIONS)),
    "damaged": lambda store, order: store.damage(order.choice([*store.files])),
    "ends its process": lambda store, order: store.end_process(order.choice([*store.files])),
}
"""Each returns when the server has taken it over; then all archives are whole."""
