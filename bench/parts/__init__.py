"""Our side of what is measured, and callers: each file runs as a process of its own, asked through `bench.pipe`."""
