"""Model archives, built: what ``cutaway package`` does."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from cutaway.archive import MANIFEST, MODEL_CONFIG, SCHEMA, Manifest, sha256
from cutaway.errors import CutawayError, Reason, error

HANDLER = "inspection_handler.py"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_VERSION = re.compile(r"[A-Za-z0-9_.-]+")
_SETTINGS = """\
minWorkers: {workers}
maxWorkers: {workers}
batchSize: {batch_size}
maxBatchDelay: {max_batch_delay_ms}
responseTimeout: {response_timeout_s}
"""


def is_model_name(name: str) -> bool:
    """Whether a model can be served under ``name``."""
    return bool(_NAME.fullmatch(name)) and ".." not in name  # which TorchServe takes for a way out of its model store


def handler_file() -> Path:
    """The TorchServe handler that goes into every archive."""
    package = Path(__file__).parent
    installed = package / "handlers" / HANDLER
    return installed if installed.is_file() else package.parent.parent / "handlers" / HANDLER


def build(
    *,
    model: str,
    version: str = "1.0",
    adapter: str,
    weights: Path | None,
    options: Mapping[str, str],
    extra_files: Sequence[Path] = (),
    batch_size: int,
    max_batch_delay_ms: int,
    workers: int,
    response_timeout_s: int,
    destination: Path,
    force: bool = False,
) -> Path:
    """Build ``<destination>/<model>-<version>.mar`` and return its path.

    Args:
        model: the name to serve the model under.
        version: which version of it this is.
        adapter: ``path/to/file.py:Class``, or ``package.module:Class`` for one that is installed.
        weights: a safetensors file, or None for a model that needs none.
        options: the words that the adapter is given.
        extra_files: further files that the adapter reads; they land beside it, without their directories.
        batch_size: the most calls that one run of the model takes.
        max_batch_delay_ms: how long an unfilled batch waits for more calls, at least 1.
        workers: how many copies of the model run.
        response_timeout_s: how long a worker may take over a batch before it is killed.
        destination: the directory that the archive goes to; made if need be.
        force: whether an archive that is there already is replaced.
    """
    if not is_model_name(model):
        raise _invalid(f"{model!r} is no model name: a letter, then letters, digits, _, . and -", "model")
    if not _VERSION.fullmatch(version):
        raise _invalid(f"{version!r} is no version: letters, digits, _, . and -", "version")
    target = destination / f"{model}-{version}.mar"
    if target.exists() and not force:
        raise _invalid(f"{target} is there already; --force (force=True) replaces it", "destination")
    name, files = _adapter(adapter)
    manifest = Manifest(model, version, name, *_weights_identity(weights), dict(options))
    files += [handler_file(), *([weights] if weights else []), *extra_files]
    _check_files(files)
    config = _model_config(
        workers=workers,
        batch_size=batch_size,
        max_batch_delay_ms=max_batch_delay_ms,
        response_timeout_s=response_timeout_s,
    )
    destination.mkdir(parents=True, exist_ok=True)
    # Beside its final place, so that the last step is a rename: whoever looks sees a whole archive or none.
    with tempfile.TemporaryDirectory(prefix=".cutaway-", dir=destination) as scratch:
        _archive(manifest, files, config, Path(scratch)).replace(target)
    return target


def _adapter(adapter: str) -> tuple[str, list[Path]]:
    """The adapter as the manifest names it, and the file that must travel with it, if any."""
    where, colon, name = adapter.rpartition(":")
    if not colon or not name.isidentifier():
        raise _bad_adapter(f"{adapter!r} is neither file.py:Class nor package.module:Class")
    if not where.endswith(".py"):
        _check_class(_module_file(where), name)
        return adapter, []
    file = Path(where)
    _check_class(file, name)
    return f"{file.name}:{name}", [file]


def _module_file(module: str) -> Path:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # of the package that it should be in
        spec = None
    if spec is None or spec.origin is None:
        raise _bad_adapter(f"module {module!r} is not installed here")
    return Path(spec.origin)


def _check_class(file: Path, name: str) -> None:
    """Refuse a file that is not Python or defines no such class. It is parsed, not run: it is not ours."""
    try:
        tree = ast.parse(file.read_bytes(), filename=str(file))
    except OSError as failure:
        raise _bad_adapter(f"{file} cannot be read: {failure.strerror}") from failure
    except (SyntaxError, ValueError) as failure:
        raise _bad_adapter(f"{file} is not Python: {failure}") from failure
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    if name not in classes:
        raise _bad_adapter(f"{file.name} defines no class {name}, but {', '.join(classes) or 'none at all'}")


def _weights_identity(weights: Path | None) -> tuple[str, str]:
    """The name and SHA-256 of the weights, which must be a safetensors file."""
    if weights is None:
        return "", ""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(weights, framework="numpy"), weights.open("rb") as stream:
            return weights.name, sha256(stream)
    except (OSError, SafetensorError) as failure:
        advice = "write one with safetensors.torch.save_file, for pickles are not served"
        raise _invalid(f"{weights} is no safetensors file ({failure}); {advice}", "weights") from failure


def _check_files(files: Iterable[Path]) -> None:
    """Refuse files that are missing, that would overwrite each other, or whose modules would hide another."""
    taken = {MANIFEST, MODEL_CONFIG}
    for file in files:
        if not file.is_file():
            raise _invalid(f"{file} is no file")
        if file.name in taken:
            raise _invalid(f"{file} would be the archive's second {file.name}")
        taken.add(file.name)
        if file.suffix == ".py":
            _check_module_name(file)


def _check_module_name(file: Path) -> None:
    if not file.stem.isidentifier() or file.stem.startswith("__"):
        raise _bad_adapter(f"{file.name} cannot be imported: {file.stem!r} is no name for a module")
    if file.stem in sys.stdlib_module_names or _is_installed(file):
        raise _bad_adapter(f"{file.name} would hide the module {file.stem} that is installed: rename it")


def _is_installed(file: Path) -> bool:
    """Whether another module has that name: in a worker, one of the two would be imported for the other."""
    spec = importlib.util.find_spec(file.stem)
    # No origin: a mere directory, which any module hides. And a file in a directory on the path finds itself.
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() != file.resolve()


def _model_config(**settings: int) -> str:
    """TorchServe's settings for one model. It reads 0 as "unset": a batch would then wait for 100 ms."""
    for name, value in settings.items():
        if value < 1:
            raise _invalid(f"{name} must be at least 1, not {value}", name)
    return _SETTINGS.format(**settings)


