"""Gathering and scattering, each against torch and by numerical differences; indices come twice."""

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto

from ampgraph.core.dataflow import HELD
from ampgraph.core.errors import AmpError
from ampgraph.training.gradients.driver import differentiate
from training.gradients import check, gradients, model_of, normal, with_gradients

KNOWN = pytest.mark.parametrize("dims", ["4,3,2", "A,3,2", "A,B,C"])
X = normal(4, 3, 2)
INDICES = {"scalar": 1, "last": -1, "one": [2], "vector": [0, 2, 2, -1, -3], "matrix": [[0, 1], [1, -2]]}


def taken(x, index, axis):
    """torch's indexing along an axis, as numpy's take."""
    index = torch.as_tensor(np.asarray(index)).long()
    axis %= x.ndim
    rows = x.index_select(axis, (index % x.shape[axis]).reshape(-1))
    return rows.reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


@pytest.mark.share(3)
@KNOWN
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("form", ["constant", "run time"])
@pytest.mark.parametrize("name", INDICES)
def test_gather(dims, axis, form, name):
    index = np.array(INDICES[name], np.int64)
    index = np.where(np.abs(index) >= X.shape[axis], index // 2, index) if axis == -1 else index
    index = np.asarray(np.clip(index, -X.shape[axis], X.shape[axis] - 1), np.int64)
    sizes = f"[{','.join(map(str, index.shape))}]" if index.ndim else ""
    numbers = ",".join(map(str, index.reshape(-1)))
    result = ",".join("RSTU"[: 2 + index.ndim])
    constant = f"<int64{sizes} i = {{{numbers}}}>" if form == "constant" else ""
    unknown = f"[{','.join('NM'[: index.ndim])}]" if index.ndim else ""
    more = "" if form == "constant" else f", int64{unknown} i"
    arrays = {"x": X} | ({} if form == "constant" else {"i": index})
    text = f"g (float[{dims}] x{more}) => (float[{result}] y) {constant} {{ y = Gather <axis = {axis}> (x, i) }}"
    check(text, arrays, lambda x, i=None: taken(x, index, axis))


@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_an_embedding_adds_its_rows_by_scatter_elements_in_float32(kind):
    text = f"g (float[5,3] w, {kind}[B,S] i) => (float[B,S,3] y) {{ y = Gather (w, i) }}"
    arrays = {"w": normal(5, 3), "i": np.array([[1, 1, 4], [0, 1, 4]], kind)}
    check(text, arrays, lambda w, i: torch.nn.functional.embedding(i.long(), w))
    model = ir.from_proto(with_gradients(model_of(text), ["w"]))
    kinds = [node.op_type for node in model.graph]
    assert "ScatterND" not in kinds and kinds.count("ScatterElements") == 1
    graph = ir.from_proto(model_of(text)).graph
    [result], [table, _] = graph.outputs, graph.inputs
    graph.inputs.append(seed := ir.Value(name="seed", type=result.type, shape=result.shape))
    differentiate(graph, result, [table], seed)
    [scatter] = [node for node in graph if node.op_type == "ScatterElements"]
    assert HELD in scatter.meta


def test_one_constant_index_scatters_nothing():
    text = "g (float[B,S,3] x) => (float[B,3] y) <int64 i = {0}> { y = Gather <axis = 1> (x, i) }"
    model = ir.from_proto(with_gradients(model_of(text), ["x"]))
    assert not any(node.op_type.startswith("Scatter") for node in model.graph)


@KNOWN
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("whole", [True, False])
def test_gather_elements(dims, axis, whole):
    """The indices may be smaller than the operand; onnx's own evaluator, of the differences, cannot do that."""
    shape = [5 if n == axis else size for n, size in enumerate(X.shape)] if whole else [3, 2, 2]
    index = np.random.default_rng(0).integers(-X.shape[axis], X.shape[axis], shape)
    check(
        f"g (float[{dims}] x, int64[L,M,N] i) => (float[L,M,N] y) {{ y = GatherElements <axis = {axis}> (x, i) }}",
        {"x": X, "i": index},
        lambda x, i: torch.gather(x, axis, i % x.shape[axis]),
        differences=whole and axis >= 0,
    )


GATHERS_ND = [  # batch_dims, indices
    (0, [[0], [-1], [0], [3]]),
    (0, [[0, 1], [-1, -3], [0, 1]]),
    (0, [[[0, 1, -1], [3, 2, 0]], [[0, 1, 1], [3, 2, 0]]]),
    (0, [2, 1]),
    (1, [[0], [-1], [2], [2]]),
    (1, [[[0, 1], [2, -2]]] * 4),
    (2, [[[0], [1], [0]]] * 4),
    (1, [[[0], [0], [1]]] * 4),
]


@KNOWN
@pytest.mark.parametrize(("batch", "index"), GATHERS_ND, ids=str)
def test_gather_nd(dims, batch, index):
    index = np.array(index)
    depth = index.shape[-1]

    def function(x, i):
        found = [picked(x[at], index[at]) for at in np.ndindex(*x.shape[:batch])]
        return torch.stack(found).reshape(*x.shape[:batch], *found[0].shape)

    def picked(x, i):
        return x[tuple(torch.tensor(i[..., n]) for n in range(depth))]

    unknown = ",".join([*"LMNO"[: index.ndim - 1], str(depth)])
    rank = index.ndim - 1 + X.ndim - depth - batch
    check(
        f"g (float[{dims}] x, int64[{unknown}] i) => (float[{','.join('RSTU'[:rank])}] y) "
        f"{{ y = GatherND <batch_dims = {batch}> (x, i) }}",
        {"x": X, "i": index},
        function,
    )


def test_gather_nd_wants_to_know_how_deep_the_indices_are():
    text = "g (float[A,B,C] x, int64[N,M] i) => (float[R,S] y) { y = GatherND (x, i) }"
    with pytest.raises(AmpError, match="last dimension of the indices") as caught:
        with_gradients(model_of(text), ["x"])
    assert caught.value.code == "AMP212"


@pytest.mark.parametrize("dims", [("4,3", "2,3"), ("A,B", "L,M")])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("reduction", [None, "none", "add"])
def test_scatter_elements(dims, axis, reduction):
    x, updates = normal(4, 3), normal(2, 3, seed=1)
    index = np.array([[0, 1, -1], [3, 2, 1]]) if axis == 0 else np.array([[0, 1, -1], [2, 0, -2]])
    if reduction == "add":
        index[1] = index[0]  # the same places twice for axis 0
        index[:, 1] = index[:, 0]
    given = "" if reduction is None else f', reduction = "{reduction}"'

    def function(x, i, u):
        i = i % x.shape[axis]
        return x.scatter_add(axis, i, u) if reduction == "add" else x.scatter(axis, i, u)

    check(
        f"g (float[{dims[0]}] x, int64[{dims[1]}] i, float[{dims[1]}] u) => (float[{dims[0]}] y) "
        f"{{ y = ScatterElements <axis = {axis}{given}> (x, i, u) }}",
        {"x": x, "i": index, "u": updates},
        function,
    )


@pytest.mark.parametrize("reduction", ["max", "min"])
@pytest.mark.parametrize("tied", [False, True])
def test_the_largest_of_what_is_scattered(reduction, tied):
    """Equal ones share the gradient, as by torch; numerical differences have none there."""
    x, updates, index = (
        normal(4, 3),
        normal(5, 3, seed=1),
        np.array([[0, 1, -1], [0, 1, 1], [3, 2, 1], [3] * 3, [0] * 3]),
    )
    if tied:
        x, updates = np.round(x), np.round(updates)

    def function(x, i, u):
        return x.scatter_reduce(0, i % 4, u, f"a{reduction}")

    check(
        f"g (float[A,B] x, int64[L,M] i, float[L,M] u) => (float[A,B] y) "
        f'{{ y = ScatterElements <axis = 0, reduction = "{reduction}"> (x, i, u) }}',
        {"x": x, "i": index, "u": updates},
        function,
        differences=not tied,
    )


@pytest.mark.parametrize("reduction", ["none", "add"])
@pytest.mark.parametrize("index", [[[0], [-1]], [[0, 1], [-1, -2]]], ids=str)
def test_scatter_nd(reduction, index):
    index = np.array(index if reduction == "none" else [index[0], index[0]])
    depth = index.shape[1]
    updates = normal(2, *X.shape[depth:], seed=1)

    def function(x, i, u):
        return x.index_put(tuple(i.T), u, accumulate=reduction == "add")

    check(
        f"g (float[A,B,C] x, int64[N,{depth}] i, float[{','.join('NBC'[: updates.ndim])}] u) => (float[A,B,C] y) "
        f'{{ y = ScatterND <reduction = "{reduction}"> (x, i, u) }}',
        {"x": X, "i": index, "u": updates},
        function,
    )


@pytest.mark.parametrize("kind", ["ScatterElements", "ScatterND"])
def test_a_reduction_that_is_refused(kind):
    text = f'g (float[4] x, int64[2,1] i, float[2] u) => (float[4] y) {{ y = {kind} <reduction = "mul"> (x, i, u) }}'
    if kind == "ScatterElements":
        text = text.replace("[2,1]", "[2]")
    with pytest.raises(AmpError, match="reduction mul") as caught:
        with_gradients(model_of(text), ["x"])
    assert caught.value.code == "AMP210"


def test_no_rows():
    """Nothing is gathered: the gradient is 0."""
    text = "g (float[5,3] w, int64[N] i) => (float[N,3] y) { y = Gather (w, i) }"
    arrays = {"w": normal(5, 3), "i": np.zeros(0, np.int64)}
    found = gradients(model_of(text), arrays, ["w"], np.zeros((0, 3), np.float32))["w"]
    assert found.shape == (5, 3) and not found.any()


@pytest.mark.parametrize(
    ("shape", "index", "axis"), [((0, 3, 2), (4, 1), 1), ((3, 0, 4), (1, 3), 0), ((2, 0), (2, 2), 0)]
)
@pytest.mark.parametrize("known", [False, True])
def test_gathering_from_nothing(shape, index, axis, known):
    rank = len(shape) + 1
    dims = ",".join(map(str, shape)) if known else ",".join("ABC"[: len(shape)])
    result = ",".join("RSTU"[:rank])
    text = f"g (float[{dims}] x, int64[N,M] i) => (float[{result}] y) {{ y = Gather <axis = {axis}> (x, i) }}"
    arrays: dict[str, np.ndarray] = {"x": np.zeros(shape, np.float32), "i": np.zeros(index, np.int64)}
    seed = np.zeros((*shape[:axis], *index, *shape[axis + 1 :]), np.float32)
    assert gradients(model_of(text), arrays, ["x"], seed)["x"].shape == shape


@pytest.mark.parametrize("kind", ["FLOAT16", "BFLOAT16"])
def test_half_precision_is_added_in_float32(kind):
    """CPU adds nothing lower; 1 + 2,048 is 2,048 in float16."""
    low = TensorProto.DataType.Value(kind)
    text = (
        f"g (float[2,3] x, int64[N] i) => (float[N,3] y) {{ l = Cast <to = {low}> (x)  r = Gather (l, i)  "
        "y = Cast <to = 1> (r) }"
    )
    arrays = {"x": normal(2, 3), "i": np.zeros(2049, np.int64)}
    found = gradients(model_of(text), arrays, ["x"], np.ones((2049, 3), np.float32))["x"]
    assert np.abs(found[0] - 2049).max() <= 1 and not found[1].any()


def test_a_row_of_a_value_whose_rank_is_not_known():
    """torch's older exporter computes the shape of q, k and v at once, so that onnx loses the rank."""
    text = (
        "g (float[A,B] x, int64[N] s) => (float[C,D] y) <int64 i = {{-2}}> "
        "{{ r = Reshape (x, s)  p = Gather <axis = {axis}> (r, i)  y = Reshape (p, t) }}"
    )
    for axis, shape in ((0, (3, 2, 4)), (1, (2, 3, 4)), (-1, (2, 4, 3))):
        model = model_of(text.format(axis=axis).replace("int64 i", "int64[2] t = {4, 2}, int64 i"))
        check(
            model,
            {"x": normal(4, 6), "s": np.array(shape, np.int64)},
            lambda x, s, a=axis, d=shape: x.reshape(d).select(a, 1).reshape(4, 2),
        )
