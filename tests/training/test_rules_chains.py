"""Random chains of rules over random shapes, against numerical differences; and what the driver does with them."""

import numpy as np
import onnx_ir as ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ampgraph.training.gradients.driver import differentiate
from present import present
from share import examples
from training.gradients import check, model_of, normal, with_gradients

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
    """What flows through the branches of an If: test_rules_control.py."""
    branch = "then_branch = a () => (float[3] p) { p = Mul (h, h) }, else_branch = b () => (float[3] q) { q = Neg (h) }"
    aside = model_of(f"g (float[3] x, float[3] h, bool c) => (float[3] y) {{ z = If <{branch}> (c) y = Mul (z, x) }}")
    with_gradients(aside, ["x"])
