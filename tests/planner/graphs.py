"""Random small models for hypothesis: shared weights, given casts, several outputs, two sizes of tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto, helper

from planner.support import model_of

FLOAT, FLOAT16, BOOL = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BOOL
UNARY = ("Relu", "Sigmoid", "Exp", "Neg", "Identity", "Softmax", "Tanh")
BINARY = ("Add", "Mul", "Sub", "Where")
KINDS = (
    *("MatMul", "Weighted", "Biased", "Unary", "Unary", "Binary", "Binary", "Transpose", "Reshape", "Slice", "Concat"),
    *("LayerNormalization", "Cast", "Rounding", "Pooled", "Constant", "MovedWeight"),
)


class Builder:
    """A model under construction. A tensor is (name, rows, element type); every one has ``width`` columns."""

    def __init__(self, draw: st.DrawFn, width: int) -> None:
        self.draw, self.width = draw, width
        self.nodes: list[NodeProto] = []
        self.tensors: list[tuple[str, int, int]] = [("x", width, FLOAT), ("z", width, FLOAT)]
        ones = np.ones((width, width), np.float32)
        self.weights: dict[str, np.ndarray] = {
            "w0": ones,
            "w1": ones * np.float32(0.5),
            "b": ones[0],
            "shape": np.array([-1, width], np.int64),
            "zero": np.array([0], np.int64),
            "half": np.array([width // 2], np.int64),
        }

    def emit(self, kind: str, inputs: list[str], rows: int, dtype: int, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        self.tensors.append((name, rows, dtype))
        return name

    def pick(self, rows: int | None = None, dtype: int | None = None) -> tuple[str, int, int] | None:
        fitting = [t for t in self.tensors if rows in (None, t[1]) and dtype in (None, t[2])]
        return self.draw(st.sampled_from(fitting)) if fitting else None

    def weight(self, dtype: int, names: tuple[str, ...]) -> str:
        """A shared stored tensor, given in float16 beside a float16 operand."""
        name = self.draw(st.sampled_from(names))
        if dtype == FLOAT16:
            self.weights.setdefault(f"{name}_given", self.weights[name].astype(np.float16))
            return f"{name}_given"
        return name

    def step(self, kind: str) -> None:
        found = self.pick(None, FLOAT if kind in ("Rounding", "LayerNormalization") else None)
        assert found is not None
        name, rows, dtype = found
        if kind == "MatMul":
            other = self.pick(self.width, dtype)
            if other is not None:
                self.emit("MatMul", [name, other[0]], rows, dtype)
        elif kind == "Weighted":
            self.emit("MatMul", [name, self.weight(dtype, ("w0", "w1"))], rows, dtype)
        elif kind == "Biased":
            self.emit("Add", [name, self.weight(dtype, ("b",))], rows, dtype)
        elif kind == "Unary":
            self.emit(self.draw(st.sampled_from(UNARY)), [name], rows, dtype)
        elif kind == "Binary":
            chosen, other = self.draw(st.sampled_from(BINARY)), self.pick(rows, dtype)
            self.emit(chosen, [*(["c"] if chosen == "Where" else []), name, other[0]], rows, dtype)  # type: ignore[index]
        elif kind == "LayerNormalization":
            self.normalise(name, rows)
        elif kind == "Constant" and dtype == FLOAT:
            value = helper.make_tensor("value", FLOAT, [1], [self.draw(st.sampled_from((0.5, 3.0)))])
            self.nodes.append(helper.make_node("Constant", [], [f"k{len(self.nodes)}"], value=value))
            self.emit("Mul", [name, self.nodes[-1].output[0]], rows, dtype)
        else:
            self.move(kind, name, rows, dtype)

    def normalise(self, name: str, rows: int) -> None:
        """LayerNormalization, sometimes with its mean, which is smaller than its data."""
        self.emit("LayerNormalization", [name, "b", "b"], rows, FLOAT, axis=-1)
        if self.draw(st.booleans()):
            mean = f"m{len(self.nodes)}"
            self.nodes[-1].output.append(mean)
            self.emit("Sub", [name, mean], rows, FLOAT)

    def move(self, kind: str, name: str, rows: int, dtype: int) -> None:
        """What changes type or shape and nothing else."""
        if kind == "Transpose" and rows == self.width:
            self.emit(kind, [name], rows, dtype, perm=[1, 0])
        elif kind == "Reshape":
            self.emit(kind, [name, "shape"], rows, dtype)
        elif kind == "Slice" and rows == self.width:
            self.emit(kind, [name, "zero", "half", "zero"], rows // 2, dtype)
        elif kind == "Concat" and rows < self.width:
            other = self.pick(rows, dtype)
            self.emit(kind, [name, other[0]], self.width, dtype, axis=0)  # type: ignore[index]
        elif kind == "MovedWeight":
            self.emit(self.draw(st.sampled_from(("Identity", "Transpose"))), ["w0"], self.width, FLOAT)
        elif kind == "Cast":
            self.emit(kind, [name], rows, FLOAT16 if dtype == FLOAT else FLOAT, to=FLOAT16 if dtype == FLOAT else FLOAT)
        elif kind == "Rounding":
            rounded = self.emit("Cast", [name], rows, FLOAT16, to=FLOAT16)
            self.emit("Cast", [rounded], rows, FLOAT, to=FLOAT)
        elif kind == "Pooled":
            self.nodes.append(helper.make_node("ReduceMax", [name], [f"m{len(self.nodes)}"], axes=[1], keepdims=1))
            self.emit("Sub", [name, self.nodes[-1].output[0]], rows, dtype)


@st.composite
def random_models(draw: st.DrawFn, most: int = 12, widths: tuple[int, ...] = (4, 600)) -> ModelProto:
    """A valid model of up to ``most`` steps, with tensors small or large beside the price of a kernel start."""
    builder = Builder(draw, draw(st.sampled_from(widths)))
    for _ in range(draw(st.integers(2, most))):
        builder.step(draw(st.sampled_from(KINDS)))
    made = [t for t in builder.tensors if t[0] not in "xz"]
    chosen = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique=True)) if made else []
    unread = [t for t in made if not any(t[0] in node.input for node in builder.nodes)]
    outputs = {name: (dtype, [rows, builder.width]) for name, rows, dtype in dict.fromkeys([*unread, *chosen])}
    if not outputs:
        outputs = {builder.emit("Relu", ["x"], builder.width, FLOAT): (FLOAT, [builder.width, builder.width])}
    square = [builder.width, builder.width]
    used = {name for node in builder.nodes for name in node.input}
    inputs = {"x": (FLOAT, square), "z": (FLOAT, square), "c": (BOOL, [1])}
    model = model_of(
        builder.nodes,
        {name: kind for name, kind in inputs.items() if name in used},
        outputs,
        {name: array for name, array in builder.weights.items() if name in used},
    )
    return onnx.shape_inference.infer_shapes(model) if draw(st.booleans()) else model
