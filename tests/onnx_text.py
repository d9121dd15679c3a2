"""ONNX models from the text form that onnx.parser reads: the one place where tests make models of text."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx.parser
from onnx import ModelProto, numpy_helper

FIRST_OF_IR_10 = 21  # the opset that IR version 10 came with


def parse(
    text: str,
    weights: Mapping[str, Any] | None = None,
    /,
    *,
    opset: int = 17,
    ir: int | None = None,
    domains: Iterable[str] = (),
    functions: str = "",
    known: Mapping[str, Any] | None = None,
    **more: Any,
) -> ModelProto:
    """A model from ``graph (inputs) => (outputs) <initializers> { nodes }``; functions stand behind it.

    No default opset is imported for ``opset=0``, ``domains`` are imported at version 1. ``weights``, by name or as
    keywords, become initializers: arrays and numbers as numpy has them, or shapes of seeded small numbers; of ``known``
    those that the text reads. The IR version follows from the opset unless it is given. Nodes get a name by ``[name]``
    in front of the operator. A text with a head of its own, ``<ir_version: 9, ...>``, is taken as it is.
    """
    imports = ", ".join(([f'"" : {opset}'] if opset else []) + [f'"{domain}" : 1' for domain in domains])
    version = ir or (10 if opset >= FIRST_OF_IR_10 else 9)
    head = "" if text.lstrip().startswith("<") else f"<ir_version: {version}, opset_import: [{imports}]>"
    model = onnx.parser.parse_model(f"{head}\n{text}\n{functions}")
    read = set(re.findall(r"[(,]\s*(\w+)\s*(?=[,)])", text))
    stored = {**(weights or {}), **{name: value for name, value in (known or {}).items() if name in read}, **more}
    model.graph.initializer.extend(numpy_helper.from_array(array(v, name), name) for name, v in stored.items())
    return model


def proto(model: object) -> ModelProto:
    """A model that must be an onnx.ModelProto, as type checkers see it."""
    assert isinstance(model, ModelProto)
    return model


def array(value: Any, seed: str = "") -> np.ndarray:
    """An array as it is; a tuple of ints is a shape, filled with small numbers that depend on ``seed`` alone."""
    if not isinstance(value, tuple):
        return np.asarray(value)
    number = int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=4).digest(), "little")
    return (np.random.default_rng(number).standard_normal(value) * 0.3).astype(np.float32)
