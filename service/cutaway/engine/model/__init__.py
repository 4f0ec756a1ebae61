"""The inspected model: its module tree, its inputs and the protection of its state."""
