"""The spec of a job, as in ``job.yaml``: the model, the data set, the request and the output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

from cutaway.contract.errors import CutawayError, Reason, at, error
from cutaway.contract.request_reader.files import load_arrays, load_yaml
from cutaway.contract.request_reader.reader import data_type, is_list, read, read_request
from cutaway.contract.requests import (
    JOB_FIELDS,
    OF_ONE_REPLY,
    Attribution,
    InspectRequest,
    PredictedClass,
    SequenceLogProbability,
    Target,
    field_name,
)
from cutaway.contract.requests.fields import suggestion
from cutaway.contract.tensors import DTYPES
from cutaway.contract.values import url_fault
from cutaway.jobs.sources.source import Source
from cutaway.views.programs import MAX_SEED


class Section(BaseModel):
    """A section of a job. An unknown field is an error. A text alone is the value of the field ``bare``, if there is
    one."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
    bare: ClassVar[str] = ""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        """Returns a mapping for pydantic: a text alone becomes the value of the field ``bare``."""
        if cls.bare and isinstance(value, (str, Path)):
            return {cls.bare: value}
        if not isinstance(value, (dict, cls)):
            raise ValueError(f"must be a mapping of names to values{cls.bare and f', or the {cls.bare} alone'}")
        return value


def _no_url(path: Path) -> Path:
    if fault := url_fault(path):
        raise ValueError(fault)
    return path


LocalPath = Annotated[Path, AfterValidator(_no_url)]
"""A path on this machine."""


