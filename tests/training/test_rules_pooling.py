"""Pooling rules: windows that overlap or not, padding, dilations, rounding up, sizes known or not."""

import numpy as np
import pytest
from torch.nn import functional as F

from training.gradients import check, gradients, model_of, normal, with_gradients

DYNAMIC = ["static", "batch", "all"]
MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVERAGE = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def text(kind: str, shape: tuple[int, ...], dynamic: str, attributes: str = "") -> str:
    batch = "N" if dynamic != "static" else str(shape[0])
    sizes = [f"S{n}" if dynamic == "all" else str(size) for n, size in enumerate(shape[2:])]
    dims = ",".join([batch, str(shape[1]), *sizes])
    result = ",".join(f"R{n}" for n in range(len(shape)))
    return f"g (float[{dims}] x) => (float[{result}] y) {{ y = {kind} {attributes} (x) }}"


def window(kernel: list[int], stride: list[int], pad: list[int], more: str = "") -> str:
    return f"<kernel_shape = {kernel}, strides = {stride}, pads = {pad}{more}>"


def told(dynamic: str, ceil: int, kernel: int, stride: int, pad: int) -> str:
    """Sizes that onnx infers right: rounding up it counts windows that begin in the padding, which do not run."""
    beyond = any(-(-(size + 2 * pad - kernel) // stride) * stride >= size + pad for size in (7, 6))
    return "all" if ceil and beyond else dynamic


def spaced(*shape: int) -> np.ndarray:
    """No two elements are close, so that a small step never changes which is the largest."""
    size = int(np.prod(shape))
    return np.random.default_rng(0).permutation(size).reshape(shape).astype(np.float32) / size


@pytest.mark.parametrize("dynamic", DYNAMIC)
@pytest.mark.parametrize("ceil", [0, 1])
@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "dilation"), [(2, 2, 0, 1), (3, 2, 1, 1), (3, 1, 1, 1), (2, 3, 0, 1), (2, 2, 1, 2)]
)
def test_max_pool(kernel, stride, pad, dilation, ceil, dynamic):
    x, reach = spaced(2, 3, 7, 6), dilation * (kernel - 1) + 1
    dynamic = told(dynamic, ceil, reach, stride, pad)
    more = f", ceil_mode = {ceil}, dilations = [{dilation}, {dilation}]"
    check(
        text("MaxPool", x.shape, dynamic, window([kernel] * 2, [stride] * 2, [pad] * 4, more)),
        {"x": x},
        lambda x: F.max_pool2d(x, kernel, stride, pad, dilation, bool(ceil)),
        differences=dynamic == "all" and dilation == 1 and not ceil,
    )


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
def test_other_ranks(kind, rank):
    x = spaced(2, 2, *[6, 5, 7][:rank])
    function = (MAX if kind == "MaxPool" else AVERAGE)[rank]
    check(
        text(kind, x.shape, "all", window([3, 2, 2][:rank], [2, 1, 2][:rank], [0] * 2 * rank)),
        {"x": x},
        lambda x: function(x, [3, 2, 2][:rank], [2, 1, 2][:rank]),
    )


@pytest.mark.parametrize("kernel", [[3], [2, 2], [3, 2], [2, 1, 3]])
def test_windows_side_by_side(kernel):
    x = spaced(2, 2, *[6, 4, 3][: len(kernel)])
    shape = ["N", *map(str, x.shape[1:])]
    given = window(kernel, kernel, [0] * 2 * len(kernel))
    checked = (
        f"g (float[{','.join(shape)}] x) => (float[{','.join('NCDEF'[: x.ndim])}] y) {{ y = MaxPool {given} (x) }}"
    )
    check(checked, {"x": x}, lambda x: MAX[len(kernel)](x, kernel))
    made = with_gradients(model_of(checked), ["x"]).graph.node
    assert not any(node.op_type == "ScatterElements" for node in made)
    assert all(len(node.output) == 1 for node in made if node.op_type == "MaxPool")


def test_windows_side_by_side_in_padding():
    """An element of the border is in a window with elements that are not there."""
    x = spaced(2, 2, 6, 4)
    given = window([2, 2], [2, 2], [1, 1, 1, 1])
    check(text("MaxPool", x.shape, "static", given), {"x": x}, lambda x: F.max_pool2d(x, 2, 2, 1))


def test_the_gradient_of_nan_is_not_lost():
    """A step must see it: the finite check looks at gradients."""
    x = np.zeros((1, 1, 4, 4), np.float32)
    x[0, 0, 1, 1] = np.nan
    model = model_of(text("MaxPool", x.shape, "static", window([2, 2], [2, 2], [0] * 4)))
    found = gradients(model, {"x": x}, ["x"], np.full((1, 1, 2, 2), np.nan, np.float32))["x"]
    assert np.isnan(found[0, 0, :2, :2]).sum() == 1 and np.isnan(found).sum() == 4


def test_indices_that_the_model_uses_are_used():
    x = spaced(2, 2, 4, 4)
    check(
        "g (float[N,2,4,4] x) => (float[N,2,2,2] z, int64[N,2,2,2] i) "
        "{ y, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)  z = Mul (y, y) }",
        {"x": x},
        lambda x: F.max_pool2d(x, 2) ** 2,
    )


