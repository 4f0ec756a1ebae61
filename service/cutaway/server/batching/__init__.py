"""The request queue and adaptive batching."""
