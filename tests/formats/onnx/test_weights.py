"""Stored tensors: rounded once, shared once, streamed from wherever they lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

import ampgraph
from ampgraph.core.arrays import Array
from ampgraph.formats.onnx import weights
from ampgraph.formats.onnx.weights import (
    SHORT,
    ChannelsTensor,
    InFile,
    NormParameters,
    RoundedTensor,
    short_rounded,
    tensor_chunks,
)
from ampgraph.formats.rounding import BLOCK as CHUNK
from ampgraph.formats.rounding import LOW_TYPES
from ampgraph.numerics.strict.session import StrictSession
from ampgraph.planner import assemble
from formats.onnx.helpers import LEVELS, Feeds, convert_everywhere, data, nodes, run_plain, stored, x
from near import difference
from onnx_text import array, parse
from planner.support import casts, converted, decisions, dtype_of, float32_and_low
from private_memory import most_megabytes, needs_proc

SIDE = 600  # a square of this side passes 1 MB
TIED = f"""g (int64[1,3] ids) => (float[1,3,{SIDE}] y, float[1,3,{SIDE}] z) {{
    [gather] e = Gather (table, ids)
    [product] h = MatMul (e, w)
    [tanh] z = Tanh (h)
    [turn] t = Transpose <perm = [1, 0]> (table)
    [head] y = MatMul (h, t) }}"""
PATTERNS: list[tuple[str, ...]] = [(), ("gather",), ("head",), ("turn",), ("op:Gather", "head"), ("turn", "head")]


@pytest.mark.slow
@pytest.mark.parametrize("fp32", PATTERNS)
@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_a_tied_weight_above_1_mb_is_never_stored_twice(fp32: tuple[str, ...], target: str) -> None:
    given = parse(TIED, table=(SIDE, SIDE), w=(SIDE, SIDE))
    result = convert_everywhere(given, None, run=False, bfloat16=False, fp32=fp32, target=target)
    for level in LEVELS:
        held = list(result[level].graph.initializer)
        held += [n.attribute[0].t for n in nodes(result[level]) if n.op_type == "Constant"]
        assert sorted(t.name for t in held) == ["table", "w"], level
        assert fp32 or {t.data_type for t in held} == {TensorProto.FLOAT16}


def test_large_and_small_weights_in_both_types() -> None:
    given = parse(TIED, table=(SIDE, SIDE), w=(SIDE, SIDE))
    convert_everywhere(given, {"ids": np.array([[1, 2, 3]])}, bfloat16=False, levels=("O2",), fp32=("gather",))
    # a small weight read in both types is stored twice
    given = parse(
        "g (float[2,4] x) => (float[2,4] y, float[4,4] z) { y = MatMul (x, w)  z = CumSum (w, axis) }",
        w=(4, 4),
        axis=np.array(0),
    )
    result = convert_everywhere(given, {"x": x(2, 4)}, low=["MatMul"])
    expected = {"w": TensorProto.FLOAT, "w_float16": TensorProto.FLOAT16, "axis": TensorProto.INT64}
    assert all(stored(result[level]) == expected for level in ("O1", "O2"))
    # a large weight read in both types is cast when it runs
    result = convert_everywhere(large_in_both_types(), None, run=False, low=["MatMul"])
    assert stored(result["O2"])["w"] == TensorProto.FLOAT and len(stored(result["O2"])) == 2
    # a large weight read in both types is named
    assert any(n.where == "w" and "1 MB" in n.text for n in ampgraph.plan(large_in_both_types()).notes)


def large_in_both_types() -> ModelProto:
    return parse(
        f"""g (float[2,{SIDE}] x) => (float[2,{SIDE}] y, float[{SIDE},{SIDE}] z) {{
        y = MatMul (x, w)  z = CumSum (w, axis) }}""",
        w=(SIDE, SIDE),
        axis=np.array(0),
    )


def test_constants_in_nodes_are_rounded_too() -> None:
    given = parse(
        """g (float[2,4] x) => (float[2,4] y) {
        k = Constant <value = float[4] {1, 2, 3, 4}> ()  f = Constant <value_float = 0.5> ()
        l = Constant <value_floats = [0.25, 0.5, 1.0, 2.0]> ()
        a = MatMul (x, w)  b = Mul (a, k)  c = Mul (b, f)  d = Add (c, l)  y = MatMul (d, w) }""",
        w=(4, 4),
    )
    result = convert_everywhere(given, {"x": x(2, 4)}, low=["MatMul", "Mul", "Add"])
    found = [helper.get_attribute_value(n.attribute[0]) for n in nodes(result["O2"]) if n.op_type == "Constant"]
    assert [t.data_type for t in found] == [TensorProto.FLOAT16] * 3


# -- external data ----------------------------------------------------------------------------------------------------

CHAIN = "g (float[2,64] x) => (float[2,64] y) { a = MatMul (x, w)  b = MatMul (a, v)  c = Mul (b, k)  y = Softmax (c) }"
WEIGHTS = {"w": (64, 64), "v": (64, 64), "k": (64,)}
FEEDS: Feeds = {"x": x(2, 64)}


def save_external(proto: ModelProto, path: Path, places: dict[str, tuple[str, int]]) -> None:
    """Writes chosen tensors at chosen offsets of chosen files."""
    written: dict[str, bytearray] = {}
    tensors = [*proto.graph.initializer, *(n.attribute[0].t for n in nodes(proto) if n.op_type == "Constant")]
    for tensor in tensors:
        if tensor.name not in places:
            continue
        location, offset = places[tensor.name]
        file = written.setdefault(location, bytearray())
        file.extend(b"\xff" * (offset - len(file)))
        file.extend(tensor.raw_data)
        for key, value in (("location", location), ("offset", offset), ("length", len(tensor.raw_data))):
            tensor.external_data.add(key=key, value=str(value))
        tensor.data_location = TensorProto.EXTERNAL
        tensor.ClearField("raw_data")
    path.parent.mkdir(parents=True, exist_ok=True)
    for location, content in written.items():
        (path.parent / location).write_bytes(content)
    path.write_bytes(data(proto))


def near(path: Path, expected: dict) -> None:
    """The file stands on its own: checker, runtime, strict run."""
    onnx.checker.check_model(str(path), full_check=True)
    for name, value in StrictSession(path, threads=1).run(FEEDS).items():
        assert not difference(expected[name], value)


@pytest.mark.parametrize(
    "places",
    [
        {"w": ("one.data", 0), "v": ("one.data", 64 * 64 * 4), "k": ("one.data", 2 * 64 * 64 * 4)},
        {"w": ("one.data", 3), "v": ("two.data", 1)},
        {"w": ("one.data", 0), "k": ("two.data", 7)},
    ],
    ids=["one file", "two files, unaligned", "a small tensor"],
)
@pytest.mark.parametrize("level", ["O1", "O3"])
def test_external_data_goes_to_another_folder(tmp_path: Path, places: dict, level: str) -> None:
    given = parse(CHAIN, WEIGHTS)
    expected = run_plain(given, FEEDS)
    save_external(given, tmp_path / "in" / "m.onnx", places)
    before = {p.name: p.read_bytes() for p in (tmp_path / "in").iterdir()}
    (tmp_path / "out").mkdir()
    out = tmp_path / "out" / "m.onnx"
    ampgraph.convert(tmp_path / "in" / "m.onnx", level, target="cpu", output=out)
    near(out, expected)
    assert {p.name: p.read_bytes() for p in (tmp_path / "in").iterdir()} == before
    first = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    assert len(first) == 2
    ampgraph.convert(tmp_path / "in" / "m.onnx", level, target="cpu", output=out)
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == first, "the same bytes, and no second file"


def test_small_external_tensors_that_stay_float32_come_along(tmp_path: Path) -> None:
    given = parse(CHAIN.replace("Mul (b, k)", "Mod <fmod = 1> (b, k)"), WEIGHTS)
    save_external(given, tmp_path / "in" / "m.onnx", {"k": ("small.data", 5)})
    (tmp_path / "out").mkdir()
    ampgraph.convert(tmp_path / "in" / "m.onnx", "O1", target="cpu", output=tmp_path / "out" / "m.onnx")
    onnx.checker.check_model(str(tmp_path / "out" / "m.onnx"), full_check=True)


@pytest.mark.parametrize("kind", ["float", "int64"])
def test_external_constants_in_nodes(tmp_path: Path, kind: str) -> None:
    text = CHAIN if kind == "float" else CHAIN.replace("Mul (b, k)", "Gather <axis = 1> (b, k)")
    values = array((64,), "k") if kind == "float" else np.arange(64, dtype=np.int64)[::-1].copy()
    given = parse(text, w=(64, 64), v=(64, 64))
    given.graph.node.insert(0, helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(values, "k")))
    expected = run_plain(given, FEEDS)
    save_external(given, tmp_path / "in" / "m.onnx", {"k": ("k.data", 0), "w": ("w.data", 0)})
    (tmp_path / "out").mkdir()
    ampgraph.convert(tmp_path / "in" / "m.onnx", "O2", target="cpu", output=tmp_path / "out" / "m.onnx")
    near(tmp_path / "out" / "m.onnx", expected)


def test_external_constants_in_functions(tmp_path: Path) -> None:
    given = parse(
        "g (float[2,64] x) => (float[2,64] y) { a = MatMul (x, w)  y = loc.f (a) }",
        functions='<domain: "loc", opset_import: ["" : 17]> f (a) => (b) { k = Constant ()  b = MatMul (a, k) }',
        domains=["loc"],
        w=(64, 64),
    )
    tensor = numpy_helper.from_array(array((64, 64), "k"), "k")
    given.functions[0].node[0].attribute.append(helper.make_attribute("value", tensor))
    expected = run_plain(given, FEEDS)
    save_external(given, tmp_path / "in" / "m.onnx", {"k": ("k.data", 0)})
    (tmp_path / "out").mkdir()
    out = tmp_path / "out" / "m.onnx"
    ampgraph.convert(tmp_path / "in" / "m.onnx", "O2", target="cpu", output=out)
    beside = onnx.load(out, load_external_data=False)
    inner = next(n for n in beside.functions[0].node if n.op_type == "Constant").attribute[0].t
    locations = {e.value for e in inner.external_data if e.key == "location"}
    assert inner.data_type == TensorProto.FLOAT16 and locations == {p.name for p in out.parent.iterdir() if p != out}
    assert not difference(expected["y"], run_plain(onnx.load(out), FEEDS)["y"])


# -- more than 2 GB ---------------------------------------------------------------------------------------------------


@pytest.mark.conformance
@needs_proc
def test_a_model_over_2_gb_is_streamed(tmp_path: Path) -> None:
    """11 weights of 200 MB, zeros in a sparse file: 2.2 GB in, 1.1 GB out, under 300 MB of memory of its own."""
    count, rows, columns = 11, 5000, 10000
    names = [f"w{i}" for i in range(count)]
    total = " ".join(f"a{i} = MatMul (x, {name})" for i, name in enumerate(names))
    sums = ", ".join(f"a{i}" for i in range(count))
    given = parse(f"g (float[1,{rows}] x) => (float[1,{columns}] y) {{ {total}  y = Sum ({sums}) }}")
    size = rows * columns * 4
    for i, name in enumerate(names):
        tensor = given.graph.initializer.add(name=name, data_type=TensorProto.FLOAT, dims=[rows, columns])
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "zeros.data"), ("offset", i * size), ("length", size)):
            tensor.external_data.add(key=key, value=str(value))
    with open(tmp_path / "zeros.data", "wb") as file:
        file.truncate(count * size)
    (tmp_path / "m.onnx").write_bytes(data(given))
    (tmp_path / "out").mkdir()
    converted = 'import ampgraph; ampgraph.convert(source, "O2", target="cuda", output=target)'
    assert most_megabytes(converted, tmp_path / "m.onnx", tmp_path / "out" / "m.onnx") < 300
    written = {p.name: p.stat().st_size for p in (tmp_path / "out").iterdir()}
    assert len(written) == 2 and count * size // 2 <= sum(written.values()) < count * size // 2 + (1 << 20)
    onnx.checker.check_model(str(tmp_path / "out" / "m.onnx"))
    assert set(stored(onnx.load(tmp_path / "out" / "m.onnx", load_external_data=False)).values()) == {
        TensorProto.FLOAT16
    }


@pytest.mark.parametrize("far", [-1e30, 1e30])
def test_a_mask_is_floored_where_nothing_in_all_of_it_is_above_the_range(far: float) -> None:
    columns = 3 * CHUNK
    given = parse(f"g (float[1,{columns}] x) => (float[1,{columns}] y) {{ masked = Add (x, m)  y = Softmax (masked) }}")
    mask = np.zeros((1, columns), np.float32)
    mask[0, 0], mask[0, -1] = -1e30, far
    given.graph.initializer.append(numpy_helper.from_array(mask, "m"))
    stored = {edit.value: edit.store for edit in ampgraph.plan(given, "O3").weights}
    assert stored == ({"m": "low"} if far < 0 else {})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_pieces_in_one_place_are_the_whole(dtype: str) -> None:
    numbers = np.random.default_rng(3).standard_normal((3, CHUNK // 2 + 7)).astype(np.float32)
    numbers[0, :3] = np.inf, np.nan, 1e9
    tensor = RoundedTensor(ir.tensor(numbers), dtype)
    with np.errstate(over="ignore"):
        expected = numbers.astype(LOW_TYPES[dtype]).tobytes()
    pieces = [bytes(piece) for piece in tensor_chunks(tensor)]
    assert len(pieces) == 2 and b"".join(pieces) == expected == tensor.tobytes() == tensor.numpy().tobytes()


def test_the_data_of_a_weight_is_read_twice_for_its_range_and_to_be_rounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large: each pass goes through a weight once, and the first one of a weight that stays is its last."""
    reads: list[str | None] = []
    flat = weights.flat

    def counted(tensor: ir.TensorProtocol) -> Array:
        reads.append(tensor.name)
        return flat(tensor)

    text = "g (float[1,300] a) => (float[1,300] y) { h = MatMul (a, low)  t = MatMul (h, wide)  y = Relu (t) }"
    source = tmp_path / "model.onnx"
    low, wide = np.ones((300, 300), np.float32), np.full((300, 300), 1e6, np.float32)
    onnx.save(parse(text, low=low, wide=wide), source)
    monkeypatch.setattr(weights, "flat", counted)
    ampgraph.convert(source, "O2", output=tmp_path / "low.onnx", check="off")
    assert sorted(map(str, reads)) == ["low", "low", "wide"]


