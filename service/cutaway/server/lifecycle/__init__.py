"""Start, supervision, reload and restart of workers, and the gateway's servers."""
