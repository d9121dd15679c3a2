"""What every conversion must hold, whatever the graph is made of, as one call: `convert_everywhere(model, feeds)`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

import ampgraph
from ampgraph.numerics.strict.session import StrictSession
from near import Tolerance, difference
from onnx_text import array
from typed import bodies, typed_nodes

LEVELS = ("O1", "O2", "O3", "auto")
Feeds = dict[str, Any]


def x(*shape: int) -> np.ndarray:
    """A float32 input of a shape."""
    return array(shape, "x")


@dataclass
class Converted:
    """One model at each level, in one low type."""

    original: ModelProto
    by_level: dict[str, ModelProto] = field(default_factory=dict)
    outputs: list[dict[str, Any]] = field(default_factory=list)

    def __getitem__(self, level: str) -> ModelProto:
        return self.by_level[level]


def convert_everywhere(
    given: ModelProto,
    feeds: Feeds | Sequence[Feeds] | None,
    *,
    levels: Sequence[str] = LEVELS,
    low: Sequence[str] = (),
    run: bool = True,
    bfloat16: bool = True,
    checked: bool = True,
    accurate: bool = True,
    tolerance: Tolerance = Tolerance(),  # noqa: B008
    **options: Any,
) -> Converted:
    """Converts at every level and asserts all that must hold; ``low``: operators that must be low from O2 on."""
    cases = [feeds] if isinstance(feeds, dict) else list(feeds or ())
    result = Converted(given)
    result.outputs = [run_plain(given, case) for case in cases] if run else []
    options.setdefault("target", "cpu")
    for dtype in ("float16", "bfloat16") if bfloat16 else ("float16",):
        if dtype == "bfloat16":
            options["target"] = "cuda"  # the CPU provider has no kernels for it: nothing would be low
        for level in levels:
            converted = convert_twice(given, level, dtype=dtype, **options)
            if checked:
                onnx.checker.check_model(converted, full_check=True)
            if options.get("io", "keep") == "keep":
                same_interface(given, converted)
            if dtype == "bfloat16":
                continue
            result.by_level[level] = converted
            if level in ("O2", "O3"):
                missing = set(low) - set(low_kinds(converted))
                assert not missing, f"{level}: {missing} are float32"
            if run:
                agrees(converted, cases, result.outputs, level, tolerance, accurate)
    return result


def convert_twice(given: ModelProto, level: str, **options: Any) -> ModelProto:
    """Converts; again; the result; and by way of the plan's JSON. The input is untouched and all bytes agree."""
    before = data(given)
    converted = ampgraph.convert(given, level, **options)
    assert data(given) == before, f"{level}: the caller's model was changed"
    after = data(converted)
    assert data(ampgraph.convert(given, level, **options)) == after, f"{level}: two runs differ"
    again = ampgraph.convert(converted, level, **options)
    assert data(again) == after, f"{level}: {first_change(converted, again)}"
    plan = ampgraph.Plan.from_json(ampgraph.plan(given, level, **options).to_json())
    assert data(ampgraph.apply(given, plan)) == after, f"{level}: through a plan file"
    return converted


def data(proto: ModelProto) -> bytes:
    return proto.SerializeToString(deterministic=True)


def first_change(a: ModelProto, b: ModelProto) -> str:
    """The first line in which two models differ, for a message."""
    old, new = (onnx.printer.to_text(m).splitlines() for m in (a, b))
    for one, two in zip(old, new, strict=False):
        if one != two:
            return f"`{one.strip()[:160]}` became `{two.strip()[:160]}`"
    return f"{len(old)} lines became {len(new)}"


def inputs_kept(given: ModelProto) -> list[onnx.ValueInfoProto]:
    """The inputs of what is converted: without weights of which a file lists all that it stores, matrices with them, as
    IR version 3 had to."""
    stored = {t.name: t.dims for t in given.graph.initializer}
    stored |= {t.values.name: t.dims for t in given.graph.sparse_initializer}
    listed = {item.name for item in given.graph.input} & stored.keys()
    every = len(listed) == len(stored) and any(len(stored[name]) > 1 for name in listed)
    return [item for item in given.graph.input if not (given.ir_version <= 3 or every) or item.name not in stored]


