"""Switches a rule of the planner off, to show what it is for."""

from __future__ import annotations

import pytest

from ampgraph.oplists.options import Options
from ampgraph.planner.order import RULES

NAMES = {rule.name for rule in RULES}


def without(monkeypatch: pytest.MonkeyPatch, *rules: str) -> None:
    """As `--rule no-NAME`, for rules of validity too, which no user can switch off."""
    assert NAMES.issuperset(rules)
    monkeypatch.setattr(Options, "off", frozenset(rules))
