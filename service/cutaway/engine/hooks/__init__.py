"""Hook registration, captures and edits."""
