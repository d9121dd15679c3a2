"""What the policy ``mindspore`` reads from a file about the network's Python: which stored tensors are cast."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ampgraph
from ampgraph.core.plan import Plan
from ampgraph.planner.policies.mindspore_rules import is_of, is_within
from formats.mindir.parse import parse

MODEL = """
    main(x: f32[2,4])
      parameter shift: f32[1,4]
      parameter gain: f32[1,4]
      e = Exp(shift) @Default/Exp-op0
      g = Mul(x, gain) @Default/Mul-op0
      r = FloorDiv(f32[4]=0.5, e) @Default/FloorDiv-op0
      t = MakeTuple(e, g, r)
      return t
"""


def plan(folder: Path, text: str, level: str, numbers: list[float] | None = None) -> Plan:
    """The plan of a model, with these numbers in its one constant."""
    model = parse(text)
    for constant in (node for node in model.graph.node if node.op_type == "Constant" and node.attribute[0].tensors):
        constant.attribute[0].tensors[0].raw_data = np.array(numbers, np.float32).tobytes()
    (folder / "m.mindir").write_bytes(model.SerializeToString())
    return ampgraph.plan(folder / "m.mindir", level, policy="mindspore")


def types(found: Plan, *kinds: str) -> list[str]:
    """The types of operators of some kinds, in order."""
    return [d.dtype for d in found.decisions if d.index >= 0 and d.kind.endswith(kinds)]


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_a_parameter_handed_to_a_function_stays_float32(tmp_path: Path, level: str) -> None:
    """Exp of a parameter is a function's; Mul may be a primitive's, and a norm is, which are given it low."""
    found = plan(tmp_path, MODEL, level, [0.5, 0.1, 0.7, 2])
    assert types(found, "Exp") == ["float32"] and types(found, "Mul") == ["float16"]
    notes = [note.text for note in found.notes]
    assert "'shift' is float32 here, as MindSpore hands it to a function; it casts it for a primitive" in notes
    assert not any("even steps" in note for note in notes)


@pytest.mark.parametrize(
    ("numbers", "even"),
    [([0.5] * 4, True), ([3, 2, 1, 0], True), ([0, 1, 2, 3.1], False), ([0, 0, 0, 1], False), ([0.5], False)],
    ids=["one number", "downwards", "nearly", "last", "single"],
)
def test_a_constant_in_even_steps_is_told(tmp_path: Path, numbers: list[float], even: bool) -> None:
    """As `ops.ones` and `ops.linspace` make them; a single number may be anything."""
    found = plan(tmp_path, MODEL.replace("f32[4]=0.5, e", f"f32[{len(numbers)}]=0.5, g"), "O2", numbers)
    assert any("even steps" in note.text for note in found.notes) == even


def test_what_a_file_tells_of_its_network(tmp_path: Path) -> None:
    found = plan(tmp_path, MODEL, "O2", [0, 1, 2, 3])
    assert types(found, "FloorDiv") == ["float32"]
    assert any("a constant in even steps: float32 here" in note.text for note in found.notes)
    # What comes back to its cell was never given to another, which would have cast it.
    returned = types(plan(tmp_path, RETURNS, "O2"), "Sigmoid", "Exp", "Reshape", "Add")
    assert returned == ["float16", "float16", "float32", "float32", "float32", "float32"]
    # Cells of one class may have the scope of the first; a cell that is handed a parameter casts it.
    scoped = types(plan(tmp_path, SCOPES, "O2"), "Exp")
    assert scoped == ["float32", "float16", "float16", "float16", "float32"]


@pytest.mark.parametrize(("level", "told"), [("O2", 1), ("O3", 1), ("auto", 0)])
def test_a_softmax_may_have_been_cast_by_the_network(tmp_path: Path, level: str, told: int) -> None:
    """A conversion of what is float32 already is not in the file."""
    text = "main(x: f32[2,4])\n  y = Softmax(x, -1) @Default/Softmax-op0\n  return y\n"
    assert sum("1 Softmax low here" in note.text for note in plan(tmp_path, text, level).notes) == told


RETURNS = """
    main(x: f32[2,4])
      parameter attn.bias.shift: f32[4,2]
      a = Reshape(x, [2,4]) @Default/embed-Embed/Reshape-op0
      s = Sigmoid(a) @Default/embed-Embed/Sigmoid-op0
      e = Exp(attn.bias.shift) @Default/attn-Attention/bias-Bias/Exp-op0
      r = Reshape(e, [2,4]) @Default/embed-Embed/Reshape-op1
      d = Reshape(r, [2,4]) @Default/attn-Attention/bias-Bias/Reshape-op2
      y = Add(s, d) @Default/attn-Attention/Add-op0
      return y
