"""Requests, results and errors: plain typed values, and how they travel."""
