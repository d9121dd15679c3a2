"""A recurrent network: its plan, why one node has its precision, and what the file says of itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

import ampgraph

SIZE, HIDDEN = 16, 32
TEXT = f"""<ir_version: 10, opset_import: ["" : 21]>
tagger (float[steps, batch, {SIZE}] x) => (float[steps, batch, 4] y) <int64[1] direction = {{1}}> {{
    [recurrent] states = LSTM <hidden_size = {HIDDEN}> (x, w, r)
    [squeeze] h = Squeeze (states, direction)
    [head] logits = MatMul (h, v)
    [probabilities] y = Softmax (logits)
}}"""


def network() -> onnx.ModelProto:
    """The network with seeded weights."""
    rng = np.random.default_rng(0)
    shapes = {"w": (1, 4 * HIDDEN, SIZE), "r": (1, 4 * HIDDEN, HIDDEN), "v": (HIDDEN, 4)}
    model = onnx.parser.parse_model(TEXT)
    for name, shape in shapes.items():
        model.graph.initializer.append(numpy_helper.from_array(rng.normal(0, 0.2, shape).astype(np.float32), name))
    return model


def main(folder: Path) -> None:
    model = network()
    plan = ampgraph.plan(model, level="O2")
    print("low:", ", ".join(sorted({d.kind for d in plan.decisions if d.dtype == "float16" and d.index >= 0})))
    why = ampgraph.explain(model, "op:LSTM").slots[0]
    print(f"LSTM is {why.dtype}, by {why.rule}: {why.reason}")
    low = ampgraph.apply(model, plan)
    onnx.save(low, folder / "lstm.O2.onnx")
    for name in (node.name for node in low.graph.node if node.op_type == "LSTM"):
        print(f"{name} is in the file")
    print("verdict", "ok" if ampgraph.verify(model, low, dims={"steps": 12, "batch": 3}).ok else "missed")


if __name__ == "__main__":
    build = Path(__file__).resolve().parents[1] / "build" / "examples"
    build.mkdir(parents=True, exist_ok=True)
    main(build)
