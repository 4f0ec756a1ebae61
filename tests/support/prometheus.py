"""What a gateway's metrics endpoint says, as Prometheus reads it."""

from __future__ import annotations

import urllib.request

from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""Values by a sample's name and its labels that are not empty."""


def scraped(address: str) -> Samples:
    """Returns all samples of the endpoint at ``address``."""
    with urllib.request.urlopen(f"http://{address}/metrics") as reply:
        text = reply.read().decode()
    return {
        (sample.name, frozenset((name, value) for name, value in sample.labels.items() if value)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def read(address: str, name: str, **labels: str) -> float:
    """Returns the value of one sample; 0 where there is none."""
    return scraped(address).get((name, frozenset(labels.items())), 0.0)


def waiting_calls(address: str, model: str) -> float:
    """Returns how many calls wait for version 1.0 of ``model``."""
    return read(address, "cutaway_waiting_calls", model=model, version="1.0")


def named(samples: Samples, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """Returns the values of all samples of one name that are not 0, by some of their labels."""
    found = {
        tuple(dict(own).get(label, "") for label in labels): value
        for (each, own), value in samples.items()
        if each == name
    }
    return {label: value for label, value in found.items() if value}