def same_interface(given: ModelProto, converted: ModelProto) -> None:
    """Names, order, types and shapes of inputs and outputs; opsets; what the file says of itself."""
    for what in ("input", "output"):
        old, new = getattr(given.graph, what), getattr(converted.graph, what)
        old = inputs_kept(given) if what == "input" and converted.graph.node != given.graph.node else old
        assert [(v.name, str(v.type)) for v in old] == [(v.name, str(v.type)) for v in new], what
    opsets = {o.domain: o.version for o in converted.opset_import}
    assert {o.domain: o.version for o in given.opset_import}.items() <= opsets.items()
    version = given.ir_version if len(converted.graph.input) == len(given.graph.input) else 4
    assert (version, given.producer_name, given.doc_string, given.graph.name) == (
        converted.ir_version,
        converted.producer_name,
        converted.doc_string,
        converted.graph.name,
    )
    assert {(p.key, p.value) for p in given.metadata_props} <= {(p.key, p.value) for p in converted.metadata_props}


def session(proto: ModelProto) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])


def run_plain(proto: ModelProto, feeds: Feeds) -> dict[str, Any]:
    # Copies: ONNX Runtime may write over a fed array once it has removed the Casts between them.
    fed = {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in feeds.items()}
    opened = session(proto)
    names = list(dict.fromkeys(o.name for o in opened.get_outputs()))
    return dict(zip(names, opened.run(names, fed), strict=True))


def agrees(
    converted: ModelProto, cases: list[Feeds], outputs: list[dict], level: str, tolerance: Tolerance, accurate: bool
) -> None:
    """It loads and runs; a strict run is near the float32 result."""
    strict = StrictSession(converted, threads=1) if accurate else None
    for feeds, expected in zip(cases, outputs, strict=True):
        plain = run_plain(converted, feeds)
        assert list(plain) == list(expected)
        for name, value in (strict.run(feeds) if strict else plain).items():
            apart = difference(expected[name], value, tolerance)
            assert not apart, f"{level}: {name} {apart}"


# -- looking at a model -----------------------------------------------------------------------------------------------


def low_kinds(proto: ModelProto, low: int = TensorProto.FLOAT16) -> Counter[str]:
    """Operators with an input or output of the low type, functions expanded, bodies included; Casts do not count."""
    name = TensorProto.DataType.Name(low).lower()
    low_nodes = [n.native.op_type for n in typed_nodes(proto) if any(dtype == name for _, dtype in n.all)]
    return Counter(kind for kind in low_nodes if kind != "Cast")


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for body in bodies(node):
            yield from graphs(body)


def nodes(proto: ModelProto) -> list[NodeProto]:
    """Every node of every graph and function."""
    found = [node for graph in graphs(proto.graph) for node in graph.node]
    for function in proto.functions:
        for node in function.node:
            found.append(node)
            found += [inner for body in bodies(node) for graph in graphs(body) for inner in graph.node]
    return found


def casts(proto: ModelProto) -> int:
    return sum(node.op_type == "Cast" for node in nodes(proto))


def kinds(proto: ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


def stored(proto: ModelProto) -> dict[str, int]:
    """Element type of every initializer, bodies included."""
    return {t.name: t.data_type for graph in graphs(proto.graph) for t in graph.initializer}


def types(values: Iterable[ValueInfoProto]) -> dict[str, int]:
    """Element types of graph inputs or outputs."""
    return {v.name: v.type.tensor_type.elem_type for v in values}


def code(call: Callable[[], object]) -> str:
    """The code of the AmpError that a call raises."""
    with pytest.raises(ampgraph.AmpError) as caught:
        call()
    return caught.value.code
