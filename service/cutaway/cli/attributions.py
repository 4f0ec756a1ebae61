"""What a person types for an attribution: ``LayerGradCam:conv2,relu=true``."""

from __future__ import annotations

from dataclasses import fields

from cutaway.cli import words
from cutaway.cli.choices import found, kinds
from cutaway.cli.targets import target
from cutaway.requests import AtLayer, Attribution

METHODS: dict[str, type[Attribution]] = dict(sorted((kind.__name__, kind) for kind in kinds(Attribution)))
"""Every method, by its name."""


def attribution(word: str) -> Attribution:
    """``Saliency``, ``IntegratedGradients,n_steps=100`` or ``LayerGradCam:conv2,relu=true``."""
    head, *rest = words.parted(word)
    name, _, layer = head.partition(":")
    kind = found("method", name, METHODS)
    known = {**words.keys(kind), "target": words.Key("target", words.only(target))}
    pairs = [*([words.Pair("layer", layer)] if layer else []), *map(words.pair, rest)]
    return words.built(kind, pairs, known, usage(kind))


_COMMON = [field.name for field in fields(AtLayer)]


def usage(kind: type[Attribution]) -> str:
    """How to ask for ``kind``, with its own parameters and their defaults."""
    layer = ":LAYER" if issubclass(kind, AtLayer) else ""
    return words.usage(f"{kind.__name__}{layer}", kind, _COMMON)


def forms() -> list[str]:
    """How to type every parameter, of whichever method, that is made of parts."""
    return list(dict.fromkeys(form for kind in METHODS.values() for form in words.forms(kind, ["target"])))
