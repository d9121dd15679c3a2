"""Asks real frameworks what they do, and keeps their answers."""
