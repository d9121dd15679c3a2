"""Arguments of a wrong kind: an AmpError with a hint, never Python's own TypeError or AttributeError."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ampgraph
from ampgraph.core.arguments import CHECKS, check_texts
from ampgraph.core.recipe import OPTIONS
from cli_helpers import MODELS


def plain(kind: object) -> str:
    """An annotation without what is None."""
    return str(kind).removesuffix(" | None")


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


NAMES = [name for name in ampgraph.__all__ if name != "gradient"]  # a decorator of rules
VERBS = [verb for verb in map(ampgraph.__getattr__, NAMES) if inspect.isfunction(verb)]
PLAIN = [(verb, name) for verb in VERBS for name, kind in verb.__annotations__.items() if plain(kind) in CHECKS]


@pytest.mark.parametrize(("verb", "name"), PLAIN, ids=lambda one: getattr(one, "__name__", one))
def test_plain_arguments_of_every_verb(verb: Callable[..., object], name: str) -> None:
    """Paths, texts, truths, functions, mappings: the others are not even looked at."""
    required = [p.name for p in inspect.signature(verb).parameters.values() if p.default is p.empty]
    given = dict.fromkeys(required, str(MODEL))
    for value in (2.5, b"x", object(), np.zeros(2)):
        with pytest.raises(ampgraph.AmpError) as raised:
            verb(**{**given, name: value})
        assert raised.value.hint and name in str(raised.value)


RIGHT = {
    "level": (3,),
    "freeze_weights": (True,),
    "fp32_stream": (True,),
    "opset": (3,),
    "range_margin": (3, 2.5),
    "keep_io_types": (True,),
}


@pytest.mark.parametrize("name", [*OPTIONS, "keep_io_types"])
def test_fields(name: str) -> None:
    for value in WRONG:
        if not any(value is right for right in RIGHT.get(name, ())):
            with pytest.raises(ampgraph.AmpError) as raised:
                ampgraph.Recipe.of(**{name: value})  # type: ignore[arg-type]
            assert raised.value.hint


def test_texts_that_can_be_read_once_are_left_to_who_needs_them() -> None:
    given = iter(["op:Gemm", "op:Relu"])
    check_texts("fp32", given)
    assert list(given) == ["op:Gemm", "op:Relu"]
    assert ampgraph.Recipe.of(fp32=(name for name in ("op:Gemm", "op:Relu"))).fp32 == ("op:Gemm", "op:Relu")
    with pytest.raises(ampgraph.AmpError, match="fp32= is of type list, not texts"):
        check_texts("fp32", ["op:Gemm", 3])
