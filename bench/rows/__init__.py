"""The rows of the table, grouped into files by kind."""
