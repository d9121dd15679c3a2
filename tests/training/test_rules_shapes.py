"""Operators that move values, each against torch and by numerical differences, with sizes known and unknown."""

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch.nn import functional as F

from ampgraph.core.errors import AmpError
from training.gradients import check, gradients, model_of, normal, with_gradients

pytestmark = pytest.mark.slow  # a grid: many small cases

X = normal(2, 3, 4)
KNOWN = pytest.mark.parametrize("dims", ["2,3,4", "A,3,4", "A,B,C"])


def ints(name, values):
    values = list(values)
    return f"int64[{len(values)}] {name} = {{{', '.join(map(str, values))}}}"


def one(dims, operator, result="R,S,T", constants="", more=""):
    """A model of one operator on x."""
    given = f"<{constants}>" if constants else ""
    return f"g (float[{dims}] x{more}) => (float[{result}] y) {given} {{ y = {operator} }}"


@KNOWN
def test_reshaping(dims):
    cases = {
        one(dims, "Reshape (x, s)", "R,S", ints("s", (4, -1))): lambda x: x.reshape(4, -1),
        one(dims, "Reshape (x, s)", "R,S,T,U", ints("s", (0, 3, -1, 2))): lambda x: x.reshape(2, 3, 2, 2),
        one(dims, "Flatten <axis = 1> (x)", "R,S"): lambda x: x.flatten(1),
        one(dims, "Flatten <axis = -1> (x)", "R,S"): lambda x: x.reshape(6, 4),
        one(dims, "Unsqueeze (x, a)", "R,S,T,U,V", ints("a", (-1, 0))): lambda x: x[None, ..., None],
        one(dims, "Unsqueeze (x, a)", "R,S,T,U", ints("a", (1,))): lambda x: x[:, None],
        one(dims, "Transpose (x)"): lambda x: x.permute(2, 1, 0),
        one(dims, "Transpose <perm = [1, 2, 0]> (x)"): lambda x: x.permute(1, 2, 0),
    }
    for text, function in cases.items():
        check(text, {"x": X}, function)


@pytest.mark.parametrize("dims", ["1,3,1", "1,B,1"])
def test_squeezing(dims):
    cases = {
        one(dims, "Squeeze (x, a)", "R,S", ints("a", (0,))): lambda x: x[0],
        one(dims, "Squeeze (x, a)", "R", ints("a", (-1, 0))): lambda x: x[0, :, 0],
        one(dims, "Squeeze (x)", "R"): lambda x: x[0, :, 0],
    }
    for text, function in cases.items():
        check(text, {"x": normal(1, 3, 1)}, function)


def test_one_unknown_size_needs_no_shape_of_the_activation():
    """A Shape node in the backward would keep the activation until then."""
    text = one("A,3,4", "Reshape (x, s)", "R,S", ints("s", (0, -1)))
    model = ir.from_proto(with_gradients(model_of(text), ["x"]))
    assert "Shape" not in [node.op_type for node in model.graph]


def test_an_empty_batch():
    text = one("A,3,4", "Reshape (x, s)", "R,12", ints("s", (-1, 12)))
    check(text, {"x": normal(0, 3, 4)}, None, differences=False)


@pytest.mark.parametrize("dims", ["3,1", "B,1", "B,C"])
@pytest.mark.parametrize("shape", [(2, 3, 4), (3, 4), (3, 1), (1, 1)], ids=str)
def test_expanding(dims, shape):
    x, target = normal(3, 1), torch.broadcast_shapes((3, 1), shape)
    result = ",".join("RST"[: len(target)])
    check(one(dims, "Expand (x, s)", result, ints("s", shape)), {"x": x}, lambda x: x.expand(target))
    check(
        one(dims, "Expand (x, s)", result, more=f", int64[{len(shape)}] s"),
        {"x": x, "s": np.array(shape, np.int64)},
        lambda x, s: x.expand(target),
    )


@KNOWN
def test_tiling(dims):
    check(one(dims, "Tile (x, r)", constants=ints("r", (2, 1, 3))), {"x": X}, lambda x: x.tile(2, 1, 3))
    check(
        one(dims, "Tile (x, r)", more=", int64[3] r"),
        {"x": X, "r": np.array((1, 2, 2), np.int64)},
        lambda x, r: x.tile(1, 2, 2),
    )


