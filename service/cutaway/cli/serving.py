"""``cutaway package`` and ``serve``: the server side. A command imports torch and starts Java when it is called."""

from __future__ import annotations

import hashlib
import json
import keyword
import secrets
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from enum import Enum
from pathlib import Path
from string import Template
from typing import Annotated, Literal

import typer
from rich import filesize

from cutaway.cli import console_output, short_forms
from cutaway.cli.console_output import AsJson, argument, flag, option, print_line
from cutaway.server.archive.reader import name_fault

# ``cutaway new``

_STARTS = Path(__file__).with_name("starts")

app = typer.Typer(help="Write a start for an adapter.", no_args_is_help=True, rich_markup_mode=None)


class InputKind(str, Enum):
    """The kind of a model's inputs."""

    TABLE = "table"
    IMAGE = "image"
    TEXT = "text"


@app.callback()
def _group() -> None:
    """Makes ``adapter`` a command of its own, although it is the only one."""


@app.command()
def adapter(
    name: Annotated[str, argument("NAME", "The name of the model.")],
    kind: Annotated[InputKind, typer.Option(help="What the model takes.")] = InputKind.TABLE,
    output: Annotated[Path, option("DIR", "The directory for the file.", file_okay=False)] = Path("."),
) -> None:
    """Write an adapter that runs at once, with marks where to change it."""
    if fault := name_fault(name):
        raise typer.BadParameter(fault, param_hint="NAME")
    words = [word for word in name.replace("-", "_").replace(".", "_").split("_") if word]
    module, title = "_".join(words).lower() + "_adapter", "".join(word.capitalize() for word in words)
    if not title.isidentifier() or keyword.iskeyword(title):
        raise typer.BadParameter(f"{name!r} makes no name of a class; begin with a letter", param_hint="NAME")
    file = output / f"{module}.py"
    text = Template((_STARTS / f"{kind.value}.txt").read_text("utf-8"))
    output.mkdir(parents=True, exist_ok=True)
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text.substitute(name=name, Name=title, file=file.name))
    except FileExistsError:
        raise typer.BadParameter(f"{file} exists already, and is left as it is", param_hint="NAME") from None
    console_output.print_line(f"written {file}")
    console_output.print_line(f"next: cutaway package {name} --adapter {file}:{title} --output models")


