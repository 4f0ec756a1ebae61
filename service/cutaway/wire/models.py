"""Models, described: `cutaway.v1.GetModelRequest` and `cutaway.v1.ModelDetail`."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from cutaway import results as plain
from cutaway.errors import Reason, error
from cutaway.v1 import inspection_service_pb2, model_pb2
from cutaway.wire.enums import DATA_TYPE_NAMES, DATA_TYPES
from cutaway.wire.results import decode_provenance, encode_provenance
from cutaway.wire.strict import refuse_unserved


def encode_question(model: str, operators: bool) -> bytes:
    """A serialised `cutaway.v1.GetModelRequest`."""
    return inspection_service_pb2.GetModelRequest(model=model, operators=operators).SerializeToString()


def decode_question(data: bytes) -> inspection_service_pb2.GetModelRequest:
    """The message in ``data``, where no bytes ask about the model alone.

    Raises:
        InvalidArgument: the bytes are no such message, or set what it does not have.
    """
    try:
        message = inspection_service_pb2.GetModelRequest.FromString(data)
    except DecodeError:
        raise error(Reason.MALFORMED_REQUEST, f"the {len(data)} bytes are not a cutaway.v1.GetModelRequest") from None
    refuse_unserved(message)
    return message


def encode_name(name: plain.ModelName) -> model_pb2.Model:
    """A model in a version, as a message."""
    return model_pb2.Model(name=f"models/{name.model}/versions/{name.version}", model=name.model, version=name.version)


def decode_name(message: model_pb2.Model) -> plain.ModelName:
    """The same, backwards."""
    return plain.ModelName(message.model, message.version)


def encode(detail: plain.ModelDetail) -> model_pb2.ModelDetail:
    """``detail`` as a message."""
    return model_pb2.ModelDetail(
        model=encode_name(detail.model),
        inputs=[
            model_pb2.InputSpec(
                name=spec.name,
                data_type=DATA_TYPES.get(spec.data_type, 0),
                shape=spec.shape,
                optional=spec.optional,
            )
            for spec in detail.inputs
        ],
        outputs=[
            model_pb2.OutputSpec(name=spec.name, data_type=DATA_TYPES.get(spec.data_type, 0), shape=spec.shape)
            for spec in detail.outputs
        ],
        labels=detail.labels,
        media_types=detail.media_types,
        modules=[
            model_pb2.Module(
                name=module.name,
                type=module.type,
                parameters=module.parameters,
                output_shapes=[model_pb2.Shape(sizes=shape) for shape in module.output_shapes],
                calls=module.calls,
                aliases=module.aliases,
            )
            for module in detail.modules
        ],
        provenance=encode_provenance(detail.provenance),
        operators=[
            model_pb2.Operator(
                address=operator.address,
                output_shapes=[model_pb2.Shape(sizes=shape) for shape in operator.output_shapes],
                calls=operator.calls,
            )
            for operator in detail.operators
        ],
    )


def decode(message: model_pb2.ModelDetail) -> plain.ModelDetail:
    """The same, backwards."""
    return plain.ModelDetail(
        model=decode_name(message.model),
        inputs=tuple(
            plain.InputSpec(spec.name, DATA_TYPE_NAMES.get(spec.data_type, ""), tuple(spec.shape), spec.optional)
            for spec in message.inputs
        ),
        outputs=tuple(
            plain.OutputSpec(spec.name, DATA_TYPE_NAMES.get(spec.data_type, ""), tuple(spec.shape))
            for spec in message.outputs
        ),
        labels=tuple(message.labels),
        media_types=tuple(message.media_types),
        modules=tuple(
            plain.ModuleInfo(
                module.name,
                module.type,
                module.parameters,
                tuple(tuple(shape.sizes) for shape in module.output_shapes),
                module.calls,
                tuple(module.aliases),
            )
            for module in message.modules
        ),
        provenance=decode_provenance(message.provenance),
        operators=tuple(
            plain.OperatorInfo(
                operator.address,
                tuple(tuple(shape.sizes) for shape in operator.output_shapes),
                operator.calls,
            )
            for operator in message.operators
        ),
    )
