"""MindIR files: reading checks before it allocates; what is unknown survives; numbers as numpy rounds them."""

import errno
import os
import stat
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.formats import adapters, rounding
from ampgraph.formats.mindir import io as mindir_io
from ampgraph.formats.mindir import schema
from ampgraph.formats.mindir import weights as mindir_weights
from formats.mindir.files import (
    DIGITS,
    LOW,
    NUMBERS,
    UNKNOWN,
    dense,
    holding,
    parameter,
    refused,
    rounded_all,
    tree,
    values,
    write,
    write_split,
)
from private_memory import most_megabytes, needs_proc

# -- round trips ------------------------------------------------------------------------------------------------------


def test_unchanged_files_and_unknown_fields(together, tmp_path, split):
    together.write_bytes(together.read_bytes() + UNKNOWN)
    mindir_io.save(mindir_io.load(together), tmp_path / "out.mindir")
    written = (tmp_path / "out.mindir").read_bytes()
    assert UNKNOWN in written and sorted(written) == sorted(together.read_bytes())
    assert schema.Model.FromString(written) == schema.Model.FromString(together.read_bytes())
    mindir_io.save(mindir_io.load(together), tmp_path / "again.mindir")
    assert (tmp_path / "again.mindir").read_bytes() == written
    # unchanged split
    mindir_io.save(mindir_io.load(split), tmp_path / "out_graph.mindir")
    mine = sorted((tmp_path / "out_variables").iterdir())
    theirs = sorted((split.parent / "net_variables").iterdir())
    assert [f.name.split(".")[0] for f in mine] == [f.name for f in theirs] == ["data_0", "data_1"]
    assert [f.read_bytes() for f in mine] == [f.read_bytes() for f in theirs]
    for name, data in values(split).items():
        np.testing.assert_array_equal(values(tmp_path / "out_graph.mindir")[name], data)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("fixture", ["together", "split"])
def test_rounded(fixture, dtype, tmp_path, request):
    path = request.getfixturevalue(fixture)
    before, file = values(path), rounded_all(path, dtype)
    out = tmp_path / "low" / "out.mindir"
    out.parent.mkdir()
    for _ in range(2):  # saving changes nothing in memory
        mindir_io.save(file, out)
    for name, data in values(out).items():
        assert data.dtype == LOW[dtype]
        np.testing.assert_array_equal(data, before[name].astype(LOW[dtype]))
        np.testing.assert_array_equal(data, mindir_weights.elements(file, parameter(file, name)))
    saved = tree(out.parent)
    mindir_io.save(rounded_all(path, dtype), out)
    assert tree(out.parent) == saved


def test_data_files(split, tmp_path):
    mindir_io.save(rounded_all(split), tmp_path / "out.mindir")
    file = mindir_io.load(tmp_path / "out.mindir")
    for data in mindir_io.data_files(file):
        content = data.read_bytes()
        assert content[:64] == b"\1" + bytes(63) and len(content) % 64 == 0
    assert all(t.external_data.offset % 64 == 0 for t in file.model.graph.parameter)
    # ten data files keep their order
    numbers = {f"w{number:02}": np.full(3, number, np.float32) for number in range(12)}
    path = write_split(holding(**numbers), tmp_path / "twelve", files=12)
    assert [p.name for p in mindir_io.data_files(mindir_io.load(path))] == [f"data_{n}" for n in range(12)]
    graph, _ = adapters.load(path)
    assert graph.data_files() == mindir_io.data_files(mindir_io.load(path))
    kept = tree(path.parent)
    for data in graph.data_files()[:2]:
        with pytest.raises(AmpError, match="AMP106.*written over the input") as refused:
            ampgraph.convert(path, output=data)
        assert refused.value.hint and tree(path.parent) == kept
    mindir_io.save(mindir_io.load(path), tmp_path / "out.mindir")
    for name, data in values(tmp_path / "out.mindir").items():
        assert data.tolist() == [int(name[1:])] * 3
    # progress is told
    seen = []
    mindir_io.save(rounded_all(split), tmp_path / "out.mindir", lambda *said: seen.append(said))
    assert seen[-1][0] == "writing weights" and seen[-1][1] == seen[-1][2] == 70


def test_what_is_shared_is_written_once_and_can_be_in_both_types(split, tmp_path):
    file = mindir_io.load(split)
    weight = parameter(file)
    for name in ("twin", "low"):
        twin = file.model.graph.parameter.add()
        twin.CopyFrom(weight)
        twin.name, twin.ref_key = f"main:{name}", name
    mindir_weights.round_tensor(file, parameter(file, "low"), "bfloat16")
    mindir_io.save(file, tmp_path / "out.mindir")
    again = mindir_io.load(tmp_path / "out.mindir")
    places = {t.ref_key: (t.external_data.location, t.external_data.offset) for t in again.model.graph.parameter}
    assert places["twin"] == places["layer.weight"] != places["low"]
    read = values(tmp_path / "out.mindir")
    np.testing.assert_array_equal(read["low"], read["twin"].astype(ml_dtypes.bfloat16))


