"""The page that repeats `verify` in a browser: served, run in a headless Chromium, measured as `verify` measures."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import ampgraph
from ampgraph.core.arrays import Array
from ampgraph.core.errors import AmpError
from ampgraph.numerics.metrics.agreement import compare_outputs
from onnx_text import parse
from report.browser import BROWSER, looked_at, needs_browser

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "models"
WEB = Path(os.environ.get("AMPGRAPH_ONNXRUNTIME_WEB") or ROOT / "build" / "web" / "node_modules" / "onnxruntime-web")
needs_web = pytest.mark.skipif(
    not WEB.is_dir(), reason="onnxruntime-web is not here: npm install --prefix build/web onnxruntime-web"
)
GPU = ["--enable-unsafe-webgpu", "--enable-features=Vulkan", "--use-vulkan=swiftshader"]
"""WebGPU on a software driver, which has no float16 shaders."""
LISTEN = """<script type="module">
const wait = setInterval(() => {
  const state = document.body.dataset.state;
  const runs = location.hash && !document.getElementById(location.hash.slice(1)).disabled;
  if (!["done", "failed", runs ? "" : "ready"].includes(state)) return;
  clearInterval(wait);
  const found = JSON.parse(document.body.dataset.found || "null");
  fetch("/told", {method: "POST", body: JSON.stringify({state, words: document.body.innerText, found})});
}, 50);
</script>"""


class Server(http.server.SimpleHTTPRequestHandler):
    """A folder as `python -m http.server` serves it, and what its page tells."""

    told: dict[str, Any] = {}
    heard = threading.Event()
    asked: list[str] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()

    def do_POST(self) -> None:
        type(self).told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()
        self.heard.set()

    def log_message(self, *_: object) -> None:
        pass


def seen(folder: Path, provider: str, *flags: str) -> dict[str, Any]:
    """What the page of a folder tells once it has run there; empty where no word came."""
    index = folder / "index.html"
    policy = re.sub(r"script-src 'self'", "script-src 'self' 'unsafe-inline'", index.read_text(encoding="utf-8"))
    index.write_text(policy.replace("</body>", f"{LISTEN}</body>"), encoding="utf-8")
    Server.heard.clear()
    Server.asked.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Server, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as profile:
        address = f"http://127.0.0.1:{server.server_port}/index.html#{provider}"
        words = [
            str(BROWSER),
            "--headless",
            "--no-sandbox",
            f"--user-data-dir={profile}",
            *flags,
            "--remote-debugging-port=0",
        ]
        browser = subprocess.Popen([*words, address], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            assert Server.heard.wait(240), "the page says nothing"
        finally:
            browser.terminate()
            browser.wait()
            server.shutdown()
            server.server_close()
    return Server.told


def trained(tmp_path: Path) -> tuple[Path, Path]:
    """A model and its conversion for WebGPU."""
    given, low = MODELS / "digits_cnn.onnx", tmp_path / "low.onnx"
    ampgraph.convert(given, target="webgpu", output=low, check="off")
    return given, low


def entry(array: Array) -> dict[str, Any]:
    """An array as a page has it, float16 by its bits; numbers as JavaScript writes them."""
    stored = array.view(np.uint16) if array.dtype == np.float16 else array
    words = [{"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}.get(str(one), str(one)) for one in stored.ravel()]
    return {"dtype": array.dtype.name, "shape": [*array.shape], "words": words}


VALUES = {
    "numbers": ([[1, 2, 3], [4, 5, -6]], [[1, 2.1, 3], [4, 5, -6]]),
    "small": ([1e-5, -2e-5], [1e-5, 0]),
    "huge": ([3e38, 1], [3e38, 2]),
    "astray": ([1, 2, 3], [1, np.inf, np.nan]),
    "alike": ([np.inf, np.nan, 1, -np.inf], [np.inf, np.nan, 1.5, -np.inf]),
    "silent": ([np.nan, np.inf], [np.nan, np.inf]),
    "empty": ([], []),
    "half": ([65504, 6e-8, 6.1e-5, -0.1], [65472, 0, 6.1e-5, -0.1001]),
}


@pytest.mark.slow
@needs_browser
def test_a_browser_measures_as_verify_does(tmp_path: Path) -> None:
    """Element by element: finite numbers, those that are not, float16 as its bits, integers, other shapes."""
    arrays = {name: (np.array(a, np.float32), np.array(b, np.float32)) for name, (a, b) in VALUES.items()}
    arrays["half"] = tuple(side.astype(np.float16) for side in arrays["half"])  # type: ignore[assignment]
    arrays["integers"] = (np.array([1, 2, 3, 4]), np.array([1, 2, 0, 4]))
    arrays["shapes"] = (np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32))
    asked = {name: [entry(side) for side in both] for name, both in arrays.items()}
    measure = (ROOT / "ampgraph/report/picture/assets/measure.mjs").read_text(encoding="utf-8").replace("export ", "")
    page = f"<html><head><title></title></head><body><script>{measure}</script></body></html>"
    told = looked_at(page, tmp_path, f"""
        const asked = {json.dumps(asked)};
        const types = {{float16: Uint16Array, float32: Float32Array, int64: Array}};
        const of = (one) => ({{...one, data: types[one.dtype].from(one.words, Number)}});
        for (const [name, [want, got]] of Object.entries(asked)) {{
          const found = apart(of(want), of(got));
          told[name] = [String(found.error), String(found.maxAbs), found.compared, found.mismatches, found.silent];
        }}
        const silent = {{error: Infinity, silent: true}};
        told.quantiles = [quantile([3, 1, 2, 5, 4, 8, 7, 6], 0.9), quantile([2, 1], 0.5)];
        told.quantiles.push(summed([{{error: 2}}, silent]).worst);
    """)  # fmt: skip
    assert told["errors"] == [] and told["quantiles"] == [8, 1, 2]
    for name, (want, got) in arrays.items():
        found = compare_outputs(want, got)
        error, largest = (float(word.replace("Infinity", "inf")) for word in told[name][:2])
        assert error == pytest.approx(found.error, rel=1e-12), name
        assert largest == pytest.approx(found.max_abs, rel=1e-12), name
        assert told[name][2:] == [found.compared, found.nonfinite_mismatches, found.silent], name


@pytest.mark.slow
@needs_browser
@needs_web
def test_both_models_run_in_a_browser(tmp_path: Path) -> None:
    """By WebAssembly, whose kernels compute float16 as ONNX Runtime's CPU provider does: mostly in float32."""
    given, low = trained(tmp_path)
    page = tmp_path / "page"
    found = ampgraph.verify(given, low, samples=3, target="webgpu", webgpu_page=page, onnxruntime_web=WEB)
    told = seen(page, "wasm", "--disable-gpu")
    assert told["state"] == "done" and "offers no WebGPU adapter" in told["words"]
    assert "says nothing about a GPU" in told["words"] and told["found"]["verdict"] == "ok"
    assert {path.split("?")[0] for path in Server.asked} <= {
        f"/{p.relative_to(page).as_posix()}" for p in page.rglob("*")
    }
    (name,) = (output.name for output in found.outputs)
    data, session = json.loads((page / "page.json").read_text()), ort.InferenceSession(low)
    for number, sample in enumerate(data["samples"]):
        words = (page / sample["file"]).read_bytes()
        (fed,) = sample["model"]
        x = np.frombuffer(words, np.float32, int(np.prod(fed["shape"])), fed["offset"]).reshape(fed["shape"])
        (kept,) = sample["expected"]
        y = np.frombuffer(words, np.float32, int(np.prod(kept["shape"])), kept["offset"]).reshape(kept["shape"])
        here = compare_outputs(y, session.run(None, {fed["name"]: x})[0]).error
        assert told["found"]["samples"]["model"][name][number] == pytest.approx(here, rel=0.3)
        assert told["found"]["samples"]["reference"][name][number] < 1e-5
    assert data["verified"][name] == pytest.approx(found.outputs[0].p90)
    assert all(len(side["runs"]) > 0 and not side["fault"] for side in told["found"]["times"].values())


