"""Resolves and validates a request before anything runs."""
