"""Every error that a call can have, in one tree of exceptions and one table.

    CutawayError                  any error, with a stable reason
    ├── InvalidArgument           the request is wrong
    ├── NotFound                  the model, version or module does not exist
    ├── Unimplemented             the server does not implement the call
    ├── Unauthenticated           the server needs a token that it knows
    ├── PermissionDenied          the token does not allow this
    ├── FailedPrecondition        a correct request that this model or server cannot run
    ├── ResourceExhausted         too large, or too many at once
    ├── DeadlineExceeded          the time for the call is over
    ├── Unavailable               no server or worker answers: try again
    └── Internal                  an error in the server, or in the model

Applications branch on ``reason``, never on the message. Deep code raises a short `error`; the boundary adds the field.
`Reason` is the table: it says which gRPC status each reason has.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from tokenize import TokenError

from cutaway.contract.values import StrEnum, printable

DOMAIN = "cutaway.dev"
"""The ``domain`` of every `google.rpc.ErrorInfo` that Cutaway sends."""


class Code(IntEnum):
    """The gRPC status codes in use, with the numbers that gRPC has for them (this module does not import grpc)."""

    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


_BAD = Code.INVALID_ARGUMENT
_RETRY = True


class Reason(StrEnum):
    """A stable cause of an error; a name never changes its meaning. `docs/errors.md` has the table.

    Attributes:
        code: the gRPC status that an error with this reason has.
        meaning: a sentence for the documentation.
        retryable: whether the same call may succeed later.
    """

    code: Code
    meaning: str
    retryable: bool

    def __new__(cls, name: str, code: Code = Code.INTERNAL, meaning: str = "", retryable: bool = False) -> Reason:
        """Makes a member of the table; `Reason` with one argument looks a member up."""
        reason = str.__new__(cls, name)
        reason._value_ = name
        reason.code, reason.meaning, reason.retryable = code, meaning, retryable
        return reason

    # The message as a whole.
    MALFORMED_REQUEST = "MALFORMED_REQUEST", _BAD, "The bytes are not a request message."
    UNKNOWN_FIELD = "UNKNOWN_FIELD", _BAD, "The request sets a field that this server does not know."
    INVALID_VALUE = "INVALID_VALUE", _BAD, "A field holds a value outside its range."
    NOT_IMPLEMENTED = "NOT_IMPLEMENTED", Code.UNIMPLEMENTED, "The server does not implement this call."
    # The caller.
    TOKEN_REQUIRED = "TOKEN_REQUIRED", Code.UNAUTHENTICATED, "The server answers only calls that carry a token."
    TOKEN_INVALID = "TOKEN_INVALID", Code.UNAUTHENTICATED, "The server does not know the token, or it has expired."
    TOKEN_EXPOSED = "TOKEN_EXPOSED", _BAD, "The client does not send a token to another machine in plaintext."
    SCOPE_MISSING = "SCOPE_MISSING", Code.PERMISSION_DENIED, "The token does not allow this call for this model."
    ORIGIN_REFUSED = "ORIGIN_REFUSED", Code.PERMISSION_DENIED, "A page of another site may not call this server."
    PACKAGE_MISSING = "PACKAGE_MISSING", Code.FAILED_PRECONDITION, "This needs a package that is not installed."
    # The model.
    MODEL_NOT_FOUND = "MODEL_NOT_FOUND", Code.NOT_FOUND, "The server has no model of that name."
    VERSION_NOT_FOUND = "VERSION_NOT_FOUND", Code.NOT_FOUND, "The server has the model, but not that version of it."
    MODEL_NOT_LOADED = "MODEL_NOT_LOADED", Code.NOT_FOUND, "The archive of the model exists but could not be loaded."
    ARCHIVE_CORRUPT = "ARCHIVE_CORRUPT", _BAD, "A .mar file is damaged, or was not made by `cutaway package`."
    ADAPTER_INVALID = "ADAPTER_INVALID", _BAD, "An adapter cannot be imported, or does not return what it must."
    WEIGHTS_MISSING = (
        "WEIGHTS_MISSING",
        Code.FAILED_PRECONDITION,
        "The archive has no weights, and its parameters are random.",
    )
    MODEL_COMPILED = (
        "MODEL_COMPILED",
        Code.FAILED_PRECONDITION,
        "The model is compiled by torch.compile: its hooks never fire.",
    )
    MODEL_SCRIPTED = "MODEL_SCRIPTED", Code.FAILED_PRECONDITION, "The model is a ScriptModule, which takes no hooks."
    DATA_FLOW_UNKNOWN = (
        "DATA_FLOW_UNKNOWN",
        Code.FAILED_PRECONDITION,
        "The flow of data is not known: the model has no example, or computes where PyTorch shows nothing.",
    )
    MODEL_QUANTISED = "MODEL_QUANTISED", Code.FAILED_PRECONDITION, "The model is quantised and has no gradients."
    # The target.
    LABEL_NOT_FOUND = "LABEL_NOT_FOUND", _BAD, "A target names a label that no class has, or several."
    # The input.
    INPUT_MISSING = "INPUT_MISSING", _BAD, "A tensor that the model needs was not sent."
    INPUT_UNKNOWN = "INPUT_UNKNOWN", _BAD, "A tensor was sent that the model's forward does not take."
    INPUT_EMPTY = "INPUT_EMPTY", _BAD, "There is no input, or the batch has no rows."
    INPUT_DTYPE = "INPUT_DTYPE", _BAD, "A tensor has another data type than the model takes."
    INPUT_SHAPE = "INPUT_SHAPE", _BAD, "A tensor has another rank or size than the model takes."
    INPUT_FEATURES = "INPUT_FEATURES", _BAD, "A tensor's features have other names than the model's, or another order."
    INPUT_NOT_DIFFERENTIABLE = (
        "INPUT_NOT_DIFFERENTIABLE",
        _BAD,
        "An integer or boolean input has no gradient or attribution.",
    )
    BATCH_MISMATCH = "BATCH_MISMATCH", _BAD, "The inputs of one request differ in their number of rows."
    TENSOR_SIZE = "TENSOR_SIZE", _BAD, "A tensor's bytes do not match its shape and data type."
    RAW_UNDECODABLE = "RAW_UNDECODABLE", _BAD, "The model's adapter cannot decode these bytes."
    RAW_UNSUPPORTED = "RAW_UNSUPPORTED", _BAD, "The model's adapter does not take this media type, or no raw bytes."
    TEXT_TOO_LONG = "TEXT_TOO_LONG", _BAD, "The text has more tokens than the model can read."
    # What the request names.
    MODULE_NOT_FOUND = "MODULE_NOT_FOUND", _BAD, "No module of the model has that name or matches that glob."
    DATA_SET_NOT_FOUND = "DATA_SET_NOT_FOUND", _BAD, "No data set of that name is packaged with the model."
    OP_NOT_FOUND = "OP_NOT_FOUND", _BAD, "No operator of that address ran, or none matches that glob."
    PARAMETER_NOT_FOUND = "PARAMETER_NOT_FOUND", _BAD, "The model has no parameter of that name."
    POINT_NOT_FOUND = "POINT_NOT_FOUND", _BAD, "The module or operator has no tensor at that point."
    POINT_NOT_DIFFERENTIABLE = (
        "POINT_NOT_DIFFERENTIABLE",
        _BAD,
        "No gradient exists at that point, such as at token ids.",
    )
    CALL_NOT_FOUND = "CALL_NOT_FOUND", _BAD, "The module or operator was called fewer times than that."
    PATH_NOT_FOUND = "PATH_NOT_FOUND", _BAD, "The inputs or outputs have no tensor at that path."
    AXIS_RANGE = "AXIS_RANGE", _BAD, "A tensor has no such axis, or the axis is too short."
    SLICE_RANGE = "SLICE_RANGE", _BAD, "A slice is outside of its axis, or empty."
    ROW_RANGE = "ROW_RANGE", _BAD, "A row is not in the batch, or no axis of the tensor is the batch."
    PERMUTATION_INVALID = (
        "PERMUTATION_INVALID",
        _BAD,
        "The indices do not name a row of the batch for each of its rows.",
    )
    EDIT_SHAPE = "EDIT_SHAPE", _BAD, "The tensor of an edit does not broadcast to the edited tensor."
    EDIT_DTYPE = "EDIT_DTYPE", _BAD, "The edit needs a floating tensor, and this tensor is none."
    EDIT_INAPPLICABLE = "EDIT_INAPPLICABLE", _BAD, "The edit cannot be combined with the rest of the request."
    OUTPUT_NOT_FOUND = "OUTPUT_NOT_FOUND", _BAD, "The model returns no output of that name."
    TARGET_RANGE = "TARGET_RANGE", _BAD, "The class index of a target is outside of the model's output."
    TARGET_MISMATCH = "TARGET_MISMATCH", _BAD, "The number of targets is not the number of rows."
    TARGET_SHAPE = "TARGET_SHAPE", _BAD, "The target does not fit the rank of the model's output."
    NOT_DIFFERENTIABLE = "NOT_DIFFERENTIABLE", Code.FAILED_PRECONDITION, "The target has no derivative there."
    METHOD_INAPPLICABLE = "METHOD_INAPPLICABLE", _BAD, "The method cannot be applied to this layer or input."
    # A job and its data set.
    DATA_NOT_FOUND = "DATA_NOT_FOUND", Code.NOT_FOUND, "No data set exists at that path."
    DATA_UNREADABLE = "DATA_UNREADABLE", _BAD, "The data set exists but cannot be read."
    COLUMN_NOT_FOUND = "COLUMN_NOT_FOUND", _BAD, "The data set has no column of that name."
    FOLDER_TAKEN = "FOLDER_TAKEN", Code.FAILED_PRECONDITION, "The output folder has other content, or is in use."
    JOB_INTERRUPTED = "JOB_INTERRUPTED", Code.UNAVAILABLE, "The job stopped early; run it again to continue.", _RETRY
    TOO_MANY_BAD_ROWS = "TOO_MANY_BAD_ROWS", Code.FAILED_PRECONDITION, "More rows failed than the job allows."
    EXPLANATION_CORRUPT = "EXPLANATION_CORRUPT", _BAD, "A stored explanation is damaged, or of another format."
    # The run.
    MODEL_FAILED = "MODEL_FAILED", _BAD, "The model's forward or backward raised an error on this input."
    REPLY_TOO_LARGE = "REPLY_TOO_LARGE", Code.RESOURCE_EXHAUSTED, "The reply would be larger than allowed."
    REQUEST_TOO_LARGE = "REQUEST_TOO_LARGE", Code.RESOURCE_EXHAUSTED, "The request is larger than allowed."
    OUT_OF_MEMORY = "OUT_OF_MEMORY", Code.RESOURCE_EXHAUSTED, "The request needs more memory than is available."
    LIMIT_EXCEEDED = "LIMIT_EXCEEDED", Code.RESOURCE_EXHAUSTED, "The request exceeds a limit that the operator set."
    OVERLOADED = "OVERLOADED", Code.RESOURCE_EXHAUSTED, "Too many calls are waiting.", _RETRY
    DEADLINE_EXCEEDED = (
        "DEADLINE_EXCEEDED",
        Code.DEADLINE_EXCEEDED,
        "The call's deadline passed before it ended.",
        _RETRY,
    )
    WORKER_DIED = "WORKER_DIED", Code.UNAVAILABLE, "The worker died during the call; another one starts.", _RETRY
    WORKER_KILLED = "WORKER_KILLED", Code.INTERNAL, "Two workers died during this request; it is not retried."
    BACKEND_UNAVAILABLE = (
        "BACKEND_UNAVAILABLE",
        Code.UNAVAILABLE,
        "No backend answers the gateway at the moment.",
        _RETRY,
    )
    SERVER_UNREACHABLE = "SERVER_UNREACHABLE", Code.UNAVAILABLE, "The client reached no server at that address.", _RETRY
    INTERNAL = "INTERNAL", Code.INTERNAL, "An error inside the server: please report it."


RETRY_AFTER_S: dict[str, float] = {
    Reason.OVERLOADED: 0.2,
    Reason.WORKER_DIED: 1.0,
    Reason.BACKEND_UNAVAILABLE: 2.0,
}
"""Seconds to wait before a retry; sent as `google.rpc.RetryInfo`. ``DEADLINE_EXCEEDED`` has none: a retry needs a
longer deadline instead."""


class CutawayError(Exception):
    """An error with a reason.

    Attributes:
        reason: one of `Reason`, or the reason of a newer server.
        message: for people: what is wrong, and what would be right.
        field: the path of the field at fault in the request (``captures[1].module``), or ``""``.
        code: the number of the gRPC status code.
        retry_after_s: seconds to wait before a retry; None if a retry has the same result.
    """

    code: int = Code.INTERNAL

    def __init_subclass__(cls, code: Code | None = None) -> None:
        cls.code = cls.code if code is None else code

    def __init__(self, reason: str, message: str, field: str = "") -> None:
        super().__init__(message)
        self.reason = str(reason)
        self.message = message
        self.field = field
        self.retry_after_s = RETRY_AFTER_S.get(self.reason)

    def prefix(self, field: str) -> None:
        """Puts ``field``, which the field at fault belongs to, before its path."""
        dot = "." if field and self.field and not self.field.startswith("[") else ""
        self.field = f"{field}{dot}{self.field}"

    def _render_traceback_(self) -> list[str]:
        """Returns what a notebook shows: what is wrong and what would be right, and no frames of this package."""
        return [f"{type(self).__name__}: {self}"]

    def __reduce__(self) -> tuple[object, ...]:
        # The default pickles the message only; batch jobs send these between processes.
        return type(self), (self.reason, self.message, self.field)

    def __str__(self) -> str:
        where = f" [{self.field}]" if self.field else ""
        return printable(f"{self.reason}{where}: {self.message}")


class InvalidArgument(CutawayError, code=Code.INVALID_ARGUMENT):
    """The request is wrong; sending it again gives the same error."""


class NotFound(CutawayError, code=Code.NOT_FOUND):
    """The requested model or version does not exist."""


class Unimplemented(CutawayError, code=Code.UNIMPLEMENTED):
    """The server does not implement the call."""


class Unauthenticated(CutawayError, code=Code.UNAUTHENTICATED):
    """The server needs a token that it knows."""


class PermissionDenied(CutawayError, code=Code.PERMISSION_DENIED):
    """The token does not allow this."""


class FailedPrecondition(CutawayError, code=Code.FAILED_PRECONDITION):
    """A correct request that this model or server cannot run."""


class ResourceExhausted(CutawayError, code=Code.RESOURCE_EXHAUSTED):
    """An error for a request that is too large, or for too many at once."""


class DeadlineExceeded(CutawayError, code=Code.DEADLINE_EXCEEDED):
    """The time for the call is over."""


class Unavailable(CutawayError, code=Code.UNAVAILABLE):
    """An error for no answer from a server or worker; a retry may succeed."""


class Internal(CutawayError, code=Code.INTERNAL):
    """An error inside the server."""


_CLASSES: dict[int, type[CutawayError]] = {kind.code: kind for kind in CutawayError.__subclasses__()}


def error(reason: Reason, message: str, field: str = "") -> CutawayError:
    """Returns the exception for ``reason``, of the class for its status code."""
    return from_wire(reason.code, reason, message, field)


def of_exception(failure: Exception) -> CutawayError | None:
    """Returns the `CutawayError` for a Python exception that the caller's data caused; None for any other exception."""
    if isinstance(failure, CutawayError):
        return failure
    if isinstance(failure, MemoryError):
        return error(Reason.OUT_OF_MEMORY, "there is not enough memory for this; send less at once")
    if isinstance(failure, UnicodeEncodeError):
        return of_text(failure)
    if isinstance(failure, RecursionError):
        return error(Reason.MALFORMED_REQUEST, "it is nested too deeply")
    if isinstance(failure, TokenError):
        return error(Reason.MALFORMED_REQUEST, f"a text cannot be parsed: {failure.args[0]}")
    return None


