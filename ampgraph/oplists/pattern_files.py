"""Reads the patterns of op_lists/patterns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from ..core.patterns import STORED, Attribute, Call, Conventions, Function, Node, Number, Pattern, expand
from .files import ListFile, data_folder, mistake, read_file

if TYPE_CHECKING:
    from onnx import NodeProto

SHARED = "shared.toml"
BIAS = "Bias"  # the one region that the lists, not its text, say the operator of

_NUMBER = re.compile(r"^([>~])\s*([-+.\deE]+)$")


@cache
def region_kinds() -> tuple[str, ...]:
    """The operators that the patterns of op_lists stand for, and `Bias`."""
    return tuple(sorted({file.data["region"] for file in _pattern_files()}))


@cache
def oldest_rewrite() -> int:
    """The first opset in which what some pattern of op_lists finds can be written as its operator."""
    opsets: list[int] = [file.data["since"] for file in _pattern_files() if "since" in file.data]
    return min(opsets)


@cache
def _pattern_files() -> tuple[ListFile, ...]:
    """The files of patterns, in alphabetical order, which is that of preference."""
    paths = sorted(path for path in (data_folder() / "patterns").glob("*.toml") if path.name != SHARED)
    return tuple(read_file(path) for path in paths)


@cache
def shipped_patterns() -> tuple[Pattern, ...]:
    """All patterns of op_lists/patterns."""
    return tuple(pattern for file in _pattern_files() for pattern in patterns_of(file))


@cache
def _shared_file() -> ListFile:
    """The file of numbers and conventions that all files of patterns share."""
    return read_file(data_folder() / "patterns" / SHARED)


@cache
def conventions() -> Conventions:
    """What all pattern files look through and how they compare: operators that are looked through, commutative ones,
    attributes that count as operands, and what an Identity is."""
    data = _shared_file().data
    through, commutative = frozenset(data["through"]), frozenset(data["commutative"])
    return Conventions(through, commutative, dict(data["operand_attributes"]), tuple(data["identity"]))


def patterns_of(file: ListFile) -> Iterator[Pattern]:
    """Yields the patterns in a file of op_lists/patterns, with calls of its functions replaced by what they stand for,
    several for a function of several variants. Raises AmpError AMP301 for a mistake in the file."""
    data, shared = file.data, _shared_file()
    try:
        kind, anchors, ends, variants = data["region"], data["anchors"], data["ends"], data["variants"]
    except KeyError as error:
        raise mistake(file, "", "", f"a file of patterns needs {error}") from None
    functions = {**_read_functions(shared), **_read_functions(file)}
    numbers = _numbers_of(file, shared)
    private, since = frozenset(data.get("private", ())), data.get("since", 0)
    common = tuple(anchors), tuple(ends), numbers, _stored_names(file), private, since, data.get("fused_only", False)
    for variant, text in variants.items():
        nodes = _parse_function(file, "variants", variant, f"() => ({', '.join(ends)}) {{ {text} }}")[2]
        written = list(expand(Pattern(kind, variant, nodes, *common), functions))
        found = [pattern for pattern in written if pattern.anchor]  # a function may be computed without it
        if not found:
            raise mistake(file, "variants", variant, f"no node of '{variant}' is one of {', '.join(anchors)}")
        unused = _unused_node(written[0])
        if unused:
            raise mistake(file, "variants", variant, f"'{unused}' leads to no end of the region")
        yield from found


def _unused_node(pattern: Pattern) -> str:
    """For the check of a pattern file: the output of a node that no end is computed from; "" where there is none."""
    used = frozenset().union(*(pattern.ancestors(end) for end in pattern.ends))
    return next((node.output for node in pattern.nodes if node.output not in used), "")


def _read_functions(file: ListFile) -> Mapping[str, tuple[Function, ...]]:
    """The functions of a pattern file by name, each with its variants."""
    return {
        name: tuple(_read_function(file, name, text) for text in texts)
        for name, texts in file.data.get("functions", {}).items()
    }


def _read_function(file: ListFile, name: str, text: str) -> Function:
    """A function of a pattern file, from its text. Raises AmpError AMP301 for one that does not give one value."""
    parameters, outputs, nodes = _parse_function(file, "functions", name, text)
    if len(outputs) != 1:
        raise mistake(file, "functions", name, f"'{name}' gives one value")
    return Function(parameters, outputs[0], nodes)


def _numbers_of(file: ListFile, shared: ListFile) -> Mapping[str, Number]:
    """The numbers that a file's patterns may name, with the shared ones; those that the file calls ``unchecked`` fit
    whatever they are."""
    numbers, unchecked = {**_file_numbers(shared), **_file_numbers(file)}, file.data.get("unchecked", ())
    for name in unchecked:
        if name not in numbers:
            raise mistake(file, "", "unchecked", f"'{name}' is not a number that the patterns use")
    return {name: replace(number, unchecked=name in unchecked) for name, number in numbers.items()}


def _file_numbers(file: ListFile) -> Mapping[str, Number]:
    """The numbers that one pattern file says, by name."""
    return {name: _pattern_number(file, name, value) for name, value in file.data.get("numbers", {}).items()}


def _pattern_number(file: ListFile, name: str, value: object) -> Number:
    """A number as the file gives it: itself, "> 1e-3" (above) or "~ 0.5" (about)."""
    if isinstance(value, (int, float)):
        return Number(float(value))
    match = _NUMBER.match(value) if isinstance(value, str) else None
    if match is None:
        raise mistake(file, "numbers", name, f"'{name}' is a number, '> number' or '~ number'")
    return Number(float(match[2]), match[1])


def _stored_names(file: ListFile) -> Mapping[str, str]:
    """Of a pattern file: name of a value that must be a stored tensor -> of which sort (`STORED`)."""
    stored: Mapping[str, str] = file.data.get("stored", {})
    for name, sort in stored.items():
        if sort not in STORED:
            raise mistake(file, "stored", name, f"'{name}' is one of {', '.join(STORED)}")
    return stored


ParsedFunction = tuple[tuple[str, ...], tuple[str, ...], tuple[Node, ...]]


def _parse_function(file: ListFile, table: str, key: str, text: str) -> ParsedFunction:
    """(parameters, outputs, nodes) of ``(x) => (y) { ... }``, as onnx.parser reads a function."""
    from onnx import parser

    try:
        function = parser.parse_function(f'<domain: "patterns", opset_import: ["": 1]> pattern {text}')
    except parser.ParseError as error:
        message = next((line for line in str(error).splitlines() if line), "")
        raise mistake(file, table, key, f"'{key}' is not a graph: {message}") from None
    return (
        tuple(function.input),
        tuple(function.output),
        tuple(_pattern_node(file, table, key, node) for node in function.node),
    )


def _pattern_node(file: ListFile, table: str, key: str, node: NodeProto) -> Node:
    """A node of a pattern's text; an attribute has a value, or refers to a parameter that another node binds."""
    from onnx import helper

    if len(node.output) != 1:
        raise mistake(file, table, key, f"'{node.op_type}' in '{key}' gives one value")
    role = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    attributes = []
    for given in node.attribute:
        if given.ref_attr_name:
            attributes.append(Attribute(given.name, given.ref_attr_name, True))
        else:
            attributes.append(Attribute(given.name, _as_in_dataflow(helper.get_attribute_value(given))))
    return Node(node.output[0], (Call(role, tuple(node.input), tuple(attributes)),))


def _as_in_dataflow(value: object) -> object:
    """An attribute's value in a pattern file as a dataflow gives it: bytes as text, a list as a tuple."""
    if isinstance(value, bytes):
        return value.decode()
    return tuple(value) if isinstance(value, (list, tuple)) else value
