"""The question of a job, from the words of its spec to typed values. Names are the contract's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import partial
from typing import Any, NamedTuple, TypeVar, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from cutaway.errors import Reason, at, error
from cutaway.jobs.spec import Request
from cutaway.requests import (
    Attribution,
    Baselines,
    Capture,
    CheckMode,
    CheckRequest,
    ClassIndex,
    Edit,
    ExplainIf,
    InspectRequest,
    LrpRule,
    Metric,
    Neuron,
    NoiseTunnel,
    PredictedClass,
    Reduction,
    Target,
    TokenId,
)
from cutaway.wire.captures import REDUCTIONS
from cutaway.wire.edits import VERBS
from cutaway.wire.methods import METHODS
from cutaway.wire.noise import METRICS
from cutaway.wire.oneof import OneOf
from cutaway.wire.parts import RULES
from cutaway.wire.targets import TARGETS

T = TypeVar("T")
Words = Mapping[str, Any]


class Asked(NamedTuple):
    """What a job asks of every batch.

    Attributes:
        request: the question, without a model and inputs.
        names: what each explanation's columns are called.
        by_label: whether the target is each example's label.
    """

    request: InspectRequest
    names: tuple[str, ...]
    by_label: bool


def asked(request: Request, target: str | Words) -> Asked:
    """The question that a spec's sections ``request`` and ``target`` say.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, with the field at fault.
    """
    gradients = request.input_gradients
    check = CheckRequest(CheckMode(request.check), request.relative_tolerance)
    with at("target"):
        about = _target(target) if isinstance(target, Mapping) else PredictedClass()
    with at("request"):
        question = InspectRequest(
            model="",
            target=about,
            captures=_each("captures", request.captures, _capture),
            input_gradients=(() if gradients else None) if isinstance(gradients, bool) else gradients,
            edits=_each("edits", request.edits, partial(_tagged, VERBS, "edit")),
            attributions=_each("attributions", request.attributions, attribution),
            explain_if=None if request.explain_if is None else _condition(request.explain_if),
            check=check,
        )
        names = _names(question.attributions, [each.get("name") for each in request.attributions])
    return Asked(question, names, target == "label")


def attribution(words: Words) -> Attribution:
    """One explanation, from ``{method: integrated_gradients, n_steps: 64}``."""
    return _tagged(METHODS, "method", {key: value for key, value in words.items() if key != "name"})


def labelled(request: InspectRequest, labels: Sequence[int]) -> InspectRequest:
    """``request`` about each example's label."""
    return InspectRequest(**{**_shallow(request), "target": ClassIndex(tuple(labels))})


def _shallow(value: Any) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in fields(value)}


def _names(attributions: Sequence[Attribution], given: Sequence[str | None]) -> tuple[str, ...]:
    """Each explanation's own name, or its method's; numbered from the second on where several are alike."""
    found: list[str] = []
    for index, (each, name) in enumerate(zip(attributions, given)):
        if name in found:
            raise error(Reason.INVALID_VALUE, f"{name!r} is the name of two explanations", f"attributions[{index}]")
        base = name or METHODS.codecs[type(each)].field
        number = 2
        chosen = base
        while chosen in found:
            chosen, number = f"{base}_{number}", number + 1
        found.append(chosen)
    return tuple(found)


def _each(field: str, several: Sequence[Words], read: Callable[[Words], T]) -> tuple[T, ...]:
    found = []
    for index, words in enumerate(several):
        with at(f"{field}[{index}]"):
            found.append(read(words))
    return tuple(found)


def _tagged(table: OneOf[T], tag: str, words: Words) -> T:
    """A value of the class that ``words[tag]`` names, from the other words."""
    kinds = {codec.field: kind for kind, codec in table.codecs.items()}
    name = words.get(tag)
    if name not in kinds:
        raise error(Reason.INVALID_VALUE, f"{name!r} is none of {', '.join(kinds)}", tag)
    return _made(kinds[name], {key: value for key, value in words.items() if key != tag})


