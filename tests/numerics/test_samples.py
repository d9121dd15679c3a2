"""Samples: what files, mappings and iterables hold, how one file becomes several samples, and what is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import ModelProto

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.numerics.inputs.samples import MOST, load_samples
from onnx_text import parse


def model(inputs: str = "float[1, 3] x", nodes: str = "y = Identity(x)", output: str = "float[1, 3] y") -> ModelProto:
    return parse(f"g ({inputs}) => ({output}) {{ {nodes} }}")


def rows(count: int, columns: int = 3) -> np.ndarray:
    return np.arange(count * columns, dtype=np.float32).reshape(count, columns)


def same(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> bool:
    return list(one) == list(two) and all(
        one[name].dtype == two[name].dtype and np.array_equal(one[name], two[name]) for name in one
    )


def refusal(code: str, made: ModelProto, data: Any, *words: str, **more: Any) -> AmpError:
    with pytest.raises(AmpError) as caught:
        list(load_samples(made, data, **more))
    assert caught.value.code == code, caught.value
    assert caught.value.hint
    for word in words:
        assert word in str(caught.value), caught.value
    return caught.value


# Samples: what files, mappings and iterables hold, and how one file becomes several samples.

MODELS = Path(__file__).resolve().parents[2] / "models"


# -- how many samples -------------------------------------------------------------------------------------------------


def test_rows_and_samples(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=rows(1))
    found = load_samples(model(), tmp_path / "x.npz")
    assert len(found) == 1 and not found.generated
    assert same(next(iter(found)), {"x": rows(1)})
    assert found.notes == (f"1 sample from {tmp_path / 'x.npz'}",)
    # rows beyond a fixed batch are samples
    np.savez(tmp_path / "x.npz", x=rows(6))
    two = model("float[2, 3] x", output="float[2, 3] y")
    found = load_samples(two, str(tmp_path / "x.npz"))
    assert len(found) == 3
    assert [item["x"].tolist() for item in found] == [rows(6)[k : k + 2].tolist() for k in (0, 2, 4)]


def test_what_is_one_sample() -> None:
    open_batch = model("float[n, 3] x, float[n, 3] z", "y = Add(x, z)", "float[n, 3] y")
    stacked = {"x": rows(8).reshape(4, 2, 3), "z": rows(8).reshape(4, 2, 3) + 1}
    found = load_samples(open_batch, stacked)
    assert len(found) == 4
    assert all(item["x"].shape == (2, 3) and (item["z"] == item["x"] + 1).all() for item in found)
    # rows of an open batch are one sample
    found = load_samples(MODELS / "digits_transformer.onnx", MODELS / "digits_heldout.npz")
    assert [item["image"].shape for item in found] == [(360, 1, 8, 8)]
    assert found.notes[1] == "left out, as no input has the name: labels"
    # scalars can be stacked and a shape that the file does not say is never split
    scalar = model("float[1, 3] x, float s", "y = Mul(x, s)")
    found = load_samples(scalar, {"x": rows(2), "s": np.array([1, 2], np.float32)})
    assert [item["s"].shape for item in found] == [(), ()]
    anything = model()
    anything.graph.input[0].type.tensor_type.ClearField("shape")
    assert [item["x"].shape for item in load_samples(anything, {"x": np.ones(5, np.float32)})] == [(5,)]
    # infinities are let through
    array = np.array([[0, -np.inf, np.inf]], np.float32)
    assert same(next(iter(load_samples(model(), {"x": array}))), {"x": array})


def test_files_and_folders(tmp_path: Path) -> None:
    found = load_samples(model(), {"x": rows(6)}, 2)
    assert len(found) == 2 and len(list(found)) == 2
    assert found.notes == ("2 samples from data (of 6)",)
    assert len(load_samples(model(), {"x": rows(6)}, 9)) == 6
    for name in "cab":
        np.savez(tmp_path / f"{name}.npz", x=rows(1) + ord(name))
    assert [item["x"][0, 0] for item in load_samples(model(), tmp_path, 2)] == [ord("a"), ord("b")]
    # a folder is read in the order of names and again
    folder = tmp_path / "labelled"
    folder.mkdir()
    for number in (2, 0, 1):
        np.savez(folder / f"s{number}.npz", x=rows(1) + number, label=np.array(number))
    (folder / "notes.txt").write_text("no sample")
    found = load_samples(model(), folder)
    assert len(found) == 3
    assert [item["x"][0, 0] for item in found] == [0, 1, 2] == [item["x"][0, 0] for item in found]
    assert found.notes == (f"3 samples from {folder}", "left out, as no input has the name: label")


# -- sources ----------------------------------------------------------------------------------------------------------


class Shuffled:
    """As a DataLoader with shuffle: sized, and in another order each time."""

    def __init__(self, count: int = 6) -> None:
        self.order, self.starts = np.random.default_rng(0), 0
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Any:
        self.starts += 1
        return iter([{"x": rows(1) + int(k)} for k in self.order.permutation(self.count)])


class OneShot:
    """Sized, and can be read once."""

    def __init__(self) -> None:
        self.left = iter([{"x": rows(1) + k} for k in range(4)])

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Any:
        return self.left


@pytest.mark.parametrize("count", [None, 3])
def test_what_changes_between_passes_is_read_once(count: int | None) -> None:
    given = Shuffled()
    found = load_samples(model(), given, count)
    first, second = ([item["x"][0, 0] for item in found] for _ in range(2))
    assert first == second and len(first) == len(found) == (count or 6) and given.starts == 1
    assert len(set(first)) == len(first)
    assert found.notes[0] == ("3 samples from the iterable (of 6)" if count else "6 samples from the iterable")
    once = load_samples(model(), OneShot(), count)
    for _ in range(2):
        assert [item["x"][0, 0] for item in once] == list(range(count or 4))


def test_generators() -> None:
    given = Shuffled(3)
    given.__class__ = type("Longer", (Shuffled,), {"__len__": lambda _: 9})
    assert len(load_samples(model(), given)) == 3 == len(list(load_samples(model(), given)))

    # buffers that a generator fills again are copied
    def filled() -> Any:
        buffer = rows(1)
        for number in range(3):
            buffer[:] = number
            yield {"x": buffer}

    found = load_samples(model(), filled())
    assert [item["x"][0, 0] for item in found] == [0, 1, 2]
    # a generator without end and without a count is cut and said
    endless = ({"x": rows(1) + k} for k in iter(int, 1))
    found = load_samples(model(), endless)
    assert len(found) == len(list(found)) == MOST
    assert found.notes[0] == f"{MOST} samples from the iterable"
    assert found.notes[1].startswith(f"the iterable has more than {MOST}") and "list" in found.notes[1]
    many = [{"x": rows(1)}] * (MOST + 5)
    assert len(load_samples(model(), many)) == MOST + 5  # a list is held by the caller already
    assert len(load_samples(model(), iter(many), MOST + 2)) == MOST + 2
    exact = load_samples(model(), iter(many[:MOST]))
    assert len(exact) == MOST and len(exact.notes) == 1
    # a generator without end is read as far as asked
    endless = ({"x": rows(1) + k} for k in iter(int, 1))
    assert len(load_samples(model(), endless, 3)) == 3
    # as many as there is time for
    samples = load_samples(parse("g (float[2] x) => (float[2] y) { y = Neg (x) }"), count=5)
    assert [len(list(samples.within(3, seconds))) for seconds in (60, -1)] == [3, 1]
    assert len(list(samples.within(9, 60))) == 5 == len(samples.within(9, 60))


@pytest.mark.parametrize("wrap", [list, tuple, iter], ids=["list", "tuple", "generator"])
def test_an_iterable_is_read_as_often_as_asked(wrap: Any) -> None:
    given = [{"x": rows(1) + k, "label": np.array(k)} for k in range(3)]
    found = load_samples(model(), wrap(given))
    assert len(found) == 3
    assert [item["x"][0, 0] for item in found] == [0, 1, 2] == [item["x"][0, 0] for item in found]
    assert "label" in found.notes[1] and all(list(item) == ["x"] for item in found)


def test_inputs_of_other_kinds() -> None:
    made = model("float[1, 3] x, float[3] w", "y = Add(x, w)")
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(3, np.float32), "w"))
    assert [list(item) for item in load_samples(made, {"x": rows(1)})] == [["x"]]
    given = {"x": rows(1), "w": np.zeros(3, np.float32)}
    assert [sorted(item) for item in load_samples(made, given)] == [["w", "x"]]
    assert [list(item) for item in load_samples(made, count=1)] == [["x"]]
    # low inputs take float32 arrays as files keep them
    for name, low in (("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)):
        made = model(f"{name}[1, 3] x", output=f"{name}[1, 3] y")
        for array in (rows(1) + np.float32(0.001), (rows(1) + np.float32(0.001)).astype(low)):
            (item,) = load_samples(made, {"x": array})
            assert item["x"].dtype == low and (item["x"] == (rows(1) + np.float32(0.001)).astype(low)).all()
    # a graph that is open already and mindir are taken
    from ampgraph.formats import adapters

    graph, _ = adapters.load(model())
    assert len(load_samples(graph, {"x": rows(4)})) == 4
    found = load_samples(MODELS / "digits_cnn.mindir", MODELS / "digits_heldout.npz")
    assert [item["image"].shape for item in found] == [(360, 1, 8, 8)]
    assert [item["image"].shape for item in load_samples(MODELS / "digits_cnn.mindir", count=1)] == [(360, 1, 8, 8)]


# What is no sample is refused with a hint.


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({}, ("no array for input 'x'", "nothing", "takes x")),
        ({"X": rows(1), "z": rows(1)}, ("no array for input 'x'", "it holds X, z")),
        ({"x": rows(1, 4)}, ("[1, 4]", "[1, 3]")),
        ({"x": rows(2, 4)}, ("sample 0", ", 4]", "[1, 3]")),
        ({"x": np.zeros((0, 3), np.float32)}, ("[0, 3]",)),
        ({"x": np.float32(1)}, ("shape []",)),
        ({"x": rows(1).astype(np.float64)}, ("float64", "astype('float32')")),
        ({"x": np.array([[1, np.nan, np.nan]], np.float32)}, ("'x' holds NaN: 2 of 3", "[0, 1]")),
        ({"x": np.array([["a", "b", "c"]])}, ("takes float32",)),
    ],
)
def test_arrays_that_do_not_fit(arrays: dict[str, Any], words: tuple[str, ...], tmp_path: Path) -> None:
    refusal("AMP503", model(), arrays, *words)
    refusal("AMP503", model(), [arrays], "sample 0", *words)
    np.savez(tmp_path / "bad.npz", **arrays)
    refusal("AMP503", model(), tmp_path, "bad.npz")
    refusal("AMP503", model(), tmp_path / "bad.npz", "bad.npz", *words)


def test_a_mistake_in_a_later_sample_names_it(tmp_path: Path) -> None:
    bad = rows(3)
    bad[2, 1] = np.nan
    refusal("AMP503", model(), {"x": bad}, "data, sample 2", "NaN")
    with pytest.raises(AmpError, match="sample 2"):
        load_samples(model(), {"x": bad})  # before anything runs
    refusal("AMP503", model(), [{"x": rows(1)}, {}], "sample 1", "no array")
    refusal("AMP503", model(), [{"x": rows(1)}, rows(1)], "sample 1 is a ndarray", "{'x': array}")
    np.savez(tmp_path / "a.npz", x=rows(1))
    np.savez(tmp_path / "b.npz", z=rows(1), more=rows(1))
    refusal("AMP503", model(), tmp_path, "b.npz", "no array for input 'x'")


TWO_SIZES = "g (float[n, 4] x, float[n, 3] z) => (float[n, 3] y, float[n, 3] t) { y = MatMul(x, w) t = Relu(z) }"


@pytest.mark.parametrize("name", ["n", "?", -1])
def test_one_name_may_have_two_sizes_where_the_runtime_does_not_mind(name: str | int) -> None:
    made = parse(TWO_SIZES, w=(4, 3))
    for info in (*made.graph.input, *made.graph.output):
        size = info.type.tensor_type.shape.dim[0]
        size.dim_param = size.dim_param.replace("n", "?") if name == "?" else size.dim_param
        if name == -1:
            size.dim_value = -1
    data = [{"x": rows(5, 4), "z": rows(2)}]
    low = ampgraph.convert(made, data=data)
    assert low != made and ampgraph.verify(made, low, data=data).ok
    assert ampgraph.run(made, data[0])["t"].shape == (2, 3)


def test_sizes_that_are_named_or_not() -> None:
    made = model("float[n, 3] x, float[n, 3] z", "y = Add(x, z)", "float[n, 3] y")
    for strict in (False, True):
        with pytest.raises(AmpError, match="AMP504.*\n.*'n' is 2 in input 'x' and 3 in 'z': feed rows that belong"):
            ampgraph.run(made, {"x": rows(2), "z": rows(3)}, strict=strict)
    # sizes without a name are generated where they stand
    made = parse("g (float[n, 3, n, n] x) => (float[n, 3, n, n] y) { y = Relu(x) }")
    for size in made.graph.input[0].type.tensor_type.shape.dim:
        size.dim_param = size.dim_param.replace("n", "?")
    assert next(iter(load_samples(made)))["x"].shape == (1, 3, 256, 256)
    for size in made.graph.input[0].type.tensor_type.shape.dim:
        size.dim_value = -1 if size.dim_param else 3
    assert next(iter(load_samples(made)))["x"].shape == (1, 3, 256, 256)
    # one input may be empty beside others
    past = model("float[n, 3] x, float[p, 3] z", "y = Concat <axis = 0> (x, z)", "float[m, 3] y")
    (item,) = load_samples(past, {"x": rows(2), "z": rows(0)})
    assert item["z"].shape == (0, 3)
    (item,) = load_samples(model("float[0, 3] x", output="float[0, 3] y"), {"x": rows(0)})
    assert item["x"].shape == (0, 3)  # as the model declares it


@pytest.mark.parametrize(
    ("inputs", "arrays", "words"),
    [
        ("float[n, 3] x", {"x": rows(0)}, ("input 'x' has 0 rows",)),
        ("float[n, 3] x, float s", {"x": rows(0), "s": np.float32(1)}, ("'x' has 0 rows",)),
        ("float[n, 3] x, float[n, 3] z", {"x": rows(0), "z": rows(0)}, ("'x' has 0 rows",)),
        ("float[n, 3] x, float[3] z", {"x": rows(0), "z": rows(1)[0]}, ("'x' has 0 rows",)),
    ],
)
def test_samples_without_rows_are_refused(inputs: str, arrays: Any, words: Any, tmp_path: Path) -> None:
    made = model(inputs, "y = Identity(x)", "float[n, 3] y")
    np.savez(tmp_path / "empty.npz", **arrays)
    for data in (arrays, [arrays], iter([arrays]), tmp_path, tmp_path / "empty.npz"):
        refusal("AMP503", made, data, *words)


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        ([{0: rows(1)}], "AMP503", ("no array for input 'x'", "it holds 0")),
        ({0: rows(1), None: 1}, "AMP503", ("no array for input 'x'", "it holds 0, None")),
        (np.array(3), "AMP108", ("ndarray",)),
        (rows(2), "AMP108", ("ndarray", "'x'")),
        ({"x": [[1.0, 2.0], [3.0]]}, "AMP503", ("'x' is not an array",)),
        ([{"x": [[1.0, 2.0], [3.0]]}], "AMP503", ("'x' is not an array",)),
        (b"bytes", "AMP503", ("sample 0 is a int",)),
    ],
)
def test_python_objects_that_are_no_samples(data: Any, code: str, words: Any) -> None:
    refusal(code, model(), data, *words)


def test_odd_words() -> None:
    found = load_samples(model(), {0: "label", "x": rows(1)})
    assert found.notes[1] == "left out, as no input has the name: 0"
    # numpy numbers are numbers
    made = model("float[n, 3] x", output="float[n, 3] y")
    of_numpy: list[Any] = [np.int64(2), np.int64(1), {"n": np.int64(4)}]
    found = load_samples(made, None, *of_numpy)
    assert [item["x"].shape for item in found] == [(4, 3), (4, 3)]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"count": 2.5}, "AMP503"),
        ({"count": "2"}, "AMP503"),
        ({"count": True}, "AMP503"),
        ({"seed": 1.5}, "AMP503"),
        ({"dims": {"foo": 2}}, "AMP310"),
        ({"dims": {"n": 0}}, "AMP310"),
        ({"dims": {"n": "2"}}, "AMP310"),
        ({"dims": {3: 2}}, "AMP310"),
    ],
)
def test_numbers_that_are_none(options: dict[str, Any], code: str) -> None:
    refusal(code, model("float[n, 3] x", output="float[n, 3] y"), None, **options)


def test_what_the_system_refuses_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal("AMP101", model(), "x" * 5000)
    refusal("AMP101", model(), tmp_path / ("x" * 300 + ".npz"))
    refusal("AMP101", model(), "nul\0byte.npz")
    refusal("AMP101", model(), "", "no path")
    np.savez(tmp_path / "x.npz", x=rows(1))

    def denied(self: Path) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", denied)
    refusal("AMP101", model(), tmp_path, str(tmp_path), "Permission denied")


def test_no_output_hides_that_a_path_is_none(tmp_path: Path) -> None:
    for data in ("x" * 5000, "nul\0byte.npz", ""):
        with pytest.raises(AmpError, match="AMP101"):
            ampgraph.convert(model(), data=data, output=tmp_path / "o.onnx")


def test_no_data_at_all(tmp_path: Path) -> None:
    refusal("AMP108", model(), tmp_path, "no .npz file")
    refusal("AMP101", model(), tmp_path / "none.npz", "no such file")
    refusal("AMP108", model(), [], "no sample")
    refusal("AMP108", model(), iter(()), "no sample")
    refusal("AMP108", model(), 3, "int")
    refusal("AMP503", model(), {"x": rows(1)}, "0 samples", count=0)
    (tmp_path / "x.npz").write_bytes(b"PK\x03\x04 cut short")
    refusal("AMP108", model(), tmp_path / "x.npz", "x.npz")
    refusal("AMP108", model(), tmp_path, "x.npz")


@pytest.mark.parametrize("count", [0, -1, 1.5, 10_000_000])
def test_the_number_of_samples_has_a_limit_that_is_told(count: Any) -> None:
    with pytest.raises(AmpError, match="AMP503.*samples are asked for\nhint: ask for a whole number, 1 to 1,000,000"):
        load_samples(model(), count=count)


def test_what_cannot_be_iterated_is_told() -> None:
    class Broken:
        def __iter__(self) -> Any:
            raise TypeError("no rows here")

    with pytest.raises(AmpError, match="no rows here") as caught:
        load_samples(model(), Broken())
    assert caught.value.code == "AMP108" and "{'x': array}" in caught.value.hint


def test_arrays_that_do_not_agree_on_a_number_of_samples_are_one() -> None:
    """2 of one input and 3 of the other: not split, so that the first does not fit."""
    two = model("float[3] x, float[3] z", "y = Add (x, z)", "float[3] y")
    assert len(load_samples(two, {"x": rows(2), "z": rows(2)})) == 2
    with pytest.raises(AmpError) as caught:
        load_samples(two, {"x": rows(2), "z": rows(3)})
    assert caught.value.code == "AMP503"
