"""Every way a call can fail, in one tree and one table.

    CutawayError                  anything that went wrong, with a stable reason
    ├── InvalidArgument           the request itself is at fault
    ├── NotFound                  the model, version or module does not exist
    ├── Unimplemented             part of the contract that this server does not serve
    ├── Unauthenticated           the server wants to know who calls
    ├── PermissionDenied          it knows, and the caller may not
    ├── FailedPrecondition        a right request that this model or server cannot take
    ├── ResourceExhausted         too large, or too many at once
    ├── DeadlineExceeded          the caller's time ran out
    ├── Unavailable               nobody there to answer: try again
    └── Internal                  our fault, or the model's

Applications branch on ``reason``, never on the message. Deep code raises short, with `error`; the boundary
adds the field. `TABLE` is the one place that says which gRPC status a reason travels under.
"""

from __future__ import annotations

from enum import IntEnum
from types import TracebackType
from typing import NamedTuple

from cutaway.word import Word

DOMAIN = "cutaway.dev"
"""The ``domain`` of every `google.rpc.ErrorInfo` that Cutaway sends."""


class Code(IntEnum):
    """The gRPC status codes in use, by their numbers on the wire (this module imports no grpc)."""

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


class Reason(Word):
    """What went wrong, in a word that never changes."""

    # The message as a whole.
    MALFORMED_REQUEST = "MALFORMED_REQUEST"
    UNKNOWN_FIELD = "UNKNOWN_FIELD"
    INVALID_VALUE = "INVALID_VALUE"
    NOT_IMPLEMENTED = "NOT_IMPLEMENTED"
    # The caller.
    TOKEN_REQUIRED = "TOKEN_REQUIRED"
    TOKEN_INVALID = "TOKEN_INVALID"
    TOKEN_EXPOSED = "TOKEN_EXPOSED"
    SCOPE_MISSING = "SCOPE_MISSING"
    LAYER_HIDDEN = "LAYER_HIDDEN"
    # The model.
    MODEL_NOT_FOUND = "MODEL_NOT_FOUND"
    VERSION_NOT_FOUND = "VERSION_NOT_FOUND"
    MODEL_NOT_LOADED = "MODEL_NOT_LOADED"
    ARCHIVE_CORRUPT = "ARCHIVE_CORRUPT"
    ADAPTER_INVALID = "ADAPTER_INVALID"
    MODEL_COMPILED = "MODEL_COMPILED"
    MODEL_SCRIPTED = "MODEL_SCRIPTED"
    MODEL_QUANTISED = "MODEL_QUANTISED"
    # The input.
    INPUT_MISSING = "INPUT_MISSING"
    INPUT_UNKNOWN = "INPUT_UNKNOWN"
    INPUT_EMPTY = "INPUT_EMPTY"
    INPUT_DTYPE = "INPUT_DTYPE"
    INPUT_SHAPE = "INPUT_SHAPE"
    INPUT_NOT_DIFFERENTIABLE = "INPUT_NOT_DIFFERENTIABLE"
    BATCH_MISMATCH = "BATCH_MISMATCH"
    TENSOR_SIZE = "TENSOR_SIZE"
    RAW_UNDECODABLE = "RAW_UNDECODABLE"
    RAW_UNSUPPORTED = "RAW_UNSUPPORTED"
    TEXT_TOO_LONG = "TEXT_TOO_LONG"
    # What was asked about it.
    MODULE_NOT_FOUND = "MODULE_NOT_FOUND"
    OP_NOT_FOUND = "OP_NOT_FOUND"
    PARAMETER_NOT_FOUND = "PARAMETER_NOT_FOUND"
    POINT_NOT_FOUND = "POINT_NOT_FOUND"
    POINT_NOT_DIFFERENTIABLE = "POINT_NOT_DIFFERENTIABLE"
    CALL_NOT_FOUND = "CALL_NOT_FOUND"
    PATH_NOT_FOUND = "PATH_NOT_FOUND"
    AXIS_RANGE = "AXIS_RANGE"
    SLICE_RANGE = "SLICE_RANGE"
    ROW_RANGE = "ROW_RANGE"
    PERMUTATION_INVALID = "PERMUTATION_INVALID"
    EDIT_SHAPE = "EDIT_SHAPE"
    EDIT_DTYPE = "EDIT_DTYPE"
    EDIT_INAPPLICABLE = "EDIT_INAPPLICABLE"
    OUTPUT_NOT_FOUND = "OUTPUT_NOT_FOUND"
    TARGET_RANGE = "TARGET_RANGE"
    TARGET_MISMATCH = "TARGET_MISMATCH"
    TARGET_SHAPE = "TARGET_SHAPE"
    NOT_DIFFERENTIABLE = "NOT_DIFFERENTIABLE"
    METHOD_INAPPLICABLE = "METHOD_INAPPLICABLE"
    # A job and its data set.
    DATA_NOT_FOUND = "DATA_NOT_FOUND"
    DATA_UNREADABLE = "DATA_UNREADABLE"
    COLUMN_NOT_FOUND = "COLUMN_NOT_FOUND"
    FOLDER_TAKEN = "FOLDER_TAKEN"
    JOB_INTERRUPTED = "JOB_INTERRUPTED"
    TOO_MANY_BAD_ROWS = "TOO_MANY_BAD_ROWS"
    # Running it.
    MODEL_FAILED = "MODEL_FAILED"
    REPLY_TOO_LARGE = "REPLY_TOO_LARGE"
    REQUEST_TOO_LARGE = "REQUEST_TOO_LARGE"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    LIMIT_EXCEEDED = "LIMIT_EXCEEDED"
    OVERLOADED = "OVERLOADED"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    WORKER_DIED = "WORKER_DIED"
    WORKER_KILLED = "WORKER_KILLED"
    BACKEND_UNAVAILABLE = "BACKEND_UNAVAILABLE"
    SERVER_UNREACHABLE = "SERVER_UNREACHABLE"
    INTERNAL = "INTERNAL"