def _named(table: OneOf[T], words: Any) -> T:
    """A value from ``{class_index: {indices: [3]}}``, or from a bare name."""
    words = {words: {}} if isinstance(words, str) else words
    if not isinstance(words, Mapping) or len(words) != 1:
        known = ", ".join(codec.field for codec in table.codecs.values())
        raise error(Reason.INVALID_VALUE, f"{words!r:.80} names not one of {known}")
    ((name, value),) = words.items()
    with at(str(name)):
        return _tagged(table, "", {"": name, **(value if isinstance(value, Mapping) else _only(table, name, value))})


def _only(table: OneOf[T], name: str, value: Any) -> Words:
    """``{class_index: 3}`` for ``{class_index: {indices: [3]}}``: a class' first field needs no name."""
    kind: Any = next((kind for kind, codec in table.codecs.items() if codec.field == name), None)
    own = [each.name for each in fields(kind) if each.name != "output"] if kind is not None else []
    if not own:
        return {"": name} if value is None else {str(value): value}
    several = isinstance(value, list) or "tuple" not in str(get_type_hints(kind)[own[0]])
    return {own[0]: value if several else [value]}


def _target(words: Any) -> Target:
    return _named(TARGETS, words)


def _capture(words: Words) -> Capture:
    if words.get("parameter"):
        raise error(Reason.INVALID_VALUE, "a parameter's gradient belongs to no single example", "parameter")
    points = words.get("at", "output")
    return _made(Capture, {**words, "at": tuple(points) if isinstance(points, list) else points})


def _condition(words: Words) -> ExplainIf:
    with at("explain_if"):
        return _made(ExplainIf, words)


def _made(kind: type[T], words: Words) -> T:
    """A ``kind``, its fields read from ``words`` by their types; a module may be called ``layer``, as in a method."""
    hints = get_type_hints(kind)
    known = {each.name: each for each in fields(kind)}  # type: ignore[arg-type]
    if "layer" in words and "layer" not in known and "module" in known:
        words = {("module" if key == "layer" else key): value for key, value in words.items()}
    unknown = [key for key in words if key not in known]
    if unknown:
        raise error(Reason.INVALID_VALUE, f"there is no {unknown[0]!r} here, but {', '.join(known)}", str(unknown[0]))
    for name, each in known.items():
        if each.default is MISSING and each.default_factory is MISSING and name not in words:
            raise error(Reason.INVALID_VALUE, f"{kind.__name__} needs {name}", name)
    values = {}
    for name, value in words.items():
        with at(name):
            values[name] = _read(hints[name], value)
    return kind(**values)


def _read(hint: Any, value: Any) -> Any:
    """``value`` as ``hint`` wants it: the kinds of the contract's tables by name, all else by pydantic."""
    for wanted, read in _READERS:
        if hint == wanted:
            return read(value)
    try:
        return TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True)).validate_python(value)
    except ValidationError as failure:
        raise error(Reason.INVALID_VALUE, failure.errors()[0]["msg"]) from None


def _baselines(value: Any) -> Baselines:
    if not isinstance(value, Mapping):
        raise error(Reason.INVALID_VALUE, "baselines are given by input: {image: 0.5}, {input_ids: {token_id: 0}}")
    return {name: TokenId(each["token_id"]) if isinstance(each, Mapping) else each for name, each in value.items()}


def _maybe(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


_READERS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (Baselines, _baselines),
    (Target | None, _maybe(_target)),
    (Neuron, partial(_made, Neuron)),
    (NoiseTunnel | None, _maybe(partial(_made, NoiseTunnel))),
    (tuple[Metric, ...], lambda value: tuple(_named(METRICS, each) for each in value)),
    (Mapping[str, LrpRule], lambda value: {name: _named(RULES, each) for name, each in value.items()}),
    (Reduction | None, _maybe(partial(_named, REDUCTIONS))),
)
"""Types of fields that have a table in the contract, or words of their own."""

__all__ = ["Asked", "Attribution", "Edit", "asked", "attribution", "labelled"]
