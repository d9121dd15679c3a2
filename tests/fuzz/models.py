"""A whole random model of a seed, with inputs: operators, motifs and bodies, every value known by an array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import FunctionProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from fuzz.forms import DTYPES, Use, Want, draw, operators, schema
from fuzz.runtime import compute, is_tame, opened, type_of
from planner.test_regions import FORMS, LOG_SOFTMAX, WEIGHTS
from share import number_of

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


F = np.float32
COMPUTED = 8  # of so many constants of floats one is computed
MASKED = """k = Transpose <perm = [1, 0]> (x)  u = MatMul (x, k)  v = Div (u, eight)  m = {mask}  a = Add (v, m)
    p = Softmax (a)  y = MatMul (p, x)"""
SEEN = np.tril(np.ones((4, 4), F))
OTHERS = {
    "where": MASKED.format(mask="Where (seen, zero, hidden)"),
    "minus": MASKED.format(mask="Mul (unseen, far)"),
    "log": "p = Softmax (x)  y = Log (p)",
    "counts": """s = Shape (x)  c = Cast <to = 1> (s)  h = Div (c, two)  f = Floor (h)  i = Cast <to = 7> (f)
        y = Expand (z, i)""",
    "spectrum": "q = MatMul (x, other8)  w = Pow (q, two)  a = Add (w, eps)  y = Log (a)",
    "quantized": """l = QuantizeLinear (x, fine, point)  d = DequantizeLinear (l, fine, point)  q = MatMul (d, other8)
        r = QuantizeLinear (q, fine, point)  y = DequantizeLinear (r, fine, point)""",
}
STORED = {
    **WEIGHTS, "seen": SEEN > 0, "unseen": 1 - SEEN, "hidden": F(-3.4028234663852886e38), "far": F(-10000),
    "z": F(1.5), "other8": np.linspace(-1, 1, 64, dtype=F).reshape(8, 8), "fine": F(0.05), "point": np.uint8(12),
}  # fmt: skip


@cache
def texts() -> list[str]:
    """All bodies, from x of 4 by 8 to y."""
    return [text for group in (*FORMS.values(), LOG_SOFTMAX, OTHERS) for text in group.values()]


def _constant(body: Body, value: np.ndarray) -> str:
    """A constant; at times one that a node computes, which the runtime folds before it looks for forms."""
    if value.dtype == F and number_of((body.shared.count, value.tolist()), "computed") % COMPUTED == 0:
        made = body.emit("Mul", [body.constant(value / 2), body.constant(np.asarray(F(2)))])
        if made:
            return str(made[0])
    return body.constant(value)


def motif(body: Body) -> None:
    """One of them, on a value that is there."""
    shared = body.shared
    text = shared.choice(texts())
    graph = onnx.parser.parse_graph(f"g (float[4,8] x) => (float y) {{ {text} }}")
    names = {"x": body.find(Want("float32", (4, 8)))}
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name and name not in names:
                names[name] = _constant(body, np.asarray(STORED[name]))
            node.input[place] = names.get(name, "")
        for place, name in enumerate(node.output):
            names[name] = node.output[place] = shared.fresh()
        node.name = f"{node.op_type}_{shared.count}" if shared.chance(shared.named) else ""
    body.add(list(graph.node), [names["y"]])


DEEPEST = 2
NAMED = {np.dtype(value): name for name, value in DTYPES.items()}


def want_of(value: Any) -> Want:
    return Want(NAMED[value.dtype], value.shape)


def fill(body: Body, steps: int, depth: int) -> None:
    """Random steps in a body."""
    for _ in range(steps):
        step(body, depth)


def step(body: Body, depth: int) -> None:
    """One random step; one that cannot be done adds nothing."""
    at = body.shared.rng.random()
    if at < 0.03 and depth < DEEPEST:
        branch(body, depth)
    elif at < 0.06 and depth < DEEPEST:
        loop(body, depth)
    elif at < 0.08 and depth < DEEPEST and body.shared.opset >= 9:
        scan(body, depth)
    elif at < 0.11 and depth < DEEPEST:
        call(body)
    elif at < 0.13 and body.shared.opset >= 11:
        sequence(body)
    elif at < 0.17:
        rounding(body)
    elif at < 0.25:
        motif(body)
    else:
        body.operator()


def branch(body: Body, depth: int) -> None:
    """An If whose branches give one value or two, mostly of one shape."""
    shared = body.shared
    condition = body.find(Want("bool", shared.choice([(), (1,)])))
    sides = [Body(shared, body), Body(shared, body)]
    for side in sides:
        fill(side, int(shared.rng.integers(1, 5)), depth + 1)
    if not all(side.made() for side in sides):
        return
    made = sides[0].made()
    results = list(dict.fromkeys(shared.choice(made) for _ in range(shared.choice([1, 1, 2]))))
    others = []
    for name in results:
        array = sides[0].array(name)
        rank = [n for n in sides[1].made() if sides[1].array(n).dtype == array.dtype]
        other = shared.choice(rank) if rank and shared.chance(0.3) else sides[1].find(want_of(array))
        whole = shared.chance(0.5) and other in sides[1].made() and other not in others  # ONNX Runtime writes one once
        others.append(other if whole else copied(sides[1], other))
    if not all(others):
        return
    bodies = {"then_branch": sides[0].graph(results, "then"), "else_branch": sides[1].graph(others, "else")}
    made = [shared.fresh() for _ in results]
    add(body, "If", [condition], made, bodies, sides)


def copied(body: Body, name: str) -> str:
    found = body.emit("Identity", [name])
    return found[0] if found else ""


def add(
    body: Body, kind: str, inputs: list[str], made: list[str], attributes: dict[str, Any], inner: list[Body]
) -> None:
    """A node with bodies, which read values of this body."""
    node = helper.make_node(kind, inputs, made, "" if body.shared.chance(0.5) else made[0], **attributes)
    captured = {name for one in inner for name in one.outer()}
    if body.add([node], made, sorted(captured)):
        body.read |= captured


def loop(body: Body, depth: int) -> None:
    """A Loop with a state or two and what it collects; its condition is passed on, computed or constant."""
    shared = body.shared
    states = [s for s in (body.adapted(want(body)) for _ in range(shared.choice([1, 1, 2]))) if s]
    if not states:
        return
    inner = Body(shared, body)
    inner.bind(np.array(0, np.int64))
    going = inner.bind(np.array(True))
    inside = [inner.bind(body.array(name)) for name in states]
    fill(inner, int(shared.rng.integers(1, 6)), depth + 1)
    condition = going if shared.chance(0.3) else copied(inner, going)
    after = [following(inner, name) for name in inside]
    collected = [shared.choice(inner.made())] if inner.made() and shared.chance(0.6) else []
    collected = [copied(inner, name) for name in collected]
    if not condition or not all([*after, *collected]):
        return
    graph = inner.graph([condition, *after, *collected])
    count = body.constant(np.array(shared.choice([1, 2, 3]), np.int64))
    start = shared.choice(["", body.constant(np.array(True))])
    made = [shared.fresh() for _ in (*after, *collected)]
    add(body, "Loop", [count, start, *states], made, {"body": graph}, [inner])


def want(body: Body) -> Want:
    sizes = tuple(int(n) for n in body.shared.rng.integers(1, 4, int(body.shared.rng.integers(0, 3))))
    return Want("float32" if body.shared.chance(0.8) else "int64", sizes)


def following(inner: Body, name: str) -> str:
    """The next value of a state, which stays small."""
    found = inner.find(want_of(inner.array(name)))
    if inner.array(found).dtype == np.float32:
        squashed = inner.emit("Tanh", [found])
        return squashed[0] if squashed else ""
    return copied(inner, found)


def scan(body: Body, depth: int) -> None:
    """A Scan over the first axis."""
    shared = body.shared
    state = body.adapted(want(body))
    over = body.adapted(Want("float32", (3, int(shared.rng.integers(1, 4)))))
    if not state or not over:
        return
    inner = Body(shared, body)
    inside = inner.bind(body.array(state))
    inner.bind(body.array(over)[0])
    fill(inner, int(shared.rng.integers(1, 5)), depth + 1)
    after = following(inner, inside)
    if not after or not inner.made():
        return
    collected = copied(inner, shared.choice(inner.made()))
    if not collected:
        return
    graph = inner.graph([after, collected])
    made = [shared.fresh(), shared.fresh()]
    add(body, "Scan", [state, over], made, {"body": graph, "num_scan_inputs": 1}, [inner])


def call(body: Body) -> None:
    """A function of the model's, an earlier one or a new one."""
    shared = body.shared
    if not shared.arities or shared.chance(0.5):
        define(body)
    if not shared.arities:
        return
    name = shared.choice(sorted(shared.arities))
    found = next(f for f in shared.functions if f.name == name)
    inputs = [body.find(one) for one in shared.arities[name]]
    made = [shared.fresh() for _ in found.output]
    body.add([helper.make_node(name, inputs, made, domain="local")], made)


