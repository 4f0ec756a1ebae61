"""Checks of attributions and models: verdicts from references, and the cause and location of faults."""
