"""A .mindir graph as a function that MindSpore can differentiate, in pieces where it cannot differentiate the whole.

MindSpore 2.10 has no gradient for some operators that come from a file: its loader turns the layout of Conv2D and
MaxPool into a number that their gradients take for text, and counts the state that BatchNorm carries twice. The graph
is cut at each of them: it becomes a primitive that is constructed in Python ("live"), and what lies between is loaded
as small files whose weights are inputs. The numbers stay the same to the bit: every kernel is the one that the file
names.
"""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import sys
import tempfile
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from ...core.errors import AmpError
from ...formats.mindir import schema
from ...formats.mindir.step import NOT_IN_A_FILE, STANDS_FOR
from ...runtime import mindspore_session as runtime
from ...runtime.mindspore_session import TENSOR_KINDS

LAYOUTS = {0: "NCHW", 1: "NHWC", 2: "NCDHW"}
_numbers = itertools.count()  # of the modules that `_module_function` makes


@dataclass
class Piece:
    """A step of a cut .mindir graph: a ``live`` operator with its TupleGetItems, or nodes of one loaded file."""

    live: bool
    nodes: list[Any] = field(default_factory=list)


def forward_of(ms: ModuleType, path: str | os.PathLike[str], model: Any) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function of a .mindir file's inputs that gives its loss and that MindSpore can differentiate, and the file's
    Parameters by name. ``model``: the file's message. Operators of `NOT_IN_A_FILE`, which MindSpore cannot
    differentiate in a loaded file, run live between pieces of it. Raises AmpError AMP205 where one of them stands in a
    branch or a loop, or cannot be cut out."""
    cell = runtime.load_cell(ms, path)
    parameters = {parameter.name: parameter for parameter in cell.get_parameters()}
    kinds = {primitive.name: primitive for primitive in model.primitives}

    def kind(node: Any) -> str:
        primitive = kinds.get(node.op_type.removeprefix("REF::"))
        found: str = node.op_type if primitive is None else primitive.op_type
        return found

    inside = {kind(node) for graph in model.functions for node in graph.node} & set(NOT_IN_A_FILE)
    if inside:
        raise _cut_error(path, f"{sorted(inside)[0]} stands in a branch or a loop")
    if not any(kind(node) in NOT_IN_A_FILE for node in model.graph.node):
        return cell, parameters
    return _GraphPieces(ms, str(path), model, kind, kinds).function(parameters), parameters


def _cut_error(path: Any, why: str) -> AmpError:
    """The AmpError AMP205 for a .mindir file that MindSpore cannot differentiate, even in pieces."""
    message = f"cannot be differentiated by MindSpore 2.10 from a file: {why}"
    return AmpError("AMP205", message, where=str(path), hint="export the whole training step instead")


class _GraphPieces:
    """Cuts the nodes of a .mindir graph into ``steps``, pieces that are loaded as files and live operators between, for
    MindSpore's gradients. ``kind``: node -> its operator; ``primitives``: name -> the file's message of it."""

    def __init__(
        self, ms: ModuleType, path: str, model: Any, kind: Callable[[Any], str], primitives: dict[str, Any]
    ) -> None:
        self.ms, self.path, self.model, self.kind, self.primitives = ms, path, model, kind, primitives
        self.weights = {tensor.name: tensor for tensor in model.graph.parameter}
        self.tensors = {value.name: value.tensor[0] for value in model.graph.input} | self.weights
        self.functions = {graph.name for graph in model.functions}
        self.constants: dict[str, Any] = {}  # result -> its node, as below
        self.tuples: dict[str, Any] = {}
        self.stands_for: dict[str, str] = {}  # result -> the value that it is another name for
        self.place: dict[str, int] = {}  # result -> the number of its step
        self.steps: list[Piece] = []
        for node in model.graph.node:
            self._place_node(node)
        self.result = self.origin(model.graph.output[0].name)

    def _place_node(self, node: Any) -> None:
        """MindSpore's gradients: sorts in a node: constants, tuples and other names of values are noted, a live
        operator becomes a step of its own, others join the last step. Raises AmpError AMP205 where it writes."""
        kind, result = self.kind(node), node.output[0]
        if kind == "Constant":
            self.constants[result] = node
        elif kind in STANDS_FOR:
            self.stands_for[result] = node.input[STANDS_FOR[kind]]
        elif kind == "MakeTuple":
            self.tuples[result] = node
        elif kind == "TupleGetItem" and self.origin(node.input[0]) in self.tuples:
            self.stands_for[result] = self.tuples[self.origin(node.input[0])].input[self._constant(node.input[1])]
        elif kind == "TupleGetItem":
            self._add_to_step(
                node, self.place[self.origin(node.input[0])]
            )  # where the tuple is: only tensors cross a cut
        else:
            if kind not in NOT_IN_A_FILE and self._writes(node):
                raise _cut_error(self.path, f"{kind} writes a parameter of a graph that has to be cut")
            if kind in NOT_IN_A_FILE or not self.steps or self.steps[-1].live:
                self.steps.append(Piece(kind in NOT_IN_A_FILE))
            self._add_to_step(node, len(self.steps) - 1)

    def _add_to_step(self, node: Any, place: int) -> None:
        """MindSpore's gradients: adds a node to the step ``place``, and notes its result's shape."""
        self.steps[place].nodes.append(node)
        self.place[node.output[0]] = place
        shapes = [entry for entry in node.attribute if entry.name == "shape" and entry.type in TENSOR_KINDS]
        if shapes and len(shapes[0].tensors) == 1:
            self.tensors[node.output[0]] = shapes[0].tensors[0]

    def _writes(self, node: Any) -> bool:
        """Whether a node of a .mindir graph writes a parameter in place."""
        primitive = self.primitives.get(node.op_type.removeprefix("REF::"))
        return primitive is not None and any(entry.name == "side_effect_mem" for entry in primitive.attribute)

    def origin(self, name: str) -> str:
        """MindSpore's gradients: the value of the .mindir graph that a name stands for, itself if for no other."""
        while name in self.stands_for:
            name = self.stands_for[name]
        return name

    def operands(self, node: Any) -> list[str]:
        """MindSpore's gradients: the tensors that a node reads, also in tuples (no constants)."""
        found: list[str] = []
        for name in map(self.origin, node.input):
            if name in self.tuples:
                found += self.operands(self.tuples[name])
            elif name not in self.constants and name not in self.functions:
                found.append(name)
        return found

    def _constant(self, name: str) -> Any:
        """MindSpore's gradients: the Python value of a constant. Raises AmpError AMP205 for a computed one."""
        origin = self.origin(name)
        if origin not in self.constants:
            raise _cut_error(self.path, f"'{name}' is not a constant")
        return _attribute_value(self.constants[origin].attribute[0])

    # -- the function -------------------------------------------------------------------------------------------------

    def function(self, parameters: dict[str, Any]) -> Callable[..., Any]:
        """MindSpore's gradients: the steps in their order as a Python function of the graph's inputs, written as source
        because MindSpore reads that; ``parameters``: the file's by name."""
        names = {value.name: f"x{i}" for i, value in enumerate(self.model.graph.input)}
        formals = ", ".join(names.values())
        names |= {name: f"held.w{i}" for i, name in enumerate(self.weights)}
        scope: dict[str, Any] = {"held": self._holder(parameters)}
        lines = [f"def forward({formals}):"]
        last = {name: i for i, step in enumerate(self.steps) for node in step.nodes for name in self.operands(node)}
        last[self.result] = len(self.steps)
        with tempfile.TemporaryDirectory() as folder:
            for index, step in enumerate(self.steps):
                for node in step.nodes:
                    names[node.output[0]] = f"v{len(names)}"
                if step.live:
                    scope[f"f{index}"] = self._primitive(step.nodes[0])
                    lines += self._live_lines(f"f{index}", step, names)
                    continue
                made = [node.output[0] for node in step.nodes]
                given = list(dict.fromkeys(n for node in step.nodes for n in self.operands(node) if n not in made))
                kept = [name for name in made if last.get(name, index) > index]
                if not kept:
                    continue
                file = Path(folder) / f"{index}.mindir"
                file.write_bytes(self._piece(step, given, kept).SerializeToString())
                scope[f"f{index}"] = runtime.load_cell(self.ms, file)
                results = ", ".join(names[name] for name in kept)
                lines.append(f"    {results} = f{index}({', '.join(names[name] for name in given)})")
        lines.append(f"    return {names[self.result]}")
        return _module_function(lines, scope)

    def _live_lines(self, function: str, step: Piece, names: dict[str, str]) -> list[str]:
        """MindSpore's gradients: the source lines that call a live operator and take its results apart."""
        node, *parts = step.nodes
        missing = [name for name in self.operands(node) if name not in names]
        if missing:
            raise _cut_error(self.path, f"{self.kind(node)} reads something other than a tensor")
        result = names[node.output[0]]
        lines = [f"    {result} = {function}({', '.join(names[name] for name in self.operands(node))})"]
        return lines + [f"    {names[part.output[0]]} = {result}[{self._constant(part.input[1])}]" for part in parts]

    def _holder(self, parameters: dict[str, Any]) -> Any:
        """MindSpore's gradients: a Cell with the file's Parameters as attributes w0, w1, ... for compiled code."""
        holder = self.ms.nn.Cell()
        for i, tensor in enumerate(self.weights.values()):
            setattr(holder, f"w{i}", parameters[tensor.ref_key or tensor.name])
        return holder

    def _primitive(self, node: Any) -> Any:
        """MindSpore's gradients: a live operator, constructed as a network does it from the attributes of its node.
        Raises AmpError AMP205 where one is missing."""
        ops, kind = self.ms.ops, self.kind(node)
        if kind == "BatchNorm":
            training, epsilon, momentum, layout = (self._constant(name) for name in list(node.input)[5:9])
            return ops.BatchNorm(bool(training), epsilon, momentum, LAYOUTS.get(layout, layout))
        given = {
            entry.name: _attribute_value(entry)
            for entry in self.primitives[node.op_type.removeprefix("REF::")].attribute
        }
        try:
            if kind == "MaxPool":
                sizes = (_height_and_width(given, name) for name in ("kernel_size", "strides"))
                return ops.MaxPool(*sizes, given["pad_mode"], given["format"])
            stride, dilation = _height_and_width(given, "stride"), _height_and_width(given, "dilation")
            names = ("out_channel", "kernel_size", "mode", "pad_mode", "pad")
            return ops.Conv2D(*(given[name] for name in names), stride, dilation, given["group"], given["format"])
        except KeyError as missing:
            raise _cut_error(self.path, f"a {kind} has no {missing}") from None

    def _piece(self, step: Piece, given: list[str], kept: list[str]) -> Any:
        """MindSpore's gradients: a model of the nodes of a step and the constants that they read, whose inputs are the
        values ``given`` and whose results are ``kept``. Raises AmpError AMP205 for one of these that is no tensor."""
        piece = schema.Model()
        piece.CopyFrom(self.model)
        if not any(self.kind(node) == "Partial" for node in step.nodes):
            del piece.functions[:]
        graph, copied = piece.graph, set()
        for part in (graph.node, graph.input, graph.output, graph.parameter):
            del part[:]

        def copy(node: Any) -> None:
            for name in map(self.origin, node.input):
                source = self.constants.get(name) or self.tuples.get(name)
                if source is not None and name not in copied:
                    copied.add(name)
                    copy(source)
            new = graph.node.add()
            new.CopyFrom(node)
            new.input[:] = [self.origin(name) for name in node.input]

        for node in step.nodes:
            copy(node)
        for values, part in ((given, graph.input), (kept, graph.output)):
            for name in values:
                if name not in self.tensors:
                    raise _cut_error(self.path, f"'{name}' crosses the cut and is not a tensor")
                tensor = part.add(name=name).tensor.add(data_type=self.tensors[name].data_type)
                tensor.dims.extend(self.tensors[name].dims)
        return piece


