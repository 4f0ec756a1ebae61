"""The builder of model archives, for ``cutaway package``."""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType

from cutaway.contract.errors import CutawayError, Reason, error
from cutaway.contract.values import url_fault
from cutaway.server.archive.reader import (
    MANIFEST,
    MODEL_CONFIG,
    SCHEMA,
    ArchiveManifest,
    name_fault,
    sha256,
    version_fault,
)

HANDLER = "inspection_handler.py"
CAUSAL_LM = "cutaway.adapters.causal_lm:CausalLMAdapter"
"""The adapter of language models of transformers."""

_SETTINGS = """\
minWorkers: {workers}
maxWorkers: {workers}
batchSize: {batch_size}
maxBatchDelay: {max_batch_delay_ms}
responseTimeout: {response_timeout_s}
"""


def check_model_name(name: str, field: str) -> None:
    """Raises ``INVALID_VALUE``, with ``field``, if no model can be served under ``name``."""
    if fault := name_fault(name):
        raise _invalid(fault, field)


def handler_file() -> Path:
    """Returns the path of the TorchServe handler, which every archive contains."""
    package = Path(__file__).parents[2]
    installed = package / "handlers" / HANDLER
    return installed if installed.is_file() else package.parent.parent / "handlers" / HANDLER


def of_transformers(directory: Path) -> tuple[Path | None, list[Path]]:
    """Returns the weights, None if they are in several files, and the other files that make up a model of transformers.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, if ``save_pretrained`` of a model and its tokenizer did not write it.
    """
    for needed in ("config.json", "tokenizer_config.json"):
        if not (directory / needed).is_file():
            what = f"{directory} has no {needed}: save_pretrained() of the model and of its tokenizer write the files"
            raise _invalid(what, "transformers")
    weights = directory / "model.safetensors"
    if weights.is_file():
        shards: list[Path] = []
    elif not (shards := sorted(directory.glob("model*.safetensors*"))):
        raise _invalid(
            f"{directory} has no model.safetensors, and no parts of it; pickles are not served", "transformers"
        )
    others = [file for file in sorted(directory.iterdir()) if file.suffix in _OF_TRANSFORMERS and file not in shards]
    return (None if shards else weights), [*others, *shards]


_OF_TRANSFORMERS = (".json", ".jinja", ".model", ".txt")
"""Files of configurations, templates and tokenizers."""


def build(
    *,
    model: str,
    version: str = "1.0",
    adapter: str,
    weights: Path | None,
    options: Mapping[str, str],
    extra_files: Sequence[Path] = (),
    matrices: Mapping[str, Path] = MappingProxyType({}),
    data_sets: Mapping[str, Path] = MappingProxyType({}),
    checkpoints: Sequence[tuple[float, Path]] = (),
    batch_size: int,
    max_batch_delay_ms: int,
    workers: int,
    response_timeout_s: int,
    destination: Path,
    force: bool = False,
    random_weights: bool = False,
    check: Callable[[Path, Path | None], None] | None = None,
) -> Path:
    """Builds ``<destination>/<model>-<version>.mar``, and returns its path.

    Args:
        model: the name to serve the model under.
        version: its version.
        adapter: ``path/to/file.py:Class``, or ``package.module:Class`` for an installed module.
        weights: a safetensors file, or None.
        options: keyword arguments of the adapter.
        extra_files: further files and folders for the adapter; they are put beside it, folders with what is in them.
        matrices: by name, safetensors files with ``weight`` [outputs, size], and perhaps ``bias`` and ``threshold``
            [outputs]; or directories as SAE Lens writes them.
        data_sets: by name, safetensors files with the model's inputs [examples, ...], and perhaps ``labels`` [examples]
            int64; or texts, one a line; or folders of files that the adapter decodes, perhaps in one for each class.
        checkpoints: learning rates of the training, each with a safetensors file of the model's state there.
        batch_size: the most calls in a batch that TorchServe makes.
        max_batch_delay_ms: how long TorchServe waits for more calls, at least 1.
        workers: number of copies of the model.
        response_timeout_s: a worker that takes longer for a batch is killed.
        destination: directory of the archive; created if it does not exist.
        force: whether an existing archive is replaced.
        random_weights: whether a model without weights may have random parameters.
        check: called with the new archive and ``weights`` before it is put into ``destination``; if it raises, no
            archive is put there.

    Raises:
        InvalidArgument: ``INVALID_VALUE`` or ``ADAPTER_INVALID``, with the argument's name.
    """
    check_model_name(model, "model")
    if fault := version_fault(version):
        raise _invalid(fault, "version")
    if fault := url_fault(destination):
        raise _invalid(fault, "destination")
    target = destination / f"{model}-{version}.mar"
    if target.exists() and not force:
        raise _invalid(f"{target} exists already; --force (force=True) replaces it", "destination")
    if weights and random_weights:
        raise _invalid("a model with weights has no random ones", "random_weights")
    name, files = _adapter(adapter)
    manifest = ArchiveManifest(model, version, name, *_weights_identity(weights), dict(options), random_weights)
    files += [handler_file(), *([weights] if weights else [])]
    members = _with_checkpoints(
        _with_data_sets(_with_matrices(_members(files, extra_files), matrices), data_sets), checkpoints
    )
    settings = {
        "workers": workers,
        "batch_size": batch_size,
        "max_batch_delay_ms": max_batch_delay_ms,
        "response_timeout_s": response_timeout_s,
    }
    for setting, value in settings.items():
        if value < 1:  # TorchServe reads 0 as "unset": a batch would then wait for 100 ms
            raise _invalid(f"{setting} must be at least 1, not {value}", setting)
    destination.mkdir(parents=True, exist_ok=True)
    # In the same directory, so that the last step is a rename: the archive is never visible in part.
    with tempfile.TemporaryDirectory(prefix=".cutaway-", dir=destination) as scratch:
        archive = _archive(manifest, members, _SETTINGS.format(**settings), Path(scratch))
        if check is not None:
            check(archive, weights)
        archive.replace(target)
    return target


