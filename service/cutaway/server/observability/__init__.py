"""Metrics, logs and traces of calls."""
