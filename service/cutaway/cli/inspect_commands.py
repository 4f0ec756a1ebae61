"""``cutaway models``, ``layers``, ``inspect``, ``generate`` and ``verify``: requests to a server."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import wraps
from inspect import Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from cutaway.cli import console_output, files, model_tables, short_forms
from cutaway.cli.console_output import EXISTING_FILE, AsJson, argument, flag, option
from cutaway.cli.files import permalink
from cutaway.cli.short_forms import RequestFile
from cutaway.client.client import Client
from cutaway.client.trust import Tls
from cutaway.contract.errors import DeadlineExceeded, Reason, Unavailable, error
from cutaway.contract.requests import (
    Attack,
    Attribution,
    Capture,
    CheckMode,
    Edit,
    ExplainIf,
    Generate,
    InspectRequest,
    Sweep,
)
from cutaway.contract.results import InspectResult, ModelDetail
from cutaway.contract.results.comparison import Comparison, compare
from cutaway.contract.results.document import MAX_VALUES
from cutaway.contract.tensors import Array
from cutaway.views import tables
from cutaway.views.inspection import Inspection

# Options for the connection to a server: address, timeout, token and TLS.


def with_client(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of `_connect` to a command, whose first argument is the client that they connect."""
    _, *own = signature(command, eval_str=True).parameters.values()
    options = signature(_connect, eval_str=True).parameters

    @wraps(command)
    def run(**arguments: Any) -> None:
        with _connect(**{name: arguments.pop(name) for name in options}) as client:
            command(client, **arguments)

    run.__signature__ = Signature([*own, *options.values()])  # type: ignore[attr-defined]  # what typer reads
    return run


@contextmanager
def _connect(
    address: Annotated[str, option("HOST:PORT", "The server's address.", envvar="CUTAWAY_ADDRESS")] = "127.0.0.1:50051",
    timeout: Annotated[float, option("SECONDS", "How long to wait for the reply.")] = 60.0,
    token: Annotated[
        str | None,
        option(
            "TOKEN",
            "The caller's token. Other users of this machine can read it here, but not in the environment.",
            envvar="CUTAWAY_TOKEN",
        ),
    ] = None,
    tls: Annotated[bool, flag("tls", "Connect with TLS; the system's certificates verify the server.")] = False,
    ca: Annotated[
        Path | None, option("PEM", "Connect with TLS; these certificates verify the server.", **EXISTING_FILE)
    ] = None,
    certificate: Annotated[
        Path | None, option("PEM", "The client's certificate, for mutual TLS.", **EXISTING_FILE)
    ] = None,
    key: Annotated[Path | None, option("PEM", "The private key of --certificate.", **EXISTING_FILE)] = None,
) -> Iterator[Client]:
    """Yields a client; if no server replies, or not in time, the error says what to do. Each file implies ``--tls``."""
    trusted = Tls(ca, certificate, key) if ca or certificate or key else tls
    try:
        with Client(address, timeout=timeout, token=token or None, tls=trusted) as client:
            yield client
    except Unavailable as failure:
        if failure.reason != Reason.SERVER_UNREACHABLE:
            raise
        advice = "start one with: cutaway serve --model-store DIR"
        raise error(Reason.SERVER_UNREACHABLE, f"{failure.message}; {advice}") from None
    except DeadlineExceeded as failure:
        message = f"no reply within {timeout:g} s ({failure.message}); --timeout waits longer"
        raise DeadlineExceeded(failure.reason, message) from None


Model = Annotated[str, argument("MODEL", "The model's name, or NAME/versions/VERSION.")]


@with_client
def models(client: Client, as_json: AsJson = False) -> None:
    """List the models that a server serves."""
    with console_output.waiting("waiting for the server"):
        names, unserved = client.list_models(), client.list_unserved()
    if as_json:
        console_output.print_json(console_output.Models(tuple(names), tuple(unserved)))
        return
    table = tables.empty_table("Models", "name", "version", folds=("name",))
    for name in names:
        table.add_row(Text(name.model), Text(name.version))
    console_output.print_blocks(table)
    if unserved:
        table = tables.empty_table("Not served", "archive", "state", "why", folds=("why",))
        for item in unserved:
            table.add_row(Text(item.archive), item.state, Text(item.message))
        console_output.print_blocks(table)


