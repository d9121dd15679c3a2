"""Reads the patterns of op_lists/patterns, and finds the regions that they describe."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.dataflow import NONE, Dataflow, Op
from ..core.matching import Match, Mismatch, PatternSet
from ..core.patterns import STORED, Attribute, Call, Conventions, Function, Node, Number, Pattern, expand
from .files import ListFile, data_folder, mistake, read_file

if TYPE_CHECKING:
    from onnx import NodeProto

SHARED = "shared.toml"
BIAS = "Bias"  # the one region that the lists, not its text, say the operator of
PRODUCT = "Product"

_NUMBER = re.compile(r"^([>~])\s*([-+.\deE]+)$")


@dataclass(frozen=True)
class Region:
    """Nodes that share one decision. ``kind`` is the operator they stand for; ``result`` their last node."""

    kind: str
    ops: tuple[Op, ...]
    result: Op
    source: int = NONE  # the value that goes in
    scale: int = NONE
    bias: int = NONE
    epsilon: float = 0.0
    reduced: tuple[Op, ...] = ()  # every node whose axes the pattern compares
    axes: tuple[int, ...] = ()  # the axes of these, () where they are all or not stored


def find_regions(flow: Dataflow, patterns: PatternSet | None = None) -> Iterator[Region]:
    """Every region of a dataflow but for products with their bias, in the order of the anchors' nodes."""
    return (_region(match) for match in (patterns or region_patterns()).find(flow))


def find_biases(flow: Dataflow, products: Collection[str]) -> Iterator[Region]:
    """A product and the Add of a stored vector to its result."""
    return (_region(match) for match in bias_patterns().find(flow, {PRODUCT: products}))


def mismatches(flow: Dataflow, op: Op, kind: str = "") -> list[Mismatch]:
    """Why no pattern, or none of a kind, is there at an operator where one could start; the nearest first."""
    return [reason for reason in region_patterns().mismatches(flow, op) if kind in ("", reason.kind)]


def _region(match: Match) -> Region:
    part, axes = match.parts.get, match.attributes.get("axes")
    compared = (
        node for node in match.pattern.nodes if any(a.reference for call in node.calls for a in call.attributes)
    )
    return Region(
        match.pattern.kind,
        match.ops,
        match.result,
        part("x", NONE),
        part("scale", NONE),
        part("bias", NONE),
        match.numbers.get("eps", 0.0),
        tuple(match.nodes[node.output] for node in compared),
        axes if isinstance(axes, tuple) and all(isinstance(axis, int) for axis in axes) else (),
    )


# -- reading ----------------------------------------------------------------------------------------------------------


@cache
def region_patterns() -> PatternSet:
    """The patterns that are shipped, but for products with their bias."""
    return PatternSet([pattern for pattern in _shipped() if pattern.kind != BIAS], _conventions())


@cache
def bias_patterns() -> PatternSet:
    return PatternSet([pattern for pattern in _shipped() if pattern.kind == BIAS], _conventions())


def load_patterns(*paths: Path) -> PatternSet:
    """The patterns of files beside the shipped ones. Raises AmpError AMP301 for a file that is none of patterns."""
    return PatternSet([pattern for path in paths for pattern in _patterns(read_file(path))], _conventions())


@cache
def _shipped() -> tuple[Pattern, ...]:
    files = sorted(path for path in (data_folder() / "patterns").glob("*.toml") if path.name != SHARED)
    return tuple(pattern for path in files for pattern in _patterns(read_file(path)))


@cache
def _shared() -> ListFile:
    return read_file(data_folder() / "patterns" / SHARED)


@cache
def _conventions() -> Conventions:
    data = _shared().data
    through, commutative = frozenset(data["through"]), frozenset(data["commutative"])
    return Conventions(through, commutative, dict(data["operand_attributes"]), tuple(data["identity"]))


