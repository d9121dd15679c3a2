"""``--freeze-weights``: stored tensors that are inputs too become constants, which can be stored low."""

from __future__ import annotations

from ..core.graph import Graph
from ..core.plan import Note, Plan
from ..core.recipe import Recipe
from ..formats import adapters
from ..report.lines import plural

TOPIC = "inputs"


def frozen(graph: Graph, recipe: Recipe) -> int:
    """Freezes weights where the recipe says so: how many there were."""
    return adapters.freeze(graph) if recipe.freeze_weights else 0


def notes(graph: Graph, plan: Plan, count: int) -> list[Note]:
    """What was done, or else what it would save: where other readers need float32 less, for a weight is stored twice
    then. ``graph``: not converted yet; ``count``: what `frozen` returned."""
    if count:
        return [
            Note(TOPIC, "", f"{plural(count, 'weight')} listed as inputs: constants now, which nobody can override")
        ]
    sizes = adapters.defaults(graph)
    cast = {item.value for item in plan.casts if not item.scope and item.value in sizes}
    if not cast:
        return []
    saved = sum(sizes[name] for name in cast) // 2
    text = (
        f"{plural(len(cast), 'weight')} listed as inputs, float32 and cast when it runs: --freeze-weights makes them "
        f"constants, which saves some {saved:,} bytes and {plural(len(cast), 'Cast')}"
    )
    return [Note(TOPIC, "", text)]