def define(body: Body) -> None:
    shared = body.shared
    inner = Body(shared, stores=False)
    wants = [want(body) for _ in range(shared.choice([1, 2]))]
    formals = [inner.bind(inner.example(one)) for one in wants]
    fill(inner, int(shared.rng.integers(2, 6)), DEEPEST)
    if not inner.made():
        return
    outputs = list(dict.fromkeys(shared.choice(inner.made()) for _ in range(shared.choice([1, 2]))))
    name = f"F{len(shared.functions)}"
    shared.imports["local"] = 1
    opsets = {**shared.imports, "": opset_of(inner)}
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    shared.functions.append(helper.make_function("local", name, formals, outputs, inner.nodes, imports))
    shared.arities[name] = wants


def opset_of(body: Body) -> int:
    """The opset of a function: every other one has an older one, in which its operators are the same."""
    newest, kinds = body.shared.opset, {node.op_type for node in body.nodes if not node.domain}
    since = max((schema(kind, newest).since_version for kind in kinds), default=1)
    drawn = np.random.default_rng(body.shared.count)  # of its own: all else stays as it was drawn
    return int(drawn.integers(since, newest + 1)) if drawn.random() < 0.5 else newest


def sequence(body: Body) -> None:
    """A sequence, changed and read."""
    shared = body.shared
    one = want(body)
    parts = [body.find(one) for _ in range(shared.choice([1, 2, 3]))]
    made = body.emit("SequenceConstruct", parts)
    if made and shared.chance(0.4):
        made = body.emit("SequenceInsert", [made[0], body.find(one), body.constant(np.array(0, np.int64))])
    if made and shared.chance(0.2):
        made = body.emit("SequenceErase", [made[0], body.constant(np.array(-1, np.int64))])
    if not made:
        return
    if shared.chance(0.5):
        body.emit("SequenceAt", [made[0], body.constant(np.array(0, np.int64))])
    elif shared.chance(0.5):
        body.emit("ConcatFromSequence", [made[0]], axis=0, new_axis=shared.choice([0, 1]))
    else:
        body.emit("SequenceLength", [made[0]])


