"""What holds on a GPU, with networks of real size; skipped where there is none."""
