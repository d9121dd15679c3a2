"""Samples, the user's or generated."""
