"""What is no sample is refused with a hint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.numerics.inputs.samples import load_samples
from numerics.sampled import model, refusal, rows
from onnx_text import parse


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({}, ("no array for input 'x'", "nothing", "takes x")),
        ({"X": rows(1)}, ("no array for input 'x'", "it holds X")),
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
    np.savez(tmp_path / "b.npz", z=rows(1))
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


def test_where_the_runtime_minds_the_sizes_are_named() -> None:
    made = model("float[n, 3] x, float[n, 3] z", "y = Add(x, z)", "float[n, 3] y")
    for strict in (False, True):
        with pytest.raises(AmpError, match="AMP504.*\n.*'n' is 2 in input 'x' and 3 in 'z': feed rows that belong"):
            ampgraph.run(made, {"x": rows(2), "z": rows(3)}, strict=strict)


def test_sizes_without_a_name_are_generated_where_they_stand() -> None:
    made = parse("g (float[n, 3, n, n] x) => (float[n, 3, n, n] y) { y = Relu(x) }")
    for size in made.graph.input[0].type.tensor_type.shape.dim:
        size.dim_param = size.dim_param.replace("n", "?")
    assert next(iter(load_samples(made)))["x"].shape == (1, 3, 256, 256)
    for size in made.graph.input[0].type.tensor_type.shape.dim:
        size.dim_value = -1 if size.dim_param else 3
    assert next(iter(load_samples(made)))["x"].shape == (1, 3, 256, 256)


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


def test_one_input_may_be_empty_beside_others() -> None:
    past = model("float[n, 3] x, float[p, 3] z", "y = Concat <axis = 0> (x, z)", "float[m, 3] y")
    (item,) = load_samples(past, {"x": rows(2), "z": rows(0)})
    assert item["z"].shape == (0, 3)
    (item,) = load_samples(model("float[0, 3] x", output="float[0, 3] y"), {"x": rows(0)})
    assert item["x"].shape == (0, 3)  # as the model declares it


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        ([{0: rows(1)}], "AMP503", ("no array for input 'x'", "it holds 0")),
        ({0: rows(1), None: 1}, "AMP503", ("no array for input 'x'", "it holds 0, None")),
        (np.array(3), "AMP108", ("ndarray",)),
        (rows(2), "AMP108", ("ndarray", "'x'")),
        ({"x": [[1.0, 2.0], [3.0]]}, "AMP503", ("'x' is no array",)),
        ([{"x": [[1.0, 2.0], [3.0]]}], "AMP503", ("'x' is no array",)),
        (b"bytes", "AMP503", ("sample 0 is a int",)),
    ],
)
def test_python_objects_that_are_no_samples(data: Any, code: str, words: Any) -> None:
    refusal(code, model(), data, *words)


def test_names_that_are_no_text_are_left_out_as_any_other() -> None:
    found = load_samples(model(), {0: "label", "x": rows(1)})
    assert found.notes[1] == "left out, as no input has the name: 0"


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


def test_numpy_numbers_are_numbers() -> None:
    made = model("float[n, 3] x", output="float[n, 3] y")
    of_numpy: list[Any] = [np.int64(2), np.int64(1), {"n": np.int64(4)}]
    found = load_samples(made, None, *of_numpy)
    assert [item["x"].shape for item in found] == [(4, 3), (4, 3)]


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
