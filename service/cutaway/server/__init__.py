"""The server: gateways, which callers connect to, and workers, which run the models."""
