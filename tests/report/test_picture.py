"""Pages to look at: what they hold, how much of it, and that nothing in a model is taken for markup."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.formats.adapters import load_onnx
from ampgraph.report.fusions import Fusions, TargetGraph
from ampgraph.report.inspect import view_model
from ampgraph.report.picture.blocks import Block, blocks
from ampgraph.report.picture.drawing import WIDTH, draw, put_in_folders
from ampgraph.report.picture.page import Page, runtime_data
from ampgraph.runtime.optimized import OptimizedNode
from onnx_text import parse

MODELS = Path(ampgraph.__file__).parent / "models"


def data(page: Path) -> dict[str, Any]:
    """What a page holds, with its texts in place."""
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', page.read_text(encoding="utf-8"))
    assert found is not None
    held: dict[str, Any] = json.loads(found[1])
    words = held["strings"]
    held["nodes"] = [[*(words[w] for w in node[:5]), *node[5:]] for node in held["nodes"]]
    held["edges"] = [[*edge[:2], *(words[w] for w in edge[2:])] for edge in held["edges"]]
    return held


def mlp() -> onnx.ModelProto:
    return parse(
        "g (float[2,4] x) => (float[2,4] y) { h = MatMul (x, w)  e = Exp (h)  r = Softmax (e)  y = MatMul (r, w) }",
        w=np.eye(4, dtype=np.float32), opset=18,
    )  # fmt: skip


def test_nodes_and_lines(tmp_path: Path) -> None:
    ampgraph.convert(mlp(), "O1", output=tmp_path / "out.onnx", check="off", html=tmp_path / "p.html")
    held = data(tmp_path / "p.html")
    by_kind = {kind: (precision, rule, reason) for _, kind, precision, rule, reason, *_ in held["nodes"]}
    assert by_kind["MatMul"][0] == "float16" and by_kind["Exp"][0] == "float32"
    assert all(rule and reason for _, rule, reason in (by_kind["MatMul"], by_kind["Exp"]))
    assert [bar["label"] for bar in held["bars"]] == ["nodes", "weights before", "weights after"]
    assert any("float32 " in line for line in held["report"])
    # casts are part of the lines
    ampgraph.convert(mlp(), "O1", output=tmp_path / "out.onnx", check="off", html=tmp_path / "p.html")
    held = data(tmp_path / "p.html")
    assert "Cast" not in {kind for _, kind, *_ in held["nodes"]}
    names = [name for name, *_ in held["nodes"]]
    casts = {(names[s], names[t]): (dtype, cast) for s, t, _, dtype, _, cast in held["edges"] if cast}
    written = onnx.load(tmp_path / "out.onnx")
    assert len(casts) >= sum(node.op_type == "Cast" for node in written.graph.node) > 0
    assert set(casts.values()) == {("float32", "float16"), ("float16", "float32")}
    # the same model has the same page
    pages = {Page("m", draw(view_model(str(MODELS / "digits_transformer.onnx")).flow)).html() for _ in range(2)}
    assert len(pages) == 1


def test_reasons_and_names(tmp_path: Path) -> None:
    ampgraph.convert(mlp(), output=tmp_path / "out.onnx", check="off")
    ampgraph.inspect(tmp_path / "out.onnx", fusions=False, html=tmp_path / "p.html")
    assert {rule for _, kind, _, rule, *_ in data(tmp_path / "p.html")["nodes"] if kind == "MatMul"} != {""}
    # names are no markup
    given = mlp()
    given.graph.node[0].name = "</script><script>alert(1)</script>"
    page = Page("</title><b>", draw(view_model(given).flow)).html()
    assert page.count("<script") == 5 and "</title><b>" not in page and "alert(1)</script>" not in page
    assert not re.search(r"""(?:src|href)\s*=|url\(\s*["']?(?!#)|@import|fetch\(|XMLHttpRequest""", page)
    # mindir is drawn too
    model = str(MODELS / "digits_cnn.mindir")
    ampgraph.convert(model, output=tmp_path / "o.mindir", check="off", html=tmp_path / "p.html")
    held = data(tmp_path / "p.html")
    assert {"Conv2D", "input", "output"} <= {kind for _, kind, *_ in held["nodes"]}
    assert {cast for *_, cast in held["edges"]} == {"", "float16", "float32"}


@pytest.mark.slow
def test_verbs_add_what_they_know(tmp_path: Path) -> None:
    given = mlp()
    found = ampgraph.verify(given, ampgraph.convert(given), samples=2, html=tmp_path / "p.html")
    heat = data(tmp_path / "p.html")["heat"]
    assert found.ok and not found.growth and heat["nodes"] and all(error > 0 for _, error in heat["nodes"])
    # tune gives its candidates and each nodes part of the error
    tuned = ampgraph.tune(mlp(), samples=1, tolerance=1.0, sensitivity=True, html=tmp_path / "p.html")
    held = data(tmp_path / "p.html")
    assert len(held["frontier"]) == len(tuned.candidates) > 0 and sum(p["chosen"] for p in held["frontier"]) == 1
    assert held["heat"]["title"] == "part of the squared error" and held["heat"]["nodes"]


def test_guards_are_told(tmp_path: Path) -> None:
    """Exp of 12 passes float16: the range that was measured stands beside the node that it holds."""
    samples = [{"x": np.full((2, 4), 12, np.float32)}]
    ampgraph.convert(mlp(), output=tmp_path / "out.onnx", check="off", data=samples, html=tmp_path / "p.html")
    held = data(tmp_path / "p.html")
    spans = {(held["nodes"][int(node)][1], held["strings"][span]) for node, span in held["spans"].items()}
    assert {("MatMul", "12 to 12"), ("Exp", "1.628e+05 to 1.628e+05"), ("MatMul", "0.25 to 0.25")} <= spans
    assert held["guards"] == {"rules": ["range"], "said": ""}
    rules = {kind: (precision, rule) for _, kind, precision, rule, *_ in held["nodes"]}
    assert rules["Exp"] == ("float32", "range")
    # where no guard fired it is said
    ampgraph.convert(mlp(), "O1", output=tmp_path / "out.onnx", check="off", html=tmp_path / "p.html")
    held = data(tmp_path / "p.html")
    assert (
        held["guards"]["said"]
        == "no risk of overflow or underflow found from operators and weights (--data DIR also measures values)"
        and held["spans"] == {}
    )
    # a target that is not here is said
    ampgraph.inspect(mlp(), target="cann", html=tmp_path / "p.html")
    target = data(tmp_path / "p.html")["target"]
    assert target["title"].startswith("on CANN: cannot be told: ") and target["kernels"] == []


@pytest.mark.slow
def test_what_runs_as_one_kernel_is_told(tmp_path: Path) -> None:
    """A product behind a Transpose is one kernel on the CPU."""
    given = parse(
        "g (float[2,4] x, float[2,4] y) => (float[2,2] z) { t = Transpose <perm = [1, 0]> (y)  z = MatMul (x, t) }",
        opset=18,
    )
    ampgraph.inspect(given, given, target="cpu", html=tmp_path / "p.html")
    held = data(tmp_path / "p.html")
    target, kinds = held["target"], [kind for _, kind, *_ in held["nodes"]]
    (kernel,) = target["kernels"]
    assert kernel[:2] == ["com.microsoft::FusedMatMul", "CPU"]
    assert [kinds[node] for node in kernel[2]] == ["Transpose", "MatMul"]
    assert (target["main"], target["elsewhere"], target["gone"]) == ("CPU", {}, [])
    assert [bar["label"] for bar in held["bars"]] == ["nodes", "weights before", "weights after"]
    told = ampgraph.inspect(given, target="cpu").to_dict()["fusions"]
    assert isinstance(told, dict) and set(told) == {"runtime", "provider", "after", "before", "note"}


def test_bodies_and_functions_have_folders(tmp_path: Path) -> None:
    given = parse(
        "g (bool c, float[2,2] x) => (float[2,2] y) { y = If (c) <"
        "then_branch = t () => (float[2,2] a) { a = MatMul (x, w) },"
        "else_branch = e () => (float[2,2] b) { b = Relu (x) }> }",
        w=np.eye(2, dtype=np.float32), opset=18,
    )  # fmt: skip
    drawing = draw(view_model(given).flow)
    homes = {
        node.kind: drawing.folders.names[of] for node, of in zip(drawing.nodes, drawing.folders.of_nodes, strict=True)
    }
    assert homes["MatMul"] != homes["Relu"] and "" not in (homes["MatMul"], homes["Relu"])
    names = [node.kind for node in drawing.nodes]
    lines = {(names[edge.source], names[edge.target]) for edge in drawing.edges}
    assert {("MatMul", "If"), ("Relu", "If"), ("input", "MatMul"), ("If", "output")} <= lines


@pytest.mark.parametrize("count", [0, 1, WIDTH, WIDTH + 1, 20_000])
def test_no_folder_is_wider_than_can_be_looked_at(count: int) -> None:
    found = put_in_folders([("layer",) if i % 3 == 0 else () for i in range(count)], [f"n{i}" for i in range(count)])
    entries = [0] * len(found.names)
    for folder in [*found.of_nodes, *found.parents[1:]]:
        entries[folder] += 1
    assert max(entries) <= WIDTH and sum(entries) == count + len(found.names) - 1
    assert all(parent < number for number, parent in enumerate(found.parents[1:], 1))


def test_blocks_that_repeat_are_found() -> None:
    """By the row of operators alone, where least passes; a unit is one wherever it is, and units repeat in others."""
    layer = ["ReduceMean", "Sub", "MatMul", "Softmax", "MatMul", "Add"]
    row = ["input", "Add", *layer * 40, "MatMul", "output"]
    cuts = [1 if kind == "ReduceMean" else 2 for kind in row]
    first, second, *found, product, last = blocks(row, cuts)
    assert (first, second, product, last) == (0, 1, 242, 243) and len(found) == 40
    assert [one.parts for one in found[:2] if isinstance(one, Block)] == [(2, 3, 4, 5, 6, 7), (8, 9, 10, 11, 12, 13)]
    # a unit in a unit, as often as it is there
    conv, stage = ["Conv", "Sigmoid", "Mul"], []
    for count in (1, 2, 2, 1):
        stage += [*conv, "Split", *[*conv, *conv, "Add"] * count, "Concat"]
    nested = blocks(stage, [1] * len(stage))
    assert len({one.unit for one in nested if isinstance(one, Block)}) == 1 and len(nested) == 4
    inner = [part for one in nested if isinstance(one, Block) for part in one.parts if isinstance(part, Block)]
    assert len({part.unit for part in inner}) == 2 and len(inner) == 4 + 6
    # what is all the same is no block, nor what is too short
    assert blocks(["Relu"] * 9, [1] * 9) == list(range(9))
    assert blocks(["Relu", "Abs"] * 2, [1] * 4) == list(range(4))


def test_blocks_have_folders_and_rows_of_them_have_one() -> None:
    """Where a folder would be too wide; of other entries none is put away, and each has a label."""
    kinds = ["Cast", *["MatMul", "Erf", "Mul"] * 4, "Relu"]
    nodes = len(kinds)
    labels, paths = [f"n{number}" for number in range(nodes)], [()] * nodes
    found = put_in_folders(paths, labels, kinds, [1] * nodes, width=8)
    assert found.names == ["", "block A1", "block A2", "block A3", "block A4"] and found.parents == [0] * 5
    assert found.of_nodes == [0, *(1 + place // 3 for place in range(12)), 0]
    narrow = put_in_folders(paths, labels, kinds, [1] * nodes, width=3)
    assert "block A1 … block A4" in narrow.names and max(Counter(narrow.parents[1:]).values()) <= 3
    assert put_in_folders(paths, labels, kinds, [1] * nodes, width=nodes).names == [""]


def test_what_a_target_runs_elsewhere_or_not_at_all() -> None:
    text = "g (float[4] x) => (float[4] y) { a = Neg (x) b = Erf (a) c = Abs (b) y = Relu (c) }"
    drawing = draw(load_onnx(parse(text)).dataflow())
    assert runtime_data(None, drawing) is None
    untold = runtime_data(Fusions(provider="CUDAExecutionProvider", note="none here"), drawing)
    assert untold == {"title": "on CUDA: cannot be told: none here", "kernels": []}
    ran = [("Fused", "CUDA", ("a", "b")), ("Relu", "CUDA", ("y",)), ("Memcpy", "CUDA", ()), ("Abs", "CPU", ("c",))]
    graph = TargetGraph(4, {}, {}, {}, {})
    nodes = tuple(OptimizedNode("", kind, where, "float16", computes) for kind, where, computes in ran)
    told = runtime_data(Fusions("ONNX Runtime 1", "CUDAExecutionProvider", graph, None, nodes=nodes), drawing)
    numbers = {box.makes: number for number, box in enumerate(drawing.nodes)}
    assert told is not None and told["main"] == "CUDA" and told["elsewhere"] == {"CPU": [numbers["c"]]}
    assert told["kernels"] == [["Fused", "CUDA", [numbers["a"], numbers["b"]]]] and told["gone"] == []
    folded = runtime_data(Fusions("ONNX Runtime 1", "", graph, None, nodes=nodes[:2]), drawing)
    assert folded is not None and folded["gone"] == [numbers["c"]] and folded["elsewhere"] == {}


@pytest.mark.slow
def test_a_model_without_names_opens_by_its_blocks(tmp_path: Path) -> None:
    """And what is counted in one place is what is counted in another; the verdict stands by itself."""
    text = "".join(
        f"a{i} = MatMul (x{i}, w)  b{i} = Erf (a{i})  c{i} = Mul (a{i}, b{i})  x{i + 1} = Add (x{i}, c{i}) "
        for i in range(12)
    )
    given = parse(f"g (float[2,4] x0) => (float[2,4] x12) {{ {text} }}", w=np.eye(4, dtype=np.float32) / 9, opset=18)
    for node in given.graph.node:
        node.name = ""
    low = tmp_path / "low.onnx"
    ampgraph.convert(given, "O1", output=low, check="auto", html=tmp_path / "p.html")
    held = data(tmp_path / "p.html")
    names = [held["strings"][name] for name, _ in held["folders"]]
    assert names == ["", *(f"block A{number}" for number in range(1, 13))]
    assert held["verdict"]["met"] and held["verdict"]["words"].startswith("check: ok")
    counted = Counter(precision for _, kind, precision, *_ in held["nodes"] if kind not in ("input", "output"))
    (bar,) = (bar for bar in held["bars"] if bar["label"] == "nodes")
    assert counted == {precision: count for precision, count in bar["parts"] if count}
    found = ampgraph.verify(given, low, samples=2, tolerance=1e-9, nodes=0, html=tmp_path / "p.html")
    held = data(tmp_path / "p.html")
    assert held["verdict"] == {"words": found.verdict, "met": False} and found.verdict.startswith("missed: ")
    assert dict(held["bars"][0]["parts"]) == counted


@pytest.mark.parametrize("name", ["digits_transformer.onnx", "digits_cnn.onnx", "digits_cnn.mindir"])
def test_counts_agree(tmp_path: Path, name: str) -> None:
    ampgraph.convert(MODELS / name, output=tmp_path / f"low{Path(name).suffix}", check="off", html=tmp_path / "p.html")
    held = data(tmp_path / "p.html")
    counted = Counter(precision for _, kind, precision, *_ in held["nodes"] if kind not in ("input", "output"))
    other = sum(count for precision, count in counted.items() if precision not in ("float16", "float32"))
    parts = dict(held["bars"][0]["parts"])
    assert (counted["float16"], counted["float32"]) == (parts.get("float16", 0), parts.get("float32", 0))
    assert other == parts.get("other", 0)


def test_a_place_that_cannot_be_is_told_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(AmpError, match="AMP105"):
        ampgraph.convert(mlp(), output=tmp_path / "out.onnx", html=tmp_path / "none" / "p.html")
    onnx.save(mlp(), tmp_path / "m.onnx")
    with pytest.raises(AmpError, match="AMP106"):
        ampgraph.inspect(tmp_path / "m.onnx", html=tmp_path / "m.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx"]


def test_a_page_never_takes_the_place_of_the_model(tmp_path: Path, amp: Any) -> None:
    onnx.save(mlp(), tmp_path / "m.onnx")
    code, _, err = amp("convert", tmp_path / "m.onnx", "--check", "off", "--html", tmp_path / "m.O2.onnx")
    assert code == 2 and "AMP106" in err
    onnx.checker.check_model(onnx.load(tmp_path / "m.O2.onnx"))
