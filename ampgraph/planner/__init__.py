"""Decides; never edits."""
