"""Results as a few lines of text: what `repr` and `str` return, whatever the size of the result."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, fields, is_dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from cutaway.contract.requests import Point
from cutaway.contract.results.arrays import Place, captures, entries, examples_first, tensors
from cutaway.contract.tensors import Array
from cutaway.contract.values import printable

if TYPE_CHECKING:
    from cutaway.contract.results import (
        AttackResult,
        AttributionResult,
        CapturedCall,
        Check,
        ClassPrediction,
        ConceptResult,
        InspectResult,
        ModelDetail,
        ModuleCapture,
    )


def harmless(text: str, limit: int = 60) -> str:
    """Returns ``text``, which a server sent, as `printable` in at most ``limit`` characters of one line."""
    shown = printable(text[:limit]).replace("\n", " ")
    return shown if len(text) <= limit and len(shown) <= limit else f"{shown[: limit - 1]}…"


def outline(array: Array) -> str:
    """Returns the data type and shape: ``float32[2, 10]``."""
    return f"{array.dtype.name}{list(array.shape)}"


def byte_count(count: int) -> str:
    """Returns a number of bytes for people: ``812 bytes``, ``34.1 kB``, ``1.2 GB``."""
    if count < 1000:
        return f"{count} bytes"
    power = next((power for power in (1, 2) if count < 999.95 * 1000**power), 3)
    return f"{count / 1000**power:.1f} {('kB', 'MB', 'GB')[power - 1]}"


def first(lines: Iterable[str], most: int, total: int) -> Iterator[str]:
    """Yields ``lines``, ``total`` in number, in at most ``most`` lines: the last says how many were left out."""
    shown = total if total <= most else most - 1
    yield from islice(lines, shown)
    if shown < total:
        yield f"… {total - shown:,} more"


Titled: TypeAlias = tuple[str, "AttributionResult"]
"""An attribution with what people call it."""


def worst_first(result: InspectResult, most: int) -> list[Titled]:
    """Returns attributions as they are; those that deserve a look first, if they are more than the ``most`` shown."""
    titled = list(zip(result.titles(), result.attributions))
    return sorted(titled, key=lambda each: each[1].severity) if len(titled) > most else titled


def outcomes(attributions: Iterable[Titled]) -> str:
    """Returns how many attributions have which outcome: ``3 INCONCLUSIVE, 2 AGREES``."""
    counts = Counter(outcome(attribution) for _, attribution in attributions)
    return ", ".join(f"{count:,} {word}" for word, count in counts.items())


def outcome(attribution: AttributionResult) -> str:
    """Returns ``FAILED``, the worst verdict, or ``NOT CHECKED``."""
    if attribution.error is not None:
        return "FAILED"
    return "NOT CHECKED" if attribution.verdict is None else attribution.verdict.value


def titles(attributions: Sequence[AttributionResult], asked: Sequence[Any] = ()) -> list[str]:
    """Returns what people call each attribution: method and layer, and what tells it from others with the same.

    Args:
        attributions: of one result.
        asked: what was requested, where that is known: one for each, or all are numbered.
    """
    names = [f"{each.method} at {harmless(each.layer)}" if each.layer else each.method for each in attributions]
    if len(asked) == len(names):
        alike = {name: [_told(one) for one, own in zip(asked, names) if own == name] for name in names}
        names = [name + _differing(_told(one), alike[name]) for name, one in zip(names, asked)]
    seen: Counter[str] = Counter()
    for index, name in enumerate(names):
        seen[name] += 1
        names[index] = name if seen[name] == 1 else f"{name} ({seen[name]})"
    return names


def without_layer(title: str, attribution: AttributionResult) -> str:
    """Returns the title of an attribution without its layer, for where that stands beside it."""
    return title.replace(f" at {harmless(attribution.layer)}", "", 1) if attribution.layer else title


def _told(request: Any, above: str = "") -> dict[str, str]:
    """Returns the fields of a request for an attribution that are not the default, in words; those of a part below the
    part's name. Of arrays the words are the field's name alone."""
    found: dict[str, str] = {}
    for name, default, value in ((item.name, item.default, getattr(request, item.name)) for item in fields(request)):
        if is_dataclass(value):
            found |= {above + name: type(value).__name__, **_told(value, f"{above}{name}.")}
        elif isinstance(value, Mapping) or hasattr(value, "dtype"):
            found |= {above + name: name} if len(value) else {}
        elif value != default:
            found[above + name] = f"{name} {harmless(str(value), 24)}"
    return found


def _differing(own: Mapping[str, str], alike: Sequence[Mapping[str, str]]) -> str:
    """Returns the words of ``own`` for fields in which requests for the same method differ: ``, n_steps 2``."""
    told = (words for name, words in own.items() if len({each.get(name) for each in alike}) > 1)
    return "".join(f", {words}" for words in told)


def plural(count: int, noun: str, nouns: str = "") -> str:
    """Returns ``1 example``, ``1,000 examples``; ``nouns`` is a plural that does not only add an s."""
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"


_WIDTH = 120
_LABELS = 6
_ATTRIBUTIONS = 6
_NAMED = 3  # tensors of one call, and inputs of one attribution


def summarise(result: InspectResult) -> str:
    """Returns at most 30 lines: 1 of heading, and below it as many for each part as is said there."""
    gradients, parameters, found = result.input_gradients, result.parameter_gradients, result.counterfactual
    captured = [f"{_call(place)} {_leaf(place.point, place.path, array)}" for place, array in captures(result)]
    explained = result.explained_rows
    attributed = worst_first(result, _ATTRIBUTIONS)
    blocks = [
        _block("texts", _texts(result), 4, len(result.texts)),
        _block("predictions", _arrays(result.predictions), 2, len(result.predictions)),
        _block("classes", _classes(result), 4, len(result.classes)),
        _block("unedited", _arrays(result.unedited), 2, len(result.unedited)),
        _block("captures", captured, 6, len(captured)),
        _block("gradients", _arrays(gradients), 2, len(gradients)),
        _block("parameters", _arrays(parameters), 2, len(parameters)),
        _block("sweep", _arrays(result.sweep), 2, len(result.sweep)),
        _block("direct", _arrays(result.direct), 2, len(result.direct)),
        _block("attacks", map(_attack_line, result.attacks), 4, len(result.attacks)),
        _block("changes", counterfactual_lines(result), 4, len(found.changes) if found else 0),
        _block("concepts", map(_concept_line, result.concepts), 3, len(result.concepts)),
        _block("influence", influence_lines(result), 2, len(result.influence.helpful) if result.influence else 0),
        _block("attributions", _attributions(attributed), _ATTRIBUTIONS, min(len(attributed), _ATTRIBUTIONS)),
        _block("agreement", agreement_lines(result), 3, len(result.agreements)),
        _block("warnings", (f"{warning.code}  {warning.subject}: {warning.message}" for warning in result.warnings), 4,
               len(result.warnings)),
        _block("explained", [] if explained is None else [f"{np.count_nonzero(explained):,} of {len(explained):,}"], 1,
               int(explained is not None)),
    ]  # fmt: skip
    return _page(_heading(result), blocks)


def _texts(result: InspectResult) -> Iterator[str]:
    """Yields the text of each row of a generation, why it ended, and the verdict of its replay."""
    for row, (text, reason) in enumerate(zip(result.texts, result.finish_reasons)):
        verdict = "" if result.replay is None else f"  replay {result.replay.of_row(row).verdict.value}"
        yield f"{harmless(text, 70)!r}  {reason.value}{verdict}"


def describe_call(call: CapturedCall) -> str:
    """Returns the tensors of one call with their shapes, in one line."""
    return f"CapturedCall({_line(_leaves(call))})"


def describe_capture(capture: ModuleCapture) -> str:
    """Returns the number of calls, and the tensors of the first, in one line."""
    if not capture.calls:
        return "ModuleCapture(0 calls)"
    return f"ModuleCapture({plural(len(capture.calls), 'call')}: {_line(_leaves(capture.calls[0]))})"


def describe_attribution(attribution: AttributionResult) -> str:
    """Returns the method, the shapes and the verdict, in one line."""
    (title,) = titles([attribution])
    return f"AttributionResult({harmless(_attribution_line(title, attribution), _WIDTH)})"


def describe_model(detail: ModelDetail) -> str:
    """Returns at most 30 lines: the inputs, outputs, labels and the first modules."""
    parameters = max((module.parameters for module in detail.modules), default=0)
    counts = f"{plural(len(detail.modules), 'module')} · {plural(parameters, 'parameter')}"
    labels = [", ".join(harmless(label, 24) for label in first(detail.labels, _LABELS, len(detail.labels)))]
    blocks = [
        _block("inputs", (f"{spec.name}  {_spec(spec.data_type, spec.shape)}{' (optional)' * spec.optional}"
                          for spec in detail.inputs), 5, len(detail.inputs)),
        _block("outputs", (f"{output.name}  {_spec(output.data_type, output.shape)}" for output in detail.outputs), 4,
               len(detail.outputs)),
        _block("labels", labels, 1, int(bool(detail.labels))),
        _block("media types", [", ".join(first(detail.media_types, _LABELS, len(detail.media_types)))], 1,
               int(bool(detail.media_types))),
        _block("data sets", (f"{each.name}  {plural(each.rows, 'row')}{', labelled' * each.labelled}"
                             for each in detail.data_sets), 4, len(detail.data_sets)),
        _block("checkpoints", [", ".join(f"{rate:g}" for rate in detail.checkpoint_rates[:_LABELS])], 1,
               int(bool(detail.checkpoint_rates))),
        _block("modules", (f"{module.name or '(the model)'}  {module.type}"
                           f"  {' '.join(str(list(shape)) for shape in module.output_shapes[:_NAMED])}"
                           for module in detail.modules), 14, len(detail.modules)),
        _block("operators", (f"{called.address}  {plural(called.calls, 'run')}" for called in detail.operators), 4,
               len(detail.operators)),
    ]  # fmt: skip
    return _page(f"ModelDetail: {detail.model.model} {detail.model.version} · {counts}", blocks)


def batch_size(result: InspectResult) -> int:
    """Returns the number of examples, as the parts that have one for each example tell it; 0 if there is none."""
    # Numbers first: they are never without rows.
    known = sorted(entries(examples_first(result)), key=lambda entry: entry.is_tensor)
    return next((len(entry.array) for entry in known if entry.example_axis == 0), 0)


def tensor_bytes(result: InspectResult) -> int:
    """Returns the bytes of all tensors, without compression."""
    return sum(entry.array.nbytes for entry in tensors(result))


def class_labels(result: InspectResult) -> dict[int, str]:
    """Returns the known labels by class index: those that came with the result, and those of the predicted classes."""
    predicted = (*result.classes, *result.unedited_classes)
    return {**result.labels, **{each.index: each.label for each in predicted if each.label}}


def class_name(result: InspectResult, index: int) -> str:
    """Returns the label of a class, made harmless, or ``class 3`` for one without."""
    return harmless(class_labels(result).get(index, ""), 40) or f"class {index}"


def predicted_class(result: InspectResult, predicted: ClassPrediction) -> tuple[str, str]:
    """Returns the label of a predicted class and its probability, or that there is none, and why."""
    if math.isnan(predicted.probability):
        return "no class", "the output is not finite"
    return class_name(result, predicted.index), f"{predicted.probability:.1%}"


def _heading(result: InspectResult) -> str:
    provenance, seconds = result.provenance, sum(astuple(result.timings)) / 1000
    facts = [f"{provenance.model} {provenance.version}".strip(), plural(batch_size(result), "example")]
    if result.estimate is not None:
        estimate = result.estimate
        facts[1] = f"a dry run: {byte_count(estimate.reply_bytes)}, {plural(len(estimate.tensors), 'tensor')}, "
        facts[1] += plural(estimate.passes, "pass", "passes")
    facts += [f"{seconds:.3f} s{_proof(result.timings.proof_ms / 1000)}"] * bool(seconds)
    facts += [byte_count(tensor_bytes(result))]
    return f"{type(result).__name__}: {' · '.join(fact for fact in facts if fact)}"


def _proof(seconds: float) -> str:
    """Returns the share of a first request's time that later ones do not need, where it is worth a word."""
    return f", of which {seconds:.3f} tested the model once" * (seconds >= _LONG_PROOF_S)


