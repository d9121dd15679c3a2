"""What a recipe's words name: the target that a file was converted for, the level that is best on a target."""

from __future__ import annotations

from typing import Any

import pytest

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.core.recipe import Recipe
from ampgraph.formats import adapters
from ampgraph.planner.resolve import level_of, lists_of, with_target_of_file
from onnx_text import parse


@pytest.mark.parametrize(
    ("said", "target", "dtype"),
    [
        ({}, "openvino", "bfloat16"),  # the low type is the target's where the recipe says none
        ({"target": "cuda"}, "cuda", "float16"),
        ({"dtype": "bfloat16"}, "openvino", "bfloat16"),
    ],
)
def test_a_converted_file_is_for_the_target_that_it_was_made_for(said: dict[str, Any], target: str, dtype: str) -> None:
    model = parse("g (float[2,4] x) => (float[2,4] y) { m = MatMul (x, w)  y = Relu (m) }", w=(4, 4))
    made = ampgraph.convert(model, target="openvino", check="off")
    for given, expected in ((made, (target, dtype)), (model, (said.get("target"), said.get("dtype", "float16")))):
        found = with_target_of_file(Recipe.of(**said), adapters.load(given)[0])
        assert (found.target, found.dtype) == expected


@pytest.mark.parametrize("level", [None, "O2"])
def test_an_unknown_target_is_refused_whatever_the_level(level: str | None) -> None:
    for resolved in (lists_of, level_of):
        with pytest.raises(AmpError, match="AMP304"):
            resolved(Recipe(target="nothing", level=level))


def test_a_target_that_lacks_the_low_type_is_not_taken_over() -> None:
    model = parse("g (float[2,4] x) => (float[2,4] y) { m = MatMul (x, w)  y = Relu (m) }", w=(4, 4))
    graph = adapters.load(ampgraph.convert(model, target="webgpu", check="off"))[0]
    assert with_target_of_file(Recipe(), graph).target == "webgpu"
    assert with_target_of_file(Recipe(dtype="bfloat16"), graph).target is None
