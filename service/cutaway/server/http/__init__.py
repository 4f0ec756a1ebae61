"""The service by HTTP: Connect and gRPC-Web, REST, and a description of it. Off unless an address is set.

Each protocol translates its requests to those of `cutaway.v1.InspectionService`, which `Servicer` answers as it does by
gRPC: access, limits, errors, log and metrics are the same.
"""