# Short stored tensors are rounded together, each as if it were alone.

FLOATS = st.integers(0, 2**32 - 1).map(lambda bits: np.uint32(bits).view(np.float32))
ROWS = st.lists(FLOATS, max_size=5).map(lambda row: np.array(row, np.float32))
TYPES = st.sampled_from(["float16", "bfloat16", "float32"])


def rounded(data: Array, dtype: str = "float16", floor: float | None = None) -> RoundedTensor:
    return RoundedTensor(InFile(numpy_helper.from_array(data)), dtype, floor)


@settings(max_examples=40)
@given(st.lists(st.tuples(ROWS, TYPES), max_size=6), st.booleans())
def test_each_is_as_if_it_were_alone(drawn: list[tuple[Array, str]], long: bool) -> None:
    """``long``: with so many elements that blocks of them are rounded in another way than a few."""
    sizes = [(np.linspace(-7e4, 6e4, SHORT, dtype=np.float32), "float16")] * 3 if long else []
    tensors = [rounded(data, dtype) for data, dtype in drawn + sizes]
    found = short_rounded(tensors)
    assert {id(tensor) for tensor in tensors if tensor.size} == found.keys()
    assert all(bytes(found[id(tensor)]) == tensor.tobytes() for tensor in tensors if tensor.size)