def test_the_first_of_equal_elements_gets_the_gradient():
    """As in torch: after Relu whole windows are zero."""
    x = np.zeros((1, 2, 4, 4), np.float32)
    for kind, function in (
        ("MaxPool <kernel_shape = [3, 3]>", lambda x: F.max_pool2d(x, 3, 1)),
        ("MaxPool <kernel_shape = [2, 2], strides = [2, 2]>", lambda x: F.max_pool2d(x, 2)),
        ("GlobalMaxPool", lambda x: F.adaptive_max_pool2d(x, 1)),
    ):
        name, _, attributes = kind.partition(" ")
        check(text(name, x.shape, "static", attributes), {"x": x}, function, differences=False)


@pytest.mark.share(3)
@pytest.mark.parametrize("dynamic", DYNAMIC)
@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize("ceil", [0, 1])
@pytest.mark.parametrize(
    ("kernel", "stride", "pad"), [(2, 2, 0), (3, 2, 1), (3, 1, 1), (2, 3, 0), (4, 3, 2), (3, 3, 1)]
)
def test_average_pool(kernel, stride, pad, ceil, include, dynamic):
    x, dynamic = normal(2, 3, 7, 6), told(dynamic, ceil, kernel, stride, pad)
    more = f", ceil_mode = {ceil}, count_include_pad = {include}"
    check(
        text("AveragePool", x.shape, dynamic, window([kernel] * 2, [stride] * 2, [pad] * 4, more)),
        {"x": x},
        lambda x: F.avg_pool2d(x, kernel, stride, pad, bool(ceil), bool(include)),
        differences=dynamic == "all" and not ceil and not include,
    )


@pytest.mark.parametrize("dynamic", DYNAMIC)
def test_auto_pad(dynamic):
    """SAME_UPPER: 7 in steps of 2 are 4 windows of 3, one more element on either side; 6 are 3, one at the end."""
    x = spaced(2, 2, 7, 6)
    attributes = '<kernel_shape = [3, 3], strides = [2, 2], auto_pad = "SAME_UPPER">'
    padded = (0, 1, 1, 1)
    check(
        text("MaxPool", x.shape, dynamic, attributes),
        {"x": x},
        lambda x: F.max_pool2d(F.pad(x, padded, value=-9), 3, 2),
        differences=False,
    )

    def average(x):
        ones = F.pad(x.detach() * 0 + 1, padded)
        return F.avg_pool2d(F.pad(x, padded), 3, 2) / F.avg_pool2d(ones, 3, 2)

    check(text("AveragePool", x.shape, dynamic, attributes), {"x": x}, average, differences=False)


@pytest.mark.parametrize("dynamic", DYNAMIC)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_global(rank, dynamic):
    x = spaced(2, 3, *[4, 5, 2][:rank])
    axes = tuple(range(2, 2 + rank))
    check(text("GlobalAveragePool", x.shape, dynamic), {"x": x}, lambda x: x.mean(axes, keepdim=True))
    check(
        text("GlobalMaxPool", x.shape, dynamic), {"x": x}, lambda x: x.amax(axes, keepdim=True), differences=rank == 2
    )


def test_overlapping_windows_over_half_precision():
    """CPU adds nothing below float32."""
    text = (
        "g (float[1,1,6] x) => (float[1,1,4] y) { l = Cast <to = 10> (x)  m = MaxPool <kernel_shape = [3]> (l)  "
        "y = Cast <to = 1> (m) }"
    )
    x = np.array([[[0, 1, 2, 0, 1, 0]]], np.float32)
    found = gradients(model_of(text), {"x": x}, ["x"], np.ones((1, 1, 4), np.float32))["x"]
    assert found.tolist() == [[[0, 0, 3, 0, 1, 0]]]


@pytest.mark.parametrize("dynamic", DYNAMIC)
@pytest.mark.parametrize("others", [False, True])
def test_max_pool_of_what_is_rectified(others, dynamic):
    """Windows of which no element is positive too; and a Relu that somebody else reads, whose gradient is a sum."""
    x = spaced(2, 3, 8, 6) - np.float32(0.8)
    batch = "N" if dynamic != "static" else "2"
    sizes = "S0,S1" if dynamic == "all" else "8,6"
    more = "s = ReduceSum <keepdims = 0> (r) y = Add (p, s)" if others else "y = Identity (p)"
    check(
        f"g (float[{batch},3,{sizes}] x) => (float[R0,R1,R2,R3] y) {{ r = Relu (x) "
        f"p = MaxPool {window([2] * 2, [2] * 2, [0] * 4)} (r) {more} }}",
        {"x": x},
        lambda x: F.max_pool2d(x.relu(), 2) + (x.relu().sum() if others else 0),
    )


def test_the_mask_of_a_relu_is_as_large_as_what_is_pooled():
    """What a Relu reads need not be kept for its gradient."""
    pool = f"MaxPool {window([2] * 2, [2] * 2, [0] * 4)} (r)"
    text = f"g (float[2,3,8,6] x) => (float[R0,R1,R2,R3] y) {{ r = Relu (x) y = {pool} }}"
    made = with_gradients(model_of(text), ["x"])
    [greater] = [node for node in made.graph.node if node.op_type == "Greater"]
    assert greater.input[0] == "y"
