"""MindIR models from text, and conversions of them in memory.

    main(x: f32[2,4])
      parameter w: f32[4,3]
      a: f32[4,3] = Load(w, state)
      y: f32[2,3] = MatMul(x, a, false, false) @Default/fc-Dense/MatMul-op0
      return y
    helper(z: f32[2,3], *w, u: state)
      return z

A line is ``name: type = Operator(operands) @scope``. A type is ``f32[2,-1]``, ``(f32[2], i64[])``, ``state`` or ``?``
for none; left away, it is that of the first operand. Operands: names, functions, numbers, ``true``, ``none``,
``state``, the types f16 f32 bf16 as a Cast names them, ``'text'``, ``[1, 0]``, and tensors ``f32[3]=0.5``.
``call f(...)`` calls a function or a function value. ``*w`` is a formal that stands for the parameter w.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from ampgraph.api import pipeline
from ampgraph.api.prepare import low_interface
from ampgraph.core.plan import Plan
from ampgraph.core.recipe import Recipe
from ampgraph.formats.mindir import schema
from ampgraph.formats.mindir.graph import MindirGraph
from ampgraph.formats.mindir.weights import MindirFile
from ampgraph.oplists.options import Options
from ampgraph.planner.resolve import resolve
from formats.mindir import text as mindir_text

TYPES = {"f32": 1, "f16": 10, "bf16": 16, "f64": 11, "i64": 7, "i32": 6, "bool": 9, "u8": 2}
NUMPY = {"f32": np.float32, "f16": np.float16, "i64": np.int64, "i32": np.int32, "bool": np.bool_}
IDS = {"f16": 42, "f32": 43, "f64": 44, "bf16": 45}
_TENSOR = re.compile(r"(\w+)\[([-\d,]*)\](?:=(\S+))?")
_LINE = re.compile(r"(\S+?)(?:: (.+?))? = (call )?([^\s(]+)\((.*)\)(?: @(\S+))?")
_HEAD = re.compile(r"(\S+)\((.*)\)")


def split(words: str) -> list[str]:
    """Words between commas that stand in no bracket."""
    parts, depth, word = [], 0, ""
    for char in words:
        depth += (char in "([") - (char in ")]")
        if char == "," and not depth:
            parts.append(word.strip())
            word = ""
        else:
            word += char
    return [*parts, word.strip()] if word.strip() else parts


class _Reader:
    def __init__(self) -> None:
        self.model = schema.Model(ir_version="1.1", producer_name="MindSpore", mind_ir_version=3)
        self.constants: dict[str, str] = {}
        self.parameters: dict[str, Any] = {}

    def read(self, words: str) -> Any:
        lines = [line.strip() for line in words.strip().splitlines() if line.strip()]
        heads = [line for line in lines if _HEAD.fullmatch(line) and "=" not in line]
        self.functions = {line.split("(")[0] for line in heads[1:]}
        for line in lines:
            if line in heads:
                self.head(line)
            elif line.startswith("parameter "):
                self.parameter(*line.removeprefix("parameter ").split(": "))
            elif line.startswith("return "):
                self.result(line.removeprefix("return "))
            else:
                self.node(line)
        return self.model

    def head(self, line: str) -> None:
        match = _HEAD.fullmatch(line)
        assert match is not None
        self.graph = self.model.graph if not self.model.HasField("graph") else self.model.functions.add()
        self.graph.name = match[1]
        self.known: dict[str, Any] = {}  # name -> abstract
        for word in split(match[2]):
            name, _, kind = word.partition(": ")
            info = self.graph.input.add(name=f"{self.graph.name}:{name.lstrip('*')}")
            if name.startswith("*"):
                stored = self.parameters[name[1:]]
                info.tensor.add(data_type=stored.data_type, dims=stored.dims, ref_key=name[1:])
                self.known[name[1:]] = self.abstract(stored)
                continue
            self.known[name] = abstract = self.type(kind)
            if abstract.type == schema.TENSORS:
                info.tensor.add().CopyFrom(abstract.tensors[0])
            else:
                info.attr_info.CopyFrom(abstract)

    def parameter(self, name: str, kind: str) -> None:
        match = _TENSOR.fullmatch(kind)
        assert match is not None
        tensor = self.graph.parameter.add(name=f"{self.graph.name}:{name}", ref_key=name)
        self.fill(tensor, match)
        self.parameters[name] = tensor
        self.known[name] = self.abstract(tensor)

    def fill(self, tensor: Any, match: re.Match[str]) -> None:
        dims = [int(dim) for dim in match[2].split(",") if dim]
        tensor.data_type = TYPES[match[1]]
        tensor.dims.extend(dims)
        if match[1] == "bf16":
            tensor.raw_data = np.full(dims, 0x3F00, np.uint16).tobytes()
        else:
            values = np.full(dims, float(match[3] or 0.5))
            if len(dims) == 2 and not match[3] and match[1] in ("f32", "f16"):
                values[:, ::2] *= -1  # columns of a matrix are not all alike, which a guard would hold
            tensor.raw_data = values.astype(NUMPY[match[1]]).tobytes()

    def abstract(self, tensor: Any) -> Any:
        made = schema.Attribute(name="shape", type=schema.TENSORS)
        made.tensors.add(data_type=tensor.data_type, dims=tensor.dims)
        return made

    def type(self, kind: str) -> Any:
        if kind.startswith("("):
            made = schema.Attribute(name="shape", type=schema.TUPLE)
            made.values.extend(self.type(word) for word in split(kind[1:-1]))
            return made
        if kind in ("state", "function"):
            return schema.Attribute(name="shape", type=schema.UMONAD if kind == "state" else schema.FUNCTION)
        match = _TENSOR.fullmatch(kind)
        assert match is not None, kind
        made = schema.Attribute(name="shape", type=schema.TENSORS)
        made.tensors.add(data_type=TYPES[match[1]], dims=[int(dim) for dim in match[2].split(",") if dim])
        return made

    def result(self, name: str) -> None:
        full, abstract = self.operand(name), self.type_of(name)
        info = self.graph.output.add(name=full)
        if abstract.type == schema.TENSORS:
            info.tensor.extend(abstract.tensors)
        else:
            info.attr_info.CopyFrom(abstract)

    def node(self, line: str) -> None:
        match = _LINE.fullmatch(line)
        assert match is not None, line
        name, kind, call, operator, words, scope = match.groups()
        operands = split(words)
        full = f"{self.graph.name}:{name}"
        inputs = [self.operand(word) for word in operands]  # constants stand in front
        node = self.graph.node.add(name=full, output=[full], input=inputs, domain=scope or "")
        called = operator if operator in self.functions else f"{self.graph.name}:{operator}"
        node.op_type = f"REF::{called if call else self.primitive(operator)}"
        self.known[name] = abstract = self.result_type(operator, operands, kind)
        if kind != "?":
            node.attribute.add().CopyFrom(abstract)
            node.attribute[0].name = "shape"

    def result_type(self, operator: str, operands: list[str], kind: str | None) -> Any:
        if kind not in (None, "?"):
            return self.type(kind)
        if operator in ("MakeTuple", "MakeList"):
            made = schema.Attribute(name="shape", type=schema.TUPLE)
            made.values.extend(self.type_of(word) for word in operands)
            return made
        if operator in ("Partial", "Switch", "SwitchLayer", "UpdateState"):
            return self.type("state" if operator == "UpdateState" else "function")
        first = self.type_of(operands[0])
        if operator == "TupleGetItem":
            return first.values[int(operands[1])]
        made = schema.Attribute()
        made.CopyFrom(first)
        if operator == "Cast":
            made.tensors[0].data_type = TYPES[operands[1]]
        return made

    def primitive(self, operator: str) -> str:
        for known in self.model.primitives:
            if known.op_type == operator:
                return known.name
        return self.model.primitives.add(name=f"{operator}:1", op_type=operator, prim_type=schema.PRIMITIVE).name

    def operand(self, word: str) -> str:
        if word in self.known:
            return f"{self.graph.name}:{word}"
        if word in self.functions:
            return word
        if word not in self.constants:
            name = self.constants[word] = f"Const_{len(self.constants)}"
            self.constant(self.graph.node.add(name=name, output=[name], op_type="Constant"), word)
        return self.constants[word]

    def type_of(self, word: str) -> Any:
        """The abstract of an operand, an empty one for a constant that is no tensor."""
        if match := _TENSOR.fullmatch(word):
            return self.type(f"{match[1]}[{match[2]}]")
        return self.known.get(word) or schema.Attribute()

    def constant(self, node: Any, word: str) -> None:
        value = node.attribute.add(name="value")
        match = _TENSOR.fullmatch(word)
        if match:
            value.type = schema.TENSORS
            self.fill(value.tensors.add(name="value0"), match)
        elif word.startswith("["):
            value.type = schema.TUPLE
            for number in split(word[1:-1]):
                value.values.add(type=schema.INT64, ints=[int(number)])
        elif word in ("state", "none"):
            value.type = schema.UMONAD if word == "state" else schema.NONE_TYPE
        elif word in ("true", "false"):
            value.type, value.i = schema.BOOL, int(word == "true")
        elif word.startswith("'"):
            value.type, value.s = schema.STRING, word.strip("'").encode()
        elif re.fullmatch(r"-?\d+", word) or word in IDS:
            value.type, value.i = schema.INT64, IDS[word] if word in IDS else int(word)
        else:
            value.type, value.f = schema.FLOAT, float(word)


def parse(words: str) -> Any:
    """A model from text."""
    return _Reader().read(words)


def graph_of(model: Any) -> MindirGraph:
    """A model in memory as a graph; it is copied."""
    copy = schema.Model()
    copy.CopyFrom(model)
    return MindirGraph(MindirFile(copy, None))


def plan_of(model: Any, level: str = "O2", dtype: str = "float16", io: Any = "keep", **options: Any) -> Plan:
    """The plan of a model in memory."""
    graph = graph_of(model)
    return pipeline.plan_graph(graph, _options(level, dtype, **options), low_interface(graph, Recipe.of(io=io).io))[0]


def convert(model: Any, level: str = "O2", dtype: str = "float16", io: Any = "keep", **options: Any) -> Any:
    """The converted model; the one that is given stays as it is."""
    graph = graph_of(model)
    plan, flow = pipeline.plan_graph(
        graph, _options(level, dtype, **options), low_interface(graph, Recipe.of(io=io).io)
    )
    pipeline.run_passes(graph, plan, flow)
    return graph.file.model


def followed(model: Any, plan: Plan) -> Any:
    """A model converted by a plan that is given."""
    graph = graph_of(model)
    pipeline.run_passes(graph, *pipeline.follow_plan(plan, graph), given=True)
    return graph.file.model


def _options(level: str, dtype: str, **fields: Any) -> Options:
    return resolve(Recipe.of(level=level, dtype=dtype, **fields), "MindIR")


def data(model: Any) -> bytes:
    return model.SerializeToString(deterministic=True)


def dump(model: Any, everything: bool = False) -> str:
    """A model as text, without blanks at the ends of lines."""
    return "\n".join(line.rstrip() for line in mindir_text.dump(model, everything).splitlines())
