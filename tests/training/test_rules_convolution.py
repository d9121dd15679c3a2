"""Convolution rules: strides, padding, dilations, groups, in one to three dimensions, sizes known or not."""

import itertools

import pytest
import torch
from torch.nn import functional as F

from ampgraph.core.errors import AmpError
from training.gradients import check, gradients, model_of, normal, with_gradients

pytestmark = pytest.mark.slow  # a grid: many small cases

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
DYNAMIC = ["static", "batch", "all"]


def dims(shape: tuple[int, ...], dynamic: str) -> str:
    """The shape of the data in onnx's text form, with its batch or all its sizes as symbols."""
    batch = "N" if dynamic != "static" else str(shape[0])
    sizes = [f"S{n}" for n in range(len(shape) - 2)] if dynamic == "all" else [str(size) for size in shape[2:]]
    return ",".join([batch, str(shape[1]), *sizes])


def fixed(shape: tuple[int, ...]) -> str:
    return ",".join(map(str, shape))


def text(kind: str, x: tuple[int, ...], w: tuple[int, ...], dynamic: str, attributes: str, bias: int = 0) -> str:
    result = ",".join(f"R{n}" for n in range(len(x)))
    more = f", float[{bias}] c" if bias else ""
    operands = "x, w, c" if bias else "x, w"
    return (
        f"g (float[{dims(x, dynamic)}] x, float[{fixed(w)}] w{more}) => (float[{result}] y) "
        f"{{ y = {kind} <{attributes}> ({operands}) }}"
    )


def listed(name: str, numbers: list[int]) -> str:
    return f"{name} = [{fixed(tuple(numbers))}]"


@pytest.mark.share(3)
@pytest.mark.parametrize("dynamic", DYNAMIC)
@pytest.mark.parametrize("group", [1, 2, 4], ids="groups{}".format)
@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "dilation"),
    [(3, 1, 1, 1), (3, 2, 1, 1), (2, 3, 0, 1), (3, 1, 0, 2), (3, 2, 2, 2), (1, 1, 0, 1), (1, 2, 0, 1), (5, 2, 3, 1)],
)
def test_conv(kernel, stride, pad, dilation, group, dynamic):
    x, w, c = normal(2, 4, 8, 9), normal(8, 4 // group, kernel, kernel, seed=1), normal(8, seed=2)
    attributes = [f"group = {group}", listed("strides", [stride] * 2), listed("pads", [pad] * 4)]
    attributes.append(listed("dilations", [dilation] * 2))
    check(
        text("Conv", x.shape, w.shape, dynamic, ", ".join(attributes), 8),
        {"x": x, "w": w, "c": c},
        lambda x, w, c: F.conv2d(x, w, c, stride, pad, dilation, group),
        differences=dynamic == "all" and group == 4,
    )


@pytest.mark.share(2)
@pytest.mark.parametrize("dynamic", DYNAMIC)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [3, 4])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_depthwise(rank, kernel, stride, dynamic):
    x, w = normal(2, 3, *[7, 6, 5][:rank]), normal(3, 1, *[kernel] * rank, seed=1)
    attributes = f"group = 3, {listed('strides', [stride] * rank)}, {listed('pads', [1] * 2 * rank)}"
    check(
        text("Conv", x.shape, w.shape, dynamic, attributes),
        {"x": x, "w": w},
        lambda x, w: CONV[rank](x, w, None, stride, 1, 1, 3),
        differences=rank == 1,
    )


@pytest.mark.parametrize("dynamic", DYNAMIC)
@pytest.mark.parametrize("rank", [1, 3])
def test_other_ranks(rank, dynamic):
    """Another kernel, stride and padding on each axis."""
    strides, pads, kernel = [2, 1, 3][:rank], [1, 0, 2][:rank], [3, 2, 4][:rank]
    x, w, c = normal(2, 4, *[7, 6, 5][:rank]), normal(6, 2, *kernel, seed=1), normal(6, seed=2)
    attributes = f"group = 2, {listed('strides', strides)}, {listed('pads', pads * 2)}"
    check(
        text("Conv", x.shape, w.shape, dynamic, attributes, 6),
        {"x": x, "w": w, "c": c},
        lambda x, w, c: CONV[rank](x, w, c, strides, pads, 1, 2),
    )


@pytest.mark.share(2)
@pytest.mark.parametrize("dynamic", DYNAMIC)
@pytest.mark.parametrize(("before", "after"), [(2, 0), (0, 1), (1, 2)])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_uneven_padding(stride, before, after, dynamic):
    x, w = normal(2, 3, 8), normal(4, 3, 3, seed=1)
    check(
        text("Conv", x.shape, w.shape, dynamic, f"strides = [{stride}], pads = [{before}, {after}]"),
        {"x": x, "w": w},
        lambda x, w: F.conv1d(F.pad(x, (before, after)), w, None, stride),
    )


