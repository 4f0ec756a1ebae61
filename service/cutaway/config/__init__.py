"""Settings of the server, and how OpenMP threads wait."""
