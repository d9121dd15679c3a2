"""Arguments of a wrong kind: an AmpError with a hint, never Python's own TypeError or AttributeError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ampgraph
from ampgraph.core.recipe import OPTIONS
from cli_helpers import MODELS

MODEL = MODELS / "digits_cnn.onnx"
WRONG = (3, 2.5, b"x", object(), True, np.zeros(2))
ARGUMENTS: dict[Callable[..., object], tuple[str, ...]] = {
    ampgraph.convert: ("output", "passes", "check", "tolerance", "progress", "plan"),
    ampgraph.verify: ("dims", "device", "cache", "metric", "samples", "nodes", "steps"),
    ampgraph.explain: ("node",),
    ampgraph.lists: ("operator",),
}
FREE = {"check": (), "tolerance": (3, 2.5), "samples": (3,), "nodes": (3,), "steps": (3,)}  # of WRONG what is right


@pytest.mark.parametrize(("verb", "name"), [(verb, name) for verb, names in ARGUMENTS.items() for name in names])
def test_arguments(verb: Callable[..., object], name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    models = {ampgraph.convert: 1, ampgraph.verify: 2, ampgraph.explain: 1, ampgraph.lists: 0}[verb]
    for value in WRONG:
        if not any(value is right for right in FREE.get(name, ())):
            with pytest.raises(ampgraph.AmpError) as raised:
                verb(*[MODEL] * models, **{name: value})
            assert raised.value.hint and name.removesuffix("s") in str(raised.value)
    assert list(tmp_path.iterdir()) == []


RIGHT = {"level": (3,), "freeze_weights": (True,), "opset": (3,), "range_margin": (3, 2.5), "keep_io_types": (True,)}


@pytest.mark.parametrize("name", [*OPTIONS, "keep_io_types"])
def test_fields(name: str) -> None:
    for value in WRONG:
        if not any(value is right for right in RIGHT.get(name, ())):
            with pytest.raises(ampgraph.AmpError) as raised:
                ampgraph.Recipe.of(**{name: value})  # type: ignore[arg-type]
            assert raised.value.hint
