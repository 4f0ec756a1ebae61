"""Processes that run models: their group, which ends as one, their environment, their log, and workers without
TorchServe."""
