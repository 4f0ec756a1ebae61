"""Shared value types: tensors as bytes, and their compression."""
