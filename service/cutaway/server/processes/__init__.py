"""Processes that run models: TorchServe, or workers of our own, in a process group that ends as one."""
