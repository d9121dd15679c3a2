"""What of a training graph keeps float32 at O2: written-out norms with their gradients, and branches that meet."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import ModelProto, numpy_helper

from ampgraph.api.build_step import build_training_step
from ampgraph.training.step.training_step import TrainingStep
from onnx_text import parse
from planner.without import without
from present import present

WIDTH = 8
WEIGHTS = {"scale": (WIDTH,), "w": (WIDTH, WIDTH), "w0": (WIDTH, WIDTH), "w1": (WIDTH, WIDTH)}
RMS = """q{0} = Mul (x{0}, x{0})  m{0} = ReduceMean <keepdims = 1> (q{0}, last)  e{0} = Add (m{0}, eps)
         d{0} = Sqrt (e{0})  n{0} = Div (x{0}, d{0})  s{0} = Mul (n{0}, scale)"""
NORM = {"Mul", "ReduceMean", "Add", "Sqrt", "Div"}


def blocks() -> ModelProto:
    """Two pre-norm blocks, x + rms_norm(x) w, and the mean square of what comes out."""
    lines = [f"{RMS.format(n)}  b{n} = MatMul (s{n}, w{n})  x{n + 1} = Add (x{n}, b{n})" for n in range(2)]
    model = parse(
        f"""g (float[4,{WIDTH}] x) => (float loss) {{
          x0 = MatMul (x, w)  {"  ".join(lines)}  square = Mul (x2, x2)  loss = ReduceMean <keepdims = 0> (square)
        }}""",
        opset=18,
    )
    random = np.random.default_rng(0)
    given = {name: random.standard_normal(shape).astype(np.float32) for name, shape in WEIGHTS.items()}
    given |= {"eps": np.array(1e-6, np.float32), "last": np.array([-1])}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in given.items())
    return model


def build(level: str) -> TrainingStep:
    return build_training_step(blocks(), loss="loss", optimizer="sgd:lr=0.1", level=level, loss_scale="static:8")


def types(step: TrainingStep, part: str) -> dict[str, ir.DataType | None]:
    """The types of what nodes write, by name of the output, whose name has a part."""
    values = [value for node in step.model.graph if node.op_type != "Cast" for value in node.outputs]
    floats = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
    return {
        present(value.name): value.dtype for value in values if part in present(value.name) and value.dtype in floats
    }


@pytest.mark.parametrize("level", ["O2", "auto"])
def test_a_norm_in_simple_operators_keeps_float32_and_so_do_its_gradients(level):
    step = build(level)
    for number in (0, 1):
        inside = [f"{letter}{number}" for letter in "qmed"]
        forward = {name: dtype for name, dtype in types(step, "").items() if name in inside}
        assert forward == dict.fromkeys(inside, ir.DataType.FLOAT)
        assert types(step, f"b{number}")[f"b{number}"] == ir.DataType.FLOAT16  # its product
    computed = [node for node in step.model.graph if present(node.name).startswith("grad/") and node.op_type in NORM]
    assert len(computed) > 10 and {node.outputs[0].dtype for node in computed} == {ir.DataType.FLOAT}


def test_branches_meet_in_float32_for_no_more_casts(monkeypatch):
    found = build("O2")
    without(monkeypatch, "branches")
    before = build("O2")
    assert types(before, "x1")["x1"] == ir.DataType.FLOAT16  # the list's verdict
    assert {types(found, name)[name] for name in ("x1", "x2")} == {ir.DataType.FLOAT}
    meeting = types(found, "grad/x1/Add")
    assert meeting and set(meeting.values()) == {ir.DataType.FLOAT}
    assert casts(found) <= casts(before)


def test_the_ceiling_of_speed_adds_branches_low():
    assert {types(build("O3"), name)[name] for name in ("x1", "x2")} == {ir.DataType.FLOAT16}


def casts(step: TrainingStep) -> int:
    return sum(node.op_type == "Cast" for node in step.model.graph)


def casts_of(blocks: int) -> int:
    """Of a step of blocks with a norm behind each, norm(x + gelu(x w)), but for those of the update."""
    lines = [
        f"p{n} = MatMul (x{n}, w)  a{n} = Gelu (p{n})  r{n} = Add (x{n}, a{n})  "
        f"x{n + 1} = LayerNormalization (r{n}, scale, bias)"
        for n in range(blocks)
    ]
    text = (
        f"g (float[8,16] x) => (float[8,16] y) {{ x0 = MatMul (x, w)  {'  '.join(lines)}  y = MatMul (x{blocks}, w) }}"
    )
    model = parse(text, opset=20)
    for name, shape in {"w": (16, 16), "scale": (16,), "bias": (16,)}.items():
        array = np.random.default_rng(1).standard_normal(shape, np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    step = build_training_step(model, loss="mse", optimizer="adamw", level="O2", clip_norm=1.0)
    names = [present(node.name) for node in step.model.graph if node.op_type == "Cast"]
    return sum(not name.startswith("step/") for name in names)


def test_a_norm_behind_a_block_takes_two_casts():
    """The gradient that comes in, to float32, and the one that goes out; one node casts the data of all norms. All else
    is low."""
    assert casts_of(5) - casts_of(4) == 2
