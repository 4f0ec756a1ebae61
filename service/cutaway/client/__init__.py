"""The Python client: numpy in, numpy out. Imports neither torch nor Captum."""
