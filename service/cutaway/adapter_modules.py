"""The modules of adapters: a package for each, whose modules also have their plain names while its model loads."""

from __future__ import annotations

import builtins
import importlib
import itertools
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any


def import_file(path: Path) -> ModuleType:
    """Imports an adapter's file as a module of a package of its own, in which the files beside it are the others.

    Two adapters with a ``helpers.py`` each stay apart, and what the file defines can be pickled, as in any module.
    """
    if _FILES not in sys.meta_path:
        sys.meta_path.insert(0, _FILES)
    name, folder = f"{_PACKAGE}{next(_NUMBERS)}", str(path.parent)
    spec = ModuleSpec(name, SourceFileLoader(name, f"{folder}/__init__.py"), is_package=True)
    spec.submodule_search_locations = [folder]
    package = sys.modules[name] = module_from_spec(spec)  # its code is not run; its loader finds the files
    if path.parent == _FILES.folder:
        _FILES.package = name
    try:
        return importlib.import_module(f"{package.__name__}.{path.stem}")
    except BaseException:
        for name in [name for name in sys.modules if name.partition(".")[0] == package.__name__]:
            del sys.modules[name]
        raise


_PACKAGE = "cutaway_adapter_"

_NUMBERS = itertools.count()


def use_plain_names(directory: Path) -> None:
    """Lets all code of this process import the files in ``directory`` by their plain names, as pickle does.

    These are the modules that the adapter itself imports: no file is run twice.
    """
    _FILES.folder, _FILES.package = directory, ""


@contextmanager
def plain_names(directory: Path) -> Iterator[None]:
    """Does what `use_plain_names` does while the block runs: the process may have other models, and modules of these
    names."""
    names = {path.stem for path in directory.glob("*.py")} | {
        path.parent.name for path in directory.glob("*/__init__.py")
    }
    others = _removed(names)
    use_plain_names(directory)
    try:
        yield
    finally:
        if _FILES.folder == directory:  # else this block did not end in time, and another has begun
            _FILES.folder = None
        _removed(names)
        sys.modules.update(others)


def _removed(names: Collection[str]) -> dict[str, ModuleType]:
    """Removes modules and their submodules from those that are imported; returns them."""
    return {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] in names}


class _Files(MetaPathFinder):
    """Finds the modules of the packages that `import_file` makes, one of them by plain names too.

    Attributes:
        folder: the folder of the package whose modules have plain names.
        package: that package; the empty string before it is made.
    """

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.package = ""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        """Returns the spec of a module; None for those of other packages."""
        if path is None or not fullname.startswith(_PACKAGE):
            is_own = self.folder is not None and self.package and _has_module(self.folder, fullname)
            return ModuleSpec(fullname, _PlainName()) if is_own else None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _File(fullname, spec.loader.path)
        return spec


_FILES = _Files()


class _PlainName(Loader):
    """Loads a module of an adapter's package under its plain name."""

    def exec_module(self, module: ModuleType) -> None:
        """Puts the module of the package in the place of ``module``; one that is run puts itself there."""
        name = module.__name__
        del sys.modules[name]
        own = importlib.import_module(f"{_FILES.package}.{name}")
        sys.modules[name] = own


class _File(SourceFileLoader):
    """Loads a file whose code imports the files of its package by their plain names: ``import helpers``."""

    def exec_module(self, module: ModuleType) -> None:
        """Runs the code of ``module``."""
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": partial(_import, module.__name__)}
        package, _, plain = module.__name__.partition(".")
        has_plain = package == _FILES.package and sys.modules.setdefault(plain, module) is module
        try:
            super().exec_module(module)
        except BaseException:
            if has_plain:
                del sys.modules[plain]
            raise


def _import(
    importer: str, name: str, variables: Any = None, local: Any = None, attributes: Sequence[str] = (), level: int = 0
) -> ModuleType:
    """Does what ``__import__`` does, for the code of the module ``importer``."""
    package, top = importer.partition(".")[0], name.partition(".")[0]
    if level or not _has_module(Path(sys.modules[package].__path__[0]), name):
        return builtins.__import__(name, variables, local, attributes, level)
    module = importlib.import_module(f"{package}.{name}")
    if not attributes:
        return sys.modules[f"{package}.{top}"]
    return builtins.__import__(module.__name__, variables, local, attributes)


def _has_module(directory: Path, name: str) -> bool:
    """Returns whether a module with this name, or its package, is in a directory."""
    top = name.partition(".")[0]
    return (directory / f"{top}.py").is_file() or (directory / top / "__init__.py").is_file()
