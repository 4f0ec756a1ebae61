"""``cutaway package`` and ``serve``: a server's side. torch and Java come in here, and only when called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cutaway.cli import screen, words


def package(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="The name to serve the model under.", show_default=False)
    ],
    adapter: Annotated[
        str,
        typer.Option(metavar="FILE.py:CLASS", help="How the model is built and fed; a cutaway.adapters.Adapter."),
    ],
    weights: Annotated[
        Path | None, typer.Option(metavar="SAFETENSORS", help="The weights, where they are not built in.")
    ] = None,
    version: Annotated[str, typer.Option(metavar="VERSION", help="Which version of the model this is.")] = "1.0",
    option: Annotated[
        list[words.Pair] | None,
        typer.Option(parser=words.pair, metavar="KEY=VALUE", help="A word for the adapter; repeatable."),
    ] = None,
    extra: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="A further file that the adapter reads; repeatable.")
    ] = None,
    batch_size: Annotated[
        int, typer.Option(metavar="N", min=1, help="The most calls that one run of the model takes.")
    ] = 8,
    max_batch_delay: Annotated[
        int, typer.Option(metavar="MS", min=1, help="How many milliseconds a call waits for others to join it.")
    ] = 2,
    workers: Annotated[int, typer.Option(metavar="N", min=1, help="Copies of the model.")] = 1,
    response_timeout: Annotated[
        int, typer.Option(metavar="SECONDS", min=1, help="After how long a worker that does not answer is replaced.")
    ] = 120,
    output: Annotated[Path, typer.Option(metavar="DIR", file_okay=False, help="Where the archive goes.")] = Path("."),
    force: Annotated[bool, typer.Option("--force", help="Replace an archive that is there already.")] = False,
) -> None:
    """Put a model and its adapter into an archive that can be served."""
    with screen.needing("server"):
        from cutaway import packaging
    built = packaging.build(
        model=model,
        version=version,
        adapter=adapter,
        weights=weights,
        options=dict(option or ()),
        extra_files=extra or (),
        batch_size=batch_size,
        max_batch_delay_ms=max_batch_delay,
        workers=workers,
        response_timeout_s=response_timeout,
        destination=output,
        force=force,
    )
    screen.say(f"built {built} ({_size(built.stat().st_size)})")
    screen.say(f"next: cutaway serve --model-store {output}")


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def serve(
    model_store: Annotated[
        Path | None,
        typer.Option(metavar="DIR", exists=True, file_okay=False, help="The directory with the archives (.mar)."),
    ] = None,
    behind: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT,...", help="Front doors to share the calls among, in place of a model store."),
    ] = None,
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 picks a free one.")
    ] = None,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="Run the models in this process, without TorchServe and Java.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Copies of each model, in place of what its archive says.")
    ] = None,
    replicas: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="TorchServes that share the calls, each with its workers.")
    ] = None,
    log_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="Where TorchServe's log goes.")] = None,
) -> None:
    """Serve every model in a directory until stopped (Ctrl-C).

    Prints "ready: HOST:PORT" when a first call has passed. Every further setting is an environment variable,
    CUTAWAY_...; an option here wins.
    """
    if embedded and (workers or replicas):
        raise typer.BadParameter("models in this process have no workers and no TorchServe; leave out one option")
    with screen.needing("server" if model_store else "door"):
        from cutaway.gateway.run import run
        from cutaway.settings import Settings

        if model_store is not None:
            screen.look_for("torch", "captum", *(() if embedded else ("ts",)))
    options = {"address": address, "behind": behind, "replicas": replicas, "log_dir": log_dir}
    given = {name: value for name, value in options.items() if value is not None}
    settings = Settings.load().model_copy(update=given)
    if (model_store is None) == (not settings.behind):
        raise typer.BadParameter(
            "name either a model store (--model-store) or the front doors behind this one (--behind)"
        )
    status = run(model_store, settings, embedded=embedded, workers=workers, announce=screen.say)
    raise typer.Exit(status)
