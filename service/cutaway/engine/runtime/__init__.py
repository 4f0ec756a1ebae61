"""Utilities for torch, independent of hooks and models."""
