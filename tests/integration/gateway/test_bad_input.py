"""Bad input gets a clear error - class, reason, field, what would be right - and harms nothing else."""

from __future__ import annotations

import gc
import io
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from PIL import Image

import cutaway as ca
from cutaway.client.transport import SERVICE
from cutaway.contract.wire import grpc_status
from cutaway.contract.wire.message_walk import MAX_ENTRIES, prefix
from cutaway.gateway import serve
from cutaway.v1 import inspection_pb2, tensor_pb2
from examples.digits.digits_adapter import Digits
from tests.support.small_models import Images, Words
from tests.support.waiting import until

IMAGE = np.random.default_rng(0).random((2, 1, 8, 8), np.float32)
IDS = np.array([[1, 2, 3], [4, 5, 6]])
WEIGHT = np.ones((2, 3), np.float32)
MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A gateway over two small models."""
    with serve({"net": Images(), "words": Words()}) as server:
        yield server.address


@pytest.fixture
def client(address: str) -> Iterator[ca.Client]:
    """A client; after the test, an innocent question still gets its answer."""
    with ca.Client(address) as connected:
        before = connected.inspect("net", {"image": IMAGE}).predictions["output"]
        yield connected
        after = connected.inspect("net", {"image": IMAGE}).predictions["output"]
        assert np.array_equal(before, after)


def net(**asked: Any) -> Callable[[ca.Client], object]:
    """Ask ``net`` about images."""
    given = asked.pop("inputs", {"image": IMAGE})
    return lambda client: client.inspect(asked.pop("model", "net"), given, **asked)


def words(**given: Any) -> Callable[[ca.Client], object]:
    """Ask ``words`` about tokens."""
    return lambda client: client.inspect("words", given)


def raw(data: bytes, media_type: str = "") -> Callable[[ca.Client], object]:
    """Send bytes for the adapter to decode."""
    return lambda client: client.inspect("net", ca.Raw(data, media_type))


CASES: dict[str, tuple[Callable[[ca.Client], object], type[ca.CutawayError], str, str, str]] = {
    "unknown model": (
        net(model="nets"), ca.NotFound, "MODEL_NOT_FOUND", "model", "no model 'nets'; did you mean 'net'?"),
    "unknown version": (
        net(model="net/versions/7"), ca.NotFound, "VERSION_NOT_FOUND", "model",
        "'net' is served in 1.0, not in 7"),
    "no model name": (
        net(model="a/b/c"), ca.InvalidArgument, "INVALID_VALUE", "model",
        "'a/b/c' is not of the form NAME or NAME/versions/VERSION"),
    "layer that is not there": (
        net(captures=["conv3"]), ca.InvalidArgument, "MODULE_NOT_FOUND", "captures[0].module",
        "no module is named 'conv3'; nearest: conv2, conv1"),
    "glob that a slow engine never ends with": (
        net(captures=["**" * 24 + "!"]), ca.InvalidArgument, "MODULE_NOT_FOUND", "captures[0].module",
        "matches no module"),
    "glob that is too long": (
        net(captures=["conv1", "*" * 1001]), ca.InvalidArgument, "INVALID_VALUE", "captures[1].module",
        "a text of 1001 characters; 1000 are the most"),
    "operators' glob that is too long": (
        net(captures=[ca.Capture(op="**:relu#" + "*" * 995)]), ca.InvalidArgument, "INVALID_VALUE", "captures[0].op",
        "a text of 1003 characters; 1000 are the most"),
    "parameters' glob that is too long": (
        net(captures=[ca.Capture(parameter="*" * 1001)]), ca.InvalidArgument, "INVALID_VALUE", "captures[0].parameter",
        "a text of 1001 characters; 1000 are the most"),
    "glob that matches nothing": (
        net(captures=["conv1", "block*"]), ca.InvalidArgument, "MODULE_NOT_FOUND", "captures[1].module",
        "the glob 'block*' matches no module"),
    "attributed layer that is not there": (
        net(attributions=[ca.Saliency(), ca.LayerGradCam(layer="cnv2")]), ca.InvalidArgument, "MODULE_NOT_FOUND",
        "attributions[1].layer_grad_cam.layer", "no module is named 'cnv2'; nearest: conv2"),
    "attributed layer that is never called": (
        net(attributions=[ca.LayerActivation(layer="unused")]), ca.InvalidArgument, "METHOD_INAPPLICABLE",
        "attributions[0].layer_activation.layer", "the model never called its module 'unused'"),
    "no tensor at all": (
        net(inputs={}), ca.InvalidArgument, "INPUT_MISSING", "tensors.by_name.image",
        "the model needs image: float32 [any, 1, 8, 8]"),
    "missing input": (
        words(ids=IDS), ca.InvalidArgument, "INPUT_MISSING", "tensors.by_name.weight",
        "the model needs weight: float32 [any, any]"),
    "extra input": (
        net(inputs={"image": IMAGE, "zoom": IMAGE}), ca.InvalidArgument, "INPUT_UNKNOWN", "tensors.by_name.zoom",
        "the model takes image, not 'zoom'"),
    "misnamed input": (
        net(inputs={"imge": IMAGE}), ca.InvalidArgument, "INPUT_UNKNOWN", "tensors.by_name.imge",
        "the model takes image, not 'imge'; did you mean 'image'?"),
    "wrong data type": (
        net(inputs={"image": IMAGE.astype(np.uint8)}), ca.InvalidArgument, "INPUT_DTYPE",
        "tensors.by_name.image",
        "got uint8, the model takes image: float32 [any, 1, 8, 8]; send x.astype('float32'), scaled as"),
    "number past the type": (
        net(inputs={"image": IMAGE.astype(float) * 1e300}), ca.InvalidArgument, "INVALID_VALUE",
        "tensors.by_name.image", "which float32, the model's type, cannot hold"),
    "wrong rank": (
        net(inputs={"image": IMAGE[0]}), ca.InvalidArgument, "INPUT_SHAPE", "tensors.by_name.image",
        "got [1, 8, 8], the model takes image: float32 [any, 1, 8, 8]; x[None] is a batch of one"),
    "channels last": (
        net(inputs={"image": IMAGE.reshape(-1, 8, 8, 1)}), ca.InvalidArgument, "INPUT_SHAPE", "tensors.by_name.image",
        "8, 8, 1], the model takes image: float32 [any, 1, 8, 8]; np.moveaxis(x, -1, 1) has the channels"),
    "no batch axis": (
        words(ids=IDS, weight=np.float32(1)), ca.InvalidArgument, "INPUT_SHAPE", "tensors.by_name.weight",
        "a scalar has no batch axis; axis 0 must be the batch"),
    "empty batch": (
        net(inputs={"image": IMAGE[:0]}), ca.InvalidArgument, "INPUT_EMPTY", "tensors.by_name.image",
        "a batch of no rows; send at least one"),
    "batches of two sizes": (
        words(ids=IDS, weight=WEIGHT[:1]), ca.InvalidArgument, "BATCH_MISMATCH", "tensors.by_name",
        "all inputs need the same number of rows on axis 0: ids has 2, weight has 1"),
    "data type that cannot be sent": (
        net(inputs={"image": IMAGE.astype(complex)}), ca.InvalidArgument, "INPUT_DTYPE", "inputs.image",
        "complex128 cannot be sent; the contract has float16"),
    "target out of range": (
        net(target=10, input_gradients=True), ca.InvalidArgument, "TARGET_RANGE", "target.class_index",
        "target 10 is out of range; the output has classes 0 to 9"),
    "negative target": (
        net(target=[0, -1], input_gradients=True), ca.InvalidArgument, "TARGET_RANGE", "target.class_index",
        "target -1 is out of range"),
    "target out of range though nothing needs it": (
        net(target=10), ca.InvalidArgument, "TARGET_RANGE", "target.class_index", "target 10 is out of range"),
    "targets that do not match the batch": (
        net(target=[1, 2, 3], input_gradients=True), ca.InvalidArgument, "TARGET_MISMATCH", "target.class_index",
        "3 targets for a batch of 2; send one for all, or 2"),
    "an attribution's own target out of range": (
        net(attributions=[ca.Saliency(target=ca.ClassIndex((11,)))]), ca.InvalidArgument, "TARGET_RANGE",
        "attributions[0].target.class_index", "target 11 is out of range"),
    "output that is not there": (
        net(target=ca.PredictedClass(output="logits"), input_gradients=True), ca.InvalidArgument,
        "OUTPUT_NOT_FOUND", "target.output", "no output 'logits'; the model returns output"),
    "gradient of token ids": (
        lambda client: client.inspect("words", {"ids": IDS, "weight": WEIGHT}, input_gradients=["ids"]),
        ca.InvalidArgument, "INPUT_NOT_DIFFERENTIABLE", "input_gradients.inputs",
        "the input 'ids' is int64 and has no gradient; take the gradient where numbers begin: GRAD_OUTPUT of 'words'"),
    "gradient of an input that was not sent": (
        net(input_gradients=["zoom"]), ca.InvalidArgument, "INPUT_UNKNOWN", "input_gradients.inputs",
        "no input 'zoom' was sent; there are image"),
    "too many steps": (
        net(attributions=[ca.IntegratedGradients(n_steps=20_000)]), ca.ResourceExhausted, "LIMIT_EXCEEDED",
        "attributions[0].integrated_gradients.n_steps", "the request has 20000 steps, 10000 are allowed"),
    "baseline of another shape": (
        net(attributions=[ca.IntegratedGradients(baselines={"image": IMAGE[..., :4]})]), ca.InvalidArgument,
        "INPUT_SHAPE", "attributions[0].integrated_gradients.path.baselines.by_input.image",
        "[2, 1, 8, 4]; send one row for all, [1, 1, 8, 8], or one an example, [2, 1, 8, 8]"),
    "baseline for nothing": (
        net(attributions=[ca.IntegratedGradients(baselines={"zoom": 1.0})]), ca.InvalidArgument, "INPUT_UNKNOWN",
        "attributions[0].integrated_gradients.path.baselines.by_input.zoom", "which is not explained"),
    "image that does not decode": (
        raw(b"not an image"), ca.InvalidArgument, "RAW_UNDECODABLE", "raw.examples[0].data",
        "these 12 bytes are no image that can be decoded as image/png"),
    "no bytes": (
        raw(b""), ca.InvalidArgument, "RAW_UNDECODABLE", "raw.examples[0].data", "these 0 bytes are no image"),
    "media type that the model does not take": (
        raw(b"hello", "text/plain"), ca.InvalidArgument, "RAW_UNSUPPORTED", "raw.examples[0].media_type",
        "'text/plain' is none of image/png"),
    "raw bytes for a model of tensors": (
        lambda client: client.inspect("words", ca.Raw(b"hello")), ca.InvalidArgument, "RAW_UNSUPPORTED",
        "raw.examples[0].data", "this model takes tensors, not raw bytes"),
    "a reply larger than asked for": (
        net(captures=["**"], max_reply_bytes=100), ca.ResourceExhausted, "REPLY_TOO_LARGE",
        "options.max_reply_bytes", "100 are allowed; capture fewer modules or send fewer rows"),
    "no steps": (
        net(attributions=[ca.IntegratedGradients(n_steps=0)]), ca.InvalidArgument, "INVALID_VALUE",
        "attributions[0].integrated_gradients.path.n_steps", "0; at least 1"),
    "no point": (
        net(captures=[ca.Capture("conv1", at=())]), ca.InvalidArgument, "INVALID_VALUE", "captures[0].points",
        "name at least one point"),
    "a negative limit": (
        net(max_reply_bytes=-1), ca.InvalidArgument, "INVALID_VALUE", "options.max_reply_bytes", "-1; from 0 to"),
    "token id outside the vocabulary": (
        words(ids=IDS + 100, weight=WEIGHT), ca.InvalidArgument, "MODEL_FAILED", "",
        "the model's forward raised IndexError on ids int64[2, 3], weight float32[2, 3]: index out of range in "
        "self; 'words' is an Embedding of the ids 0 to"),
}  # fmt: skip


@pytest.mark.parametrize("case", list(CASES))
def test_says_what_is_wrong_and_what_would_be_right(client: ca.Client, case: str) -> None:
    """Each kind of bad input has its own reason, names the field, and says what would be right."""
    ask, kind, reason, field, text = CASES[case]
    with pytest.raises(kind) as caught:
        ask(client)
    assert (caught.value.reason, caught.value.field) == (reason, field)
    assert text in caught.value.message


def hostile(shape: list[int], data: bytes, data_type: int = tensor_pb2.DATA_TYPE_FLOAT32) -> bytes:
    """A request whose tensor no client of ours would make."""
    tensor = tensor_pb2.Tensor(data_type=data_type, shape=shape, data=data)  # type: ignore[arg-type]
    request = inspection_pb2.InspectRequest(model="net")
    request.tensors.by_name["image"].CopyFrom(tensor)
    return request.SerializeToString()


HOSTILE = {
    "bytes that do not match": (
        hostile([2, 1, 8, 8], b"1234"), "TENSOR_SIZE", "tensors.by_name.image.data",
        "float32[2, 1, 8, 8] needs 512 bytes, got 4"),
    "negative size": (
        hostile([-1, 1, 8, 8], b""), "INPUT_SHAPE", "tensors.by_name.image.shape",
        "[-1, 1, 8, 8] has a negative size"),
    "overflowing size": (
        hostile([2**62, 2**62], b""), "INPUT_SHAPE", "tensors.by_name.image.shape", "elements"),
    "no data type": (
        hostile([1], b"1234", 0), "INPUT_DTYPE", "tensors.by_name.image.data_type",
        "data type 0 is none of DATA_TYPE_FLOAT16"),
    "garbage": (b"\xff\xfegarbage", "MALFORMED_REQUEST", "", "bytes are not"),
    "nothing": (b"", "INVALID_VALUE", "model", "the model's name"),
    "no input": (
        inspection_pb2.InspectRequest(model="net").SerializeToString(), "INPUT_MISSING", "tensors",
        "send tensors by name, or raw bytes"),
    "a field from the future": (
        inspection_pb2.InspectRequest(model="net").SerializeToString() + b"\xfa\x3e\x01x", "UNKNOWN_FIELD", "",
        "InspectRequest has no field number 1007; is the client newer than the server?"),
}  # fmt: skip


def refused(address: str, method: str, payload: bytes) -> ca.CutawayError:
    """The error that ``payload`` gets over plain gRPC: INVALID_ARGUMENT with ErrorInfo."""
    with grpc.insecure_channel(address) as channel:
        call: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(f"/{SERVICE}/{method}")
        with pytest.raises(grpc.RpcError) as caught:
            list(call(payload))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    trailers: Any = caught.value.trailing_metadata()
    return grpc_status.decode(3, caught.value.details() or "", trailers)


@pytest.mark.parametrize("case", list(HOSTILE))
def test_hostile_bytes_are_refused_with_a_reason(client: ca.Client, address: str, case: str) -> None:
    """Bytes that no proper client sends get an error that says what is wrong."""
    payload, reason, field, text = HOSTILE[case]
    failure = refused(address, "Inspect", payload)
    assert (failure.reason, failure.field) == (reason, field)
    assert text in failure.message


CAPTURES = b"\x2a\x00" * (MAX_ENTRIES + 1)
NEW_FIELDS = b"\xf8\x06\x00" * (MAX_ENTRIES + 1)


@pytest.mark.parametrize(
    ("method", "fields", "field"),
    [
        ("Inspect", CAPTURES, "captures"),
        ("Inspect", NEW_FIELDS, ""),
        ("InspectStream", prefix(1, len(CAPTURES) + 1) + CAPTURES, "captures"),
        ("InspectStream", NEW_FIELDS, ""),
        ("GetModel", NEW_FIELDS, ""),
        ("ListModels", NEW_FIELDS, ""),
    ],
)
def test_too_many_fields_are_not_read(client: ca.Client, address: str, method: str, fields: bytes, field: str) -> None:
    """The request is refused at the first that is too many: that it ends in the middle of a field is not seen."""
    failure = refused(address, method, fields + b"\xff")
    assert (failure.reason, failure.field) == ("INVALID_VALUE", field)
    assert failure.message == "the request has more than 100000 entries"


@pytest.mark.parametrize("method", ["Inspect", "InspectStream"])
def test_a_refused_request_is_not_kept(address: str, method: str) -> None:
    """Its memory is free when its call has ended, without a collection of garbage, which comes rarely."""
    payload = hostile([MEBIBYTE], bytes(4 * MEBIBYTE)).replace(b"net", b"who", 1)
    if method == "InspectStream":
        payload = prefix(1, len(payload)) + payload
    tracemalloc.start()
    gc.disable()
    try:
        for _ in range(4):
            with grpc.insecure_channel(address) as channel:
                call: Any = channel.unary_stream(f"/{SERVICE}/{method}")
                with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
                    list(call(payload))
        until(lambda: tracemalloc.get_traced_memory()[0] < len(payload))
    finally:
        gc.enable()
        tracemalloc.stop()


def test_a_request_over_the_limit_says_what_the_limit_is() -> None:
    """A request that is too large is RESOURCE_EXHAUSTED, with the size and the limit."""
    from cutaway.server.settings import Settings

    with serve({"net": Images()}, settings=Settings(max_message_bytes=1000)) as server, ca.Client(server.address) as c:
        with pytest.raises(ca.ResourceExhausted, match="1000 are allowed") as caught:
            c.inspect("net", {"image": np.repeat(IMAGE, 2, axis=0)})
        assert caught.value.reason == "REQUEST_TOO_LARGE"


def test_an_image_of_any_mode_and_size_is_read(client: ca.Client) -> None:
    """A colour image of another size is converted as the adapter says: what can be right is not refused."""
    file = io.BytesIO()
    Image.new("RGBA", (40, 30), (255, 0, 0, 128)).save(file, "PNG")
    assert client.inspect("net", [ca.Raw(file.getvalue())] * 2).predictions["output"].shape == (2, 10)


def test_a_small_file_that_is_a_very_large_image_is_refused() -> None:
    """By what its header says, before a pixel of it is decoded."""
    file = io.BytesIO()
    Image.new("1", (9000, 9000)).save(file, "png")
    assert len(file.getvalue()) < 1 << 16
    with pytest.raises(ca.InvalidArgument, match=r"9000 x 9000 pixels; at most \d+ are decoded") as refusal:
        Digits().preprocess(file.getvalue(), "image/png")
    assert refusal.value.reason == "RAW_UNDECODABLE"
