"""MindIR files appear whole or not at all, beside others, over old ones."""

import errno
import os
import stat

import numpy as np
import pytest

from ampgraph.formats.mindir import io as mindir_io
from ampgraph.formats.mindir import weights as mindir_weights
from formats.mindir.build import dense, write
from formats.mindir.files import refused, rounded_all, tree, values

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


def test_the_data_of_the_old_output_goes_last(split, output):
    foreign = output.parent / "net_variables" / "data_0"
    foreign.write_bytes(b"not ours")
    mindir_io.save(rounded_all(split), output)
    names = [p.name for p in (output.parent / "net_variables").iterdir()]
    assert len(names) == 3 and "data_0" in names
    foreign.unlink()
    mindir_io.save(mindir_io.load(write(dense(), split.parent / "plain.mindir")), output)
    assert list(output.parent.iterdir()) == [output]


def test_outputs_that_share_a_folder_share_no_data(split, output):
    sibling = output.with_name("net_graph.mindir")
    mindir_io.save(mindir_io.load(split), sibling)
    mindir_io.save(rounded_all(split), output)
    assert values(sibling)["layer.weight"].dtype == np.float32 and values(output)["layer.weight"].dtype == np.float16


def test_beside_the_input(split):
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


def test_copy(split, tmp_path):
    target = tmp_path / "copy" / "net_graph.mindir"
    target.parent.mkdir()
    for _ in range(2):
        mindir_io.copy_unchanged(split, target)
        assert tree(target.parent) == tree(split.parent)
    mindir_io.copy_unchanged(split, split.with_name("twin.mindir"))  # its data are there
    assert values(split.with_name("twin.mindir")).keys() == values(split).keys()


def test_copy_over_other_data(split, tmp_path):
    target = tmp_path / "copy" / "net.mindir"
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
