"""Slow proofs that the server holds up: ``python -m tests.soak`` (`make soak`)."""
