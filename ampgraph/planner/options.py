"""All that steers a plan, resolved: a recipe with the lists, level and kernels that its words name for a format."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from ..core.errors import AmpError
from ..core.recipe import Recipe
from ..oplists.kernels import Kernels, load_kernels
from ..oplists.levels import Level, load_level
from ..oplists.operators import OpLists, load_op_lists

if TYPE_CHECKING:
    from ..core.ranges import Ranges

DEFAULT_LEVEL = "O2"
DEFAULT_TARGETS = {"ONNX": "cuda", "MindIR": "ascend"}
MARGIN = 2.0


def largest(dtype: str) -> float:
    """The largest finite number of a low type."""
    return 65504.0 if dtype == "float16" else 3.3895313892515355e38


@dataclass(frozen=True)
class Options:
    """A resolved recipe.

    Attributes:
        target: whose kernels count.
        store_weights: ``low`` or ``keep``: parameters stay float32 in the file and are cast when it runs.
        ranges: what values were measured to reach.
    """

    recipe: Recipe
    level: Level
    lists: OpLists
    kernels: Kernels
    target: str
    store_weights: str
    ranges: Ranges | None = None

    @property
    def dtype(self) -> str:
        """The low type."""
        return self.recipe.dtype

    @property
    def policy(self) -> str:
        """Whose rules."""
        return self.recipe.policy

    @property
    def fp32(self) -> tuple[str, ...]:
        """Patterns of nodes that stay float32."""
        return self.recipe.fp32

    @property
    def low(self) -> tuple[str, ...]:
        """Patterns of nodes that become low."""
        return self.recipe.low

    @cached_property
    def dims(self) -> dict[str, int]:
        """Sizes of symbolic dimensions."""
        return dict(self.recipe.dims)

    @property
    def range_margin(self) -> float:
        """A value passes the limit when it would overflow this many times over."""
        return MARGIN if self.recipe.range_margin is None else self.recipe.range_margin

    @property
    def smallest_normal(self) -> float:
        return 2.0**-14 if self.dtype == "float16" else 2.0**-126

    @property
    def smallest_subnormal(self) -> float:
        return 2.0**-24 if self.dtype == "float16" else 2.0**-133

    @property
    def largest(self) -> float:
        return largest(self.dtype)

    def holding(self, patterns: tuple[str, ...]) -> Options:
        """The same, with more nodes that stay float32."""
        return replace(self, recipe=replace(self.recipe, fp32=(*self.fp32, *patterns)))


def resolve(recipe: Recipe, model_format: str) -> Options:
    """A recipe with all that its words name, for models of a format; ranges are not read here.

    Raises AmpError AMP301 to AMP305 for a word that names nothing, or that has no meaning beside another.
    """
    mindspore = recipe.policy == "mindspore"
    if mindspore and model_format != "MindIR":
        hint = "it is for .mindir files; leave --policy away"
        raise AmpError("AMP303", "policy 'mindspore' goes by MindSpore's cells", hint=hint)
    if mindspore and (recipe.fp32 or recipe.low or recipe.lists):
        word = "--fp32" if recipe.fp32 else "--low" if recipe.low else "--lists"
        raise AmpError("AMP305", f"{word} cannot change what MindSpore does", hint="leave --policy mindspore away")
    target = DEFAULT_TARGETS[model_format] if recipe.target is None else recipe.target
    return Options(
        recipe=recipe,
        level=load_level(DEFAULT_LEVEL if recipe.level is None else recipe.level, recipe.lists),
        lists=load_op_lists(recipe.policy, recipe.lists),
        kernels=load_kernels(target, model_format),
        target=target,
        store_weights=recipe.store_weights or ("keep" if mindspore else "low"),
    )
