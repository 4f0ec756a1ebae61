"""Prints the structure of the code: the import graph of each package, and the files that run for one request.

python -m tools.structure              nodes, levels and lines of each part
python -m tools.structure --request    the files that run while one checked request is answered, in order of first use
python -m tools.structure --prediction    the same for a prediction and nothing else
python -m tools.structure --write      the same, written into docs/architecture.md
"""

from __future__ import annotations

import ast
import sys
import threading
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "service" / "cutaway"
PAGE = ROOT / "docs" / "architecture.md"


def source_files() -> dict[tuple[str, ...], Path]:
    """Every hand-written file by its module path below ``cutaway``; a package's ``__init__`` by the package's."""
    files = {}
    for path in sorted(SOURCE.rglob("*.py")):
        if "_pb2" not in path.name:
            parts = path.relative_to(SOURCE).with_suffix("").parts
            files[parts[:-1] if parts[-1] == "__init__" else parts] = path
    return files


def imports_of(path: Path) -> Iterator[tuple[str, ...]]:
    """The modules of ``cutaway`` that a file imports, functions' own imports included."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "cutaway":
            for alias in node.names:
                yield (*node.module.split(".")[1:], alias.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "cutaway":
                    yield tuple(alias.name.split(".")[1:])


def levels(graph: Mapping[str, set[str]]) -> int:
    """The number of nodes on the longest path of an import graph; raises CycleError where there is a cycle."""
    depth: dict[str, int] = {}
    for node in TopologicalSorter(graph).static_order():
        depth[node] = 1 + max((depth[below] for below in graph.get(node, ())), default=0)
    return max(depth.values(), default=0)


def graph_of(package: tuple[str, ...]) -> dict[str, set[str]]:
    """The direct children of ``package`` (modules and packages) and which of their siblings each imports."""
    files = source_files()
    graph: dict[str, set[str]] = {}
    size = len(package)
    children = {parts[size] for parts in files if parts[:size] == package and len(parts) > size}
    for parts, path in files.items():
        if parts[:size] == package and len(parts) > size:
            below = {name[size] for name in imports_of(path) if name[:size] == package and len(name) > size}
            graph.setdefault(parts[size], set()).update((below & children) - {parts[size]})
    return graph


def show_graphs() -> None:
    """Prints nodes, arrows, levels, files and lines of the package and of each package inside it."""
    files = source_files()
    packages = {parts[:-1] for parts in files if len(parts) > 1} | {()}
    print(f"{'package':32}{'nodes':>6}{'arrows':>7}{'levels':>7}{'files':>6}{'lines':>7}")
    for package in sorted(packages):
        inside = [path for parts, path in files.items() if parts[: len(package)] == package]
        lines = sum(len(path.read_text("utf-8").splitlines()) for path in inside)
        graph = graph_of(package)
        arrows = sum(map(len, graph.values()))
        print(f"{'.'.join(('cutaway', *package)):32}{len(graph):6}{arrows:7}{levels(graph):7}{len(inside):6}{lines:7}")


def files_of_a_request(explained: bool = True) -> list[str]:
    """Serves a small network in this process, sends one request over gRPC, and returns the files that ran for it."""
    import numpy as np
    import torch
    from torch import nn

    import cutaway as ca
    from cutaway.gateway import serve

    ran: dict[str, None] = {}
    watching = threading.Event()

    def note(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if watching.is_set() and event == "call" and name.startswith(str(SOURCE)) and "_pb2" not in name:
            ran.setdefault(name.removeprefix(f"{SOURCE}/"))

    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    threading.setprofile(note)
    sys.setprofile(note)
    with serve({"net": network}) as server, ca.Client(server.address) as client:
        request: dict[str, Any] = (
            {}
            if not explained
            else {
                "target": ca.ClassIndex((1,)),
                "captures": [ca.Capture("*", at=("output", "grad_output"))],
                "input_gradients": True,
                "attributions": [ca.IntegratedGradients(n_steps=8)],
            }
        )
        inputs = {"input": np.ones((1, 4), np.float32)}
        client.inspect("net", inputs, **request)  # what is found out once about a model is not part of a request
        watching.set()
        client.inspect("net", inputs, **request)
        watching.clear()
    sys.setprofile(None)
    return [*ran]


def write_page(files: list[str]) -> None:
    """Writes the files of a request into docs/architecture.md."""
    page = PAGE.read_text("utf-8")
    before, _, rest = page.partition("<!-- request -->\n")
    listed = "\n".join([f"{len(files)} files:\n", "```", *files, "```\n"])
    PAGE.write_text(f"{before}<!-- request -->\n{listed}{rest[rest.index('<!-- end of request -->') :]}", "utf-8")


if __name__ == "__main__":
    if "--write" in sys.argv:
        write_page(files_of_a_request())
    elif "--prediction" in sys.argv:
        print(*files_of_a_request(explained=False), sep="\n")
    elif "--request" in sys.argv:
        print(*files_of_a_request(), sep="\n")
    else:
        show_graphs()
