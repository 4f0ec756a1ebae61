"""Names: of modules, of parameters, of operators, and what a glob matches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from tests.fuzz.graphs import Block, Chain, Graph, Spec


@lru_cache(maxsize=100_000)
def matches(pattern: str, name: str) -> bool:
    """Whether a glob matches a whole name: ``*`` and ``?`` stop at a dot, ``**`` does not."""
    if not pattern:
        return not name
    if pattern.startswith("**"):
        return any(matches(pattern[2:], name[start:]) for start in range(len(name) + 1))
    if pattern.startswith("*"):
        part = name.partition(".")[0]
        return any(matches(pattern[1:], name[start:]) for start in range(len(part) + 1))
    fits = bool(name) and (name[0] == pattern[0] or (pattern[0] == "?" and name[0] != "."))
    return fits and matches(pattern[1:], name[1:])


def is_glob(pattern: str) -> bool:
    """Whether it may stand for several names."""
    return "*" in pattern or "?" in pattern


def modules(graph: Graph) -> dict[str, str]:
    """Every name of every module, aliases included, to the module's own name."""
    return {"": ""} | _named(graph.root, "", "")


def _named(spec: Spec, name: str, own: str) -> dict[str, str]:
    """The modules inside one that is called ``name`` here and ``own`` by itself."""
    found: dict[str, str] = {}
    for child, real, inner in _inner(spec):
        here, there = f"{name}.{child}".lstrip("."), f"{own}.{real}".lstrip(".")
        found |= {here: there} | _named(inner, here, there)
    return found


def _inner(spec: Spec) -> Iterable[tuple[str, str, Spec]]:
    if isinstance(spec, Chain):
        yield from ((str(number), str(number), part) for number, part in enumerate(spec.parts))
    if isinstance(spec, Block):
        yield from ((name, name, child) for name, child in spec.children)
        yield from ((alias, name, dict(spec.children)[name]) for alias, name in spec.aliases)


def parameters(graph: Graph, weights: Mapping[str, object]) -> dict[str, str]:
    """Every name of every parameter, aliases included, to its own name, which is one of ``weights``."""
    owned = [name.rpartition(".") for name in weights]
    return {
        f"{name}.{weight}": f"{own}.{weight}"
        for name, own in modules(graph).items()
        for module, _, weight in owned
        if module == own
    }


def is_address(op: str) -> bool:
    """Whether it looks like ``module:operator#number``, marks of globs allowed."""
    return re.fullmatch(r".*:[^:.#]+#[0-9*?]+", op) is not None


def own_address(op: str, known: Mapping[str, str]) -> str | None:
    """The address under the module's own name; None where there is no such module."""
    module, _, rest = op.rpartition(":")
    return f"{known[module]}:{rest}" if module in known else None