_LONG_PROOF_S = 0.1


def _page(heading: str, blocks: list[list[str]]) -> str:
    return "\n".join(harmless(line, _WIDTH) for line in [heading, *(line for block in blocks for line in block)])


def _block(title: str, lines: Iterable[str], most: int, total: int) -> list[str]:
    """Returns at most ``most`` lines; the title is in the first."""
    shown = list(first(lines, most, total)) if total else []
    return [f"  {title if not index else '':<13}{line}" for index, line in enumerate(shown)]


def _arrays(arrays: Mapping[str, Array]) -> Iterator[str]:
    return (f"{harmless(name)}  {outline(array)}" for name, array in arrays.items())


def _classes(result: InspectResult) -> Iterator[str]:
    return (f"[{row}]  {'  '.join(predicted_class(result, each))}" for row, each in enumerate(result.classes))


def _call(place: Place) -> str:
    return (harmless(place.module) or "(the model)") + (f" call {place.call}" if place.calls > 1 else "")


def _leaf(point: Point, path: str, array: Array) -> str:
    return f"{point.value}{' ' * path.isidentifier()}{harmless(path)}  {outline(array)}"


def _leaves(call: CapturedCall) -> Iterator[str]:
    for point, leaves in call.leaves.items():
        yield from (_leaf(point, path, array) for path, array in leaves.items())


