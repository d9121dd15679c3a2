"""Steps of more than one operator: bodies, functions, sequences and given conversions."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from fuzz.bodies import Body
from fuzz.forms import DTYPES, Want, schema
from fuzz.motifs import motif

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
