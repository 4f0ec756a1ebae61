"""``cutaway models``, ``layers`` and ``inspect``: requests to a server."""

from __future__ import annotations

import webbrowser
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from cutaway.cli import console_output, files, manual, model_tables, short_forms
from cutaway.cli.connection_options import with_client
from cutaway.cli.console_output import AsJson
from cutaway.cli.files import permalink
from cutaway.cli.short_forms import RequestFile
from cutaway.client.client import Client
from cutaway.contract.errors import Reason, error
from cutaway.contract.requests import Attribution, Capture, CheckMode, Edit, ExplainIf, InspectRequest
from cutaway.contract.results import InspectResult, ModelDetail
from cutaway.contract.results.comparison import Comparison, compare
from cutaway.contract.results.document import MAX_VALUES
from cutaway.contract.tensors import Array
from cutaway.views import tables
from cutaway.views.inspection import Inspection

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="The model's name, or NAME/versions/VERSION.", show_default=False)
]


@with_client
def models(client: Client, as_json: AsJson = False) -> None:
    """List the models that a server serves."""
    with console_output.waiting("waiting for the server"):
        names = client.list_models()
    if as_json:
        console_output.print_json(console_output.Models(tuple(names)))
        return
    table = tables.empty_table("Models", "name", "version", folds=("name",))
    for name in names:
        table.add_row(Text(name.model), Text(name.version))
    console_output.print_blocks(table)


@with_client
def layers(
    client: Client,
    model: Model,
    depth: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="The number of levels of modules to show.")
    ] = None,
    expand: Annotated[bool, typer.Option("--all", help="Show each of several equal modules.")] = False,
    ops: Annotated[
        bool,
        typer.Option(
            "--ops", help="Also show the operators inside modules: functions and operators that are not modules."
        ),
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
        typer.Argument(
            metavar="INPUT",
            exists=True,
            dir_okay=False,
            show_default=False,
            help="Images or text files, one per example; or tensors, .npz or .npy, batch first.",
        ),
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="A text, in place of a file; repeatable.")
    ] = None,
    name: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="The input name of a .npy file; repeatable.")
    ] = None,
    request: Annotated[
        RequestFile | None,
        typer.Option(
            parser=short_forms.read_request_file,
            metavar="FILE",
            help="A YAML file with fields of the request (see below); - is standard input. Options add to it.",
        ),
    ] = None,
    capture: Annotated[
        list[Capture] | None,
        typer.Option(
            parser=short_forms.capture,
            metavar="WHERE[@POINT,...][,KEY=VALUE...]",
            help="Tensors that hooks see. WHERE is a module's name, an operator's address (see `layers --ops`) or a "
            "glob; a POINT is input, output, grad_input or grad_output; repeatable.",
        ),
    ] = None,
    input_gradient: Annotated[bool, typer.Option("--input-gradient", help="The gradient at every input.")] = False,
    edit: Annotated[
        list[Edit] | None,
        typer.Option(
            parser=short_forms.edit,
            autocompletion=manual.edits,
            metavar="EDIT:WHERE[@POINT][,KEY=VALUE...]",
            help="A change to the values of a module, such as zero:conv1 or scale:fc@grad_input,factor=0.5; "
            "repeatable, in the order applied.",
        ),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also show what the model predicts without the edits.")
    ] = False,
    attribution: Annotated[
        list[Attribution] | None,
        typer.Option(
            parser=short_forms.attribution,
            autocompletion=manual.methods,
            metavar="METHOD[:LAYER][,KEY=VALUE...]",
            help="An attribution, such as Saliency or LayerGradCam:conv2,relu=true; repeatable.",
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CLASS",
            help="The class that gradients and attributions are about, in place of the predicted class: its index or "
            "its label; repeated, one for each example. Also the name of a target, such as sum.",
        ),
    ] = None,
    explain_if: Annotated[
        ExplainIf | None,
        typer.Option(
            parser=short_forms.explain_if,
            metavar="KEY=VALUE[,KEY=VALUE...]",
            help="Attributions only for examples whose prediction meets every condition: probability_at_least=0.5, "
            "probability_at_most=0.9, classes=[3,5].",
        ),
    ] = None,
    check: Annotated[
        CheckMode | None,
        typer.Option(
            case_sensitive=False,
            metavar="MODE",
            help="How attributions are compared with what raw hooks see: off, same_pass (default) or independent.",
        ),
    ] = None,
    no_predictions: Annotated[
        bool, typer.Option("--no-predictions", help="Leave the predictions out of the reply.")
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(min=0, metavar="NUMBER", help="The seed of methods that draw random numbers."),
    ] = None,
    reply_dtype: Annotated[
        str | None,
        typer.Option(
            parser=short_forms.floating_type,
            metavar="TYPE",
            help="The data type for floating tensors of the reply, such as float16, except captures with their own.",
            show_default=False,
        ),
    ] = None,
    compress: Annotated[bool, typer.Option("--compress", help="Compress the tensors of the reply with zstd.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only estimate the tensors and the size of the reply.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", callback=_check_suffix, help="Draw the result: .png, .svg or .pdf.")
    ] = None,
    save: Annotated[Path | None, typer.Option(metavar="NPZ", help="Save every tensor of the result.")] = None,
    web: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Open the question in the inspector, the page that `cutaway serve --http` has: http://127.0.0.1:8080.",
        ),
    ] = None,
    as_json: AsJson = False,
    max_values: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="The largest tensor whose values --json prints, in elements; 0 prints none."
        ),
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
    with console_output.waiting(f"inspecting {model}"), request.locating(combined) if request else nullcontext():
        result = client.ask(combined)
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
            plots.save(result, path, tensors)
    except OSError as failure:
        raise error(Reason.INVALID_VALUE, f"{path} cannot be written: {failure.strerror}", "plot") from None


# ``cutaway verify``

DIFFERS = 7
"""The exit status for an answer that differs from the stored one."""

_SHOWN = 20
"""The most differences that are listed for people."""


@with_client
def verify(
    client: Client,
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="A stored explanation.", show_default=False),
    ],
    offline: Annotated[
        bool, typer.Option("--offline", help="Check only the file: that it is whole, and unchanged.")
    ] = False,
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
        raise typer.Exit(DIFFERS)


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