def test_load_reads_from_any_working_folder(split, monkeypatch):
    monkeypatch.chdir(split.parent)
    file = mindir_io.load(split.name)
    monkeypatch.chdir("/")
    assert mindir_weights.elements(file, parameter(file)).size == 30


def test_a_link_to_a_model_reads_the_data_beside_the_model(split, tmp_path):
    link = tmp_path / "link.mindir"
    link.symlink_to(split)
    assert values(link).keys() == values(split).keys()
    (tmp_path / "out").mkdir()
    mindir_io.copy_unchanged(link, tmp_path / "out" / "net_graph.mindir")
    assert tree(tmp_path / "out") == tree(split.parent)


# -- elements and rounding --------------------------------------------------------------------------------------------


def tensor_of(kind, dims, **fields):
    return schema.Tensor(name="t", data_type=NUMBERS[kind], dims=dims, **fields)


IN_MEMORY = mindir_weights.MindirFile(schema.Model(), None, {})


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (tensor_of("float32", [2], float_data=[1.5, -2]), np.array([1.5, -2], np.float32)),
        (tensor_of("int32", [2], int32_data=[7, -7]), np.array([7, -7], np.int32)),
        (tensor_of("int8", [2], int32_data=[7, -7]), np.array([7, -7], np.int8)),
        (tensor_of("bool", [2], int32_data=[1, 0]), np.array([True, False])),
        (tensor_of("float16", [1], int32_data=[0x3C00]), np.array([1], np.float16)),
        (tensor_of("bfloat16", [1], int32_data=[0x3F80]), np.array([1], ml_dtypes.bfloat16)),
        (tensor_of("int64", [], int64_data=[1 << 40]), np.array([1 << 40])),
        (tensor_of("bfloat16", [1], raw_data=b"\x80\x3f"), np.array([1], ml_dtypes.bfloat16)),
        (tensor_of("bool", [2], raw_data=b"\1\0"), np.array([True, False])),
        (tensor_of("float32", [0, 3], raw_data=b""), np.empty(0, np.float32)),
    ],
)
def test_elements(tensor, expected):
    found = mindir_weights.elements(IN_MEMORY, tensor)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "tensor",
    [
        tensor_of("float32", [3], raw_data=bytes(8)),
        tensor_of("float32", [3]),
        tensor_of("float32", [-1]),
        tensor_of("float32", [1 << 40, 1 << 40], raw_data=b"1234"),
        tensor_of("string", [1], raw_data=b"x"),
        tensor_of("float32", [1], raw_data=b"xxxx", compression_type=3),
        schema.Tensor(name="t", data_type=99, dims=[1], raw_data=b"x"),
    ],
)
def test_elements_refused(tensor):
    assert "parameter 't'" in refused("AMP102", mindir_weights.elements, IN_MEMORY, tensor)


@given(st.lists(st.floats(width=32), min_size=1, max_size=40), st.sampled_from(["float16", "bfloat16"]))
@settings(max_examples=50, deadline=None)
def test_rounding_is_numpys(numbers, dtype):
    data = np.array(numbers, np.float32)
    tensor = tensor_of("float32", [data.size], raw_data=data.tobytes())
    mindir_weights.round_tensor(IN_MEMORY, tensor, dtype)
    with np.errstate(all="ignore"):
        expected = data.astype(LOW[dtype]).astype(np.float32)
    np.testing.assert_array_equal(mindir_weights.elements(IN_MEMORY, tensor).astype(np.float32), expected)


def test_rounding_goes_over_chunks(monkeypatch, split, tmp_path):
    monkeypatch.setattr(rounding, "BLOCK", 7)
    before = values(split)
    mindir_io.save(rounded_all(split), tmp_path / "out.mindir")
    for name, data in values(tmp_path / "out.mindir").items():
        np.testing.assert_array_equal(data, before[name].astype(np.float16))


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_floor(outside, dtype, tmp_path):
    model = holding(mask=np.array([-3.4e38, -np.inf, np.nan, 0, -5], np.float32))
    path = write_split(model, tmp_path / "given") if outside else write(model, tmp_path / "in.mindir")
    file = mindir_io.load(path)
    tensor = parameter(file, "mask")
    mindir_weights.round_tensor(file, tensor, dtype, floor=-32752.0)
    expected = np.array([-32752, -np.inf, np.nan, 0, -5], dtype)
    np.testing.assert_array_equal(mindir_weights.elements(file, tensor), expected)
    mindir_io.save(file, tmp_path / "out.mindir")
    written = values(tmp_path / "out.mindir")["mask"]
    np.testing.assert_array_equal(written, expected)
    assert written.dtype == expected.dtype