"""


SCOPES = """
    main(x: f32[1,4])
      parameter 2.shift: f32[1,4]
      parameter 1.gain: f32[1,4]
      parameter 0.given: f32[1,4]
      parameter seen: f32[1,4]
      parameter 0.list.2.list.1.shift: f32[1,4]
      a = Exp(2.shift) @Default/layers-CellList/0-Tabled/Exp-op0
      b = Exp(1.gain) @Default/layers-CellList/1-Outer/list-CellList/0-Inner/Exp-op0
      c = Exp(0.given) @Default/layers-CellList/0-Tabled/child-Child/Exp-op0
      d = Exp(seen) @Default/child-Child/Exp-op0
      e = Exp(0.list.2.list.1.shift) @Default/layers-CellList/1-Outer/list-CellList/0-Inner/Exp-op1
      t = MakeTuple(a, b, c, d, e, x)
      return t
"""


NESTED = """
    main(x: f32[4,4])
      parameter w: f32[4,4]
      a = MatMul(x, w) @Default/chains-CellList/0-SequentialCell/0-Block/dense-Dense/MatMul-op0
      b = ReLU(a) @Default/chains-CellList/0-SequentialCell/1-ReLU/ReLU-op0
      c = MatMul(b, w) @Default/stages-CellList/0-CellList/1-Block/dense-Dense/MatMul-op0
      d = MatMul(c, w) @Default/named-CellDict/first-Dense/MatMul-op0
      e = MatMul(d, w) @Default/last-Dense/MatMul-op0
      return e
"""


def test_what_o1_reaches(tmp_path: Path) -> None:
    """A loop over a list that is an attribute is followed, and what it calls."""
    found = plan(tmp_path, NESTED, "O1")
    assert types(found, "MatMul", "ReLU") == ["float16", "float16", "float32", "float32", "float16"]
    # MindSpore goes by source code there: the note names the operators and the classes that it would read.
    [note] = found.notes
    assert note.topic == "mindspore" and note.where == "2 MatMul, 1 ReLU"
    assert "3 low by their scopes" in note.text and "source of Block and the network's own class" in note.text
    # o1 of nothing that is white says nothing
    assert not plan(tmp_path, RETURNS, "O1").notes


LISTS = frozenset({"CellList"})


@pytest.mark.parametrize(
    ("owner", "of", "within"),
    [
        ("net.blocks.0.norm", True, True),
        ("net.0.norm", True, True),  # the list is left out
        ("net.0.norm.inner", False, True),
        ("net.0", False, False),  # an outer cell, which handed its parameter down
        ("net.1.other", True, True),  # cells of one class may have the scope of the first
        ("net.blocks.norm", False, False),
        ("", False, False),
    ],
)
def test_whose_parameter_it_is(owner: str, of: bool, within: bool) -> None:
    cells = (("net", "Net"), ("blocks", "CellList"), ("0", "Block"), ("norm", "LayerNorm"))
    assert is_of(owner, cells, LISTS) == of and is_within(owner, cells, LISTS) == within


def test_the_network_itself_owns_what_has_no_path() -> None:
    assert is_of("", (), LISTS) and is_within("", (), LISTS) and is_within("net.0", (), LISTS)
