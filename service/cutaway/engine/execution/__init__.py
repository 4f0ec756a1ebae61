"""Runs the passes of one request, or of a batch."""