def test_float_data_becomes_raw_data(split):
    tensor = tensor_of("float32", [2], float_data=[1.5, -2])
    mindir_weights.round_tensor(IN_MEMORY, tensor, "float16")
    assert not tensor.float_data and len(tensor.raw_data) == 4 and tensor.data_type == 10
    # external elements of a model without a file
    tensor = tensor_of("float32", [1], external_data=schema.ExternalData(location="d", offset=0, length=4))
    refused("AMP103", mindir_weights.elements, IN_MEMORY, tensor)
    # only float32 is rounded
    file = rounded_all(split)
    with pytest.raises(ValueError, match=r"parameter 'layer\.weight'"):
        mindir_weights.round_tensor(file, parameter(file), "float16")
    with pytest.raises(ValueError, match="cannot become int8"):
        mindir_weights.round_tensor(IN_MEMORY, tensor_of("float32", [1], float_data=[1]), "int8")


ROUND_ALL = """
from ampgraph.formats.mindir import io, weights
file = io.load(source)
for tensor in file.model.graph.parameter:
    weights.round_tensor(file, tensor, "float16")
io.save(file, target)
"""


# -- scale ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@needs_proc
def test_memory(tmp_path):
    """400 MB in a data file that is a hole are rounded and written in 150 MB."""
    model, length = holding(), 16 << 20
    for number in range(24):
        tensor = model.graph.parameter.add(name=f"main:w{number}", ref_key=f"w{number}", data_type=1, dims=[4096, 1024])
        place = tensor.external_data
        place.location, place.offset, place.length = "net_variables/data_0", 64 + number * length, length
    (tmp_path / "net_variables").mkdir()
    with open(tmp_path / "net_variables" / "data_0", "wb") as file:
        file.write(b"\1")
        file.truncate(64 + 24 * length)
    path = write(model, tmp_path / "net_graph.mindir")
    assert most_megabytes(ROUND_ALL, path, tmp_path / "low.mindir") < 150


def test_reading_needs_neither_onnx_nor_mindspore():
    code = "import sys, ampgraph.formats.mindir.io; sys.exit(bool({'onnx', 'onnx_ir', 'mindspore'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_a_view_that_outlives_the_reading_does_no_harm(tmp_path, monkeypatch):
    """An exception's frames, say, may hold a piece of the mapped file: closing the map under them would fail."""
    path, kept = tmp_path / "cut.mindir", []
    path.write_bytes(DIGITS.with_name("digits_cnn.mindir").read_bytes()[:1000])
    kind_by_fields = mindir_io.kind_by_fields

    def looks(data):
        kept.append(data[:10])
        return kind_by_fields(data)

    monkeypatch.setattr(mindir_io, "kind_by_fields", looks)
    with pytest.raises(AmpError, match="AMP102"):
        mindir_io.load(path)
    assert kept


# MindIR files appear whole or not at all, beside others, over old ones.

# -- whole or not at all ----------------------------------------------------------------------------------------------


@pytest.fixture
def output(split, tmp_path):
    """A good output that stands where the next one goes."""
    out = tmp_path / "out" / "net.mindir"
    out.parent.mkdir()
    mindir_io.save(mindir_io.load(split), out)
    return out


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_failing_rename_leaves_the_old_output(split, output, monkeypatch, failing):
    before, left, replace = tree(output.parent), [failing], os.replace

    def fails(*arguments):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(*arguments)

    monkeypatch.setattr(os, "replace", fails)
    assert "disk is full" in refused("AMP105", mindir_io.save, rounded_all(split), output)
    assert tree(output.parent) == before


@pytest.mark.parametrize("failing", [0, 1])
def test_a_full_disk_in_the_middle(split, tmp_path, monkeypatch, failing):
    chunks, left = mindir_weights.stored_chunks, [failing]

    def fails(file, tensor):
        left[0] -= 1
        yield from chunks(file, tensor)
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(mindir_weights, "stored_chunks", fails)
    out = tmp_path / "out"
    out.mkdir()
    assert "disk is full" in refused("AMP105", mindir_io.save, rounded_all(split), out / "net.mindir")
    assert list(out.iterdir()) == []


def test_an_interrupt_leaves_nothing_and_the_model_as_it_was(split, tmp_path, monkeypatch):
    file = rounded_all(split)
    model, out = file.model.SerializeToString(deterministic=True), tmp_path / "out"
    out.mkdir()

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(mindir_io, "_write_model", interrupted)
        mindir_io.save(file, out / "net.mindir")
    assert not list(out.iterdir()) and file.model.SerializeToString(deterministic=True) == model


