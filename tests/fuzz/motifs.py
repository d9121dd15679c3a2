"""Norms, softmax and GELU as exporters write them, attention with a mask: what patterns and guards look for."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx

from fuzz.bodies import Body
from fuzz.forms import Want
from planner.test_regions import FORMS, LOG_SOFTMAX, MORE_FORMS, WEIGHTS
from share import number_of

F = np.float32
COMPUTED = 8  # of so many constants of floats one is computed
MASKED = """k = Transpose <perm = [1, 0]> (x)  u = MatMul (x, k)  v = Div (u, eight)  m = {mask}  a = Add (v, m)
    p = Softmax (a)  y = MatMul (p, x)"""
SEEN = np.tril(np.ones((4, 4), F))
OTHERS = {
    "where": MASKED.format(mask="Where (seen, zero, hidden)"),
    "minus": MASKED.format(mask="Mul (unseen, far)"),
    "log": "p = Softmax (x)  y = Log (p)",
    "counts": """s = Shape (x)  c = Cast <to = 1> (s)  h = Div (c, two)  f = Floor (h)  i = Cast <to = 7> (f)
        y = Expand (z, i)""",
    "spectrum": "q = MatMul (x, other8)  w = Pow (q, two)  a = Add (w, eps)  y = Log (a)",
    "quantized": """l = QuantizeLinear (x, fine, point)  d = DequantizeLinear (l, fine, point)  q = MatMul (d, other8)
        r = QuantizeLinear (q, fine, point)  y = DequantizeLinear (r, fine, point)""",
}
STORED = {
    **WEIGHTS, "seen": SEEN > 0, "unseen": 1 - SEEN, "hidden": F(-3.4028234663852886e38), "far": F(-10000),
    "z": F(1.5), "other8": np.linspace(-1, 1, 64, dtype=F).reshape(8, 8), "fine": F(0.05), "point": np.uint8(12),
}  # fmt: skip


@cache
def texts() -> list[str]:
    """All bodies, from x of 4 by 8 to y."""
    forms = [text for group in MORE_FORMS.values() for text in group.values()]
    return [*forms, *(text for _, _, text in FORMS), *LOG_SOFTMAX.values(), *OTHERS.values()]


def _constant(body: Body, value: np.ndarray) -> str:
    """A constant; at times one that a node computes, which the runtime folds before it looks for forms."""
    if value.dtype == F and number_of((body.shared.count, value.tolist()), "computed") % COMPUTED == 0:
        made = body.emit("Mul", [body.constant(value / 2), body.constant(np.asarray(F(2)))])
        if made:
            return str(made[0])
    return body.constant(value)


def motif(body: Body) -> None:
    """One of them, on a value that is there."""
    shared = body.shared
    text = shared.choice(texts())
    graph = onnx.parser.parse_graph(f"g (float[4,8] x) => (float y) {{ {text} }}")
    names = {"x": body.find(Want("float32", (4, 8)))}
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name and name not in names:
                names[name] = _constant(body, np.asarray(STORED[name]))
            node.input[place] = names.get(name, "")
        for place, name in enumerate(node.output):
            names[name] = node.output[place] = shared.fresh()
        node.name = f"{node.op_type}_{shared.count}" if shared.chance(shared.named) else ""
    body.add(list(graph.node), [names["y"]])