def _archive(manifest: Manifest, files: Iterable[Path], config: str, scratch: Path) -> Path:
    """Zip everything up with the torch-model-archiver's own parts.

    Not with its `generate_model_archive`, which deletes ``/tmp/<model name>``, whosever it is, splits file
    names at commas and sets up logging. Links, not copies, and no compression: weights are large and dense.
    """
    from model_archiver.model_archiver_config import ModelArchiverConfig
    from model_archiver.model_packaging_utils import ModelExportUtils

    staging = scratch / "files"
    staging.mkdir()
    for file in files:
        (staging / file.name).symlink_to(file.resolve())
    (staging / MANIFEST).write_text(json.dumps({"schema": SCHEMA, **asdict(manifest)}, indent=2) + "\n")
    (staging / MODEL_CONFIG).write_text(config)
    served = ModelExportUtils.generate_manifest_json(
        ModelArchiverConfig(manifest.model, HANDLER, manifest.version, config_file=MODEL_CONFIG)
    )
    ModelExportUtils.archive(str(scratch), manifest.model, str(staging), served, archive_format="zip-store")
    return scratch / f"{manifest.model}.mar"


def _bad_adapter(what: str) -> CutawayError:
    return error(Reason.ADAPTER_INVALID, what, "adapter")


def _invalid(what: str, field: str = "") -> CutawayError:
    return error(Reason.INVALID_VALUE, what, field)
