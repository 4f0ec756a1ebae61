"""What a gateway says of its health."""

from __future__ import annotations

from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cutaway.client.transport import SERVICE


def health(address: str, service: str = SERVICE) -> str:
    """Returns the serving status of the gateway at ``address``, or of one of its models, by its name in the health
    protocol."""
    with grpc.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        reply = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=60)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))
