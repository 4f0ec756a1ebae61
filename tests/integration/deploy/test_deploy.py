"""The files that deploy Cutaway: what Kubernetes, KServe and Compose are told is valid, hardened, and of one mind."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator

from cutaway.server.observability.prometheus import Metrics
from cutaway.server.settings import Settings
from tests.support import manifests
from tests.support.manifests import DEPLOY, ROOT

OBJECTS = list(manifests.documents("kubernetes"))
OPENED = list(manifests.opened())
CONTAINERS = [
    pytest.param(manifests.only(manifests.pod()["containers"]), id="kubernetes"),
    pytest.param(manifests.only(manifests.runtime()["containers"]), id="kserve"),
]
WRITTEN = {"/tmp", "/var/log/cutaway"}


def named(each: dict[str, Any]) -> str:
    return f"{each['kind']}-{each['metadata']['name']}"


# Valid


@pytest.mark.parametrize(("change", "valid"), [("read_only: true", True), ("read_onyl: true", False)])
def test_compose_accepts_the_file(change: str, valid: bool, tmp_path: Path) -> None:
    """Held against Compose's own schema; a field that does not exist is an error."""
    file = tmp_path / "compose.yml"
    file.write_text((DEPLOY / "compose.yml").read_text().replace("read_only: true", change))
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)]
    assert (subprocess.run(command, check=False).returncode == 0) == valid


@pytest.mark.parametrize("version", ["1.30", "1.37"])
@pytest.mark.parametrize("each", [*OBJECTS, *OPENED], ids=named)
def test_kubernetes_accepts_each_object(each: dict[str, Any], version: str) -> None:
    """Held against Kubernetes' own schemas, of an old and a new version; a field that does not exist is an error."""
    kubernetes_validate.validate(each, version, strict=True)


def test_kustomize_applies_every_file() -> None:
    """None is forgotten."""
    for directory, word in (("kubernetes", "resources"), ("kubernetes-open", "patches")):
        listed = yaml.safe_load((DEPLOY / directory / "kustomization.yaml").read_text())[word]
        files = {path.name for path in (DEPLOY / directory).glob("*.yaml") if path.stem != "kustomization"}
        assert {each if isinstance(each, str) else each["path"] for each in listed} == files


def closed(required: list[str], **properties: Any) -> dict[str, Any]:
    """The schema of an object with these fields and no others."""
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


TEXT = {"type": "string", "minLength": 1}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
FORMAT = closed(["name"], name=TEXT, version={"type": "string"}, autoSelect={"type": "boolean"})
KSERVE = {
    "ServingRuntime": (
        "serving.kserve.io/v1alpha1",
        closed(
            ["containers"],
            annotations=TEXTS,
            labels=TEXTS,
            supportedModelFormats={"type": "array", "minItems": 1, "items": FORMAT},
            containers={"type": "array", "minItems": 1},
            volumes={"type": "array"},
        ),
    ),
    "InferenceService": (
        "serving.kserve.io/v1beta1",
        closed(
            ["predictor"],
            predictor=closed(
                ["model"],
                minReplicas={"type": "integer"},
                model=closed(
                    ["modelFormat"],
                    modelFormat=closed(["name"], name=TEXT, version=TEXT),
                    runtime=TEXT,
                    storageUri={"type": "string", "pattern": r"^[a-z0-9]+://.+"},
                ),
            ),
        ),
    ),
}
"""The part of KServe's definitions that is used; Kubernetes itself says what a container is."""


@pytest.mark.parametrize("each", list(manifests.documents("kserve")), ids=named)
def test_kserve_accepts_each_object(each: dict[str, Any]) -> None:
    version, schema = KSERVE[each["kind"]]
    assert each["apiVersion"] == version
    Draft202012Validator(schema).validate(each["spec"])


def test_kserve_runs_a_valid_pod() -> None:
    """A runtime's containers and volumes are those of a pod; the first container is the one that KServe looks for."""
    runtime = manifests.runtime()
    pod = {"containers": runtime["containers"], "volumes": runtime["volumes"]}
    whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "cutaway"}, "spec": pod}
    kubernetes_validate.validate(whole, "1.37", strict=True)
    assert manifests.only(runtime["containers"])["name"] == "kserve-container"


def test_kserve_finds_the_runtime() -> None:
    """The example service asks for a format that the runtime has."""
    model = manifests.the("InferenceService", "kserve", "digits")["spec"]["predictor"]["model"]
    offered = [
        {"name": each["name"], "version": each["version"]} for each in manifests.runtime()["supportedModelFormats"]
    ]
    assert model["modelFormat"] in offered
    assert model["runtime"] == manifests.the("ServingRuntime", "kserve")["metadata"]["name"]