def _line(leaves: Iterable[str]) -> str:
    shown = list(leaves)
    return ", ".join(first(shown, _NAMED, len(shown))) or "empty"


def _concept_line(concept: ConceptResult) -> str:
    verdict = "NOT CHECKED" if concept.check is None else concept.check.verdict.value
    score = f"share {concept.share:.2f}, p {concept.p_value:.3g}"
    return f"{verdict}  {harmless(concept.concept)} at {harmless(concept.layer)}  {score}{_why(concept.check)}"


def influence_lines(result: InspectResult, only: int | None = None) -> Iterator[str]:
    """Yields for each row, or only one, the training rows that helped and harmed most."""
    if (found := result.influence) is not None:
        verdict = "NOT CHECKED" if found.check is None else found.check.verdict.value
        for row, (helpful, harmful) in enumerate(zip(found.helpful[:, :3], found.harmful[:, :3])):
            if only in (None, row):
                rows = f"helped by rows {', '.join(map(str, helpful))}, harmed by {', '.join(map(str, harmful))}"
                yield f"{verdict}  {found.method}  [{row}] {rows}{_why(found.check)}"


def evidence_lines(result: InspectResult, row: int | None = None) -> Iterator[str]:
    """Yields what a row's prediction rests on, its changes and training rows; without a row, what all have in common:
    attacks and concepts."""
    if row is None:
        yield from map(_attack_line, result.attacks)
        yield from map(_concept_line, result.concepts)
    else:
        yield from agreement_lines(result, row)
        yield from counterfactual_lines(result, row)
        yield from influence_lines(result, row)


