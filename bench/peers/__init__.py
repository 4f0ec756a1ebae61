"""What we are compared with, a file each; each runs in an environment of its own (`bench.environments`)."""
