"""What pages promise: each sentence here stands in its page to the letter, and holds."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.numerics.search import BUDGET
from docs.test_commands_parse import COMMANDS, FENCED, PAGES, ROOT
from onnx_text import parse, proto

MODEL = ROOT / "models" / "digits_cnn.onnx"
TRANSFORMER = ROOT / "models" / "digits_transformer.onnx"
MASKED = """g (float[2, 4] x, bool[2, 4] m) => (float[2, 4] y) <float floor = {-inf}> {
    h = MatMul (x, w)  s = Where (m, h, floor)  y = Softmax (s)
}"""


def converted(model: object, **fields: Any) -> onnx.ModelProto:
    return proto(ampgraph.convert(model, check="off", **fields))  # type: ignore[call-overload]


def opset(model: onnx.ModelProto) -> int:
    return next(entry.version for entry in model.opset_import if not entry.domain)


def input_type(model: onnx.ModelProto) -> int:
    return model.graph.input[0].type.tensor_type.elem_type


def low_nodes(model: object, **fields: Any) -> set[str]:
    plan = ampgraph.plan(model, **fields)  # type: ignore[arg-type]
    return {decision.kind for decision in plan.decisions if decision.dtype == "float16"}


def loops_have_gradients() -> None:
    for carried, refused in (("h", False), ("", True)):
        out = "(bool more, float[N, 2] next)" if carried else "(bool more, float[N, 2] row)"
        body = f"body (int64 i, bool c{', float[N, 2] s' if carried else ''}) => {out}"
        body += "{ more = Identity (c) " + ("next = Relu (s) }" if carried else "row = Relu (h) }")
        text = (
            f"g (float[N, 4] x) => (float[{'' if carried else '3, '}N, 2] y) <int64 three = {{3}}, bool yes = {{1}}> {{"
        )
        model = parse(text + f" h = MatMul (x, w)  y = Loop (three, yes, {carried or ''}) <body = {body}> }}", w=(4, 2))
        if refused:
            with pytest.raises(AmpError, match="Loop has a gradient here where it carries a value"):
                ampgraph.build_training_step(model, loss="mse", optimizer="sgd")
        else:
            assert ampgraph.build_training_step(model, loss="mse", optimizer="sgd").layout.states


def rewrites_can_be_switched_off() -> None:
    assert (
        ampgraph.plan(TRANSFORMER, rewrite="all").rewrites and not ampgraph.plan(TRANSFORMER, rewrite="none").rewrites
    )


def the_opset_stays() -> None:
    before = parse("g (float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) { y = Conv (x, w) }", w=(4, 3, 3, 3), opset=18)
    found = {
        (target, dtype): opset(converted(before, target=target, dtype=dtype))
        for target in ("cuda", "cpu", "cann", "tensorrt")
        for dtype in ("float16", "bfloat16")
    }
    assert found.pop(("tensorrt", "bfloat16")) > 18 and set(found.values()) == {18}


def tune_has_a_budget() -> None:
    assert BUDGET == 20


def files_say_what_was_done() -> None:
    nodes = converted(onnx.load(TRANSFORMER)).graph.node
    assert any(entry.key == "ampgraph.reason" for node in nodes for entry in node.metadata_props)
    assert b"ampgraph.reason" not in converted(onnx.load(TRANSFORMER), metadata=False).SerializeToString()


def the_border_stays() -> None:
    assert input_type(converted(onnx.load(MODEL))) == onnx.TensorProto.FLOAT
    assert input_type(converted(onnx.load(MODEL), keep_io_types=False)) == onnx.TensorProto.FLOAT16


def unknown_operators_stay() -> None:
    text = "g (float[2, 4] x) => (float[2, 4] y) { h = MatMul (x, w)  y = mine.Own (h) }"
    assert low_nodes(parse(text, w=(4, 4), domains=["mine"])) == {"MatMul"}


def two_runs_are_the_same() -> None:
    first, second = (converted(onnx.load(MODEL)).SerializeToString(deterministic=True) for _ in range(2))
    assert first == second


def double_stays() -> None:
    text = "g (double[2, 4] x) => (double[2, 4] y) { y = MatMul (x, w) }"
    assert not low_nodes(parse(text, w=np.ones((4, 4))))


def nothing_at_o0() -> None:
    before = onnx.load(MODEL).SerializeToString(deterministic=True)
    assert converted(onnx.load(MODEL), level="O0").SerializeToString(deterministic=True) == before


def minus_infinity_stays() -> None:
    found = converted(parse(MASKED, w=(4, 4)), level="O3")
    stored = [onnx.numpy_helper.to_array(tensor).astype(np.float32) for tensor in found.graph.initializer]
    assert any(np.isneginf(array).all() for array in stored)


def a_plan_of_another_model_is_refused() -> None:
    with pytest.raises(AmpError, match="AMP403"):
        ampgraph.apply(onnx.load(TRANSFORMER), ampgraph.plan(MODEL))


def norms_stay() -> None:
    assert all("LayerNormalization" not in low_nodes(TRANSFORMER, level=level, target="cpu") for level in ("O1", "O2"))


CLAIMS: list[tuple[str, str, Callable[[], None]]] = [
    ("limits", "A Loop that carries no value has no gradient.", loops_have_gradients),
    ("limits", "`--rewrite none` leaves it all", rewrites_can_be_switched_off),
    ("limits", "without the option the opset changes for `--target tensorrt --dtype bfloat16` alone", the_opset_stays),
    ("faq", "norms are *kept*", norms_stay),
    ("faq", "`tune` makes three to six strict runs as a rule and twenty at most", tune_has_a_budget),
    ("faq", "That is the default. `--io low` or `--io NAME=low` changes them; `keep_io_types` is", the_border_stays),
    ("faq", "An operator in no list stays float32.", unknown_operators_stay),
    ("faq", "the same model, options and version give the same file", two_runs_are_the_same),
    ("faq", "a float64 model (only float32 is lowered)", double_stays),
    ("faq", "`--no-metadata` omits that", files_say_what_was_done),
    ("design", "O0 changes nothing", nothing_at_o0),
    ("design", "-inf is never changed.", minus_infinity_stays),
    ("design", "a plan applied to another model is refused", a_plan_of_another_model_is_refused),
]


@pytest.mark.parametrize(("page", "sentence", "holds"), CLAIMS, ids=lambda part: getattr(part, "__name__", None))
def test_a_claim_holds(page: str, sentence: str, holds: Callable[[], None]) -> None:
    text = " ".join((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").split())
    assert sentence in text, "the page says something else now: so must this test"
    holds()


OTHERS = {  # options of other tools and of the project's own scripts, by the words beside them
    "trtexec", "tensorboard", "precision_mode", "python -m", "strongly-typed", "onnxrt", "--write", "--table", "--fp16",
}  # fmt: skip


def inline(page: Path) -> list[str]:
    """What a page says in inline code, not in blocks."""
    return re.findall(r"`([^`]+)`", FENCED.sub("", page.read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", [p for p in PAGES if p.stem != "tensorrt"], ids=lambda page: page.stem)  # trtexec's
def test_options_and_places_in_sentences_are_there(page: Path) -> None:
    known = {word for command in COMMANDS.values() for one in command.params for word in one.opts + one.secondary_opts}
    known |= {"--help", "--version", "--install-completion"}
    for code in inline(page):
        if not any(word in code for word in OTHERS):
            assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", code)) <= known, code
        place = re.fullmatch(r"(?:tests|benchmarks|op_lists|examples|passes|ampgraph|models|docs)/[\w./-]+", code)
        assert not place or "NAME" in code or (ROOT / code).exists(), code


def test_the_drawing_of_the_house_has_its_rooms() -> None:
    drawing = (ROOT / "docs" / "design.md").read_text(encoding="utf-8").partition("## The house")[2].split("```")[1]
    drawn = dict(re.findall(r"^  (\w+)/ +(.*)$", drawing, re.M))
    rooms = {path.name for path in (ROOT / "ampgraph").iterdir() if path.is_dir() and not path.is_symlink()}
    assert set(drawn) == rooms - {"__pycache__"}
    for room, words in drawn.items():
        named = set(re.findall(r"(\w+)/", words))
        assert all((ROOT / "ampgraph" / room / folder).is_dir() for folder in named), room
