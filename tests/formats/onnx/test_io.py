"""Reading checks before it allocates; writing is whole or not at all, and never touches what it does not own."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.formats.onnx import io as onnx_io
from ampgraph.formats.onnx.data_files import Mark, check_tensors, own_data
from ampgraph.formats.onnx.proto import holders, tensors
from formats.onnx.helpers import code
from onnx_text import parse
from present import present

MODELS = Path(__file__).resolve().parents[3] / "models"
VALUES = np.arange(4096 * 4, dtype=np.float32).reshape(4096, 4)


def external(name="w", location="data.bin", offset=0, length=None, dims=(4096, 4)):
    """A tensor that lies in a data file."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    entries = {"location": location, "offset": offset, "length": 4096 * 16 if length is None else length}
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def model_of(*weights, nodes=(), functions=()):
    """x @ w, as a proto."""
    text = f"g (float[1,4096] x) => (float[1,4] y) {{ y = MatMul (x, {weights[0].name}) }}"
    model = parse(text, opset=18, domains=["own"])
    model.graph.initializer.extend(weights)
    model.graph.node.extend(nodes)
    model.functions.extend(functions)
    return model


@pytest.fixture
def folder(tmp_path):
    """A folder with a data file and a model that reads it."""
    inside = tmp_path / "models"
    inside.mkdir()
    VALUES.tofile(inside / "data.bin")
    (inside / "m.onnx").write_bytes(model_of(external()).SerializeToString())
    return inside


def weights(path):
    """Initializers by name, as any other reader sees them."""
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def check(model, folder):
    check_tensors(tensors(holders(model)), folder, "m.onnx")


def refused(code, model, folder):
    with pytest.raises(AmpError) as raised:
        check(model, folder)
    assert raised.value.code == code and raised.value.hint
    return str(raised.value)


# -- reading ----------------------------------------------------------------------------------------------------------


def test_load_maps_weights_from_any_folder(folder, monkeypatch):
    model = onnx_io.load(folder / "m.onnx")
    np.testing.assert_array_equal(present(model.graph.initializers["w"].const_value).numpy(), VALUES)
    # load reads from any working folder
    monkeypatch.chdir(folder)
    model = onnx_io.load("m.onnx")
    monkeypatch.chdir("/")
    np.testing.assert_array_equal(present(model.graph.initializers["w"].const_value).numpy(), VALUES)


WHOLE = (MODELS / "digits_cnn.onnx").read_bytes()
CUT_SHORT = [WHOLE[:size] for size in (1, 100, 50_000, 142_000)]


@pytest.mark.parametrize("data", [b"", bytes(64), b"# not a model\n", *CUT_SHORT], ids=len)
def test_load_refuses_what_is_no_model(tmp_path, data):
    (tmp_path / "m.onnx").write_bytes(data)
    assert code(lambda: onnx_io.load(tmp_path / "m.onnx")) == "AMP102"


def test_load_refuses_folders_and_missing_files(tmp_path):
    for path in (tmp_path, tmp_path / "none.onnx"):
        assert code(partial(onnx_io.load, path)) == "AMP101"
    # save into a missing folder
    model = onnx_io.load(MODELS / "digits_cnn.onnx")
    assert code(lambda: onnx_io.save(model, tmp_path / "none" / "out.onnx")) == "AMP105"
    assert not (tmp_path / "none").exists()


def test_data_inside_the_folder_passes(folder):
    (folder / "sub").mkdir()
    os.link(folder / "data.bin", folder / "sub" / "data.bin")
    (folder / "alias.bin").symlink_to(folder / "data.bin")
    for location in ("data.bin", "./data.bin", "sub/data.bin", "sub/../data.bin", "alias.bin"):
        check(model_of(external(location=location)), folder)
    # a folder beside with the same beginning is outside
    beside = folder.with_name(folder.name + "2")
    beside.mkdir()
    VALUES.tofile(beside / "data.bin")
    refused("AMP103", model_of(external(location=f"../{beside.name}/data.bin")), folder)
    # stored bytes must fit the shape
    tensor = numpy_helper.from_array(VALUES, "w")
    check(model_of(tensor), folder)
    tensor.dims[0] += 1
    refused("AMP102", model_of(tensor), folder)


