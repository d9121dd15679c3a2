"""With what recipe a model was made of another: what its metadata says, or what gives the same types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ..core.annotations import pinned_in
from ..core.errors import AmpError
from ..core.graph import LOW, DescribedGraph, Graph
from ..core.recipe import Recipe
from ..core.runnable import RunnableGraph
from ..numerics.graphs import load_onnx
from ..planner.resolve import resolve
from .kinds import Model

LEVELS = ("O2", "auto", "O3", "O1")  # tried where nothing is said


def made_by(
    reference: RunnableGraph, model: RunnableGraph, convert: Callable[[Recipe], Model | Graph]
) -> Recipe | None:
    """The recipe with which ``convert`` makes of the reference what ``model`` is; None for another tool's work, and
    where more was said than the file tells (patterns of `--low`, lists, measured ranges)."""
    wanted = _types(model)
    for recipe in _guesses(reference, model):
        try:
            found = load_onnx(convert(recipe))
        except AmpError:
            continue
        if _types(found) == wanted:
            return recipe
    return None


def _guesses(reference: RunnableGraph, model: RunnableGraph) -> list[Recipe]:
    ours, theirs = reference.dataflow(), model.dataflow()
    low = [theirs.values[v] for v in (*theirs.scopes[0].inputs, *theirs.scopes[0].outputs)]
    before = [ours.values[v] for v in (*ours.scopes[0].inputs, *ours.scopes[0].outputs)]
    given = {value.name for value in before if value.dtype in LOW}
    io = tuple(f"{value.name}=low" for value in low if value.dtype in LOW and value.name not in given)
    dtype = next((value.dtype for value in theirs.values if value.dtype in LOW), "")
    plain = Recipe(dtype=dtype or "float16", io=io, opset=theirs.opset if theirs.opset != ours.opset else None)
    if not dtype:
        return []
    try:
        said = _said(plain, model.metadata() if isinstance(model, DescribedGraph) else {})
        return [said] if said is not None else [Recipe.of(plain, level=level) for level in LEVELS]
    except AmpError:  # words of somebody else
        return []


def _said(plain: Recipe, metadata: Mapping[str, str]) -> Recipe | None:
    """What a file says of itself. Raises AmpError AMP301 to AMP311 for words that make no sense."""
    level, policy = (metadata.get(f"ampgraph.{word}") for word in ("level", "policy"))
    if level is None:
        return None
    said = Recipe.of(plain, level=level, policy=policy or "ampgraph", fp32=pinned_in(metadata))
    target = metadata.get("ampgraph.target")
    return said if target == resolve(said, "ONNX").target else replace(said, target=target)


def _types(graph: Graph) -> set[tuple[str, str]]:
    return {(value.name, value.dtype) for value in graph.dataflow().values}