def _attributions(titled: Sequence[Titled]) -> list[str]:
    """Returns a line for each; of more than `_ATTRIBUTIONS`, the last line shown says how the others came out."""
    lines = [_attribution_line(*each) for each in titled]
    if len(lines) > _ATTRIBUTIONS:
        left = titled[_ATTRIBUTIONS - 1 :]
        lines = [*lines[: _ATTRIBUTIONS - 1], f"… {len(left):,} more: {outcomes(left)}"]
    return lines


def _attribution_line(title: str, attribution: AttributionResult) -> str:
    name, verdict = harmless(title, _WIDTH), outcome(attribution)
    if attribution.error is not None:
        return f"{verdict}  {name}: {harmless(attribution.error.reason)}: {harmless(attribution.error.message, _WIDTH)}"
    check = attribution.worst_check
    values = ", ".join(first(_arrays(attribution.values), _NAMED, len(attribution.values)))
    values = values.removeprefix(f"{harmless(attribution.layer)}  ")  # a layer has the only value
    if attribution.tokens is not None and (against := attribution.tokens.against(0)):
        values += f"  {against}"
    return f"{verdict}  {name}  {values}{_why(check)}"


def _attack_line(attack: AttackResult) -> str:
    """Returns the verdict of an attack, and how often it reached its aim."""
    check, succeeded = attack.worst_check, attack.succeeded
    verdict = "NOT CHECKED" if check is None else check.verdict.value
    facts = [f"{verdict}  {harmless(attack.method)}"]
    if succeeded is not None:
        facts.append(f"{np.count_nonzero(succeeded):,} of {len(succeeded):,} reached the aim")
    if attack.linf is not None:
        facts.append(f"changes of at most {max(attack.linf, default=0.0):.3g}")
    if attack.parameters is not None:
        facts.append(f"least {', '.join(f'{value:.3g}' for value in attack.parameters[:_NAMED])}")
    return "  ".join(facts) + _why(check)


