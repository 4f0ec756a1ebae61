"""Hook registration, operators, captures and edits."""
