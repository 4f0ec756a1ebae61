"""Compares attributions with references: verdict, cause and location."""
