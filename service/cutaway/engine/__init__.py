"""Runs requests on torch models: hooks, targets, methods, checks. No gRPC, TorchServe, protobuf or files here."""