@pytest.mark.slow
@needs_browser
@needs_web
def test_both_models_run_on_webgpu(tmp_path: Path) -> None:
    """On a software driver: float32 agrees with the CPU, and what has no float16 shaders says so."""
    given = parse("g (float[1,8] x) => (float[1,4] y) { h = MatMul (x, w)  y = Tanh (h) }", w=(8, 4), opset=17)
    low = ampgraph.convert(given, target="webgpu", check="off")
    page = tmp_path / "page"
    ampgraph.verify(given, low, samples=2, webgpu_page=page, onnxruntime_web=WEB)
    told = seen(page, "webgpu", *GPU)
    if "offers no WebGPU adapter" in told["words"]:
        pytest.skip("this browser has no software driver for WebGPU; the page says that there is no adapter")
    assert told["state"] == "done" and told["found"]["provider"] == "webgpu"
    assert max(told["found"]["samples"]["reference"]["y"]) < 1e-5
    if "no float16 shaders" in told["words"]:
        fault = told["found"]["times"]["model"]["fault"]
        assert told["found"]["verdict"] == "could not run" and "f16" in fault
        assert "could not run, on WebGPU" in told["words"] and f"could not run: {fault.split()[0]}" in told["words"]
    else:
        assert told["found"]["verdict"] == "ok"


