"""Resize against torch's interpolate, and for what torch lacks by numerical differences."""

import itertools

import numpy as np
import pytest
from torch.nn import functional as F

from needs import needs_runtime
from training.gradients import check, model_of, normal, with_gradients

TORCH = {  # mode -> ONNX's attributes as torch exports them, interpolate's arguments
    "nearest": ('mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"', {}),
    "linear": ('mode = "linear", coordinate_transformation_mode = "pytorch_half_pixel"', {"align_corners": False}),
    "corners": ('mode = "linear", coordinate_transformation_mode = "align_corners"', {"align_corners": True}),
}
LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}
SYMBOLS = ["N", "C", "S", "T", "U"]


def text(attributes: str, shape: tuple[int, ...], new: list[int] | list[float], dynamic: bool, scales: bool) -> str:
    rank = len(shape)
    dims = ",".join(SYMBOLS[:rank] if dynamic else map(str, shape))
    result = ",".join(f"R{n}" for n in range(rank))
    if scales:
        numbers = ", ".join(str(float(n)) for n in (1, 1, *new))
        constant, operands = f"<float[{rank}] s = {{{numbers}}}>", "x, , s"
    else:
        numbers = ", ".join(str(int(n)) for n in (*shape[:2], *new))
        constant, operands = f"<int64[{rank}] s = {{{numbers}}}>", "x, , , s"
    return f"g (float[{dims}] x) => (float[{result}] y) {constant} {{ y = Resize <{attributes}> ({operands}) }}"


def mode_of(kind: str, rank: int) -> str:
    return "nearest" if kind == "nearest" else LINEAR[rank]


@pytest.mark.share(2)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("sizes", [[8, 6], [7, 9], [2, 5], [4, 3], [1, 12]], ids=str)
@pytest.mark.parametrize("kind", TORCH)
def test_to_sizes(kind, sizes, dynamic):
    """Larger, smaller, as before, of one element (which torch takes from elsewhere); whole and broken ratios."""
    x, (attributes, arguments) = normal(2, 3, 4, 3), TORCH[kind]
    own = kind == "linear" and 1 in sizes
    check(
        text(attributes, x.shape, sizes, dynamic, scales=False),
        {"x": x},
        None if own else lambda x: F.interpolate(x, sizes, mode=mode_of(kind, 2), **arguments),
        differences=own or (dynamic and sizes == [7, 9]),
    )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("scales", [[2.0, 3.0], [1.5, 2.0], [0.5, 1.0]], ids=str)
@pytest.mark.parametrize("kind", ["nearest", "linear"])
def test_by_scales(kind, scales, dynamic):
    x, (attributes, arguments) = normal(2, 3, 4, 6), TORCH[kind]
    check(
        text(attributes, x.shape, scales, dynamic, scales=True),
        {"x": x},
        lambda x: F.interpolate(x, scale_factor=scales, mode=mode_of(kind, 2), **arguments),
        differences=False,
    )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kind", ["nearest", "linear"])
@pytest.mark.parametrize("rank", [1, 3])
def test_other_ranks(rank, kind, dynamic):
    x, (attributes, arguments) = normal(2, 2, *[3, 4, 2][:rank]), TORCH[kind]
    check(
        text(attributes, x.shape, [2.0] * rank, dynamic, scales=True),
        {"x": x},
        lambda x: F.interpolate(x, scale_factor=[2.0] * rank, mode=mode_of(kind, rank), **arguments),
        differences=False,
    )


