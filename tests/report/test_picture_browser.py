"""Pages in a real browser, headless: what is drawn, how much of it, and that a click opens a layer."""

from __future__ import annotations

from pathlib import Path

import pytest

import ampgraph
from ampgraph.core.json_types import JsonObject
from ampgraph.report.inspect import see
from ampgraph.report.picture.drawing import WIDTH, Box, Drawing, Edge, draw, folded
from ampgraph.report.picture.page import Bar, Page
from report.browser import COUNT, looked_at, needs_browser

pytestmark = [pytest.mark.slow, needs_browser]
MODELS = Path(ampgraph.__file__).parent / "models"
ELEMENTS, AT_FIRST = 300, 24


def test_layers_open_by_a_click_and_close_again(tmp_path: Path) -> None:
    page = Page("digits", draw(see(str(MODELS / "digits_transformer.onnx")).flow)).html()
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
    page = Page("long", Drawing(nodes, edges, folded([()] * count, [node.name for node in nodes]))).html()
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


def test_errors_colour_the_nodes(tmp_path: Path) -> None:
    nodes = [Box(name, "Relu", "float16", "cut", "because", 0) for name in ("a", "b", "c")]
    edges = [Edge(0, 1, "v", "float16", "8"), Edge(1, 2, "w", "float16", "8", "float32")]
    drawing = Drawing(nodes, edges, folded([(), (), ("deep",)], ["a", "b", "c"]))
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
        Box("a", "MatMul", "float16", "list", "white is low", 64, "-3 to 812"),
        Box("b", "Exp", "float32", "range", "passes float16", 0, "1 to 2e+05"),
        Box("c", "Relu", "float16", "cut", "costs least", 0),
    ]
    edges = [Edge(0, 1, "v", "float16", "8", "float32"), Edge(1, 2, "w", "float32", "8", "float16")]
    page = Page(
        "all", Drawing(nodes, edges, folded([(), (), ("deep",)], ["a", "b", "c"])), ["the report"],
        [Bar("weights before", {"float32": 128}, "128 bytes"), Bar("weights after", {"float16": 64}, "64 bytes")],
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
