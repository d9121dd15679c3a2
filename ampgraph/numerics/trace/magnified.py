"""Where an error grows behind the node that makes it: in a logarithm, a quotient, a difference of large numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

from ...core.sites import Site
from .values import Trace

AMPLIFIES = 4.0  # from there on the inputs' own rounding is the cause as well
FLOOR = 1e-6  # an error below it is float32's own noise
NORMAL = {"float16": 2.0**-14, "bfloat16": 2.0**-126}  # the smallest with all its digits


class Traced(Protocol):
    """A trace with its readers."""

    @property
    def trace(self) -> Trace: ...
    @property
    def readers(self) -> Mapping[str, Sequence[int]]: ...
    @property
    def low_type(self) -> str: ...

    def error_in(self, site: Site) -> float:
        """The largest error of what a node reads."""
        ...


def magnified(traced: Traced, i: int) -> str:
    """By which node behind a node the relative error grows most, in words; empty where it does not grow fourfold."""
    waiting, met = deque([i]), {i}
    best, most = None, AMPLIFIES
    while waiting:
        site = traced.trace.sites[waiting.popleft()]
        for j in (reader for name in site.outputs for reader in traced.readers.get(name, ())):
            if j in met:
                continue
            met.add(j)
            waiting.append(j)
            growth = _growth(traced, traced.trace.sites[j])
            if growth > most:
                best, most = traced.trace.sites[j], growth
    return "" if best is None else f"made {most:.2g} times larger by {best.kind} {best.label}"


def _growth(traced: Traced, site: Site) -> float:
    """What a node's relative error is, of that of what it reads.

    Values below the low type's normal numbers are left out: there relative errors are large, and mean nothing."""
    trace, normal = traced.trace, NORMAL[traced.low_type]
    errors = [trace.error(out) for out in site.outputs if trace.reach(out) >= normal]
    before = traced.error_in(site)
    return max((e for e in errors if e is not None), default=0.0) / before if before > FLOOR else 0.0
