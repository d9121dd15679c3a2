"""A recipe: read of whatever users give, checked once, written as text and JSON and read back."""

from __future__ import annotations

import json
import pickle
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampgraph.core.errors import AmpError
from ampgraph.core.ranges import Ranges
from ampgraph.core.recipe import OPTIONS, OtherFields, Recipe, RecipeFields, recipe_of
from ampgraph.core.recipe_values import STORES
from ampgraph.core.spellings import DTYPES, KEEP_IO, LEVELS

WORDS = st.lists(st.text(), max_size=3)
MARGINS = st.floats(min_value=1e-300, allow_nan=False, allow_infinity=False)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "level": st.sampled_from((None, *LEVELS)),
    "dtype": st.sampled_from(DTYPES),
    "policy": st.text(),
    "lists": st.lists(st.text(st.characters(blacklist_categories=["Cs"])), max_size=2),
    "fp32": WORDS,
    "low": WORDS,
    "io": WORDS,
    "target": st.none() | st.text(),
    "dims": st.dictionaries(st.text(min_size=1), st.integers(1, 10**6), max_size=3),
    "store_weights": st.sampled_from((None, *STORES)),
    "freeze_weights": st.booleans() | st.sampled_from(("true", "False")),
    "fp32_stream": st.booleans(),
    "rule": st.lists(st.sampled_from(("no-epilogue", "no-eps")), max_size=2),
    "rewrite": st.lists(st.sampled_from(("none", "all", "no-norm", "bias")), max_size=2),
    "opset": st.none() | st.integers(1, 30),
    "ranges": st.none() | st.text(st.characters(blacklist_categories=["Cs"])),
    "range_margin": st.none() | MARGINS,
}
RECIPES = st.fixed_dictionaries({}, optional=FIELDS).map(lambda fields: Recipe.of(**fields))


def refused(code: str, **fields: Any) -> AmpError:
    with pytest.raises(AmpError) as raised:
        recipe_of(None, fields)
    assert raised.value.code == code and raised.value.hint
    return raised.value


@given(RECIPES)
def test_recipes_read_back(recipe: Recipe) -> None:
    assert Recipe.from_text(recipe.to_text()) == recipe
    assert Recipe.from_json(recipe.to_json()) == recipe
    assert hash(Recipe.from_text(str(recipe))) == hash(recipe)
    # fields read as themselves
    assert recipe_of(None, vars(recipe)) == replace(recipe) == pickle.loads(pickle.dumps(recipe)) == recipe


def test_fields_of_a_recipe() -> None:
    assert set(FIELDS) == set(OPTIONS) == set(RecipeFields.__annotations__) - {KEEP_IO}
    assert set(RecipeFields.__annotations__) - set(OtherFields.__annotations__) == {"level"}
    # an unknown field is a type error with the nearest name
    with pytest.raises(TypeError) as raised:
        Recipe.of(dtpye="float16")  # type: ignore[call-arg]
    assert isinstance(raised.value, AmpError) and raised.value.hint == "did you mean 'dtype'?"
    # a recipe with fields replaced
    base = Recipe.of(level="O1", fp32=["a"])
    assert Recipe.of(base, fp32=["b"]) == Recipe.of("O1", fp32=["b"]) == Recipe.of(level="O1", fp32=["b"])
    assert Recipe.of(base, level=None, fp32=()) == Recipe()
    assert base == Recipe.of(base)
    with pytest.raises(FrozenInstanceError):
        base.level = "O3"  # type: ignore[misc]
    with pytest.raises(AmpError, match="recipe= is a int"):
        recipe_of(3, {})  # type: ignore[arg-type]


def test_recipes_as_people_write_them() -> None:
    recipe = Recipe.of(level="O2", fp32="op:Pow", low=["a,b"], dims={"batch": 8})
    assert str(recipe) == 'O2,float16,fp32=op:Pow,low="a,b",dims=batch=8'
    assert Recipe.from_text(" bfloat16 , O3,store-weights=keep, dim=n=2 ,fp32=x,fp32=y") == Recipe.of(
        level="O3", dtype="bfloat16", store_weights="keep", dims=["n=2"], fp32=("x", "y")
    )
    assert Recipe.from_text("") == Recipe() and str(Recipe()) == "float16"
    assert repr(Recipe.of(level="O1", opset=18)) == "Recipe(level='O1', opset=18)"
    # other words that people know
    assert Recipe.from_text("o1,fp16,target=TRT") == Recipe.of(level=1, target="tensorrt")
    assert Recipe.of(target="gpu").target == "cuda"
    assert Recipe.of(keep_io_types=False) == Recipe.of(io="low")
    assert Recipe.of(keep_io_types=True) == Recipe.of(keep_io_types=None) == Recipe()
    assert Recipe.of(keep_io_types=["mask"]).io == ("low", "mask=keep")
    # what users may give
    of_numpy: dict[str, Any] = {"opset": np.int64(18), "range_margin": np.float32(2)}
    recipe = Recipe.of(lists=Path("mine.toml"), io="low", ranges=Path("r"), **of_numpy)
    assert recipe == Recipe.of(lists=["mine.toml"], io=["low"], opset=18, range_margin=2, ranges="r")
    assert type(recipe.opset) is int and type(recipe.range_margin) is float
    assert Recipe.of(io="keep") == Recipe.of(io=["keep"]) == Recipe.of(lists=None, dims=None) == Recipe()
    assert Recipe.of(dims={"b": 1, "a": 2}).dims == (("a", 2), ("b", 1))


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("O9", "'O9' is neither a level nor a type", "levels are O0"),
        ("float61", "'float61' is neither a level nor a type", "did you mean 'float16'?"),
        ("fp33=x", "a recipe has no field 'fp33'", "did you mean 'fp32'?"),
        ("O2,level=O1", "'level' is given twice", "omit one"),
        ("O2,,O3", "'' is neither a level", "levels are"),
        ('fp32="x', "a quote is not closed", 'write fp32="a,b"'),
    ],
)
def test_a_text_that_is_none(text: str, message: str, hint: str) -> None:
    with pytest.raises(AmpError) as raised:
        Recipe.from_text(text)
    assert raised.value.code == "AMP301" and message in raised.value.message and hint in raised.value.hint


