"""Dropout as it trains, its masks a function of a counter in the state: a resumed run repeats.

Each Dropout has a key of its own; the counter is the step, and the place of the element (`masks`).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ....core.errors import AmpError
from ...gradients.builder import Builder
from ...gradients.registry import place_of
from .masks import LEAST, kept
from .replace import replace_value
from .squares import stream_key

BOOL, INT32 = ir.DataType.BOOL, ir.DataType.INT32
CHANCES = 2.0**32
LARGEST = 2.0**31 - 1


def lower_dropout(graph: ir.Graph, step_counter: ir.Value, seed: int, *, force: bool = False) -> int:
    """Rewrites every Dropout of a flat graph, and returns how many drop something.

    Args:
        step_counter: an int64 scalar, another one in each step.
        seed: other seeds, other masks.
        force: those that were exported for inference drop too.

    Raises:
        AmpError: AMP205 if the mode of a Dropout is computed by the graph.
    """
    b = Builder(graph, "train")
    found = [node for node in graph if node.op_type == "Dropout" and node.domain in ("", "ai.onnx")]
    count = 0
    for number, node in enumerate(found):
        b.before, b.scope = node, node.name or node.op_type
        if force or _trains(b, node):
            made, count = _dropped(b, node, step_counter, stream_key(seed, number)), count + 1
        else:
            made = _kept(b, node)
        for old, new in zip(node.outputs, made, strict=False):
            replace_value(b, old, new)
        graph.remove(node, safe=True)
    return count


def _trains(b: Builder, node: ir.Node) -> bool:
    mode = node.inputs[2] if len(node.inputs) > 2 else None
    given = b.given(mode)
    if mode is not None and given is None:
        hint = "export the model in the mode that it is to have"
        raise AmpError("AMP205", "the graph computes whether it drops", where=place_of(node), hint=hint)
    return given is not None and bool(given.reshape(()))


def _kept(b: Builder, node: ir.Node) -> list[ir.Value]:
    x = node.inputs[0]
    assert x is not None
    found = [b.typed(b.op("Identity", x), x)]
    if len(node.outputs) > 1:
        found.append(b.typed(b.op("Expand", b.constant(np.array(True)), b.shape(x)), BOOL, *(x.shape or ())))
    return found


def _dropped(b: Builder, node: ir.Node, step: ir.Value, key: int) -> list[ir.Value]:
    """x times a mask of 1 / (1 - ratio) and zeros: torch's, which makes NaN of an infinite number that is dropped."""
    x, ratio = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    assert x is not None
    border, factor = _given(b, x, ratio) or _computed(b, x, ratio)
    flat = kept(b, border, x, step, key)
    keep = b.typed(b.op("Reshape", flat, b.shape(x), allowzero=1), BOOL, *(x.shape or ()))
    mask = b.typed(b.op("Where", keep, factor, b.number(0, x)), x)
    return [b.typed(b.op("Mul", x, mask), x), keep]


def _given(b: Builder, x: ir.Value, ratio: ir.Value | None) -> tuple[ir.Value, ir.Value] | None:
    """What a random int32 must reach to be kept, and 1 / (1 - ratio); None for a ratio that is computed."""
    given = np.array(0.5) if ratio is None else b.given(ratio)
    if given is None:
        return None
    share = float(given.reshape(()))
    border = min(round(share * CHANCES) + LEAST, LARGEST)
    return b.constant(np.array(border, np.int32)), b.number(1 / (1 - share) if share < 1 else 0.0, x)


def _computed(b: Builder, x: ir.Value, ratio: ir.Value | None) -> tuple[ir.Value, ir.Value]:
    wide = b.op("Cast", ratio, to=int(ir.DataType.DOUBLE))
    place = b.op("Add", b.op("Mul", wide, _wide(b, CHANCES)), _wide(b, LEAST))
    border = b.op("Cast", b.op("Min", place, _wide(b, LARGEST)), to=int(INT32))
    rest = b.op("Max", b.op("Sub", _wide(b, 1), wide), _wide(b, 1 / CHANCES))
    factor = b.op("Cast", b.op("Reciprocal", rest), to=int(x.dtype or ir.DataType.FLOAT))
    return border, b.typed(factor, x.dtype or ir.DataType.FLOAT)


def _wide(b: Builder, number: float) -> ir.Value:
    return b.constant(np.array(number, np.float64))
