"""Slow proofs that the server holds up: ``python -m tests.endurance`` (`make soak`)."""
