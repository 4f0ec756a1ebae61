"""Benchmarks: each row is a ratio of two candidates that run interleaved in the same run. ``make bench`` runs all rows.

interleaved    runs candidates alternately and computes the ratios
models         the models that are measured
checks         the cost of a check relative to its attribution
"""
