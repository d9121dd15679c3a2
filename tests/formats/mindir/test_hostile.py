"""MindIR files that an attacker or a bad exporter would write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ampgraph.formats.mindir import schema
from effort import lines_run
from formats.mindir.parse import data, dump, parse
from formats.mindir.small_file import LINES, SMALL, survives


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "damaged.mindir"


def _node(model: Any, kind: str) -> Any:
    return next(node for node in model.graph.node if kind in node.op_type)


def _cycle(model: Any) -> None:
    _node(model, "MatMul").input[0] = _node(model, "Concat").output[0]


def _call_of_itself(model: Any) -> None:
    """A function that is nothing but a call of itself."""
    function = model.functions[1]
    del function.node[:]
    node = function.node.add(name="no:g", output=["no:g"], op_type="REF::no", input=["no:e"])
    node.attribute.add(name="shape", type=schema.TENSORS).tensors.add(data_type=1, dims=[8, 4])
    function.output[0].name = "no:g"


def _deep_tuple(model: Any, deep: int) -> None:
    reference, name = _node(model, "MakeTuple").op_type, model.graph.node[-1].output[0]
    for number in range(deep):
        name, inner = f"deep{number}", name
        model.graph.node.add(name=name, output=[name], op_type=reference, input=[inner, inner])
    model.graph.output[0].name = name


def _deep_abstract(model: Any) -> None:
    item = _node(model, "MatMul").attribute[0]
    for _ in range(60):
        item.type = schema.TUPLE
        item = item.values.add()


def _dims(model: Any, *dims: int) -> None:
    tensor = model.graph.parameter[0]
    del tensor.dims[:]
    tensor.dims.extend(dims)


def _cast_to_a_tuple(model: Any) -> None:
    """The operand of a Cast that names its type is a tuple."""
    node = next(node for node in model.graph.node if node.name == _node(model, "Cast").input[1])
    node.attribute[0].type = schema.TUPLE
    node.attribute[0].values.add(type=schema.INT64, ints=[42])


def _operand_without_value(model: Any) -> None:
    """A state stands where the operator reads a tensor."""
    _node(model, "Mul:").input[0] = _node(model, "Load").input[1]


REFUSED: dict[str, Callable[[Any], None]] = {
    "a name that nothing has": lambda m: _node(m, "MatMul").input.__setitem__(0, "nobody"),
    "a cycle": _cycle,
    "two nodes of one name": lambda m: _node(m, "Mul").output.__setitem__(0, _node(m, "Concat").output[0]),
    "a node without a name": lambda m: _node(m, "Mul").output.__setitem__(0, ""),
    "a node of no outputs": lambda m: _node(m, "Concat").ClearField("output"),
    "a node of two outputs": lambda m: _node(m, "Concat").output.append("second"),
    "a node without a type": lambda m: _node(m, "MatMul").ClearField("attribute"),
    "two functions of one name": lambda m: setattr(m.functions[1], "name", "yes"),
    "a Load of nothing": lambda m: _node(m, "Load").ClearField("input"),
    "a Switch without branches": lambda m: _node(m, "Switch").input.pop(),
    "a call with too many operands": lambda m: _node(m, "Partial").input.append(_node(m, "Concat").output[0]),
    "a negative dimension of a weight": lambda m: _dims(m, -4, 4),
    "a huge dimension": lambda m: _dims(m, 2**40, 4),
    "dimensions that overflow": lambda m: _dims(m, 2**62, 2**62, 4),
    "more numbers than the shape has": lambda m: _dims(m, 2, 2),
    "tuples that double": lambda m: _deep_tuple(m, 40),
    "a data type that nobody knows": lambda m: setattr(m.graph.parameter[0], "data_type", 99),
    "a weight without a type": lambda m: setattr(m.graph.parameter[0], "data_type", 0),
    "a newer format": lambda m: setattr(m, "mind_ir_version", 4),
}
TAKEN: dict[str, Callable[[Any], None]] = {
    "nothing": lambda m: None,
    "a function that calls itself": _call_of_itself,
    "an abstract of many levels": _deep_abstract,
    "a Cast to a tuple": _cast_to_a_tuple,
    "a state where a tensor is read": _operand_without_value,
    "a formal of no type for a parameter": lambda m: setattr(m.functions[0].input[1].tensor[0], "data_type", 99),
    "a float64 among float32": lambda m: setattr(
        _node(m, "LayerNorm").attribute[0].values[0].tensors[0], "data_type", 11
    ),
    "a bfloat16 among float32": lambda m: setattr(m.functions[0].input[0].tensor[0], "data_type", 16),
    "a function that says bfloat16": lambda m: setattr(
        m.functions[0].node[-1].attribute[0].tensors[0], "data_type", 16
    ),
    "a primitive that nobody knows": lambda m: setattr(m.primitives[1], "op_type", "NobodyKnowsThis"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused(path: Path, name: str) -> None:
    model = parse(SMALL)
    REFUSED[name](model)

    def refused() -> None:
        assert not survives(path, data(model)), dump(model, True)

    refused()
    lines_run(refused, most=LINES)
    assert not survives(path, data(model), io="low")


@pytest.mark.parametrize("name", TAKEN)
def test_is_taken(path: Path, name: str) -> None:
    model = parse(SMALL)
    TAKEN[name](model)
    assert survives(path, data(model))
