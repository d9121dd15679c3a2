"""Makes docs/pictures: screenshots of pages, by a headless Chromium. `python docs/make_pictures.py`"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import ampgraph
from ampgraph.core.sketches import strip_elements, svg

HERE = Path(__file__).resolve().parent
MODEL = HERE.parent / "models" / "digits_transformer.onnx"
OPEN = """<script>for (const name of ["layers", "0", "attention"]) {
  const found = FOLDERS.find((f) => f.name === name); if (found) open(found); } draw(); %s</script>"""
GUARD = "const first = NODES.find((node) => node.guarded); pick(`n${first.id}`, describeNode(first));"
KERNEL = "goTo(NODES[KERNELS[0].nodes[1]]); mates(KERNELS[0]);"
HEAT = 'const box = document.getElementById("heat-on"); box.checked = true; box.dispatchEvent(new Event("change"));'


def main() -> None:
    """What a conversion did and what guards held, light; where errors are, dark; what runs as one kernel, light."""
    (HERE / "pictures").mkdir(exist_ok=True)
    (HERE / "pictures" / "levels.svg").write_text(levels(), encoding="utf-8")
    browser = shutil.which("chromium") or shutil.which("google-chrome") or "chromium"

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        made = folder / "digits_transformer.O1.onnx"
        ampgraph.convert(MODEL, "O1", output=made, html=folder / "convert.html")
        ampgraph.verify(MODEL, made, html=folder / "verify.html")
        guarded = folder / "digits_transformer.O2.onnx"
        samples = HERE.parent / "models" / "digits_heldout.npz"
        ampgraph.convert(MODEL, "O2", target="cpu", data=samples, output=guarded, html=folder / "guards.html")
        ampgraph.inspect(guarded, MODEL, target="cpu", html=folder / "inspect.html")
        pages = [("convert", "light", ""), ("guards", "light", GUARD), ("verify", "dark", HEAT)]
        pages.append(("inspect", "light", KERNEL))
        for name, theme, more in pages:
            page = folder / f"{name}.html"
            text = page.read_text(encoding="utf-8").replace("<html ", f'<html data-theme="{theme}" ')
            page.write_text(text.replace("</body>", f"{OPEN % more}</body>"), encoding="utf-8")
            shot = HERE / "pictures" / f"{name}.png"
            flags = [
                "--headless",
                "--no-sandbox",
                "--hide-scrollbars",
                "--window-size=1280,760",
                f"--screenshot={shot}",
            ]
            subprocess.run([browser, *flags, page.as_uri()], check=True, capture_output=True, timeout=300)


def levels() -> str:
    """What each level makes of one transformer, along its graph: for the page of concepts."""
    text = 'font-family="sans-serif" font-size="13" fill="#7a8496"'
    drawn = []
    for row, level in enumerate(("O0", "O1", "O2", "O3", "auto")):
        kinds = [
            decision.dtype for decision in ampgraph.plan(MODEL, level, target="cpu").decisions if decision.index >= 0
        ]
        kinds = kinds or ["float32"]  # O0 decides nothing
        low = 100 * sum(kind != "float32" for kind in kinds) / len(kinds)
        y = 8 + 28 * row
        drawn += [f'<text x="4" y="{y + 13}" {text}>{level}</text>', strip_elements(kinds, 640, 48, y)]
        drawn.append(f'<text x="696" y="{y + 13}" {text}>{low:.0f} % float16</text>')
    return svg("".join(drawn), 800, 148) + "\n"


if __name__ == "__main__":
    main()