def longer() -> RoundedTensor:
    return rounded(np.ones(SHORT + 1, np.float32))


def floored() -> RoundedTensor:
    return rounded(np.full(3, -1e9, np.float32), floor=-6e4)


def computed() -> RoundedTensor:
    return RoundedTensor(ir.tensor(np.ones(3, np.float32)), "float16")


def in_numbers() -> RoundedTensor:
    """Not as raw bytes."""
    proto = parse("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add (x, w) }").graph.initializer[0]
    proto.ClearField("raw_data")
    proto.float_data[:] = [1, 2]
    return RoundedTensor(InFile(proto), "float16")


@pytest.mark.parametrize("make", [longer, floored, computed, in_numbers])
def test_what_is_not_short_or_not_only_rounded_is_left_out(make: object) -> None:
    assert callable(make)
    assert short_rounded([make(), None, ir.tensor([1.0])]) == {}


# Parameters of BatchNormalization are rounded together: what they compute stays what float32 parameters compute.

EPSILON = 1e-5
NormArray = np.ndarray


def norm_computed(parameters: list[NormArray]) -> tuple[NormArray, NormArray]:
    """Factor and shift of a norm."""
    scale, bias, mean, var = (part.astype(np.float64) for part in parameters)
    factor = scale / np.sqrt(var + EPSILON)
    return factor, bias - factor * mean


