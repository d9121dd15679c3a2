"""Runs in which every low value is really rounded."""