def _adapter(adapter: str) -> tuple[str, list[Path]]:
    """Returns the adapter as the manifest names it, and the file that the archive must contain, if any."""
    source, colon, name = adapter.rpartition(":")
    if not colon or not name.isidentifier():
        raise _bad_adapter(f"{adapter!r} is neither file.py:Class nor package.module:Class")
    if not source.endswith(".py"):
        _check_class(_module_file(source), name)
        return adapter, []
    file = Path(source)
    _check_class(file, name)
    return f"{file.name}:{name}", [file]


def _module_file(module: str) -> Path:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # of its parent package
        spec = None
    if spec is None or spec.origin is None:
        raise _bad_adapter(f"module {module!r} is not installed here")
    return Path(spec.origin)


def _check_class(file: Path, name: str) -> None:
    """Refuses a file that is not Python or has no such class. The file is parsed, not run."""
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
    """Returns name and SHA-256 of the weights, which must be a safetensors file."""
    if weights is None:
        return "", ""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(weights, framework="numpy"), weights.open("rb") as stream:
            return weights.name, sha256(stream)
    except (OSError, SafetensorError) as failure:
        advice = "write one with safetensors.torch.save_file; pickles are not served"
        raise _invalid(f"{weights} is no safetensors file ({failure}); {advice}", "weights") from failure


def _members(files: Iterable[Path], extra_files: Iterable[Path]) -> dict[str, Path]:
    """Returns the files of an archive by their names in it.

    Refuses files that are missing, have the same name, or would hide an installed module; and requirements, which
    nobody would install.
    """
    members: dict[str, Path] = {}
    for path in [*files, *extra_files]:
        name = path.name if path.name not in ("", "..") else path.resolve().name
        if path.is_dir():
            inside = [file for file in sorted(path.rglob("*")) if not file.is_dir() and "__pycache__" not in file.parts]
            found = {f"{name}/{file.relative_to(path).as_posix()}": file for file in inside}
        else:
            found = {name: path}
        if name in {MANIFEST, MODEL_CONFIG, "MAR-INF", *(member.partition("/")[0] for member in members)}:
            raise _invalid(f"{path} would be the archive's second {name}; put files of one name into folders")
        if name == "requirements.txt":
            raise _invalid(f"{path} would be ignored: install the packages where the model is served, and leave it out")
        if not found or not all(file.is_file() for file in found.values()):
            raise _invalid(f"{path} is no file, and no folder of files")
        if path.suffix == ".py" or f"{name}/__init__.py" in found:
            _check_module_name(path)
        members |= found
    return members


