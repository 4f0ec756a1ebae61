"""A model's description as a table: what goes in, what comes out, and the modules between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cutaway.results import InputSpec, ModelDetail, ModuleInfo, OutputSpec
from cutaway.tables import heading

_MOST_LABELS = 12


def summary(model: ModelDetail) -> Table:
    """What the model takes and gives."""
    name = f"{model.model.model} {model.model.version}"
    table = Table.grid("", "", padding=(0, 2), expand=False)
    table.title, table.title_justify, table.title_style = Text(name), "left", "bold"
    rows = {
        "inputs": [_input(spec) for spec in model.inputs],
        "raw inputs": [", ".join(model.media_types)] if model.media_types else [],
        "outputs": [_output(spec) for spec in model.outputs],
        "labels": [_labels(model.labels)] if model.labels else [],
        "runs on": [f"{model.provenance.device}, {model.provenance.data_type}"],
    }
    for title, lines in rows.items():
        if lines:
            table.add_row(Text(title, style="dim"), Text("\n".join(lines)))
    return table


def _input(spec: InputSpec) -> str:
    optional = ", optional" if spec.optional else ""
    if not (spec.data_type or spec.shape):
        return f"{spec.name}: a tensor{optional}"
    sizes = ["batch" if axis == 0 else "any" if size < 0 else str(size) for axis, size in enumerate(spec.shape)]
    return f"{spec.name}: {spec.data_type or 'tensor'}[{', '.join(sizes) or '...'}]{optional}"


def _output(spec: OutputSpec) -> str:
    return f"{spec.name}: {spec.data_type}[{', '.join(['batch', *map(str, spec.shape[1:])])}]"


def _labels(labels: Sequence[str]) -> str:
    shown = ", ".join(labels[:_MOST_LABELS])
    return shown if len(labels) <= _MOST_LABELS else f"{shown}, ... ({len(labels)} in all)"


# The module tree


@dataclass
class Node:
    """A module and those inside it, by the last part of their names."""

    info: ModuleInfo
    children: dict[str, Node] = field(default_factory=dict)

    @property
    def likeness(self) -> tuple[Any, ...]:
        """What makes two modules look the same, apart from their names."""
        inside = tuple((part, child.likeness) for part, child in self.children.items())
        return self.info.type, self.info.parameters, self.info.output_shapes, self.info.calls, inside

    @property
    def is_used(self) -> bool:
        """Whether it, or a module inside it, was called."""
        return self.info.calls > 0 or any(child.is_used for child in self.children.values())


@dataclass(frozen=True)
class Row:
    """One line of the table: how many modules alike it stands for, and the name or glob that finds them."""

    name: str
    node: Node
    count: int


def module_table(model: ModelDetail, depth: int | None, expand: bool) -> RenderableType:
    """The module tree, a module a row, by its full name: what captures and layers are asked for by.

    Args:
        model: what the server says.
        depth: how many levels to show; None is all.
        expand: also show every one of a list of modules that are all alike, in place of one row for them.
    """
    root = _tree(model.modules)
    rows = list(_rows("", root, depth, expand))
    traced = root.is_used
    table = heading("Modules", "name", "type", "output", "parameters", numbers=1, folds=("name",))
    for row in rows:
        dimmed = traced and not row.node.is_used
        table.add_row(*_cells(row, traced), style="dim" if dimmed else "")
    table.caption, table.caption_justify = _caption(len(rows), len(model.modules), traced), "left"
    return table


def _tree(modules: Sequence[ModuleInfo]) -> Node:
    nodes = {info.name: Node(info) for info in modules}
    for name, node in nodes.items():
        parent, _, part = name.rpartition(".")
        if name:
            nodes[parent].children[part] = node
    return nodes[""]


def _rows(prefix: str, node: Node, depth: int | None, expand: bool, count: int = 1) -> Iterator[Row]:
    yield Row(prefix, node, count)
    if depth == 0:
        return
    deeper = None if depth is None else depth - 1
    if not expand and _all_alike(node):
        yield from _rows(_joined(prefix, "*"), node.children["0"], deeper, expand, count * len(node.children))
        return
    for part, child in node.children.items():
        yield from _rows(_joined(prefix, part), child, deeper, expand, count)


def _joined(prefix: str, part: str) -> str:
    return f"{prefix}.{part}" if prefix else part


def _all_alike(node: Node) -> bool:
    children = node.children
    numbered = len(children) > 1 and list(children) == [str(index) for index in range(len(children))]
    return numbered and len({child.likeness for child in children.values()}) == 1


def _cells(row: Row, traced: bool) -> tuple[Text, Text, Text, Text]:
    info = row.node.info
    kind = info.type if row.count == 1 else f"{row.count} x {info.type}"
    return _name(row), Text(kind), Text(_returned(row.node, traced)), Text(f"{info.parameters:,}")


def _name(row: Row) -> Text:
    if not row.name:
        return Text("(the model)", style="italic")
    parent, dot, part = row.name.rpartition(".")
    also = "" if row.count > 1 else "".join(f"\n= {alias}" for alias in row.node.info.aliases)
    return Text.assemble((parent + dot, "dim"), part, (also, "dim"))


def _returned(node: Node, traced: bool) -> str:
    if not traced:
        return ""
    if not node.info.calls:
        return "" if node.is_used else "not called"
    shapes = " ".join(str(list(shape)) for shape in node.info.output_shapes)
    return shapes if node.info.calls == 1 else f"{shapes}, {node.info.calls} calls"


def _caption(shown: int, there: int, traced: bool) -> str:
    words = [f"{there} modules."]
    if shown < there:
        words = [f"{there} modules in {shown} rows (--all, --depth); a name with * is a glob that finds all alike."]
    if not traced:
        words.append("Output shapes are not known: the model came without an example input.")
    return " ".join(words)
