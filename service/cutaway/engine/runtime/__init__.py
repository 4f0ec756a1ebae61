"""Tolerances, conversions and random numbers for torch, independent of hooks and models."""
