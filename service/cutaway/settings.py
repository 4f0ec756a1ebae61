"""Settings of the server, from ``CUTAWAY_...`` environment variables and from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from cutaway.errors import Reason, error

MEBIBYTE = 1024 * 1024


class Settings(BaseSettings):
    """What an operator can set. Every field is also the environment variable ``CUTAWAY_<NAME>``."""

    model_config = SettingsConfigDict(env_prefix="CUTAWAY_")

    address: str = Field(
        default="127.0.0.1:50051", description="Where the front door listens; port 0 picks a free one."
    )
    max_message_bytes: int = Field(
        default=64 * MEBIBYTE, gt=0, lt=2**31 - MEBIBYTE, description="The largest request, and reply in one message."
    )
    default_deadline_s: float = Field(default=60.0, gt=0, description="For calls that come without a deadline.")
    start_timeout_s: float = Field(default=180.0, gt=0, description="How long models may take to load.")
    grace_s: float = Field(default=10.0, ge=0, description="How long running calls may finish when the server stops.")
    queue: int = Field(default=256, gt=0, description="Calls that may wait for one model; more are refused at once.")
    replicas: int = Field(
        default=1, gt=0, description="TorchServes that share the calls; where one ends, the others go on."
    )
    behind: str = Field(
        default="", description="Front doors that share the calls, HOST:PORT,...; this one then runs no models itself."
    )
    behind_token: str | None = Field(default=None, description="The token that they want, if any.", repr=False)
    behind_ca: Path | None = Field(
        default=None, description="Whose certificates they are trusted by, PEM; None: they are called in plaintext."
    )
    batch: int = Field(default=32, gt=0, description="Calls that a model takes at once at most; 1 is one by one.")
    max_rows: int = Field(default=10_000_000, gt=0, description="The most examples of one request.")
    max_captures: int = Field(default=4096, gt=0, description="The most captures that one request lists.")
    max_attributions: int = Field(default=256, gt=0, description="The most explanations of one request.")
    max_steps: int = Field(default=10_000, gt=0, description="The most steps, or samples, of one explanation.")
    max_passes: int = Field(
        default=10_000_000,
        gt=0,
        description="The most passes that the explanations of one request may take, checks included, each example "
        "counted.",
    )
    tls_certificate: Path | None = Field(default=None, description="The front door's certificate, PEM; None: no TLS.")
    tls_key: Path | None = Field(default=None, description="The private key of the certificate, PEM.")
    tls_client_ca: Path | None = Field(
        default=None, description="Whose certificates callers must show one of, PEM; None: they show none."
    )
    tokens: Path | None = Field(default=None, description="Who may do what, TOML; None: everybody may do everything.")
    log_dir: Path = Field(default=Path("logs"), description="Where TorchServe's log goes.")
    log_format: Literal["", "json", "text"] = Field(
        default="", description="How each call is logged; `cutaway serve` picks by where its standard error goes."
    )
    metrics_address: str = Field(
        default="", description="Where Prometheus may read metrics over HTTP, as HOST:PORT; nowhere by default."
    )

    @classmethod
    def load(cls) -> Settings:
        """The settings that the environment asks for.

        Raises:
            InvalidArgument: ``INVALID_VALUE``, with the variable at fault.
        """
        try:
            return cls()
        except ValidationError as failure:
            first = failure.errors()[0]
            raise error(Reason.INVALID_VALUE, first["msg"], f"CUTAWAY_{str(first['loc'][0]).upper()}") from None