@pytest.mark.share(2)
@pytest.mark.parametrize("dynamic", DYNAMIC)
@pytest.mark.parametrize("upper", [True, False])
@pytest.mark.parametrize(("stride", "kernel"), list(itertools.product([1, 2, 3], [2, 3])))
def test_auto_pad(stride, kernel, upper, dynamic):
    x, w = normal(2, 3, 8, 7), normal(4, 3, kernel, kernel, seed=1)
    totals = [max((-(-size // stride) - 1) * stride + kernel - size, 0) for size in (8, 7)]
    halves = [(total // 2, total - total // 2)[:: 1 if upper else -1] for total in totals]
    check(
        text(
            "Conv",
            x.shape,
            w.shape,
            dynamic,
            f'strides = [{stride}, {stride}], auto_pad = "SAME_{"UPPER" if upper else "LOWER"}"',
        ),
        {"x": x, "w": w},
        lambda x, w: F.conv2d(F.pad(x, (*halves[1], *halves[0])), w, None, stride),
        differences=dynamic == "all" and upper,
    )


@pytest.mark.share(2)
@pytest.mark.parametrize("dynamic", DYNAMIC)
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "dilation", "extra"),
    [(3, 1, 1, 1, 0), (2, 2, 0, 1, 0), (3, 2, 1, 1, 1), (4, 3, 1, 1, 2), (3, 1, 0, 2, 0), (3, 2, 2, 2, 1)],
)
def test_conv_transpose(kernel, stride, pad, dilation, extra, group, dynamic):
    x, w, c = normal(2, 2, 4, 5), normal(2, 3, kernel, kernel, seed=1), normal(3 * group, seed=2)
    attributes = [f"group = {group}", listed("strides", [stride] * 2), listed("pads", [pad] * 4)]
    attributes += [listed("dilations", [dilation] * 2), listed("output_padding", [extra] * 2)]
    check(
        text("ConvTranspose", x.shape, w.shape, dynamic, ", ".join(attributes), 3 * group),
        {"x": x, "w": w, "c": c},
        lambda x, w, c: F.conv_transpose2d(x, w, c, stride, pad, extra, group, dilation),
        differences=dynamic == "all" and group == 1,  # onnx does not evaluate groups
    )


@pytest.mark.parametrize("dynamic", DYNAMIC)
@pytest.mark.parametrize("rank", [1, 3])
def test_conv_transpose_of_other_ranks(rank, dynamic):
    x, w = normal(2, 2, *[4, 3, 5][:rank]), normal(2, 3, *[3, 2, 2][:rank], seed=1)
    check(
        text("ConvTranspose", x.shape, w.shape, dynamic, listed("strides", [2] * rank)),
        {"x": x, "w": w},
        lambda x, w: TRANSPOSED[rank](x, w, None, 2),
        differences=rank == 1,
    )


def test_conv_transpose_to_a_size_that_is_asked_for():
    """Padding follows from output_shape: 11 of 3 + 4 * 2 is no padding, 10 takes one off the end or the front."""
    x, w = normal(2, 2, 5), normal(2, 3, 3, seed=1)
    for auto, cut in (("SAME_UPPER", slice(0, 10)), ("NOTSET", slice(1, 11))):
        attributes = f'strides = [2], output_shape = [10], auto_pad = "{auto}"'
        check(
            text("ConvTranspose", x.shape, w.shape, "batch", attributes),
            {"x": x, "w": w},
            lambda x, w, cut=cut: F.conv_transpose1d(x, w, None, 2)[:, :, cut],
            differences=False,  # onnx's evaluator refuses output_shape
        )


def test_the_weight_alone_is_differentiated():
    """As in the first layer of a network."""
    model = model_of(text("Conv", (2, 3, 8), (4, 3, 3), "batch", "strides = [1]"))
    x, w, seed = normal(2, 3, 8), normal(4, 3, 3, seed=1), normal(2, 4, 6, seed=3)
    found = gradients(model, {"x": x, "w": w}, ["w"], seed)["w"]
    tensor = torch.tensor(w, requires_grad=True)
    (F.conv1d(torch.tensor(x), tensor) * torch.tensor(seed)).sum().backward()
    torch.testing.assert_close(torch.tensor(found), tensor.grad)


@pytest.mark.parametrize("dynamic", DYNAMIC)
def test_same_padding_with_strides_beyond_the_kernel(dynamic):
    """Up to one element less than nothing it is no padding; beyond, ONNX Runtime starts behind the edge."""
    for auto in ("SAME_UPPER", "SAME_LOWER"):
        attributes = f'auto_pad = "{auto}", strides = [2]'
        x, w = normal(1, 1, 8), normal(1, 1, 1, seed=1)
        check(
            text("Conv", x.shape, w.shape, dynamic, attributes), {"x": x, "w": w}, lambda x, w: F.conv1d(x, w, stride=2)
        )
        with pytest.raises(AmpError, match="AMP210.*auto_pad SAME"):
            with_gradients(model_of(text("Conv", x.shape, w.shape, dynamic, attributes.replace("2", "4"))), ["x"])


def test_a_transposed_convolution_to_fewer_elements_is_refused():
    """onnx infers [1, 1, 4]."""
    shapes = (1, 1, 2, 4, 3), (1, 1, 3, 2, 2)
    with pytest.raises(AmpError, match="AMP212.*the shape of 'y' is not known"):
        made = text("ConvTranspose", *shapes, "static", "output_shape = [4, 3, 3]").replace("R0,R1,R2,R3,R4", "1,1,4")
        with_gradients(model_of(made), ["x"])