@pytest.mark.parametrize("dims", [("2,3", "2,1", "2,4"), ("A,B", "A,1", "A,C"), ("A,3", "A,1", "A,C")])
@pytest.mark.parametrize("axis", [1, -1])
def test_joining(dims, axis):
    arrays = {"x": normal(2, 3), "y": normal(2, 1, seed=1), "z": normal(2, 4, seed=2)}
    given = ", ".join(f"float[{sizes}] {name}" for name, sizes in zip(arrays, dims, strict=True))
    text = f"g ({given}) => (float[R,S] j) {{ j = Concat <axis = {axis}> (x, y, z, x) }}"
    check(text, arrays, lambda x, y, z: torch.cat([x, y, z, x], 1))


def test_joining_one():
    check(one("A,B,C", "Concat <axis = 1> (x)"), {"x": X}, lambda x: x * 1)


@pytest.mark.share(2)
@pytest.mark.parametrize("dims", ["2,6", "A,6", "A,B"])
@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("form", ["sizes", "num_outputs", "run time"])
@pytest.mark.parametrize("used", ["a, b, c", "c, a", "b"])
def test_splitting(dims, axis, form, used):
    """Outputs that are not used bring zeros."""
    sizes = (1, 2, 3) if form != "num_outputs" else (2, 2, 2)
    number = ", num_outputs = 3" if form == "num_outputs" else ""
    constants = f"<{ints('s', sizes)}>" if form == "sizes" else ""
    more = ", int64[3] s" if form == "run time" else ""
    operand = "x" if form == "num_outputs" else "x, s"
    arrays = {"x": normal(2, 6)} | ({"s": np.array(sizes, np.int64)} if form == "run time" else {})
    names = used.split(", ")
    text = (
        f"g (float[{dims}] x{more}) => (float[R,S] y) {constants} "
        f"{{ a, b, c = Split <axis = {axis}{number}> ({operand}) y = Concat <axis = 1> ({used}) }}"
    )

    def function(x, s=None):
        parts = dict(zip("abc", x.split(sizes, 1), strict=True))
        return torch.cat([parts[name] for name in names], 1)

    check(text, arrays, function)


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
    given = {name: part for name, part in zip("seat", parts, strict=True) if part is not None}
    operands = ", ".join(name if name in given else "" for name in "seat").rstrip(", ")
    constant = {k: v for k, v in given.items() if form == "constant" or (k in "at" and form == "run time but axes")}
    number = np.int32 if "int32" in form else np.int64
    arrays = {"x": X} | {k: np.array(v, number) for k, v in given.items() if k not in constant}
    kind = "int32" if "int32" in form else "int64"
    more = "".join(f", {kind}[{len(given[k])}] {k}" for k in arrays if k != "x")
    constants = ", ".join(ints(*pair) for pair in constant.items())
    text = one(dims, f"Slice (x, {operands})", constants=constants, more=more)

    def function(x, *rest):
        places = np.arange(x.numel()).reshape(x.shape)[index]
        return x.reshape(-1)[torch.tensor(places.copy())]

    check(text, arrays, function)


def test_an_empty_cut():
    text = one("A,B,C", "Slice (x, s, e, a)", constants=", ".join([ints("s", [5]), ints("e", [9]), ints("a", [1])]))
    check(text, {"x": X}, lambda x: x[:, 5:9], differences=False)


PADS = [(0, 0, 1, 0, 0, 2), (0, 2, 1, 0, 1, 0), (0, 1, 2, 0, 0, 0)]


@KNOWN
@pytest.mark.parametrize("pads", [*PADS, (0, -1, 1, 1, 2, -2), (0, 0, -1, 0, 0, 0)], ids=str)
@pytest.mark.parametrize("constant", [True, False])
def test_padding(dims, pads, constant):
    """Negative amounts cut off; onnx's own evaluator, of the differences, cannot do that."""
    turned = [pads[2], pads[5], pads[1], pads[4], pads[0], pads[3]]
    arrays = {"x": X} | ({} if constant else {"p": np.array(pads, np.int64)})
    text = one(
        dims, "Pad (x, p)", constants=ints("p", pads) if constant else "", more="" if constant else ", int64[6] p"
    )
    check(text, arrays, lambda x, p=None: F.pad(x, turned), differences=min(pads) >= 0)


@KNOWN
@pytest.mark.parametrize("pads", PADS, ids=str)
@pytest.mark.parametrize(("mode", "theirs"), [("reflect", "reflect"), ("edge", "replicate"), ("wrap", "circular")])
def test_padding_with_what_is_there(dims, pads, mode, theirs):
    turned = [pads[2], pads[5], pads[1], pads[4]]
    check(
        one(dims, f'Pad <mode = "{mode}"> (x, p)', constants=ints("p", pads)),
        {"x": X},
        lambda x: F.pad(x[None], [*turned, 0, 0][: 6 if theirs != "reflect" else 4], mode=theirs)[0],
    )