WHOLE = {"type": "integer", "minimum": 0}
TEMPLATE = closed(["spec"], spec={"type": "object"}, metadata={"type": "object"})
RAY_CLUSTER = closed(
    ["rayVersion", "headGroupSpec", "workerGroupSpecs"],
    rayVersion=TEXT,
    authOptions=closed(["mode"], mode={"enum": ["disabled", "token"]}),
    enableInTreeAutoscaling={"type": "boolean"},
    autoscalerOptions=closed([], idleTimeoutSeconds=WHOLE),
    headGroupSpec=closed(["rayStartParams", "template"], rayStartParams=TEXTS, template=TEMPLATE),
    workerGroupSpecs={
        "type": "array",
        "minItems": 1,
        "items": closed(
            ["groupName", "maxReplicas", "minReplicas", "rayStartParams", "template"],
            groupName=TEXT,
            replicas=WHOLE,
            minReplicas=WHOLE,
            maxReplicas=WHOLE,
            rayStartParams=TEXTS,
            template=TEMPLATE,
        ),
    },
)
"""The part of KubeRay's definition that is used, as its reference of ray.io/v1 has it."""


def test_kuberay_accepts_the_cluster() -> None:
    """Its pods are held against Kubernetes' own schemas, as the gateway is."""
    cluster = manifests.the("RayCluster", "kuberay")
    assert cluster["apiVersion"] == "ray.io/v1"
    Draft202012Validator(RAY_CLUSTER).validate(cluster["spec"])
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    for spec in (group["template"]["spec"] for group in groups):
        whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "cutaway"}, "spec": spec}
        kubernetes_validate.validate(whole, "1.37", strict=True)
    for kind in ("Deployment", "Service"):
        kubernetes_validate.validate(manifests.the(kind, "kuberay"), "1.37", strict=True)


def test_the_gateway_joins_the_cluster() -> None:
    """At the name that KubeRay gives its head, with the token that the operator makes; its settings exist."""
    [container] = manifests.the("Deployment", "kuberay")["spec"]["template"]["spec"]["containers"]
    cluster = manifests.the("RayCluster", "kuberay")
    name = cluster["metadata"]["name"]
    assert f"--address={name}-head-svc:6379" in manifests.only(container["args"])
    variables = {each["name"]: each for each in container["env"]}
    assert variables["RAY_AUTH_MODE"]["value"] == cluster["spec"]["authOptions"]["mode"]
    assert variables["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": name, "key": "auth_token"}
    known = {f"CUTAWAY_{field.upper()}" for field in Settings.model_fields}
    assert {each for each in variables if each.startswith("CUTAWAY_")} <= known


# Hardened


