"""Rules in chains, in bodies of If, Loop and Scan, of recurrent operators and of the user; and what the driver does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.training.gradients import registry, rules  # noqa: F401
from ampgraph.training.gradients.driver import differentiate
from onnx_text import parse
from present import present
from share import examples
from training.gradients import check, gradients, model_of, normal, with_gradients
from training.nets import regression

Shape = tuple[int, ...]


class Chain:
    """A model in text form that grows by one operator at a time; the shape of its last value is known here."""

    def __init__(self, shape: Shape, dynamic: bool) -> None:
        self.shape, self.dynamic = shape, dynamic
        self.arrays = {"x": normal(*shape, seed=1)}
        self.lines: list[str] = []
        self.constants: list[str] = []
        self.value, self.last = "x", 0

    def __repr__(self) -> str:
        return self.text()

    def fresh(self, letter: str) -> str:
        self.last += 1
        return f"{letter}{self.last}"

    def ints(self, *numbers: int) -> str:
        name = self.fresh("i")
        self.constants.append(f"int64[{len(numbers)}] {name} = {{{', '.join(map(str, numbers))}}}")
        return name

    def weight(self, *shape: int) -> str:
        name = self.fresh("w")
        self.arrays[name] = normal(*shape, seed=self.last) / 2
        return name

    def add(self, operator: str, shape: Shape) -> None:
        """``operator`` reads ``V``, the value so far."""
        name = self.fresh("v")
        self.lines.append(f"{name} = {operator.replace('V', self.value)}")
        self.value, self.shape = name, shape

    def text(self) -> str:
        declared = []
        for name, array in self.arrays.items():
            sizes = (f"{name}_{n}" if self.dynamic and name == "x" else str(size) for n, size in enumerate(array.shape))
            declared.append(f"float[{','.join(sizes)}] {name}")
        rank = ",".join(f"R{n}" for n in range(len(self.shape)))
        constants = f"<{', '.join(self.constants)}>" if self.constants else ""
        body = "\n".join(self.lines)
        return f"g ({', '.join(declared)}) => (float[{rank}] y) {constants} {{ {body}\n y = Identity ({self.value}) }}"


def smooth(chain, draw):
    chain.add(f"{draw(st.sampled_from(['Tanh', 'Sigmoid', 'Sin', 'Softplus', 'Neg']))} (V)", chain.shape)


def against_a_weight(chain, draw):
    ones = draw(st.lists(st.booleans(), min_size=len(chain.shape), max_size=len(chain.shape)))
    shape = tuple(1 if one else size for one, size in zip(ones, chain.shape, strict=True))
    weight = chain.weight(*shape[draw(st.integers(0, len(shape) - 1)) :])
    chain.add(f"{draw(st.sampled_from(['Add', 'Mul', 'Sub']))} (V, {weight})", chain.shape)


def matmul(chain, draw):
    columns = draw(st.integers(1, 3))
    chain.add(f"MatMul (V, {chain.weight(chain.shape[-1], columns)})", (*chain.shape[:-1], columns))


def reduce(chain, draw):
    axes = draw(st.lists(st.integers(0, len(chain.shape) - 1), unique=True, min_size=1, max_size=2))
    keep = len(axes) == len(chain.shape) or draw(st.booleans())
    kept = [1 if n in axes else size for n, size in enumerate(chain.shape) if keep or n not in axes]
    kind = draw(st.sampled_from(["ReduceSum", "ReduceMean", "ReduceLogSumExp", "ReduceMax", "ReduceSumSquare"]))
    signed = [axis - draw(st.sampled_from([0, len(chain.shape)])) for axis in axes]
    chain.add(f"{kind} <keepdims = {int(keep)}> (V, {chain.ints(*signed)})", tuple(kept))


def softmax(chain, draw):
    axis = draw(st.integers(-len(chain.shape), len(chain.shape) - 1))
    chain.add(f"{draw(st.sampled_from(['Softmax', 'LogSoftmax']))} <axis = {axis}> (V)", chain.shape)


def transpose(chain, draw):
    order = draw(st.permutations(range(len(chain.shape))))
    chain.add(f"Transpose <perm = {list(order)}> (V)", tuple(chain.shape[n] for n in order))


def reshape(chain, draw):
    size = int(np.prod(chain.shape))
    first = draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
    chain.add(f"Reshape (V, {chain.ints(first, -1)})", (first, size // first))


def unsqueeze(chain, draw):
    axis = draw(st.integers(0, len(chain.shape)))
    chain.add(f"Unsqueeze (V, {chain.ints(axis)})", (*chain.shape[:axis], 1, *chain.shape[axis:]))


def cut(chain, draw):
    axis = draw(st.integers(0, len(chain.shape) - 1))
    places = range(chain.shape[axis])[slice(draw(st.integers(-4, 0)), None, draw(st.sampled_from([1, 2, -1])))]
    if not places:
        return
    end = places[-1] + (1 if places.step > 0 else -1)
    end = end if end >= 0 else -100
    numbers = (chain.ints(n) for n in (places[0], end, axis, places.step))
    sizes = list(chain.shape)
    sizes[axis] = len(places)
    chain.add(f"Slice (V, {', '.join(numbers)})", tuple(sizes))


def pad(chain, draw):
    """All axes: with an input for its axes ONNX Runtime moves a Transpose through Pad wrongly."""
    amounts = st.lists(st.integers(0, 1), min_size=len(chain.shape), max_size=len(chain.shape))
    before, after = draw(amounts), draw(amounts)
    sizes = tuple(map(sum, zip(chain.shape, before, after, strict=True)))
    mode = draw(st.sampled_from(["constant", "edge"]))
    chain.add(f'Pad <mode = "{mode}"> (V, {chain.ints(*before, *after)})', sizes)


def gather(chain, draw):
    axis, size = draw(st.integers(0, len(chain.shape) - 1)), len(chain.shape)
    limit = chain.shape[axis]
    index = draw(st.lists(st.integers(-limit, limit - 1), min_size=1, max_size=4))
    sizes = (*chain.shape[:axis], len(index), *chain.shape[axis + 1 :])
    chain.add(f"Gather <axis = {axis - draw(st.sampled_from([0, size]))}> (V, {chain.ints(*index)})", sizes)


def tile(chain, draw):
    counts = draw(st.lists(st.integers(1, 2), min_size=len(chain.shape), max_size=len(chain.shape)))
    sizes = tuple(size * count for size, count in zip(chain.shape, counts, strict=True))
    chain.add(f"Tile (V, {chain.ints(*counts)})", sizes)


def join(chain, draw):
    axis = draw(st.integers(0, len(chain.shape) - 1))
    before, sizes = chain.value, list(chain.shape)
    chain.add("Tanh (V)", chain.shape)
    sizes[axis] *= 2
    chain.add(f"Concat <axis = {axis}> (V, {before})", tuple(sizes))


def part(chain, draw):
    """One half of an axis that was doubled."""
    join(chain, draw)
    axis = draw(st.sampled_from([n for n, size in enumerate(chain.shape) if size % 2 == 0]))
    half = chain.shape[axis] // 2
    names = chain.fresh("s"), chain.fresh("s")
    split = f"Split <axis = {axis}> ({chain.value}, {chain.ints(half, half)})"
    chain.lines.append(f"{', '.join(names)} = {split}")
    chain.value = draw(st.sampled_from(names))
    chain.shape = tuple(half if n == axis else size for n, size in enumerate(chain.shape))


def running(chain, draw):
    axis = chain.fresh("i")
    chain.constants.append(f"int64 {axis} = {{{draw(st.integers(0, len(chain.shape) - 1))}}}")
    chain.add(f"CumSum <reverse = {draw(st.integers(0, 1))}> (V, {axis})", chain.shape)


LINKS = [smooth, against_a_weight, matmul, reduce, softmax, transpose, reshape, unsqueeze, cut, pad, gather, tile]
LINKS += [join, part, running]


@st.composite
def chains(draw):
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    chain = Chain(shape, draw(st.booleans()))
    for link in draw(st.lists(st.sampled_from(LINKS), min_size=2, max_size=6)):
        if len(chain.shape) < 5 and np.prod(chain.shape) <= 400:
            link(chain, draw)
    return chain


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(chains())
def test_random_chains(chain):
    check(chain.text(), chain.arrays, None, tolerance=2e-3)


def test_what_needs_no_gradient_gets_no_nodes():
    """The data of the first layer: its product with the weight is the most expensive one."""
    text = "g (float[B,4] x, float[4,5] w, float[5] b) => (float[B,5] z) { y = MatMul (x, w) z = Add (y, b) }"
    model = ir.from_proto(with_gradients(model_of(text), ["w"]))
    kinds = [node.op_type for node in model.graph]
    assert kinds.count("Gemm") == 1 and "ReduceSum" not in kinds
    assert all(value.uses() for value in model.graph.initializers.values())


def test_a_gradient_that_is_a_constant_stays():
    """d (x + y) / dx is 1, in the graph as an initializer."""
    model = ir.from_proto(model_of("g (float[] x, float[] y) => (float[] z) { z = Add (x, y) }"))
    graph = model.graph
    [one] = differentiate(graph, graph.outputs[0], [graph.inputs[0]])
    assert one.name in graph.initializers and present(one.const_value).numpy() == 1 and one.shape == ()


def test_a_scalar_on_the_way():
    text = "g (float[A,B] x) => (float[A,B] y) { s = ReduceMean <keepdims = 0> (x) e = Exp (s) y = Mul (x, e) }"
    check(text, {"x": normal(3, 4)}, lambda x: x * torch.exp(x.mean()))


def test_a_branch_of_data_alone_is_data():
    """What flows through the branches of an If is tested below."""
    branch = "then_branch = a () => (float[3] p) { p = Mul (h, h) }, else_branch = b () => (float[3] q) { q = Neg (h) }"
    aside = model_of(f"g (float[3] x, float[3] h, bool c) => (float[3] y) {{ z = If <{branch}> (c) y = Mul (z, x) }}")
    with_gradients(aside, ["x"])


IF = """g (float[A,3] x, float[3] w, float[3] v, bool c) => (float[A,3] y) {
  u = Mul (x, w)
  y = If (c) <
    then_branch = one () => (float[A,3] a) { s = Mul (u, v)  t = Tanh (s)  a = Add (t, x) },
    else_branch = two () => (float[A,3] d) { d = Sigmoid (u) }
  >
}"""


@pytest.mark.parametrize("taken", [True, False])
def test_if(taken):
    """Both branches read values from around; one of them what the other does not."""

    def function(x, w, v, c):
        return torch.tanh(x * w * v) + x if c else torch.sigmoid(x * w)

    arrays = {"x": normal(2, 3), "w": normal(3, seed=1), "v": normal(3, seed=2), "c": np.array(taken)}
    check(IF, arrays, function)


SCAN = """g (float[4] s, float[T,4] x, float[4,4] w) => (float[T,4] y, float[4] last) {
  last, y = Scan <num_scan_inputs = 1, body = step (float[4] h, float[4] r) => (float[4] n, float[4] o) {
    m = MatMul (h, w)  a = Add (m, r)  n = Tanh (a)  o = Mul (n, n)
  }> (s, x)
}"""
LOOP = """g (float[2] s, float[2,2] w) => (float[2] y, float[5,2] all)
<int64 trips = {5}, bool yes = {1}> {
  y, all = Loop (trips, yes, s) <body = step (int64 i, bool c, float[2] h) => (bool d, float[2] n, float[2] o) {
    d = Identity (c)  f = Cast <to = 1> (i)  m = MatMul (w, h)  a = Add (m, f)  n = Tanh (a)  o = Sin (a)
  }>
}"""


def scanned(s, x, w):
    steps = []
    for row in x:
        s = torch.tanh(s @ w + row)
        steps.append(s)
    return torch.stack(steps), s


@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("output", ["y", "last"])
def test_scan(length, output):
    """States, rows, and a weight from around that all steps share."""
    arrays = {"s": normal(4), "x": normal(length, 4, seed=1), "w": normal(4, 4, seed=2)}
    text = SCAN if output == "y" else SCAN.replace("(float[T,4] y, float[4] last) {", "(float[4] last) {", 1)
    check(text, arrays, lambda *given: scanned(*given)[0] ** 2 if output == "y" else scanned(*given)[1])


@pytest.mark.parametrize("output", ["y", "all"])
def test_loop(output):
    """The number of the step is part of what it computes."""

    def function(s, w):
        found = []
        for number in range(5):
            found.append(torch.sin(w @ s + number))
            s = torch.tanh(w @ s + number)
        return s if output == "y" else torch.stack(found)

    text = LOOP if output == "y" else LOOP.replace("(float[2] y, float[5,2] all)", "(float[5,2] all)")
    check(text, {"s": normal(2), "w": normal(2, 2, seed=1)}, function)


def test_an_if_inside_of_a_loop():
    text = """g (float[3] s, float[3] w) => (float[3] y) <int64 trips = {4}, bool yes = {1}, int64 two = {2}> {
      y = Loop (trips, yes, s) <body = step (int64 i, bool c, float[3] h) => (bool d, float[3] n) {
        d = Identity (c)  early = Less (i, two)
        n = If (early) <
          then_branch = one () => (float[3] a) { a = Mul (h, w) },
          else_branch = other () => (float[3] e) { f = Tanh (h)  e = Add (f, w) }
        >
      }>
    }"""

    def function(s, w):
        for number in range(4):
            s = s * w if number < 2 else torch.tanh(s) + w
        return s

    check(text, {"s": normal(3), "w": normal(3, seed=1)}, function)


def test_a_loop_that_ends_by_what_it_computes():
    """The way back has as many steps as there were."""
    text = """g (float[] s, float[] w) => (float[] y) <int64 most = {100}, bool yes = {1}, float top = {50.0}> {
      y = Loop (most, yes, s) <body = step (int64 i, bool c, float[] h) => (bool d, float[] n) {
        n = Mul (h, w)  d = Less (n, top)
      }>
    }"""
    found = gradients(model_of(text), {"s": np.array(1.5, "f"), "w": np.array(2, "f")}, ["s", "w"], np.array(1, "f"))
    assert found == {"s": 64.0, "w": 1.5 * 6 * 2**5}


@pytest.mark.parametrize(
    ("inner", "told"),
    [
        ("q = RandomNormalLike (h)  n = Mul (h, q)", "other numbers on the way back"),
        ("n = Det (h)", "no gradient rule for Det"),
    ],
)
def test_bodies_that_are_refused(inner, told):
    text = "g (float[2] s, float[2,2] x) => (float[2] y) { y = Scan <num_scan_inputs = 1, body = step "
    text += f"(float[2] h, float[2] r) => (float[2] n) {{ {inner} }}> (s, x) }}"
    with pytest.raises(AmpError, match=f"AMP210.*{told}"):
        with_gradients(model_of(text), ["s"])


def test_a_scan_backwards_is_refused():
    with pytest.raises(AmpError, match="AMP210.*all directions forward"):
        with_gradients(
            model_of(SCAN.replace("num_scan_inputs = 1", "num_scan_inputs = 1, scan_input_directions = [1]")), ["s"]
        )


T, B, SIZE, H = 4, 3, 5, 2
KINDS = {"LSTM": (nn.LSTM, 4, [0, 2, 3, 1]), "GRU": (nn.GRU, 3, [1, 0, 2]), "RNN": (nn.RNN, 1, [0])}
"""torch's module, the number of gates, and where torch's are in ONNX's order: torch has i f g o and r z n."""


