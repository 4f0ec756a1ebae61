"""Benchmarks: ratios of things that run side by side, in the same process and in turn. ``make bench`` runs them all.

interleaved    runs candidates in turn, and says how they compare
models         the models that are asked
checks         what a check costs beside the attribution that it is about
"""
