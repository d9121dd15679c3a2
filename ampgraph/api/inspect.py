"""`ampgraph.inspect`: what is in a model, and what changed since the one that it was made from; `ampgraph.lists`: the
lists in force."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..core.arguments import check_annotated, check_kind
from ..core.collector import quiet_collector
from ..core.recipe import Recipe, RecipeFields, Unpack
from ..planner.resolve import lists_of, with_target_of_file
from ..report.inspect import Inspection, fusions_of, inspection_of, view_model
from ..report.listing import ListRows, lists_report
from ..report.picture.page import inspection_page
from ..report.picture.writing import refuse_page, write_page
from .keywords import recipe_for, takes_recipe
from .kinds import Model, PathLike


@takes_recipe
def inspect(
    model: Model,
    against: Model | None = None,
    *,
    recipe: Recipe | str | None = None,
    fusions: bool = True,
    runtime: str = "",
    html: PathLike | None = None,
    progress: Callable[[str], None] | None = None,
    **fields: Unpack[RecipeFields],
) -> Inspection:
    """Looks at a model, and at what changed since ``against``.

    Args:
        model: what `convert` takes.
        against: the model that it was made from.
        recipe: the `ampgraph.Recipe` of the conversion, or its short text: its policy and lists say which operators
            are products and why a Cast stands where it does. Without a target: that which the file was made for.
        fusions: ask ONNX Runtime what it makes of both on the recipe's target: fused operators, placement, copies and
            Casts left. Opens a session of each in a process of its own; runs nothing. For TensorRT: build an engine of
            each, for the recipe's ``dims`` where dimensions are open; kernels, their types, fused attentions, bytes.
        runtime: the Python of an environment whose onnxruntime has the target's provider, or with TensorRT for RTX
            for that target; this one if empty.
        html: write a page there, whole or not at all: the graph by layers, precision as colour, reasons the file says.
        progress: hears what is done next.
        **fields: of the recipe; each replaces the recipe's own:

    Raises:
        AmpError: for a file that is missing or no model; AMP508 for a ``runtime`` that cannot be started.
    """
    check_annotated(inspect, locals())
    wanted = recipe_for(inspect, recipe, fields)
    lists_of(wanted)  # its words are refused before anything is read
    refuse_page(html, model, against)
    with quiet_collector():
        seen, original = view_model(model), None if against is None else view_model(against)
        wanted = with_target_of_file(wanted, seen.graph)
        found = inspection_of(seen, original, wanted)
    if fusions:
        hear = progress or (lambda stage: None)
        found = replace(found, fusions=fusions_of(seen, original, wanted, runtime, hear))
    write_page(html, lambda: inspection_page(seen, found, original).html())
    return found


@takes_recipe
def lists(
    operator: str | None = None,
    *,
    recipe: Recipe | str | None = None,
    **fields: Unpack[RecipeFields],
) -> ListRows:
    """What the lists say of operators: class, what the level does with it, why, and which line says so.

    Args:
        operator: a name or a glob; all if not given.
        recipe: an `ampgraph.Recipe`, or the short text of one; its policy, level, type, target and lists count.
        **fields: of the recipe; each replaces the recipe's own:

    Raises:
        AmpError: AMP301 to AMP303 for lists, levels and policies that are not there, AMP309 for the operator.
    """
    wanted = recipe_for(lists, recipe, fields)
    check_kind("operator", operator, (str,), 'for example "Softmax"')
    return lists_report(wanted, operator or "")