def _with_matrices(members: Mapping[str, Path], matrices: Mapping[str, Path]) -> dict[str, Path]:
    """Returns the files of an archive with those of its matrices; a worker reads what is in them."""
    if matrices and any(name.startswith("matrices/") for name in members):
        raise _invalid("a folder 'matrices' is among the extra files already: call it otherwise", "matrix")
    found = dict(members)
    for name, path in matrices.items():
        if fault := name_fault(name):
            raise _invalid(fault.replace("model name", "name of a matrix"), "matrix")
        parts = {f"/{file}": path / file for file in _OF_SAE_LENS} if path.is_dir() else {".safetensors": path}
        for end, file in parts.items():
            if not file.is_file():
                raise _invalid(f"there is no file {file}", "matrix")
            found[f"matrices/{name}{end}"] = file
    return found


_OF_SAE_LENS = ("cfg.json", "sae_weights.safetensors")
"""The files of a sparse autoencoder that SAE Lens wrote."""


def _with_data_sets(members: Mapping[str, Path], data_sets: Mapping[str, Path]) -> dict[str, Path]:
    """Returns the files of an archive with those of its data sets; a worker reads what is in them."""
    if data_sets and any(name.startswith("data_sets/") for name in members):
        raise _invalid("a folder 'data_sets' is among the extra files already: call it otherwise", "data_set")
    found = dict(members)
    for name, path in data_sets.items():
        if fault := name_fault(name):
            raise _invalid(fault.replace("model name", "name of a data set"), "data_set")
        if path.is_dir():
            files = [file for file in path.rglob("*") if file.is_file() and not file.name.startswith(".")]
            if not files:
                raise _invalid(f"{path} is a folder without files", "data_set")
            found |= {f"data_sets/{name}/{file.relative_to(path).as_posix()}": file for file in files}
        elif path.suffix not in (".safetensors", ".txt") or not path.is_file():
            raise _invalid(f"{path} is no folder, and no file whose name ends in .safetensors or .txt", "data_set")
        else:
            found[f"data_sets/{name}{path.suffix}"] = path
    return found


def _with_checkpoints(members: Mapping[str, Path], checkpoints: Sequence[tuple[float, Path]]) -> dict[str, Path]:
    """Returns the files of an archive with those of the checkpoints, called by their number and learning rate."""
    if checkpoints and any(name.startswith("checkpoints/") for name in members):
        raise _invalid("a folder 'checkpoints' is among the extra files already: call it otherwise", "checkpoint")
    found = dict(members)
    for number, (rate, path) in enumerate(checkpoints):
        if not (0 < rate < math.inf and path.is_file()):
            raise _invalid(f"{rate:g}={path}: give a learning rate above 0, and a file of safetensors", "checkpoint")
        found[f"checkpoints/{number}@{rate!r}.safetensors"] = path
    return found


def _check_module_name(file: Path) -> None:
    if not file.stem.isidentifier() or file.stem.startswith("__"):
        raise _bad_adapter(f"{file.name} cannot be imported: {file.stem!r} is no name for a module")
    if file.stem in sys.stdlib_module_names or _is_installed(file):
        raise _bad_adapter(f"{file.name} would hide the module {file.stem} that is installed: rename it")


def _is_installed(file: Path) -> bool:
    """Returns whether an installed module has that name: a worker would import one for the other."""
    spec = importlib.util.find_spec(file.stem)
    # A spec without origin is a plain directory, which any module hides. A file on the path finds itself.
    own = file / "__init__.py" if file.is_dir() else file
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() != own.resolve()


def _archive(manifest: ArchiveManifest, members: Mapping[str, Path], config: str, scratch: Path) -> Path:
    """Builds the zip file with functions of torch-model-archiver; returns its path.

    Its `generate_model_archive` is not used: it deletes ``/tmp/<model name>``, splits file names at commas and
    configures logging. Files are linked, not copied, and not compressed: weights are large and hardly compress.
    """
    from model_archiver.model_archiver_config import ModelArchiverConfig
    from model_archiver.model_packaging_utils import ModelExportUtils

    staging = scratch / "files"
    for name, file in members.items():
        (staging / name).parent.mkdir(parents=True, exist_ok=True)
        (staging / name).symlink_to(file.resolve())
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
