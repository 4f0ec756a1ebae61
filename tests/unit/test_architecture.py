"""The shape of the code: imports run one way, the client stays light, hooks have one home, rooms stay small."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "service"
HANDLER = ROOT / "handlers" / "inspection_handler.py"

LAYERS = [
    "v1",
    "contract",
    "views",
    "client",
    "cutaway",
    "engine",
    "adapter_modules",
    "adapters",
    "server",
    "gateway",
    "jobs",
    "cli",
]
"""The parts of the package; each may import those before it. A new part needs a place here."""

INNER_LAYERS = {
    "contract": [
        *("values", "errors", "json_text", "pictures", "tensors", "requests", "results", "wire"),
        *("torchserve_messages", "request_reader", "addresses"),
    ],
    "engine": [
        *("runtime", "model", "hooks", "passes", "references", "methods", "planning", "checks"),
        *("execution", "cost", "batching", "rehearsal"),
    ],
    "server": [
        *("file_watch", "archive", "worker_protocol", "model_store", "settings", "memory"),
        *("load_records", "child_processes", "worker", "processes", "ray"),
        *("listening", "auth", "deadlines", "batching", "observability", "backends", "rpc"),
        *("http", "open_inference"),
        *("lifecycle", "application", "embedded", "server"),
    ],
}
"""The same inside the larger parts, package by package."""

CLIENT_SIDE = set(LAYERS[: LAYERS.index("cutaway") + 1])
CLIENT_PACKAGES = {"google", "google_crc32c", "grpc", "ml_dtypes", "numpy"}
OPTIONAL_PACKAGES = {
    "cutaway.contract.pictures": {"PIL"},
    "cutaway.contract.tensors": {"zstandard"},
    "cutaway.contract.request_reader.files": {"yaml"},
    "cutaway.client.connect_channel": {"connectrpc", "pyqwest"},
    "cutaway.views.plots": {"matplotlib"},
    "cutaway.views.drawings": {"matplotlib"},
    "cutaway.views.sheets": {"matplotlib"},
    "cutaway.views.pictures": {"PIL", "matplotlib"},
    "cutaway.views.frames": {"pandas", "xarray"},
    "cutaway.views.programs": {"yaml"},
    "cutaway.views.progress": {"IPython", "rich"},
    "cutaway.views.tables": {"rich"},
}
"""Packages outside the base install that a function of a module imports. Without them, compression raises an error that
says what to install, as displays and plots do; the trace context does nothing."""
TERMINAL_PACKAGES = {"matplotlib", "rich", "typer", "yaml"}
ENGINE_PACKAGES = {"captum", "jaxtyping", "ml_dtypes", "numpy", "re2", "scipy", "skimage", "sklearn", "torch"}
ENGINE_MAY_IMPORT = {"contract", "engine"}


@dataclass(frozen=True)
class Module:
    """One file of the package.

    Attributes:
        name: its dotted name, ``cutaway.engine.execution.inspect``.
        path: where it lies.
    """

    name: str
    path: Path

    @property
    def part(self) -> str:
        """Which part of the package it belongs to: ``engine``; ``cutaway`` for the package's own ``__init__``."""
        return [*self.name.split("."), self.name][1]

    @property
    def generated(self) -> bool:
        return "_pb2" in self.path.name

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_bytes(), filename=str(self.path))

    def imports(self, *, lazy: bool) -> set[str]:
        """What it imports when it is imported; with ``lazy``, also what its functions import when they run."""
        package = self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]
        return {name for node in _imports(self.tree, lazy) for name in _imported(node, package)} - {self.name}