class Row(NamedTuple):
    """One line of the table: the status a reason travels under, whether a retry can help, what it means."""

    code: Code
    retryable: bool
    meaning: str


_BAD = Code.INVALID_ARGUMENT

TABLE: dict[Reason, Row] = {
    Reason.MALFORMED_REQUEST: Row(_BAD, False, "The bytes are not a request message."),
    Reason.UNKNOWN_FIELD: Row(_BAD, False, "The request sets a field that this server does not know."),
    Reason.INVALID_VALUE: Row(_BAD, False, "A field holds a value outside its range."),
    Reason.NOT_IMPLEMENTED: Row(Code.UNIMPLEMENTED, False, "The field is part of the contract but not served yet."),
    Reason.TOKEN_REQUIRED: Row(Code.UNAUTHENTICATED, False, "The server answers only calls that carry a token."),
    Reason.TOKEN_INVALID: Row(Code.UNAUTHENTICATED, False, "The server does not know the token, or it has expired."),
    Reason.TOKEN_EXPOSED: Row(_BAD, False, "The client does not send a token to another machine in plaintext."),
    Reason.SCOPE_MISSING: Row(Code.PERMISSION_DENIED, False, "The token does not allow this of this model."),
    Reason.LAYER_HIDDEN: Row(Code.PERMISSION_DENIED, False, "The token does not show this layer."),
    Reason.MODEL_NOT_FOUND: Row(Code.NOT_FOUND, False, "No model of that name is served."),
    Reason.VERSION_NOT_FOUND: Row(Code.NOT_FOUND, False, "The model is served, but not in that version."),
    Reason.MODEL_NOT_LOADED: Row(Code.NOT_FOUND, False, "The model's archive is there but could not be loaded."),
    Reason.ARCHIVE_CORRUPT: Row(_BAD, False, "A .mar file is damaged, or was not made by `cutaway package`."),
    Reason.ADAPTER_INVALID: Row(_BAD, False, "An adapter cannot be imported, or does not do what it must."),
    Reason.MODEL_COMPILED: Row(
        Code.FAILED_PRECONDITION, False, "The model went through torch.compile, where hooks never fire."
    ),
    Reason.MODEL_SCRIPTED: Row(Code.FAILED_PRECONDITION, False, "The model is a ScriptModule, which takes no hooks."),
    Reason.MODEL_QUANTISED: Row(Code.FAILED_PRECONDITION, False, "The model is quantised and has no gradients."),
    Reason.INPUT_MISSING: Row(_BAD, False, "A tensor that the model needs was not sent."),
    Reason.INPUT_UNKNOWN: Row(_BAD, False, "A tensor was sent that the model's forward does not take."),
    Reason.INPUT_EMPTY: Row(_BAD, False, "There is nothing to run: no input, or a batch of no rows."),
    Reason.INPUT_DTYPE: Row(_BAD, False, "A tensor has another data type than the model takes."),
    Reason.INPUT_SHAPE: Row(_BAD, False, "A tensor has another rank or size than the model takes."),
    Reason.INPUT_NOT_DIFFERENTIABLE: Row(
        _BAD, False, "A gradient or attribution was asked of an integer or boolean input."
    ),
    Reason.BATCH_MISMATCH: Row(_BAD, False, "The inputs of one request differ in their number of rows."),
    Reason.TENSOR_SIZE: Row(_BAD, False, "A tensor's bytes do not match its shape and data type."),
    Reason.RAW_UNDECODABLE: Row(_BAD, False, "The model's adapter cannot decode these bytes."),
    Reason.RAW_UNSUPPORTED: Row(_BAD, False, "The model's adapter does not take this media type, or no raw bytes."),
    Reason.TEXT_TOO_LONG: Row(_BAD, False, "The text has more tokens than the model can read."),
    Reason.MODULE_NOT_FOUND: Row(_BAD, False, "No module of the model has that name or matches that glob."),
    Reason.OP_NOT_FOUND: Row(_BAD, False, "No operator of that address ran, or none matches that glob."),
    Reason.PARAMETER_NOT_FOUND: Row(_BAD, False, "The model has no parameter of that name."),
    Reason.POINT_NOT_FOUND: Row(_BAD, False, "The module or operator has no tensor at that point."),
    Reason.POINT_NOT_DIFFERENTIABLE: Row(
        _BAD, False, "A gradient was asked for where nothing has one, such as at token ids."
    ),
    Reason.CALL_NOT_FOUND: Row(_BAD, False, "The module or operator was not called that often."),
    Reason.PATH_NOT_FOUND: Row(_BAD, False, "There is no tensor at that path of what goes in or comes out."),
    Reason.AXIS_RANGE: Row(_BAD, False, "A tensor has no such axis, or its axis is shorter than asked for."),
    Reason.SLICE_RANGE: Row(_BAD, False, "A slice lies outside of its axis, or holds nothing."),
    Reason.ROW_RANGE: Row(_BAD, False, "A row is not in the batch, or the tensor's axis 0 is not the batch."),
    Reason.PERMUTATION_INVALID: Row(_BAD, False, "What should be a permutation of the batch's rows is none."),
    Reason.EDIT_SHAPE: Row(_BAD, False, "An edit's tensor does not broadcast against what is edited."),
    Reason.EDIT_DTYPE: Row(_BAD, False, "An edit needs floating numbers, and the tensor has none."),
    Reason.EDIT_INAPPLICABLE: Row(_BAD, False, "An edit cannot be made together with what else is asked for."),
    Reason.OUTPUT_NOT_FOUND: Row(_BAD, False, "The model returns no output of that name."),
    Reason.TARGET_RANGE: Row(_BAD, False, "A target's class index lies outside the model's output."),
    Reason.TARGET_MISMATCH: Row(_BAD, False, "The number of targets is not the number of rows."),
    Reason.TARGET_SHAPE: Row(_BAD, False, "The target does not fit the rank of the model's output."),
    Reason.NOT_DIFFERENTIABLE: Row(
        Code.FAILED_PRECONDITION, False, "The target does not depend differentiably on what was asked."
    ),
    Reason.METHOD_INAPPLICABLE: Row(_BAD, False, "The attribution method cannot be applied to this layer or input."),
    Reason.DATA_NOT_FOUND: Row(Code.NOT_FOUND, False, "There is no data set at that path."),
    Reason.DATA_UNREADABLE: Row(_BAD, False, "The data set is there but cannot be read."),
    Reason.COLUMN_NOT_FOUND: Row(_BAD, False, "The data set has no column of that name."),
    Reason.FOLDER_TAKEN: Row(Code.FAILED_PRECONDITION, False, "The output folder holds something else, or is in use."),
    Reason.JOB_INTERRUPTED: Row(Code.UNAVAILABLE, True, "The job stopped before its end; run again, it goes on."),
    Reason.TOO_MANY_BAD_ROWS: Row(Code.FAILED_PRECONDITION, False, "More rows are bad than the job allows."),
    Reason.MODEL_FAILED: Row(_BAD, False, "The model's own forward or backward raised on this input."),
    Reason.REPLY_TOO_LARGE: Row(Code.RESOURCE_EXHAUSTED, False, "The reply would be larger than allowed."),
    Reason.REQUEST_TOO_LARGE: Row(Code.RESOURCE_EXHAUSTED, False, "The request is larger than allowed."),
    Reason.OUT_OF_MEMORY: Row(Code.RESOURCE_EXHAUSTED, False, "The request needs more memory than there is."),
    Reason.LIMIT_EXCEEDED: Row(Code.RESOURCE_EXHAUSTED, False, "The request asks for more than the operator allows."),
    Reason.OVERLOADED: Row(Code.RESOURCE_EXHAUSTED, True, "Too many calls are waiting."),
    Reason.DEADLINE_EXCEEDED: Row(Code.DEADLINE_EXCEEDED, True, "The call's deadline passed before it ended."),
    Reason.WORKER_DIED: Row(Code.UNAVAILABLE, True, "The worker that had the call died; another one is starting."),
    Reason.WORKER_KILLED: Row(Code.INTERNAL, False, "Two workers died of this request; it is not tried a third time."),
    Reason.BACKEND_UNAVAILABLE: Row(Code.UNAVAILABLE, True, "Nothing answers behind the front door just now."),
    Reason.SERVER_UNREACHABLE: Row(Code.UNAVAILABLE, True, "The client reached no server at that address."),
    Reason.INTERNAL: Row(Code.INTERNAL, False, "A fault of the server's own: please report it."),
}