@pytest.mark.parametrize(
    "location", ["../out.bin", "/etc/hostname", "", "sub/../../out.bin", "link/out.bin", "link.bin"]
)
def test_data_outside_the_folder_is_refused(folder, location):
    VALUES.tofile(folder.parent / "out.bin")
    (folder / "sub").mkdir()
    (folder / "link").symlink_to(folder.parent)
    (folder / "link.bin").symlink_to(folder.parent / "out.bin")
    assert "outside the model's folder" in refused("AMP103", model_of(external(location=location)), folder)


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ({"location": "none.bin"}, "AMP103"),
        ({"length": 1 << 62}, "AMP103"),
        ({"length": 100}, "AMP103"),
        ({"length": -1}, "AMP103"),
        ({"length": "many"}, "AMP103"),
        ({"offset": -16}, "AMP103"),
        ({"offset": 16}, "AMP103"),
        ({"offset": 1 << 62}, "AMP103"),
        ({"dims": (4097, 4)}, "AMP103"),
        ({"dims": (1 << 40, 1 << 20)}, "AMP102"),
        ({"dims": (-1, -16384)}, "AMP102"),
    ],
)
def test_sizes_that_cannot_be_are_refused(folder, entries, code):
    refused(code, model_of(external(**entries)), folder)


def test_tensors_in_bodies_and_functions_are_checked(folder):
    bad = external("b", location="../out.bin")
    body = helper.make_graph([], "body", [], [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)], [bad])
    node = helper.make_node("If", ["c"], ["z"], then_branch=body, else_branch=body)
    refused("AMP103", model_of(external(), nodes=[node]), folder)
    constant = helper.make_node("Constant", [], ["k"], value=bad)
    refused("AMP103", model_of(external(), nodes=[constant]), folder)
    # tensors in functions are checked
    VALUES.tofile(folder.parent / "out.bin")
    constant = helper.make_node("Constant", [], ["k"], value=external("k", location="../out.bin"))
    function = helper.make_function("own", "F", ["a"], ["k"], [constant], [helper.make_opsetid("", 18)])
    refused(
        "AMP103",
        model_of(external(), nodes=[helper.make_node("F", ["x"], ["f"], domain="own")], functions=[function]),
        folder,
    )


# -- writing ----------------------------------------------------------------------------------------------------------


def test_save_keeps_inline_weights_inline(tmp_path):
    onnx_io.save(onnx_io.load(MODELS / "digits_cnn.onnx"), tmp_path / "out.onnx")
    assert os.listdir(tmp_path) == ["out.onnx"]
    for name, array in weights(MODELS / "digits_cnn.onnx").items():
        np.testing.assert_array_equal(weights(tmp_path / "out.onnx")[name], array)


def data_of(folder, name):
    return sorted(found for found in os.listdir(folder) if found.startswith(f"{name}.") and found.endswith(".data"))


def test_save_streams_external_weights_to_a_file_named_after_the_model(folder):
    model = onnx_io.load(folder / "m.onnx")
    calls = []
    onnx_io.save(model, folder / "out.onnx", lambda *told: calls.append(told))
    assert data_of(folder, "out.onnx") == ["out.onnx.data"]
    np.testing.assert_array_equal(weights(folder / "out.onnx")["w"], VALUES)
    assert calls[-1][1:] == (VALUES.nbytes, VALUES.nbytes)
    # the model in memory still reads its own file, and saving again gives the same bytes
    first = (folder / "out.onnx").read_bytes()
    onnx_io.save(model, folder / "out.onnx")
    assert (folder / "out.onnx").read_bytes() == first
    assert data_of(folder, "out.onnx") == ["out.onnx.data"]