def of_text(failure: UnicodeEncodeError, field: str = "") -> CutawayError:
    """Returns the error for a text that UTF-8 cannot hold."""
    what = f"a text has {failure.object[failure.start : failure.start + 1]!a}, which is no character"
    return error(Reason.MALFORMED_REQUEST, what, field)


def release_frames(failure: BaseException) -> None:
    """Removes the tracebacks of ``failure`` and of the exceptions that caused it.

    The stack frames in a traceback hold the request and its tensors. Without this call, that memory may stay in use
    until the next garbage collection.
    """
    links: list[BaseException | None] = [failure]
    while links:
        if (link := links.pop()) is not None and link.__traceback__ is not None:
            link.__traceback__ = None
            links += link.__cause__, link.__context__


def from_wire(code: int, reason: str, message: str, field: str = "") -> CutawayError:
    """Returns the exception for a status that any server sent."""
    failure = _CLASSES.get(code, CutawayError)(reason, message, field)
    failure.code = code
    return failure


class at:  # lower case because it is used like a function: with at("captures[0]")
    """A context that puts ``field`` before the field of any `CutawayError` that leaves the block.

    A class, because it is faster than a generator and runs many times for each request.
    """

    __slots__ = ("_field",)

    def __init__(self, field: str) -> None:
        self._field = field

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, failure: object, trace: object) -> None:
        if isinstance(failure, CutawayError):
            failure.prefix(self._field)
        elif isinstance(failure, UnicodeEncodeError):
            raise of_text(failure, self._field) from None


class changed:  # lower case, and a class, as `at`
    """A context that calls ``change`` with any `CutawayError` that leaves the block."""

    __slots__ = ("_change",)

    def __init__(self, change: Callable[[CutawayError], None]) -> None:
        self._change = change

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, failure: object, trace: object) -> None:
        if isinstance(failure, CutawayError):
            self._change(failure)
