"""Execution of plans: the main pass, attributions, checks, and the result as arrays."""
