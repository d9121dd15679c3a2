"""Operators that move values, gather and scatter: each against torch and by differences, with sizes known and not."""

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto
from torch.nn import functional as F

from ampgraph.core.dataflow import HELD
from ampgraph.training.gradients.driver import differentiate
from training.gradients import Dims, check, gradients, network, normal, refused, with_gradients

pytestmark = pytest.mark.slow  # a grid: many small cases

X = normal(2, 3, 4)
KNOWN = pytest.mark.parametrize("dims", ["2,3,4", "A,3,4", "A,B,C"])

RESHAPES = {
    "Reshape (x, s)": ([4, -1], lambda x: x.reshape(4, -1)),
    "Reshape (x, s) with a 0": ([0, 3, -1, 2], lambda x: x.reshape(2, 3, 2, 2)),
    "Flatten <axis = 1> (x)": (None, lambda x: x.flatten(1)),
    "Flatten <axis = -1> (x)": (None, lambda x: x.reshape(6, 4)),
    "Unsqueeze (x, s) of two": ([-1, 0], lambda x: x[None, ..., None]),
    "Unsqueeze (x, s)": ([1], lambda x: x[:, None]),
    "Transpose (x)": (None, lambda x: x.permute(2, 1, 0)),
    "Transpose <perm = [1, 2, 0]> (x)": (None, lambda x: x.permute(1, 2, 0)),
    "Tile (x, s)": ([2, 1, 3], lambda x: x.tile(2, 1, 3)),
}


@KNOWN
@pytest.mark.parametrize("name", RESHAPES)
def test_views(name, dims):
    numbers, function = RESHAPES[name]
    stored = {} if numbers is None else {"s": np.array(numbers)}
    check(f"y = {name.partition(')')[0]})", {"x": X}, function, dims, stored=stored)


@pytest.mark.parametrize("dims", ["1,3,1", "1,B,1"])
@pytest.mark.parametrize(
    ("axes", "function"),
    [([0], lambda x: x[0]), ([-1, 0], lambda x: x[0, :, 0]), (None, lambda x: x[0, :, 0])],
    ids=["one", "two", "all"],
)
def test_squeezing(dims, axes, function):
    stored = {} if axes is None else {"a": np.array(axes)}
    check(f"y = Squeeze (x{', a' * bool(axes)})", {"x": normal(1, 3, 1)}, function, dims, stored=stored)


def test_one_unknown_size_needs_no_shape_of_the_activation():
    """A Shape node in the backward would keep the activation until then."""
    model = network("y = Reshape (x, s)", {"x": X}, "A,3,4", stored={"s": np.array([0, -1])})
    assert "Shape" not in [node.op_type for node in with_gradients(model, ["x"]).graph.node]


def test_an_empty_batch():
    x = normal(0, 3, 4)
    check("y = Reshape (x, s)", {"x": x}, None, "A,3,4", rank=2, differences=False, stored={"s": np.array([-1, 12])})


@pytest.mark.parametrize("dims", ["3,1", "B,1", "B,C"])
@pytest.mark.parametrize("shape", [(2, 3, 4), (3, 4), (3, 1), (1, 1)], ids=str)
def test_expanding(dims, shape):
    x, target, sizes = normal(3, 1), torch.broadcast_shapes((3, 1), shape), np.array(shape)
    check("y = Expand (x, s)", {"x": x}, lambda x: x.expand(target), dims, {"s": sizes})
    check("y = Expand (x, s)", {"x": x, "s": sizes}, lambda x, s: x.expand(target), dims)


@KNOWN
def test_tiling_by_what_a_run_shows(dims):
    check("y = Tile (x, r)", {"x": X, "r": np.array((1, 2, 2))}, lambda x, r: x.tile(1, 2, 2), dims)


@pytest.mark.parametrize("dims", [("2,3", "2,1", "2,4"), ("A,B", "A,1", "A,C"), ("A,3", "A,1", "A,C")])
@pytest.mark.parametrize("axis", [1, -1])
def test_joining(dims, axis):
    arrays = {"x": normal(2, 3), "w": normal(2, 1, seed=1), "z": normal(2, 4, seed=2)}
    sizes = dict(zip(arrays, dims, strict=True))
    check(f"y = Concat <axis = {axis}> (x, w, z, x)", arrays, lambda x, w, z: torch.cat([x, w, z, x], 1), sizes)
    check("y = Concat <axis = 1> (x)", {"x": X}, lambda x: x * 1, "A,B,C")


