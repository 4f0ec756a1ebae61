"""The image: what its Dockerfile promises, and its health check. ``make container`` builds it and runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
import trustme
from torch import nn

from cutaway.gateway import serve
from cutaway.server.settings import Settings
from tests.support.manifests import ROOT, image, stages

HEALTH = ROOT / "deploy" / "health.py"


def test_the_image_is_not_root() -> None:
    """Its user is a number, so that Kubernetes can see that it is not 0."""
    user, group = map(int, image().the("USER").text.split(":"))
    assert user == group >= 10_000


@pytest.mark.parametrize("name", ["ENTRYPOINT", "CMD"])
def test_no_shell_stands_between_a_signal_and_the_server(name: str) -> None:
    """Both are in exec form, behind a first process that passes signals on."""
    assert image().the(name).words[0] == {"ENTRYPOINT": "dumb-init", "CMD": "serve"}[name]
    assert image().the("STOPSIGNAL").text == "SIGTERM"


def test_the_image_asks_the_health_service_itself() -> None:
    """Without a shell, and without curl."""
    check = image().the("HEALTHCHECK").text
    assert check.partition(" CMD ")[2] == '["cutaway-health"]'


def test_only_in_the_image_every_address_is_listened_at() -> None:
    """The default is loopback; the image says otherwise, in a variable that an operator can set."""
    assert Settings().address == "127.0.0.1:50051"
    assert image().variables["CUTAWAY_ADDRESS"] == "0.0.0.0:50051"
    assert image().the("EXPOSE").text == "50051"


def test_the_image_sets_what_exists() -> None:
    """Each of its CUTAWAY_ variables is a setting."""
    named = {name for name in image().variables if name.startswith("CUTAWAY_")}
    assert {name.removeprefix("CUTAWAY_").lower() for name in named} <= set(Settings.model_fields)


def test_a_change_of_our_code_does_not_fetch_torch_again() -> None:
    """The stage that installs what we need reads nothing of ours but versions, and comes into the image before ours."""
    dependencies, _, last = stages()
    assert [each.text for each in dependencies.all("COPY")] == ["deploy/requirements ./"]
    assert [each.text.split()[0] for each in last.all("COPY")][:2] == ["--from=dependencies", "--from=wheel"]


def test_the_build_gets_the_files_that_it_copies() -> None:
    """.dockerignore leaves out everything but those."""
    copied = {
        source
        for stage in stages()
        for each in stage.all("COPY")
        if not each.text.startswith("--from")
        for source in each.text.split()[:-1]
        if not source.startswith("--")
    }
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == let_in
    assert all((ROOT / source).exists() for source in copied)


def test_trying_the_image_says_what_it_lacks(tmp_path: Path) -> None:
    """`make container` on a machine without buildah ends with a line that helps."""
    (tmp_path / "dirname").symlink_to("/usr/bin/dirname")
    done = subprocess.run(
        ["/bin/bash", ROOT / "scripts" / "container"], env={"PATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.startswith("container: needs buildah; " if os.geteuid() == 0 else "container: needs root")


# The health check


def healthy(**variables: str) -> subprocess.CompletedProcess[str]:
    """The image's health check, with these settings."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CUTAWAY_")}
    return subprocess.run([sys.executable, HEALTH], env=environment | variables, capture_output=True, text=True)


def test_who_serves_is_healthy() -> None:
    """Exit status 0 and not a word; also where the address is every address."""
    with serve({"net": nn.Linear(3, 2)}) as server:
        port = server.address.rpartition(":")[2]
        for address in (server.address, f"0.0.0.0:{port}"):
            done = healthy(CUTAWAY_ADDRESS=address)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = healthy(CUTAWAY_ADDRESS=server.address)
    assert done.returncode == 1
    assert done.stderr.startswith(f"not healthy: {server.address}: UNAVAILABLE: ")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """A server's settings: a certificate for the name that clients know, and not for 127.0.0.1."""
    directory = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    issued = authority.issue_cert("models.example.org")
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    issued.private_key_pem.write_to_path(str(directory / "key.pem"))
    for number, part in enumerate(issued.cert_chain_pems):
        part.write_to_path(str(directory / "certificate.pem"), append=number > 0)
    names = {"TLS_CERTIFICATE": "certificate", "TLS_KEY": "key", "TLS_CLIENT_CA": "ca"}
    return {f"CUTAWAY_{name}": str(directory / f"{file}.pem") for name, file in names.items()}


@pytest.mark.parametrize("mutual", [False, True])
def test_health_over_tls(mutual: bool, certificates: Mapping[str, str]) -> None:
    """The same settings that make the server speak TLS make the check speak it, client certificates included."""
    used = {name: path for name, path in certificates.items() if mutual or name != "CUTAWAY_TLS_CLIENT_CA"}
    fields = {name.removeprefix("CUTAWAY_").lower(): path for name, path in used.items()}
    torch.manual_seed(0)
    with serve(
        {"net": nn.Linear(3, 2)}, settings=Settings.model_validate(fields | {"address": "127.0.0.1:0"})
    ) as server:
        done = healthy(CUTAWAY_ADDRESS=server.address, **used)
        assert (done.returncode, done.stderr) == (0, "")
        assert healthy(CUTAWAY_ADDRESS=server.address).returncode == 1
    done = healthy(CUTAWAY_ADDRESS=server.address, **used)
    assert done.returncode == 1
    assert "Connection refused" in done.stderr