@pytest.mark.share(2)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("rounding", "transform"),
    list(itertools.product(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"], ["asymmetric", "half_pixel"])),
)
def test_other_roundings(rounding, transform, dynamic):
    """Torch has not these: numerical differences say."""
    attributes = f'mode = "nearest", coordinate_transformation_mode = "{transform}", nearest_mode = "{rounding}"'
    for scales in ([2.0, 3.0], [1.5, 0.5]):
        check(text(attributes, (2, 2, 4, 6), scales, dynamic, scales=True), {"x": normal(2, 2, 4, 6)}, None)


FROM_THE_END = needs_runtime("older ones die of a Resize whose axes are counted from the end")


@pytest.mark.parametrize("axes", ["2, 3", pytest.param("2, -1", marks=FROM_THE_END)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_some_axes_alone(dynamic, axes):
    dims = "N,C,S,T" if dynamic else "2,3,4,5"
    check(
        f"g (float[{dims}] x) => (float[A,B,D,E] y) <int64[2] s = {{8, 7}}> {{ y = Resize <axes = [{axes}], "
        f'mode = "linear", coordinate_transformation_mode = "half_pixel"> (x, , , s) }}',
        {"x": normal(2, 3, 4, 5)},
        lambda x: F.interpolate(x, [8, 7], mode="bilinear"),
        differences=False,
    )


def test_sizes_that_the_graph_computes():
    """The size of another input, as in a feature pyramid; 2 to 7 and back are not whole ratios."""
    attributes, arguments = TORCH["linear"]
    text = (
        "g (float[N,C,S,T] x, float[N,C,U,V] z) => (float[N,C,U,V] y) <int64[1] a = {0}, int64[1] b = {2}, "
        "int64[1] e = {9}> { p = Shape (x)  q = Shape (z)  h = Slice (p, a, b)  t = Slice (q, b, e)  "
        f"s = Concat <axis = 0> (h, t)  r = Resize <{attributes}> (x, , , s)  y = Add (r, z) }}"
    )
    check(
        text,
        {"x": normal(2, 3, 2, 5), "z": normal(2, 3, 7, 4, seed=1)},
        lambda x, z: F.interpolate(x, z.shape[2:], mode="bilinear", **arguments) + z,
        differences=False,
    )
    made = [node.op_type for node in with_gradients(model_of(text), ["x"]).graph.node]
    assert made.count("MatMul") == 2  # none for batch and channels, which are those of the data


NEAREST = TORCH["nearest"][0]


@pytest.mark.parametrize("dims", ["4,4", "A,B", "A,4"])
def test_sizes_of_the_first_axes(dims):
    """No axis is a batch by its place."""
    text = f"g (float[{dims}] x, int64[2] s) => (float[C,D] y) {{ y = Resize <{NEAREST}> (x, , , s) }}"
    for new in ([1, 4], [8, 6]):
        rows, columns = ([int(n * 4 / size) for n in range(size)] for size in new)
        check(text, {"x": normal(4, 4), "s": np.array(new)}, lambda x, s, r=rows, c=columns: x[r][:, c])


def test_channels_last():
    sizes = "<int64[4] s = {2, 4, 6, 3}>"
    text = f"g (float[N,H,W,3] x) => (float[N,4,6,3] y) {sizes} {{ y = Resize <{NEAREST}> (x, , , s) }}"
    check(text, {"x": normal(2, 2, 3, 3)}, lambda x: x.repeat_interleave(2, 1).repeat_interleave(2, 2))


@pytest.mark.parametrize("dims", ["1,1,4,4", "N,1,4,T", "N,C,S,T"])
@pytest.mark.parametrize("size", [3, 4])
def test_a_scale_that_may_change_no_size(dims, size):
    """ONNX Runtime copies then; 1.3 times 3 is 3, times 4 it is 5."""
    dims = dims.replace("4", str(size))
    text = f"g (float[{dims}] x) => (float[A,B,D,E] y) <float[4] s = {{1, 1, 1.3, 1.3}}> {{ y = Resize "
    function = (lambda x: x) if size == 3 else (lambda x: F.interpolate(x, scale_factor=1.3, mode="bilinear"))
    text += f"<{TORCH['linear'][0]}> (x, , s) }}"
    check(text, {"x": normal(1, 1, size, size)}, function, differences=False)


def test_modes_without_a_gradient_are_told():
    for attributes in (
        'mode = "cubic"',
        'coordinate_transformation_mode = "tf_crop_and_resize"',
        'mode = "linear", antialias = 1',
    ):
        with pytest.raises(Exception, match="AMP210.*Resize has a gradient for nearest and linear"):
            check(text(attributes, (1, 1, 4, 4), [8, 8], False, scales=False), {"x": normal(1, 1, 4, 4)}, None)
