"""How long a page of a large model takes: to make it, to open it in a headless Chromium, and to go to a node in it.

.venv/bin/python benchmarks/page.py [NODES]
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ampgraph.report.picture.drawing import Box, Drawing, Edge, put_in_folders
from ampgraph.report.picture.page import Page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ASK = """<script>const opened = performance.now();
goTo(NODES[NODES.length / 2]); const gone = performance.now() - opened;
const out = document.createElement("pre"); out.id = "told";
out.textContent = JSON.stringify({opened, gone, boxes: world.querySelectorAll("[data-key]").length});
document.body.append(out);</script></body>"""
KINDS = ("MatMul", "Add", "LayerNormalization", "Softmax", "Mul", "Reshape", "Transpose", "Erf")


def drawing(count: int) -> Drawing:
    """Layers of 80 nodes in five scopes, a chain with a residual edge in each, a Cast behind every eighth node."""
    nodes = [
        Box(f"/layers.{i // 80}/{i}", KINDS[i % 8], "float16", "cut", f"reason {i % 50}", 64) for i in range(count)
    ]
    edges = [Edge(i, i + 1, f"v{i}", "float16", "1x128x768", "float32" * (i % 8 == 0)) for i in range(count - 1)]
    edges += [Edge(i, i + 40, f"v{i}", "float16", "1x128x768") for i in range(0, count - 40, 40)]
    paths = [("layers", str(i // 80), f"part{i % 80 // 16}") for i in range(count)]
    return Drawing(nodes, edges, put_in_folders(paths, [node.name for node in nodes]))


def main(count: int = 20_000) -> None:
    begun = time.perf_counter()
    text = Page("benchmark", drawing(count)).html()
    made = time.perf_counter() - begun
    assert BROWSER is not None, "no Chromium is here"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        path.write_text(text.replace("</body>", ASK), encoding="utf-8")
        flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile", "--dump-dom"]
        done = subprocess.run([BROWSER, *flags, path.as_uri()], capture_output=True, text=True, check=True, timeout=300)
    found = re.search(r'<pre id="told">(.*?)</pre>', done.stdout)
    assert found is not None
    told = json.loads(found[1])
    print(f"{count:,} nodes: {len(text):,} bytes, made in {made:.2f} s, opened in {told['opened'] / 1000:.2f} s, "
          f"a node shown in {told['gone'] / 1000:.2f} s, {told['boxes']} boxes")  # fmt: skip


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
