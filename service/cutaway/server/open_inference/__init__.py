"""The Open Inference Protocol, version 2, which KServe's and Triton's clients use, by gRPC and by REST.

Its requests become those of `cutaway.v1.InspectionService`, which `Servicer` answers: access, limits, errors, log and
metrics are the same.
"""