def test_outputs_lie_beside_others(split, output):
    foreign = output.parent / "net_variables" / "data_0"
    foreign.write_bytes(b"not ours")
    mindir_io.save(rounded_all(split), output)
    names = [p.name for p in (output.parent / "net_variables").iterdir()]
    assert len(names) == 3 and "data_0" in names
    foreign.unlink()
    mindir_io.save(mindir_io.load(write(dense(), split.parent / "plain.mindir")), output)
    assert list(output.parent.iterdir()) == [output]
    # outputs that share a folder share no data
    sibling = output.with_name("net_graph.mindir")
    mindir_io.save(mindir_io.load(split), sibling)
    mindir_io.save(rounded_all(split), output)
    assert values(sibling)["layer.weight"].dtype == np.float32 and values(output)["layer.weight"].dtype == np.float16
    # beside the input
    before = tree(split.parent)
    mindir_io.save(rounded_all(split), split.with_name("net.mindir"))  # its folder is the input's
    assert before.items() <= tree(split.parent).items()
    assert values(split.with_name("net.mindir"))["layer.bias"].dtype == np.float16


def test_never_over_the_input(split, output, tmp_path):
    before = tree(split.parent)
    (tmp_path / "link.mindir").symlink_to(split)
    for target in (split, split.parent / "net_variables" / "data_0", tmp_path / "link.mindir"):
        refused("AMP106", mindir_io.save, mindir_io.load(split), target)
        refused("AMP106", mindir_io.copy_unchanged, split, target)
    moved = output.rename(output.with_name("moved.mindir"))
    held = tree(output.parent)
    mindir_io.save(mindir_io.load(moved), output)  # the data files would get the names that the input's have
    mindir_io.save(rounded_all(moved), output)
    assert held.items() <= tree(output.parent).items() and tree(split.parent) == before


def test_places_that_cannot_be_written(split, tmp_path):
    file = rounded_all(split)
    assert "does not exist" in refused("AMP105", mindir_io.save, file, tmp_path / "none" / "out.mindir")
    assert "directory" in refused("AMP105", mindir_io.save, file, tmp_path)
    refused("AMP105", mindir_io.save, file, tmp_path / ("x" * 300))
    assert "not text" in refused("AMP105", mindir_io.save, file, tmp_path / os.fsdecode(b"\xff.mindir"))
    (tmp_path / "out_variables").write_text("a file")
    refused("AMP105", mindir_io.save, file, tmp_path / "out.mindir")
    (tmp_path / "away").mkdir()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "out_variables").symlink_to(tmp_path / "away")
    assert "leaves the folder" in refused("AMP105", mindir_io.save, file, tmp_path / "in" / "out.mindir")
    assert not list((tmp_path / "away").iterdir()) and len(list((tmp_path / "in").iterdir())) == 1


def test_ordinary_permissions(split, tmp_path):
    mask = os.umask(0)
    os.umask(mask)
    mindir_io.save(rounded_all(split), tmp_path / "out.mindir")
    (tmp_path / "copy").mkdir()
    mindir_io.copy_unchanged(split, tmp_path / "copy" / "out.mindir")
    for path in (p for p in tmp_path.rglob("*") if "given" not in p.parts):
        expected = (0o777 if path.is_dir() else 0o666) & ~mask
        assert stat.S_IMODE(path.stat().st_mode) == expected


# -- copies -----------------------------------------------------------------------------------------------------------


def test_copies(split, tmp_path):
    target = tmp_path / "copy" / "net_graph.mindir"
    target.parent.mkdir()
    for _ in range(2):
        mindir_io.copy_unchanged(split, target)
        assert tree(target.parent) == tree(split.parent)
    mindir_io.copy_unchanged(split, split.with_name("twin.mindir"))  # its data are there
    assert values(split.with_name("twin.mindir")).keys() == values(split).keys()
    # copy over other data
    target = tmp_path / "other" / "net.mindir"
    (target.parent / "net_variables").mkdir(parents=True)
    (target.parent / "net_variables" / "data_1").write_bytes(b"another model's")
    before = tree(target.parent)
    assert "'net_variables/data_1' is there already" in refused("AMP105", mindir_io.copy_unchanged, split, target)
    assert tree(target.parent) == before


def test_copy_that_fails(split, tmp_path, monkeypatch):
    target = tmp_path / "copy" / "net.mindir"
    target.parent.mkdir()
    replace = os.replace

    def fails(source, place):
        if place == target:
            raise OSError(errno.EDQUOT, "quota")
        replace(source, place)

    monkeypatch.setattr(os, "replace", fails)
    assert "disk is full" in refused("AMP105", mindir_io.copy_unchanged, split, target)
    assert list(target.parent.iterdir()) == []
