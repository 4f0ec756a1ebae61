"""Real models, served: what to copy from when serving your own."""
