"""The peers, one file each; each runs in its own environment (`bench.environments`)."""