def text(kind: str, way: str, *, states: bool, outputs: str = "y", length: int | str = T, more: str = "") -> str:
    gates, sides = KINDS[kind][1], 2 if way == "bidirectional" else 1
    operands = [
        f"float[{length},B,{SIZE}] x",
        f"float[{sides},{gates * H},{SIZE}] w",
        f"float[{sides},{gates * H},{H}] r",
    ]
    operands.append(f"float[{sides},{2 * gates * H}] b")
    read = "x, w, r, b"
    if states:
        names = ("h", "c") if kind == "LSTM" else ("h",)
        operands += [f"float[{sides},B,{H}] {name}" for name in names]
        read += ", , " + ", ".join(names)
    shape = f"{length},{sides},B,{H}" if outputs.startswith("y") else f"{sides},B,{H}"
    result = outputs.split(",")[-1].strip() if not outputs.startswith("y") else "y"
    more = f", {more}" if more else ""
    return (
        f"g ({', '.join(operands)}) => (float[{shape}] {result}) "
        f'{{ {outputs} = {kind} <hidden_size = {H}, direction = "{way}"{more}> ({read}) }}'
    )


def arrays(kind: str, way: str, states: bool, length: int = T) -> dict[str, np.ndarray]:
    gates, sides = KINDS[kind][1], 2 if way == "bidirectional" else 1
    found = {
        "x": normal(length, B, SIZE),
        "w": normal(sides, gates * H, SIZE, seed=1),
        "r": normal(sides, gates * H, H, seed=2),
    }
    found["b"] = normal(sides, 2 * gates * H, seed=3)
    if states:
        found["h"] = normal(sides, B, H, seed=4)
    if states and kind == "LSTM":
        found["c"] = normal(sides, B, H, seed=5)
    return found