@pytest.mark.share(2)
@pytest.mark.parametrize("dims", ["2,6", "A,6", "A,B"])
@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("form", ["sizes", "num_outputs", "run time"])
@pytest.mark.parametrize("used", ["a, b, c", "c, a", "b"])
def test_splitting(dims, axis, form, used):
    """Outputs that are not used bring zeros."""
    sizes = (1, 2, 3) if form != "num_outputs" else (2, 2, 2)
    number, operand = (", num_outputs = 3", "x") if form == "num_outputs" else ("", "x, s")
    given = {"x": normal(2, 6)} | ({"s": np.array(sizes)} if form == "run time" else {})
    stored = {"s": np.array(sizes)} if form == "sizes" else {}

    def function(x, s=None):
        parts = dict(zip("abc", x.split(sizes, 1), strict=True))
        return torch.cat([parts[name] for name in used.split(", ")], 1)

    body = f"a, b, c = Split <axis = {axis}{number}> ({operand}) y = Concat <axis = 1> ({used})"
    check(body, given, function, dims, stored=stored)


SLICES = [  # starts, ends, axes, steps, as torch's or numpy's index
    ((1,), (3,), (2,), None, np.s_[:, :, 1:3]),
    ((1, 0), (3, 1), None, None, np.s_[1:3, 0:1]),
    ((0, -2), (2, 100), (-2, -1), (1, 1), np.s_[:, 0:2, -2:]),
    ((-100,), (-1,), (1,), None, np.s_[:, :-1]),
    ((0,), (4,), (2,), (2,), np.s_[:, :, ::2]),
    ((-1,), (-100,), (1,), (-1,), np.s_[:, ::-1]),
    ((3, 0), (0, 2), (2, 0), (-2, 1), np.s_[0:2, :, 3:0:-2]),
]


@pytest.mark.share(3)
@KNOWN
@pytest.mark.parametrize("form", ["constant", "run time", "run time int32", "run time but axes"])
@pytest.mark.parametrize("case", SLICES, ids=lambda case: str(case[:4]))
def test_cutting(dims, form, case):
    *parts, index = case
    given = {name: np.array(part) for name, part in zip("seat", parts, strict=True) if part is not None}
    operands = ", ".join(name if name in given else "" for name in "seat").rstrip(", ")
    constant = {k: v for k, v in given.items() if form == "constant" or (k in "at" and form == "run time but axes")}
    number = np.int32 if "int32" in form else np.int64
    arrays = {"x": X} | {k: v.astype(number) for k, v in given.items() if k not in constant}

    def function(x, *rest):
        places = np.arange(x.numel()).reshape(x.shape)[index]
        return x.reshape(-1)[torch.tensor(places.copy())]

    check(f"y = Slice (x, {operands})", arrays, function, dims, constant)


def test_an_empty_cut():
    places = {"s": np.array([5]), "e": np.array([9]), "a": np.array([1])}
    check("y = Slice (x, s, e, a)", {"x": X}, lambda x: x[:, 5:9], "A,B,C", differences=False, stored=places)


PADS = [(0, 0, 1, 0, 0, 2), (0, 2, 1, 0, 1, 0), (0, 1, 2, 0, 0, 0)]


@KNOWN
@pytest.mark.parametrize("pads", [*PADS, (0, -1, 1, 1, 2, -2), (0, 0, -1, 0, 0, 0)], ids=str)
@pytest.mark.parametrize("constant", [True, False])
def test_padding(dims, pads, constant):
    """Negative amounts cut off; onnx's own evaluator, of the differences, cannot do that."""
    turned, amounts = [pads[2], pads[5], pads[1], pads[4], pads[0], pads[3]], {"p": np.array(pads)}
    arrays, stored = ({"x": X}, amounts) if constant else ({"x": X, **amounts}, {})
    check("y = Pad (x, p)", arrays, lambda x, p=None: F.pad(x, turned), dims, differences=min(pads) >= 0, stored=stored)