class Model(Section):
    """The model: exactly one of an archive, an adapter with its weights, and a running service."""

    bare = "archive"
    archive: LocalPath | None = None
    """A .mar file that `cutaway package` built."""
    adapter: str = ""
    """file.py:Class or package.module:Class, a cutaway.adapters.Adapter."""
    weights: LocalPath | None = None
    """The adapter's safetensors file, if it needs one."""
    options: dict[str, str] = {}
    """Options of the adapter."""
    device: str = "cpu"
    """The device of the model: cpu, cuda, cuda:1, mps."""
    address: str = ""
    """HOST:PORT of a running gateway."""
    name: str = ""
    """The name of the service's model: digits, or digits/versions/1.0."""
    token_file: LocalPath | None = None
    """A file whose first line is the bearer token."""
    tls: bool = False
    """Connect with TLS, and trust the system's certificates."""
    tls_ca: LocalPath | None = None
    """Connect with TLS, and trust the certificates in this PEM file."""
    timeout_s: float = Field(default=600.0, gt=0)
    """The deadline of one call, in seconds."""

    @model_validator(mode="after")
    def _one_of_three(self) -> Model:
        given = [name for name in ("archive", "adapter", "address") if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(f"name one of archive, adapter and address, not {' and '.join(given) or 'none'}")
        if self.address and not self.name:
            raise ValueError("a service has several models: give the name of one")
        return self


class Data(Section):
    """The data set."""

    bare = "path"
    path: str
    """A file, a folder or an fsspec URL."""
    format: str = ""
    """parquet, csv, images, ...; by default derived from the path."""


FEATURES = "features"
"""The value of ``columns`` for all columns of the data set but those of ids and labels."""


def _data_type(name: str) -> str:
    try:
        return name and data_type(name, DTYPES)
    except CutawayError as failure:
        raise ValueError(failure.message) from None


class TensorColumn(Section):
    """A column of numbers, or several that make one vector: the input for one argument of the model's ``forward``."""

    column: str = ""
    """The column of the data set; or `columns`."""
    columns: tuple[str, ...] | str = Field(
        default=(),
        description="The columns of a vector, a number each: names and globs such as 'mean_*', or `features`: all but "
        "those of ids and labels.",
    )
    by_position: bool = False
    """Take the columns in their own order, whatever the model calls its features."""
    dtype: Annotated[str, AfterValidator(_data_type)] = ""
    """The data type of the input; by default the one that the model declares."""
    shape: tuple[int, ...] | None = None
    """The shape of one row, without the batch axis; by default that in the data."""
    scale: float = 1.0
    """A factor for each number."""

    @model_validator(mode="after")
    def _one_source(self) -> TensorColumn:
        if bool(self.column) == bool(self.columns):
            raise ValueError("name one of column and columns")
        return self


class RawColumn(Section):
    """A column of texts, or of the bytes of files, which the model's adapter decodes."""

    column: str
    """The column of the data set."""
    media_type: str = ""
    """Its media type, such as image/png; by default the adapter's."""


class RawInput(Section):
    """Inputs that the model's adapter decodes."""

    raw: RawColumn


class NamedColumn(Section):
    """A column with one text or number for each row."""

    bare = "column"
    column: str
    """The column of the data set."""


def _without_arrays(value: Any) -> Any:
    """Replaces arrays and tensors by lists, which JSON can represent."""
    if isinstance(value, Mapping):
        return {name: _without_arrays(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_arrays(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


RequestPart = Annotated[Any, BeforeValidator(_without_arrays)]
"""A part of the request, which `cutaway.contract.request_reader` reads."""


class Output(Section):
    """The results."""

    bare = "folder"
    folder: LocalPath
    """The folder: a new one, or that of an earlier run of the same job, which is then continued."""
    shard_rows: int = Field(default=512, gt=0)
    """Rows of a file; also the most rows that are computed again after a kill."""
    keep_inputs: bool = False
    """Store the inputs of the model too."""
    captures_to: Literal["parquet", "zarr"] = "parquet"
    """The store of captures: the tables, or a Zarr array for each in the folder `captures`."""
    tensors: Literal["auto", "fixed", "ragged"] = "auto"
    """Whether tensors have one shape in all rows. By default they do, except where the first rows differ."""


class Local(Section):
    """Runs the model in this process."""

    kind: Literal["local"] = "local"
    batch: int = Field(default=64, gt=0)
    """Rows of a batch."""


class Service(Section):
    """Calls a running service."""

    kind: Literal["service"]
    batch: int = Field(default=64, gt=0)
    """Rows of a call."""
    in_flight: int = Field(default=4, gt=0)
    """Shards that are computed at once, each with one call at a time."""
    patience_s: float = Field(default=60.0, ge=0)
    """How long a call is retried while the service is unavailable or overloaded, in seconds."""


class Ray(Section):
    """Runs copies of the model on a Ray cluster, or on one that is started on this machine."""

    kind: Literal["ray"]
    batch: int = Field(default=64, gt=0)
    """Rows of a batch."""
    address: str = ""
    """The cluster: auto, or ray://HOST:PORT; by default one on this machine."""
    workers: int = Field(default=2, gt=0)
    """Processes that work at once, each with a copy of the model."""
    cpus: float = Field(default=1.0, gt=0)
    """CPUs, and threads, of a worker."""
    gpus: float = Field(default=0.0, ge=0)
    """GPUs of a worker."""


ENGINES = ("local", "service", "ray")


def _mapping(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping of names to values")
    return value


def _source(value: Any) -> Any:
    if not all(hasattr(value, name) for name in ("rows", "columns", "fingerprint", "read")):
        raise ValueError("the data is {path: ...}, or an object that implements cutaway.jobs.sources.Source")
    return value


def _inputs_kind(value: Any) -> str:
    return "raw" if isinstance(value, RawInput) or (isinstance(value, dict) and set(value) == {"raw"}) else "tensors"


def _engine(value: Any) -> Any:
    if isinstance(value, (str, Mapping)):
        value = {"kind": value} if isinstance(value, str) else {"kind": "local", **value}
        if value["kind"] not in ENGINES:
            raise ValueError(f"{value['kind']!r:.80} is no engine; {suggestion(str(value['kind']), ENGINES)}")
    elif not isinstance(value, Section):
        raise ValueError("must be local, service or ray, or a mapping with the field kind")
    return value


class Job(Section):
    """A job. In Python, ``data`` may also be any object that implements `cutaway.jobs.sources.Source`.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, with the field at fault.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    model: Model
    data: Data | SkipJsonSchema[Annotated[Source, PlainValidator(_source)]]
    """The data set."""
    inputs: Annotated[
        Annotated[RawInput, Tag("raw")] | Annotated[dict[str, TensorColumn], Tag("tensors")],
        Discriminator(_inputs_kind),
    ]
    """Columns by the name of the argument of `forward`; or {raw: ...}, which the adapter decodes."""
    id: NamedColumn | None = None
    """The ids of rows; by default their numbers."""
    label: NamedColumn | None = None
    """The labels of rows: indices or names of classes."""
    target: RequestPart = "predicted"
    """The target of attributions: predicted, label (of each row), a class or its label."""
    request: Annotated[dict[str, RequestPart], BeforeValidator(_mapping)] = Field(
        default={},
        description=f"{', '.join(JOB_FIELDS)}: as in `cutaway inspect --request`. `seed` is that of the first row, by "
        "default 0. An attribution may have a `name`, with which its columns begin.",
    )
    output: Output
    engine: Annotated[Local | Service | Ray, Field(discriminator="kind"), BeforeValidator(_engine)] = Local()
    max_bad_rows: int | None = Field(default=None, ge=0)
    """The job ends if there are more bad rows; by default, there is no limit."""

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as failure:
            raise _as_error(failure) from None

    @model_validator(mode="after")
    def _consistent(self) -> Job:
        if self.target == "label" and self.label is None:
            raise ValueError("target: label needs a label column: label: {column: ...}")
        if (self.engine.kind == "service") != bool(self.model.address):
            raise ValueError("model.address and engine: service need each other")
        return self

    @classmethod
    def load(cls, path: Path) -> Job:
        """Reads a job from a YAML file; its paths are relative to that file.

        Raises:
            InvalidArgument: ``INVALID_VALUE``, with the field at fault.
        """
        directory = path.resolve().parent
        fields = load_yaml(path)
        for section in ("target", "request"):
            if section in fields:
                with at(section):
                    fields[section] = load_arrays(fields[section], directory)
        return cls(**fields).with_paths_in(directory)

    def with_paths_in(self, directory: Path) -> Job:
        """Returns the same job, with every relative path taken from ``directory``."""
        file, colon, name = self.model.adapter.rpartition(":")
        paths = {name: getattr(self.model, name) for name in ("archive", "weights", "token_file", "tls_ca")}
        model = self.model.model_copy(
            update={
                **{name: None if path is None else directory / path for name, path in paths.items()},
                "adapter": f"{directory / file}{colon}{name}" if file.endswith(".py") else self.model.adapter,
            }
        )
        data = self.data
        if isinstance(data, Data) and "://" not in data.path:
            data = data.model_copy(update={"path": str(directory / data.path)})
        output = self.output.model_copy(update={"folder": directory / self.output.folder})
        return self.model_copy(update={"model": model, "data": data, "output": output})

    def as_json(self) -> dict[str, Any]:
        """Returns the contents of ``job.yaml`` in JSON's types; of a `Source` in Python, only the name of its class."""
        data = self.data.model_dump(mode="json") if isinstance(self.data, Data) else type(self.data).__name__
        return {**self.model_dump(mode="json", exclude={"data"}), "data": data}


def _as_error(failure: ValidationError) -> CutawayError:
    """Returns the first error of pydantic, with its field."""
    first = failure.errors()[0]
    message = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message = f"there is no such field; {suggestion(str(first['loc'][-1]), _field_names())}"
    # Without the tags of unions, which are in no job.yaml.
    field = [str(step) for index, step in enumerate(first["loc"]) if index != 1 or step not in _TAGS]
    return error(Reason.INVALID_VALUE, message[:1].lower() + message[1:], ".".join(field))


def _field_names() -> list[str]:
    return sorted({name for section in Section.__subclasses__() for name in section.model_fields})


_TAGS = {"raw", "tensors", "local", "service", "ray", "Data", "function-plain[_source()]"}


_PLAIN = InspectRequest("")


class RequestTemplate(NamedTuple):
    """The request that a job sends for every batch.

    Attributes:
        request: the request, without a model, inputs and seed.
        names: for each attribution, the name that its columns share; a second one of a name is numbered.
        by_label: whether the target of a row is its label.
        seed: of the first row.
    """

    request: InspectRequest
    names: tuple[str, ...]
    by_label: bool
    seed: int


def parse_request(section: Mapping[str, Any], target: Any) -> RequestTemplate:
    """Reads the sections ``request`` and ``target`` of a spec.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, with the field at fault.
    """
    with at("target"):
        resolved = PredictedClass() if target == "label" else read(Target, target)
    with at("request"):
        if "target" in section:
            raise error(Reason.INVALID_VALUE, "is a section of its own, beside the request", "target")
        attributions, names = _without_names(section.get("attributions") or ())
        request = read_request({**section, "attributions": attributions})
        for field in OF_ONE_REPLY:
            if getattr(request, field) != getattr(_PLAIN, field):
                raise error(Reason.INVALID_VALUE, "is about one reply; a job has many", field)
        for index, capture in enumerate(request.captures):
            if capture.parameter:
                problem = "the gradient of a parameter does not belong to single rows"
                raise error(Reason.INVALID_VALUE, problem, f"captures[{index}].parameter")
        asked = {"target": resolved} | {
            f"attributions[{index}].target": attribution.target
            for index, attribution in enumerate(request.attributions)
        }
        for field, each in asked.items():
            if isinstance(each, SequenceLogProbability) and each.by_token:
                problem = "a table has columns for one number of tokens, and texts have different ones: leave it out"
                raise error(Reason.INVALID_VALUE, problem, f"{field}.sequence_log_probability.by_token")
        seed = request.seed or 0
        if not 0 <= seed <= MAX_SEED:
            raise error(Reason.INVALID_VALUE, f"{seed}; each row has one of its own behind it: from 0 to 2**62", "seed")
        request = replace(request, target=resolved, seed=None)
        return RequestTemplate(request, _names(request.attributions, names), target == "label", seed)


def _without_names(attributions: Any) -> tuple[list[Any], list[str | None]]:
    """Returns the attributions of a job, and beside them their field ``name``, which is the job's own."""
    several = attributions if is_list(attributions) else [attributions]
    mappings = [dict(each) if isinstance(each, Mapping) else each for each in several]
    return mappings, [each.pop("name", None) if isinstance(each, dict) else None for each in mappings]


def _names(attributions: Sequence[Attribution], names: Sequence[str | None]) -> tuple[str, ...]:
    """Returns each attribution's own name, or its method's."""
    for index, name in enumerate(names):
        if name is not None and name in names[:index]:
            raise error(Reason.INVALID_VALUE, f"{name!r} is the name of two attributions", f"attributions[{index}]")
    return tuple(name or field_name(type(attribution)) for attribution, name in zip(attributions, names))
