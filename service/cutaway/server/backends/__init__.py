"""Calls to workers: a backend sends batches to workers in this process or in others."""
