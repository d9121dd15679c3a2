"""Scan nodes: a body that is written by a function, run over the first axis of some values, forwards or backwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from .builder import Builder

Value = ir.Value
Step = Callable[[Builder, list[Value], list[Value]], tuple[list[Value], list[Value]]]


def scan(
    b: Builder, step: Step, states: Sequence[Value], rows: Sequence[Value], *, backwards: bool, reason: str
) -> tuple[list[Value], list[Value]]:
    """The last states, and what every step gives out, stacked in the order of the rows.

    Args:
        step: writes one step with the builder of the body, from the states and one row of each of ``rows``, and returns
            the next states and what is given out. Values of the graph around may be read.
        states: the first ones; rank and type known.
        rows: at least one; their first axis is gone through, from the end if ``backwards``; rank and type known.
        reason: why all this keeps float32.
    """
    inner = _body(b)
    olds = [_input(inner, value, list(value.shape or ())) for value in states]
    each = [_input(inner, value, list(value.shape or ())[1:]) for value in rows]
    with inner.float32(reason):
        news, outs = step(inner, olds, each)
        for value in (*news, *outs):
            _output(inner, value)
    for end, old in zip(inner.graph.outputs, olds, strict=False):
        end.type, end.shape = old.type, old.shape
    with b.float32(reason):
        found = b.ops(
            "Scan",
            len(news) + len(outs),
            *states,
            *rows,
            body=inner.graph,
            num_scan_inputs=len(rows),
            scan_input_directions=[int(backwards)] * len(rows),
            scan_output_directions=[int(backwards)] * len(outs) or None,
        )
    for value, like in zip(found, states, strict=False):
        b.typed(value, like)
    stacked = found[len(news) :]
    for value, row in zip(stacked, outs, strict=True):
        if row.dtype is not None and row.shape is not None and rows[0].shape is not None:
            b.typed(value, row.dtype, rows[0].shape[0], *row.shape)
    return found[: len(news)], stacked


def _body(b: Builder) -> Builder:
    """A builder of a graph inside of this one: names are unique in both."""
    graph = ir.Graph([], [], nodes=[], opset_imports=dict(b.graph.opset_imports), name=b.fresh(f"{b.prefix}/body"))
    inner = Builder(graph, b.prefix)
    inner.fresh, inner.scope = b.fresh, b.scope
    return inner


def _input(b: Builder, like: Value, dims: Sequence[int | ir.SymbolicDim]) -> Value:
    value = ir.Value(name=b.fresh(f"{b.prefix}/row"), type=like.type, shape=ir.Shape(dims))
    b.graph.inputs.append(value)
    return value


def _output(b: Builder, value: Value) -> None:
    """An output of its own: what is read from around, or twice, gets another name."""
    end = b.op("Identity", value)
    if value.dtype is not None:
        b.typed(end, value)
    b.graph.outputs.append(end)