def package(
    model: Annotated[str, argument("MODEL", "The name to serve the model under.")],
    adapter: Annotated[
        str | None,
        option("FILE.py:CLASS", "The class that builds the model and decodes its inputs, a cutaway.adapters.Adapter."),
    ] = None,
    transformers: Annotated[
        Path | None,
        option("DIR", "Instead of an adapter: a language model, as save_pretrained wrote it.", file_okay=False),
    ] = None,
    weights: Annotated[Path | None, option("SAFETENSORS", "The weights, unless the adapter has them.")] = None,
    version: Annotated[str, option("VERSION", "The version of the model.")] = "1.0",
    option: Annotated[list[str] | None, option("KEY=VALUE", "An option for the adapter; repeatable.")] = None,
    extra: Annotated[list[Path] | None, option("PATH", "Another file or folder for the adapter; repeatable.")] = None,
    matrix: Annotated[
        list[str] | None,
        option("NAME=PATH", "A matrix for ca.Project(NAME): a safetensors file, or a folder of SAE Lens; repeatable."),
    ] = None,
    data_set: Annotated[
        list[str] | None,
        option(
            "NAME=PATH",
            "Examples for concepts and influence: a safetensors file, texts (.txt) or a folder; repeatable.",
        ),
    ] = None,
    checkpoint: Annotated[
        list[str] | None,
        option("RATE=PATH", "A learning rate of the training, and the weights then, for influence; repeatable."),
    ] = None,
    batch_size: Annotated[int, option("N", "The largest batch of calls.", min=1)] = 8,
    max_batch_delay: Annotated[
        int, option("MS", "How long a call waits for others to form a batch, in milliseconds.", min=1)
    ] = 2,
    workers: Annotated[int, option("N", "The number of copies of the model.", min=1)] = 1,
    response_timeout: Annotated[
        int, option("SECONDS", "A worker that does not reply within this time is replaced.", min=1)
    ] = 120,
    output: Annotated[Path, option("DIR", "The directory for the archive.", file_okay=False)] = Path("."),
    force: Annotated[bool, flag("force", "Replace an existing archive.")] = False,
    random_weights: Annotated[
        bool, flag("random-weights", "Allow parameters that the adapter neither loads nor seeds.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Build an archive from a model and its adapter, and try whether it loads."""
    if (adapter is None) == (transformers is None):
        raise typer.BadParameter("name either an adapter or a directory of transformers", param_hint="--adapter")
    if transformers and weights:
        raise typer.BadParameter("the weights are in the directory of transformers", param_hint="--weights")
    with console_output.requires_extra("server"):
        console_output.find_packages("model_archiver")
        from cutaway.server.archive import builder
        from cutaway.server.worker.process import load_once
    matrices, data_sets = _paths(matrix, "matrices", "--matrix"), _paths(data_set, "data sets", "--data-set")
    rates = [short_forms.pair(each) for each in checkpoint or ()]
    if not all(_is_number(rate) for rate, _ in rates):
        raise typer.BadParameter("begin with the learning rate: 0.1=PATH", param_hint="--checkpoint")
    if transformers:
        weights, found = builder.of_transformers(transformers)
        extra = [*(extra or ()), *found]
    with console_output.threads_of_models():
        archive = builder.build(
            model=model,
            version=version,
            adapter=adapter or builder.CAUSAL_LM,
            weights=weights,
            options=dict(map(short_forms.pair, option or ())),
            extra_files=extra or (),
            matrices=matrices,
            data_sets=data_sets,
            checkpoints=[(float(rate), Path(path)) for rate, path in rates],
            batch_size=batch_size,
            max_batch_delay_ms=max_batch_delay,
            workers=workers,
            response_timeout_s=response_timeout,
            destination=output,
            force=force,
            random_weights=random_weights,
            check=console_output.own_stdout(as_json)(load_once),
        )
    if as_json:
        console_output.print_json(console_output.Package(archive, archive.stat().st_size))
        return
    console_output.print_line(f"built {archive} ({filesize.decimal(archive.stat().st_size)})")
    console_output.print_line(f"next: cutaway serve --model-store {output}")


def _paths(given: list[str] | None, what: str, option: str) -> dict[str, Path]:
    pairs = [short_forms.pair(each) for each in given or ()]
    if len({name for name, _ in pairs}) < len(pairs):
        raise typer.BadParameter(f"two {what} have one name", param_hint=option)
    return {name: Path(path) for name, path in pairs}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def serve(
    model_store: Annotated[
        Path, option("DIR", "The directory with the archives (.mar).", exists=True, file_okay=False)
    ],
    address: Annotated[
        str | None, option("HOST:PORT", "The address to listen on, or unix:/PATH; port 0 is any free port.")
    ] = None,
    http: Annotated[
        str | None, option("HOST:PORT", "Also serve HTTP there, or at unix:/PATH: Connect, gRPC-Web and REST.")
    ] = None,
    engine: Annotated[
        Literal["torchserve", "processes", "ray", "embedded"] | None,
        typer.Option(
            help="Who starts the workers: TorchServe (the default); cutaway itself, without Java (processes); Ray "
            "Serve, on a cluster (ray); or nobody: the models run in this process (embedded)."
        ),
    ] = None,
    workers: Annotated[
        int | None, option("N", "Copies of each model, in place of the number in its archive.", min=1)
    ] = None,
    replicas: Annotated[
        int | None,
        option("N", "The number of TorchServe processes to balance calls across, each with its workers.", min=1),
    ] = None,
    log_dir: Annotated[
        Path | None, option("DIR", "The directory for the log of TorchServe, or of the workers.")
    ] = None,
) -> None:
    """Serve every model in a directory until stopped (Ctrl-C).

    Prints "ready: HOST:PORT" to stdout after a first call has succeeded. The log goes to stderr: text on a terminal,
    else JSON. All other settings are environment variables, CUTAWAY_...; options take precedence over them.
    """
    with console_output.requires_extra("server"):
        from cutaway.server.application import run
        from cutaway.server.settings import Settings
    options = {"address": address, "http_address": http, "engine": engine, "replicas": replicas, "log_dir": log_dir}
    overrides = {name: value for name, value in options.items() if value is not None}
    settings = Settings.load().model_copy(update=overrides)
    if settings.engine == "embedded" and workers:
        raise typer.BadParameter("the engine 'embedded' has no workers; leave out --workers")
    if settings.engine != "torchserve" and settings.replicas > 1:
        raise typer.BadParameter("only the engine 'torchserve' has replicas; leave out --replicas")
    with_torchserve = settings.engine == "torchserve"
    with console_output.requires_extra("server" if with_torchserve else "local"):
        console_output.find_packages("torch", "captum", *(["ts"] if with_torchserve else []))
    if settings.engine == "ray":
        with console_output.requires_extra("ray"):
            console_output.find_packages("ray", "cryptography")
    if settings.http_address:
        with console_output.requires_extra("http"):
            console_output.find_packages("starlette", "uvicorn", "connectrpc")
    with console_output.threads_of_models():
        run(model_store, settings, workers=workers, announce=console_output.print_line)


# ``cutaway token``

_SCOPES = ("predict", "inspect", "edit")


def _split(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def _check_scopes(text: str) -> str:
    if not _split(text) or not set(_split(text)) <= set(_SCOPES):
        raise typer.BadParameter(f"{text!r} must be one or several of {', '.join(_SCOPES)}, with commas between them")
    return text


def token(
    name: Annotated[str, argument("NAME", "The name of the token's holder.")],
    models: Annotated[str, option("NAME,...", "The models that the token is for; '*' is all of them.")],
    scopes: Annotated[
        str, option("SCOPE,...", "What the token allows: predict, inspect, edit.", callback=_check_scopes)
    ] = "predict",
    days: Annotated[
        float | None, option("N", "After how many days the token expires; never by default.", min=0)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a token: the token is printed to stderr, its entry for the token file to stdout; with --json, both to
    stdout.

    For example: cutaway token dashboard --models digits --scopes predict,inspect >> tokens.toml
    """
    secret = secrets.token_urlsafe(32)
    entry = list(_entry(name, secret, _split(models), _split(scopes), days))
    if as_json:
        console_output.print_json(console_output.Token(secret, "\n".join(entry)))
        return
    for line in entry:
        print_line(line)
    typer.echo(secret, err=True)


def _entry(name: str, secret: str, models: Sequence[str], scopes: Sequence[str], days: float | None) -> Iterator[str]:
    """Yields the lines of the token's entry; of the token itself they have only the SHA-256."""
    yield f"[tokens.{_string(name)}]"
    yield f"sha256 = {_string(hashlib.sha256(secret.encode()).hexdigest())}"
    yield f"models = {{ {', '.join(f'{_string(model)} = {_strings(scopes)}' for model in models)} }}"
    if days is not None:
        expiry = datetime.now(timezone.utc) + timedelta(days=days)
        yield f"expires = {expiry.isoformat(timespec='seconds')}"


def _string(text: str) -> str:
    return json.dumps(text)  # a JSON string is also a TOML string


def _strings(texts: Sequence[str]) -> str:
    return f"[{', '.join(map(_string, texts))}]"
