"""A worker, which answers requests to one model: it decodes them, runs the model and encodes the replies."""
