"""One model answering requests: decodes, runs, encodes."""