def rounding(body: Body) -> None:
    """A conversion that the file has already: to a low type and back, or to another float."""
    shared = body.shared
    sources = [n for n in body.visible() if isinstance(body.array(n), np.ndarray) and body.array(n).dtype == np.float32]
    if not sources:
        return
    source = shared.choice(sources)
    low = TensorProto.BFLOAT16 if shared.opset >= 13 and shared.chance(0.4) else TensorProto.FLOAT16
    if shared.chance(0.3) and low == TensorProto.FLOAT16:
        body.emit("Cast", [source], to=low)
        return
    between, after = shared.fresh(), shared.fresh()
    casts = [helper.make_node("Cast", [source], [between], to=low)]
    casts.append(helper.make_node("Cast", [between], [after], to=TensorProto.FLOAT))
    body.add(casts, [after])


OLDEST, NEWEST = 7, 26
STEPS = 12  # at most
FUNCTIONS, SPARSE = 8, 5  # versions of the file format that have them


@dataclass(frozen=True)
class Random:
    """A model that ONNX Runtime runs on two samples. ``checked``: the checker takes it too."""

    seed: int
    model: ModelProto
    feeds: list[dict[str, Any]]
    expected: list[dict[str, Any]]
    checked: bool


def random_model(seed: int, newest: int = NEWEST) -> Random | None:
    """The model of a seed, None where nothing came of it that ONNX Runtime runs. ``newest``: the last opset drawn."""
    rng = np.random.default_rng(seed)
    opset = int(rng.integers(OLDEST, newest + 1))
    body = Body(Shared(rng, opset, {"": opset}, version=_version(rng, opset)))
    for _ in range(int(rng.integers(1, 4))):
        body.bind(body.example(want(body)))
    fill(body, int(rng.integers(2, STEPS + 1)), 0)
    model = _model(body)
    if model is None:
        return None
    feeds = [body.formals, {name: _moved(value, rng) for name, value in body.formals.items()}]
    try:
        session = opened(model)
        names = [value.name for value in model.graph.output]
        expected = [dict(zip(names, session.run(names, one), strict=True)) for one in feeds]
    except Exception:  # the runtime raises kinds of its own; what it refuses is no case
        return None
    return Random(seed, model, feeds, expected, checks(model))