RETRY_AFTER_S: dict[str, float] = {
    Reason.OVERLOADED: 0.2,
    Reason.WORKER_DIED: 1.0,
    Reason.BACKEND_UNAVAILABLE: 2.0,
}
"""How long to wait before a retry, in seconds; it travels as `google.rpc.RetryInfo`. A deadline that passed has none:
what helps there is a longer one."""


class CutawayError(Exception):
    """A failure with a reason.

    Attributes:
        reason: what went wrong, as one of `Reason` (or a newer server's word for it).
        message: the same for a person, with what would be right.
        field: the path of the request field at fault (``captures[1].module``), or ``""``.
        code: the gRPC status code's number.
        retry_after_s: how long to wait before the same call may pass; None where waiting changes nothing.
    """

    code: int = Code.INTERNAL

    def __init__(self, reason: str, message: str, field: str = "") -> None:
        super().__init__(message)
        self.reason = str(reason)
        self.message = message
        self.field = field
        self.retry_after_s = RETRY_AFTER_S.get(self.reason)

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions pickle by their args alone; these cross process borders in batch jobs.
        return type(self), (self.reason, self.message, self.field)

    def __str__(self) -> str:
        where = f" [{self.field}]" if self.field else ""
        return f"{self.reason}{where}: {self.message}"


