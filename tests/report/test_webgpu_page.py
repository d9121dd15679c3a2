"""The page that repeats `verify` in a browser: served, run in a headless Chromium, measured as `verify` measures."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import subprocess
import tarfile
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import ampgraph
from ampgraph.api import webgpu_page
from ampgraph.api.webgpu_page import MODULE
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


def package(folder: Path) -> Path:
    """A folder like that of onnxruntime-web: the module names one of the two .wasm files beside it."""
    (folder / "dist").mkdir(parents=True)
    (folder / "package.json").write_text('{"version": "1.99.0"}', encoding="utf-8")
    (folder / "dist" / MODULE).write_text('load("ort-wasm-simd.wasm")', encoding="utf-8")
    for name in ("ort-wasm-simd.wasm", "ort-wasm-other.wasm"):
        (folder / "dist" / name).write_bytes(name.encode())
    return folder


@pytest.mark.parametrize("where", ["given", "installed", "npm"])
def test_the_package_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """In the folder that is named, the nearest node_modules, or by npm; only what the module names is taken."""
    place, given = tmp_path / "work" / "deep", None
    place.mkdir(parents=True)
    monkeypatch.chdir(place)
    if where == "given":
        given = package(tmp_path / "given")
    elif where == "installed":
        package(tmp_path / "work" / "node_modules" / "onnxruntime-web")
    else:
        with tarfile.open(tmp_path / "web.tgz", "w:gz") as archive:
            archive.add(package(tmp_path / "packed"), "package")
        npm = tmp_path / "npm"
        npm.write_text(f"#!/bin/sh\ncp '{tmp_path / 'web.tgz'}' .\n", encoding="utf-8")
        npm.chmod(0o755)
        monkeypatch.setattr("ampgraph.api.webgpu_page.shutil.which", lambda name: str(npm))
    files, version = webgpu_page._onnxruntime_web(given)
    assert version == "1.99.0" and sorted(files) == ["ort-wasm-simd.wasm", MODULE]
    assert files["ort-wasm-simd.wasm"] == b"ort-wasm-simd.wasm"


def test_arrays_lie_once_in_a_file_where_a_browser_can_read_them(tmp_path: Path) -> None:
    odd, shared = np.array([1, 2, 3], np.uint8), np.array([[1.5, 2.5]], ">f4")
    with open(tmp_path / "0.bin", "wb") as file:
        tensors = webgpu_page._TensorFile(file)
        first, second = (
            tensors.write({"odd": odd, "x": shared, "t": np.array(["a", "b"])}),
            tensors.write({"y": shared}),
        )
        with pytest.raises(AmpError, match="AMP311.*complex64.*'z'"):
            tensors.write({"z": np.zeros(1, np.complex64)})
    assert first[0] == {"name": "odd", "dtype": "uint8", "shape": [3], "offset": 0}
    assert first[1] == {"name": "x", "dtype": "float32", "shape": [1, 2], "offset": 8}
    assert first[2] == {"name": "t", "dtype": "string", "shape": [2], "values": ["a", "b"]}
    assert second == [{"name": "y", "dtype": "float32", "shape": [1, 2], "offset": 8}]
    content = (tmp_path / "0.bin").read_bytes()
    assert len(content) == 16 and np.frombuffer(content, "<f4", 2, 8).tolist() == [1.5, 2.5]


def test_the_folder_is_written_whole(tmp_path: Path) -> None:
    """The samples and what the reference gives on each, without the outputs that a page cannot compare."""
    body = "y = Relu (x) s = SequenceConstruct (y, x)"
    given = parse(f"g (float[2, 4] x) => (float[2, 4] y, seq(float[2, 4]) s) {{ {body} }}")
    feeds = [{"x": np.full((2, 4), number, np.float32)} for number in (-1, 2)]
    page, web = tmp_path / "page", package(tmp_path / "web")
    ampgraph.verify(given, given, data=feeds, webgpu_page=page, onnxruntime_web=web)
    data = json.loads((page / "page.json").read_text(encoding="utf-8"))
    assert data["reference"]["name"] == "in memory" and data["runtime"] == "onnxruntime-web 1.99.0"
    for number, (sample, value) in enumerate(zip(data["samples"], (0.0, 2.0), strict=True)):
        (expected,) = sample["expected"]
        assert sample["left_out"] == ["s"] and expected["name"] == "y" and sample["file"] == f"samples/{number}.bin"
        numbers = np.frombuffer((page / sample["file"]).read_bytes(), "<f4", 8, expected["offset"])
        assert set(numbers) == {value} and sample["reference"] == sample["model"]
    assert {"index.html", "model", "onnxruntime-web", "page.json", "reference"} <= {
        path.name for path in page.iterdir()
    }
    # another folder is not written over, and what fails leaves no half of one
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "page.json").write_text("[1]", encoding="utf-8")
    with pytest.raises(AmpError, match="AMP105.*no page of verify"):
        ampgraph.verify(given, given, data=feeds, webgpu_page=tmp_path / "mine", onnxruntime_web=web)
    with pytest.raises(ZeroDivisionError), webgpu_page._whole_folder(page) as beside:
        (beside / "half").touch()
        raise ZeroDivisionError
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "page", "web"]
    assert data == json.loads((page / "page.json").read_text(encoding="utf-8"))
