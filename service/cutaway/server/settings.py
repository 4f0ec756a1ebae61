"""Settings of the server, from ``CUTAWAY_...`` environment variables."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from cutaway.contract.errors import Reason, error
from cutaway.contract.values import near_names, url_fault

MEBIBYTE = 1024 * 1024

_PREFIX = "CUTAWAY_"

_OTHERS = {"TOKEN", "IMAGE", "MODELS", "PUBLISH", "WORKERS", "POOL_BYTES", "POOL_IN"}
"""Names of variables of the client, of deploy/compose.yml, and of the gateway for its workers."""

_OF_KUBERNETES = re.compile(r"_SERVICE_(HOST|PORT)|_PORT($|_\d+_)").search
"""A search for the variables that Kubernetes sets for a service whose name begins with ``cutaway``."""


class Settings(BaseSettings):
    """The settings of a gateway and its workers. A field is the environment variable ``CUTAWAY_<NAME>``."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX)

    address: str = Field(
        default="127.0.0.1:50051", description="HOST:PORT of the gateway, or unix:/PATH; port 0 picks a free port."
    )
    max_message_bytes: int = Field(
        default=64 * MEBIBYTE,
        gt=0,
        lt=2**31 - MEBIBYTE,
        description="The largest request, and reply in one message.",
    )
    default_deadline_s: float = Field(default=60.0, gt=0, description="Deadline of calls without one.")
    max_deadline_s: float = Field(
        default=86400.0,
        gt=0,
        le=86400,
        description="The longest that a call may take, whatever its deadline; its error then names this time.",
    )
    receive_timeout_s: float = Field(
        default=60.0, gt=0, le=86400, description="How long a request may take to arrive, and TLS to be agreed on."
    )
    idle_timeout_s: float = Field(
        default=300.0, gt=0, le=86400, description="How long a connection may have no call; clients open a new one."
    )
    start_timeout_s: float = Field(default=180.0, gt=0, description="How long models may take to load.")
    grace_s: float = Field(default=10.0, ge=0, description="How long running calls may finish when the server stops.")
    hang_s: float = Field(
        default=5.0,
        gt=0,
        description="A worker without progress for so long after the latest deadline of its calls is killed and "
        "started again, and so is a TorchServe that replies to nothing. More than the longest call of one module.",
    )
    max_queue_length: int = Field(
        default=256, gt=0, description="The most calls of one model without a reply; more are refused at once."
    )
    max_queue_bytes: int | None = Field(
        default=None,
        gt=0,
        description="The most bytes of all requests without a reply; more are refused at once, and one caller may "
        "have half of them. By default a 24th of the memory that the server may use.",
    )
    engine: Literal["torchserve", "processes", "ray", "embedded"] = Field(
        default="torchserve",
        description="Who starts the workers: TorchServe; cutaway itself, without Java; Ray Serve, on a cluster; or "
        "nobody: the models run in the gateway's process.",
    )
    ray_address: str = Field(
        default="",
        description="The Ray cluster, HOST:PORT, or auto for the one that this machine belongs to; by default, one is "
        "started on this machine.",
    )
    ray_cpus: float = Field(default=1.0, ge=0, description="CPUs of a worker, as Ray counts them; parts of one too.")
    ray_gpus: float = Field(default=0.0, ge=0, description="GPUs of a worker; parts of one too.")
    ray_max_workers: int | None = Field(
        default=None,
        gt=0,
        description="The most workers of a model on Ray; by default, and at least, the number in its archive, or that "
        "of --workers.",
    )
    ray_calls_per_worker: float = Field(
        default=8.0, gt=0, description="Calls under way in a worker, beyond which Ray starts more."
    )
    ray_downscale_delay_s: float = Field(
        default=60.0, ge=0, description="How long fewer workers must be enough before Ray ends one."
    )
    replicas: int = Field(default=1, gt=0, description="TorchServe processes that share the calls.")
    memory_bytes: int | None = Field(
        default=None,
        gt=0,
        description="The memory that the server may use, for models and requests; by default that of the machine, or "
        "of the control group.",
    )
    request_memory_bytes: int | None = Field(
        default=None,
        gt=0,
        description="The most memory for the requests of a worker on a CPU, beyond what it has after loading. By "
        "default a worker has half of its share of the memory, and takes more from a pool of the other halves.",
    )
    max_batch_size: int = Field(default=32, gt=0, description="The most calls in a batch; 1 turns batching off.")
    max_rows: int = Field(default=10_000_000, gt=0, description="The most rows of one request.")
    max_captures: int = Field(default=4096, gt=0, description="The most captures that one request lists.")
    max_attributions: int = Field(default=256, gt=0, description="The most attributions of one request.")
    max_steps: int = Field(
        default=10_000,
        gt=0,
        description="The most steps, or samples, of one attribution, and the most tokens of a generation.",
    )
    max_passes: int = Field(
        default=10_000_000, gt=0, description="The most passes of one row for a request's attributions and checks."
    )
    tls_certificate: Path | None = Field(default=None, description="The gateway's certificate, PEM; default: no TLS.")
    tls_key: Path | None = Field(default=None, description="The private key of the certificate, PEM.")
    tls_client_ca: Path | None = Field(
        default=None, description="Authority of client certificates, PEM; without it, clients need none."
    )
    http_address: str = Field(
        default="",
        description="HOST:PORT, or unix:/PATH, of Connect, gRPC-Web and REST by HTTP; by default they are not served.",
    )
    http_origins: str = Field(
        default="", description="Origins of web pages that may call by HTTP, with commas between them; * for all."
    )
    http_connections: int = Field(
        default=1000, gt=0, description="The most connections by HTTP at once; more are refused at once."
    )
    http_anonymous: bool = Field(
        default=False, description="Serve HTTP beyond this machine although callers need neither token nor certificate."
    )
    tokens: Path | None = Field(default=None, description="The token file, TOML; without it, all callers may do all.")
    proofs_dir: Path | None = Field(
        default=None,
        description="Directory in which the outcomes of tests of models are kept; by default `.proofs` beside the "
        "archives. Where it cannot be written, they are kept until the server stops.",
    )
    idle_tests_s: float = Field(
        default=120.0,
        ge=0,
        description="The time of its processor that a worker spends at most, from its start on, on tests of its model "
        "while nobody calls it. 0: the first callers wait for these tests.",
    )
    log_dir: Path = Field(default=Path("logs"), description="Directory of the log of TorchServe, or of the workers.")
    log_format: Literal["", "json", "text"] = Field(
        default="", description="Format of the log; `cutaway serve` defaults to text on a terminal, else to json."
    )
    log_calls_per_s: int = Field(
        default=100, ge=0, description="The most answered calls in the log in a second; those that fail are all there."
    )
    metrics_address: str = Field(
        default="", description="HOST:PORT, or unix:/PATH, of the Prometheus metrics; by default they are not served."
    )

    @field_validator("tls_certificate", "tls_key", "tls_client_ca", "tokens", "log_dir")
    @classmethod
    def _no_url(cls, path: Path | None) -> Path | None:
        if fault := url_fault(path):
            raise ValueError(fault)
        return path

    def proofs_beside(self, archives: Path) -> Path:
        """Returns the directory of the outcomes of tests of the models in ``archives``."""
        return (self.proofs_dir or archives / ".proofs").absolute()

    @classmethod
    def load(cls) -> Settings:
        """Returns the settings of the environment.

        Raises:
            InvalidArgument: ``INVALID_VALUE``, with the environment variable. One that is no setting is refused: a
                misspelt one would leave a door open that the operator meant to close.
        """
        known = {name.upper() for name in cls.model_fields}
        for variable in sorted(os.environ):
            name = variable.upper().removeprefix(_PREFIX)
            if name == variable.upper() or name in known | _OTHERS or _OF_KUBERNETES(variable):
                continue
            near = near_names(name, known, n=1)
            hint = f"did you mean {_PREFIX}{near[0]}?" if near else f"settings: {', '.join(sorted(known))}"
            raise error(Reason.INVALID_VALUE, f"no such setting; {hint}", variable)
        try:
            return cls()
        except ValidationError as failure:
            first = failure.errors()[0]
            raise error(
                Reason.INVALID_VALUE,
                first["msg"].removeprefix("Value error, "),
                f"{_PREFIX}{str(first['loc'][0]).upper()}",
            ) from None
