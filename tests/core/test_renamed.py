"""Renamed public names are taken for one version, with a warning that points at the caller."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest

import ampgraph
from ampgraph.core.renamed import renamed_keys, renamed_keywords


@renamed_keywords("0.3", told="progress")
def verb(model: str, *, progress: int = 0) -> tuple[str, int]:
    return model, progress


def test_the_old_keyword_works_and_warns() -> None:
    with pytest.warns(DeprecationWarning, match=r"verb\(told=\) is now progress=; the old name goes with 0\.3") as seen:
        assert verb("m", told=3) == ("m", 3)  # type: ignore[call-arg]
    assert seen[0].filename == __file__


def test_the_new_keyword_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert verb("m", progress=3) == ("m", 3)


def test_both_are_too_many() -> None:
    with pytest.raises(TypeError, match="both 'told' and 'progress'"):
        verb("m", progress=3, told=3)  # type: ignore[call-arg]


def test_keys_of_older_files() -> None:
    with pytest.warns(DeprecationWarning, match="the key 'a' is now 'b'") as seen:
        assert renamed_keys({"a": 1, "c": 2}, {"a": "b"}, "0.3") == {"b": 1, "c": 2}
    assert seen[0].filename == __file__


def test_verbs_still_hear_told() -> None:
    text = '<ir_version: 9, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Relu (x) }'
    model = onnx.parser.parse_model(text)
    heard: list[str] = []
    data = [{"x": np.ones(2, np.float32)}]
    for call in (
        lambda: ampgraph.verify(model, model, data=data, told=lambda *said: heard.append("verify")),
        lambda: ampgraph.calibrate(model, data, told=lambda *said: heard.append("calibrate")),
        lambda: ampgraph.tune(model, data=data, told=lambda *said: heard.append("tune")),
        lambda: ampgraph.inspect(model, told=lambda *said: heard.append("inspect")),
    ):
        with pytest.warns(DeprecationWarning, match="told"):
            call()
    assert set(heard) == {"verify", "calibrate", "tune", "inspect"}
