"""What of a training graph keeps float32 at O2: norms and their gradients, branches that meet, border products."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import ModelProto, numpy_helper

from ampgraph.api.build_step import build_training_step
from ampgraph.training.step import gradient_graph
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


CLASSES = 10


def normed(width=32, classes=CLASSES, batch=8):
    """Three convolutions with norms behind them, and a head of two products."""
    blocks = [
        f"[conv{n}] c{n} = Conv <pads = [1, 1, 1, 1]> (x{n}, w{n}) "
        f"n{n} = BatchNormalization (c{n}, s{n}, b{n}, m{n}, v{n}) x{n + 1} = Relu (n{n})"
        for n in range(3)
    ]
    text = f"""g (float[{batch},1,8,8] x0) => (float[{batch},{classes}] logits) {{ {" ".join(blocks)}
        pooled = ReduceMean <keepdims = 0> (x3, axes) [body] hidden = MatMul (pooled, u) active = Relu (hidden)
        [head] logits = MatMul (active, h) }}"""
    random = np.random.default_rng(0)
    arrays = {f"{name}{n}": random.random(width) + 0.5 for n in range(3) for name in "sbmv"}
    arrays |= {f"w{n}": random.standard_normal((width, width if n else 1, 3, 3)) / 9 for n in range(3)}
    arrays |= {"u": random.standard_normal((width, 16)), "h": random.standard_normal((16, classes))}
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    return parse(text, arrays | {"axes": np.array([2, 3])}, opset=20)


def built(model, level="O2", **options) -> TrainingStep:
    return build_training_step(model, loss="cross_entropy", optimizer="sgd", level=level, **options)


def computed(step: TrainingStep) -> dict[str, set[str]]:
    """The types that products of a parameter compute in, forward and backward, by the forward node."""
    found: dict[str, set[str]] = {}
    for node in step.model.graph:
        if node.op_type in ("Conv", "ConvTranspose", "MatMul", "Gemm") and node.inputs[0] is not None:
            name = next(part for part in (node.name or "").split("/") if part != "grad")
            found.setdefault(name, set()).add(str(node.inputs[0].dtype))
    return found


@pytest.mark.parametrize("level", ["O1", "O2", "auto"])
def test_first_and_last_products_stay_float32(level, monkeypatch):
    step = built(normed(), level)
    wide, low = {"FLOAT"}, {"FLOAT16"}
    assert computed(step) == {"conv0": wide, "conv1": low, "conv2": low, "body": wide, "head": wide}
    monkeypatch.setattr(gradient_graph, "pin_boundary_products", lambda *_: None)
    assert casts(step) <= casts(built(normed(), level)) - 7


@pytest.mark.parametrize(
    ("level", "shape"),
    [("O2", {"classes": 40_000}), ("O2", {"batch": "N"}), ("O3", {})],
)
def test_large_ones_and_those_of_unknown_size_are_low(level, shape):
    assert computed(built(normed(**shape), level))["head"] == {"FLOAT16"}


def test_the_user_has_the_last_word():
    """On what is low, of whatever nodes."""
    step = built(normed(), low=["conv0"])
    assert computed(step)["conv0"] == computed(step)["head"] == {"FLOAT16"}


def test_most_multiplications_stay_low():
    """A sixth of them is too many to stay float32."""
    found = computed(built(normed(width=2)))
    assert found["conv0"] == {"FLOAT16"} and found["head"] == {"FLOAT"}


def test_a_head_behind_a_norm_that_is_low(monkeypatch):
    """Nothing comes in then but one Cast, which would come out else; a stream that begins with the input stays low."""
    text = """g (float[4,6,8] x) => (float[4,3] logits) {
        [one] m = MatMul (x, w) a = Add (x, m) n = LayerNormalization <axis = -1> (a, s, b)
        [two] o = MatMul (n, y) p = Add (n, o) q = LayerNormalization <axis = -1> (p, s, b)
        mean = ReduceMean <keepdims = 0> (q, axes) [head] logits = MatMul (mean, h) }"""
    sizes = {"w": (8, 8), "y": (8, 8), "s": (8,), "b": (8,), "h": (8, 3)}
    arrays = {name: np.random.default_rng(0).random(size).astype(np.float32) for name, size in sizes.items()}
    model = parse(text, arrays | {"axes": np.array([1])}, opset=20)
    step = built(model)
    assert computed(step) == {"one": {"FLOAT16"}, "two": {"FLOAT16"}, "head": {"FLOAT"}}
    monkeypatch.setattr(gradient_graph, "pin_boundary_products", lambda *_: None)
    assert casts(step) == casts(built(model)) - 2
