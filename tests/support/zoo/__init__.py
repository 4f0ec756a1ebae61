"""Fifteen architectures with seeded weights, and what PyTorch alone says about every module inside them."""
