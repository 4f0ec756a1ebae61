"""Captum's attribution methods: one table row each, one file for each family, and the call into Captum."""