@pytest.mark.parametrize("container", CONTAINERS)
def test_containers_have_no_privileges(container: dict[str, Any]) -> None:
    """No root, no way to become it, no capability, nothing written to the image."""
    pod = manifests.pod()["securityContext"] if container["name"] == "cutaway" else {}
    context = pod | container["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["allowPrivilegeEscalation"] is context["privileged"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    user, group = map(int, manifests.image().the("USER").text.split(":"))
    assert (context["runAsUser"], context["runAsGroup"]) == (user, group)


def test_pods_get_no_token_of_the_cluster() -> None:
    """Neither from their account nor by themselves."""
    account = manifests.the("ServiceAccount")
    assert account["automountServiceAccountToken"] is manifests.pod()["automountServiceAccountToken"] is False
    assert manifests.pod()["serviceAccountName"] == account["metadata"]["name"]


def test_compose_has_no_privileges() -> None:
    """The same where there is no Kubernetes; and only this machine reaches the port unless somebody says so."""
    service = manifests.compose()
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["ports"] == ["${CUTAWAY_PUBLISH:-127.0.0.1:50051}:50051"]
    assert "privileged" not in service


@pytest.mark.parametrize("container", CONTAINERS)
def test_what_is_written_to_is_mounted(container: dict[str, Any]) -> None:
    """Temporary files and the log; the models are read only."""
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert {path for path, mount in mounts.items() if not mount.get("readOnly")} == WRITTEN
    volumes = manifests.pod()["volumes"] if container["name"] == "cutaway" else manifests.runtime()["volumes"]
    assert {mount["name"] for mount in mounts.values()} == {volume["name"] for volume in volumes}


def test_compose_mounts_what_is_written_to() -> None:
    """Code can run from /tmp: TorchServe loads its own from there, and else talks to its workers over TCP."""
    service = manifests.compose()
    temporary, options = manifests.only(service["tmpfs"]).split(":")
    writable = {volume["target"] for volume in service["volumes"] if not volume.get("read_only")}
    assert writable | {temporary} == WRITTEN
    assert "exec" in options.split(",")


def test_the_network_is_closed_but_for_calls_metrics_and_names() -> None:
    """Calls come from those who are labelled, metrics go to one namespace, and out go only questions for names."""
    policy = manifests.the("NetworkPolicy")["spec"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    calls, metrics = policy["ingress"]
    ports = {port["name"]: port["containerPort"] for port in manifests.only(manifests.pod()["containers"])["ports"]}
    assert [port["port"] for port in calls["ports"]] == [ports["grpc"]]
    assert [port["port"] for port in metrics["ports"]] == [ports["metrics"]]
    assert all(rule["from"] and all(rule["from"]) for rule in policy["ingress"])
    assert {port["port"] for rule in policy["egress"] for port in rule["ports"]} == {53}


SECRETS = {"CUTAWAY_TLS_CERTIFICATE", "CUTAWAY_TLS_KEY", "CUTAWAY_TOKENS"}
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def test_who_changes_nothing_gets_tls_and_tokens() -> None:
    """The files of the settings lie in what is mounted of secrets, and nobody probes what speaks TLS without it."""
    container = manifests.only(manifests.pod()["containers"])
    settings = settings_in(container)
    assert settings.keys() >= SECRETS
    secrets = {volume["name"] for volume in manifests.pod()["volumes"] if "secret" in volume}
    mounts = {mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] in secrets}
    assert {str(Path(settings[name]).parent) for name in SECRETS} == mounts
    for probe in PROBES:
        assert container[probe]["exec"] == {"command": ["cutaway-health"]}
        assert "grpc" not in container[probe]
    assert application_protocols(OBJECTS) == {"https"}


def test_only_the_open_variant_is_open() -> None:
    """It differs by what it has not: no TLS, no tokens, no secrets; Kubernetes itself then probes."""
    container = opened_container()
    secured = manifests.only(manifests.pod()["containers"])
    assert settings_in(container) == {k: v for k, v in settings_in(secured).items() if k not in SECRETS}
    [pod] = [each["spec"]["template"]["spec"] for each in OPENED if each["kind"] == "Deployment"]
    assert not [volume for volume in pod["volumes"] if "secret" in volume]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    for probe in PROBES:
        assert "exec" not in container[probe]
    assert application_protocols(OPENED) == {"kubernetes.io/h2c"}


def opened_container() -> dict[str, Any]:
    [pod] = [each["spec"]["template"]["spec"] for each in OPENED if each["kind"] == "Deployment"]
    return dict(manifests.only(pod["containers"]))


def application_protocols(objects: list[dict[str, Any]]) -> set[str]:
    services = (each for each in objects if each["kind"] == "Service")
    return {each["spec"]["ports"][0]["appProtocol"] for each in services}


# Of one mind


def settings_in(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in container["env"] if each["name"].startswith("CUTAWAY_")}


@pytest.mark.parametrize("container", CONTAINERS)
def test_settings_exist_and_are_valid(container: dict[str, Any]) -> None:
    """A mistyped variable would be ignored without a word."""
    fields = {name.removeprefix("CUTAWAY_").lower(): value for name, value in settings_in(container).items()}
    assert set(fields) <= set(Settings.model_fields)
    Settings.model_validate(fields)


def test_the_documentation_names_settings_that_exist() -> None:
    """And metrics too."""
    words = (ROOT / "docs" / "deployment.md").read_text()
    own = {"IMAGE", "MODELS", "PUBLISH"}  # the compose file's, for itself
    assert set(re.findall(r"CUTAWAY_([A-Z_]+)", words)) - own <= {name.upper() for name in Settings.model_fields}
    assert set(re.findall(r"cutaway_[a-z_]+", words)) <= metrics()


def metrics() -> set[str]:
    """The name of every metric that a gateway has."""
    return {family.name for family in Metrics({}).registry.collect()}


def test_the_autoscaler_reads_a_metric_that_exists() -> None:
    scaler = manifests.the("HorizontalPodAutoscaler")["spec"]
    assert manifests.only(scaler["metrics"])["pods"]["metric"]["name"] in metrics()
    assert scaler["scaleTargetRef"]["name"] == manifests.the("Deployment")["metadata"]["name"]
    assert "replicas" not in manifests.the("Deployment")["spec"]


def ports() -> Iterator[int]:
    """Every port that calls are said to come in at."""
    for container in (manifests.only(manifests.pod()["containers"]), manifests.only(manifests.runtime()["containers"])):
        yield from (port["containerPort"] for port in container["ports"] if port["name"] != "metrics")
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        yield opened_container()[probe]["grpc"]["port"]
    for name in ("cutaway", "cutaway-pods"):
        yield manifests.the("Service", name=name)["spec"]["ports"][0]["port"]
    yield int(manifests.compose()["ports"][0].rpartition(":")[2])


def test_one_port_for_calls_and_one_for_metrics() -> None:
    """The image's, everywhere; so it is with the port that metrics are read from."""
    assert set(ports()) == {int(manifests.image().the("EXPOSE").text)}
    container = manifests.only(manifests.pod()["containers"])
    [metrics_port] = [port["containerPort"] for port in container["ports"] if port["name"] == "metrics"]
    assert settings_in(container)["CUTAWAY_METRICS_ADDRESS"] == f"0.0.0.0:{metrics_port}"
    runtime = manifests.runtime()
    assert settings_in(runtime["containers"][0])["CUTAWAY_METRICS_ADDRESS"] == f"0.0.0.0:{metrics_port}"
    assert runtime["annotations"]["prometheus.kserve.io/port"] == str(metrics_port)


def test_every_selector_finds_the_pods() -> None:
    labels = manifests.the("Deployment")["spec"]["template"]["metadata"]["labels"]
    found = [
        manifests.the("Deployment")["spec"]["selector"]["matchLabels"],
        manifests.the("Service")["spec"]["selector"],
        manifests.the("Service", name="cutaway-pods")["spec"]["selector"],
        manifests.the("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        manifests.the("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ]
    assert all(selector.items() <= labels.items() for selector in found)


def test_nobody_is_killed_within_the_grace() -> None:
    """Calls, what answers them and TorchServe may each take CUTAWAY_GRACE_S, after what comes before SIGTERM."""
    container = manifests.only(manifests.pod()["containers"])
    grace = Settings.model_validate({"grace_s": settings_in(container)["CUTAWAY_GRACE_S"]}).grace_s
    before = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert manifests.pod()["terminationGracePeriodSeconds"] > before + 3 * grace
    assert int(manifests.compose()["stop_grace_period"].removesuffix("s")) > 3 * Settings().grace_s


def unit() -> dict[str, list[str]]:
    """The settings of the service of systemd; one may stand several times."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "systemd" / "cutaway.service").read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def test_systemd_runs_the_command_and_waits_for_calls() -> None:
    """Settings exist, SIGTERM reaches the gateway first, and nobody is killed within the grace."""
    variables = dict(each.split("=", 1) for each in unit()["Environment"])
    fields = {
        name.removeprefix("CUTAWAY_").lower(): value for name, value in variables.items() if name.startswith("CUTAWAY_")
    }
    assert set(fields) <= set(Settings.model_fields)
    assert Settings.model_validate(fields).log_dir == Path("/var/log", *unit()["LogsDirectory"])
    [command] = unit()["ExecStart"]
    program, serve, option, store = command.split()
    assert (Path(program).name, serve, option) == ("cutaway", "serve", "--model-store")
    assert Path(store).parent == Path("/var/lib", *unit()["StateDirectory"])
    assert unit()["KillMode"] == ["mixed"]
    assert int(unit()["TimeoutStopSec"][0]) > 3 * Settings().grace_s
    assert "KillSignal" not in unit()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """With a program that is there; any doubt is a line."""
    text = (DEPLOY / "systemd" / "cutaway.service").read_text()
    (tmp_path / "cutaway.service").write_text(text.replace("/opt/cutaway/bin/cutaway", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", tmp_path / "cutaway.service"], capture_output=True, text=True)
    doubts = [line for line in done.stderr.splitlines() if "cutaway" in line]
    assert (done.returncode, doubts) == (0, []), done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a directory of another user")
def test_the_log_is_open_to_the_random_user_of_openshift() -> None:
    """Its number is any, and its group is 0; all others stay outside."""
    [made] = re.findall(r"install (--directory .*?) /var/log/cutaway", manifests.image().all("RUN")[0].text)
    with tempfile.TemporaryDirectory() as directory:  # pytest's own are closed to other users
        Path(directory).chmod(0o755)
        subprocess.run(["install", *made.split(), Path(directory, "log")], check=True)

        def writes(user: int, group: int) -> bool:
            become = f"os.setgroups([]); os.setgid({group}); os.setuid({user})"  # user= would run gRPC's fork handlers
            code = f"import os; {become}; open({str(Path(directory, 'log', str(user)))!r}, 'w')"
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
            assert done.returncode == 0 or "Permission denied" in done.stderr, done
            return done.returncode == 0

        assert writes(1_000_650_000, 0)
        assert writes(10001, 10001)
        assert not writes(65534, 65534)


@pytest.mark.parametrize("objects", [OBJECTS, OPENED], ids=["tls", "open"])
def test_probes_wait_as_long_as_models_may_load(objects: list[dict[str, Any]]) -> None:
    """At the start, and when TorchServe is brought back: until then the pod is not ready, and is not restarted."""
    [pod] = [each["spec"]["template"]["spec"] for each in objects if each["kind"] == "Deployment"]
    container = manifests.only(pod["containers"])
    longest = float(settings_in(container)["CUTAWAY_START_TIMEOUT_S"])
    for name in ("startupProbe", "livenessProbe"):
        assert container[name]["periodSeconds"] * container[name]["failureThreshold"] > longest
