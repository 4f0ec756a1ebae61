"""Requests of every kind, each with the answer that PyTorch's own hooks and plain Captum give."""
