"""Data files beside a model: their names, and pairs of which one half is older."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import ampgraph
from ampgraph import AmpError
from ampgraph.formats.onnx import io as onnx_io
from ampgraph.formats.onnx.data_files import Mark, own_data
from onnx_text import parse

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


def test_data_of_others_gets_out_of_the_way_of_nobody(tmp_path: Path) -> None:
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
