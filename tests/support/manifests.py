"""What the files that deploy Cutaway say, read as those who obey them read it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


class Instruction(NamedTuple):
    """One instruction of the Dockerfile: ``RUN``, and what follows it."""

    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """An instruction in exec form.

        Raises:
            ValueError: it is in shell form.
        """
        return [str(word) for word in json.loads(self.text)]


class Stage(list[Instruction]):
    """The instructions of one stage; the last stage is the image."""

    def all(self, name: str) -> list[Instruction]:
        return [each for each in self if each.name == name]

    def the(self, name: str) -> Instruction:
        [found] = self.all(name)
        return found

    @property
    def variables(self) -> dict[str, str]:
        return dict(pair.split("=", 1) for each in self.all("ENV") for pair in each.text.split())


def stages() -> list[Stage]:
    """The Dockerfile, stage by stage; what is before the first is left out."""
    lines = (line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#"))
    found: list[Stage] = []
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        name, _, text = line.partition(" ")
        if name == "FROM":
            found.append(Stage())
        if name and found:
            found[-1].append(Instruction(name, text.strip()))
    return found


def image() -> Stage:
    return stages()[-1]


def documents(directory: str) -> Iterator[dict[str, Any]]:
    """Every object in the YAML files of a directory of ``deploy``."""
    for path in sorted((DEPLOY / directory).glob("*.yaml")):
        if path.stem != "kustomization":
            yield from yaml.safe_load_all(path.read_text())


def opened() -> Iterator[dict[str, Any]]:
    """What ``deploy/kubernetes-open`` patches, patched."""
    patches = {(each["kind"], each["metadata"]["name"]): each for each in documents("kubernetes-open")}
    for each in documents("kubernetes"):
        patch = patches.pop((each["kind"], each["metadata"]["name"]), None)
        if patch:
            yield merged(each, patch)
    assert not patches, f"patches of nothing: {list(patches)}"


def merged(whole: Any, patch: Any) -> Any:
    """A strategic merge patch, as far as ours need it: null removes, and items of lists are told apart by a key, and
    removed by ``$patch: delete``."""
    if isinstance(patch, dict) and isinstance(whole, dict):
        both = whole | {key: merged(whole.get(key), value) for key, value in patch.items()}
        return {key: value for key, value in both.items() if value is not None}
    if isinstance(patch, list) and isinstance(whole, list) and isinstance(patch[0], dict):
        key = next(key for key in ("mountPath", "name", "port") if key in patch[0])
        items = {each[key]: each for each in whole}
        for each in patch:
            if each.get("$patch") == "delete":
                del items[each[key]]
            else:
                items[each[key]] = merged(items.get(each[key]), each)
        return list(items.values())
    if isinstance(patch, dict):
        return {key: value for key, value in patch.items() if value is not None}
    return patch


def the(kind: str, directory: str = "kubernetes", name: str = "cutaway") -> dict[str, Any]:
    """The one object of this kind and name."""
    [found] = [each for each in documents(directory) if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def pod() -> dict[str, Any]:
    """What the Deployment runs."""
    specification: dict[str, Any] = the("Deployment")["spec"]["template"]["spec"]
    return specification


def runtime() -> dict[str, Any]:
    """What KServe runs."""
    specification: dict[str, Any] = the("ServingRuntime", "kserve")["spec"]
    return specification


def compose() -> dict[str, Any]:
    """The one service of the compose file."""
    service: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yml").read_text())["services"]["cutaway"]
    return service


def only(items: Sequence[T]) -> T:
    """The one item that there is."""
    [item] = items
    return item
