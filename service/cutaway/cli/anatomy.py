"""A model's description as tables: what goes in, what comes out, and the modules and operators between."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from cutaway.results import InputSpec, ModelDetail, ModuleInfo, OperatorInfo, OutputSpec
from cutaway.tables import heading, module_text

_MOST_LABELS = 12
_ANY_WIDTH = 10_000  # columns, to learn how many a table would like


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
    sizes = ["batch" if axis == 0 else str(size) for axis, size in enumerate(spec.shape)]
    return f"{spec.name}: {spec.data_type}[{', '.join(sizes)}]"


def _labels(labels: Sequence[str]) -> str:
    shown = ", ".join(labels[:_MOST_LABELS])
    return shown if len(labels) <= _MOST_LABELS else f"{shown}, ... ({len(labels)} in all)"


# The module tree


@dataclass
class Node:
    """A module, the operators of its own forward, and the modules inside it by the last part of their names."""

    info: ModuleInfo
    operators: Sequence[OperatorInfo] = ()
    children: dict[str, Node] = field(default_factory=dict)

    @property
    def likeness(self) -> tuple[Any, ...]:
        """What makes two modules look the same, apart from their names."""
        operators = tuple((_operation(each), each.output_shapes, each.calls) for each in self.operators)
        inside = tuple((part, child.likeness) for part, child in self.children.items())
        return self.info.type, self.info.parameters, self.info.output_shapes, self.info.calls, operators, inside

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


class Tree:
    """The module tree, as far as it is shown.

    Args:
        model: what the server says.
        depth: how many levels to show; None is all.
        expand: also show every one of a list of modules that are all alike, in place of one row for them.

    Attributes:
        model: what the server says.
        rows: what is shown, a module a row.
        is_traced: whether the server had an example, and knows shapes and calls.
    """

    def __init__(self, model: ModelDetail, depth: int | None, expand: bool) -> None:
        root = _tree(model)
        self.model = model
        self.rows = list(_rows("", root, depth, expand))
        self.is_traced = root.is_used


class ModuleTable:
    """The module tree, a module a row.

    By its full name, which captures and layers are asked for by; indented under its parent's, where the terminal is
    too narrow for full names.
    """

    def __init__(self, tree: Tree) -> None:
        self._rows = tree.rows
        self._traced = tree.is_traced
        self._count = len(tree.model.modules)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        named = self._table(_full_name)
        fits = console.measure(named, options=options.update_width(_ANY_WIDTH)).maximum <= options.max_width
        yield named if fits else self._table(_indented_name)
        yield Text(" ".join(self._remarks(fits)), style="dim")

    def _table(self, name: Callable[[Row], Text]) -> Table:
        table = heading("Modules", "name", "type", "output", "parameters", numbers=1, folds=("name",))
        for row in self._rows:
            dimmed = self._traced and not row.node.is_used
            table.add_row(name(row), *self._cells(row), style="dim" if dimmed else "")
        return table

    def _cells(self, row: Row) -> tuple[Text, Text, Text]:
        info = row.node.info
        kind = info.type if row.count == 1 else f"{row.count} x {info.type}"
        return Text(kind), Text(_returned(row.node) if self._traced else ""), Text(f"{info.parameters:,}")

    def _remarks(self, are_full_names: bool) -> Iterator[str]:
        rows = "" if len(self._rows) == self._count else f", {len(self._rows)} shown"
        yield f"{self._count} modules{rows}."
        if any(row.count > 1 for row in self._rows):
            yield "A * stands for numbered modules that are all alike, and finds them as a glob (--all shows each)."
        if not are_full_names:
            longest = max((row.name for row in self._rows), key=lambda name: name.count("."))
            yield f"A full name has dots between its parts: {longest}."
        if not self._traced:
            yield "Output shapes are not known: the model came without an example input."


def _tree(model: ModelDetail) -> Node:
    operators = defaultdict(list)
    for operator in model.operators:
        operators[operator.address.rpartition(":")[0]].append(operator)
    nodes = {info.name: Node(info, operators[info.name]) for info in model.modules}
    root = nodes.setdefault("", Node(_HIDDEN))
    for name, node in nodes.items():
        if name:
            # Whoever may not see a module may see what is in it: that then stands under what he may see.
            parent, part = _above(name, nodes)
            nodes[parent].children[part] = node
    return root


_HIDDEN = ModuleInfo("", "(hidden)", 0)


def _above(name: str, nodes: Mapping[str, Node]) -> tuple[str, str]:
    """The nearest module around ``name`` that is shown, and what the module is called there."""
    parent = name
    while parent:
        parent = parent.rpartition(".")[0]
        if parent in nodes:
            break
    return parent, name.removeprefix(parent).lstrip(".")


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


def _full_name(row: Row) -> Text:
    parent, dot, _ = row.name.rpartition(".")
    return Text.assemble((parent + dot, "dim"), _last_name(row))


def _indented_name(row: Row) -> Text:
    return Text("  " * row.name.count(".")) + _last_name(row)


def _last_name(row: Row) -> Text:
    if not row.name:
        return Text(module_text(""), style="italic")
    aliases = row.node.info.aliases if row.count == 1 else ()
    return Text.assemble(row.name.rpartition(".")[2], *((f" = {alias}", "dim") for alias in aliases))


def _returned(node: Node) -> str:
    if not node.info.calls:
        return "" if node.is_used else "not called"
    return _called(node.info)


def _called(info: ModuleInfo | OperatorInfo) -> str:
    shapes = " ".join(str(list(shape)) for shape in info.output_shapes)
    return shapes if info.calls == 1 else f"{shapes}, {info.calls} calls"


# Operators


class OperatorTable:
    """The operators inside the modules of ``tree``, in its order, by the addresses that they are asked for by."""

    def __init__(self, tree: Tree) -> None:
        self._rows = [(row, operator) for row in tree.rows for operator in row.node.operators]
        self._traced = tree.is_traced
        self._count = len(tree.model.operators)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = heading("Operators", "address", "operator", "output", folds=("address", "output"))
        for row, operator in self._rows:
            operation = _operation(operator)
            name = operation.partition("#")[0]
            kind = name if row.count == 1 else f"{row.count} x {name}"
            table.add_row(Text.assemble((f"{row.name}:", "dim"), operation), Text(kind), Text(_called(operator)))
        if self._rows:
            yield table
        yield Text(self._remark(), style="dim")

    def _remark(self) -> str:
        if not self._traced:
            return "Operators are not known: the model came without an example input."
        rows = "" if len(self._rows) == self._count else f", {len(self._rows)} shown"
        return f"{self._count} operators{rows}."


def _operation(operator: OperatorInfo) -> str:
    """``relu#0`` of ``layer3.1:relu#0``."""
    return operator.address.rpartition(":")[2]
