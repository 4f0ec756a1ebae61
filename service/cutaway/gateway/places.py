"""Names of layers, compared as text: what a caller may see is settled without asking the model."""

from __future__ import annotations

from collections.abc import Sequence

from cutaway.engine.globs import compiled, is_glob


def allows(globs: Sequence[str], layer: str) -> bool:
    """Whether ``globs`` cover ``layer``: a name that one of them matches, or a glob that is one of them.

    A glob is compared with no other: whether all that it matches is matched by another one too depends on the model.
    """
    if "**" in globs:
        return True
    if is_glob(layer):
        return layer in globs
    return layer != "" and any(compiled(glob).fullmatch(layer) for glob in globs)


def owner(name: str, kind: str) -> str:
    """The layer that something is of: an operator's (``conv1:relu#0``), a parameter's (``conv1.weight``), a layer's
    own name. Empty is the model itself."""
    if kind == "op":
        return name.rpartition(":")[0]
    return name.rpartition(".")[0] if kind == "parameter" else name
