"""Shared value types: tensors as bytes, their compression, globs over module names."""
