"""Model archives: what a `.mar` made by ``cutaway package`` holds, built and read back.

An archive is a zip that TorchServe can serve as it is, and that says, in ``cutaway.json``, what Cutaway must
know to load the model: the adapter, the weights, their SHA-256. Weights are safetensors; no pickle gets in.
"""

from __future__ import annotations

import ast
import errno
import hashlib
import importlib.util
import json
import re
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, Any

from cutaway.errors import CutawayError, Reason, error

MANIFEST = "cutaway.json"
TORCHSERVE_MANIFEST = "MAR-INF/MANIFEST.json"
MODEL_CONFIG = "model-config.yaml"
HANDLER = "inspection_handler.py"
SCHEMA = 1  # of cutaway.json; a reader refuses one that it does not know
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_VERSION = re.compile(r"[A-Za-z0-9_.-]+")
_SETTINGS = """\
minWorkers: {workers}
maxWorkers: {workers}
batchSize: {batch_size}
maxBatchDelay: {max_batch_delay_ms}
responseTimeout: {response_timeout_s}
"""
_WORKER_COUNTS = re.compile(r"(?m)^((?:min|max)Workers):.*$")


@dataclass(frozen=True)
class Manifest:
    """What an archive says of itself.

    Attributes:
        model: the name that the model is served under.
        version: which version of it this is.
        adapter: ``digits_adapter.py:Digits``, a class in a file of the archive, or
            ``cutaway.adapters:ResNet``, a class in an installed module.
        weights: the name of the safetensors file in the archive, ``""`` for none.
        weights_sha256: its SHA-256 in hexadecimal.
        options: the words that the adapter is given.
    """

    model: str
    version: str
    adapter: str
    weights: str = ""
    weights_sha256: str = ""
    options: dict[str, str] = field(default_factory=dict)


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
    """Build ``<destination>/<model>.mar`` and return its path.

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
    if not _NAME.fullmatch(model) or ".." in model:  # which TorchServe takes for a way out of its model store
        raise _invalid(f"{model!r} is no model name: a letter, then letters, digits, _, . and -", "model")
    if not _VERSION.fullmatch(version):
        raise _invalid(f"{version!r} is no version: letters, digits, _, . and -", "version")
    target = destination / f"{model}.mar"
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
            return weights.name, _sha256(stream)
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


def read(path: Path) -> Manifest:
    """The manifest of the archive at ``path``, after every byte of it has been checked."""
    with _opened(path) as archive:
        return _verified(archive)


def unpack(path: Path, directory: Path, *, workers: int | None = None) -> None:
    """Unpack the archive at ``path`` into ``directory`` for TorchServe, checking every byte on the way.

    ``workers`` replaces the number of workers that the archive asks for.
    """
    with _opened(path) as archive:
        archive.extractall(directory)
    config = directory / MODEL_CONFIG
    if workers is not None and config.is_file():
        config.write_text(_WORKER_COUNTS.sub(rf"\1: {workers}", config.read_text()))


def unpacked(directory: Path) -> Manifest:
    """The manifest of an archive that was unpacked into ``directory``. Cheap: nothing else is checked."""
    with _blaming(str(directory)):
        try:
            return _parsed((directory / MANIFEST).read_bytes())
        except OSError as failure:
            raise _Damage(f"{MANIFEST} cannot be read ({failure.strerror})") from failure


class _Damage(Exception):
    """What is wrong with an archive; `_blaming` adds whose it is and what to do."""


@contextmanager
def _blaming(name: str) -> Iterator[None]:
    try:
        yield
    # Besides its own error, zipfile lets out all of these for one wrong byte or another.
    except (_Damage, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, OSError) as failure:
        if isinstance(failure, OSError) and failure.errno != errno.EINVAL:  # EINVAL is an offset gone wrong
            raise
        what = f"{name}: {failure}; rebuild it with `cutaway package`"
        raise error(Reason.ARCHIVE_CORRUPT, what) from failure


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    if not path.is_file():
        raise error(Reason.MODEL_NOT_FOUND, f"{path}: there is no such file")
    with _blaming(path.name), zipfile.ZipFile(path) as archive:
        yield archive


def _verified(archive: zipfile.ZipFile) -> Manifest:
    damaged = archive.testzip()
    if damaged is not None:
        raise _Damage(f"{damaged} is damaged (its checksum is wrong)")
    _check_present(archive, TORCHSERVE_MANIFEST, MANIFEST)
    served = _json(TORCHSERVE_MANIFEST, archive.read(TORCHSERVE_MANIFEST)).get("model")
    manifest = _parsed(archive.read(MANIFEST))
    # TorchServe goes by its own manifest: both must speak of one model.
    if not isinstance(served, dict) or served.get("modelName") != manifest.model:
        raise _Damage(f"{TORCHSERVE_MANIFEST} and {MANIFEST} do not name the same model")
    adapter = manifest.adapter.rpartition(":")[0]
    _check_present(archive, *([adapter] if adapter.endswith(".py") else []))
    if manifest.weights:
        _check_weights(archive, manifest)
    return manifest


def _check_present(archive: zipfile.ZipFile, *members: str) -> None:
    for member in members:
        if member not in archive.namelist():
            raise _Damage(f"{member} is missing")


def _check_weights(archive: zipfile.ZipFile, manifest: Manifest) -> None:
    _check_present(archive, manifest.weights)
    with archive.open(manifest.weights) as stream:
        if _sha256(stream) != manifest.weights_sha256:
            raise _Damage(f"{manifest.weights} is not what was packaged (its SHA-256 is another)")


def _parsed(text: bytes) -> Manifest:
    values = _json(MANIFEST, text)
    schema, options = values.pop("schema", None), values.pop("options", None)
    if schema != SCHEMA:
        raise _Damage(f"{MANIFEST} has schema {schema!r}, and this Cutaway reads {SCHEMA}")
    texts = [*values.values(), *options.values()] if isinstance(options, dict) else [None]
    known = {*values, "options"} == {item.name for item in fields(Manifest)}
    if not known or not all(isinstance(text, str) for text in texts):
        raise _Damage(f"{MANIFEST} does not hold what it should")
    return Manifest(**values, options=options)


def _json(member: str, text: bytes) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except ValueError as failure:
        raise _Damage(f"{member} is not JSON ({failure})") from failure
    if not isinstance(values, dict):
        raise _Damage(f"{member} does not hold what it should")
    return values


def _sha256(stream: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := stream.read(1 << 20):
        digest.update(chunk)
    return digest.hexdigest()


def _bad_adapter(what: str) -> CutawayError:
    return error(Reason.ADAPTER_INVALID, what, "adapter")


def _invalid(what: str, field: str = "") -> CutawayError:
    return error(Reason.INVALID_VALUE, what, field)
