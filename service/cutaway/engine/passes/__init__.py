"""Passes and their records: targets, baselines, features, reference inputs, findings, and the pass recorder."""
