"""Samples: what files, mappings and iterables hold, how one file becomes several samples, and clear refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import pytest
from onnx import ModelProto

from ampgraph.errors import AmpError
from ampgraph.numerics.samples import load_samples

MODELS = Path(__file__).resolve().parents[2] / "models"


def model(inputs: str = "float[1, 3] x", nodes: str = "y = Identity(x)", output: str = "float[1, 3] y") -> ModelProto:
    head = '<ir_version: 9, opset_import: ["" : 17]>'
    return onnx.parser.parse_model(f"{head}\ng ({inputs}) => ({output}) {{ {nodes} }}")


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


# -- how many samples -------------------------------------------------------------------------------------------------


def test_arrays_of_the_shape_that_the_model_takes_are_one_sample(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=rows(1))
    found = load_samples(model(), tmp_path / "x.npz")
    assert len(found) == 1 and not found.generated
    assert same(next(iter(found)), {"x": rows(1)})
    assert found.notes == (f"1 sample from {tmp_path / 'x.npz'}",)


def test_rows_beyond_a_fixed_batch_are_samples(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=rows(6))
    two = model("float[2, 3] x", output="float[2, 3] y")
    found = load_samples(two, str(tmp_path / "x.npz"))
    assert len(found) == 3
    assert [item["x"].tolist() for item in found] == [rows(6)[k : k + 2].tolist() for k in (0, 2, 4)]


def test_a_dimension_in_front_counts_samples() -> None:
    open_batch = model("float[n, 3] x, float[n, 3] z", "y = Add(x, z)", "float[n, 3] y")
    stacked = {"x": rows(8).reshape(4, 2, 3), "z": rows(8).reshape(4, 2, 3) + 1}
    found = load_samples(open_batch, stacked)
    assert len(found) == 4
    assert all(item["x"].shape == (2, 3) and (item["z"] == item["x"] + 1).all() for item in found)


def test_rows_of_an_open_batch_are_one_sample() -> None:
    found = load_samples(MODELS / "digits_transformer.onnx", MODELS / "digits_heldout.npz")
    assert [item["image"].shape for item in found] == [(360, 1, 8, 8)]
    assert found.notes[1] == "left out, as no input has the name: labels"


def test_scalars_can_be_stacked_and_a_shape_that_the_file_does_not_say_is_never_split() -> None:
    scalar = model("float[1, 3] x, float s", "y = Mul(x, s)")
    found = load_samples(scalar, {"x": rows(2), "s": np.array([1, 2], np.float32)})
    assert [item["s"].shape for item in found] == [(), ()]
    anything = model()
    anything.graph.input[0].type.tensor_type.ClearField("shape")
    assert [item["x"].shape for item in load_samples(anything, {"x": np.ones(5, np.float32)})] == [(5,)]


def test_count_takes_the_first(tmp_path: Path) -> None:
    found = load_samples(model(), {"x": rows(6)}, 2)
    assert len(found) == 2 and len(list(found)) == 2
    assert found.notes == ("2 samples from data (of 6)",)
    assert len(load_samples(model(), {"x": rows(6)}, 9)) == 6
    for name in "cab":
        np.savez(tmp_path / f"{name}.npz", x=rows(1) + ord(name))
    assert [item["x"][0, 0] for item in load_samples(model(), tmp_path, 2)] == [ord("a"), ord("b")]


# -- sources ----------------------------------------------------------------------------------------------------------


def test_a_folder_is_read_in_the_order_of_names_and_again(tmp_path: Path) -> None:
    for number in (2, 0, 1):
        np.savez(tmp_path / f"s{number}.npz", x=rows(1) + number, label=np.array(number))
    (tmp_path / "notes.txt").write_text("no sample")
    found = load_samples(model(), tmp_path)
    assert len(found) == 3
    assert [item["x"][0, 0] for item in found] == [0, 1, 2] == [item["x"][0, 0] for item in found]
    assert found.notes == (f"3 samples from {tmp_path}", "left out, as no input has the name: label")


@pytest.mark.parametrize("wrap", [list, tuple, iter], ids=["list", "tuple", "generator"])
def test_an_iterable_is_read_as_often_as_asked(wrap: Any) -> None:
    given = [{"x": rows(1) + k, "label": np.array(k)} for k in range(3)]
    found = load_samples(model(), wrap(given))
    assert len(found) == 3
    assert [item["x"][0, 0] for item in found] == [0, 1, 2] == [item["x"][0, 0] for item in found]
    assert "label" in found.notes[1] and all(list(item) == ["x"] for item in found)


def test_a_generator_without_end_is_read_as_far_as_asked() -> None:
    endless = ({"x": rows(1) + k} for k in iter(int, 1))
    assert len(load_samples(model(), endless, 3)) == 3


def test_inputs_with_a_default_may_be_left_out_or_given() -> None:
    made = model("float[1, 3] x, float[3] w", "y = Add(x, w)")
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(3, np.float32), "w"))
    assert [list(item) for item in load_samples(made, {"x": rows(1)})] == [["x"]]
    given = {"x": rows(1), "w": np.zeros(3, np.float32)}
    assert [sorted(item) for item in load_samples(made, given)] == [["w", "x"]]
    assert [list(item) for item in load_samples(made, count=1)] == [["x"]]


def test_low_inputs_take_float32_arrays_as_files_keep_them() -> None:
    for name, low in (("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)):
        made = model(f"{name}[1, 3] x", output=f"{name}[1, 3] y")
        for array in (rows(1) + np.float32(0.001), (rows(1) + np.float32(0.001)).astype(low)):
            (item,) = load_samples(made, {"x": array})
            assert item["x"].dtype == low and (item["x"] == (rows(1) + np.float32(0.001)).astype(low)).all()


def test_a_graph_that_is_open_already_and_mindir_are_taken() -> None:
    from ampgraph.formats import adapters

    graph, _ = adapters.load(model())
    assert len(load_samples(graph, {"x": rows(4)})) == 4
    found = load_samples(MODELS / "digits_cnn.mindir", MODELS / "digits_heldout.npz")
    assert [item["image"].shape for item in found] == [(360, 1, 8, 8)]
    assert [item["image"].shape for item in load_samples(MODELS / "digits_cnn.mindir", count=1)] == [(360, 1, 8, 8)]


def test_infinities_are_let_through() -> None:
    array = np.array([[0, -np.inf, np.inf]], np.float32)
    assert same(next(iter(load_samples(model(), {"x": array}))), {"x": array})


# -- refusals ---------------------------------------------------------------------------------------------------------


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


def test_sizes_of_one_name_agree() -> None:
    made = model("float[n, 3] x, float[n, 3] z", "y = Add(x, z)", "float[n, 3] y")
    refusal("AMP503", made, {"x": rows(2), "z": rows(3)}, "'n' is 2 in input 'x' and 3 in 'z'")


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
