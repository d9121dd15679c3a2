"""The backend test cases of the installed onnx, as data.

Cases and what was computed for them are pickled under the temporary folder, keyed by the versions of onnx and ONNX
Runtime and by this package's code, so that a second run starts at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import re
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TypeProto, numpy_helper
from onnx.backend.test.loader import load_model_tests

import near

# Opsets that the runtime knows but that onnx has not released when it was built; their new operators are wanted too.
os.environ["ALLOW_RELEASED_ONNX_OPSET_ONLY"] = "0"
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
FLOAT = onnx.TensorProto.FLOAT


@dataclass
class Case:
    """A model, and for each of its data sets the inputs by name and the expected outputs by name."""

    name: str
    kind: str
    model: bytes
    data: list[tuple[dict[str, Any], dict[str, Any]]]
    rtol: float
    atol: float

    def proto(self) -> ModelProto:
        return ModelProto.FromString(self.model)


@dataclass
class Index:
    """What is there: names with their first operator, those without float32 in or out, cases not on disk."""

    ops: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    without_float: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)


@cache
def cache_folder() -> Path:
    """Where this version's cases are kept."""
    import onnxruntime

    own = b"".join(Path(f).read_bytes() for f in (__file__, Path(__file__).with_name("reference.py"), near.__file__))
    key = hashlib.sha256(own).hexdigest()[:12]
    name = f"onnx{onnx.__version__}-ort{onnxruntime.__version__}-np{np.__version__}-{key}"
    folder = Path(tempfile.gettempdir()) / "ampgraph-conformance" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write(path: Path, value: object) -> None:
    """Pickle to a file that appears whole or not at all."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_bytes(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))
    temporary.replace(path)


def read(path: Path) -> Any:
    return pickle.loads(path.read_bytes())


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time; where there is no flock two may do the same work, which harms nobody."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with path.open("w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def index() -> Index:
    """The index, collecting every case first where that was not done yet."""
    folder = cache_folder()
    with locked(folder / "lock"):
        if not (folder / "index.pkl").exists():
            write(folder / "index.pkl", _collect(folder))
    return read(folder / "index.pkl")


def case(name: str) -> Case:
    return read(cache_folder() / f"{name}.case.pkl")


@dataclass
class Newest:
    """What the installed ONNX Runtime reads: onnx writes its cases in its own newest format and opset."""

    ir: int
    opset: int

    def fit(self, model: ModelProto) -> None:
        """Lower a case to what can be read, where its operators have the same meaning there."""
        model.ir_version = min(model.ir_version, self.ir)
        for o in model.opset_import:
            if o.domain == "" and o.version > self.opset:
                given, o.version = o.version, self.opset
                try:
                    onnx.checker.check_model(model, full_check=True)
                except Exception:
                    o.version = given


def newest() -> Newest:
    """Ask ONNX Runtime: by its schemas, and by a model that it must refuse."""
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    opset = max(s.since_version for s in state.get_all_operator_schema() if s.domain == "")
    probe = onnx.helper.make_model(onnx.helper.make_graph([], "probe", [], []), ir_version=10_000)
    try:
        onnxruntime.InferenceSession(probe.SerializeToString(), providers=["CPUExecutionProvider"])
    except Exception as e:
        return Newest(int(re.findall(r"max supported IR version: (\d+)", str(e))[0]), opset)
    return Newest(onnx.IR_VERSION, opset)


def _collect(folder: Path) -> Index:
    found, readable = Index(), newest()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # The generators of the node cases overflow on purpose.
        for kind in KINDS:
            for test in load_model_tests(kind=kind):
                _collect_one(test, kind, readable, found, folder)
    return found


def _collect_one(test: Any, kind: str, readable: Newest, found: Index, folder: Path) -> None:
    loaded = _node_case(test) if kind == "node" else _stored_case(test)
    if loaded is None:
        found.absent.append(test.name)
        return
    model, data = loaded
    if not any(_has_float(v.type) for v in (*model.graph.input, *model.graph.output)):
        found.without_float.append(test.name)
    readable.fit(model)
    found.ops[test.name] = model.graph.node[0].op_type if model.graph.node else ""
    found.kinds[test.name] = kind
    write(
        folder / f"{test.name}.case.pkl", Case(test.name, kind, model.SerializeToString(), data, test.rtol, test.atol)
    )


def _has_float(kind: TypeProto) -> bool:
    which = kind.WhichOneof("value")
    if which in ("sequence_type", "optional_type"):
        return _has_float(getattr(kind, which).elem_type)
    return which == "tensor_type" and kind.tensor_type.elem_type == FLOAT


def _node_case(test: Any) -> tuple[ModelProto, list[Any]]:
    copied = ModelProto.FromString(test.model.SerializeToString())  # onnx keeps its own for all who ask
    return copied, [_named(test.model, *pair) for pair in test.data_sets]


def _named(model: ModelProto, inputs: Any, outputs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    initialized = {i.name for i in model.graph.initializer}
    fed = [v.name for v in model.graph.input]
    if len(inputs) < len(fed):
        fed = [n for n in fed if n not in initialized]
    return (
        {n: _plain(v) for n, v in zip(fed, inputs, strict=False)},
        {v.name: _plain(o) for v, o in zip(model.graph.output, outputs, strict=False)},
    )


def _plain(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return np.asarray(value)


def _stored_case(test: Any) -> tuple[ModelProto, list[Any]] | None:
    """A case on disk; one of the light real models has stored outputs for an input that is a ramp."""
    if test.model_dir is not None:
        folder = Path(test.model_dir)
        model = onnx.load(folder / "model.onnx")
        return model, [_named(model, *_stored_data(model, d)) for d in sorted(folder.glob("test_data_set*"))]
    root = Path(onnx.__file__).parent.parent
    path = root / (test.url or "")
    if not (test.url or "").startswith("onnx/") or not path.is_file():
        return None
    model = onnx.load(path)
    initialized = {i.name for i in model.graph.initializer}
    inputs = [_ramp(v.type) for v in model.graph.input if v.name not in initialized]
    stored = [path.with_name(f"{path.stem}_output_{i}.pb") for i in range(len(model.graph.output))]
    if not all(p.exists() for p in stored):
        return None
    return model, [_named(model, inputs, [_stored(p, v.type) for p, v in zip(stored, model.graph.output, strict=True)])]


def _ramp(kind: TypeProto) -> np.ndarray:
    shape = tuple(d.dim_value if d.HasField("dim_value") else 1 for d in kind.tensor_type.shape.dim)
    count = int(np.prod(shape))
    return (np.arange(count).reshape(shape) / count).astype(np.float32)


def _stored_data(model: ModelProto, folder: Path) -> tuple[list[Any], list[Any]]:
    groups = []
    for prefix, values in (("input", model.graph.input), ("output", model.graph.output)):
        count = len(list(folder.glob(f"{prefix}_*.pb")))
        groups.append([_stored(folder / f"{prefix}_{i}.pb", values[i].type) for i in range(count)])
    return groups[0], groups[1]


def _stored(path: Path, kind: TypeProto) -> Any:
    content = path.read_bytes()
    if kind.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(content))
    if kind.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(content))
    return numpy_helper.to_array(onnx.TensorProto.FromString(content))
