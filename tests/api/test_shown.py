"""What verbs return shows itself: as text, in notebooks as HTML, and as plain data."""

from __future__ import annotations

import base64
import json
import tempfile
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ampgraph
from ampgraph.report.benched import Benched, Timed
from cli_helpers import MODELS
from onnx_text import parse, proto

MODEL = """g (float[4, 8] x) => (float[4, 8] y) {
    [one] h = MatMul (x, w)
    [last] y = Softmax (h)
}"""


def model() -> Any:
    made = parse(MODEL, w=(8, 8))
    made.graph.node[1].name = "less<than"
    return made


def verified(low: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return ampgraph.verify(model(), low, html=Path(folder) / "page.html")


def checked() -> Any:
    """A file with a fault, against a model that it is not a conversion of."""
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(model(), Path(folder) / "given.onnx")
        faulty = model()
        faulty.graph.initializer[0].raw_data = b"\x00\x00\xc0\x7f" * 64
        onnx.save(faulty, Path(folder) / "faulty.onnx")
        return ampgraph.check(Path(folder) / "faulty.onnx", Path(folder) / "given.onnx")


TIMES = Benched(
    5,
    (
        Timed("onnxruntime", "a.onnx", "", 1, 2e-3, 1.0, None, None),
        Timed("onnxruntime", "less<than.onnx", "", 1, 1e-3, 2.0, (1.9, 2.1), 3e-4),
        Timed("openvino", "a.onnx", "bfloat16", 0, refused="it does not run here"),
    ),
)


@cache
def reports() -> dict[str, Any]:
    low = proto(ampgraph.convert(model()))
    return {
        "explain": ampgraph.explain(model(), "less<than"),
        "inspect": ampgraph.inspect(low, model()),
        "verify": verified(low),
        "diff": ampgraph.diff(ampgraph.plan(model(), "O1"), ampgraph.plan(model(), "O3")),
        "diff of models": ampgraph.diff(low, proto(ampgraph.convert(model(), "O3"))),
        "plan": ampgraph.plan(model(), "O2"),
        "check": checked(),
        "bench": TIMES,
        "summary": ampgraph.convert(model(), "O2", report=True)[1],
        "lists": ampgraph.lists("*Softmax"),
        "ranges": ampgraph.calibrate(model(), [{"x": np.full((4, 8), 300, np.float32)}]),
    }


@pytest.mark.slow
def test_reports_show_themselves() -> None:
    for name, report in reports().items():
        text, page = repr(report), report._repr_html_()
        assert str(report) == text and "object at" not in text, name
        assert page.startswith(("<p", "<table")) and "<script" not in page and "less<than" not in page, name
        json.dumps(report.to_dict(), allow_nan=False)


KEPT = {"p", "b", "table", "tr", "th", "td", "pre", "details", "summary", "img"}  # where notebooks are only shown
ATTRIBUTES = {"alt", "title", "src", "width", "height"}


class Tags(HTMLParser):
    """What a page for notebooks is made of, and what is left of it where pictures are left out."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.pictures: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        for name, value in attrs:
            if name == "src":
                head, _, data = str(value).partition(",")
                assert head == "data:image/svg+xml;base64"
                self.pictures.append(base64.b64decode(data).decode())
            self.text += f" {value} " if name == "alt" else ""

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.slow
def test_pictures_for_notebooks_need_no_script_and_no_style() -> None:
    """Whatever a viewer leaves out, the numbers stay: in tables and in the words of each picture."""
    found = reports() | {"tune": ampgraph.tune(model(), samples=1, tolerance=0.5)}
    said = {
        "inspect": ("1 float32, 1 float16", "MatMul"),
        "verify": ("ok", "error behind each of", "tolerance 0.01"),
        "plan": ("types along the graph:", "float16", "such as", "1 MatMul", "Casts to float", "float32: 3"),
        "summary": ("1 float16, 1 float32", "weights after", "Casts", "options"),
        "tune": ("chosen", "bytes in float32"),
        "lists": ("Softmax", "deny", "at O2"),
        "explain": ("Softmax 'less<than' is float32", "float16 costs", "by", "class"),
        "diff": ("they differ in", "level", "O1", "O3", "why first"),
        "diff of models": ("bytes of weights", "Softmax", "float32", "float16"),
        "check": ("faulty.onnx: wrong", "no stored tensor holds NaN", "error", "met"),
        "bench": (
            "onnxruntime, one thread, CPU time",
            "x 2.00",
            "200 % of the first",
            "1.90 to 2.10",
            "does not run here",
        ),
        "ranges": ("3 values of 1 sample, up to ", "in 'h'", "lost to zero in float16"),
    }
    for name, words in said.items():
        seen = Tags(found[name]._repr_html_())
        assert seen.tags <= KEPT and seen.attributes <= ATTRIBUTES, name
        assert all(word in seen.text for word in words), (name, seen.text)
        assert seen.pictures or name in ("lists", "ranges", "diff", "check"), name
        for picture in seen.pictures:
            ElementTree.fromstring(picture)


def test_layers_as_bars() -> None:
    """A row a layer as deep as there is room: two levels, else one, and how many more there are."""
    names = [f"/block{i}/{part}/Neg" for i in range(30) for part in ("a", "b")]
    seen = {}
    for count in (4, 30, 60):
        lines = "\n".join(
            f"[{quoted}] v{i + 1} = Neg (v{i})" for i, quoted in enumerate(map(json.dumps, names[:count]))
        )
        page = ampgraph.inspect(parse(f"g (float[2] v0) => (float[2] v{count}) {{ {lines} }}"))._repr_html_()
        seen[count] = Tags(page[page.index(">layer<") :])
    assert seen[4].text.split("2 float32") and "block1.b" in seen[4].text and len(seen[4].pictures) == 6
    assert "block14" in seen[30].text and "block14.a" not in seen[30].text and len(seen[30].pictures) == 15
    assert "and 6 more" in seen[60].text and len(seen[60].pictures) == 24


def test_the_text_is_that_of_the_command(amp: Any) -> None:
    source = MODELS / "digits_cnn.onnx"
    assert f"{ampgraph.explain(source, 'node_conv2d')}\n" == amp("explain", source, "node_conv2d")[1]
    assert f"{ampgraph.inspect(source)}\n" == amp("inspect", source)[1]
    assert f"{ampgraph.lists('*Softmax')}\n" == amp("lists", "*Softmax")[1]
    # a plan says what it does
    plan = ampgraph.plan(model())
    assert repr(plan).startswith("Plan(level O2, float16, policy ampgraph, target cuda: ")
    assert " casts, 1 stored tensors)" in repr(plan) and plan.to_dict()["level"] == "O2"


@pytest.mark.parametrize("level", ["O2", "auto"])
def test_a_converted_model_prints(level: str, tmp_path: Path) -> None:
    made = ampgraph.convert(ir.from_proto(model()), level)
    assert "MatMul" in str(made) and "RoundedTensor<FLOAT16" in repr(made.graph.initializers["w"].const_value)
