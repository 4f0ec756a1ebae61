"""``cutaway models``, ``layers`` and ``inspect``: a client's questions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from cutaway import tables
from cutaway.cli import anatomy, attributions, captures, conditions, edits, files, screen, targets
from cutaway.cli.connecting import HERE, Address, Ca, Certificate, Key, Secure, Timeout, Token, asking, trusting
from cutaway.client import Client
from cutaway.errors import Reason, error
from cutaway.requests import Attribution, Capture, CheckMode, Edit, ExplainIf, Raw, Target
from cutaway.results import InspectResult
from cutaway.tensors import Array

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="The model's name, or NAME/versions/VERSION.", show_default=False)
]


def models(
    address: Address = HERE,
    timeout: Timeout = 60.0,
    token: Token = None,
    tls: Secure = False,
    ca: Ca = None,
    certificate: Certificate = None,
    key: Key = None,
) -> None:
    """List the models that a server serves."""
    with asking(address, timeout, token, trusting(tls, ca, certificate, key)) as client:
        found = client.list_models()
    table = tables.heading("Models", "name", "version", folds=("name",))
    for model in found:
        table.add_row(Text(model.model), Text(model.version))
    screen.show(table)


def layers(
    model: Model,
    depth: Annotated[int | None, typer.Option(metavar="N", min=0, help="How many levels of modules to show.")] = None,
    expand: Annotated[bool, typer.Option("--all", help="Show each of a list of modules that are alike.")] = False,
    ops: Annotated[
        bool, typer.Option("--ops", help="Also show the operators inside the modules, which are no modules themselves.")
    ] = False,
    address: Address = HERE,
    timeout: Timeout = 60.0,
    token: Token = None,
    tls: Secure = False,
    ca: Ca = None,
    certificate: Certificate = None,
    key: Key = None,
) -> None:
    """Show what a model takes and returns, and its module tree.

    Modules and operators are named as captures, edits and layers are asked for.
    """
    with asking(address, timeout, token, trusting(tls, ca, certificate, key)) as client:
        found = client.get_model(model, operators=ops)
    tree = anatomy.Tree(found, depth, expand)
    screen.show(anatomy.summary(found), anatomy.ModuleTable(tree), *([anatomy.OperatorTable(tree)] if ops else []))


def _picture(path: Path | None) -> Path | None:
    if path and path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise typer.BadParameter(f"{path.name} ends with none of .png, .svg, .pdf")
    return path


def inspect(
    model: Model,
    inputs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="INPUT",
            exists=True,
            dir_okay=False,
            show_default=False,
            help="Images or text files, an example each; or tensors, .npz or .npy, batch first.",
        ),
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(metavar="WORDS", help="A text, in place of a file; repeatable.")
    ] = None,
    name: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="The input that a .npy file is for; repeatable.")
    ] = None,
    capture: Annotated[
        list[Capture] | None,
        typer.Option(
            parser=captures.capture,
            metavar="WHERE[@POINT,...][,KEY=VALUE...]",
            help="What hooks saw. WHERE is a module's name, an operator's address (see `layers --ops`) or a glob; "
            "a POINT is input, output, grad_input or grad_output; repeatable.",
        ),
    ] = None,
    input_gradient: Annotated[bool, typer.Option("--input-gradient", help="The gradient at every input.")] = False,
    parameter: Annotated[
        list[Capture] | None,
        typer.Option(
            parser=captures.parameter,
            metavar="NAME[,KEY=VALUE...]",
            help="The gradient at a parameter, such as conv1.weight; repeatable.",
        ),
    ] = None,
    edit: Annotated[
        list[Edit] | None,
        typer.Option(
            parser=edits.edit,
            metavar="VERB:WHERE[@POINT][,KEY=VALUE...]",
            help="A change to what flows through the model, such as zero:conv1 or scale:fc@grad_input,factor=0.5; "
            "repeatable, in the order applied.",
        ),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also show what the model predicts without the edits.")
    ] = False,
    attribution: Annotated[
        list[Attribution] | None,
        typer.Option(
            parser=attributions.attribution,
            metavar="METHOD[:LAYER][,KEY=VALUE...]",
            help="An explanation, such as Saliency or LayerGradCam:conv2,relu=true; repeatable.",
        ),
    ] = None,
    target: Annotated[
        list[Target] | None,
        typer.Option(
            parser=targets.target,
            metavar="TARGET",
            help="What gradients and attributions are about, instead of the predicted class: a class, or top:5, sum, "
            "cross_entropy:4, ...; repeated, one for each example.",
        ),
    ] = None,
    explain_if: Annotated[
        ExplainIf | None,
        typer.Option(
            parser=conditions.condition,
            metavar="KEY=VALUE[,...]",
            help="Explain only the examples whose prediction meets every bound given: the predicted class' probability "
            "at_least=0.5 or at_most=0.9, the class one of classes=3+5.",
        ),
    ] = None,
    check: Annotated[
        CheckMode,
        typer.Option(
            metavar="MODE", help="How attributions are compared with what raw hooks see: off, same_pass or independent."
        ),
    ] = CheckMode.SAME_PASS,
    no_predictions: Annotated[
        bool, typer.Option("--no-predictions", help="Leave the predictions out of the answer.")
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(min=0, metavar="NUMBER", help="What methods that draw random numbers draw them from."),
    ] = None,
    reply_dtype: Annotated[
        str,
        typer.Option(
            metavar="TYPE",
            help="Send floating tensors as this, such as float16; a capture's own dtype goes before.",
            show_default=False,
        ),
    ] = "",
    compress: Annotated[bool, typer.Option("--compress", help="Send tensors packed, with zstd.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what the answer would hold, and how large it would be.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", callback=_picture, help="Draw the answer: .png, .svg or .pdf.")
    ] = None,
    save: Annotated[Path | None, typer.Option(metavar="NPZ", help="Save every tensor that came back.")] = None,
    address: Address = HERE,
    timeout: Timeout = 60.0,
    token: Token = None,
    tls: Secure = False,
    ca: Ca = None,
    certificate: Certificate = None,
    key: Key = None,
) -> None:
    """Run a model on an input and look inside it.

    Shows the prediction and, as far as asked: what modules saw, gradients, and attributions with their checks.
    """
    if dry_run and (plot or save):
        raise typer.BadParameter("there is nothing to draw or to save", param_hint="--dry-run")
    if compare and not edit:
        raise typer.BadParameter("there is nothing to compare with; it needs an --edit", param_hint="--compare")
    for output in (plot, save):
        if output and any(path.exists() and output.exists() and path.samefile(output) for path in inputs or ()):
            raise typer.BadParameter(f"{output} is an input, and would be lost", param_hint="--plot, --save")
    explained = targets.together(target or ())
    with asking(address, timeout, token, trusting(tls, ca, certificate, key)) as client:
        given = _inputs(client, model, inputs or [], text or [], name or [])
        result = client.inspect(
            model,
            given,
            target=explained,
            captures=[*(capture or ()), *(parameter or ())],
            input_gradients=input_gradient,
            edits=edit or (),
            compare=compare,
            attributions=attribution or (),
            explain_if=explain_if,
            check=check,
            predictions=not no_predictions,
            seed=seed,
            reply_data_type=reply_dtype,
            compression="zstd" if compress else "",
            dry_run=dry_run,
        )
    screen.show(*blocks(result))
    if plot:
        _draw(result, given if isinstance(given, dict) else files.picture(given[0]), plot)
    if save:
        screen.say(f"saved {files.save(result, save)} tensors to {save}")


def _inputs(
    client: Client, model: str, paths: list[Path], texts: list[str], names: list[str]
) -> dict[str, Array] | list[Raw]:
    if not (paths or texts):
        raise typer.BadParameter("give a file, or --text", param_hint="INPUT")
    if files.are_tensors(paths, texts):
        return files.read_tensors(paths, names, lambda: client.get_model(model))
    return files.read_raw(paths, texts)


def blocks(result: InspectResult) -> Iterator[RenderableType]:
    """A table for each part of ``result`` that is there."""
    if result.estimate is not None:
        yield tables.estimate_table(result.estimate)
    if result.classes or result.predictions or result.unedited:
        yield tables.prediction_table(result)
    if tables.has_targets(result):
        yield tables.target_table(result)
    if result.captures:
        yield tables.capture_table(result)
    if result.input_gradients:
        yield tables.gradient_table(result)
    if result.parameter_gradients:
        yield tables.parameter_table(result)
    if result.attributions:
        yield tables.attribution_table(result)
    if result.warnings:
        yield tables.warning_lines(result)
    yield tables.timing_table(result)
    yield tables.provenance_line(result)


def _draw(result: InspectResult, tensors: Mapping[str, Array], path: Path) -> None:
    from cutaway import plots

    try:
        with screen.needing("cli"):
            plots.save(result, path, tensors)
    except OSError as failure:
        raise error(Reason.INVALID_VALUE, f"{path} cannot be written: {failure.strerror}", "plot") from None
    screen.say(f"drew {path}")
