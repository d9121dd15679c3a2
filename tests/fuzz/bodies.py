"""A graph or body under construction: every value is known by an array, so that what reads it fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import FunctionProto, NodeProto, helper, numpy_helper

from fuzz.forms import DTYPES, Use, Want, draw, operators, schema
from fuzz.runtime import compute, is_tame, type_of

NAMES = ("v{}", "x.{}", "/layer/{}", "a:{}", "{}", "ünï {}")
FREE = 4  # version of the file format from which initializers are no inputs
PASSED = 3  # values of an enclosing graph that a body picks from, a try


@dataclass
class Shared:
    """What all bodies of one model share."""

    rng: np.random.Generator
    opset: int
    imports: dict[str, int]
    functions: list[FunctionProto] = field(default_factory=list)
    arities: dict[str, list[Want]] = field(default_factory=dict)
    count: int = 0
    version: int = 10

    def __post_init__(self) -> None:
        self.style = NAMES[self.rng.integers(len(NAMES))]
        self.named = float(self.rng.choice([0.0, 0.5, 1.0]))

    def fresh(self) -> str:
        self.count += 1
        return self.style.format(self.count)

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def choice(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]


class Body:
    """Nodes in order, with what they may read. ``stores``: whether it may have initializers; ``main``: inputs too."""

    def __init__(self, shared: Shared, parent: Body | None = None, *, stores: bool = True) -> None:
        self.shared, self.parent = shared, parent
        self.stores = stores and (parent is None or shared.version >= FREE)
        self.nodes: list[NodeProto] = []
        self.arrays: dict[str, Any] = {}
        self.constants: dict[str, Any] = {}
        self.formals: dict[str, Any] = {}
        self.read: set[str] = set()

    # -- what there is ------------------------------------------------------------------------------------------------

    def array(self, name: str) -> Any:
        return self.arrays[name] if name in self.arrays else self.parent.array(name)  # type: ignore[union-attr]

    def is_constant(self, name: str) -> bool:
        return name in self.constants if name in self.arrays or self.parent is None else self.parent.is_constant(name)

    def visible(self) -> list[str]:
        """The later ones count more: they come twice."""
        own = list(self.arrays)
        outer = self.parent.visible() if self.parent is not None else []
        return [*outer[-PASSED:], *own, *own[len(own) // 2 :]] if own else outer

    def outer(self) -> set[str]:
        """What it reads of the graphs around it."""
        return {name for name in self.read if name and name not in self.arrays}

    # -- adding -------------------------------------------------------------------------------------------------------

    def bind(self, value: Any) -> str:
        """An input of the model or of the body."""
        name = self.shared.fresh()
        self.formals[name] = self.arrays[name] = value
        return name

    def constant(self, value: Any) -> str:
        """An initializer, an earlier one of the same value, or a Constant."""
        for name, known in self.constants.items():
            if known.dtype == value.dtype and known.shape == value.shape and (known == value).all():
                return name
        name = self.shared.fresh()
        self.arrays[name] = value
        if self.stores and self.shared.chance(0.7):
            self.constants[name] = value
        else:
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value)))
        return name

    def emit(self, kind: str, inputs: Sequence[str], outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
        """The names of a node's outputs, or None where it cannot be computed or gives nothing to work with."""
        made = [self.shared.fresh() for _ in range(outputs)]
        title = f"{kind}_{self.shared.count}" if self.shared.chance(self.shared.named) else ""
        node = helper.make_node(kind, list(inputs), made, title, domain=domain, **attributes)
        return self.add([node], made)

    def add(self, nodes: Sequence[NodeProto], made: Sequence[str], captured: Sequence[str] = ()) -> list[str] | None:
        """Nodes of which only ``made`` are for others."""
        inner = {name for node in nodes for name in node.output}
        needed = dict.fromkeys(n for node in nodes for n in node.input if n and n not in inner)
        needed.update(dict.fromkeys(captured))
        constants = {name: self.array(name) for name in needed if self.is_constant(name)}
        known = {name: self.array(name) for name in needed if name not in constants}
        values = compute(nodes, known, constants, made, self.shared.imports, self.shared.functions)
        if values is None or not all(is_tame(value) for value in values.values()):
            return None
        self.nodes += nodes
        self.read |= set(needed)
        self.arrays.update(values)
        return list(made)

    def operator(self) -> list[str] | None:
        """A random use of a random operator."""
        shared = self.shared
        name = shared.choice(operators(shared.opset))
        floats = [self.array(n) for n in self.visible() if getattr(self.array(n), "dtype", None) == np.float32]
        like = shared.choice(floats).shape if floats and shared.chance(0.8) else None
        use = draw(shared.rng, name, shared.opset, like)
        if use is None:
            return None
        inputs = [self.find(want) if want.dtype else "" for want in use.wants]
        while inputs and not inputs[-1]:
            inputs.pop()
        if use.domain:
            shared.imports[use.domain] = 1
        return self.emit(use.kind, inputs, self._outputs(use), use.domain, **use.attributes)

    def _outputs(self, use: Use) -> int:
        if use.domain:
            return 1
        found = schema(use.kind, self.shared.opset)
        most = min(found.max_output, 3)
        more = most > found.min_output and self.shared.chance(0.3)
        return max(use.outputs, found.min_output, int(self.shared.rng.integers(1, most + 1)) if more else 1)

    # -- inputs -------------------------------------------------------------------------------------------------------

    def find(self, want: Want) -> str:
        """The name of a value of a type and shape, made of others or new."""
        if want.value is not None:
            return self.constant(want.value)
        value = self.example(want)
        if want.constant:
            return self.constant(value)
        if not want.positive and self.shared.chance(0.8):
            name = self.adapted(want)
            if name:
                return name
        main = self.parent is None and self.stores
        return self.bind(value) if main and self.shared.chance(0.6) else self.constant(value)

    def example(self, want: Want) -> Any:
        """Random numbers as an input might have them."""
        rng, kind = self.shared.rng, np.dtype(DTYPES[want.dtype]).kind
        if kind == "O":
            return np.full(want.shape, "text", object)
        if kind == "b":
            return rng.random(want.shape) < 0.6
        if kind in "iu":
            return rng.integers(0, 5, want.shape).astype(DTYPES[want.dtype])
        scale = float(rng.choice([0.3, 1.0, 1.0, 4.0]))
        value = rng.standard_normal(want.shape) * scale
        return np.asarray(np.abs(value) + 0.1 if want.positive else value).astype(DTYPES[want.dtype])

    def adapted(self, want: Want) -> str:
        """A value there is, reshaped, gathered or converted where needed; empty where nothing can be had."""
        shared, wanted = self.shared, np.dtype(DTYPES[want.dtype])
        tensors = [n for n in self.visible() if isinstance(self.array(n), np.ndarray)]
        same = [n for n in tensors if self.array(n).dtype == wanted]
        exact = [n for n in same if self.array(n).shape == want.shape]
        if exact and shared.chance(0.8):
            found = shared.choice(exact)
        elif same and shared.chance(0.5):
            found = self.shaped(shared.choice(same), want.shape)
        elif tensors and wanted.kind != "O" and shared.chance(0.6):
            source = shared.choice(tensors)
            if self.array(source).dtype.kind == "O" or self.array(source).dtype == wanted:
                return ""
            number = helper.np_dtype_to_tensor_dtype(wanted)
            cast = self.emit("Cast", [source], to=number)
            found = self.shaped(cast[0], want.shape) if cast else ""
        else:
            return ""
        if found:
            self.read.add(found)
        return found

    def shaped(self, name: str, shape: Sequence[int]) -> str:
        """A value in another shape: its elements by turns where the number differs."""
        size, count = self.array(name).size, int(np.prod(shape))
        if self.array(name).shape == tuple(shape):
            return name
        steps: list[str] | None = [name]
        if size != count:
            steps = self.emit("Reshape", [name, self.constant(np.array([-1]))])
            turns = np.resize(self.shared.rng.permutation(size), count)
            steps = steps and self.emit("Gather", [steps[0], self.constant(turns)], axis=0)
        steps = steps and self.emit("Reshape", [steps[0], self.constant(np.array(shape, np.int64))])
        return steps[0] if steps else ""

    # -- the end ------------------------------------------------------------------------------------------------------

    def graph(self, outputs: Sequence[str], title: str = "body") -> onnx.GraphProto:
        """As a body of a control-flow node, whose outputs are its own."""
        inputs = [helper.make_value_info(name, type_of(value)) for name, value in self.formals.items()]
        made = [helper.make_value_info(name, type_of(self.array(name))) for name in outputs]
        stored = [numpy_helper.from_array(value, name) for name, value in self.constants.items()]
        return helper.make_graph(self.nodes, title, inputs, made, stored)

    def made(self) -> list[str]:
        """Tensors that nodes of its own computed."""
        own = [name for node in self.nodes for name in node.output if name in self.arrays]
        return [name for name in own if isinstance(self.arrays[name], np.ndarray)]

    def own(self, name: str) -> str:
        """A value as an output of this body."""
        if name in self.made():
            return name
        copy = self.emit("Identity", [name])
        return copy[0] if copy else ""


def known(body: Body, names: Mapping[str, Any]) -> None:
    """Formal inputs of a body with the arrays that they will have."""
    body.formals.update(names)
    body.arrays.update(names)
