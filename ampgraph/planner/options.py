"""All that steers a plan, resolved: the lists, levels and kernels that a recipe names, beside its own words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..oplists.kernels import Kernels
from ..oplists.levels import Level
from ..oplists.operators import OpLists

if TYPE_CHECKING:
    from ..core.ranges import Ranges


def largest(dtype: str) -> float:
    """The largest finite number of a low type."""
    return 65504.0 if dtype == "float16" else 3.3895313892515355e38


@dataclass(frozen=True)
class Options:
    """All that steers a plan."""

    level: Level
    lists: OpLists
    kernels: Kernels
    dtype: str = "float16"
    policy: str = "ampgraph"
    target: str = "cuda"
    fp32: tuple[str, ...] = ()
    low: tuple[str, ...] = ()
    dims: dict[str, int] = field(default_factory=dict)
    store_weights: str = "low"  # "keep": parameters stay float32 in the file and are cast when it runs
    ranges: Ranges | None = None  # what values were measured to reach
    range_margin: float = 2.0  # a value passes the limit when it would overflow this many times over

    @property
    def smallest_normal(self) -> float:
        return 2.0**-14 if self.dtype == "float16" else 2.0**-126

    @property
    def smallest_subnormal(self) -> float:
        return 2.0**-24 if self.dtype == "float16" else 2.0**-133

    @property
    def largest(self) -> float:
        return largest(self.dtype)