def test_a_data_file_is_replaced_with_its_model(folder):
    onnx_io.save(onnx_io.load(folder / "m.onnx"), folder / "out.onnx")
    (VALUES + 1).tofile(folder / "data.bin")
    onnx_io.save(onnx_io.load(folder / "m.onnx"), folder / "out.onnx")
    assert data_of(folder, "out.onnx") == ["out.onnx.data"]
    # a result can be written over itself
    onnx_io.save(onnx_io.load(folder / "out.onnx"), folder / "out.onnx")
    np.testing.assert_array_equal(weights(folder / "out.onnx")["w"], VALUES + 1)


def test_other_files_are_left_alone(folder):
    for name in (
        "out.onnx.saved-on-a-monday.data",
        "out.onnx.sixteen_letters_.data",
        "other.onnx.0123456789abcdef.data",
    ):
        (folder / name).write_bytes(b"keep")
    before = set(os.listdir(folder))
    onnx_io.save(onnx_io.load(folder / "m.onnx"), folder / "out.onnx")
    assert before <= set(os.listdir(folder))
    # names with glob characters
    for _ in range(2):
        onnx_io.save(onnx_io.load(folder / "m.onnx"), folder / "out[1].onnx")
        (VALUES + 1).tofile(folder / "data.bin")
    assert data_of(folder, "out[1].onnx") == ["out[1].onnx.data"]
    np.testing.assert_array_equal(weights(folder / "out[1].onnx")["w"], VALUES + 1)


def test_save_keeps_a_data_file_that_its_input_reads(folder):
    """A result that was renamed still reads the data file named after its old name."""
    onnx_io.save(onnx_io.load(folder / "m.onnx"), folder / "out.onnx")
    os.rename(folder / "out.onnx", folder / "renamed.onnx")
    (VALUES + 1).tofile(folder / "data.bin")
    renamed = onnx_io.load(folder / "renamed.onnx")
    value = renamed.graph.initializers["w"]
    value.const_value = onnx_io.load(folder / "m.onnx").graph.initializers["w"].const_value
    onnx_io.save(renamed, folder / "out.onnx")
    np.testing.assert_array_equal(weights(folder / "renamed.onnx")["w"], VALUES)


@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_a_failed_save_leaves_the_old_result(folder, monkeypatch, step):
    """``step``: writing fails while the data streams, or at a rename: of the old data, the new data, the model."""
    onnx_io.save(onnx_io.load(folder / "m.onnx"), folder / "out.onnx")
    (VALUES + 1).tofile(folder / "data.bin")
    before = {name: (folder / name).read_bytes() for name in os.listdir(folder)}
    real, left = os.replace, [step - 1]

    def replace(source, target):
        if left[0] == 0:
            raise OSError(28, "No space left on device")
        left[0] -= 1
        real(source, target)

    def interrupted(*told):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", replace)
    model = onnx_io.load(folder / "m.onnx")
    with pytest.raises((AmpError, KeyboardInterrupt)):
        onnx_io.save(model, folder / "out.onnx", interrupted if step == 0 else None)
    assert {name: (folder / name).read_bytes() for name in os.listdir(folder)} == before
    stored = model.graph.initializers["w"].const_value
    assert isinstance(stored, ir.ExternalTensor)
    assert stored.path == str(folder / "data.bin")  # not changed by the attempt


def test_copy_unchanged_takes_the_data_along_or_shares_it(folder, tmp_path):
    onnx_io.copy_unchanged(folder / "m.onnx", folder / "copy.onnx")
    assert sorted(os.listdir(folder)) == ["copy.onnx", "data.bin", "m.onnx"]
    # copy unchanged takes the data along
    other = tmp_path / "other"
    other.mkdir()
    onnx_io.copy_unchanged(folder / "m.onnx", other / "copy.onnx")
    assert (other / "copy.onnx").read_bytes() == (folder / "m.onnx").read_bytes()
    np.testing.assert_array_equal(weights(other / "copy.onnx")["w"], VALUES)


