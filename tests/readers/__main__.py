"""Search for bytes that break a reader, guided by the lines that they reach.

python -m tests.readers              # the names
python -m tests.readers npy 3600     # an hour of one
python -m tests.readers all 60       # a minute of each, one after the other

Needs ``pip install atheris``. What breaks a reader is written to its corpus: `test_readers` fails until it is mended.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

MOST_MEMORY_MB = 1500
LONGEST = 1 << 14
AT_ONCE_S = 100
"""How long a process searches, with the inputs found before: atheris itself never frees 700 bytes of each input."""


def main() -> None:
    """Search in a process of its own for each reader; exit with 1 if one was broken."""
    parser = argparse.ArgumentParser(prog="readers", description="Search for bytes that break a reader.")
    parser.add_argument("name", nargs="?", default="")
    parser.add_argument("seconds", type=int, nargs="?", default=60)
    asked = parser.parse_args()
    from tests.readers.readers import CORPUS, READERS

    if asked.name not in (*READERS, "all"):
        sys.exit(f"readers: name one of these, or all: {', '.join(READERS)}")
    broken = [name for name in (READERS if asked.name == "all" else [asked.name]) if not _holds(name, asked.seconds)]
    print(f"readers: {', '.join(broken) or 'none'} broken; see {CORPUS}", flush=True)
    sys.exit(bool(broken))


def _holds(name: str, seconds: int) -> bool:
    """Returns whether a reader was not broken; keeps the bytes that broke it."""
    from tests.readers.readers import CORPUS, READERS

    own = CORPUS / name
    with TemporaryDirectory() as seeds, TemporaryDirectory() as found:
        for data in READERS[name].seeds:
            (Path(seeds) / hashlib.sha256(data).hexdigest()[:12]).write_bytes(data)
        limits = f"-rss_limit_mb={MOST_MEMORY_MB} -max_len={LONGEST} -timeout=20"
        options = [
            *limits.split(),
            f"-artifact_prefix={found}/",
            "-print_final_stats=1",
            seeds,
            *([str(own)] if own.exists() else []),
        ]
        code, count, broke = f"from tests.readers.__main__ import search; search({name!r})", 0, []
        for start in range(0, seconds, AT_ONCE_S):
            command = [sys.executable, "-c", code, f"-max_total_time={min(AT_ONCE_S, seconds - start)}", *options]
            run = subprocess.run(command, capture_output=True, text=True, errors="replace")
            ran = [line.split()[-1] for line in run.stderr.splitlines() if "number_of_executed_units" in line]
            count += sum(map(int, ran))
            broke = [*Path(found).iterdir()]
            if run.returncode or broke:
                break
        print(f"{name}: {count} inputs in {seconds} s, {len(broke)} broke it", flush=True)
        for path in broke:
            own.mkdir(parents=True, exist_ok=True)
            print("\n".join(run.stdout.splitlines()[-20:] + run.stderr.splitlines()[-5:]), flush=True)
            (own / hashlib.sha256(path.read_bytes()).hexdigest()[:12]).write_bytes(path.read_bytes())
        if run.returncode and not broke:
            sys.exit(f"readers: {name} did not run:\n{run.stderr[-3000:]}")
        return not broke


def search(name: str) -> None:
    """Search in this process, with the options of libFuzzer on the command line; never returns."""
    import atheris  # type: ignore[import-untyped]

    with atheris.instrument_imports(include=["cutaway.contract", "cutaway.server", "cutaway.jobs", "yaml", "tomli"]):
        from tests.readers.readers import checked
    logging.disable()
    atheris.Setup(sys.argv, lambda data: checked(name, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
