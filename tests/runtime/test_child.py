"""A function in a process of its own: what it is given reaches it however late it or this process comes to run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ampgraph.runtime import child


def give_back(argument: Any, answer: Callable[[Any], None]) -> None:
    answer(len(argument))


def test_what_is_given_arrives_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look at what was answered is over before anything could be written to the process."""
    monkeypatch.setattr(child, "TICK", 1e-9)
    found = child.in_child(give_back, "x" * 200_000, seconds=60, memory=4 << 30)
    assert found.answers == [200_000] and not found.crashed and "took more than" not in found.said