@needs_web
def test_a_file_for_another_target_is_noted(tmp_path: Path) -> None:
    given = parse("g (float[1,8] x) => (float[1,4] y) { h = MatMul (x, w)  y = Tanh (h) }", w=(8, 4), opset=17)
    for target, said in (("cuda", ["cuda"]), ("webgpu", [])):
        low = ampgraph.convert(given, target=target, check="off")
        found = ampgraph.verify(given, low, samples=1, webgpu_page=tmp_path / target, onnxruntime_web=WEB)
        assert [name for name in ("cuda", "webgpu") for note in found.notes if f"made for {name}" in note] == said


@needs_web
def test_external_data_goes_along(tmp_path: Path) -> None:
    given, low = trained(tmp_path)
    model = onnx.load(given)
    onnx.save(model, tmp_path / "given.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    feeds = [{"image": np.random.default_rng(0).random((2, 1, 8, 8)).astype(np.float32)}]
    ampgraph.verify(tmp_path / "given.onnx", low, data=feeds, webgpu_page=tmp_path / "page", onnxruntime_web=WEB / "")
    data = json.loads((tmp_path / "page" / "page.json").read_text())
    assert data["reference"]["data"] == ["weights.bin"] and data["model"]["data"] == []
    assert (tmp_path / "page" / "reference" / "weights.bin").read_bytes() == (tmp_path / "weights.bin").read_bytes()
    # it takes the place of an older page, byte for byte, and of nothing else
    texts = {path: path.read_bytes() for path in (tmp_path / "page").rglob("*") if path.is_file()}
    ampgraph.verify(tmp_path / "given.onnx", low, data=feeds, webgpu_page=tmp_path / "page", onnxruntime_web=WEB)
    assert texts == {path: path.read_bytes() for path in (tmp_path / "page").rglob("*") if path.is_file()}
    with pytest.raises(AmpError, match="AMP105.*no page of verify"):
        ampgraph.verify(given, low, webgpu_page=tmp_path, onnxruntime_web=WEB)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["given.onnx", "low.onnx", "page", "weights.bin"]


def test_what_no_browser_runs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, low = trained(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page"
    for code, options in {
        "AMP501.*npm is not installed": {},
        "AMP501.*no onnxruntime-web": {"onnxruntime_web": tmp_path},
        "AMP311.*no steps": {"steps": 2},
        "AMP105.*does not exist": {"webgpu_page": tmp_path / "none" / "page"},
        "AMP311.*none is wanted": {"webgpu_page": None, "onnxruntime_web": tmp_path},
    }.items():
        with pytest.raises(AmpError, match=code):
            ampgraph.verify(given, low, **{"webgpu_page": page, **options})  # type: ignore[arg-type, dict-item]
    brain = ampgraph.convert(given, dtype="bfloat16", opset=22, check="off", output=tmp_path / "brain.onnx")
    with pytest.raises(AmpError, match="AMP311.*bfloat16"):
        ampgraph.verify(given, brain, webgpu_page=page)
    monkeypatch.setattr("ampgraph.api.webgpu_page.MOST", 1000)
    with pytest.raises(AmpError, match="AMP311.*a browser takes"):
        ampgraph.verify(given, low, webgpu_page=page)
    assert not page.exists() and not list(tmp_path.glob(".page*"))
