"""Plans of both formats that somebody edits: carried out, or refused in a line with a hint."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

import ampgraph
from ampgraph.core.errors import AmpError
from api.test_plans import of_format_1, rewritten
from onnx_text import parse

Path = tuple[str | int, ...]
WRONG: tuple[Any, ...] = (
    None,
    True,
    -1,
    10**30,
    1.5,
    float("inf"),
    "",
    "other",
    "\ud800",
    [],
    ["a"],
    {"a": 1},
    [None],
)
GONE, TWICE = "gone", "twice"


def places(data: Any, path: Path = ()) -> Iterator[Path]:
    """The first of each kind: where two paths differ only in numbers of rows they are one."""
    if path:
        yield path
    if isinstance(data, dict):
        for key in data:
            yield from places(data[key], (*path, key))
    elif isinstance(data, list):
        is_row = len(path) == 2 and path[0] in ("decisions", "reasons", "together")
        for place, item in enumerate(data if is_row else data[:2]):
            yield from places(item, (*path, place))


def held(data: Any, path: Path) -> Any:
    for key in path:
        data = data[key]
    return data


def edits(data: Any) -> Iterator[tuple[Path, Any, Any]]:
    """Where, what now stands there, and the plan."""
    for path in places(data):
        for new in (*WRONG, GONE, TWICE):
            plan = copy.deepcopy(data)
            around, key = held(plan, path[:-1]), path[-1]
            if new is GONE:
                del around[key]
            elif new is not TWICE:
                around[key] = new
            elif isinstance(around, list):
                around.insert(0, copy.deepcopy(held(plan, path)))
            else:
                around[f"{key}x"] = 1
            yield path, new, plan


def outcome(model: onnx.ModelProto, plan: Any) -> str:
    """The code of the error, an empty text for none."""
    try:
        read = ampgraph.Plan.from_json(json.dumps(plan))
        assert ampgraph.Plan.from_json(read.to_json()) == read
        read._repr_html_()
        ampgraph.apply(model, read)
    except AmpError as error:
        assert error.hint
        return error.code
    return ""


def is_other_type(old: Any, new: Any, path: Path) -> bool:
    """Whether what stands there now cannot be meant: of another type, and no whole number for one with a fraction."""
    if new in (GONE, TWICE) or (new is None and path[-1] in ("floor", "together")):
        return False
    if isinstance(old, float):
        return type(new) not in (int, float)
    return isinstance(old, (str, int, list, dict)) and type(new) is not type(old)


@pytest.mark.parametrize("name", ["norm", "half", "bias", "together", "number", "einsum"])
def test_every_field(name: str) -> None:
    model = rewritten()[name]
    plan = ampgraph.plan(model)
    written = [json.loads(plan.to_json()), of_format_1(plan)]
    for data in written if name != "einsum" else written[:1]:
        for path, new, edited in edits(data):
            found = outcome(model, edited)
            assert found in ("", "AMP401", "AMP402", "AMP403", "AMP307"), (path, new)
            if is_other_type(held(data, path), new, path):
                assert found == "AMP401", (path, new)


def test_text_that_is_nested_deeply() -> None:
    for text in ("[" * 100_000, '{"ampgraph_plan": ' + "[" * 100_000):
        with pytest.raises(AmpError, match="AMP401"):
            ampgraph.Plan.from_json(text)


@pytest.mark.parametrize("stored", ["low", "keep"])
@pytest.mark.parametrize("mask", [np.float32(-3.4e38), np.float32(0)])
def test_other_weights_beyond_the_range_are_refused(mask: np.float32, stored: str) -> None:
    """Those that are raised to a floor, and those that a Cast reads, as well."""
    text = "g (float[16,16] x) => (float[16,16] y) { a = MatMul (x, w)  s = Add (a, m)  y = Softmax (s) }"
    stored_mask = np.triu(np.full((16, 16), mask), 1)
    given = parse(text, w=(16, 16), m=stored_mask)
    plan = ampgraph.plan(given, "O3", store_weights=stored)
    assert ampgraph.apply(given, plan)
    stored_mask[3, 0] = 1e5
    other = parse(text, w=(16, 16), m=stored_mask)
    assert outcome(other, plan.to_dict()) == "AMP403"