def test_copy_unchanged_never_writes_over_data_of_another_model(folder, tmp_path):
    """Another model's data file of the same name lies where the copy goes."""
    other = tmp_path / "other"
    other.mkdir()
    (VALUES + 1).tofile(other / "data.bin")
    (other / "theirs.onnx").write_bytes((folder / "m.onnx").read_bytes())
    assert code(lambda: onnx_io.copy_unchanged(folder / "m.onnx", other / "copy.onnx")) == "AMP105"
    np.testing.assert_array_equal(weights(other / "theirs.onnx")["w"], VALUES + 1)
    assert sorted(os.listdir(other)) == ["data.bin", "theirs.onnx"]


# Data files beside a model: their names, and pairs of which one half is older.

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[4, 64] x) => (float[4, 64] y) { h = MatMul (x, w) y = Relu (h) }"""
WEIGHT = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)


def written(path: Path, factor: float = 1.0) -> Path:
    """A model whose weight lies in a file of its own exporter's."""
    made = parse(TEXT, w=WEIGHT * np.float32(factor))
    onnx.save(made, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=0)
    return path


def weight(path: Path) -> np.ndarray:
    (tensor,) = onnx.load(path).graph.initializer
    return numpy_helper.to_array(tensor)


def named(folder: Path, start: str = "") -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.startswith(start))


def test_names_are_those_that_people_expect(tmp_path: Path, amp: Any) -> None:
    source = written(tmp_path / "m.onnx")
    for level in ("O2", "O3", "O2"):  # written again, with other bytes or the same
        assert amp("convert", source, "-o", tmp_path / "out.onnx", "--level", level, "--check", "off")[0] == 0
        assert named(tmp_path) == ["m.onnx", "m.onnx.data", "out.onnx", "out.onnx.data"]
    np.testing.assert_array_equal(weight(tmp_path / "out.onnx"), WEIGHT.astype(np.float16))
    np.testing.assert_array_equal(weight(source), WEIGHT)


def test_what_replaces_it_leaves_no_data_behind(tmp_path: Path) -> None:
    source, out = written(tmp_path / "m.onnx"), tmp_path / "out.onnx"
    ampgraph.convert(source, output=out, check="off")
    ampgraph.convert(source, "O0", output=out)  # the model as it is, with its own data file
    assert named(tmp_path) == ["m.onnx", "m.onnx.data", "out.onnx"]
    ampgraph.convert(source, output=out, check="off")
    ampgraph.convert(parse(TEXT, w=WEIGHT), output=out, check="off")
    assert named(tmp_path) == ["m.onnx", "m.onnx.data", "out.onnx"]


def test_data_of_others_and_of_the_input_stay(tmp_path: Path) -> None:
    source, out = written(tmp_path / "m.onnx"), written(tmp_path / "out.onnx", 3)
    theirs = (tmp_path / "out.onnx.data").read_bytes()
    ampgraph.convert(source, output=out, check="off")
    assert (tmp_path / "out.onnx.data").read_bytes() == theirs
    assert named(tmp_path, "out.onnx.") == ["out.onnx.1.data", "out.onnx.data"]
    np.testing.assert_array_equal(weight(out), WEIGHT.astype(np.float16))
    ampgraph.convert(source, "O3", output=out, check="off")
    assert named(tmp_path, "out.onnx.") == ["out.onnx.1.data", "out.onnx.data"]


def test_a_fresh_name_while_the_input_is_that_file(tmp_path: Path) -> None:
    source, out, copy = written(tmp_path / "m.onnx"), tmp_path / "out.onnx", tmp_path / "copy.onnx"
    ampgraph.convert(source, "O1", fp32=["op:MatMul"], low=["op:Relu"], output=out, check="off")
    copy.write_bytes(out.read_bytes())
    ampgraph.convert(copy, "O3", output=out, check="off")
    assert named(tmp_path, "out.onnx.") == ["out.onnx.1.data", "out.onnx.data"]
    np.testing.assert_array_equal(weight(copy), WEIGHT)
    ampgraph.convert(source, "O3", output=out, check="off")  # nobody knows that the copy reads the other one
    assert named(tmp_path, "out.onnx.") == ["out.onnx.1.data", "out.onnx.data"]
    np.testing.assert_array_equal(weight(copy), WEIGHT)


