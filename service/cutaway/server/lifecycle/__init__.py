"""Start, reload and restart of backends."""
