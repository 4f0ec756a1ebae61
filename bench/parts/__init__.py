"""Our side of each measurement, and load generators; each file runs as its own process behind `bench.pipe`."""
