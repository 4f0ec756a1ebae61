"""Estimates a reply, and counts its passes, without computing it."""
