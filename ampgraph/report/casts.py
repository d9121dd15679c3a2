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
    """One Cast: its ``name``, the ``value`` that it makes, ``source`` and ``target`` type. ``sort``: ``input``,
    ``output``, ``between`` (two operators), ``rounding`` (low and back), ``conversion`` (not between float types, so no
    matter of precision) or ``existing`` (in the original already)."""

    name: str
    value: str
    layer: str
    source: str
    target: str
    sort: str
    reason: str


def cast_reports(flow: Dataflow, lists: OpLists, original: Dataflow | None = None) -> tuple[CastReport, ...]:
    """The report's Casts of a model, in the order of the file. With ``original``, those whose result has a Cast of the
    same name there are ``existing``."""
    before = set()
    if original is not None:
        before = {original.values[op.outputs[0]].name for op in original.ops if has(op.role, "casts") and op.outputs}
    return tuple(_report_of(flow, lists, op, before) for op in flow.ops if has(op.role, "casts") and op.outputs)


def _report_of(flow: Dataflow, lists: OpLists, op: Op, before: set[str]) -> CastReport:
    """What the report says of a Cast, and why it is there; ``before``: names of the results of the original's Casts."""
    source, target = flow.values[op.inputs[0]], flow.values[op.outputs[0]]
    floats = {source.dtype, target.dtype} <= {FLOAT32, "float64", *LOW}
    made, sort = _maker_in_words(flow, lists, op.inputs[0])
    read, output = _readers_in_words(flow, lists, op.outputs[0])
    if target.name in before:
        sort, note = "existing", "in the file before: "
    elif not floats:
        sort, note = "conversion", "a conversion of the model: "
    else:
        sort, note = ("output" if output and sort == "between" else sort), ""
    name = op.name or target.name
    return CastReport(name, target.name, flow.layer(op), source.dtype, target.dtype, sort, f"{note}{made}, {read}")


def _maker_in_words(flow: Dataflow, lists: OpLists, value: int) -> tuple[str, str]:
    """For the report on a Cast: (who makes the tensor that is cast, in words; the sort of Cast that this suggests)."""
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
    """For the report on a Cast: (who reads its result, in words; whether a graph output does)."""
    item, readers, output = flow.values[value], [], False
    for use in flow.uses[value]:
        if use.op != NONE:
            readers.append(_node_in_words(flow, lists, flow.ops[use.op], item.dtype))
        elif flow.scopes[use.scope].kind == "main":
            output = True
            readers.insert(0, f"graph output '{item.name}'")
        else:
            owner = flow.scopes[use.scope].op
            readers.append(f"an output of the body of {flow.ops[owner].kind} '{label(flow, flow.ops[owner])}'")
    readers = list(dict.fromkeys(readers))
    if not readers:
        return "read by nothing", False
    return f"for {first(readers, NAMED)}", output


def _node_in_words(flow: Dataflow, lists: OpLists, op: Op, dtype: str) -> str:
    """A node beside a Cast, in the report's words, with its class, or that it is in no list, where that explains why it
    has the type ``dtype``: ``LayerNormalization 'norm' (fp32 float32)``."""
    listing = lists.listing(flow, op)
    reason = ""
    if listing is None:
        if dtype == FLOAT32 and op.slots and not has(op.role, "casts"):
            reason = " (in no list)"
    elif dtype in (FLOAT32, *LOW) and listing.cls in lists.classes_of(FLOAT32 if dtype == FLOAT32 else "low"):
        reason = f" ({listing.cls} {dtype})"
    return f"{op.kind} '{label(flow, op)}'{reason}"


def label(flow: Dataflow, op: Op) -> str:
    """A node as reports name it: by its name, else its first output's, else its place (``scope/index``)."""
    if op.name:
        return op.name
    first = flow.values[op.outputs[0]].name if op.outputs else ""
    return first or f"{flow.scopes[op.scope].path}/{op.index}"
