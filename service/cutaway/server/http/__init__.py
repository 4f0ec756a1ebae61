"""The service by HTTP: Connect and gRPC-Web, REST, and a description of it. Off unless an address is set.

The protocols translate their requests to those of `cutaway.v1.InspectionService`, which `Servicer` answers as by gRPC.
Access, limits, errors, log and metrics are the same.
"""
