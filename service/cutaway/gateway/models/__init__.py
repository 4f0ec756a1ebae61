"""The model store, and the catalog of served models."""