def errors(parameters: list[NormArray], low: list[NormArray]) -> tuple[float, float]:
    """How far factor and shift are from those of float32 parameters, by the largest of each."""
    (factor, shift), (low_factor, low_shift) = norm_computed(parameters), norm_computed(low)
    return tuple(  # type: ignore[return-value]
        float(np.abs(found - wanted).max() / max(np.abs(wanted).max(), 1e-9))
        for found, wanted in ((low_factor, factor), (low_shift, shift))
    )


def drawn(seed: int, channels: int = 16) -> list[NormArray]:
    random = np.random.default_rng(seed)
    var = np.exp(random.uniform(-9, 6, channels))
    mean = np.sqrt(var) * random.normal(0, 8, channels)
    parts = [random.normal(1, 0.5, channels), random.normal(0, 1, channels), mean, var]
    return [part.astype(np.float32) for part in parts]


@given(st.integers(0, 10_000), st.sampled_from(["float16", "bfloat16"]))
def test_nothing_is_worse_than_rounding_one_by_one(seed: int, dtype: str) -> None:
    parameters = drawn(seed)
    low = LOW_TYPES[dtype]
    together = NormParameters([ir.tensor(part) for part in parameters], EPSILON, dtype).rounded
    assert [part.dtype for part in together] == [low] * 4
    assert all(np.isfinite(part.astype(np.float32)).all() for part in together)
    assert (together[3].astype(np.float32) >= 0).all()
    apart = [part.astype(low) for part in parameters]
    for better, worse in zip(errors(parameters, together), errors(parameters, apart), strict=True):
        assert better <= worse / 2