def _patterns(file: ListFile) -> Iterator[Pattern]:
    """The patterns of a file, with every function replaced."""
    data, shared = file.data, _shared()
    try:
        kind, anchors, ends, variants = data["region"], data["anchors"], data["ends"], data["variants"]
    except KeyError as error:
        raise mistake(file, "", "", f"a file of patterns needs {error}") from None
    functions = {**_functions(shared), **_functions(file)}
    numbers = {**_numbers(shared), **_numbers(file)}
    common = tuple(anchors), tuple(ends), numbers, _stored(file), frozenset(data.get("private", ()))
    for variant, text in variants.items():
        nodes = _nodes(file, "variants", variant, f"() => ({', '.join(ends)}) {{ {text} }}")[2]
        written = list(expand(Pattern(kind, variant, nodes, *common), functions))
        found = [pattern for pattern in written if pattern.anchor]  # a function may be computed without it
        if not found:
            raise mistake(file, "variants", variant, f"no node of '{variant}' is one of {', '.join(anchors)}")
        if idle := _idle(written[0]):
            raise mistake(file, "variants", variant, f"'{idle}' leads to no end of the region")
        yield from found


def _idle(pattern: Pattern) -> str:
    """A node that no end is computed from."""
    used = frozenset().union(*(pattern.above(end) for end in pattern.ends))
    return next((node.output for node in pattern.nodes if node.output not in used), "")


def _functions(file: ListFile) -> Mapping[str, tuple[Function, ...]]:
    return {
        name: tuple(_function(file, name, text) for text in texts)
        for name, texts in file.data.get("functions", {}).items()
    }


def _function(file: ListFile, name: str, text: str) -> Function:
    parameters, outputs, nodes = _nodes(file, "functions", name, text)
    if len(outputs) != 1:
        raise mistake(file, "functions", name, f"'{name}' gives one value")
    return Function(parameters, outputs[0], nodes)


def _numbers(file: ListFile) -> Mapping[str, Number]:
    return {name: _number(file, name, value) for name, value in file.data.get("numbers", {}).items()}


def _number(file: ListFile, name: str, value: object) -> Number:
    if isinstance(value, (int, float)):
        return Number(float(value))
    match = _NUMBER.match(value) if isinstance(value, str) else None
    if match is None:
        raise mistake(file, "numbers", name, f"'{name}' is a number, '> number' or '~ number'")
    return Number(float(match[2]), match[1])


def _stored(file: ListFile) -> Mapping[str, str]:
    stored: Mapping[str, str] = file.data.get("stored", {})
    for name, sort in stored.items():
        if sort not in STORED:
            raise mistake(file, "stored", name, f"'{name}' is one of {', '.join(STORED)}")
    return stored


Text = tuple[tuple[str, ...], tuple[str, ...], tuple[Node, ...]]


def _nodes(file: ListFile, table: str, key: str, text: str) -> Text:
    """(parameters, outputs, nodes) of ``(x) => (y) { ... }``, as onnx.parser reads a function."""
    from onnx import parser

    try:
        function = parser.parse_function(f'<domain: "patterns", opset_import: ["": 1]> pattern {text}')
    except parser.ParseError as error:
        message = next((line for line in str(error).splitlines() if line), "")
        raise mistake(file, table, key, f"'{key}' is no graph: {message}") from None
    return tuple(function.input), tuple(function.output), tuple(_node(file, table, key, node) for node in function.node)


def _node(file: ListFile, table: str, key: str, node: NodeProto) -> Node:
    from onnx import helper

    if len(node.output) != 1:
        raise mistake(file, table, key, f"'{node.op_type}' in '{key}' gives one value")
    role = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    attributes = tuple(
        Attribute(a.name, a.ref_attr_name, True)
        if a.ref_attr_name
        else Attribute(a.name, _plain(helper.get_attribute_value(a)))
        for a in node.attribute
    )
    return Node(node.output[0], (Call(role, tuple(node.input), attributes),))


def _plain(value: object) -> object:
    """An attribute's value as a dataflow gives it."""
    if isinstance(value, bytes):
        return value.decode()
    return tuple(value) if isinstance(value, (list, tuple)) else value
