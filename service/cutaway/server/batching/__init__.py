"""The request queue of a model, fair between callers, and its adaptive batching."""
