"""Reading checks before it allocates; writing is whole or not at all, and never touches what it does not own."""

import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from ampgraph.core.errors import AmpError
from ampgraph.formats.onnx import io as onnx_io
from ampgraph.formats.onnx.data_files import check_tensors
from ampgraph.formats.onnx.proto import holders, tensors
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
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", weights[0].name if weights else "x"], ["y"]), *nodes],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4096])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        list(weights),
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=list(functions))


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


def test_load_maps_external_weights(folder):
    model = onnx_io.load(folder / "m.onnx")
    np.testing.assert_array_equal(present(model.graph.initializers["w"].const_value).numpy(), VALUES)


def test_load_reads_from_any_working_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    model = onnx_io.load("m.onnx")
    monkeypatch.chdir("/")
    np.testing.assert_array_equal(present(model.graph.initializers["w"].const_value).numpy(), VALUES)


@pytest.mark.parametrize(("data", "code"), [(b"", "AMP102"), (b"\x00" * 64, "AMP102"), (b"# not a model\n", "AMP102")])
def test_load_refuses_what_is_no_model(tmp_path, data, code):
    (tmp_path / "m.onnx").write_bytes(data)
    with pytest.raises(AmpError) as raised:
        onnx_io.load(tmp_path / "m.onnx")
    assert raised.value.code == code


@pytest.mark.parametrize("size", [1, 100, 50_000, 142_000])
def test_load_refuses_a_model_cut_short(tmp_path, size):
    (tmp_path / "m.onnx").write_bytes((MODELS / "digits_cnn.onnx").read_bytes()[:size])
    with pytest.raises(AmpError) as raised:
        onnx_io.load(tmp_path / "m.onnx")
    assert raised.value.code == "AMP102"


def test_load_refuses_folders_and_missing_files(tmp_path):
    for path in (tmp_path, tmp_path / "none.onnx"):
        with pytest.raises(AmpError) as raised:
            onnx_io.load(path)
        assert raised.value.code == "AMP101"


def test_data_inside_the_folder_passes(folder):
    (folder / "sub").mkdir()
    os.link(folder / "data.bin", folder / "sub" / "data.bin")
    (folder / "alias.bin").symlink_to(folder / "data.bin")
    for location in ("data.bin", "./data.bin", "sub/data.bin", "sub/../data.bin", "alias.bin"):
        check(model_of(external(location=location)), folder)


@pytest.mark.parametrize(
    "location", ["../out.bin", "/etc/hostname", "", "sub/../../out.bin", "link/out.bin", "link.bin"]
)
def test_data_outside_the_folder_is_refused(folder, location):
    VALUES.tofile(folder.parent / "out.bin")
    (folder / "sub").mkdir()
    (folder / "link").symlink_to(folder.parent)
    (folder / "link.bin").symlink_to(folder.parent / "out.bin")
    assert "outside the model's folder" in refused("AMP103", model_of(external(location=location)), folder)


def test_a_folder_beside_with_the_same_beginning_is_outside(folder):
    beside = folder.with_name(folder.name + "2")
    beside.mkdir()
    VALUES.tofile(beside / "data.bin")
    refused("AMP103", model_of(external(location=f"../{beside.name}/data.bin")), folder)


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


def test_stored_bytes_must_fit_the_shape(folder):
    tensor = numpy_helper.from_array(VALUES, "w")
    check(model_of(tensor), folder)
    tensor.dims[0] += 1
    refused("AMP102", model_of(tensor), folder)


def test_tensors_in_bodies_are_checked(folder):
    bad = external("b", location="../out.bin")
    body = helper.make_graph([], "body", [], [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)], [bad])
    node = helper.make_node("If", ["c"], ["z"], then_branch=body, else_branch=body)
    refused("AMP103", model_of(external(), nodes=[node]), folder)
    constant = helper.make_node("Constant", [], ["k"], value=bad)
    refused("AMP103", model_of(external(), nodes=[constant]), folder)


def test_tensors_in_functions_are_checked(folder):
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


def test_saving_other_weights_takes_the_old_data_file_away(folder):
    onnx_io.save(onnx_io.load(folder / "m.onnx"), folder / "out.onnx")
    (VALUES + 1).tofile(folder / "data.bin")
    onnx_io.save(onnx_io.load(folder / "m.onnx"), folder / "out.onnx")
    assert data_of(folder, "out.onnx") == ["out.onnx.data"]
    np.testing.assert_array_equal(weights(folder / "out.onnx")["w"], VALUES + 1)


def test_a_result_can_be_written_over_itself(folder):
    onnx_io.save(onnx_io.load(folder / "m.onnx"), folder / "out.onnx")
    onnx_io.save(onnx_io.load(folder / "out.onnx"), folder / "out.onnx")
    np.testing.assert_array_equal(weights(folder / "out.onnx")["w"], VALUES)


def test_save_leaves_files_of_others_alone(folder):
    for name in (
        "out.onnx.saved-on-a-monday.data",
        "out.onnx.sixteen_letters_.data",
        "other.onnx.0123456789abcdef.data",
    ):
        (folder / name).write_bytes(b"keep")
    before = set(os.listdir(folder))
    onnx_io.save(onnx_io.load(folder / "m.onnx"), folder / "out.onnx")
    assert before <= set(os.listdir(folder))


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


def test_names_with_glob_characters(folder):
    for _ in range(2):
        onnx_io.save(onnx_io.load(folder / "m.onnx"), folder / "out[1].onnx")
        (VALUES + 1).tofile(folder / "data.bin")
    assert data_of(folder, "out[1].onnx") == ["out[1].onnx.data"]
    np.testing.assert_array_equal(weights(folder / "out[1].onnx")["w"], VALUES + 1)


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


def test_save_into_a_missing_folder(tmp_path):
    with pytest.raises(AmpError) as raised:
        onnx_io.save(onnx_io.load(MODELS / "digits_cnn.onnx"), tmp_path / "none" / "out.onnx")
    assert raised.value.code == "AMP105" and not (tmp_path / "none").exists()


def test_copy_unchanged_takes_the_data_along(folder, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    onnx_io.copy_unchanged(folder / "m.onnx", other / "copy.onnx")
    assert (other / "copy.onnx").read_bytes() == (folder / "m.onnx").read_bytes()
    np.testing.assert_array_equal(weights(other / "copy.onnx")["w"], VALUES)


def test_copy_unchanged_beside_shares_the_data(folder):
    onnx_io.copy_unchanged(folder / "m.onnx", folder / "copy.onnx")
    assert sorted(os.listdir(folder)) == ["copy.onnx", "data.bin", "m.onnx"]


def test_copy_unchanged_never_writes_over_data_of_another_model(folder, tmp_path):
    """Another model's data file of the same name lies where the copy goes."""
    other = tmp_path / "other"
    other.mkdir()
    (VALUES + 1).tofile(other / "data.bin")
    (other / "theirs.onnx").write_bytes((folder / "m.onnx").read_bytes())
    with pytest.raises(AmpError) as raised:
        onnx_io.copy_unchanged(folder / "m.onnx", other / "copy.onnx")
    assert raised.value.code == "AMP105"
    np.testing.assert_array_equal(weights(other / "theirs.onnx")["w"], VALUES + 1)
    assert sorted(os.listdir(other)) == ["data.bin", "theirs.onnx"]
