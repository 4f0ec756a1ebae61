"""Names, aliases and globs of a module tree."""

from __future__ import annotations

import pytest
from torch import nn

from cutaway.contract.errors import InvalidArgument
from cutaway.engine.model.module_tree import ModuleTree


class Block(nn.Module):
    """Two children."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 1)
        self.act = nn.ReLU()


class Tree(nn.Module):
    """Nested lists, and one module in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Block()
        self.layers = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(1, 1)
        self.tied = self.head


@pytest.fixture
def tree() -> ModuleTree:
    """A tree with every kind of name."""
    return ModuleTree(Tree())


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("head", ["head"]),
        ("layers.0.conv", ["layers.0.conv"]),
        ("*", ["stem", "layers", "head"]),
        ("layers.*", ["layers.0", "layers.1"]),
        ("layers.*.conv", ["layers.0.conv", "layers.1.conv"]),
        ("**.conv", ["stem.conv", "layers.0.conv", "layers.1.conv"]),
        ("layers.?.act", ["layers.0.act", "layers.1.act"]),
        ("s**", ["stem", "stem.conv", "stem.act"]),
        ("tied", ["head"]),
        ("t*", ["head"]),
        (".", [""]),
    ],
)
def test_a_glob_matches_within_parts_or_across_them(tree: ModuleTree, pattern: str, names: list[str]) -> None:
    """`*` stays within one part of a name, `**` crosses dots, aliases lead to the module's own name, each once."""
    assert tree.match(pattern) == names


def test_two_stars_match_everything_the_model_itself_included(tree: ModuleTree) -> None:
    """`**` is every module, in the order of named_modules()."""
    assert tree.match("**") == [name for name, _ in Tree().named_modules()]


def test_regular_expressions_have_no_meaning(tree: ModuleTree) -> None:
    """A dot is a dot and a bracket a bracket: nothing but the three marks is special."""
    for pattern in ("layers[0]*", "he.d", "(head)*", "^head?"):
        with pytest.raises(InvalidArgument, match="MODULE_NOT_FOUND"):
            tree.match(pattern)


@pytest.mark.parametrize(
    ("wanted", "hint"),
    [
        ("laers.0", "nearest: layers.0"),
        ("stem.cnov", "nearest: stem.conv"),
        ("zzzzzz", "the model has stem, stem.conv, stem.act, layers, layers.0, layers.0.conv, ..."),
        ("", "no module is named ''"),
    ],
)
def test_a_name_that_is_not_there_gets_the_nearest(tree: ModuleTree, wanted: str, hint: str) -> None:
    """The error offers the nearest names, or some."""
    with pytest.raises(InvalidArgument) as caught:
        tree.match(wanted)
    assert hint in caught.value.message


def test_aliases_are_listed_with_their_module(tree: ModuleTree) -> None:
    """A module in two places is one module with a further name."""
    assert tree.aliases == {"head": ("tied",)}
