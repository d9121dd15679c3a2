"""What `convert` says of a model fits on a screen, whatever the model; --verbose has all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ampgraph
from ampgraph.core.graph import Stored
from ampgraph.core.verdict import CheckVerdict
from ampgraph.report.estimate import UNKNOWN, DeviceSpeed, Speed
from ampgraph.report.lines import shortened
from ampgraph.report.summary import (
    LONGEST,
    MOST,
    Pinned,
    Products,
    Rewritten,
    SaidNote,
    Summary,
    _notes_in_short,
    next_step,
)
from onnx_text import parse

SPECTRUM = """g (float[1, 400] x) => (float[1, 201] y) {
    r = MatMul (x, c)  i = MatMul (x, s)  a = Mul (r, r)  b = Mul (i, i)  p = Add (a, b)
    m = MatMul (p, w)  e = Add (m, eps)  l = Log (e)  n = LayerNormalization (l, g)  y = MatMul (n, w) }"""
POSITIONS = """g (float[1, 64, 32] x, float[1, 64, 1] t) => (float[1, 64, 32] y) {
    a = Mul (t, f)  c = Cos (a)  s = Sin (a)  u = Mul (x, c)  v = Mul (x, s)  z = Add (u, v)
    q = MatMul (z, w)  h = Softmax (q)  d = Exp (h)  k = CumSum (d, axis)  o = Pow (k, three)  l = Log (o)
    m = ReduceSum (l)  b = Div (q, m)  i = Sqrt (b)  j = Mystery (i)  r = Erf (j)  y = MatMul (r, w) }"""
KINDS = {
    "spectrum": (SPECTRUM, {"c": (400, 201), "s": (400, 201), "w": (201, 201), "g": (201,), "eps": np.float32(1e-10)}),
    "positions": (
        POSITIONS,
        {"f": (1, 1, 32), "w": (32, 32), "three": np.float32(3), "axis": np.array(1, np.int64)},
    ),
    "nothing": ("g (int64[4] x) => (int64[4] y) { y = Abs (x) }", {}),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("level", ["O1", "O2", "O3", "auto"])
@pytest.mark.parametrize("name", KINDS)
def test_it_is_short(amp: Any, tmp_path: Path, name: str, level: str, dtype: str) -> None:
    text, weights = KINDS[name]
    onnx.save(parse(text, weights), tmp_path / "m.onnx")
    words = ("convert", tmp_path / "m.onnx", "--dry-run", "--level", level, "--dtype", dtype)
    code, out, _ = amp(*words)
    assert code == 0 and 6 <= len(out.splitlines()) <= MOST
    rows = {line[:11].strip() for line in out.splitlines()}
    assert {"model", "result", "options", "nodes", "products", "casts", "weights"} <= rows
    assert ("float32" in rows) == (name != "nothing"), "a reason for float32 where there is something to give one for"


def test_each_reason_has_its_count_its_operators_and_an_example(amp: Any, tmp_path: Path) -> None:
    onnx.save(parse(*KINDS["spectrum"]), tmp_path / "m.onnx")
    out = amp("convert", tmp_path / "m.onnx", "--dry-run")[1]
    (line,) = [line for line in out.splitlines() if line.endswith(" (spectrum)") and "such as" in line]
    assert "3 nodes (2 MatMul, 1 Add), such as r: " in line and "that a logarithm" in line
    assert (
        "\nproducts    1 of 4 MatMul, Conv and the like in float16; float32: 2 MatMul (spectrum), 1 MatMul (weight)\n"
        in out
    )


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"tolerance": 1e-9}, {"level": "O0"}], ids=["right", "missed", "idle"])
@pytest.mark.filterwarnings("ignore::ampgraph.PrecisionWarning")
def test_what_is_to_be_done_is_said(options: dict[str, Any], amp: Any, tmp_path: Path, check_here: None) -> None:
    model = parse("g (float[2, 8] x) => (float[2, 8] y) { y = MatMul (x, w) }", {"w": (8, 8)})
    onnx.save(model, tmp_path / "m.onnx")
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    lines = amp("convert", tmp_path / "m.onnx", "-o", tmp_path / "o.onnx", "--check", "auto", *words)[1].splitlines()
    told = repr(ampgraph.convert(model, report=True, check="auto", **options)[1]).splitlines()
    verify = f"ampgraph verify {tmp_path}/m.onnx {tmp_path}/o.onnx --data DIR"
    if "tolerance" in options:
        assert "MISSED" in lines[-2] and "chaotic in itself" in lines[-2]
        assert lines[-1].endswith(f"judge the result by its own task: `{verify} --metric METRIC`")
        assert told[-1].endswith("judge the result by its own task: `ampgraph.verify`")
    elif "level" in options:
        assert (
            "nothing to lower: the result is an unchanged copy" in lines[3]
            and lines[-1] == f"next        nothing is gained by float16 here: use {tmp_path}/m.onnx as it is"
        )
        assert told[-1].endswith(": use the model as it is")
    else:
        assert (
            lines[-1].startswith(
                "next        accurate enough to use, but by the estimate SLOWER than float32 (0.4 to 0.8 "
            )
            and f"; optional: `{verify}` says ok or missed" in lines[-1]
        )
        assert told[-1].endswith("else the original; optional: `ampgraph.verify` says ok or missed on your own samples")
    assert amp("convert", tmp_path / "m.onnx", "--dry-run")[1].endswith("without --dry-run writes and checks it\n")


def test_what_does_not_fit_is_counted() -> None:
    held = tuple(
        Pinned(f"rule{i}", "MatMul", 2, f"/layer/{i}/" + "n" * 300, "too large for it " * 30) for i in range(60)
    )
    notes = tuple(SaidNote(topic=f"topic{i}", where="", text="read this " * 60, advice=False) for i in range(50))
    counts = {"float32": 120, "float16": 3}
    reasons = {"float32": {one.rule: one.count for one in held}}
    summary = Summary("m.onnx", "o.onnx", "O2", "float16", "ampgraph", "cuda", True, counts, 0, reasons,
                      Products(3, 0, 120, held), 0, 9, {}, {}, float32=held, notes=notes)  # fmt: skip
    lines = summary.lines()
    assert len(lines) == MOST and all(len(line) <= LONGEST + 12 for line in lines)
    shown = sum("(rule" in line for line in lines if not line.startswith("products"))
    assert f"{2 * (60 - shown)} more for {60 - shown} other reasons: --verbose lists them" in "\n".join(lines)
    topics = sum(line.startswith("topic") for line in lines)
    assert shown >= 1 and f"of {50 - topics} more topics: --verbose lists them" in "\n".join(lines)
    assert sum("too large" in line for line in summary.lines(every=True)) == 120


def test_casts_add_up_with_those_that_rewrites_removed() -> None:
    summary = Summary("m.onnx", "o.onnx", "O2", "float16", "ampgraph", "cuda", True, {"float16": 3}, 0, {},
                      Products(3, 0, 0), 23, 12, {}, {}, rewritten=(Rewritten("cast", "Cast", 18, ""),))  # fmt: skip
    said = "casts       23 -> 12 (-11: 18 redundant removed, 7 added besides); inputs and outputs keep their types"
    assert said in summary.lines()
    fewer = replace(summary, casts_after=4).lines()
    assert any("23 -> 4 (-19: 18 redundant removed, 1 fewer besides); " in line for line in fewer)


def test_inputs_and_outputs_that_change_their_type_are_said(amp: Any, tmp_path: Path) -> None:
    onnx.save(parse("g (float[4, 8] x, float[8, 8] z) => (float[4, 8] y) { y = MatMul (x, z) }"), tmp_path / "m.onnx")
    out = amp("convert", tmp_path / "m.onnx", "--dry-run", "--io", "z=low")[1]
    assert "; float16 now, as asked: z; other inputs and outputs keep their types" in out


def test_next_tells_what_the_check_and_the_estimate_leave_open() -> None:
    def told(check: CheckVerdict, speed: Speed | None = None, size: int = 8) -> str:
        return next_step(Summary("m.onnx", "o.onnx", "O2", "float16", "ampgraph", "cuda", True, {"float16": 3}, 0, {},
                                 Products(3, 0, 0), 0, 2, {"float32": Stored(1, size)}, {"float32": Stored(1, 4)},
                                 check=check, speed=speed))  # fmt: skip

    right = CheckVerdict("ok", 1e-3, 1e-2, 24, True)
    assert told(right).startswith("accurate enough to use; optional: `ampgraph verify m.onnx o.onnx --data DIR` says ")
    assert told(replace(right, exceeded=1)).startswith("accurate enough on 23 of 24 inputs; `ampgraph verify ")
    assert "to use; whether it is faster is not known; " in told(right, Speed(reason=UNKNOWN, unknown=True))
    for low, high, words in (0.5, 1.1, "may be slower"), (1.0, 1.1, "hardly faster"), (1.0, 1.0, "hardly faster"):
        said = told(right, Speed((DeviceSpeed("A", low, high),)))
        assert f"by the estimate {words} than float32 ({low}" in said and ", else m.onnx; " in said
    assert "times its speed): keep m.onnx; " in told(right, Speed((DeviceSpeed("A", 1.0, 1.0),)), 4)
    two = Speed((DeviceSpeed("A", 0.8, 0.9), DeviceSpeed("B", 0.5, 0.7)))
    assert "by the estimate SLOWER than float32 (0.5 to 0.9 times its speed)" in told(right, two)
    assert "by the estimate no faster than float32: " in told(right, Speed(reason="none to gain on an x86 CPU"))
    assert "estimate" not in told(right, Speed((DeviceSpeed("A", 1.1, 1.2),)))


def test_where_nothing_is_low_integers_are_the_reason(amp: Any, tmp_path: Path) -> None:
    """A later opset would take float16 here, and gain nothing."""
    text = """g (float[2, 8] x) => (float[2, 8] y) <float s = {0.05}, uint8 z = {128}> {
        q = QuantizeLinear (x, s, z)  d = DequantizeLinear (q, s, z)  r = Relu (d)
        p = QuantizeLinear (r, s, z)  y = DequantizeLinear (p, s, z) }"""
    onnx.save(parse(text, opset=13), tmp_path / "m.onnx")
    out = amp("convert", tmp_path / "m.onnx", "--dry-run")[1]
    assert "opset" not in out and "(schema)" not in out
    assert "float32     5 nodes (2 QuantizeLinear, 2 DequantizeLinear, 1 Relu), such as " in out


@pytest.mark.parametrize(
    ("most", "cut"),
    [(30, "it overflows..."), (32, "it overflows (so (x**2) is)..."), (60, "it overflows (so (x**2) is) early")],
)
def test_no_parenthesis_stays_open(most: int, cut: str) -> None:
    assert shortened("it overflows (so (x**2) is) early", most) == cut


def test_a_file_that_is_low_already_is_said_to_be_so(amp: Any, tmp_path: Path) -> None:
    """It has products in float16: that nothing computes in float16 would be false."""
    model = parse("g (float[4, 8] x) => (float[4, 8] y) { y = MatMul (x, w) }", w=(8, 8))
    onnx.save(model, tmp_path / "m.onnx")
    assert amp("convert", tmp_path / "m.onnx", "-o", tmp_path / "low.onnx")[0] == 0
    _, told, _ = amp("convert", tmp_path / "low.onnx", "-o", tmp_path / "again.onnx")
    assert "has products in float16 already" in told or "nothing to lower" in told
    assert "nothing computes in float16" not in told


def test_a_name_may_hold_braces() -> None:
    text = "g (float[2, 4] x) => (float[2, 4] y) { h = MatMul (x, w)  y = Tanh (h) }"
    model = parse(text, w=np.full((4, 4), 1e3, np.float32))
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = "{h}"
    data = [{"x": np.full((2, 4), 1e2, np.float32)}]
    found = ampgraph.convert(model, data=data, check="off", report=True)[1]
    assert any("'{h}' reaches" in held.meaning for held in found.float32)


def noted(*notes: tuple[str, str, bool], held: tuple[str, ...] = (), policy: str = "ampgraph") -> Summary:
    """A summary with notes (topic, where, advice), and a node in float32 by each of some rules."""
    said = tuple(SaidNote(topic=t, where=w, text=f"read {i}", advice=a) for i, (t, w, a) in enumerate(notes))
    pinned = tuple(Pinned(rule, "MatMul", 1, "m", "too large") for rule in held)
    return Summary("m.onnx", "o.onnx", "O2", "float16", policy, "cuda", True, {}, 0, {},
                   Products(0, 0, 0), 0, 0, {}, {}, float32=pinned, notes=said)  # fmt: skip


def test_notes_that_other_rows_say_are_left_out() -> None:
    """Those on nodes that the rows on float32 count, by a rule or a topic of `COUNTED`, and on measured ranges; but of
    a policy's own rule, which decides every node, notes say more."""
    every = [(topic, where, False) for topic in ("pow", "index", "samples", "range") for where in ("", "m")]
    assert _notes_in_short(noted(*every), 9) == [
        ("pow", "read 0 (and 1 more such notes: --verbose)"),
        ("index", "read 2"),
    ]
    assert _notes_in_short(noted(*every, held=("pow",)), 9) == [("pow", "read 0"), ("index", "read 2")]
    of_policy = noted(("mindspore", "m", False), held=("mindspore",), policy="mindspore")
    assert _notes_in_short(of_policy, 9) == [("mindspore", "m: read 0")]


def test_topics_of_notes_beyond_the_room_are_counted() -> None:
    three = noted(*((f"topic{i}", "", False) for i in range(3)))
    rows = [(f"topic{i}", f"read {i}") for i in range(3)]
    assert _notes_in_short(three, 3) == rows
    assert _notes_in_short(three, 2) == [rows[0], ("notes", "of 2 more topics: --verbose lists them")]
    assert _notes_in_short(three, 1) == [("notes", "of 3 more topics: --verbose lists them")]


def test_advice_goes_first_where_there_is_no_room() -> None:
    advice, other = ("gain", "", True), ("loss", "", False)
    assert _notes_in_short(noted(advice, other), 9, advice=False) == [("loss", "read 1")]

    def said(rules: int) -> tuple[int, list[str]]:
        lines = noted(advice, other, held=tuple(f"rule{i}" for i in range(rules))).lines()
        return len(lines), [line.split()[0] for line in lines if line.startswith(("gain", "loss"))]

    fewest = next(count for count in range(1, MOST) if said(count)[0] == MOST)
    assert said(fewest) == (MOST, ["gain", "loss"]) and said(fewest + 1) == said(MOST) == (MOST, ["loss"])
