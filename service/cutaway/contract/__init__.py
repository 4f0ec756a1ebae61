"""Requests, results and errors as plain typed values; their codecs, and the reader of requests from mappings."""
