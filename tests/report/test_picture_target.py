"""The page of what CUDA makes of a model, from a graph that ONNX Runtime 1.31.1 wrote, in a browser, light and dark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from ampgraph.report.fusions import Fusions, TargetGraph
from ampgraph.report.inspect import see
from ampgraph.report.picture.drawing import Drawing, draw
from ampgraph.report.picture.page import Page
from ampgraph.report.picture.pages import on_target
from ampgraph.runtime.optimized import read_optimized
from onnx_text import parse
from report.browser import COUNT, looked_at, needs_browser

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
    fusions = Fusions(found.runtime, "CUDAExecutionProvider", TargetGraph.of(found), nodes=found.nodes)
    return draw(see(file).flow), fusions


def test_kernels_are_those_that_compute(recorded: tuple[Drawing, Fusions]) -> None:
    """Not the Reshapes between which a Gemm stands, nor the Casts between which the CPU computes."""
    drawing, fusions = recorded
    target = on_target(fusions, drawing)
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
    target = on_target(fusions, drawing)
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