def by_torch(kind: str, way: str, output: int):
    """A function of the arrays: torch's layer, by functional_call."""
    make, gates, order = KINDS[kind]
    layer = make(SIZE, H, bidirectional=way == "bidirectional").double()

    def function(x, w, r, b, *states):
        def moved(value):
            return torch.cat([value.chunk(gates)[place] for place in order])

        given = {}
        for side, tail in enumerate(["", "_reverse"][: len(w)]):
            half = b[side].chunk(2)
            for name, value in zip(
                ("weight_ih", "weight_hh", "bias_ih", "bias_hh"), (w[side], r[side], *half), strict=True
            ):
                given[f"{name}_l0{tail}"] = moved(value)
        x = x.flip(0) if way == "reverse" else x
        first = (states if kind == "LSTM" else states[0]) if states else None
        y, last = torch.func.functional_call(layer, given, (x, first) if states else (x,))
        if output:
            return last[output - 1] if kind == "LSTM" else last
        y = y.flip(0) if way == "reverse" else y
        return y.unflatten(2, (len(w), H)).transpose(1, 2)

    return function


MORE = {"LSTM": "", "GRU": "linear_before_reset = 1", "RNN": ""}


@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("way", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", KINDS)
def test_all_steps(kind, way, states):
    given = text(kind, way, states=states, more=MORE[kind])
    check(given, arrays(kind, way, states), by_torch(kind, way, 0), differences=False)


@pytest.mark.parametrize(
    ("kind", "outputs", "number"), [("LSTM", ", yh", 1), ("LSTM", ", , yc", 2), ("GRU", ", yh", 1), ("RNN", ", yh", 1)]
)
@pytest.mark.parametrize("way", ["reverse", "bidirectional"])
def test_the_last_state(kind, outputs, number, way):
    given = text(kind, way, states=True, outputs=outputs, more=MORE[kind])
    check(given, arrays(kind, way, True), by_torch(kind, way, number), differences=False)


@pytest.mark.parametrize("way", ["forward", "bidirectional"])
def test_the_reset_in_front_of_the_product(way):
    """Not torch's form: by numerical differences."""
    check(text("GRU", way, states=True), arrays("GRU", way, True), written_out(way))


def written_out(way: str):
    def function(x, w, r, b, h):
        sides = []
        for side in range(len(w)):
            state, steps = h[side], []
            (wz, wr, wn), (rz, rr, rn) = w[side].chunk(3), r[side].chunk(3)
            bias, other = (half.chunk(3) for half in b[side].chunk(2))
            for row in x.flip(0) if side else x:
                z = torch.sigmoid(row @ wz.T + state @ rz.T + bias[0] + other[0])
                reset = torch.sigmoid(row @ wr.T + state @ rr.T + bias[1] + other[1])
                n = torch.tanh(row @ wn.T + (reset * state) @ rn.T + bias[2] + other[2])
                state = (1 - z) * n + z * state
                steps.append(state)
            sides.append(torch.stack(steps[::-1] if side else steps))
        return torch.stack(sides, 1)

    return function


@pytest.mark.parametrize("kind", KINDS)
def test_nodes_do_not_grow_with_the_length(kind):
    """And the length may be known when the graph runs only."""
    counts = []
    for length in (3, 300, "T"):
        made = with_gradients(model_of(text(kind, "forward", states=False, length=length)), ["x", "w", "r", "b"])
        counts.append(len(made.graph.node))
    assert counts[0] == counts[1] < 90 and counts[2] < counts[0] + 20
    found = arrays(kind, "forward", False, 7)
    free = model_of(text(kind, "forward", states=False, length="T"))
    seed = np.ones((7, 1, B, H), np.float32)
    one, other = (
        gradients(model, found, ["x", "r"], seed)
        for model in (free, model_of(text(kind, "forward", states=False, length=7)))
    )
    assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("kind", "more", "told"),
    [("LSTM", "clip = 3.0", "clip"), ("LSTM", "input_forget = 1", "input_forget"),
     ("RNN", 'activations = ["Affine"]', "only with Tanh and Relu"),
     ("GRU", 'activations = ["Sigmoid", "Relu"]', "relu")],
)  # fmt: skip
def test_forms_that_are_refused(kind, more, told):
    with pytest.raises(AmpError, match=f"AMP210.*{told}"):
        with_gradients(model_of(text(kind, "forward", states=False, more=more)), ["x"])


ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def own_rules(monkeypatch):
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))


