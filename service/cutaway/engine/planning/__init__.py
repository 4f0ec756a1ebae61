"""The plan of a request: names resolved and parameters validated before anything runs."""