@KNOWN
@pytest.mark.parametrize("pads", PADS, ids=str)
@pytest.mark.parametrize(("mode", "theirs"), [("reflect", "reflect"), ("edge", "replicate"), ("wrap", "circular")])
def test_padding_with_what_is_there(dims, pads, mode, theirs):
    turned = [pads[2], pads[5], pads[1], pads[4], 0, 0][: 6 if theirs != "reflect" else 4]
    check(
        f'y = Pad <mode = "{mode}"> (x, p)',
        {"x": X},
        lambda x: F.pad(x[None], turned, mode=theirs)[0],
        dims,
        {"p": np.array(pads)},
    )


def test_padding_of_some_axes_and_with_a_value_that_is_trained():
    stored = {"p": np.array((1, 2)), "a": np.array([-1])}
    given = {"x": X, "v": normal(seed=3)}

    def function(x, v):
        return torch.cat([v.expand(2, 3, 1), x, v.expand(2, 3, 2)], 2)

    check("y = Pad (x, p, v, a)", given, function, "A,B,C", stored=stored)
    body = 'y = Pad <mode = "reflect"> (x, p, , a)'
    check(body, {"x": X}, lambda x: F.pad(x, (1, 2), mode="reflect"), "A,B,C", stored=stored)


@KNOWN
@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("diagonal", [None, 1, -1])
def test_triangles(dims, upper, diagonal):
    function, stored = torch.triu if upper else torch.tril, {} if diagonal is None else {"k": np.array(diagonal)}
    body = f"y = Trilu <upper = {upper}> (x{', k' * bool(stored)})"
    check(body, {"x": X}, lambda x: function(x, diagonal or 0), dims, stored=stored)