def build(model):
    return ampgraph.build_training_step(model, loss="loss", optimizer="sgd:lr=0.1", level="O0")


def test_the_example_of_the_documentation():
    @ampgraph.gradient("my.domain::Cube")
    def cube(b, node, g):
        [x] = node.inputs
        with b.float32("x * x leaves the range of float16"):
            return b.op("Mul", g, b.op("Mul", b.op("Mul", x, x), b.number(3, x)))

    model = parse(
        """<ir_version: 9, opset_import: ["" : 20, "my.domain" : 1]>
        g (float[4] x) => (float loss) <float[4] w = {1, 2, 3, 4}, float[4] y> {
          h = Mul (x, w)  y = my.domain.Cube (h)  loss = ReduceMean <keepdims = 0> (y)
        }"""
    )
    model.graph.output[0].type.tensor_type.shape.SetInParent()
    made = [node.op_type for node in build(model).model.graph if "Cube" in node.name]
    assert made == ["Mul", "Mul", "Mul"]


@pytest.mark.parametrize("kinds", [(), (1,), ("",), ("ai.onnx::Mul",)])
def test_a_rule_is_for_an_operator(kinds):
    with pytest.raises(AmpError, match=r"AMP210.*is for an operator"):
        ampgraph.gradient(*kinds)


@pytest.mark.parametrize(
    ("made", "told"), [(3.0, "returned float"), ([None, 1], "returned int"), ([None] * 3, "returned 3 for 1 inputs")]
)
def test_what_a_rule_must_not_return(made, told):
    ampgraph.gradient("Tanh")(lambda b, node, g: made)
    with pytest.raises(AmpError, match=rf"AMP210.*rule for Tanh {told}"):
        build(regression())


def test_the_documentation_lists_all_rules():
    told = (ROOT / "docs" / "training.md").read_text().split("differences in float64:\n\n")[1].split("\n\n")[0]
    found = list(registry.kinds())
    assert told.rstrip(".").replace("\n", " ").split(", ") == found