def _moved(value: Any, rng: np.random.Generator) -> Any:
    factors = rng.uniform(0.5, 1.2, value.shape)
    return np.asarray(value * factors, value.dtype) if value.dtype.kind == "f" else value


def checks(model: ModelProto) -> bool:
    """Whether the checker takes a model."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception:  # of several kinds
        return False
    return True


def _model(body: Body) -> ModelProto | None:
    shared = body.shared
    leaves = [name for name in body.made() if name not in body.read]
    outputs = leaves[-5:] or body.made()[-1:]
    if not outputs:
        return None
    version = max(shared.version, FUNCTIONS if shared.functions else 0)
    inputs = [helper.make_value_info(n, type_of(v, _sizes(shared, v.shape))) for n, v in body.formals.items()]
    stored = [numpy_helper.from_array(value, name) for name, value in body.constants.items()]
    listed = version < FREE or shared.chance(0.1)
    inputs += [helper.make_value_info(n, type_of(v)) for n, v in body.constants.items() if listed]
    graph = helper.make_graph(body.nodes, "fuzz", inputs, [_output(body, name) for name in outputs], stored)
    if version >= SPARSE and shared.chance(0.1) and not listed:
        _make_sparse(graph)
    imports = [helper.make_opsetid(domain, v) for domain, v in shared.imports.items()]
    model = helper.make_model(graph, opset_imports=imports, functions=shared.functions, ir_version=version)
    return onnx.shape_inference.infer_shapes(model) if shared.chance(0.3) else model


def _version(rng: np.random.Generator, opset: int) -> int:
    least = helper.find_min_ir_version_for([helper.make_opsetid("", opset)])
    return max(least, 10 if rng.random() < 0.3 else 0)


def _sizes(shared: Shared, shape: tuple[int, ...]) -> list[int | str | None]:
    """Sizes as a file may have them: numbers, names, or nothing."""
    how = shared.rng.random()
    if how < 0.6:
        return list(shape)
    if how > 0.97:
        return [-1 for _ in shape]  # as some exporters write what they do not know
    return [f"n{size}" if how < 0.85 else None for size in shape]


def _output(body: Body, name: str) -> onnx.ValueInfoProto:
    value = body.array(name)
    return helper.make_value_info(name, type_of(value, _sizes(body.shared, value.shape)))


def _make_sparse(graph: onnx.GraphProto) -> None:
    """The first float constant with a shape, as a sparse one."""
    for place, tensor in enumerate(graph.initializer):
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32 and array.ndim == 1 and array.size > 1:
            at = np.flatnonzero(array)
            sparse = helper.make_sparse_tensor(
                numpy_helper.from_array(array[at], tensor.name),
                numpy_helper.from_array(at.astype(np.int64)),
                array.shape,
            )
            graph.sparse_initializer.append(sparse)
            del graph.initializer[place]
            return
