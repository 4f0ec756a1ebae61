"""Backends: TorchServe, models in this process, and other gateways."""
