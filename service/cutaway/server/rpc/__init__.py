"""The gRPC server: servicer, authentication, reflection."""
