"""With what recipe a model was made of another: what its metadata says, or what gives the same types."""

from __future__ import annotations

from pathlib import Path

from ..core.annotations import pinned_in
from ..core.errors import AmpError
from ..core.graph import LOW, DescribedGraph, Graph
from ..core.recipe import Recipe
from ..core.runnable import RunnableGraph
from ..numerics.graphs import load_onnx
from .kinds import Model
from .trials import converted

LEVELS = ("O2", "auto", "O3", "O1")  # tried where nothing is said
WORDS = ("level", "dtype", "policy", "target")


def made_by(source: Model, reference: RunnableGraph, model: RunnableGraph, scratch: Path) -> Recipe | None:
    """The recipe that makes of ``source``, which ``reference`` was read from, what ``model`` is; None for another
    tool's work, and where more was said than the file tells (patterns of `--low`, lists, measured ranges)."""
    wanted = _types(model)
    for recipe in _guesses(reference, model):
        try:
            found = load_onnx(converted(source, recipe, scratch / "again.onnx"))
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
    metadata = model.metadata() if isinstance(model, DescribedGraph) else {}
    said = {word: metadata[f"ampgraph.{word}"] for word in WORDS if f"ampgraph.{word}" in metadata}
    try:
        if "level" not in said:
            return [Recipe.of(plain, level=level) for level in LEVELS]
        return [Recipe.of(plain, fp32=pinned_in(metadata), **said)]
    except AmpError:  # words of somebody else
        return []


def _types(graph: Graph) -> set[tuple[str, str]]:
    return {(value.name, value.dtype) for value in graph.dataflow().values}