def test_halves_of_two_conversions_are_refused(tmp_path: Path) -> None:
    source, out = written(tmp_path / "m.onnx"), tmp_path / "out.onnx"
    ampgraph.convert(source, output=out, check="off")
    older = out.read_bytes()
    ampgraph.convert(written(tmp_path / "n.onnx", 2), output=out, check="off")
    out.write_bytes(older)  # as a machine leaves it that stops between two renames
    feeds = {"x": np.ones((4, 64), np.float32)}
    for call in (
        lambda: ampgraph.inspect(out),
        lambda: ampgraph.verify(source, out),
        lambda: ampgraph.run(out, feeds),
        lambda: ampgraph.run(out, feeds, strict=True),
    ):
        with pytest.raises(AmpError, match="AMP103.*'out.onnx.data' belongs to another version") as raised:
            call()
        assert raised.value.hint
    ampgraph.convert(source, output=out, check="off")
    assert named(tmp_path, "out.onnx.") == ["out.onnx.data"]
    assert np.isfinite(ampgraph.run(out, feeds)["y"]).all()


def test_both_halves_bear_the_checksum_of_the_data(tmp_path: Path) -> None:
    source, out = written(tmp_path / "m.onnx"), tmp_path / "out.onnx"
    ampgraph.convert(source, output=out, check="off")
    mark = Mark.of_file(tmp_path / "out.onnx.data")
    assert mark is not None
    assert int(mark.checksum, 16) == zlib.crc32((tmp_path / "out.onnx.data").read_bytes()[: mark.length])
    said = {entry.key: entry.value for entry in onnx.load(out, load_external_data=False).metadata_props}
    assert said["ampgraph.data"] == f"out.onnx.data {mark.length} {mark.checksum}"


