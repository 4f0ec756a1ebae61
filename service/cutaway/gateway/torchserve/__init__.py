"""TorchServe as a child process."""
