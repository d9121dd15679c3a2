"""Pages in a real browser, headless: what is drawn, how much of it, and that a click opens a layer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import ampgraph
from ampgraph.core.json_types import JsonObject
from ampgraph.report.fusions import Fusions, TargetGraph
from ampgraph.report.inspect import view_model
from ampgraph.report.picture.drawing import WIDTH, Box, Drawing, Edge, draw, put_in_folders
from ampgraph.report.picture.page import Bar, Page, runtime_data
from ampgraph.runtime.optimized import read_optimized
from onnx_text import parse
from report.browser import COUNT, looked_at, needs_browser

pytestmark = [pytest.mark.slow, needs_browser]
MODELS = Path(ampgraph.__file__).parent / "models"
ELEMENTS, AT_FIRST = 300, 24


def test_layers_open_by_a_click_and_close_again(tmp_path: Path) -> None:
    page = Page("digits", draw(view_model(str(MODELS / "digits_transformer.onnx")).flow)).html()
    told = looked_at(page, tmp_path, COUNT + """
        const click = (found) => found.dispatchEvent(new MouseEvent("click", {bubbles: true}));
        told.first = [count("g.folder"), count("g.node")];
        click(world.querySelector("g.folder"));
        told.then = [count("g.folder"), count("g.node")];
        told.about = document.getElementById("about").textContent;
        while (count("g.open")) click(world.querySelector("g.open"));
        told.last = count("g.node");
        search.value = "softmax"; search.dispatchEvent(new Event("input"));
        click(document.querySelector("#results button"));
        told.found = world.querySelector(".selected .frame") !== null;
        told.kind = document.getElementById("about").textContent;
    """)  # fmt: skip
    assert told["errors"] == []
    assert 0 < sum(told["first"]) <= AT_FIRST and told["then"][1] > told["first"][1] > told["last"] - 1
    assert "float32" in told["about"] and told["found"] and "Softmax" in told["kind"]


def test_twenty_thousand_nodes_stay_few_on_the_page(tmp_path: Path) -> None:
    """A chain without layers: runs of neighbours are folded, and what was opened first is closed again."""
    count = 20_000
    nodes = [Box(f"n{i}", "Relu", "float16", "cut", "because", 0) for i in range(count)]
    edges = [Edge(i, i + 1, f"v{i}", "float16", "1×8", "float32" if i % 7 == 0 else "") for i in range(count - 1)]
    page = Page("long", Drawing(nodes, edges, put_in_folders([()] * count, [node.name for node in nodes]))).html()
    told = looked_at(page, tmp_path, COUNT + """
        told.first = count("[data-key]");
        told.most = 0;
        for (const node of [5000, 100, 19000, 7777, 12345, 3, 15000]) {
          goTo(NODES[node]);
          told.most = Math.max(told.most, count("[data-key]"));
          if (!world.querySelector(`[data-key="n${node}"].selected`)) errors.push(`node ${node} is not shown`);
        }
    """)  # fmt: skip
    assert told["errors"] == []
    assert told["first"] <= WIDTH and ELEMENTS - 100 < told["most"] <= ELEMENTS + 40


def test_what_is_all_in_one_folder_opens(tmp_path: Path) -> None:
    """A single box on a blank page says nothing: it is open, however much is in it, and the verdict stands above."""
    nodes = [Box(f"n{i}", "Relu", "float16", "cut" if i else "", "because", 0) for i in range(WIDTH)]
    edges = [Edge(i, i + 1, f"v{i}", "float16", "8") for i in range(WIDTH - 1)]
    drawing = Drawing(nodes, edges, put_in_folders([("model",)] * WIDTH, [node.name for node in nodes]))
    told = looked_at(Page("one", drawing, verdict="missed: y", met=False).html(), tmp_path, COUNT + """
        told.first = [count("g.folder"), count("g.node")];
        const verdict = document.getElementById("verdict");
        const above = verdict.offsetTop < document.querySelector("aside").offsetTop;
        told.verdict = [verdict.textContent, verdict.className, above];
        told.rules = [...document.querySelectorAll("#reasons button")].map((one) => one.textContent);
    """)  # fmt: skip
    assert told["errors"] == [] and told["first"] == [0, WIDTH]
    assert told["verdict"] == ["missed: y", "missed", True]
    assert told["rules"] == [f"{WIDTH - 1} float16, cut", "1 float16, as it was"]


def test_errors_colour_the_nodes(tmp_path: Path) -> None:
    nodes = [Box(name, "Relu", "float16", "cut", "because", 0) for name in ("a", "b", "c")]
    edges = [Edge(0, 1, "v", "float16", "8"), Edge(1, 2, "w", "float16", "8", "float32")]
    drawing = Drawing(nodes, edges, put_in_folders([(), (), ("deep",)], ["a", "b", "c"]))
    points: list[JsonObject] = [{"step": "all low", "error": 0.1, "bytes": 0, "chosen": True}]
    page = Page("heat", drawing, heat={"a": 1e-6, "b": 1.0}, heat_title="error", frontier=points).html()
    told = looked_at(page, tmp_path, COUNT + """
        const fill = (key) => getComputedStyle(world.querySelector(`[data-key="${key}"] .frame`)).fill;
        told.before = [fill("n0"), fill("n1")];
        const box = document.getElementById("heat-on");
        box.checked = true; box.dispatchEvent(new Event("change"));
        told.after = [fill("n0"), fill("n1")];
        told.worst = document.querySelector("#worst button").textContent;
        told.casts = count("g.line.cast");
        told.points = document.querySelectorAll("#plot circle").length;
    """)  # fmt: skip
    assert told["errors"] == [] and told["worst"].startswith("b") and (told["casts"], told["points"]) == (1, 1)
    assert told["before"][0] == told["before"][1] and told["after"][0] != told["after"][1]


def test_everything_that_is_known_of_a_node_is_on_the_page(tmp_path: Path) -> None:
    """Reasons, guards, ranges, kernels, bytes before and after, errors, the frontier, the search: one of each."""
    nodes = [
        Box("a", "MatMul", "float16", "list", "allow is low", 64, "-3 to 812"),
        Box("b", "Exp", "float32", "range", "passes float16", 0, "1 to 2e+05"),
        Box("c", "Relu", "float16", "cut", "costs least", 0),
    ]
    edges = [Edge(0, 1, "v", "float16", "8", "float32"), Edge(1, 2, "w", "float32", "8", "float16")]
    page = Page(
        "all", Drawing(nodes, edges, put_in_folders([(), (), ("deep",)], ["a", "b", "c"])), ["the report"],
        [
            Bar("weights", "weights before", {"float32": 128}, "128 bytes"),
            Bar("weights", "weights after", {"float16": 64}, "64 bytes"),
        ],
        heat={"b": 0.5}, heat_title="error", guards=["range"],
        frontier=[{"step": "O2", "error": 0.1, "bytes": 9, "chosen": False},
                  {"step": "O1", "error": 0.01, "bytes": 99, "chosen": True},
                  {"step": "O3", "error": None, "bytes": 0, "chosen": False}],
        target={"title": "on CUDA", "main": "CUDA", "elsewhere": {"CPU": [2]}, "gone": [],
                "kernels": [["Fused", "CUDA", [0, 1]]]},
    )  # fmt: skip
    told = looked_at(page.html(), tmp_path, COUNT + """
        const at = (key) => world.querySelector(`[data-key="${key}"]`);
        const hover = (found) => found.dispatchEvent(new MouseEvent("mouseenter"));
        const words = (id) => document.getElementById(id).textContent;
        hover(at("n1")); told.b = words("about"); told.mates = count(".mate"); told.guarded = count(".guarded");
        hover(at("n0")); told.a = words("about"); 
        told.badges = [...world.querySelectorAll(".badge")].map((b) => b.textContent);
        hover(world.querySelector("g.line.cast")); told.line = words("about");
        at("n2").dispatchEvent(new MouseEvent("click", {bubbles: true})); hover(at("n0")); told.c = words("about");
        told.parts = ["guards", "target", "bars", "worst", "report"].map(words);
        told.plot = ["circle", ".chosen"].map((what) => document.querySelectorAll(`#plot ${what}`).length);
        document.querySelector("#guards button").click(); told.held = words("results");
        document.querySelector("#target button").click(); told.fused = words("results");
        search.value = "relu"; search.dispatchEvent(new Event("input")); told.found = words("results");
        search.value = "nothing"; search.dispatchEvent(new Event("input")); told.none = words("results");
    """)  # fmt: skip
    assert told["errors"] == []
    for part in ("Exp", "guard range", "passes float16", "1 to 2e+05", "runs onCUDA", "Fused, #1, of 2 nodes", "0.5"):
        assert part in told["b"], part
    assert "64 bytes" in told["a"] and "together withb" in told["a"] and "float16 [8] → float32" in told["line"]
    assert "runs onCPU" in told["c"] and "kernel" not in told["c"], "what was clicked stays while the mouse moves on"
    assert (told["mates"], told["guarded"], told["badges"]) == (2, 1, ["#1", "#1 ◆"])
    guards, target, bars, worst, report = told["parts"]
    assert guards.endswith("1 held by guard range") and target == "on CUDA1 Fused of 2 nodes1 on CPU"
    assert "128 bytes" in bars and "64 bytes" in bars and (worst, report) == ("b 0.500", "the report")
    assert told["plot"] == [2, 1] and told["held"].startswith("b") and told["fused"].startswith("a")
    assert told["found"].startswith("c") and told["none"] == "nothing by that name"


# The page of what CUDA makes of a model, from a graph that ONNX Runtime 1.31.1 wrote, in a browser, light and dark.

FILE = """g (float[2,3,8] x, float[2,2] c) => (float[2,3,8] y, float d) {
  [c_to_float16] c_float16 = Cast <to = 10> (c)  [flat] f = Relu (c_float16)  [det] z = Det (f)
  [end] d_float16 = Relu (z)  [d_to_float32] d = Cast <to = 1> (d_float16)
  [x_to_float16] x_float16 = Cast <to = 10> (x)  [in_product] h = MatMul (x_float16, w)  [in_bias] a = Add (h, b)
  [by_root] q = Div (a, root)  [erf] e = Erf (q)  [plus] p = Add (e, one)  [times] t = Mul (a, p)
  [gelu] g = Mul (t, half)  [out_product] k = MatMul (g, v)  [out_bias] l = Add (k, b)  [stream] r = Add (l, x_float16)
  [norm] y_float16 = LayerNormalization (r, s)  [y_to_float32] y = Cast <to = 1> (y_float16) }"""
MADE = """g (float[2,3,8] x, float[2,2] c) => (float[2,3,8] y, float d) <int64[2] flat, int64[3] deep> {
  [c_to_float16] c_float16 = Cast <to = 10> (c)  [flat] f_CUDA = Relu (c_float16)  [copy_1] f = MemcpyToHost (f_CUDA)
  [free_f] f_32 = Cast <to = 1> (f)  [det] z_32 = Det (f_32)  [free_z] z = Cast <to = 10> (z_32)
  [copy_2] z_CUDA = MemcpyFromHost (z)  [end] d_float16 = Relu (z_CUDA)  [d_to_float32] d = Cast <to = 1> (d_float16)
  [x_to_float16] x_float16 = Cast <to = 10> (x)  [flat_1] i = Reshape (x_float16, flat)
  [in_product_gemm] j = Gemm (i, w, b)  [deep_1] a = Reshape (j, deep)  [Gelu] g = Gelu (a)
  [flat_2] m = Reshape (g, flat)  [out_product_gemm] n = Gemm (m, v, b)  [deep_2] l = Reshape (n, deep)
  [Skip] y_float16 = com.microsoft.SkipLayerNormalization (l, x_float16, s)
  [y_to_float32] y = Cast <to = 1> (y_float16) }"""
SHAPES = {"w": (8, 8), "v": (8, 8), "b": (8,), "s": (8,), "root": (), "one": (), "half": ()}
PLACED = "AssignedToAnEp]  Node(s) placed on [{}ExecutionProvider]. Number of nodes: 1\n"


def log(made: onnx.ModelProto) -> str:
    """What the session says of where nodes run, as it says it: the determinant and the Casts around it on the CPU."""
    lines = {name: [PLACED.format(name)] for name in ("CPU", "CUDA")}
    for node in made.graph.node:
        place = "CPU" if node.name in ("det", "free_f", "free_z") else "CUDA"
        lines[place].append(f"AssignedToAnEp]   {node.op_type} ({node.name})\n")
    return "".join(lines["CPU"] + lines["CUDA"])


LOOK = r"""
    const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    const bright = (colour) => {
      const [r, g, b] = colour.match(/[\d.]+/g).slice(0, 3).map((c) => linear(c / 255));
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const contrast = (a, b) => {
      const [x, y] = [bright(a), bright(b)].sort((m, n) => n - m);
      return (x + 0.05) / (y + 0.05);
    };
    const style = (what) => getComputedStyle(typeof what === "string" ? document.querySelector(what) : what);
    const look = () => {
      const found = {
        page: contrast(style("body").color, style("body").backgroundColor),
        link: contrast(style("#target button").color, style("aside").backgroundColor),
      };
      for (const box of world.querySelectorAll("g.node"))
        for (const text of box.querySelectorAll("text"))
          found[`${box.getAttribute("class")} ${text.getAttribute("class") || "name"}`] =
            contrast(style(text).fill, style(box.querySelector(".frame")).fill);
      return [bright(style("body").backgroundColor), Math.min(...Object.values(found)), found];
    };
"""
"""`look()` tells how bright the page is, and the least and all contrasts of texts (WCAG 2.2, relative luminance)."""


@pytest.fixture(scope="module")
def recorded() -> tuple[Drawing, Fusions]:
    """The drawing of the file, and what the runtime made of it."""
    stored = {name: np.ones(shape, np.float16) for name, shape in SHAPES.items()}
    file, made = parse(FILE, stored, opset=21), parse(MADE, stored, opset=21, domains=["com.microsoft"])
    found = read_optimized(file, made, log(made), "ONNX Runtime 1.31.1")
    fusions = Fusions(found.runtime, "CUDAExecutionProvider", TargetGraph.from_optimized(found), nodes=found.nodes)
    return draw(view_model(file).flow), fusions


def test_kernels_are_those_that_compute(recorded: tuple[Drawing, Fusions]) -> None:
    """Not the Reshapes between which a Gemm stands, nor the Casts between which the CPU computes."""
    drawing, fusions = recorded
    target = runtime_data(fusions, drawing)
    assert target is not None and target["title"] == "on CUDA, as ONNX Runtime 1.31.1 optimises it; nothing was run"
    names = [node.name for node in drawing.nodes]
    assert isinstance(target["kernels"], list) and isinstance(target["elsewhere"], dict)
    kernels = [(kind, who, {names[i] for i in ids}) for kind, who, ids in target["kernels"]]  # type: ignore[misc, index]
    assert kernels == [
        ("Gemm", "CUDA", {"in_product", "in_bias"}),
        ("Gelu", "CUDA", {"by_root", "erf", "plus", "times", "gelu"}),
        ("Gemm", "CUDA", {"out_product", "out_bias"}),
        ("com.microsoft::SkipLayerNormalization", "CUDA", {"stream", "norm"}),
    ]
    assert target["main"] == "CUDA" and target["elsewhere"] == {"CPU": [names.index("det")]} and target["gone"] == []


@pytest.mark.slow
@needs_browser
def test_cuda_on_the_page_in_light_and_dark(recorded: tuple[Drawing, Fusions], tmp_path: Path) -> None:
    """Kernels are framed and listed; the button changes the colours, and back, and every text can be read in both."""
    drawing, fusions = recorded
    target = runtime_data(fusions, drawing)
    assert target is not None
    places = {node.name: number for number, node in enumerate(drawing.nodes)}
    target["gone"] = [places["flat"]]
    held = replace(drawing.nodes[places["det"]], precision="float32", rule="range")
    drawing = replace(drawing, nodes=[held if node.name == "det" else node for node in drawing.nodes])
    told = looked_at(Page("cuda", drawing, target=target, guards=["range"]).html(), tmp_path, COUNT + LOOK + """
        const words = (id) => document.getElementById(id).textContent;
        const links = [...document.querySelectorAll("#target button")];
        told.links = links.map((link) => link.textContent);
        links[0].click(); told.gemm = words("results");
        links[links.length - 1].click(); told.gone = words("results");
        goTo(NODES.find((node) => node.name === "norm")); told.norm = words("about");
        told.fused = [count(".fused"), count(".mate")];
        const button = document.getElementById("theme");
        told.looks = [look()];
        for (let i = 0; i < 2; i++) { button.click(); told.looks.push(look()); }
    """)  # fmt: skip
    assert told["errors"] == []
    assert told["links"] == [
        "2 Gemm of 4 nodes", "1 Gelu of 5 nodes", "1 com.microsoft::SkipLayerNormalization of 2 nodes", "1 on CPU",
        "1 nowhere: folded",
    ]  # fmt: skip
    assert told["gemm"].startswith("in_product") and told["gone"].startswith("flat")
    assert "of 2 nodes" in told["norm"] and "together withstream" in told["norm"] and told["fused"][0] >= 2
    (first, _, _), (second, _, _), (third, _, _) = told["looks"]
    assert first == third and abs(first - second) > 0.5
    assert [look[1:] for look in told["looks"] if look[1] < 4.5] == []
    assert any("guarded" in key for key in told["looks"][0][2])