def test_other_tools_may_write_the_pair_again(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    ampgraph.convert(written(tmp_path / "m.onnx"), output=out, check="off")
    model = onnx.load(out)
    assert "ampgraph.data" in [entry.key for entry in model.metadata_props]
    for location in ("out.onnx.data", "weights.bin"):
        (tmp_path / location).unlink(missing_ok=True)
        onnx.save(model, out, save_as_external_data=True, location=location, size_threshold=0)
        assert ampgraph.inspect(out).to_dict()["casts"]
    assert not [entry for entry in onnx_io.load(out).metadata_props if "data" in entry]


def test_a_result_converted_again_in_another_folder_replaces_its_data(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    source, out, there = written(tmp_path / "m.onnx"), tmp_path / "out.onnx", tmp_path / "there" / "out.onnx"
    ampgraph.convert(written(tmp_path / "n.onnx", 2), output=there, check="off")
    ampgraph.convert(source, output=out, check="off")
    ampgraph.convert(out, output=there, check="off")
    assert named(there.parent) == ["out.onnx", "out.onnx.data"] and there.read_bytes() == out.read_bytes()
    np.testing.assert_array_equal(weight(there), WEIGHT.astype(np.float16))


@pytest.mark.parametrize("digits", [8, 32])  # 32: of earlier versions
def test_a_mark_is_of_the_whole_file(tmp_path: Path, digits: int) -> None:
    place, mark = tmp_path / "data", Mark(5, "0" * digits)
    place.write_bytes(b"12345" + mark.line())
    assert Mark.of_file(place) == mark
    for content in (b"", b"12345", b"123456" + mark.line(), mark.line() + b"more", b"12345" + mark.line() * 2):
        place.write_bytes(content)
        assert Mark.of_file(place) is None
    assert Mark.of_file(tmp_path / "none") is None


def test_a_model_that_is_replaced_is_read_only_where_a_file_beside_it_may_be_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, reads = written(tmp_path / "out.onnx"), list[Path]()

    def noted(path: Path) -> bytes:
        reads.append(path)
        return b""

    monkeypatch.setattr(Path, "read_bytes", noted)
    (tmp_path / "out.onnx.data").rename(tmp_path / "out.onnx.data.old")
    assert own_data(place) == set() and not reads
    (tmp_path / "out.onnx.7.data").touch()
    assert own_data(place) == set() and reads == [place]


# Tensors of attributes that lie in a data file: the result has them, wherever it is written.

ATTRIBUTE_VALUES = np.arange(8, dtype=np.float32)


def _written(path: Path, names: Sequence[str], location: str = "m.data") -> None:
    """A model with an operator that has one tensor, or several."""
    tensors = [numpy_helper.from_array(ATTRIBUTE_VALUES + k, name) for k, name in enumerate(names)]
    text = "g (float[2,4] x) => (float[2,4] y) { h = MatMul (x, w)  y = own.Own (h) }"
    made = parse(text, ir=8, domains=["own"], w=np.ones((4, 4), np.float32))
    made.graph.node[1].attribute.append(helper.make_attribute("held", tensors if len(tensors) > 1 else tensors[0]))
    onnx.save_model(made, path, save_as_external_data=True, location="m.data", size_threshold=0, convert_attribute=True)
    if location != "m.data":
        for tensor in _tensors(made.graph.node[1].attribute[0]):
            tensor.external_data[0].value = location
        path.write_bytes(made.SerializeToString())


def _tensors(attribute: AttributeProto) -> list[TensorProto]:
    return [attribute.t] if attribute.type == AttributeProto.TENSOR else list(attribute.tensors)


@pytest.mark.parametrize("names", ["a", "ab"])
def test_the_result_holds_them(tmp_path: Path, names: str) -> None:
    _written(tmp_path / "m.onnx", names)
    (tmp_path / "other").mkdir()
    path = tmp_path / "other" / "out.onnx"
    ampgraph.convert(tmp_path / "m.onnx", "O3", output=path, check="off")
    found = _tensors(onnx.load(path).graph.node[-1].attribute[0])
    assert [tensor.name for tensor in found] == list(names)
    for number, tensor in enumerate(found):
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), ATTRIBUTE_VALUES + number)
    assert sorted(os.listdir(path.parent)) == ["out.onnx", "out.onnx.data"]


@pytest.mark.parametrize("read", [ir.load, lambda path: onnx.load(path, load_external_data=False)])
def test_of_models_in_memory_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], Any]) -> None:
    _written(tmp_path / "m.onnx", "ab")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    model = read(tmp_path / "m.onnx")
    ampgraph.convert(model, "O3", output=tmp_path / "other" / "out.onnx", check="off")
    found = _tensors(onnx.load(tmp_path / "other" / "out.onnx").graph.node[-1].attribute[0])
    np.testing.assert_array_equal(numpy_helper.to_array(found[1]), ATTRIBUTE_VALUES + 1)


def test_their_file_is_not_written_over(tmp_path: Path) -> None:
    _written(tmp_path / "m.onnx", "ab", location="own.data")
    before = (tmp_path / "m.data").read_bytes()
    (tmp_path / "own.data").write_bytes(before)
    convert = partial(ampgraph.convert, tmp_path / "m.onnx", "O3", output=tmp_path / "own.data", check="off")
    assert code(convert) == "AMP106"
    assert (tmp_path / "own.data").read_bytes() == before


def test_they_lie_in_the_folder_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "secret").write_bytes(bytes(1 << 10))
    _written(tmp_path / "in" / "m.onnx", "ab", location="../secret")
    assert code(lambda: ampgraph.convert(tmp_path / "in" / "m.onnx", "O3", check="off")) == "AMP103"
