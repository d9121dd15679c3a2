"""What OpenVINO does with models of one node, in the precisions of the file: refused, or run in which types."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent / "tensorrt")]

import numpy as np  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402
from sweep import LOW, Form, retyped, ways  # noqa: E402

from ampgraph.core.errors import AmpError  # noqa: E402
from ampgraph.core.low_types import numpy_type  # noqa: E402
from ampgraph.runtime.executed import Runtime  # noqa: E402
from ampgraph.runtime.targets import executed_session  # noqa: E402
from ampgraph.runtime.tensorrt_rtx import BuildAnswer, RefusedNode  # noqa: E402

PYTHON = str(HERE.parents[1] / "build" / "openvino" / "bin" / "python")
MOVES = ("Const", "Input", "Output", "Reorder", "Convert", "Reshape", "Concatenation", "MemoryInput")
"""Layers that compute nothing, or that carry what another one computes."""
_NAMES = re.compile(r"^-- |(?<=[A-Za-z])-\d+$| \w+ \(\w+::.*|(?<= with name )'.*?' ?")
FLOATS = ("float32", *LOW)


@dataclass(frozen=True)
class Done:
    """What became of a form. ``low``: type variables in ``dtype``; ``why``: refused, in OpenVINO's words;
    ``types``: of the layers that compute; ``error``: relative L2 beside float32, over all outputs."""

    form: Form
    dtype: str
    low: tuple[str, ...]
    why: str = ""
    types: frozenset[str] = frozenset()
    error: float = 0.0

    @property
    def uniform(self) -> bool:
        """Whether all of it is low."""
        return self.low == self.form.variables

    @property
    def answer(self) -> BuildAnswer:
        """The same as the functions have it that read TensorRT's answers."""
        return BuildAnswer("", (RefusedNode("", "", "", self.why),) if self.why else ())


class Sweep:
    """Forms, run one after the other in a process that is started again where it dies."""

    def __init__(self, python: str) -> None:
        self.python, self.runtime = python, Runtime("openvino", python)

    def all(self, forms: Iterable[Form]) -> Iterator[Done]:
        """Each form in float32 and, where it is taken so, in each low type and mix of types that its schema admits."""
        for form in forms:
            plain, expected = self._one(form, "float32", (), form.model, {})
            yield plain
            for dtype, low in itertools.product(LOW, ways(form.variables) if not plain.why else ()):
                job = retyped(form, dtype, low)
                if job is not None:
                    yield self._one(form, dtype, low, job.model, expected)[0]

    def _one(
        self, form: Form, dtype: str, low: tuple[str, ...], model: Any, expected: Mapping[str, Any]
    ) -> tuple[Done, dict[str, Any]]:
        if not self.runtime.alive:
            self.runtime = Runtime("openvino", self.python)
        try:
            session = executed_session(self.runtime, model)
            found = session.run(feeds(form, model))
            layers = session.layers()
            session.close()
        except AmpError as error:
            return Done(form, dtype, low, _NAMES.sub("", error.message.partition(": ")[2] or error.message)), {}
        types = frozenset(layer.dtype for layer in layers if layer.kind not in MOVES and layer.dtype in FLOATS)
        return Done(form, dtype, low, "", types, apart(found, expected)), found


def feeds(form: Form, model: Any) -> dict[str, Any]:
    """Numbers of the types of a model, the same ones in each; integers are those of the suite."""
    rng = np.random.default_rng(0)
    made = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [dim.dim_value for dim in tensor.shape.dim]
        numbers = rng.uniform(0.5, 1.5, shape)
        kind = tensor.elem_type
        if kind in LOW.values():
            made[value.name] = numbers.astype(numpy_type(next(name for name, number in LOW.items() if number == kind)))
        else:
            given = form.job.values.get(value.name)
            dtype = helper.tensor_dtype_to_np_dtype(kind)
            integers = np.zeros(shape) if given is None else np.reshape(given, shape)
            made[value.name] = (numbers if kind == TensorProto.FLOAT else integers).astype(dtype)
    return made


def apart(found: Mapping[str, Any], expected: Mapping[str, Any]) -> float:
    """The relative L2 error of the float outputs; infinite for another shape or what is not finite alone here."""
    worst = 0.0
    for name, value in expected.items():
        one, two = np.asarray(found[name]), np.asarray(value)
        if two.dtype.kind not in "fV" or not two.size:
            continue
        one, two = one.astype(np.float64), two.astype(np.float64)
        if one.shape != two.shape or (np.isfinite(two) & ~np.isfinite(one)).any():
            return float("inf")
        fine = np.isfinite(two)
        size = float(np.linalg.norm(two[fine])) or 1.0
        worst = max(worst, float(np.linalg.norm((one - two)[fine])) / size)
    return worst
