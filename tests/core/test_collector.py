"""Models that were worked on before do not stay in memory for ever."""

from __future__ import annotations

import gc
import weakref

import pytest

from ampgraph.core import collector


class Circle:
    """Garbage that only the cyclic collector finds."""

    def __init__(self) -> None:
        self.me = self


def worked_on(times: int) -> list[weakref.ref[Circle]]:
    seen = []
    for _ in range(times):
        with collector.quiet_collector():
            circles = [Circle() for _ in range(100)]
            seen.append(weakref.ref(circles[0]))
        del circles
    return seen


@pytest.mark.slow
def test_garbage_of_earlier_work_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "_debt", collector._Debt())
    monkeypatch.setattr(collector, "MOST_OBJECTS", 50)
    assert sum(ref() is not None for ref in worked_on(3)) <= 2


@pytest.mark.slow
def test_so_it_is_where_few_objects_hold_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter(range(0, 1 << 20))
    monkeypatch.setattr(collector, "_debt", collector._Debt())
    monkeypatch.setattr(collector, "MOST_BYTES", 1)
    monkeypatch.setattr(collector, "_resident", lambda: next(sizes) << 10)
    assert sum(ref() is not None for ref in worked_on(3)) <= 2


def test_the_collector_is_on_again() -> None:
    assert gc.isenabled()
    with pytest.raises(KeyError), collector.quiet_collector():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()
