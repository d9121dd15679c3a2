"""Makes docs/pictures: screenshots of pages, by a headless Chromium. `python docs/make_pictures.py`"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import ampgraph

HERE = Path(__file__).resolve().parent
MODEL = HERE.parent / "models" / "digits_transformer.onnx"
OPEN = """<script>for (const name of ["layers", "0", "attention"]) {
  const found = FOLDERS.find((f) => f.name === name); if (found) open(found); } draw(); %s</script>"""
HEAT = 'const box = document.getElementById("heat-on"); box.checked = true; box.dispatchEvent(new Event("change"));'


def main() -> None:
    """Two pages: what a conversion did, light, and where errors are, dark."""
    browser = shutil.which("chromium") or shutil.which("google-chrome") or "chromium"
    (HERE / "pictures").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        made = folder / "digits_transformer.O1.onnx"
        ampgraph.convert(MODEL, "O1", output=made, html=folder / "convert.html")
        ampgraph.verify(MODEL, made, html=folder / "verify.html")
        for name, theme, more in (("convert", "light", ""), ("verify", "dark", HEAT)):
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


if __name__ == "__main__":
    main()
