"""What the image installs: each file by its SHA-256, in the versions of constraints.txt, and nothing else."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path
from typing import NamedTuple

import pytest
import tomli
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.manifests import ROOT, stages

REQUIREMENTS = ROOT / "deploy" / "requirements"
EXTRAS = ("server", "traces", "text", "jobs")
FILES = (*EXTRAS, "torch", "build")


class Locked(NamedTuple):
    """One requirement of a file, and the hashes that its files may have."""

    requirement: Requirement
    hashes: list[str]

    @property
    def pin(self) -> tuple[str, str]:
        return self.requirement.name, str(self.requirement.specifier)

    @property
    def applies(self) -> bool:
        """Whether this Python, on this machine, needs it."""
        return self.requirement.marker is None or self.requirement.marker.evaluate()


def lines(path: Path) -> Iterator[str]:
    """The lines of a file of requirements, each with its continuations; no comments."""
    joined = re.sub(r"\\\n\s*", "", path.read_text())
    return (line for line in joined.splitlines() if not line.startswith("#"))


def locked(name: str) -> Iterator[Locked]:
    """The requirements of a file, and of those that it includes."""
    for line in lines(REQUIREMENTS / f"{name}.txt"):
        if line.startswith("-r "):
            yield from locked(line.removeprefix("-r ").removesuffix(".txt"))
        else:
            requirement, *hashes = line.split("--hash=")
            yield Locked(Requirement(requirement), [each.strip() for each in hashes])


def needed(requirements: list[str], extra: str = "") -> Iterator[Requirement]:
    """What applies here of a package's requirements, those of ``extra`` included."""
    for each in map(Requirement, requirements):
        if each.marker is None or each.marker.evaluate({"extra": extra}):
            yield each


def everything_needed(first: Iterator[Requirement]) -> Iterator[Requirement]:
    """What ``first`` need, and what that needs, as the installed packages declare it."""
    waiting, seen = list(first), set[str]()
    while waiting:
        requirement = waiting.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        for extra in ("", *requirement.extras):
            waiting += needed(requires(requirement.name) or [], extra)
        yield requirement


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_known_by_its_hash(name: str) -> None:
    """Each requirement has one version, and the SHA-256 of its files."""
    found = list(locked(name))
    assert found
    for requirement, hashes in found:
        assert re.fullmatch(r"==[^,*]+", str(requirement.specifier))
        assert hashes, requirement
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", each) for each in hashes)


def test_the_image_has_the_versions_that_are_tested() -> None:
    """Those of constraints.txt, which leaves out only the CUDA packages of PyPI's torch."""
    tested = {Locked(Requirement(line), []).pin for line in lines(ROOT / "constraints.txt")}
    others = {each.pin for name in FILES for each in locked(name)} - tested
    assert all(re.match("nvidia-|cuda-|triton$", name) for name, _ in others), others


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_extra_of_the_image_is_complete(extra: str) -> None:
    """Its file has all that the extra needs: `make lock` was run after the last change of pyproject.toml."""
    versions = {each.requirement.name: each.pin[1].removeprefix("==") for each in locked(extra) if each.applies}
    direct = needed(requires("cutaway") or [], extra)
    for requirement in everything_needed(direct):
        name = canonicalize_name(requirement.name)
        if name != "cutaway":
            assert requirement.specifier.contains(versions[name], prereleases=True), requirement


def test_our_wheel_is_built_with_what_it_asks_for() -> None:
    """The image's stage that builds the wheel has the build backend of pyproject.toml."""
    versions = {each.requirement.name: each.pin[1].removeprefix("==") for each in locked("build")}
    asked = tomli.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert all(each.specifier.contains(versions[each.name]) for each in map(Requirement, asked))


def test_nothing_comes_into_the_image_without_its_hash() -> None:
    """Each command of pip either compares hashes or fetches nothing, and no index is asked but the builder's."""
    commands = [each.text for stage in stages() for each in stage.all("RUN") if "/pip " in each.text]
    assert len(commands) == 4
    assert all("--require-hashes --only-binary :all:" in each or "--no-index" in each for each in commands)
    assert not [
        each for stage in stages() for each in stage.all("ARG") if each.text.startswith("PIP_") if "=" in each.text
    ]


