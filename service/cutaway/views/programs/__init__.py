"""Questions as programs: what asks the same in Python, in TypeScript, by curl, or of every row of a data set."""
