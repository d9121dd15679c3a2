"""Every Cast of a model with the reason that its surroundings show: who made the tensor, who reads it."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.dataflow import FLOAT32, NONE, Dataflow, Op
from ..core.graph import LOW
from ..oplists.operators import OpLists
from ..oplists.traits import has
from .lines import first

NAMED = 2  # readers named in a reason; the others are counted


@dataclass(frozen=True, slots=True)
class CastReport:
    """One Cast. ``sort``: ``input``, ``output``, ``between`` (two operators), ``rounding`` (low and back),
    ``conversion`` (not between float types, so no matter of precision) or ``existing`` (in the original already)."""

    name: str
    value: str
    layer: str
    source: str
    target: str
    sort: str
    reason: str


def cast_reports(flow: Dataflow, lists: OpLists, original: Dataflow | None = None) -> tuple[CastReport, ...]:
    """The Casts in order. With ``original``, those that it has already are marked."""
    before = set()
    if original is not None:
        before = {original.values[op.outputs[0]].name for op in original.ops if has(op.role, "casts") and op.outputs}
    return tuple(_report_of(flow, lists, op, before) for op in flow.ops if has(op.role, "casts") and op.outputs)


def _report_of(flow: Dataflow, lists: OpLists, op: Op, before: set[str]) -> CastReport:
    """What the report says of a Cast, and why it is there; ``before``: names in the file before the conversion."""
    source, target = flow.values[op.inputs[0]], flow.values[op.outputs[0]]
    floats = {source.dtype, target.dtype} <= {FLOAT32, "float64", *LOW}
    made, sort = _maker_in_words(flow, lists, op.inputs[0])
    read, output = _readers_in_words(flow, lists, op.outputs[0])
    if target.name in before:
        sort, note = "existing", "in the file before: "
    elif not floats:
        sort, note = "conversion", "a conversion of the model: "
    else:
        sort, note = "output" if output and sort == "between" else sort, ""
    name = op.name or target.name
    return CastReport(name, target.name, flow.layer(op), source.dtype, target.dtype, sort, f"{note}{made}, {read}")


def _maker_in_words(flow: Dataflow, lists: OpLists, value: int) -> tuple[str, str]:
    """Who makes the tensor that is cast, in words, and the sort of Cast that this suggests."""
    item = flow.values[value]
    producer = flow.writer(value)
    if item.weight:
        return f"weight '{item.name}'", "between"
    if producer is None:
        main = flow.scopes[item.scope].kind == "main"
        return (f"graph input '{item.name}'", "input") if main else (f"input '{item.name}' of its body", "between")
    if has(producer.role, "casts"):
        started = flow.values[producer.inputs[0]].dtype
        rounded = started == FLOAT32 and item.dtype in LOW
        return f"after Cast '{label(flow, producer)}'", "rounding" if rounded else "between"
    return f"after {_node_in_words(flow, lists, producer, item.dtype)}", "between"


def _readers_in_words(flow: Dataflow, lists: OpLists, value: int) -> tuple[str, bool]:
    """For the report on a Cast: who reads its result, in words, and whether a graph output does."""
    item, message, output = flow.values[value], [], False
    for use in flow.uses[value]:
        if use.op != NONE:
            message.append(_node_in_words(flow, lists, flow.ops[use.op], item.dtype))
        elif flow.scopes[use.scope].kind == "main":
            output = True
            message.insert(0, f"graph output '{item.name}'")
        else:
            owner = flow.scopes[use.scope].op
            message.append(f"an output of the body of {flow.ops[owner].kind} '{label(flow, flow.ops[owner])}'")
    message = list(dict.fromkeys(message))
    if not message:
        return "read by nothing", False
    return f"for {first(message, NAMED)}", output


def _node_in_words(flow: Dataflow, lists: OpLists, op: Op, dtype: str) -> str:
    """A node beside a Cast, in the report's words, with its class where that explains the type: ``LayerNormalization
    'norm' (kept float32)``."""
    listing = lists.listing(flow, op)
    classes = lists.classes_of(FLOAT32 if dtype == FLOAT32 else "low") if dtype in (FLOAT32, *LOW) else ()
    message = f" ({listing.cls} {dtype})" if listing is not None and listing.cls in classes else ""
    missing = listing is None and dtype == FLOAT32 and op.slots and not has(op.role, "casts")
    unlisted = " (in no list)" if missing else ""
    return f"{op.kind} '{label(flow, op)}'{message}{unlisted}"


def label(flow: Dataflow, op: Op) -> str:
    """A node as reports name it: by its name, its first output's name, or its place."""
    if op.name:
        return op.name
    first = flow.values[op.outputs[0]].name if op.outputs else ""
    return first or f"{flow.scopes[op.scope].path}/{op.index}"
