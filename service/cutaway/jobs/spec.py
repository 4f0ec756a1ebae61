"""A job, as its ``job.yaml`` says it: what is asked of which model about which data, and where the answers go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
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

from cutaway.errors import CutawayError, Reason, error
from cutaway.jobs.sources.source import Source
from cutaway.tensors import DTYPES


class Part(BaseModel):
    """A section of a job. A word that no section knows is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Model(Part):
    """The model: an archive, an adapter with its weights, or a running service; one of the three."""

    archive: Path | None = Field(default=None, description="A .mar file that `cutaway package` built.")
    adapter: str = Field(default="", description="file.py:Class or package.module:Class, a cutaway.adapters.Adapter.")
    weights: Path | None = Field(default=None, description="The adapter's safetensors file; none where it needs none.")
    options: dict[str, str] = Field(default={}, description="Words for the adapter.")
    device: str = Field(default="cpu", description="Where the model runs: cpu, cuda, cuda:1, mps.")
    address: str = Field(default="", description="HOST:PORT of a running front door.")
    name: str = Field(default="", description="The model's name there: digits, or digits/versions/1.0.")
    token_file: Path | None = Field(default=None, description="A file whose first line is the token to show.")
    tls: bool = Field(default=False, description="Connect with TLS, to a server whom the system trusts.")
    tls_ca: Path | None = Field(default=None, description="Connect with TLS, and trust these certificates, PEM.")
    timeout_s: float = Field(default=600.0, gt=0, description="How long one call may take.")

    @model_validator(mode="after")
    def _one_of_three(self) -> Model:
        given = [name for name in ("archive", "adapter", "address") if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(f"name one of archive, adapter and address, not {' and '.join(given) or 'none'}")
        if self.address and not self.name:
            raise ValueError("a service has several models: give the name of one")
        return self


class Data(Part):
    """The data set."""

    path: str = Field(description="A file, a folder or an fsspec URL.")
    format: str = Field(default="", description="parquet, csv, images, ...; by default told from the path.")


class TensorColumn(Part):
    """A column of numbers, for one argument of the model's forward."""

    column: str = Field(description="The column of the data set.")
    dtype: str = Field(default="", description="The data type to send; by default what the model says it takes.")
    shape: tuple[int, ...] | None = Field(
        default=None, description="The shape of one example, without the batch; by default as it is in the data."
    )
    scale: float = Field(default=1.0, description="What each number is multiplied with.")

    @model_validator(mode="after")
    def _known_type(self) -> TensorColumn:
        if self.dtype and self.dtype not in DTYPES:
            raise ValueError(f"dtype {self.dtype!r} is none of {', '.join(DTYPES)}")
        return self


class RawColumn(Part):
    """A column of texts or of files' bytes, for the model's adapter to decode."""

    column: str = Field(description="The column of the data set.")
    media_type: str = Field(default="", description="What it holds, such as image/png; by default the adapter's own.")


class RawInput(Part):
    """Examples as files hold them."""

    raw: RawColumn


class NamedColumn(Part):
    """A column with one word or number an example."""

    column: str = Field(description="The column of the data set.")


def _plain_words(value: Any) -> Any:
    """``value`` with lists in place of arrays and tensors: a spec can be written down."""
    if isinstance(value, Mapping):
        return {name: _plain_words(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_words(each) for each in value]
    return value.tolist() if hasattr(value, "tolist") else value


Words = Annotated[dict[str, Any], BeforeValidator(_plain_words)]


class Request(Part):
    """The question. Its parts are called as in the contract and in Python; see docs/batch.md."""

    attributions: tuple[Words, ...] = Field(
        default=(),
        description="Explanations: {method: integrated_gradients, n_steps: 64}; `name` is what its columns are called.",
    )
    captures: tuple[Words, ...] = Field(
        default=(), description="What to bring back from inside: {layer: 'conv*', at: [output]}."
    )
    input_gradients: bool | tuple[str, ...] = Field(
        default=False, description="The target's gradient at every floating input, or at those named."
    )
    edits: tuple[Words, ...] = Field(
        default=(), description="Changes to what flows through the model: {edit: zero, layer: relu1}."
    )
    check: Literal["off", "same_pass", "independent"] = Field(
        default="same_pass", description="How explanations are checked."
    )
    relative_tolerance: float | None = Field(default=None, description="The largest error that still agrees.")
    explain_if: Words | None = Field(
        default=None, description="Explain only examples whose prediction calls for it: {probability_at_most: 0.9}."
    )
    seed: int = Field(default=0, ge=0, le=2**62, description="What methods that draw random numbers begin from.")


class Output(Part):
    """The results."""

    folder: Path = Field(description="Where they go; a new folder, or that of this very job, which is then resumed.")
    shard_rows: int = Field(default=512, gt=0, description="Rows to a file, which is also what a kill costs at most.")
    keep_inputs: bool = Field(default=False, description="Keep what the model read beside what was found.")
    captures_to: Literal["parquet", "zarr"] = Field(
        default="parquet",
        description="Where captures go: into the tables, or to a Zarr array each in the folder `captures`.",
    )
    tensors: Literal["auto", "fixed", "ragged"] = Field(
        default="auto",
        description="Whether tensors have one shape in all rows. By default they have, but for texts and where some of "
        "the first rows already differ.",
    )


class Local(Part):
    """In this process."""

    kind: Literal["local"] = "local"
    batch: int = Field(default=64, gt=0, description="Examples that the model takes at once.")


class Service(Part):
    """Calls to a running service."""

    kind: Literal["service"]
    batch: int = Field(default=64, gt=0, description="Examples to a call.")
    in_flight: int = Field(default=4, gt=0, description="Shards that are worked on at once, each with one call.")
    patience_s: float = Field(
        default=60.0, ge=0, description="How long a service that is away or too busy is asked again before giving up."
    )


class Ray(Part):
    """Workers of a Ray cluster, or of one that is started here."""

    kind: Literal["ray"]
    batch: int = Field(default=64, gt=0, description="Examples that the model takes at once.")
    address: str = Field(
        default="", description="The cluster: auto, or ray://HOST:PORT; by default one on this machine."
    )
    workers: int = Field(default=2, gt=0, description="Processes at work at once, each with a copy of the model.")
    cpus: float = Field(default=1.0, gt=0, description="CPUs to a worker, and its threads.")
    gpus: float = Field(default=0.0, ge=0, description="GPUs to a worker.")


def _a_source(value: Any) -> Any:
    if not all(hasattr(value, name) for name in ("rows", "columns", "fingerprint", "read")):
        raise ValueError("the data is {path: ...}, or an object that keeps cutaway.jobs.sources.Source")
    return value


def _inputs_kind(value: Any) -> str:
    return "raw" if isinstance(value, RawInput) or (isinstance(value, dict) and set(value) == {"raw"}) else "tensors"


class Job(Part):
    """A whole job.

    In Python ``data`` may also be any object that keeps `cutaway.jobs.sources.Source`.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, with the field at fault.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    model: Model
    data: Data | SkipJsonSchema[Annotated[Source, PlainValidator(_a_source)]] = Field(description="The data set.")
    inputs: Annotated[
        Annotated[RawInput, Tag("raw")] | Annotated[dict[str, TensorColumn], Tag("tensors")],
        Discriminator(_inputs_kind),
    ] = Field(description="Columns by the name of forward's argument; or {raw: ...}, for the adapter to decode.")
    id: NamedColumn | None = Field(default=None, description="What examples are called; by default their numbers.")
    label: NamedColumn | None = Field(default=None, description="What examples are: a class index, or a class' name.")
    target: Literal["predicted", "label"] | Words = Field(
        default="predicted", description="What explanations are about: predicted, label, or {class_index: 3}."
    )
    request: Request = Request()
    output: Output
    engine: Annotated[Local | Service | Ray, Field(discriminator="kind")] = Local()
    max_bad_rows: int | None = Field(
        default=None, ge=0, description="More bad rows than this end the job; by default any number is only recorded."
    )

    def __init__(self, **words: Any) -> None:
        try:
            super().__init__(**words)
        except ValidationError as failure:
            raise _plain(failure) from None

    @model_validator(mode="after")
    def _consistent(self) -> Job:
        if self.target == "label" and self.label is None:
            raise ValueError("target: label needs a label column: label: {column: ...}")
        if (self.engine.kind == "service") != bool(self.model.address):
            raise ValueError("the engine `service`, and no other, asks a model by its address")
        return self

    @classmethod
    def load(cls, path: Path) -> Job:
        """The job in a YAML file; its paths are relative to that file.

        Raises:
            InvalidArgument: ``INVALID_VALUE``, with the field at fault.
        """
        try:
            words = yaml.safe_load(path.read_text("utf-8"))
        except OSError as failure:
            raise error(Reason.INVALID_VALUE, f"{path} cannot be read: {failure.strerror}") from None
        except (yaml.YAMLError, UnicodeDecodeError) as failure:
            raise error(Reason.INVALID_VALUE, f"{path} is no YAML: {' '.join(str(failure).split())}") from None
        if not isinstance(words, dict):
            raise error(Reason.INVALID_VALUE, f"{path} holds no job: it has none of {', '.join(cls.model_fields)}")
        return cls(**{str(name): value for name, value in words.items()}).beneath(path.resolve().parent)

    def beneath(self, directory: Path) -> Job:
        """The same job, with every relative path taken from ``directory``."""
        placed = _placing(directory)
        file, colon, name = self.model.adapter.rpartition(":")
        model = self.model.model_copy(
            update={
                **{each: placed(getattr(self.model, each)) for each in ("archive", "weights", "token_file", "tls_ca")},
                "adapter": f"{placed(Path(file))}{colon}{name}" if file.endswith(".py") else self.model.adapter,
            }
        )
        data = self.data
        if isinstance(data, Data) and "://" not in data.path:
            data = data.model_copy(update={"path": str(directory / data.path)})
        output = self.output.model_copy(update={"folder": placed(self.output.folder)})
        return self.model_copy(update={"model": model, "data": data, "output": output})

    def words(self) -> dict[str, Any]:
        """What a ``job.yaml`` would say, in JSON's types; a `Source` of the caller's own is only named."""
        data = self.data.model_dump(mode="json") if isinstance(self.data, Data) else type(self.data).__name__
        return {**self.model_dump(mode="json", exclude={"data"}), "data": data}


def _placing(directory: Path) -> Callable[[Path | None], Path | None]:
    return lambda path: None if path is None else directory / path


def _plain(failure: ValidationError) -> CutawayError:
    """The first of what pydantic found, as an error of ours: the field, and what is wrong with it."""
    first = failure.errors()[0]
    said = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        near = get_close_matches(str(first["loc"][-1]), _names(), n=1)
        said = f"there is no such field{f'; did you mean {near[0]!r}?' if near else ''}"
    return error(Reason.INVALID_VALUE, said[:1].lower() + said[1:], ".".join(_steps(first["loc"])))


def _names() -> set[str]:
    """What the fields of all sections are called."""
    return {name for kind in Part.__subclasses__() for name in kind.model_fields}


_TAGS = {"raw", "tensors", "local", "service", "ray", "Data", "function-plain[_a_source()]"}


def _steps(place: tuple[int | str, ...]) -> Iterator[str]:
    """Pydantic's place without the tags of unions, which nobody wrote."""
    for index, step in enumerate(place):
        if index != 1 or step not in _TAGS:
            yield str(step)