def _imports(node: ast.AST, lazy: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from _imports(other, lazy)
        elif lazy or not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _imports(child, lazy)


def _imported(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[str]:
    """The modules that one statement imports, as full names: those of our own as deep as they are modules."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
    source = ".".join([*above, *([node.module] if node.module else [])])
    for alias in node.names:
        inner = f"{source}.{alias.name}"
        yield inner if inner in MODULES else source


def _module(path: Path) -> Module:
    parts = path.relative_to(SOURCES).with_suffix("").parts
    return Module(".".join(parts[:-1] if parts[-1] == "__init__" else parts), path)


MODULES = {module.name: module for module in map(_module, sorted(SOURCES.rglob("*.py")))}
OWN = [module for module in MODULES.values() if not module.generated]


def third_party(names: set[str]) -> set[str]:
    """The packages among ``names`` that are neither ours nor Python's."""
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"cutaway"}


def reached_from(*names: str) -> set[str]:
    """All that is imported when modules ``names`` are: themselves, what they import, and so on."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [*MODULES[name].imports(lazy=False)] if name in MODULES else []
    return found


def test_the_parser_sees_imports() -> None:
    """What follows is no empty promise: known imports are seen, at the top, in functions, and of whole modules."""
    assert "cutaway.engine.execution.collect" in MODULES["cutaway.server.worker.worker"].imports(lazy=False)
    assert "cutaway.server.archive.reader" in MODULES["cutaway.server.worker.worker"].imports(lazy=False)
    assert "cutaway.server.application" in MODULES["cutaway.cli.serving"].imports(lazy=True)
    assert "cutaway.server.application" not in MODULES["cutaway.cli.serving"].imports(lazy=False)
    assert {"torch", "captum", "pydantic"} <= third_party(reached_from("cutaway.server.lifecycle.in_process"))
    assert {module.part for module in OWN} <= set(LAYERS), "a new part of the package: give it a place in LAYERS"


def test_imports_run_downwards() -> None:
    """A part of the package imports only parts below it, not even in passing from inside a function."""
    for module in MODULES.values():
        for name in module.imports(lazy=True) & set(MODULES):
            assert LAYERS.index(MODULES[name].part) <= LAYERS.index(module.part), f"{module.name} imports {name}"


@pytest.mark.parametrize("part", INNER_LAYERS)
def test_packages_of_a_part_import_downwards(part: str) -> None:
    """Inside the larger parts, too, a package imports only packages below it."""
    inside = {name: [*name.split("."), part][2] for name in MODULES if MODULES[name].part == part}
    layers = INNER_LAYERS[part]
    assert set(layers) <= set(inside.values())  # none that is gone
    for name, package in inside.items():
        for imported in (MODULES[name].imports(lazy=True) & inside.keys()) - {f"cutaway.{part}"}:
            assert layers.index(inside[imported]) <= layers.index(package), f"{name} imports {imported}"


def test_no_import_circle() -> None:
    """No two modules need each other to be imported."""
    graph = {module.name: module.imports(lazy=False) & set(MODULES) for module in MODULES.values()}
    assert len(list(TopologicalSorter(graph).static_order())) == len(MODULES)  # raises CycleError, naming the circle


def test_engine_knows_nothing_of_serving() -> None:
    """The engine is torch in, torch out: no protobuf, no gRPC, no files, no TorchServe."""
    engine = [module for module in OWN if module.part == "engine"]
    assert engine
    for module in engine:
        names = module.imports(lazy=True)
        assert third_party(names) <= ENGINE_PACKAGES, module.name  # and so no protobuf
        assert {MODULES[name].part for name in names & set(MODULES)} <= ENGINE_MAY_IMPORT, module.name
        assert not {name.partition(".")[0] for name in names} & {"io", "os", "pathlib", "socket", "subprocess"}


def test_client_side_needs_only_the_base_install() -> None:
    """What `import cutaway` brings in, directly or not, is what `pip install cutaway` brings along."""
    assert third_party(reached_from("cutaway")) == CLIENT_PACKAGES
    assert MODULES.keys() >= OPTIONAL_PACKAGES.keys()  # none that is gone
    for module in OWN:
        if module.part in CLIENT_SIDE:
            optional = OPTIONAL_PACKAGES.get(module.name, set())
            assert third_party(module.imports(lazy=True)) <= CLIENT_PACKAGES | optional, module.name


def test_command_line_starts_without_the_server() -> None:
    """`pip install 'cutaway[cli]'` is enough to ask questions: what needs torch is imported by the commands that do."""
    assert third_party(reached_from("cutaway.cli.application", "cutaway.views.tables", "cutaway.views.plots")) <= (
        CLIENT_PACKAGES | TERMINAL_PACKAGES
    )


@pytest.mark.parametrize(
    "names",
    [
        ("cutaway.client",),
        ("cutaway.gateway", "cutaway.server.application"),
        ("cutaway.jobs", "cutaway.jobs.report", "cutaway.jobs.progress", "cutaway.jobs.engines.service"),
    ],
    ids=["client", "gateway", "jobs"],
)
def test_packages_import_without_torch(names: tuple[str, ...], tmp_path: Path) -> None:
    """The client, the gateway and batch jobs import neither torch nor Captum: a gateway whose models run elsewhere, a
    job that a service computes, and a reader of results need none. Only `server.lifecycle.in_process`,
    `jobs.engines.local` and `jobs.engines.ray`, which run models in their own processes, import them."""
    heavy = {"torch", "captum", "safetensors"}
    assert not third_party(reached_from(*names)) & heavy
    script = f"import sys, {', '.join(names)}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert not set(loaded.stdout.split()) & heavy


def test_import_loads_no_more_than_it_must(tmp_path: Path) -> None:
    """`import cutaway` costs an application neither torch nor Captum, and of Google's modules only what errors need."""
    script = "import sys; before = set(sys.modules); import cutaway; print(*sorted(set(sys.modules) - before))"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path
    ).stdout.split()
    # gRPC looks for these itself, to offer them as grpc.health and so on; Cython's have no file.
    optional = {"grpc_health", "grpc_reflection", "grpc_status", "grpc_tools"}
    packages = {name for name in third_party(set(loaded)) if "cython" not in name} - optional
    assert packages == CLIENT_PACKAGES | {"typing_extensions"}  # grpc's
    google = {name for name in loaded if name.startswith("google.rpc.")}
    assert google == {"google.rpc.status_pb2", "google.rpc.error_details_pb2"}
    ours = {name.split(".")[1] for name in loaded if name.startswith("cutaway.")}
    assert ours <= CLIENT_SIDE | {"errors", "requests", "results"}  # other names of what is in contract


