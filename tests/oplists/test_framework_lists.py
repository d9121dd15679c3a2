"""The lists of frameworks: each operator once, of a name that exists, in a class that says what becomes of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ampgraph.core.errors import AmpError
from ampgraph.oplists.files import check_operator, data_folder, read_file
from ampgraph.oplists.framework_lists import FOLLOWS, INSIDE, entries, framework

FILES = sorted(path.name for path in data_folder().glob("*.toml") if "[framework]" in path.read_text(encoding="utf-8"))
AT = {"low", "float32", "widest", FOLLOWS, INSIDE}


def test_there_are_lists() -> None:
    assert {"pytorch.toml", "pytorch_cpu.toml", "apex.toml", "tensorflow.toml", "mxnet.toml"} <= set(FILES)


@pytest.mark.parametrize("name", ["pytorch.toml", "pytorch_cpu.toml", "apex.toml"])
def test_classes_say_what_code_knows(name: str) -> None:
    for cls in framework(name).classes.values():
        assert {cls.at, *cls.levels.values()} <= AT


@pytest.mark.parametrize("name", FILES)
def test_each_operator_is_in_one_class_and_exists(name: str) -> None:
    file, whose = read_file(data_folder() / name), framework(name)
    found = list(entries(file, whose))
    assert [kind for kind, count in Counter(kind for kind, _ in found).items() if count > 1] == []
    own = set(whose.own(file))
    for kind, listing in found:
        if kind not in own:
            check_operator(file, listing.cls, kind)
    assert all(cls.source and cls.about for cls in whose.classes.values())


def test_a_file_that_says_no_framework_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[low]\nConv = "mine"\n', encoding="utf-8")
    with pytest.raises(AmpError, match=r"\[framework\]"):
        framework(path)
    path = tmp_path / "other.toml"  # a file is read once
    path.write_text('[framework]\nname = "x"\n[classes.low]\nat = "low"\n', encoding="utf-8")
    with pytest.raises(AmpError, match="'low' needs at, about, source"):
        framework(path)
