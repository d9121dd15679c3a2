"""Convolution, pooling and Resize in one to three dimensions, sizes known or not, against torch and by differences."""

import itertools

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ampgraph.core.errors import AmpError
from needs import needs_runtime
from training.gradients import check, gradients, network, normal, refused, symbols, with_gradients

pytestmark = pytest.mark.slow  # a grid: many small cases

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVERAGE = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
KNOWN = pytest.mark.parametrize("known", ["static", "batch", "all"])


def checked(operator, arrays, function, known="static", differences=True, **attributes):
    """An operator with attributes on data whose sizes are known in part."""
    given = ", ".join(f"{name} = {value}" for name, value in attributes.items())
    body = f"y = {operator} <{given}> ({', '.join(arrays)})".replace("<>", "")
    check(body, arrays, function, symbols(next(iter(arrays.values())).shape, known), differences=differences)


def data(x, w, bias=0):
    return {"x": normal(*x), "w": normal(*w, seed=1)} | ({"c": normal(bias, seed=2)} if bias else {})


@pytest.mark.share(3)
@KNOWN
@pytest.mark.parametrize("group", [1, 2, 4], ids="groups{}".format)
@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "dilation"),
    [(3, 1, 1, 1), (3, 2, 1, 1), (2, 3, 0, 1), (3, 1, 0, 2), (3, 2, 2, 2), (1, 1, 0, 1), (1, 2, 0, 1), (5, 2, 3, 1)],
)
def test_conv(kernel, stride, pad, dilation, group, known):
    checked(
        "Conv",
        data((2, 4, 8, 9), (8, 4 // group, kernel, kernel), 8),
        lambda x, w, c: F.conv2d(x, w, c, stride, pad, dilation, group),
        known,
        known == "all" and group == 4,
        group=group,
        strides=[stride] * 2,
        pads=[pad] * 4,
        dilations=[dilation] * 2,
    )


@pytest.mark.share(2)
@KNOWN
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [3, 4])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_depthwise(rank, kernel, stride, known):
    arrays = data((2, 3, *[7, 6, 5][:rank]), (3, 1, *[kernel] * rank))
    more = {"group": 3, "strides": [stride] * rank, "pads": [1] * 2 * rank}
    checked("Conv", arrays, lambda x, w: CONV[rank](x, w, None, stride, 1, 1, 3), known, rank == 1, **more)


@KNOWN
@pytest.mark.parametrize("rank", [1, 3])
def test_convolutions_of_other_ranks(rank, known):
    """Another kernel, stride and padding on each axis."""
    strides, pads, kernel = [2, 1, 3][:rank], [1, 0, 2][:rank], [3, 2, 4][:rank]
    arrays, more = data((2, 4, *[7, 6, 5][:rank]), (6, 2, *kernel), 6), {"strides": strides, "pads": pads * 2}
    checked("Conv", arrays, lambda x, w, c: CONV[rank](x, w, c, strides, pads, 1, 2), known, group=2, **more)
    arrays = data((2, 2, *[4, 3, 5][:rank]), (2, 3, *[3, 2, 2][:rank]))
    turned = TRANSPOSED[rank]
    checked("ConvTranspose", arrays, lambda x, w: turned(x, w, None, 2), known, rank == 1, strides=[2] * rank)


@pytest.mark.share(2)
@KNOWN
@pytest.mark.parametrize(("before", "after"), [(2, 0), (0, 1), (1, 2)])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_uneven_padding(stride, before, after, known):
    def function(x, w):
        return F.conv1d(F.pad(x, (before, after)), w, None, stride)

    checked("Conv", data((2, 3, 8), (4, 3, 3)), function, known, strides=[stride], pads=[before, after])


@pytest.mark.share(2)
@KNOWN
@pytest.mark.parametrize("upper", [True, False])
@pytest.mark.parametrize(("stride", "kernel"), list(itertools.product([1, 2, 3], [2, 3])))
def test_same_padding_of_a_convolution(stride, kernel, upper, known):
    totals = [max((-(-size // stride) - 1) * stride + kernel - size, 0) for size in (8, 7)]
    halves = [(total // 2, total - total // 2)[:: 1 if upper else -1] for total in totals]
    checked(
        "Conv",
        data((2, 3, 8, 7), (4, 3, kernel, kernel)),
        lambda x, w: F.conv2d(F.pad(x, (*halves[1], *halves[0])), w, None, stride),
        known,
        known == "all" and upper,
        strides=[stride] * 2,
        auto_pad=f'"SAME_{"UPPER" if upper else "LOWER"}"',
    )


@pytest.mark.share(2)
@KNOWN
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "dilation", "extra"),
    [(3, 1, 1, 1, 0), (2, 2, 0, 1, 0), (3, 2, 1, 1, 1), (4, 3, 1, 1, 2), (3, 1, 0, 2, 0), (3, 2, 2, 2, 1)],
)
def test_conv_transpose(kernel, stride, pad, dilation, extra, group, known):
    checked(
        "ConvTranspose",
        data((2, 2, 4, 5), (2, 3, kernel, kernel), 3 * group),
        lambda x, w, c: F.conv_transpose2d(x, w, c, stride, pad, extra, group, dilation),
        known,
        known == "all" and group == 1,  # onnx does not evaluate groups
        group=group,
        strides=[stride] * 2,
        pads=[pad] * 4,
        dilations=[dilation] * 2,
        output_padding=[extra] * 2,
    )


@pytest.mark.parametrize(("auto", "cut"), [("SAME_UPPER", slice(0, 10)), ("NOTSET", slice(1, 11))])
def test_conv_transpose_to_a_size_that_is_asked_for(auto, cut):
    """Padding follows from output_shape, which onnx's evaluator refuses: 11 of 3 + 4 * 2 is no padding, 10 takes one
    off the end or the front."""

    def function(x, w):
        return F.conv_transpose1d(x, w, None, 2)[:, :, cut]

    more = {"strides": [2], "output_shape": [10], "auto_pad": f'"{auto}"'}
    checked("ConvTranspose", data((2, 2, 5), (2, 3, 3)), function, "batch", False, **more)


def test_the_weight_alone_is_differentiated():
    """As in the first layer of a network."""
    arrays, seed = data((2, 3, 8), (4, 3, 3)), normal(2, 4, 6, seed=3)
    found = gradients(network("y = Conv (x, w)", arrays, "N,3,8", 3), arrays, ["w"], seed)["w"]
    tensor = torch.tensor(arrays["w"], requires_grad=True)
    (F.conv1d(torch.tensor(arrays["x"]), tensor) * torch.tensor(seed)).sum().backward()
    torch.testing.assert_close(torch.tensor(found), tensor.grad)


@KNOWN
@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER"])
def test_same_padding_with_strides_beyond_the_kernel(known, auto):
    """Up to one element less than nothing it is no padding; beyond, ONNX Runtime starts behind the edge."""
    arrays, auto = data((1, 1, 8), (1, 1, 1)), f'auto_pad = "{auto}"'
    dims = symbols((1, 1, 8), known)
    check(f"y = Conv <{auto}, strides = [2]> (x, w)", arrays, lambda x, w: F.conv1d(x, w, stride=2), dims)
    refused("AMP210.*auto_pad SAME", f"y = Conv <{auto}, strides = [4]> (x, w)", arrays, dims, 3)


def test_a_transposed_convolution_to_fewer_elements_is_refused():
    """onnx infers [1, 1, 4]."""
    body = "g (float[1,1,2,4,3] x, float[1,1,3,2,2] w) => (float[1,1,4] y) {"
    with pytest.raises(AmpError, match="AMP212.*the shape of 'y' is not known"):
        check(
            body + " y = ConvTranspose <output_shape = [4, 3, 3]> (x, w) }",
            data((1, 1, 2, 4, 3), (1, 1, 3, 2, 2)),
            None,
        )


# -- pooling ----------------------------------------------------------------------------------------------------------


def told(known: str, ceil: int, kernel: int, stride: int, pad: int) -> str:
    """Sizes that onnx infers right: rounding up it counts windows that begin in the padding, which do not run."""
    beyond = any(-(-(size + 2 * pad - kernel) // stride) * stride >= size + pad for size in (7, 6))
    return "all" if ceil and beyond else known


def spaced(*shape: int) -> np.ndarray:
    """No two elements are close, so that a small step never changes which is the largest."""
    size = int(np.prod(shape))
    return np.random.default_rng(0).permutation(size).reshape(shape).astype(np.float32) / size


def window(kernel, stride, pad, rank=2):
    return {"kernel_shape": [kernel] * rank, "strides": [stride] * rank, "pads": [pad] * 2 * rank}


@KNOWN
@pytest.mark.parametrize("ceil", [0, 1])
@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "dilation"), [(2, 2, 0, 1), (3, 2, 1, 1), (3, 1, 1, 1), (2, 3, 0, 1), (2, 2, 1, 2)]
)
def test_max_pool(kernel, stride, pad, dilation, ceil, known):
    known = told(known, ceil, dilation * (kernel - 1) + 1, stride, pad)
    checked(
        "MaxPool",
        {"x": spaced(2, 3, 7, 6)},
        lambda x: F.max_pool2d(x, kernel, stride, pad, dilation, bool(ceil)),
        known,
        known == "all" and dilation == 1 and not ceil,
        **window(kernel, stride, pad),
        ceil_mode=ceil,
        dilations=[dilation] * 2,
    )


@pytest.mark.share(3)
@KNOWN
@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize("ceil", [0, 1])
@pytest.mark.parametrize(
    ("kernel", "stride", "pad"), [(2, 2, 0), (3, 2, 1), (3, 1, 1), (2, 3, 0), (4, 3, 2), (3, 3, 1)]
)
def test_average_pool(kernel, stride, pad, ceil, include, known):
    known = told(known, ceil, kernel, stride, pad)
    checked(
        "AveragePool",
        {"x": normal(2, 3, 7, 6)},
        lambda x: F.avg_pool2d(x, kernel, stride, pad, bool(ceil), bool(include)),
        known,
        known == "all" and not ceil and not include,
        **window(kernel, stride, pad),
        ceil_mode=ceil,
        count_include_pad=include,
    )


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize(("kind", "functions"), [("MaxPool", MAX), ("AveragePool", AVERAGE)])
def test_pooling_of_other_ranks(kind, functions, rank):
    kernel, stride = [3, 2, 2][:rank], [2, 1, 2][:rank]
    arrays = {"x": spaced(2, 2, *[6, 5, 7][:rank])}
    checked(kind, arrays, lambda x: functions[rank](x, kernel, stride), "all", kernel_shape=kernel, strides=stride)


@pytest.mark.parametrize("kernel", [[3], [2, 2], [3, 2], [2, 1, 3]])
def test_windows_side_by_side(kernel):
    x, body = spaced(2, 2, *[6, 4, 3][: len(kernel)]), f"y = MaxPool <kernel_shape = {kernel}, strides = {kernel}> (x)"
    check(body, {"x": x}, lambda x: MAX[len(kernel)](x, kernel), symbols(x.shape, "batch"))
    made = with_gradients(network(body, {"x": x}, symbols(x.shape, "batch"), x.ndim), ["x"]).graph.node
    assert not any(node.op_type == "ScatterElements" for node in made)
    assert all(len(node.output) == 1 for node in made if node.op_type == "MaxPool")


def test_windows_side_by_side_in_padding():
    """An element of the border is in a window with elements that are not there."""
    checked("MaxPool", {"x": spaced(2, 2, 6, 4)}, lambda x: F.max_pool2d(x, 2, 2, 1), **window(2, 2, 1))


def test_the_gradient_of_nan_is_not_lost():
    """A step must see it: the finite check looks at gradients."""
    x = np.zeros((1, 1, 4, 4), np.float32)
    x[0, 0, 1, 1] = np.nan
    model = network("y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)", {"x": x}, rank=4)
    found = gradients(model, {"x": x}, ["x"], np.full((1, 1, 2, 2), np.nan, np.float32))["x"]
    assert np.isnan(found[0, 0]).reshape(2, 2, 2, 2).any((1, 3)).all()  # in every window


def test_indices_that_the_model_uses_are_used():
    text = "g (float[N,2,4,4] x) => (float[N,2,2,2] z, int64[N,2,2,2] i) { y, i = MaxPool <kernel_shape = [2, 2], "
    text += "strides = [2, 2]> (x)  z = Mul (y, y) }"
    check(text, {"x": spaced(2, 2, 4, 4)}, lambda x: F.max_pool2d(x, 2) ** 2)


@pytest.mark.parametrize(
    ("body", "function"),
    [
        ("MaxPool <kernel_shape = [3, 3]> (x)", lambda x: F.max_pool2d(x, 3, 1)),
        ("MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)", lambda x: F.max_pool2d(x, 2)),
        ("GlobalMaxPool (x)", lambda x: F.adaptive_max_pool2d(x, 1)),
    ],
)
def test_the_first_of_equal_elements_gets_the_gradient(body, function):
    """As in torch: after Relu whole windows are zero."""
    check(f"y = {body}", {"x": np.zeros((1, 2, 4, 4), np.float32)}, function, differences=False)


@KNOWN
@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
def test_same_padding_of_pools(kind, known):
    """7 in steps of 2 are 4 windows of 3, one more element on either side; 6 are 3, one at the end."""

    def function(x):
        if kind == "MaxPool":
            return F.max_pool2d(F.pad(x, (0, 1, 1, 1), value=-9), 3, 2)
        ones, wide = (F.pad(part, (0, 1, 1, 1)) for part in (x.detach() * 0 + 1, x))
        return F.avg_pool2d(wide, 3, 2) / F.avg_pool2d(ones, 3, 2)

    more = {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": '"SAME_UPPER"'}
    checked(kind, {"x": spaced(2, 2, 7, 6)}, function, known, False, **more)


@KNOWN
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_global_pools(rank, known):
    arrays, axes = {"x": spaced(2, 3, *[4, 5, 2][:rank])}, tuple(range(2, 2 + rank))
    checked("GlobalAveragePool", arrays, lambda x: x.mean(axes, keepdim=True), known)
    checked("GlobalMaxPool", arrays, lambda x: x.amax(axes, keepdim=True), known, rank == 2)


def test_overlapping_windows_over_half_precision():
    """CPU adds nothing below float32."""
    x = np.array([[[0, 1, 2, 0, 1, 0]]], np.float32)
    model = network(
        "l = Cast <to = 10> (x)  m = MaxPool <kernel_shape = [3]> (l)  y = Cast <to = 1> (m)", {"x": x}, rank=3
    )
    found = gradients(model, {"x": x}, ["x"], np.ones((1, 1, 4), np.float32))["x"]
    assert found.tolist() == [[[0, 0, 3, 0, 1, 0]]]


RECTIFIED = "r = Relu (x) p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)"


@KNOWN
@pytest.mark.parametrize("others", [False, True])
def test_max_pool_of_what_is_rectified(others, known):
    """Windows of which no element is positive too; and a Relu that somebody else reads, whose gradient is a sum."""
    x = spaced(2, 3, 8, 6) - np.float32(0.8)
    more = "s = ReduceSum <keepdims = 0> (r) y = Add (p, s)" if others else "y = Identity (p)"

    def function(x):
        return F.max_pool2d(x.relu(), 2) + (x.relu().sum() if others else 0)

    check(f"{RECTIFIED} {more}", {"x": x}, function, symbols(x.shape, known))


def test_the_mask_of_a_relu_is_as_large_as_what_is_pooled():
    """What a Relu reads need not be kept for its gradient."""
    made = with_gradients(network(RECTIFIED.replace("p =", "y ="), {"x": spaced(2, 3, 8, 6)}, rank=4), ["x"])
    [greater] = [node for node in made.graph.node if node.op_type == "Greater"]
    assert greater.input[0] == "y"


# -- Resize -----------------------------------------------------------------------------------------------------------

TORCH = {  # mode -> ONNX's attributes as torch exports them, interpolate's arguments
    "nearest": ('mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"', {}),
    "linear": ('mode = "linear", coordinate_transformation_mode = "pytorch_half_pixel"', {"align_corners": False}),
    "corners": ('mode = "linear", coordinate_transformation_mode = "align_corners"', {"align_corners": True}),
}
LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}
RESIZED = pytest.mark.parametrize("known", ["static", "none"])
NEAREST = TORCH["nearest"][0]


def resized(attributes, x, function, known="static", differences=False, scales=None, sizes=None):
    body = f"y = Resize <{attributes}> (x, {', s' if sizes is None else ', , s'})"
    numbers = np.array((1, 1, *scales), np.float32) if sizes is None else np.array((*x.shape[:2], *sizes))
    check(body, {"x": x}, function, symbols(x.shape, known), {"s": numbers}, differences=differences)


@pytest.mark.share(2)
@RESIZED
@pytest.mark.parametrize("sizes", [[8, 6], [7, 9], [2, 5], [4, 3], [1, 12]], ids=str)
@pytest.mark.parametrize("kind", TORCH)
def test_to_sizes(kind, sizes, known):
    """Larger, smaller, as before, of one element (which torch takes from elsewhere); whole and broken ratios."""
    attributes, arguments = TORCH[kind]
    mode, own = "nearest" if kind == "nearest" else "bilinear", kind == "linear" and 1 in sizes
    function = None if own else lambda x: F.interpolate(x, sizes, mode=mode, **arguments)
    resized(attributes, normal(2, 3, 4, 3), function, known, own or (known == "none" and sizes == [7, 9]), sizes=sizes)


@RESIZED
@pytest.mark.parametrize("scales", [[2.0, 3.0], [1.5, 2.0], [0.5, 1.0], [2.0], [2.0] * 3], ids=str)
@pytest.mark.parametrize("kind", ["nearest", "linear"])
def test_by_scales(kind, scales, known):
    attributes, arguments = TORCH[kind]
    x = normal(2, 3, 4, 6) if len(scales) == 2 else normal(2, 2, *[3, 4, 2][: len(scales)])
    mode = "nearest" if kind == "nearest" else LINEAR[len(scales)]
    resized(
        attributes, x, lambda x: F.interpolate(x, scale_factor=scales, mode=mode, **arguments), known, scales=scales
    )


@pytest.mark.share(2)
@RESIZED
@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize("transform", ["asymmetric", "half_pixel"])
def test_other_roundings(rounding, transform, known):
    """Torch has not these: numerical differences say."""
    attributes = f'mode = "nearest", coordinate_transformation_mode = "{transform}", nearest_mode = "{rounding}"'
    for scales in ([2.0, 3.0], [1.5, 0.5]):
        resized(attributes, normal(2, 2, 4, 6), None, known, True, scales=scales)


FROM_THE_END = needs_runtime("older ones die of a Resize whose axes are counted from the end")


@pytest.mark.parametrize("axes", ["2, 3", pytest.param("2, -1", marks=FROM_THE_END)])
@RESIZED
def test_some_axes_alone(known, axes):
    x, attributes = normal(2, 3, 4, 5), 'mode = "linear", coordinate_transformation_mode = "half_pixel"'
    body, sizes = f"y = Resize <axes = [{axes}], {attributes}> (x, , , s)", {"s": np.array([8, 7])}
    wanted = symbols(x.shape, known)
    check(body, {"x": x}, lambda x: F.interpolate(x, [8, 7], mode="bilinear"), wanted, sizes, differences=False)


def test_sizes_that_the_graph_computes():
    """The size of another input, as in a feature pyramid; 2 to 7 and back are not whole ratios."""
    attributes, arguments = TORCH["linear"]
    body = f"""p = Shape (x)  q = Shape (z)  h = Slice (p, a, b)  t = Slice (q, b, e)  s = Concat <axis = 0> (h, t)
        r = Resize <{attributes}> (x, , , s)  y = Add (r, z)"""
    stored = {"a": np.array([0]), "b": np.array([2]), "e": np.array([9])}
    arrays, dims = {"x": normal(2, 3, 2, 5), "z": normal(2, 3, 7, 4, seed=1)}, {"x": "N,C,S,T", "z": "N,C,U,V"}

    def function(x, z):
        return F.interpolate(x, z.shape[2:], mode="bilinear", **arguments) + z

    check(body, arrays, function, dims, stored, differences=False)
    made = with_gradients(network(body, arrays, dims, 4, stored), ["x"]).graph.node
    assert [node.op_type for node in made].count("MatMul") == 2  # none for batch and channels: those of the data


@pytest.mark.parametrize("dims", ["4,4", "A,B", "A,4"])
@pytest.mark.parametrize("new", [[1, 4], [8, 6]])
def test_sizes_of_the_first_axes(dims, new):
    """No axis is a batch by its place."""
    rows, columns = ([int(n * 4 / size) for n in range(size)] for size in new)
    given = {"x": normal(4, 4), "s": np.array(new)}
    check(f"y = Resize <{NEAREST}> (x, , , s)", given, lambda x, s: x[rows][:, columns], dims)


def test_channels_last():
    sizes = {"s": np.array([2, 4, 6, 3])}
    body, x = f"y = Resize <{NEAREST}> (x, , , s)", normal(2, 2, 3, 3)
    check(body, {"x": x}, lambda x: x.repeat_interleave(2, 1).repeat_interleave(2, 2), "N,H,W,3", sizes)


@pytest.mark.parametrize("dims", ["1,1,4,4", "N,1,4,T", "N,C,S,T"])
@pytest.mark.parametrize("size", [3, 4])
def test_a_scale_that_may_change_no_size(dims, size):
    """ONNX Runtime copies then; 1.3 times 3 is 3, times 4 it is 5."""
    function = (lambda x: x * 1) if size == 3 else (lambda x: F.interpolate(x, scale_factor=1.3, mode="bilinear"))
    body, scales = f"y = Resize <{TORCH['linear'][0]}> (x, , s)", {"s": np.array([1, 1, 1.3, 1.3], np.float32)}
    x = normal(1, 1, size, size)
    check(body, {"x": x}, function, dims.replace("4", str(size)), scales, differences=False)


@pytest.mark.parametrize(
    "attributes",
    ['mode = "cubic"', 'coordinate_transformation_mode = "tf_crop_and_resize"', 'mode = "linear", antialias = 1'],
)
def test_modes_without_a_gradient_are_told(attributes):
    with pytest.raises(AmpError, match="AMP210.*Resize has a gradient for nearest and linear"):
        resized(attributes, normal(1, 1, 4, 4), None, sizes=[8, 8])
