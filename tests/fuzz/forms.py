"""One random use of one operator: which inputs of which type and shape, and which attributes, by schema and forms."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import defs

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

WEIGHTS = {
    "float32": 60,
    "float16": 4,
    "double": 4,
    "int64": 8,
    "int32": 4,
    "bool": 6,
    "uint8": 2,
    "int8": 2,
    "string": 1,
}
"""How often an operator takes a type, where its schema has it; the rarer ones not at all."""
DTYPES = {"float32": np.float32, "float16": np.float16, "double": np.float64, "int64": np.int64, "int32": np.int32,
          "bool": np.bool_, "uint8": np.uint8, "int8": np.int8, "string": np.object_}  # fmt: skip
SPELLED = {"tensor(float)": "float32"}
RARE = 0.1  # of the graphs' nodes: types other than float32 where both would do


@dataclass(frozen=True)
class Want:
    """An input: absent without a type; ``value`` where it is a constant that is given."""

    dtype: str = ""
    shape: tuple[int, ...] = ()
    constant: bool = False
    positive: bool = False
    value: Any = None


@dataclass(frozen=True)
class Use:
    """An operator with what it takes."""

    domain: str
    kind: str
    wants: tuple[Want, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1


@cache
def book() -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / "forms.toml").read_text())


@cache
def operators(opset: int) -> list[str]:
    """The operators of an opset, and those of other domains that there are forms for."""
    found = set()
    for one in defs.get_all_schemas_with_history():
        if one.domain == "" and one.name not in book()["skipped"] and defs.has(one.name, max_inclusive_version=opset):
            found.add(one.name)
    listed = sorted(name for name in found if not schema(name, opset).deprecated)
    listed += [name for name, forms in book()["forms"].items() if "::" in name and forms]
    often = book()["often"]
    return [name for name in listed for _ in range(often.get(name, 1))]


@cache
def schema(name: str, opset: int) -> defs.OpSchema:
    return defs.get_schema(name, max_inclusive_version=opset, domain="")


def draw(rng: np.random.Generator, name: str, opset: int, like: tuple[int, ...] | None = None) -> Use | None:
    """A use of an operator; None where no form fits its version. ``like``: a shape to read, where it can be."""
    if "::" in name:
        domain, kind = name.split("::")
        form = book()["forms"][name][rng.integers(len(book()["forms"][name]))]
        drawn = (_want(rng, text, "float32", {}) for text in form["inputs"])
        return Use(domain, kind, tuple(want for want in drawn if want is not None), dict(form.get("attributes", {})))
    found = schema(name, opset)
    forms = [form for form in book()["forms"].get(name, [None]) if form is None or _fits(form, found)]
    if not forms:
        return None
    form = forms[rng.integers(len(forms))] or {"inputs": _plain(rng, found, like)}
    types = _types(rng, found, form["inputs"])
    sizes = _sizes(form["inputs"], like)
    wants: list[Want] = []
    for place, text in enumerate(form["inputs"]):
        formal = found.inputs[min(place, len(found.inputs) - 1)]
        wants.append(_want(rng, text, types.get(formal.type_str, "float32"), sizes) or Want())
    attributes = {**_attributes(rng, found, form), **form.get("attributes", {})}
    if "tensor" in form:
        value = np.float32(form["tensor"][rng.integers(len(form["tensor"]))])
        attributes["value"] = onnx.numpy_helper.from_array(np.array([value]))
    return Use("", name, tuple(wants), attributes, form.get("outputs", 1))


def _fits(form: dict[str, Any], found: defs.OpSchema) -> bool:
    least = sum("?" not in text for text in form["inputs"])
    return set(form.get("attributes", {})) <= set(found.attributes) and (
        found.min_input <= len(form["inputs"]) and least <= found.max_input
    )


def _sizes(texts: Sequence[str], like: tuple[int, ...] | None) -> dict[str, int]:
    """The letters of the first input, so that it has a shape."""
    dims = texts[0].split() if texts else []
    if like is None or len(dims) != len(like):
        return {}
    if any(d.isdigit() and int(d) != n for d, n in zip(dims, like, strict=True)):
        return {}
    return {dim: size for dim, size in zip(dims, like, strict=True) if dim.isalpha()}


def _plain(rng: np.random.Generator, found: defs.OpSchema, like: tuple[int, ...] | None) -> list[str]:
    """Inputs of one shape, some of them broadcast."""
    rank = int(rng.choice([0, 1, 2, 2, 2, 3, 4])) if like is None or len(like) > 4 else len(like)
    letters = "abcd"[:rank]
    count = max(found.min_input, min(found.max_input, int(rng.integers(1, 4))))
    texts = [" ".join(letters)]
    for _ in range(count - 1):
        how = rng.random()
        dropped = letters[rng.integers(rank + 1) :] if how < 0.2 else letters
        dims = [d if rng.random() > 0.1 else "1" for d in dropped]
        texts.append("=" if how > 0.9 else " ".join(dims) + (" !" if how > 0.7 else ""))
    return texts


def _types(rng: np.random.Generator, found: defs.OpSchema, texts: Sequence[str]) -> dict[str, str]:
    """A type for each type variable."""
    chosen = {}
    for constraint in found.type_constraints:
        names = {SPELLED.get(t, t.removeprefix("tensor(").removesuffix(")")) for t in constraint.allowed_type_strs}
        allowed = [name for name in WEIGHTS if name in names]
        if not allowed:
            continue
        if "float32" in allowed and rng.random() > RARE:
            chosen[constraint.type_param_str] = "float32"
            continue
        weights = np.array([WEIGHTS[name] for name in allowed], float)
        chosen[constraint.type_param_str] = str(rng.choice(allowed, p=weights / weights.sum()))
    for formal in found.inputs:
        if formal.type_str.startswith("tensor("):
            chosen[formal.type_str] = SPELLED.get(formal.type_str, formal.type_str[7:-1])
    return chosen


def _want(rng: np.random.Generator, text: str, dtype: str, sizes: dict[str, int]) -> Want | None:
    """None for an input that is left away."""
    if text.startswith("="):
        return _literal(rng, text[1:].strip(), dtype)
    if "?" in text and (text == "?" or rng.random() < 0.5):
        return None
    head, colon, rest = text.partition(":")
    dtype, text = (head.strip(), rest) if colon else (dtype, text)
    marks = {mark for mark in "?!+" if mark in text}
    dims = text.translate(str.maketrans("", "", "?!+")).split()
    for dim in dims:
        if dim.isalpha() and dim not in sizes:
            sizes[dim] = int(rng.choice([1, 2, 3, 4, 5]))
    shape = tuple(int(dim) if dim.isdigit() else sizes[dim] for dim in dims)
    return Want(dtype, shape, constant="!" in marks, positive="+" in marks)


def _literal(rng: np.random.Generator, text: str, dtype: str) -> Want:
    head, colon, rest = text.partition(":")
    dtype, text = (head.strip(), rest) if colon else (dtype, text)
    if not text:
        text = str(float(rng.choice([0.5, 2.0, 1e-6, 3.0, -1.0, 100.0])))
    value = np.array(json.loads(text), DTYPES[dtype]) if dtype != "string" else np.array("a", object)
    return Want(dtype, value.shape, constant=True, value=value)


def _attributes(rng: np.random.Generator, found: defs.OpSchema, form: dict[str, Any]) -> dict[str, Any]:
    chosen = {}
    for name, attribute in found.attributes.items():
        choices = book()["attributes"].get(name)
        if choices and (attribute.required or rng.random() < 0.25) and name not in form.get("attributes", {}):
            chosen[name] = choices[rng.integers(len(choices))]
    return chosen
