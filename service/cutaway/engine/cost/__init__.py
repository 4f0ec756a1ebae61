"""Estimates of a request before it runs: shapes of the reply, memory, and number of passes."""