def test_padding_of_some_axes_and_with_a_value_that_is_trained():
    constants = ", ".join([ints("p", (1, 2)), ints("a", (-1,))])
    check(
        f"g (float[A,B,C] x, float[] v) => (float[R,S,T] y) <{constants}> {{ y = Pad (x, p, v, a) }}",
        {"x": X, "v": normal(seed=3)},
        lambda x, v: torch.cat([v.expand(2, 3, 1), x, v.expand(2, 3, 2)], 2),
    )
    text = one("A,B,C", 'Pad <mode = "reflect"> (x, p, , a)', constants=constants)
    check(text, {"x": X}, lambda x: F.pad(x, (1, 2), mode="reflect"))


def test_padding_that_is_refused():
    text = one("A,B,C", 'Pad <mode = "reflect"> (x, p)', more=", int64[6] p")
    with pytest.raises(AmpError, match="mode reflect") as caught:
        with_gradients(model_of(text), ["x"])
    assert caught.value.code == "AMP210"


@KNOWN
@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("diagonal", [None, 1, -1])
def test_triangles(dims, upper, diagonal):
    constants = "" if diagonal is None else f"int64 k = {{{diagonal}}}"
    operands = "x" if diagonal is None else "x, k"
    function = torch.triu if upper else torch.tril
    text = one(dims, f"Trilu <upper = {upper}> ({operands})", constants=constants)
    check(text, {"x": X}, lambda x: function(x, diagonal or 0))


@pytest.mark.parametrize("dims", ["2,8,3,2", "A,8,C,D", "A,B,C,D"])
def test_depth_and_space(dims):
    x = normal(2, 8, 3, 2)

    def depth_first(x):
        n, c, h, w = x.shape
        return x.reshape(n, 2, 2, c // 4, h, w).permute(0, 3, 4, 1, 5, 2).reshape(n, c // 4, 2 * h, 2 * w)

    result = "R,S,T,U"
    check(one(dims, "DepthToSpace <blocksize = 2> (x)", result), {"x": x}, depth_first)
    check(
        one(dims, 'DepthToSpace <blocksize = 2, mode = "CRD"> (x)', result), {"x": x}, lambda x: F.pixel_shuffle(x, 2)
    )
    dims = ",".join([*dims.split(",")[:2], "4" if "8" in dims and "A" not in dims else "E", dims.split(",")[3]])

    def space_first(x):
        n, c, h, w = x.shape
        return x.reshape(n, c, h // 2, 2, w // 2, 2).permute(0, 3, 5, 1, 2, 4).reshape(n, 4 * c, h // 2, w // 2)

    check(one(dims, "SpaceToDepth <blocksize = 2> (x)", result), {"x": normal(2, 8, 4, 2)}, space_first)


@KNOWN
def test_no_axes(dims):
    """Unsqueeze leaves everything as it is; Squeeze takes no axes for all."""
    x = normal(2, 1, 4)
    dims = dims.replace("3", "1")
    none, z = np.zeros(0, np.int64), normal(2, 1, 4, seed=1)
    for more, start, given in ((", int64[N] a", "", {"a": none}), ("", "<int64[0] a = {}>", {})):
        text = f"g (float[{dims}] x, float[{dims}] z{more}) => (float[R,S,T] y) {start} "
        check(text + "{ u = Unsqueeze (x, a)  y = Mul (u, z) }", {"x": x, "z": z, **given}, lambda x, z, *_: x * z)
        text = f"g (float[{dims}] x{more}) => (float[R,S] y) {start} {{ y = Squeeze (x, a) }}"
        check(text, {"x": x, **given}, lambda x, *_: x.squeeze(), differences=False)


@pytest.mark.parametrize("dims", ["N,8,2,3", "A,B,C,D"])
@pytest.mark.parametrize("shape", [(0, 8, 2, 3), (2, 8, 0, 3)])
def test_blocks_of_nothing(dims, shape):
    if shape[2] == 0 and "8" in dims:
        dims = "N,8,H,3"
    text = one(dims, 'DepthToSpace <blocksize = 2, mode = "CRD"> (x)', "R,S,T,U")
    seed = np.zeros((shape[0], 2, 2 * shape[2], 6), np.float32)
    assert gradients(model_of(text), {"x": np.zeros(shape, np.float32)}, ["x"], seed)["x"].shape == shape
