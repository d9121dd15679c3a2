"""All that steers a plan, resolved: a recipe with the lists, level and kernels that its words name for a format."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from ..core.low_types import low_type
from ..core.recipe import Recipe
from .kernels import Kernels
from .levels import Level
from .operators import OpLists
from .rewrites import WITHOUT, choose_rewrites

if TYPE_CHECKING:
    from ..core.ranges import Ranges

DEFAULT_TARGETS = {"ONNX": "cuda", "MindIR": "ascend"}
MARGIN = 2.0


@dataclass(frozen=True)
class Options:
    """A resolved recipe.

    Attributes:
        target: whose kernels count.
        store_weights: ``low`` or ``keep``: parameters stay float32 in the file and are cast when it runs.
        ranges: what values were measured to reach.
        pinned: patterns of what an earlier conversion of the file pinned to float32, as the file says.
        moved_to: the opset that the model was moved to as it frees operators; 0 where it was not.
        cast_together: inputs with a first value of up to so many numbers are cast by one node for all.
    """

    recipe: Recipe
    level: Level
    lists: OpLists
    kernels: Kernels
    target: str
    store_weights: str
    ranges: Ranges | None = None
    pinned: tuple[str, ...] = ()
    cast_together: int = 0
    moved_to: int = 0

    @property
    def dtype(self) -> str:
        """The low type of these options."""
        return self.recipe.dtype

    @property
    def policy(self) -> str:
        """Whose rules these options follow."""
        return self.recipe.policy

    @property
    def holds_guards(self) -> bool:
        """Whether guards of ours keep in float32 what overflows: not by a framework's policy, nor where they warn."""
        return self.policy == "ampgraph" and self.level.accuracy_guards == "hold"

    @property
    def fp32(self) -> tuple[str, ...]:
        """The options' patterns of nodes that stay float32."""
        return self.recipe.fp32

    @property
    def low(self) -> tuple[str, ...]:
        """The options' patterns of nodes that become low."""
        return self.recipe.low

    @property
    def named_patterns(self) -> tuple[str, ...]:
        """Patterns of nodes that the user or an earlier conversion speaks of: rewrites leave these alone."""
        return (*self.fp32, *self.low, *self.pinned)

    @cached_property
    def dims(self) -> dict[str, int]:
        """The options' sizes of symbolic dimensions, by name."""
        return dict(self.recipe.dims)

    @cached_property
    def rewrites(self) -> frozenset[str]:
        """The rewrites that are asked for. Raises AmpError AMP301 for a word that names none."""
        return choose_rewrites(self.recipe.rewrite)

    @cached_property
    def off(self) -> frozenset[str]:
        """The names of the rules that these options switch off."""
        return frozenset(word.removeprefix(WITHOUT) for word in self.recipe.rule)

    @property
    def range_margin(self) -> float:
        """The options' margin of ranges: a value passes the limit when it would overflow this many times over."""
        return MARGIN if self.recipe.range_margin is None else self.recipe.range_margin

    @property
    def largest(self) -> float:
        """The largest finite number of the low type."""
        return low_type(self.dtype).largest

    def holding(self, patterns: tuple[str, ...]) -> Options:
        """These options with more ``patterns`` of nodes that stay float32."""
        return replace(self, recipe=replace(self.recipe, fp32=(*self.fp32, *patterns)))


def with_kernels(options: Options, kinds: Iterable[str]) -> Options:
    """These `Options`, as if the target's table had low kernels for operators of some kinds."""
    kernels = options.kernels
    entries = {**kernels.entries, **dict.fromkeys(kinds, (f"1- T=float,{options.dtype}",))}
    return replace(options, kernels=replace(kernels, entries=entries))
