"""A real browser, headless, that looks at a page and tells of it."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason=f"none of {', '.join(NAMES)} is here")
COUNT = """const count = (what) => world.querySelectorAll(what).length;"""


def looked_at(page: str, tmp_path: Path, steps: str) -> dict[str, Any]:
    """What a script of steps tells of a page; it fills ``told``, and errors come along."""
    ears = "<script>window.errors = []; window.onerror = (words) => { errors.push(String(words)); };</script>"
    ask = f"""<script>const told = {{}}; try {{ {steps} }} catch (error) {{ errors.push(String(error)); }}
    const out = document.createElement("pre"); out.id = "told";
    out.textContent = JSON.stringify({{...told, errors}}); document.body.append(out);</script>"""
    path = tmp_path / "page.html"
    path.write_text(page.replace("</title>", f"</title>{ears}").replace("</body>", f"{ask}</body>"), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    ran = subprocess.run([str(BROWSER), *flags, path.as_uri()], capture_output=True, text=True, timeout=300, check=True)
    found = re.search(r'<pre id="told">(.*?)</pre>', ran.stdout, re.DOTALL)
    assert found is not None, ran.stdout[-2000:]
    told: dict[str, Any] = json.loads(html.unescape(found[1]))
    return told