@with_client
def layers(
    client: Client,
    model: Model,
    depth: Annotated[int | None, option("N", "The number of levels of modules to show.", min=0)] = None,
    expand: Annotated[bool, flag("all", "Show each of several equal modules.")] = False,
    ops: Annotated[
        bool, flag("ops", "Also show the operators inside modules: functions and operators that are not modules.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a model's inputs and outputs and its module tree.

    Captures, edits and layers of attributions take the names of modules and operators as they are shown. The JSON
    document has every module, whatever --depth and --all say.
    """
    with console_output.waiting("waiting for the server"):
        detail = client.get_model(model, operators=ops)
    if as_json:
        console_output.print_json(detail, ModelDetail)
        return
    tree = model_tables.Tree(detail, depth, expand)
    console_output.print_blocks(
        model_tables.summary(detail),
        model_tables.ModuleTable(tree),
        *([model_tables.operator_table(tree)] if ops else []),
    )


def _check_suffix(path: Path | None) -> Path | None:
    if path and path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise typer.BadParameter(f"{path.name} must end with .png, .svg or .pdf")
    return path


@with_client
def inspect(
    client: Client,
    model: Model,
    inputs: Annotated[
        list[Path] | None,
        argument(
            "INPUT", "Images or text files, one per example; or tensors, .npz or .npy, batch first.", **EXISTING_FILE
        ),
    ] = None,
    text: Annotated[list[str] | None, option("TEXT", "A text, in place of a file; repeatable.")] = None,
    name: Annotated[list[str] | None, option("NAME", "The input name of a .npy file; repeatable.")] = None,
    request: Annotated[
        RequestFile | None,
        option(
            "FILE",
            "A YAML file with fields of the request (see below); - is standard input. Options add to it.",
            parser=short_forms.read_request_file,
        ),
    ] = None,
    capture: Annotated[
        list[Capture] | None,
        option(
            "WHERE[@POINT,...][,KEY=VALUE...]",
            "Tensors that hooks see. WHERE is a module's name, an operator's address (see `layers --ops`) or a "
            "glob; a POINT is input, output, grad_input or grad_output; repeatable.",
            parser=short_forms.capture,
        ),
    ] = None,
    input_gradient: Annotated[bool, flag("input-gradient", "The gradient at every input.")] = False,
    edit: Annotated[
        list[Edit] | None,
        option(
            "EDIT:WHERE[@POINT][,KEY=VALUE...]",
            "A change to the values of a module, such as zero:conv1 or scale:fc@grad_input,factor=0.5; "
            "repeatable, in the order applied.",
            parser=short_forms.edit,
            autocompletion=short_forms.edits,
        ),
    ] = None,
    compare: Annotated[bool, flag("compare", "Also show what the model predicts without the edits.")] = False,
    attribution: Annotated[
        list[Attribution] | None,
        option(
            "METHOD[:LAYER][,KEY=VALUE...]",
            "An attribution, such as Saliency or LayerGradCam:conv2,relu=true; repeatable.",
            parser=short_forms.attribution,
            autocompletion=short_forms.methods,
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        option(
            "CLASS",
            "The class that gradients and attributions are about, in place of the predicted class: its index or "
            "its label; repeated, one for each example. Also the name of a target, such as sum.",
        ),
    ] = None,
    explain_if: Annotated[
        ExplainIf | None,
        option(
            "KEY=VALUE[,KEY=VALUE...]",
            "Attributions only for examples whose prediction meets every condition: probability_at_least=0.5, "
            "probability_at_most=0.9, classes=[3,5].",
            parser=short_forms.explain_if,
        ),
    ] = None,
    check: Annotated[
        CheckMode | None,
        option(
            "MODE",
            "How attributions are compared with what raw hooks see: off, same_pass (default) or independent.",
            case_sensitive=False,
        ),
    ] = None,
    no_predictions: Annotated[bool, flag("no-predictions", "Leave the predictions out of the reply.")] = False,
    generate: Annotated[
        Generate | None,
        option(
            "TOKENS[,KEY=VALUE...]",
            "Write so many tokens behind each text, such as 40,temperature=0.8; for language models.",
            parser=short_forms.generate,
        ),
    ] = None,
    sweep: Annotated[
        Sweep | None,
        option(
            "MODULE[,KEY=VALUE...]",
            "The target for each of a grid of patches: 'transformer.h.*,axis=1' puts what the first example has at "
            "each place of each module into all others.",
            parser=short_forms.sweep,
        ),
    ] = None,
    attack: Annotated[
        list[Attack] | None,
        option(
            "ATTACK[,KEY=VALUE...]",
            "A change of the inputs that raises the loss of the target, such as fgsm,epsilon=0.03 or "
            "pgd,radius=0.1,lower_bound=0; repeatable.",
            parser=short_forms.attack,
        ),
    ] = None,
    agreement: Annotated[bool, flag("agreement", "Compare each pair of attributions of the same places.")] = False,
    seed: Annotated[int | None, option("NUMBER", "The seed of what draws random numbers.", min=0)] = None,
    reply_dtype: Annotated[
        str | None,
        option(
            "TYPE",
            "The data type for floating tensors of the reply, such as float16, except captures with their own.",
            parser=short_forms.floating_type,
            show_default=False,
        ),
    ] = None,
    compress: Annotated[bool, flag("compress", "Compress the tensors of the reply with zstd.")] = False,
    dry_run: Annotated[bool, flag("dry-run", "Only estimate the tensors and the size of the reply.")] = False,
    plot: Annotated[Path | None, option("FILE", "Draw the result: .png, .svg or .pdf.", callback=_check_suffix)] = None,
    save: Annotated[Path | None, option("NPZ", "Save every tensor of the result.")] = None,
    web: Annotated[
        str | None,
        option(
            "URL",
            "Open the question in the inspector, the page that `cutaway serve --http` has: http://127.0.0.1:8080.",
        ),
    ] = None,
    as_json: AsJson = False,
    max_values: Annotated[
        int, option("N", "The largest tensor whose values --json prints, in elements; 0 prints none.", min=0)
    ] = MAX_VALUES,
) -> None:
    """Run a model on inputs and inspect it.

    Shows the prediction and, where requested, captured tensors, gradients, and attributions with their checks.
    """
    for output in (plot, save):
        if output and any(path.exists() and output.exists() and path.samefile(output) for path in inputs or ()):
            raise typer.BadParameter(f"{output} is an input and would be overwritten", param_hint="--plot, --save")
    base = request.request if request else InspectRequest(model)
    combined = replace(
        base,
        model=model,
        target=short_forms.target(target) if target else base.target,
        captures=(*base.captures, *(capture or ())),
        input_gradients=() if input_gradient else base.input_gradients,
        edits=(*base.edits, *(edit or ())),
        compare=compare or base.compare,
        attributions=(*base.attributions, *(attribution or ())),
        explain_if=explain_if or base.explain_if,
        check=replace(base.check, mode=check or base.check.mode),
        omit_predictions=no_predictions or base.omit_predictions,
        generate=generate or base.generate,
        sweep=sweep or base.sweep,
        attacks=(*base.attacks, *(attack or ())),
        agreement=agreement or base.agreement,
        seed=base.seed if seed is None else seed,
        reply_data_type=reply_dtype or base.reply_data_type,
        compression="zstd" if compress else base.compression,
        dry_run=dry_run or base.dry_run,
    )
    if combined.dry_run and (plot or save):
        raise typer.BadParameter("a dry run has no tensors to draw or save", param_hint="--dry-run")
    if combined.compare and not combined.edits:
        raise typer.BadParameter("without an --edit there is nothing to compare", param_hint="--compare")
    combined = replace(combined, **_inputs(client, model, inputs or [], text or [], name or []))
    located = request.locating(combined) if request else nullcontext()
    with console_output.waiting(f"inspecting {model}") as show, located:
        result = client.ask(combined, progress=show or False)
    if as_json:
        console_output.print_json(result, InspectResult, max_values=max_values)
    else:
        console_output.print_blocks(*tables.result_tables(result))
    if plot:
        _draw(result, combined.tensors or files.decode_image(combined.raw[0]), plot)
        console_output.print_line(f"drew {plot}", to_stderr=as_json)
    if save:
        console_output.print_line(f"saved {files.save(result, save)} tensors to {save}", to_stderr=as_json)
    if web:
        link = permalink(web, combined)
        console_output.print_line(link, to_stderr=as_json)
        webbrowser.open(link)


def _inputs(client: Client, model: str, paths: list[Path], texts: list[str], names: list[str]) -> dict[str, Any]:
    """Returns the fields of the request that hold the inputs."""
    if not (paths or texts):
        raise typer.BadParameter("give a file or --text", param_hint="INPUT")
    if files.are_tensors(paths, texts):
        return {"tensors": files.read_tensors(paths, names, lambda: client.get_model(model))}
    return {"raw": tuple(files.read_raw(paths, texts))}


def _draw(result: InspectResult, tensors: Mapping[str, Array], path: Path) -> None:
    from cutaway.views import plots

    try:
        with console_output.requires_extra("cli"):
            plots.figure(result, tensors).savefig(path, dpi=plots.DOTS_PER_INCH)
    except OSError as failure:
        raise error(Reason.INVALID_VALUE, f"{path} cannot be written: {failure.strerror}", "plot") from None


# ``cutaway generate``


@with_client
def generate(
    client: Client,
    model: Annotated[str, argument("MODEL", "A language model.")],
    text: Annotated[str, argument("TEXT", "The text to write behind.")],
    tokens: Annotated[
        Generate | None,
        option(
            "TOKENS[,KEY=VALUE...]",
            "How many tokens to write, 40 by default, and how they are drawn: 40,temperature=0.8,top_p=0.95.",
            parser=short_forms.generate,
        ),
    ] = None,
    edit: Annotated[
        list[Edit] | None,
        option(
            "EDIT:WHERE[,KEY=VALUE...]",
            "A change inside the model while it writes, such as scale:transformer.h.6,factor=0.5; repeatable.",
            parser=short_forms.edit,
        ),
    ] = None,
    seed: Annotated[int | None, option("NUMBER", "The seed of the draws.", min=0)] = None,
) -> None:
    """Write tokens behind a text, and print each as it comes.

    The last line, on standard error, says why the text ended, and whether its replay agrees.
    """
    with client.inspect_stream(model, text, generate=tokens or 40, edits=edit or (), seed=seed) as stream:
        for token in stream.tokens():
            typer.echo("".join(map(_shown, token.text)), nl=False)
        typer.echo()
        result = stream.result()
    verdict = "" if result.replay is None else f", replay {result.replay.verdict.value}"
    console_output.print_line(f"{result.finish_reasons[0].value}{verdict}", to_stderr=True)


def _shown(character: str) -> str:
    """Returns a character that does nothing to a terminal."""
    return character if character.isprintable() or character in "\n\t" else "\ufffd"


# ``cutaway verify``

_SHOWN = 20
"""The most differences that are listed for people."""


@with_client
def verify(
    client: Client,
    file: Annotated[Path, argument("FILE", "A stored explanation.", **EXISTING_FILE)],
    offline: Annotated[bool, flag("offline", "Check only the file: that it is whole, and unchanged.")] = False,
    as_json: AsJson = False,
) -> None:
    """Ask a stored question again: is the answer still the same?

    Exits with status 7 if predictions, captures, gradients, attributions or verdicts differ by more than the rounding
    of their types, and says what has changed: the weights, the software, the device.
    """
    stored = Inspection.load(file)
    comparison = None
    if not offline:
        request = stored.request
        if request.seed is None:  # the one that was drawn
            request = replace(request, seed=stored.provenance.seed)
        with console_output.waiting("waiting for the server"):
            comparison = compare(stored, client.ask(request))
    if as_json:
        console_output.print_json(console_output.Verification(file, stored.request.model, comparison))
    else:
        _print(file, stored, comparison)
    if comparison is not None and not comparison.same:
        raise typer.Exit(console_output.DIFFERS)


def _print(file: Path, stored: Inspection, comparison: Comparison | None) -> None:
    made = stored.provenance
    if comparison is None:
        console_output.print_line(f"{file} is whole: {made.model} {made.version}, weights {made.weights_sha256[:12]}")
        return
    verdict = "the same" if comparison.same else "DIFFERENT"
    rounding = f", {comparison.near} within rounding ({comparison.largest:.1g} at most)" if comparison.near else ""
    console_output.print_line(f"{verdict}: {comparison.exact} tensors bit for bit{rounding}")
    for change in comparison.changes:
        console_output.print_line(f"changed: {change.what}: {change.before or 'none'} -> {change.now or 'none'}")
    if comparison.differences:
        table = tables.empty_table("Differences", "place", "now, and before", folds=("place", "now, and before"))
        for difference in comparison.differences[:_SHOWN]:
            table.add_row(Text(difference.place), Text(difference.why))
        console_output.print_blocks(table)
        if len(comparison.differences) > _SHOWN:
            console_output.print_line(f"and {len(comparison.differences) - _SHOWN} more: --json has all")