HOOKS_HOME = "cutaway.engine.hooks.observe"
TENSOR_HOOKS_HOMES = {
    "cutaway.engine.checks.function_checks",
    "cutaway.engine.hooks.hook_site",
    "cutaway.engine.passes.pass_recorder",
    "cutaway.engine.model.session",
}


def test_hooks_have_one_home() -> None:
    """Hooks on modules are registered in one file, which also removes them: `engine/hooks/observe.py`. Hooks on single
    tensors, which go with the tensor, have four; one on a node of a graph, which goes with the node, has one."""
    users: dict[str, set[str]] = {}
    for module in [*OWN, Module("handler", HANDLER)]:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and node.attr.startswith("register_") and "hook" in node.attr:
                users.setdefault(node.attr, set()).add(module.name)
    assert users.pop("register_hook") == TENSOR_HOOKS_HOMES
    assert users.pop("register_prehook") == {HOOKS_HOME, "cutaway.engine.checks.function_calls"}
    assert users["register_forward_hook"] == users["register_forward_pre_hook"] == {HOOKS_HOME}
    assert all(homes == {HOOKS_HOME} for homes in users.values()), users


def test_nothing_is_unpickled() -> None:
    """No file or message is ever read as a pickle, which could run what its author likes."""
    for module in [*OWN, Module("handler", HANDLER)]:
        assert not third_party(module.imports(lazy=True)) & {"cloudpickle", "dill", "joblib"}, module.name
        assert not module.imports(lazy=True) & {"marshal", "pickle", "shelve", "torch.serialization"}, module.name
        calls = {ast.unparse(node.func) for node in ast.walk(module.tree) if isinstance(node, ast.Call)}
        assert not calls & {"torch.load", "torch.save", "torch.jit.load", "eval", "exec"}, module.name
        assert "allow_pickle=True" not in module.path.read_text("utf-8").replace(" ", ""), module.name


def test_no_cancellation_is_swallowed() -> None:
    """As asyncio's own does it before Python 3.12."""
    for module in OWN:
        calls = {ast.unparse(node.func) for node in ast.walk(module.tree) if isinstance(node, ast.Call)}
        assert "asyncio.wait_for" not in calls, f"{module.name}: gateway.time_limit.within does it"


def test_types_that_are_read_while_cutaway_runs_are_classes() -> None:
    """From NumPy 2.5 on, `NDArray` is no class for those who read types, as the reader of requests and jaxtyping."""
    alias = re.compile(r"^\w+: TypeAlias = (?!\")[^#\n]*NDArray", re.MULTILINE)
    assert not [path for path in SOURCES.rglob("*.py") if alias.search(path.read_text("utf-8"))]


def test_files_hold_one_subject() -> None:
    """No file has more than 500 lines: more is two subjects."""
    for path in [*(module.path for module in OWN), HANDLER, *(ROOT / "examples").rglob("*.py")]:
        assert len(path.read_text("utf-8").splitlines()) <= 500, path.name


def test_handler_is_thin() -> None:
    """TorchServe wants exactly one class in the handler's file, and reports an ImportError of it as a missing handler:
    so nothing is imported at its top but what Python brings along. All else is in the package, where it is tested."""
    handler = Module("handler", HANDLER)
    assert [type(node) for node in ast.walk(handler.tree)].count(ast.ClassDef) == 1
    assert len(HANDLER.read_text("utf-8").splitlines()) < 80
    assert {name.partition(".")[0] for name in handler.imports(lazy=False)} <= sys.stdlib_module_names
    assert handler.imports(lazy=True) & set(MODULES) <= {"cutaway.server.worker.process", "cutaway.contract.results"}
