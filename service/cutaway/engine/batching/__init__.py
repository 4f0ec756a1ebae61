"""Several requests as one."""
