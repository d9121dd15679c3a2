"""Whose rules decide."""