def _height_and_width(given: dict[str, Any], name: str) -> tuple[int, ...]:
    """MindSpore's gradients: height and width of the attribute ``name``, which the file keeps for four dimensions."""
    sizes: tuple[int, ...] = given[name]
    return sizes[1:3] if given["format"] == "NHWC" else sizes[2:]


def _attribute_value(entry: Any) -> Any:
    """MindSpore's gradients: the Python value of an Attribute message of a .mindir file; None for other types."""
    if entry.type == schema.TUPLE:
        return tuple(map(_attribute_value, entry.values))
    if entry.type == schema.STRING:
        return (entry.s or next(iter(entry.strings), b"")).decode()
    if entry.type == schema.FLOAT:
        return entry.f
    if entry.type in (schema.INT64, schema.BOOL):
        return entry.ints[0] if entry.ints else entry.i
    return None


def _module_function(lines: list[str], scope: dict[str, Any]) -> Callable[..., Any]:
    """MindSpore's gradients: the function ``forward`` of these source lines, in a module of its own with the names of
    ``scope``; MindSpore reads its source from a file, which is removed at exit. No word of it is the model's."""
    name = f"_ampgraph_forward_{next(_numbers)}"
    module = types.ModuleType(name)
    module.__dict__.update(scope)
    source = "\n".join(lines) + "\n"
    folder = tempfile.mkdtemp(prefix="ampgraph-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    where = os.path.join(folder, f"{name}.py")
    Path(where).write_text(source, encoding="utf-8")
    sys.modules[name] = module
    exec(compile(source, where, "exec"), module.__dict__)
    forward: Callable[..., Any] = module.forward
    return forward
