"""``opset="auto"``: the least opset that frees operators or saves Casts, and moves nothing off the target."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import ampgraph
from ampgraph.api.opsets import moved
from ampgraph.core.errors import AmpError
from ampgraph.core.plan import Plan
from ampgraph.core.progress import silent
from ampgraph.core.recipe import Recipe
from ampgraph.formats import adapters
from ampgraph.oplists.kernels import Kernels
from ampgraph.planner.resolve import resolve
from onnx_text import parse
from planner.support import casts, dtype_of

W = {"w": np.ones((8, 8, 1, 1), np.float32) / 8, "m": np.eye(8, dtype=np.float32)}
CLIPS = """g (float[1,8,9,9] x) => (float[1,8,9,9] y) {
    a = Conv (x, w)  b = Clip <min = 0.0, max = 6.0> (a)  c = Conv (b, w)  d = Clip <min = 0.0, max = 6.0> (c)
    y = Conv (d, w) }"""
PRODUCT = "g (float[8,8] x) => (float[8,8] y) { a = MatMul (x, m)  y = Relu (a) }"


def given(text: str, opset: int) -> ModelProto:
    return parse(text, {name: array for name, array in W.items() if f", {name})" in text}, opset=opset)


def opset_of(model: ModelProto) -> int:
    return next(item.version for item in model.opset_import if item.domain == "")


def test_a_clip_without_a_kernel_gets_one() -> None:
    model = given(CLIPS, 7)
    assert casts(ampgraph.convert(model, "O2")) == 6
    result = ampgraph.convert(model, "O2", opset="auto")
    assert opset_of(result) == 12 and casts(result) == 2


def test_nothing_moves_where_nothing_is_gained() -> None:
    for model in (given(CLIPS, 13), given(PRODUCT, 9)):
        result = ampgraph.convert(model, "O2", opset="auto")
        assert opset_of(result) == opset_of(model)
        assert result.SerializeToString() == ampgraph.convert(model, "O2").SerializeToString()


def test_bfloat16_needs_a_cast() -> None:
    model = given(PRODUCT, 9)
    assert dtype_of(ampgraph.convert(model, "O2", dtype="bfloat16"), "MatMul") == "f32"
    result = ampgraph.convert(model, "O2", dtype="bfloat16", opset="auto")
    assert opset_of(result) == 13 and dtype_of(result, "MatMul") == "bf16"


def test_tensorrt_takes_the_opset_that_bfloat16_needs() -> None:
    """Its parser takes a bfloat16 Conv of any opset; older schemas do not."""
    model = given(CLIPS, 13)
    words: dict[str, Any] = {"target": "tensorrt", "dtype": "bfloat16"}
    result = ampgraph.convert(model, "O2", **words)
    assert opset_of(result) == 22 and dtype_of(result, "Conv") == "bf16"
    assert ampgraph.convert(result, "O2", **words).SerializeToString() == result.SerializeToString()
    plan = ampgraph.plan(model, "O2", **words)
    recipe = Recipe.of(level="O2", **words)
    (note,) = moved(adapters.load(model)[0], recipe, resolve(recipe, "ONNX"), frozenset(), silent).notes
    assert note.text.startswith("moved from opset 13 to 22: -3 heavy nodes float32") and plan.opset == 22
    assert ampgraph.apply(model, Plan.from_json(plan.to_json())).SerializeToString() == result.SerializeToString()


@pytest.mark.parametrize("words", [{"level": "O0"}, {"dtype": "float16"}, {"target": "cuda"}, {"opset": 13}])
def test_the_opset_stays_elsewhere(words: dict[str, Any]) -> None:
    model = given(CLIPS, 13)
    result = ampgraph.convert(model, **{"level": "O2", "target": "tensorrt", "dtype": "bfloat16", **words})
    assert opset_of(result) == 13


def test_inputs_that_become_low_need_it_too() -> None:
    """`--io` is refused only where no later opset is taken."""
    model = given(PRODUCT, 12)
    low: dict[str, Any] = {"level": "O2", "dtype": "bfloat16", "io": "low"}
    for words in ({**low, "target": "tensorrt"}, {**low, "opset": "auto"}):
        plan, made = ampgraph.plan(model, **words), ampgraph.convert(model, **words)
        assert plan.opset == opset_of(made) >= 13 and not casts(made)
        assert ampgraph.apply(model, Plan.from_json(plan.to_json())) == made
    with pytest.raises(AmpError, match="AMP305"):
        ampgraph.plan(model, **low)


def test_nothing_moves_off_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were there no kernel for Relu at opset 13, the model would stay where it is."""
    runs = Kernels.runs
    missing = ("Relu", 13)
    monkeypatch.setattr(Kernels, "runs", lambda self, *asked: asked != missing and runs(self, *asked))
    assert opset_of(ampgraph.convert(given(PRODUCT, 9), "O2", dtype="bfloat16", opset="auto")) == 9
    recipe = Recipe.of(level="O2", dtype="bfloat16", opset="auto")
    graph, _ = adapters.load(given(PRODUCT, 9))
    notes = moved(graph, recipe, resolve(recipe, "ONNX"), frozenset(), silent).notes
    assert [note.text for note in notes] == ["opset 13 is not taken: cuda has no kernel there for Relu"]


def test_a_given_opset_that_moves_an_operator_off_the_target_says_so() -> None:
    """CUDA has no MaxPool of opset 22."""
    pool = parse("g (float[1,8,9,9] x) => (float[1,8,8,8] y) { y = MaxPool <kernel_shape = [2, 2]> (x) }", opset=17)
    graph, _ = adapters.load(pool)
    for opset, texts in ((22, ["opset 22 moves MaxPool off cuda, which has no kernel there"]), (21, [])):
        recipe = Recipe.of(level="O2", opset=opset)
        notes = moved(graph, recipe, resolve(recipe, "ONNX"), frozenset(), silent).notes
        assert [note.text for note in notes] == texts


def test_the_plan_says_what_another_opset_would_free() -> None:
    texts = {d.why.text for d in ampgraph.plan(given(CLIPS, 7), "O2").decisions if d.why.rule == "opset"}
    assert texts == {"CUDAExecutionProvider has no float16 kernel for Clip-6 (T); opset 12 has one"}


def test_words_that_make_no_sense() -> None:
    with pytest.raises(AmpError, match="AMP307.*whole number"):
        ampgraph.convert(given(CLIPS, 9), opset="newest")  # type: ignore[call-overload]
    plan = ampgraph.plan(given(CLIPS, 9))
    with pytest.raises(AmpError, match="AMP307.*no meaning here"):
        ampgraph.convert(given(CLIPS, 9), plan=plan, opset="auto")
    assert opset_of(ampgraph.convert(given(CLIPS, 9), opset="13")) == 13  # type: ignore[call-overload]
    assert str(ampgraph.Recipe.from_text("O2,opset=auto")) == "O2,float16,opset=auto"
    assert ampgraph.Recipe.from_text("O2,opset=13").opset == 13
