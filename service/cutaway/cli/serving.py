"""``cutaway package`` and ``serve``: the server side. A command imports torch and starts Java when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich import filesize

from cutaway.cli import console_output, documents, json_output, short_forms
from cutaway.cli.json_output import AsJson


def package(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="The name to serve the model under.", show_default=False)
    ],
    adapter: Annotated[
        str,
        typer.Option(
            metavar="FILE.py:CLASS",
            help="The class that builds the model and decodes its inputs, a cutaway.adapters.Adapter.",
        ),
    ],
    weights: Annotated[
        Path | None, typer.Option(metavar="SAFETENSORS", help="The weights, unless the adapter has them.")
    ] = None,
    version: Annotated[str, typer.Option(metavar="VERSION", help="The version of the model.")] = "1.0",
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="An option for the adapter; repeatable."),
    ] = None,
    extra: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Another file that the adapter reads; repeatable.")
    ] = None,
    batch_size: Annotated[int, typer.Option(metavar="N", min=1, help="The largest batch of calls.")] = 8,
    max_batch_delay: Annotated[
        int,
        typer.Option(metavar="MS", min=1, help="How long a call waits for others to form a batch, in milliseconds."),
    ] = 2,
    workers: Annotated[int, typer.Option(metavar="N", min=1, help="The number of copies of the model.")] = 1,
    response_timeout: Annotated[
        int, typer.Option(metavar="SECONDS", min=1, help="A worker that does not reply within this time is replaced.")
    ] = 120,
    output: Annotated[Path, typer.Option(metavar="DIR", file_okay=False, help="The directory for the archive.")] = Path(
        "."
    ),
    force: Annotated[bool, typer.Option("--force", help="Replace an existing archive.")] = False,
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Allow parameters that the adapter neither loads nor seeds.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Build an archive from a model and its adapter, and try whether it loads."""
    with console_output.requires_extra("server"):
        from cutaway.archive import builder
        from cutaway.worker.trial import load_once
    archive = builder.build(
        model=model,
        version=version,
        adapter=adapter,
        weights=weights,
        options=dict(map(short_forms.pair, option or ())),
        extra_files=extra or (),
        batch_size=batch_size,
        max_batch_delay_ms=max_batch_delay,
        workers=workers,
        response_timeout_s=response_timeout,
        destination=output,
        force=force,
        random_weights=random_weights,
        check=json_output.own_stdout(as_json)(load_once),
    )
    if as_json:
        json_output.print_json(documents.Package(archive, archive.stat().st_size))
        return
    console_output.print_line(f"built {archive} ({filesize.decimal(archive.stat().st_size)})")
    console_output.print_line(f"next: cutaway serve --model-store {output}")


def serve(
    model_store: Annotated[
        Path, typer.Option(metavar="DIR", exists=True, file_okay=False, help="The directory with the archives (.mar).")
    ],
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The address to listen on; port 0 is any free port.")
    ] = None,
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Also serve HTTP: Connect, gRPC-Web and REST.")
    ] = None,
    engine: Annotated[
        Literal["torchserve", "processes", "ray", "embedded"] | None,
        typer.Option(
            help="Who starts the workers: TorchServe (the default); cutaway itself, without Java (processes); Ray "
            "Serve, on a cluster (ray); or nobody: the models run in this process (embedded)."
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Copies of each model, in place of the number in its archive."),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="The number of TorchServe processes to balance calls across, each with its workers.",
        ),
    ] = None,
    log_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The directory for the log of TorchServe, or of the workers.")
    ] = None,
) -> None:
    """Serve every model in a directory until stopped (Ctrl-C).

    Prints "ready: HOST:PORT" after a first call has succeeded. All other settings are environment variables,
    CUTAWAY_...; options take precedence over them.
    """
    with console_output.requires_extra("server"):
        from cutaway.config.settings import Settings
        from cutaway.gateway.application import run
    options = {"address": address, "http_address": http, "engine": engine, "replicas": replicas, "log_dir": log_dir}
    overrides = {name: value for name, value in options.items() if value is not None}
    settings = Settings.load().model_copy(update=overrides)
    if settings.engine == "embedded" and workers:
        raise typer.BadParameter("the engine 'embedded' has no workers; leave out --workers")
    if settings.engine != "torchserve" and settings.replicas > 1:
        raise typer.BadParameter("only the engine 'torchserve' has replicas; leave out --replicas")
    with console_output.requires_extra("server"):
        console_output.find_packages("torch", "captum", *(["ts"] if settings.engine == "torchserve" else []))
    if settings.engine == "ray":
        with console_output.requires_extra("ray"):
            console_output.find_packages("ray", "cryptography")
    if settings.http_address:
        with console_output.requires_extra("http"):
            console_output.find_packages("starlette", "uvicorn", "connectrpc")
    run(model_store, settings, workers=workers, announce=console_output.print_line)