@pytest.mark.parametrize("given", [2, np.int32(2), "2", "o2", "O2", " o2 "])
def test_levels_as_people_write_them(given: Any) -> None:
    assert Recipe.of(level=given).level == "O2"


@pytest.mark.parametrize(
    ("given", "name"),
    [
        *((word, "float16") for word in ("fp16", "FP16", "f16", "half", "torch.half", np.float16, np.dtype("float16"))),
        *((word, "bfloat16") for word in ("bf16", "BF16", ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16))),
        (ir.DataType.FLOAT16, "float16"),
    ],
)
def test_types_as_people_write_them(given: Any, name: str) -> None:
    assert Recipe.of(dtype=given).dtype == name


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({"level": "O9"}, "AMP302", "unknown level 'O9'"),
        ({"level": 4}, "AMP302", "unknown level '4'"),
        ({"level": True}, "AMP302", "unknown level 'True'"),
        ({"dtype": "fp8"}, "AMP301", "unknown dtype 'fp8'"),
        ({"dtype": np.float64}, "AMP301", "unknown dtype"),
        ({"dtype": float}, "AMP301", "unknown dtype"),
        ({"dtype": 16}, "AMP301", "unknown dtype '16'"),
        ({"dtype": None, "keep_io_types": "yes"}, "AMP305", "keep_io_types='yes' is neither true nor false"),
        ({"io": "low", "keep_io_types": True}, "AMP301", "io and keep_io_types are both given"),
        ({"policy": 3}, "AMP301", "policy= must be text, not 3"),
        ({"target": 3}, "AMP301", "target= must be text, not 3"),
        ({"lists": [3]}, "AMP301", "lists: 3 is not a file"),
        ({"fp32": [3]}, "AMP305", "fp32: 3 is not a pattern"),
        ({"low": 3}, "AMP305", "low: 3 is not a pattern"),
        ({"io": [None]}, "AMP305", "io: None is not a pattern"),
        ({"dims": ["n"]}, "AMP310", "--dim n is not NAME=N"),
        ({"dims": {"n": 0}}, "AMP310", "--dim n=0 is not NAME=N"),
        ({"dims": {"n": True}}, "AMP310", "--dim n=True is not NAME=N"),
        ({"dims": 3}, "AMP310", "--dim 3 is not NAME=N"),
        ({"store_weights": "high"}, "AMP301", "invalid value for --store-weights: 'high'"),
        ({"opset": "new"}, "AMP307", "the opset must be a whole number, not 'new'"),
        ({"ranges": 3}, "AMP311", "ranges= is a int, not ranges"),
        ({"range_margin": "2"}, "AMP311", "range_margin= must be a number, not '2'"),
        ({"range_margin": 0}, "AMP311", "--range-margin must be a positive number, not 0"),
    ],
)
def test_a_word_that_makes_no_sense(fields: dict[str, Any], code: str, message: str) -> None:
    assert message in refused(code, **fields).message


def test_json_of_a_recipe() -> None:
    ranges = Ranges("digest", 1)
    ranges.add("x", np.ones(3, np.float32))
    recipe = Recipe.of(ranges=ranges)
    assert Recipe.from_json(recipe.to_json()) == recipe and {recipe: 1}[Recipe.of(ranges=ranges)] == 1
    assert str(recipe) == "float16,ranges=(in memory)" and "absmax" not in repr(recipe)
    with pytest.raises(AmpError, match="AMP311"):
        recipe.to_text()
    # json holds what is not at its default
    assert json.loads(Recipe.of(dims={"n": 2}, dtype="float16").to_json()) == {"ampgraph_recipe": 1, "dims": {"n": 2}}


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("{", "AMP401", "not JSON"),
        ("[]", "AMP401", "is not an ampgraph recipe"),
        ("{}", "AMP401", "is not an ampgraph recipe"),
        ('{"ampgraph_recipe": 2}', "AMP401", "recipe format 2 is not 1"),
        ('{"ampgraph_recipe": 1, "dtyp": "float16"}', "AMP401", "a recipe has no field 'dtyp'"),
        ('{"ampgraph_recipe": 1, "dtype": "fp8"}', "AMP301", "unknown dtype 'fp8'"),
        ('{"ampgraph_recipe": 1, "ranges": {}}', "AMP401", "are not ranges"),
    ],
)
def test_json_that_is_none(text: str, code: str, message: str) -> None:
    with pytest.raises(AmpError) as raised:
        Recipe.from_json(text, "r.json")
    assert raised.value.code == code and message in str(raised.value)