def depth_first(x):
    n, c, h, w = x.shape
    return x.reshape(n, 2, 2, c // 4, h, w).permute(0, 3, 4, 1, 5, 2).reshape(n, c // 4, 2 * h, 2 * w)


def space_first(x):
    n, c, h, w = x.shape
    return x.reshape(n, c, h // 2, 2, w // 2, 2).permute(0, 3, 5, 1, 2, 4).reshape(n, 4 * c, h // 2, w // 2)


@pytest.mark.parametrize("dims", ["2,8,{},2", "A,8,C,D", "A,B,C,D"])
@pytest.mark.parametrize(
    ("body", "rows", "function"),
    [
        ("DepthToSpace <blocksize = 2> (x)", 3, depth_first),
        ('DepthToSpace <blocksize = 2, mode = "CRD"> (x)', 3, lambda x: F.pixel_shuffle(x, 2)),
        ("SpaceToDepth <blocksize = 2> (x)", 4, space_first),
    ],
)
def test_depth_and_space(dims, body, rows, function):
    check(f"y = {body}", {"x": normal(2, 8, rows, 2)}, function, dims.format(rows))


@KNOWN
@pytest.mark.parametrize("fed", [True, False])
def test_no_axes(dims, fed):
    """Unsqueeze leaves everything as it is; Squeeze takes no axes for all."""
    x, z, none, dims = normal(2, 1, 4), normal(2, 1, 4, seed=1), {"a": np.zeros(0, np.int64)}, dims.replace("3", "1")
    arrays, stored = (none, {}) if fed else ({}, none)
    sizes = {"x": dims, "z": dims, "a": "N"}
    both = {"x": x, "z": z, **arrays}
    check("u = Unsqueeze (x, a)  y = Mul (u, z)", both, lambda x, z, *_: x * z, sizes, stored=stored)
    check("y = Squeeze (x, a)", {"x": x, **arrays}, lambda x, *_: x.squeeze(), sizes, differences=False, stored=stored)


@pytest.mark.parametrize("dims", ["N,8,2,3", "A,B,C,D"])
@pytest.mark.parametrize("shape", [(0, 8, 2, 3), (2, 8, 0, 3)])
def test_blocks_of_nothing(dims, shape):
    x, dims = np.zeros(shape, np.float32), "N,8,H,3" if shape[2] == 0 and "8" in dims else dims
    seed = np.zeros((shape[0], 2, 2 * shape[2], 6), np.float32)
    model = network('y = DepthToSpace <blocksize = 2, mode = "CRD"> (x)', {"x": x}, dims, 4)
    assert gradients(model, {"x": x}, ["x"], seed)["x"].shape == shape


# -- indices, which come twice ----------------------------------------------------------------------------------------

Y = normal(4, 3, 2)
SIZES = pytest.mark.parametrize("dims", ["4,3,2", "A,3,2", "A,B,C"])
INDICES = {"scalar": 1, "last": -1, "one": [2], "vector": [0, 2, 2, -1, -3], "matrix": [[0, 1], [1, -2]]}


def taken(x, index, axis):
    """torch's indexing along an axis, as numpy's take."""
    index = torch.as_tensor(np.asarray(index)).long()
    axis %= x.ndim
    rows = x.index_select(axis, (index % x.shape[axis]).reshape(-1))
    return rows.reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


@pytest.mark.share(3)
@SIZES
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("form", ["constant", "run time"])
@pytest.mark.parametrize("name", INDICES)
def test_gather(dims, axis, form, name):
    index = np.array(INDICES[name], np.int64)
    index = np.where(np.abs(index) >= Y.shape[axis], index // 2, index) if axis == -1 else index
    index = np.asarray(np.clip(index, -Y.shape[axis], Y.shape[axis] - 1), np.int64)
    arrays, stored = ({"x": Y}, {"i": index}) if form == "constant" else ({"x": Y, "i": index}, {})
    sizes = {"x": dims} | ({"i": ",".join("NM"[: index.ndim])} if index.ndim else {})
    check(f"y = Gather <axis = {axis}> (x, i)", arrays, lambda x, i=None: taken(x, index, axis), sizes, stored=stored)


@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_an_embedding_adds_its_rows_by_scatter_elements_in_float32(kind):
    arrays = {"w": normal(5, 3), "i": np.array([[1, 1, 4], [0, 1, 4]], kind)}
    check("y = Gather (w, i)", arrays, lambda w, i: F.embedding(i.long(), w), {"i": "B,S"})
    model = network("y = Gather (w, i)", arrays, {"i": "B,S"}, 3)
    kinds = [node.op_type for node in with_gradients(model, ["w"]).graph.node]
    assert "ScatterND" not in kinds and kinds.count("ScatterElements") == 1
    graph = ir.from_proto(model).graph
    [result], [table, _] = graph.outputs, graph.inputs
    graph.inputs.append(seed := ir.Value(name="seed", type=result.type, shape=result.shape))
    differentiate(graph, result, [table], seed)
    [scatter] = [node for node in graph if node.op_type == "ScatterElements"]
    assert HELD in scatter.meta


def test_one_constant_index_scatters_nothing():
    model = network("y = Gather <axis = 1> (x, i)", {"x": X}, "B,S,3", stored={"i": np.array(0)})
    assert not any(node.op_type.startswith("Scatter") for node in with_gradients(model, ["x"]).graph.node)


PIECES = {  # which rows of three are read, and how many Pads their gradients need
    "query, key and value": ([0, 1, 2], 0),
    "out of order": ([2, 0, 1], 0),
    "all but the first": ([1, 2], 1),
    "the ends": ([0, 2], 2),
    "one of them twice": ([0, 0, 1, 2], 1),
}


@pytest.mark.parametrize("name", PIECES)
def test_gradients_of_neighbours_are_joined_instead_of_added_between_zeros(name):
    rows, pads = PIECES[name]
    body = "".join(f"p{n} = Gather <axis = 1> (x, i{row})\ns{n} = Mul (p{n}, p{n})\n" for n, row in enumerate(rows))
    body += f"y = Sum ({', '.join(f's{n}' for n in range(len(rows)))})"
    stored = {f"i{row}": np.array(row) for row in rows}
    check(body, {"x": X}, lambda x: sum(x[:, row] ** 2 for row in rows), "2,3,4", stored=stored)
    kinds = [node.op_type for node in with_gradients(network(body, {"x": X}, "2,3,4", stored=stored), ["x"]).graph.node]
    assert kinds.count("Pad") == pads


def test_gradients_of_halves_are_joined():
    body = "c = Slice (x, zero, two, last)\nd = Slice (x, two, end, last)\n"
    body += "n = Neg (d)\nr = Concat <axis = -1> (n, c)\ny = Mul (r, x)"
    stored = {"zero": np.array([0]), "two": np.array([2]), "end": np.array([9]), "last": np.array([-1])}
    check(body, {"x": X}, lambda x: torch.cat([-x[..., 2:], x[..., :2]], -1) * x, "2,3,4", stored=stored)
    kinds = [node.op_type for node in with_gradients(network(body, {"x": X}, "2,3,4", stored=stored), ["x"]).graph.node]
    assert "Pad" not in kinds


@SIZES
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("whole", [True, False])
def test_gather_elements(dims, axis, whole):
    """The indices may be smaller than the operand; onnx's own evaluator, of the differences, cannot do that."""
    shape = [5 if n == axis else size for n, size in enumerate(Y.shape)] if whole else [3, 2, 2]
    index = np.random.default_rng(0).integers(-Y.shape[axis], Y.shape[axis], shape)
    check(
        f"y = GatherElements <axis = {axis}> (x, i)",
        {"x": Y, "i": index},
        lambda x, i: torch.gather(x, axis, i % x.shape[axis]),
        {"x": dims, "i": "L,M,N"},
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


@SIZES
@pytest.mark.parametrize(("batch", "index"), GATHERS_ND, ids=str)
def test_gather_nd(dims, batch, index):
    index = np.array(index)
    depth = index.shape[-1]

    def picked(x, i):
        return x[tuple(torch.tensor(i[..., n]) for n in range(depth))]

    def function(x, i):
        found = [picked(x[at], index[at]) for at in np.ndindex(*x.shape[:batch])]
        return torch.stack(found).reshape(*x.shape[:batch], *found[0].shape)

    sizes = {"x": dims, "i": ",".join([*"LMNO"[: index.ndim - 1], str(depth)])}
    check(f"y = GatherND <batch_dims = {batch}> (x, i)", {"x": Y, "i": index}, function, sizes)


@pytest.mark.parametrize("dims", [("4,3", "2,3"), ("A,B", "L,M")])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("reduction", ["", ', reduction = "none"', ', reduction = "add"'])
def test_scatter_elements(dims, axis, reduction):
    index = np.array([[0, 1, -1], [3, 2, 1]]) if axis == 0 else np.array([[0, 1, -1], [2, 0, -2]])
    if "add" in reduction:
        index[1] = index[0]  # the same places twice for axis 0
        index[:, 1] = index[:, 0]

    def function(x, i, u):
        i = i % x.shape[axis]
        return x.scatter_add(axis, i, u) if "add" in reduction else x.scatter(axis, i, u)

    arrays = {"x": normal(4, 3), "i": index, "u": normal(2, 3, seed=1)}
    sizes = {"x": dims[0], "i": dims[1], "u": dims[1]}
    check(f"y = ScatterElements <axis = {axis}{reduction}> (x, i, u)", arrays, function, sizes)


@pytest.mark.parametrize("reduction", ["max", "min"])
@pytest.mark.parametrize("tied", [False, True])
def test_the_largest_of_what_is_scattered(reduction, tied):
    """Equal ones share the gradient, as by torch; numerical differences have none there."""
    x, updates = normal(4, 3), normal(5, 3, seed=1)
    index = np.array([[0, 1, -1], [0, 1, 1], [3, 2, 1], [3] * 3, [0] * 3])
    if tied:
        x, updates = np.round(x), np.round(updates)
    check(
        f'y = ScatterElements <axis = 0, reduction = "{reduction}"> (x, i, u)',
        {"x": x, "i": index, "u": updates},
        lambda x, i, u: x.scatter_reduce(0, i % 4, u, f"a{reduction}"),
        {"x": "A,B", "i": "L,M", "u": "L,M"},
        differences=not tied,
    )


@pytest.mark.parametrize("reduction", ["none", "add"])
@pytest.mark.parametrize("index", [[[0], [-1]], [[0, 1], [-1, -2]]], ids=str)
def test_scatter_nd(reduction, index):
    index = np.array(index if reduction == "none" else [index[0], index[0]])
    depth = index.shape[1]
    updates = normal(2, *Y.shape[depth:], seed=1)
    check(
        f'y = ScatterND <reduction = "{reduction}"> (x, i, u)',
        {"x": Y, "i": index, "u": updates},
        lambda x, i, u: x.index_put(tuple(i.T), u, accumulate=reduction == "add"),
        {"x": "A,B,C", "i": f"N,{depth}", "u": ",".join("NBC"[: updates.ndim])},
    )


FOUR = {"x": normal(4), "i": np.array([[0], [1]]), "u": normal(2)}
REFUSED: dict[str, tuple[str, str, dict[str, np.ndarray], Dims]] = {
    "Pad <mode = 'reflect'>": (
        "AMP210.*mode reflect",
        'y = Pad <mode = "reflect"> (x, p)',
        {"x": X, "p": np.arange(6)},
        "",
    ),
    "GatherND without a depth": (
        "AMP212.*last dimension of the indices",
        "y = GatherND (x, i)",
        {"x": Y, "i": np.zeros((2, 2), np.int64)},
        {"x": "A,B,C", "i": "N,M"},
    ),
    "ScatterElements": (
        "AMP210.*reduction mul",
        'y = ScatterElements <reduction = "mul"> (x, i, u)',
        {**FOUR, "i": np.array([0, 1])},
        "",
    ),
    "ScatterND": ("AMP210.*reduction mul", 'y = ScatterND <reduction = "mul"> (x, i, u)', FOUR, ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_forms_that_are_refused(name):
    told, body, arrays, dims = REFUSED[name]
    refused(told, body, arrays, dims, 2 if "ND" in body and "Scatter" not in body else arrays["x"].ndim)


def test_no_rows():
    """Nothing is gathered: the gradient is 0."""
    arrays = {"w": normal(5, 3), "i": np.zeros(0, np.int64)}
    found = gradients(network("y = Gather (w, i)", arrays, {"i": "N"}), arrays, ["w"], np.zeros((0, 3), np.float32))
    assert found["w"].shape == (5, 3) and not found["w"].any()


@pytest.mark.parametrize(
    ("shape", "index", "axis"), [((0, 3, 2), (4, 1), 1), ((3, 0, 4), (1, 3), 0), ((2, 0), (2, 2), 0)]
)
@pytest.mark.parametrize("known", [False, True])
def test_gathering_from_nothing(shape, index, axis, known):
    arrays: dict[str, np.ndarray] = {"x": np.zeros(shape, np.float32), "i": np.zeros(index, np.int64)}
    dims = {"i": "N,M"} if known else {"i": "N,M", "x": ",".join("ABC"[: len(shape)])}
    seed = np.zeros((*shape[:axis], *index, *shape[axis + 1 :]), np.float32)
    model = network(f"y = Gather <axis = {axis}> (x, i)", arrays, dims, len(shape) + 1)
    assert gradients(model, arrays, ["x"], seed)["x"].shape == shape


@pytest.mark.parametrize("kind", ["FLOAT16", "BFLOAT16"])
def test_half_precision_is_added_in_float32(kind):
    """CPU adds nothing lower; 1 + 2,048 is 2,048 in float16."""
    arrays = {"x": normal(2, 3), "i": np.zeros(2049, np.int64)}
    low = TensorProto.DataType.Value(kind)
    model = network(f"l = Cast <to = {low}> (x)  r = Gather (l, i)  y = Cast <to = 1> (r)", arrays, {"i": "N"})
    found = gradients(model, arrays, ["x"], np.ones((2049, 3), np.float32))["x"]
    assert np.abs(found[0] - 2049).max() <= 1 and not found[1].any()


@pytest.mark.parametrize(("axis", "shape"), [(0, (3, 2, 4)), (1, (2, 3, 4)), (-1, (2, 4, 3))])
def test_a_row_of_a_value_whose_rank_is_not_known(axis, shape):
    """torch's older exporter computes the shape of q, k and v at once, so that onnx loses the rank."""
    check(
        f"r = Reshape (x, s)  p = Gather <axis = {axis}> (r, i)  y = Reshape (p, t)",
        {"x": normal(4, 6), "s": np.array(shape, np.int64)},
        lambda x, s: x.reshape(shape).select(axis, 1).reshape(4, 2),
        {"x": "A,B", "s": "N"},
        {"i": np.array(-2), "t": np.array([4, 2])},
    )