def test_parameters_of_norms_that_are_rounded_one_by_one() -> None:
    parameters = [np.array(row, np.float32) for row in ([1, 2, 0], [0.5, 0, -1], [0, 3, 8], [1, 4, 0.25])]
    sources = [ir.tensor(part) for part in parameters]
    for exact, low in zip(parameters, NormParameters(sources, 0.0, "float16").rounded, strict=True):
        np.testing.assert_array_equal(exact, low)
    # beyond the range they are rounded one by one
    parameters = [np.array([x], np.float32) for x in (1, 0, 0, 1e6)]
    assert np.isinf(NormParameters([ir.tensor(part) for part in parameters], EPSILON, "float16").rounded[3])
    # parameters that others read are rounded one by one
    model = network()
    model.graph.node[1].input[2] = model.graph.node[4].input[2]  # two norms share a bias
    stored = {i.name: numpy_helper.to_array(i) for i in converted(model, "O2").graph.initializer}
    given = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    for name in ("m0", "m1"):
        np.testing.assert_array_equal(stored[name], given[name].astype(np.float16))
    assert (stored["m2"] != given["m2"].astype(np.float16)).any()
    # a norm that trains stays float32
    text = """g (float[4,8,9,9] x, float[8] s, float[8] b, float[8] m, float[8] v, float[8,8,1,1] w)
        => (float[4,8,9,9] y, float[8] r, float[8] t)
        { c = Conv (x, w)  n, r, t = BatchNormalization <training_mode = 1> (c, s, b, m, v)  y = Relu (n) }"""
    assert dtype_of(converted(parse(text, opset=14), "O2"), "BatchNormalization") == "f32"


LAYERS = 6


