"""Torch in, torch out: hooks, targets, methods, checks. Knows nothing of gRPC, TorchServe, protobuf or files."""