# The Dockerfile's own command, with small packages in place of the real ones


class Shelf(NamedTuple):
    """Packages that pip may find, and the image's files of requirements beside them."""

    directory: Path

    def put(self, name: str, version: str, *needs: str) -> str:
        """Make a wheel without code; its SHA-256."""
        path = self.directory / f"{name}-{version}-py3-none-any.whl"
        head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        with zipfile.ZipFile(path, "w") as wheel:
            inside = f"{name}-{version}.dist-info"
            wheel.writestr(f"{inside}/METADATA", head + "".join(f"Requires-Dist: {each}\n" for each in needs))
            wheel.writestr(
                f"{inside}/WHEEL", "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            wheel.writestr(f"{inside}/RECORD", "")
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def lock(self, name: str, *requirements: str) -> None:
        (self.directory / f"{name}.txt").write_text("".join(f"{each}\n" for each in requirements))

    def install(self, extras: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """What the image's build would install."""
        command = stages()[0].all("RUN")[-1].text.replace("/opt/cutaway/bin/pip", f"{sys.executable} -m pip")
        options = {
            "CONFIG_FILE": os.devnull,
            "NO_INDEX": "1",
            "DRY_RUN": "1",
            "IGNORE_INSTALLED": "1",
            "FIND_LINKS": ".",
        }
        environment = {"PATH": os.environ["PATH"], "EXTRAS": extras} | {f"PIP_{name}": v for name, v in options.items()}
        return subprocess.run(
            ["sh", "-c", command], cwd=self.directory, env=environment | variables, capture_output=True, text=True
        )


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    """An extra that needs torch, of which there are two builds, and one that does not."""
    shelf = Shelf(tmp_path)
    shelf.lock("torch", f"torch==2.13.0 --hash=sha256:{shelf.put('torch', '2.13.0')}")
    shelf.lock("server", "-r torch.txt", f"captum==0.9.0 --hash=sha256:{shelf.put('captum', '0.9.0', 'torch')}")
    shelf.lock("traces", f"spans==1.0 --hash=sha256:{shelf.put('spans', '1.0')}")
    return shelf


@pytest.mark.slow
def test_the_image_installs_the_extras_that_are_asked_for(shelf: Shelf) -> None:
    assert "Would install captum-0.9.0 spans-1.0 torch-2.13.0\n" in shelf.install("server,traces").stdout
    assert "Would install spans-1.0\n" in shelf.install("traces").stdout
    assert "No such file" in shelf.install("server,nonsense").stderr


def test_a_file_with_another_hash_is_refused(shelf: Shelf) -> None:
    """An index that serves another file under the locked version changes nothing in an image."""
    shelf.put("spans", "1.0", "captum")
    done = shelf.install("traces")
    assert done.returncode != 0
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in done.stderr


def test_a_package_that_is_not_locked_is_refused(shelf: Shelf) -> None:
    """What a package needs must be locked, too, whether or not an index has it."""
    shelf.put("stowaway", "1.0")
    shelf.lock("traces", f"spans==1.0 --hash=sha256:{shelf.put('spans', '1.0', 'stowaway')}")
    done = shelf.install("traces")
    assert done.returncode != 0
    assert "In --require-hashes mode" in done.stderr


@pytest.mark.slow
def test_another_build_of_torch_has_a_hash_as_well(shelf: Shelf) -> None:
    """Only the build whose hash the builder gives comes in place of the locked one."""
    sha256 = shelf.put("torch", "2.13.0+cpu")
    assert "Would install captum-0.9.0 torch-2.13.0+cpu\n" in shelf.install("server", TORCH_SHA256=sha256).stdout
    done = shelf.install("server", TORCH_SHA256="0" * 64)
    assert done.returncode != 0
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in done.stderr
