"""Programs that repeat a request: in Python, in TypeScript, by curl, or for every row of a data set."""
