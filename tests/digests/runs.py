"""Digests of strict runs on one thread: the bytes of every output, for seeded inputs.

What goes in is the model, its inputs, and what a plain float32 run makes of them: on a machine whose processor computes
other last bits that differs, and the case is not compared.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import ModelProto

import ampgraph
from ampgraph.numerics.strict.session import StrictSession
from conformance.cases import case
from digests.conversions import DTYPES
from digests.table import DIGITS, Row
from hard_models import HARD_MODELS

COLUMNS = ("O1", "O2", "O3", "auto")
BACKEND_COLUMNS = DTYPES
COMMITTED = ("digits_cnn", "digits_transformer")
ARCHITECTURES = ("decoder", "vision", "residual", "branching")
Feeds = Mapping[str, Any]


def names() -> list[str]:
    return [*COMMITTED, *ARCHITECTURES, *(f"hard/{name}" for name in HARD_MODELS)]


def of_example(name: str, models: Path, small: Callable[[], Path]) -> Iterator[Row]:
    """A model of the tests at every level and in both low types."""
    model, feeds = _example(name, models, small)
    given = given_of(model, feeds)
    for dtype in DTYPES:
        yield Row(f"{name} {dtype}", given, tuple(strict(model, level, dtype, feeds) for level in COLUMNS))


def _example(name: str, models: Path, small: Callable[[], Path]) -> tuple[ModelProto, Feeds]:
    if name.startswith("hard/"):
        hard = HARD_MODELS[name.removeprefix("hard/")]
        return hard.build(), hard.feeds(1)[0]
    if name in ARCHITECTURES:
        with np.load(small() / f"{name}.npz") as data:
            return onnx.load(small() / f"{name}.onnx"), dict(data)
    image = np.random.default_rng(0).random((4, 1, 8, 8), np.float32)
    return onnx.load(models / f"{name}.onnx"), {"image": image}


def of_backend(name: str) -> Iterator[Row]:
    """A backend case at O3 on its first data; no row where ONNX Runtime does not run it in float32."""
    known = case(name)
    model, feeds = known.proto(), {name: value for name, value in known.data[0][0].items() if value is not None}
    try:
        given = given_of(model, feeds)
    except Exception:  # the runtime's own, of any kind
        return
    yield Row(name, given, tuple(strict(model, "O3", dtype, feeds) for dtype in DTYPES))


def given_of(model: ModelProto, feeds: Feeds) -> str:
    """The model, its inputs, and what a plain run makes of them."""
    content = model.SerializeToString(deterministic=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"])
    return of_values([hashlib.sha256(content).hexdigest(), feeds, session.run(None, dict(feeds))])


def strict(model: ModelProto, level: str, dtype: str, feeds: Feeds) -> str:
    """The outputs of the converted model; the code or the kind of the error where there are none."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            ampgraph.convert(model, level, dtype=dtype, output=path)
            return of_values(StrictSession(path, threads=1).run(dict(feeds)))
        except ampgraph.AmpError as error:
            return error.code


def of_values(value: Any) -> str:
    """One digest of arrays in lists and mappings."""
    found = hashlib.sha256()
    for piece in _pieces(value):
        found.update(piece)
    return found.hexdigest()[:DIGITS]


def _pieces(value: Any) -> Iterator[bytes]:
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield repr(key).encode()
            yield from _pieces(value[key])
    elif isinstance(value, (list, tuple)):
        yield b"["
        for item in value:
            yield from _pieces(item)
        yield b"]"
    elif isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
        array = np.ascontiguousarray(value)
        yield f"{array.dtype}{np.shape(value)}".encode()
        yield array.tobytes()
    else:
        yield repr(value.tolist() if isinstance(value, np.ndarray) else value).encode()
