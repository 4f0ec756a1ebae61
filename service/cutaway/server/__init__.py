"""The gateway that callers connect to, and the workers behind it."""
