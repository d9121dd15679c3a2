"""What a case gives in float32, and the reasons by which float16 may honestly differ on it."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

from conformance.cases import Case, cache_folder, case, read, write
from near import Tolerance, difference
from typed import every_node, graphs

FLOAT16_MAX = 65504.0
_RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"}
)


@dataclass
class Reference:
    """The float32 run; `skipped` says why there is none, `excuses` what may move a float16 result."""

    feeds: list[dict[str, Any]] = field(default_factory=list)
    outputs: list[dict[str, Any]] = field(default_factory=list)
    skipped: str = ""
    checked: bool = False
    excuses: list[str] = field(default_factory=list)


def reference(name: str) -> Reference:
    """The reference of a case, computed once."""
    path = cache_folder() / f"{name}.ref.pkl"
    if not path.exists():
        write(path, _compute(case(name)))
    return read(path)


def mark_crashed(name: str) -> None:
    """Remember that computing a reference killed the process: the runtime's own defect, whatever we do."""
    write(cache_folder() / f"{name}.ref.pkl", Reference(skipped="the float32 model kills ONNX Runtime"))


def is_cached(name: str) -> bool:
    return (cache_folder() / f"{name}.ref.pkl").exists()


def session(model: ModelProto | bytes) -> Any:
    """A session of one thread that logs nothing."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    data = model if isinstance(model, bytes) else model.SerializeToString()
    return ort.InferenceSession(data, options, ["CPUExecutionProvider"])


def feedable(value: Any) -> Any:
    """An array as ONNX Runtime takes it: the types that numpy lacks go in as bytes with a type number."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "V" and value.dtype.names is None:
        import onnxruntime as ort

        raw = value.view(np.uint8 if value.itemsize == 1 else np.uint16)
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, helper.np_dtype_to_tensor_dtype(value.dtype))
    return value


def run(opened: Any, feeds: dict[str, Any], names: list[str]) -> dict[str, Any]:
    # A copy: ONNX Runtime may write a node's output over a fed array once it has removed the Casts between them.
    fed = {n: feedable(copy.deepcopy(v)) for n, v in feeds.items()}
    return dict(zip(names, opened.run(names, fed), strict=True))


def is_valid(model: ModelProto) -> bool:
    """Whether onnx's own checker finds nothing wrong."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception:
        return False
    return True


def _compute(one: Case) -> Reference:
    found = Reference(feeds=[feeds for feeds, _ in one.data])
    model = one.proto()
    names = [v.name for v in model.graph.output]
    found.checked = is_valid(model)
    try:
        opened = session(model)
        found.outputs = [run(opened, feeds, names) for feeds in found.feeds]
    except Exception as e:
        found.skipped = f"ONNX Runtime: {str(e).strip().splitlines()[0][:160]}"
        return found
    for (_, expected), got in zip(one.data, found.outputs, strict=True):
        for name, value in expected.items():
            if wrong := _disagree(value, got[name], one.rtol, one.atol):
                found.skipped = f"ONNX Runtime's float32 result differs: {name} {wrong}"
                return found
    found.excuses = [*_random(model), *_beyond(model, found), *_ill_conditioned(model, found)]
    return found


def _disagree(expected: Any, got: Any, rtol: float, atol: float) -> str:
    if isinstance(expected, list):
        if not isinstance(got, list) or len(got) != len(expected):
            return "is another sequence"
        return next((w for e, g in zip(expected, got, strict=True) if (w := _disagree(e, g, rtol, atol))), "")
    if expected is None or got is None:
        return "" if expected is got else "is empty"
    if isinstance(expected, np.ndarray) and expected.dtype.kind == "V" and got.dtype != expected.dtype:
        expected = expected.view(got.dtype)
    if expected.shape != got.shape or (expected.dtype != got.dtype and expected.dtype != object):
        return "has another shape or type"
    if expected.dtype.kind != "f":
        return "" if (expected == got).all() else "is not equal"
    return "" if np.allclose(got, expected, rtol, atol, equal_nan=True) else "is not close"


def _random(model: ModelProto) -> list[str]:
    found = {n.op_type for n in every_node(model) if n.op_type in _RANDOM}
    found |= {"Dropout in training mode" for n in every_node(model) if n.op_type == "Dropout" and len(n.input) > 2}
    return [f"random: {', '.join(sorted(found))}"] if found else []


def _constants(model: ModelProto) -> Iterator[TensorProto]:
    """Every float32 tensor stored in the model."""
    for g in graphs(model.graph):
        assert isinstance(g, GraphProto)
        yield from (t for t in g.initializer if t.data_type == TensorProto.FLOAT)
    for node in every_node(model):
        for a in node.attribute:
            if a.type == AttributeProto.TENSOR and a.t.data_type == TensorProto.FLOAT:
                yield a.t


def _largest(value: Any) -> float:
    """The largest finite magnitude in a float32 value."""
    if isinstance(value, list):
        return max((_largest(v) for v in value), default=0.0)
    if not isinstance(value, np.ndarray) or value.dtype != np.float32:
        return 0.0
    return float(np.abs(value[np.isfinite(value)]).max(initial=0))


def _beyond(model: ModelProto, found: Reference) -> list[str]:
    """Values beyond float16 anywhere in the float32 run."""
    reasons = [f"{n} of {_largest(v):.3g}" for f in (*found.feeds, *found.outputs) for n, v in f.items()
               if _largest(v) > FLOAT16_MAX]  # fmt: skip
    for t in _constants(model):
        if (size := _largest(numpy_helper.to_array(t))) > FLOAT16_MAX:
            reasons.append(f"constant {t.name} of {size:.3g}")
    exposed = ModelProto()
    exposed.CopyFrom(model)
    outputs = {v.name for v in model.graph.output}
    inner = list(dict.fromkeys(o for n in model.graph.node for o in n.output if o and o not in outputs))
    exposed.graph.output.extend(ValueInfoProto(name=n) for n in inner)
    # What no array can hold cannot be exposed; that is no reason to excuse a case.
    with contextlib.suppress(Exception):
        opened = session(exposed)
        for feeds in found.feeds if inner else ():
            values = run(opened, feeds, inner)
            reasons += [f"{n} of {_largest(v):.3g}" for n, v in values.items() if _largest(v) > FLOAT16_MAX]
    return [f"beyond float16: {reasons[0]}"] if reasons else []


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    if isinstance(value, np.ndarray) and value.dtype == np.float32:
        with np.errstate(all="ignore"):
            return value.astype(np.float16).astype(np.float32)
    return value


def _ill_conditioned(model: ModelProto, found: Reference) -> list[str]:
    """Whether rounding just inputs and constants, then computing in float32, already leaves the tolerance."""
    rounded = ModelProto()
    rounded.CopyFrom(model)
    for t in _constants(rounded):
        t.CopyFrom(numpy_helper.from_array(_rounded(numpy_helper.to_array(t)), t.name))
    names = [v.name for v in model.graph.output]
    try:
        opened = session(rounded)
        for feeds, outputs in zip(found.feeds, found.outputs, strict=True):
            moved = run(opened, {n: _rounded(v) for n, v in feeds.items()}, names)
            for name in names:
                if apart := difference(outputs[name], moved[name], Tolerance()):
                    return [f"ill-conditioned: rounding the inputs alone moves {name}: {apart}"]
    except Exception as e:
        return [f"ill-conditioned: with rounded inputs ONNX Runtime stops: {str(e).splitlines()[0][:100]}"]
    return []


assert ml_dtypes.bfloat16  # Registers the types that numpy lacks before anything is unpickled.