def network(opset: int = 13) -> ModelProto:
    """Convolutions, each with a norm whose means are far from zero, as trained ones are."""
    random = np.random.default_rng(5)
    weights: dict[str, Any] = {}
    text, value = "", "x"
    for n in range(LAYERS):
        weights[f"w{n}"] = random.normal(0, 0.3, (8, 8, 1, 1)).astype(np.float32)
        weights[f"s{n}"], weights[f"b{n}"] = (random.normal(m, 0.2, 8).astype(np.float32) for m in (1, 0))
        weights[f"v{n}"] = random.uniform(0.01, 0.1, 8).astype(np.float32)
        weights[f"m{n}"] = random.normal(0, 1, 8).astype(np.float32)
        text += f"c{n} = Conv ({value}, w{n})  n{n} = BatchNormalization (c{n}, s{n}, b{n}, m{n}, v{n})  "
        value = f"r{n}"
        text += f"{value} = Relu (n{n})  " if n < LAYERS - 1 else ""
    return parse(f"g (float[1,8,9,9] x) => (float[1,8,9,9] n{LAYERS - 1}) {{ {text} }}", weights, opset=opset)


@pytest.mark.parametrize("opset", [8, 13, 17])
@pytest.mark.parametrize("level", ["O2", "auto"])
def test_a_norm_of_stored_statistics_is_low_beside_low(level: str, opset: int) -> None:
    model = network(opset)
    result = converted(model, level)
    assert dtype_of(result, "BatchNormalization") == "f16", decisions(result)
    assert casts(result) == 2


def test_the_shift_of_far_means_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs are numbers of the low type: what is wrong comes of the parameters, and of one rounding at the end."""
    random = np.random.default_rng(7)
    weights = {
        "w": np.eye(8, dtype=np.float32).reshape(8, 8, 1, 1),
        "s": random.normal(1, 0.2, 8).astype(np.float32),
        "b": random.normal(0, 0.2, 8).astype(np.float32),
        "m": random.uniform(3, 4, 8).astype(np.float32),
        "v": random.uniform(0.01, 0.02, 8).astype(np.float32),
    }
    text = "g (float[1,8,9,9] x) => (float[1,8,9,9] y) { c = Conv (x, w)  y = BatchNormalization (c, s, b, m, v) }"
    noise = random.normal(0, 0.1, (1, 8, 9, 9)) + weights["m"].reshape(1, 8, 1, 1)
    feeds = {"x": noise.astype(np.float16).astype(np.float32)}

    def error() -> float:
        reference, result = float32_and_low(parse(text, weights, opset=13), feeds, "O2")
        return float(np.linalg.norm(result["y"] - reference["y"]) / np.linalg.norm(reference["y"]))

    together = error()
    assert together < 3e-4
    monkeypatch.setattr(assemble, "rounded_together", lambda *given: [])
    assert error() > 5 * together


@pytest.mark.parametrize("factor", [1.0, 0.3])
def test_channels_are_rounded_with_their_factor_and_biases(factor: float) -> None:
    numbers = np.random.default_rng(2).normal(0.03, 0.1, (40, 4, 5)).astype(np.float32)
    numbers[0, 1, 2], numbers[0, 3, 4] = np.inf, np.nan
    biases = np.array([1, 3.0009, *[0] * 38], np.float32)
    plain, bias = (RoundedTensor(ir.tensor(array), "float16", factor=factor) for array in (numbers, biases))
    alone, beside = ChannelsTensor(plain, None, "float16"), ChannelsTensor(plain, bias, "float16")
    assert alone.dims == (40, 4, 5) and alone.factor == factor and alone.tobytes() == alone.whole().tobytes()
    rows, shifted, rounded_rows = (tensor.whole().reshape(40, -1) for tensor in (alone, beside, plain))
    np.testing.assert_array_equal(rows[0], rounded_rows[0])
    exact = numbers.reshape(40, -1)[1:].astype(np.float64) * factor
    off, plainly = (part[1:].astype(np.float64) - exact for part in (rows, rounded_rows))
    assert np.abs(off.sum(1)).mean() < 0.8 * np.abs(plainly.sum(1)).mean()
    moved = (shifted[1].astype(np.float64) / exact[0]).mean() - (rows[1].astype(np.float64) / exact[0]).mean()
    assert moved * (bias.whole()[1] - biases[1] * factor) > 0  # as the bias is
    np.testing.assert_array_equal(shifted[2:], rows[2:])
