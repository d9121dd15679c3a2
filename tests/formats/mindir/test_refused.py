"""MindIR files that are damaged or hostile: an AmpError or a model, never anything else."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampgraph.core.errors import AmpError
from ampgraph.formats.mindir import io as mindir_io
from ampgraph.formats.mindir import schema
from ampgraph.formats.mindir import weights as mindir_weights
from formats.mindir.build import dense, write, write_split
from formats.mindir.files import DIGITS, refused, rounded_all

# -- what is refused --------------------------------------------------------------------------------------------------


def change(path, edit, target="model"):
    """Edits the model of a file in place."""
    model = schema.Model.FromString(path.read_bytes())
    edit(model if target == "model" else model.graph.parameter[0])
    path.chmod(0o600)
    write(model, path)
    return path


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\xd8^:\x7f" + bytes(range(200)), r"encrypted (AES-GCM)"),
        (b"\xda^:\x7f" + bytes(range(200)), r"encrypted (SM4-CBC)"),
        (bytes(range(255, 0, -1)), "encrypted, cut short, or another format"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS"),
        (b"PK\3\4" + bytes(40), "zip"),
        (b"some text of a user, no model at all", "another format"),
        (b"\x0a\x031.1", "holds no MindIR graph"),
        (dense().SerializeToString()[:-300], "cut short"),
    ],
)
def test_foreign_content(content, says, tmp_path):
    (tmp_path / "net.mindir").write_bytes(content)
    assert says in refused("AMP102", mindir_io.load, tmp_path / "net.mindir")


def test_an_onnx_file():
    assert not mindir_io.is_mindir(DIGITS)
    assert "is an ONNX model" in refused("AMP102", mindir_io.load, DIGITS)


def test_a_cut_between_two_fields(together):
    def cut(model):
        del model.primitives[1:]
        model.ClearField("mind_ir_version")

    assert "before its primitives" in refused("AMP102", mindir_io.load, change(together, cut))


def test_paths_that_are_no_file(tmp_path):
    assert "no such file" in refused("AMP101", mindir_io.load, tmp_path / "none.mindir")
    assert "directory" in refused("AMP101", mindir_io.load, tmp_path)
    os.mkfifo(tmp_path / "pipe.mindir")
    assert "not a file" in refused("AMP101", mindir_io.load, tmp_path / "pipe.mindir")
    refused("AMP101", mindir_io.load, "nul\0.mindir")


def test_other_versions_and_machines(together):
    assert "mind_ir_version 4" in refused(
        "AMP102", mindir_io.load, change(together, lambda m: setattr(m, "mind_ir_version", 4))
    )
    change(together, lambda m: setattr(m, "mind_ir_version", 3))
    assert "big-endian" in refused(
        "AMP102", mindir_io.load, change(together, lambda m: setattr(m, "little_endian", False))
    )


def test_names_that_are_no_text(together):
    together.write_bytes(together.read_bytes().replace(b"layer-Dense", b"layer\xff\xfeense"))
    assert "not text" in refused("AMP102", mindir_io.load, together)


def test_sizes_that_do_not_agree(together):
    change(together, lambda t: t.dims.append(2), "parameter")
    assert "parameter 'layer.weight' says 240 bytes and holds 120" in refused("AMP102", mindir_io.load, together)


@pytest.mark.parametrize("dims", [[-1, 5], [1 << 62, 1 << 62], [1 << 40, 1 << 20, 0]])
def test_absurd_shapes(together, dims):
    change(together, lambda t: t.dims.__setitem__(slice(None), dims), "parameter")
    assert "absurd" in refused("AMP102", mindir_io.load, together)


def test_data_held_twice(split):
    change(split, lambda t: setattr(t, "raw_data", bytes(120)), "parameter")
    assert "twice" in refused("AMP102", mindir_io.load, split)


@pytest.mark.parametrize("fields", [{"offset": -4}, {"offset": 1 << 62}, {"length": 4}, {"length": -1}])
def test_places_outside_the_data_file(split, fields):
    def moved(tensor):
        for field, value in fields.items():
            setattr(tensor.external_data, field, value)

    change(split, moved, "parameter")
    assert "parameter 'layer.weight' wants" in refused("AMP103", mindir_io.load, split)


@pytest.mark.parametrize(
    "location", ["", "/etc/passwd", "../outside", "link/data", "a\0b", "net_variables/../../outside"]
)
def test_locations_that_leave_the_folder(split, location):
    (split.parent.parent / "outside").write_bytes(b"\1" + bytes(999))
    (split.parent / "link").symlink_to("/etc")
    change(split, lambda t: setattr(t.external_data, "location", location), "parameter")
    assert "outside the model's folder" in refused("AMP103", mindir_io.load, split)


def test_data_files_that_are_wrong(split):
    data = split.parent / "net_variables" / "data_0"
    data.chmod(0o600)
    whole = data.read_bytes()
    data.write_bytes(whole[:80])
    assert "which has 80" in refused("AMP103", mindir_io.load, split)
    data.write_bytes(b"\0" + whole[1:])
    assert "little endian" in refused("AMP103", mindir_io.load, split)
    data.write_bytes(b"\xd9^:\x7f" + whole[4:])
    assert "encrypted (AES-CBC)" in refused("AMP103", mindir_io.load, split)
    data.unlink()
    assert "is missing" in refused("AMP103", mindir_io.load, split)


def test_data_that_is_gone_when_it_is_read(split, tmp_path):
    file = rounded_all(split)
    data = split.parent / "net_variables" / "data_1"
    data.chmod(0o600)
    data.write_bytes(data.read_bytes()[:70])
    refused("AMP103", mindir_io.save, file, tmp_path / "out.mindir")
    assert not [p for p in tmp_path.iterdir() if p.name != "given"]


def test_is_mindir(together, tmp_path):
    plain = tmp_path / "foo.bin"
    plain.write_bytes(together.read_bytes())
    assert mindir_io.is_mindir(plain) and mindir_io.is_mindir("any.mindir") and mindir_io.load(plain)
    for content in (b"", b"text", bytes(1000), b"\x08" * 5000, b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"):
        plain.write_bytes(content)
        assert not mindir_io.is_mindir(plain)
    assert not mindir_io.is_mindir(tmp_path) and not mindir_io.is_mindir(tmp_path / "none.bin")


# -- damage: an AmpError or a model, never anything else --------------------------------------------------------------


def survives(content, folder):
    """Loads, reads, rounds and saves; True when all of it worked."""
    path = folder / "fuzzed.mindir"
    path.write_bytes(content)
    mindir_io.is_mindir(path)
    try:
        file = mindir_io.load(path)
        for tensor in file.model.graph.parameter:
            mindir_weights.elements(file, tensor)
            if schema.ELEMENT_TYPES.get(tensor.data_type) == "float32":
                mindir_weights.round_tensor(file, tensor, "float16")
        mindir_io.save(file, folder / "saved.mindir")
        mindir_io.load(folder / "saved.mindir")
    except AmpError:
        return False
    return True


def test_truncated(tmp_path):
    whole = dense().SerializeToString()
    loaded = [cut for cut in range(0, len(whole), max(1, len(whole) // 100)) if survives(whole[:cut], tmp_path)]
    assert loaded == []


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_flipped_bytes(fuzz_folder, data):
    outside = data.draw(st.booleans())
    content = bytearray((fuzz_folder / ("net_graph.mindir" if outside else "net.mindir")).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    survives(bytes(content), fuzz_folder)


@pytest.fixture(scope="module")
def fuzz_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    write(dense(), folder / "net.mindir")
    write_split(dense(), folder)
    return folder
