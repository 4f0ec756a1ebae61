"""Handwritten digits: a small network, trained in seconds on real data, packaged and served."""
