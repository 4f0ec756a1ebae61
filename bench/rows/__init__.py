"""The rows of the table, a file for each kind of thing that is measured."""
