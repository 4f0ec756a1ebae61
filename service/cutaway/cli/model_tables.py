"""A model's description as tables: inputs and outputs, the module tree, and the operators inside modules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from cutaway.contract.results import InputSpec, ModelDetail, ModuleInfo, OperatorInfo, OutputSpec
from cutaway.views.tables import empty_table, module_text

_MAX_LABELS = 12
_UNLIMITED_WIDTH = 10_000  # columns, to measure the natural width of a table


def summary(model: ModelDetail) -> Table:
    """Returns the model's inputs, outputs, labels, device and data type."""
    name = f"{model.model.model} {model.model.version}"
    table = Table.grid("", "", padding=(0, 2), expand=False)
    table.title, table.title_justify, table.title_style = Text(name), "left", "bold"
    rows = {
        "inputs": [_input(spec) for spec in model.inputs],
        "raw inputs": [", ".join(model.media_types)] if model.media_types else [],
        "outputs": [_output(spec) for spec in model.outputs],
        "labels": [_labels(model.labels)] if model.labels else [],
        "data sets": [f"{each.name} {each.rows}{' labelled' * each.labelled}" for each in model.data_sets],
        "checkpoints": [", ".join(f"{rate:g}" for rate in model.checkpoint_rates)] * bool(model.checkpoint_rates),
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
    shown = ", ".join(labels[:_MAX_LABELS])
    return shown if len(labels) <= _MAX_LABELS else f"{shown}, ... ({len(labels)} in all)"


@dataclass
class Node:
    """A module in the tree.

    Attributes:
        info: the module's description.
        operators: the operators of its own forward.
        children: the modules inside it, by the last part of their names.
    """

    info: ModuleInfo
    operators: Sequence[OperatorInfo] = ()
    children: dict[str, Node] = field(default_factory=dict)

    @property
    def signature(self) -> tuple[Any, ...]:
        """All shown properties of the module and of the modules inside it, except names."""
        operators = tuple((_operation(operator), operator.output_shapes, operator.calls) for operator in self.operators)
        inside = tuple((part, child.signature) for part, child in self.children.items())
        return self.info.type, self.info.parameters, self.info.output_shapes, self.info.calls, operators, inside

    @property
    def is_used(self) -> bool:
        """Whether the module or a module inside it was called."""
        return self.info.calls > 0 or any(child.is_used for child in self.children.values())


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        name: the module's name; for several equal modules, the glob that matches them.
        node: the module, or the first of several.
        count: how many modules the row stands for.
    """

    name: str
    node: Node
    count: int


class Tree:
    """The rows of the module tree that are shown.

    Args:
        model: the model's description.
        depth: the number of levels to show; None is all.
        expand: show each of several equal modules, in place of one row for all.

    Attributes:
        model: the model's description.
        rows: the rows, in the order of the tree.
        is_traced: whether the server ran an example, so that shapes and calls are known.
    """

    def __init__(self, model: ModelDetail, depth: int | None, expand: bool) -> None:
        root = _tree(model)
        self.model = model
        self.rows = list(_rows("", root, depth, expand))
        self.is_traced = root.is_used


class ModuleTable:
    """The module tree, with full names, as requests take them; indented if the terminal is too narrow for those."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with_full_names = self._table(_full_name)
        width = console.measure(with_full_names, options=options.update_width(_UNLIMITED_WIDTH)).maximum
        fits = width <= options.max_width
        yield with_full_names if fits else self._table(_indented_name)
        yield Text(" ".join(self._remarks(fits)), style="dim")

    def _table(self, name: Callable[[Row], Text]) -> Table:
        table = empty_table("Modules", "name", "type", "output", "parameters", numbers=1, folds=("name",))
        for row in self._tree.rows:
            dimmed = self._tree.is_traced and not row.node.is_used
            info = row.node.info
            output = Text(_output_text(row.node) if self._tree.is_traced else "")
            cells = name(row), _counted(info.type, row), output, Text(f"{info.parameters:,}")
            table.add_row(*cells, style="dim" if dimmed else "")
        return table

    def _remarks(self, are_full_names: bool) -> Iterator[str]:
        rows = self._tree.rows
        yield _shown(len(rows), len(self._tree.model.modules), "modules")
        if any(row.count > 1 for row in rows):
            yield "A * stands for numbered modules that are equal, and matches them as a glob (--all shows each)."
        if not are_full_names:
            longest = max((row.name for row in rows), key=lambda name: name.count("."))
            yield f"A full name joins its parts with dots: {longest}."
        if not self._tree.is_traced:
            yield "Output shapes are not known: the model has no example input."


def _tree(model: ModelDetail) -> Node:
    operators = defaultdict(list)
    for operator in model.operators:
        operators[operator.address.rpartition(":")[0]].append(operator)
    nodes = {info.name: Node(info, operators[info.name]) for info in model.modules}
    for name, node in nodes.items():
        if name:
            parent, _, part = name.rpartition(".")
            nodes[parent].children[part] = node
    return nodes.get("", Node(ModuleInfo("", "(hidden)", 0)))  # a token without the scope `inspect` sees no modules


def _rows(prefix: str, node: Node, depth: int | None, expand: bool, count: int = 1) -> Iterator[Row]:
    """Yields rows for a module and its children. Equal numbered children share one row, with ``*`` for the number."""
    yield Row(prefix, node, count)
    if depth == 0:
        return
    deeper, start = None if depth is None else depth - 1, f"{prefix}." if prefix else ""
    if not expand and _all_equal(node):
        yield from _rows(f"{start}*", node.children["0"], deeper, expand, count * len(node.children))
        return
    for part, child in node.children.items():
        yield from _rows(start + part, child, deeper, expand, count)


def _all_equal(node: Node) -> bool:
    children = node.children
    numbered = len(children) > 1 and list(children) == [str(index) for index in range(len(children))]
    return numbered and len({child.signature for child in children.values()}) == 1


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


def _output_text(node: Node) -> str:
    if not node.info.calls:
        return "" if node.is_used else "not called"
    return _shapes_text(node.info)


def _shapes_text(info: ModuleInfo | OperatorInfo) -> str:
    shapes = " ".join(str(list(shape)) for shape in info.output_shapes)
    return shapes if info.calls == 1 else f"{shapes}, {info.calls} calls"


def _counted(name: str, row: Row) -> Text:
    """Returns the name of a class or an operator, with its number where the row stands for several modules."""
    return Text(name if row.count == 1 else f"{row.count} x {name}")


def _shown(rows: int, count: int, what: str) -> str:
    return f"{count} {what}." if rows == count else f"{count} {what}, {rows} shown."


def operator_table(tree: Tree) -> Group:
    """Returns the operators inside the modules of ``tree``, in its order, by their addresses, as requests take them."""
    table = empty_table("Operators", "address", "operator", "output", folds=("address", "output"))
    for row in tree.rows:
        for operator in row.node.operators:
            operation = _operation(operator)
            address = Text.assemble((f"{row.name}:", "dim"), operation)
            table.add_row(address, _counted(operation.partition("#")[0], row), Text(_shapes_text(operator)))
    remark = "Operators are not known: the model has no example input."
    if tree.is_traced:
        remark = _shown(table.row_count, len(tree.model.operators), "operators")
    return Group(*([table] if table.row_count else []), Text(remark, style="dim"))


def _operation(operator: OperatorInfo) -> str:
    """Returns the operator's part of its address: ``relu#0`` of ``layer3.1:relu#0``."""
    return operator.address.rpartition(":")[2]
