"""The texts of a page that compares two models in a browser: `webgpu.mjs` runs, `measure.mjs` measures."""

from __future__ import annotations

import json
from importlib import resources

from ...core.json_types import JsonObject

SHOWN = {
    "index.html": "webgpu.html",
    **{name: name for name in ("page.css", "webgpu.css", "measure.mjs", "webgpu.mjs")},
}
DATA = "page.json"


def webgpu_page(data: JsonObject) -> dict[str, str]:
    """The page by file name; ``data``: models, samples and what `verify` found, as `webgpu.mjs` reads them."""
    folder = resources.files(__package__) / "assets"
    texts = {name: (folder / asset).read_text(encoding="utf-8") for name, asset in SHOWN.items()}
    return texts | {DATA: json.dumps(data, ensure_ascii=True, indent=1, allow_nan=False) + "\n"}