_CHANGES = 6  # of a row, that are named


def counterfactual_lines(result: InspectResult, only: int | None = None) -> Iterator[str]:
    """Yields for each row, or only one, whether another class was found, which one, and what changed."""
    if (found := result.counterfactual) is None:
        return
    for row, (reached, label) in enumerate(zip(found.succeeded, found.classes)):
        if only not in (None, row):
            continue
        outcome = found.outcome(row)
        own = "NOT CHECKED" if outcome is None else outcome.verdict.value
        changes = plural(int(found.changes[row]), "change")
        what = f"{class_name(result, int(label))} with {changes}" if reached else "none found"
        told = [words for name in found.inputs for words in _changed_elements(result, name, row)]
        yield f"{own}  [{row}] {what}  {', '.join(told)}".rstrip()


def _changed_elements(result: InspectResult, name: str, row: int) -> Iterator[str]:
    found: Any = result.counterfactual
    places, values = np.flatnonzero(found.changed[name][row]), found.inputs[name][row].reshape(-1)
    if len(places) > _CHANGES or found.inputs[name].ndim > 2:
        yield from [f"{len(places):,} of {values.size:,} elements of {harmless(name)}"] * bool(len(places))
        return
    names = result.feature_names.get(name, ())
    for place in places:
        shown = harmless(names[place]) if place < len(names) else f"{harmless(name)}[{place}]"
        yield f"{shown} = {values[place]:.6g}"


def agreement_lines(result: InspectResult, row: int | None = None) -> Iterator[str]:
    """Yields how far each pair of attributions agrees, in the mean over the examples where that is defined, or in one
    ``row``."""
    names = result.titles()
    for each in result.agreements:
        figures = [array if row is None else array[row : row + 1] for array in each.figures]
        means = [float(np.mean(known)) if (known := array[~np.isnan(array)]).size else np.nan for array in figures]
        what = "cosine {:.2f}, rank correlation {:.2f}, {:.0%} of the largest tenth".format(*means)
        how = ", by magnitude" * each.of_magnitudes
        yield f"{names[each.first]} and {names[each.second]}: {what}{how}"


def _why(check: Check | None) -> str:
    """Returns the cause and the reason of a verdict, if it has some."""
    if check is None or not check.reason:
        return ""
    return (
        f": {check.cause}: {harmless(check.reason, _WIDTH)}" if check.cause else f": {harmless(check.reason, _WIDTH)}"
    )


def _spec(data_type: str, shape: tuple[int, ...]) -> str:
    sizes = ", ".join("any" if size < 0 else str(size) for size in shape)
    return f"{data_type or 'any type'}" + (f"[{sizes}]" if shape else "")