class InvalidArgument(CutawayError):
    """The request itself is at fault; sending it again changes nothing."""

    code = Code.INVALID_ARGUMENT


class NotFound(CutawayError):
    """The model or version asked for is not there."""

    code = Code.NOT_FOUND


class Unimplemented(CutawayError):
    """Part of the contract that this server does not serve."""

    code = Code.UNIMPLEMENTED


class Unauthenticated(CutawayError):
    """The server wants a token that it knows."""

    code = Code.UNAUTHENTICATED


class PermissionDenied(CutawayError):
    """The token does not allow this."""

    code = Code.PERMISSION_DENIED


class FailedPrecondition(CutawayError):
    """A well-formed request that this model cannot take."""

    code = Code.FAILED_PRECONDITION


class ResourceExhausted(CutawayError):
    """Too large, or too many at once."""

    code = Code.RESOURCE_EXHAUSTED


class DeadlineExceeded(CutawayError):
    """The caller's time ran out."""

    code = Code.DEADLINE_EXCEEDED


class Unavailable(CutawayError):
    """Nobody there to answer just now; a retry can help."""

    code = Code.UNAVAILABLE


class Internal(CutawayError):
    """A fault of the server's own."""

    code = Code.INTERNAL


_CLASSES: dict[int, type[CutawayError]] = {kind.code: kind for kind in CutawayError.__subclasses__()}


def error(reason: Reason, message: str, field: str = "") -> CutawayError:
    """The exception for ``reason``, of the class that its status code asks for."""
    return from_wire(TABLE[reason].code, reason, message, field)


def from_wire(code: int, reason: str, message: str, field: str = "") -> CutawayError:
    """The exception for a status that came over the wire, whatever server sent it."""
    failure = _CLASSES.get(code, CutawayError)(reason, message, field)
    failure.code = code
    return failure


class at:  # read as a word: with at("captures[0]")
    """Put ``field`` before the field of any `CutawayError` that leaves the block.

    A class and no generator: there are a hundred of these blocks in a request.
    """

    __slots__ = ("_field",)

    def __init__(self, field: str) -> None:
        self._field = field

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(failure, CutawayError):
            failure.field = _joined(self._field, failure.field)


def _joined(outer: str, inner: str) -> str:
    if not (outer and inner):
        return outer or inner
    return outer + inner if inner.startswith("[") else f"{outer}.{inner}"
