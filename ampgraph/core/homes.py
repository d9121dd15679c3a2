"""Where rules are found that core speaks of and does not import: the package fills it in when it is imported."""

from __future__ import annotations

REWRITES: list[str] = []
"""Packages each of whose modules defines a rewrite."""
