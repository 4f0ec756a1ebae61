"""The shipped alerts, as a real Prometheus finds them."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from tests.support.manifests import DEPLOY

HELD = 'count_over_time(ALERTS{alertstate="%s"}[1d])'


def _name(labels: dict[str, str]) -> str:
    """Returns the name of an alert, and what it is about."""
    return " ".join(labels[each] for each in ("alertname", "model", "version", "archive") if each in labels)


@contextmanager
def alerts(directory: Path, metrics: str) -> Iterator[Callable[[], dict[str, int]]]:
    """Runs a Prometheus with the rules of deploy/, which reads ``metrics`` every second, while the block runs.

    Its value returns for how many seconds each alert fired, and prints how long each was about to; without a Prometheus
    on this machine it returns nothing.
    """
    program = shutil.which("prometheus")
    if program is None:
        print("alerts are not judged: there is no prometheus here; on Debian: apt install prometheus", flush=True)
        yield dict
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(DEPLOY / "prometheus" / "alerts.yml")],
        "scrape_configs": [{"job_name": "cutaway", "static_configs": [{"targets": [metrics]}]}],
    }
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [program, f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/series"]

    def seconds(state: str) -> dict[str, int]:
        query = urllib.parse.urlencode({"query": HELD % state})
        with urllib.request.urlopen(f"http://{address}/api/v1/query?{query}") as reply:
            series = json.load(reply)["data"]["result"]
        return {_name(each["metric"]): int(each["value"][1]) for each in series}

    def fired() -> dict[str, int]:
        print(f"alerts: their conditions held, in seconds: {seconds('pending') or 'none'}")
        return seconds("firing")

    with subprocess.Popen([*command, f"--web.listen-address={address}", "--log.level=error"]) as process:
        try:
            yield fired
        finally:
            process.terminate()
