"""What conversions write, as pairs of texts in ``mindir_pairs``: above the line what goes in, below it what comes out.

``AMPGRAPH_WRITE_PAIRS=1`` writes what comes out anew, for a person to read.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ampgraph.core.errors import AmpError
from ampgraph.core.names import FreshNames
from ampgraph.formats.mindir import view
from ampgraph.formats.mindir.editor import Body
from ampgraph.formats.mindir.view import OperandPlace
from ampgraph.rules.rewrites.norm import Norm
from formats.mindir.checker import faults, interface
from formats.mindir.parse import convert, data, dump, followed, graph_of, parse, plan_of

PAIRS = sorted((Path(__file__).parent / "pairs").glob("*.txt"), key=lambda path: path.name)
LINE = "\n" + "-" * 60 + "\n"
LISTS = ("fp32", "low", "io")


def read(path: Path) -> tuple[str, dict[str, Any], str, str]:
    """Head, options, input, expected."""
    given, _, expected = path.read_text(encoding="utf-8").partition(LINE)
    head, _, model = given.partition("\n\n")
    options: dict[str, Any] = {}
    for line in head.splitlines()[1:]:
        key, _, value = line.partition(" = ")
        options[key] = value.split(", ") if key in LISTS else value
    return head, options, model, expected


@pytest.mark.parametrize("path", PAIRS, ids=lambda path: path.stem)
def test_pair(path: Path) -> None:
    head, options, words, expected = read(path)
    model = parse(words)
    before = data(model)
    result = convert(model, **options)
    assert faults(model) == [] and faults(result, model) == []
    assert data(model) == before
    if os.environ.get("AMPGRAPH_WRITE_PAIRS"):
        path.write_text(f"{head}\n\n{words.strip()}{LINE}{dump(result, True)}\n", encoding="utf-8")
    else:
        assert dump(result, True) == expected.strip()
    if not {*LISTS, "policy"} & set(options):
        assert data(convert(result, **options)) == data(result)
    if "io" not in options:
        assert interface(result) == interface(model)
    plan = plan_of(model, **options)
    assert data(followed(model, plan)) == data(result)


def test_a_mask_that_stays_float32_is_floored() -> None:
    model = parse("""
        main(x: f32[4,4])
          parameter mask: f32[4,4]=-1e30
          parameter w: f32[4,4]
          a = MatMul(x, w, false, false)
          b = Add(a, mask)
          c = Softmax(b, [-1])
          d = MatMul(c, w, false, false)
          return d
    """)
    result = convert(model, store_weights="keep")
    [mask, _] = result.graph.parameter
    assert mask.data_type == 1 and set(np.frombuffer(mask.raw_data, np.float32)) == {-32752.0}


def test_names_of_outputs_and_of_casts() -> None:
    model = parse("""
        main(x: f32[4,4])
          a = MatMul(x, x, false, false)
          b = MatMul(a, a, false, false)
          return a
    """)
    result = convert(model)
    assert result.graph.output[0].name == "main:a" and faults(result, model) == []
    [product, other] = [node for node in result.graph.node if "MatMul" in node.op_type]
    assert product.output[0] == product.name == "main:a_amp" and list(other.input[:2]) == ["main:a_amp"] * 2
    # names that are taken are not used
    text = """
        main(x: f32[4,4])
          a = MatMul(x, x, false, false)
          return a
    """
    model = parse(text)
    model.graph.node[0].name = model.graph.node[0].output[0] = "amp_float16"
    for node in model.graph.node:
        for position, name in enumerate(node.input):
            if name == "Const_0":
                node.input[position] = "amp_float16"
    model.primitives.add(name="Cast:amp", op_type="Exp")
    result = convert(model)
    assert faults(result, model) == []
    assert [p.name for p in result.primitives if p.op_type == "Cast"] == ["Cast:amp_1"]


def test_rounding_pairs_share_their_casts_with_low_readers() -> None:
    model = parse("""
        main(x: f32[4,4])
          a = Log(x)
          m = MatMul(a, a, false, false)
          b = Exp(a)
          o = MakeTuple(m, b)
          return o
    """)
    graph = graph_of(model)
    flow = graph.dataflow()
    value = next(value for value in flow.values if value.name == "main:a")
    with graph.editor(flow) as editor:
        product, exponent = flow.ops[1], flow.ops[2]
        editor.retype(flow.values[product.outputs[0]], "float16")
        editor.cast(value, "float16", [("", product.index, 0), ("", product.index, 1)])
        editor.round(value, "float16", [("", exponent.index, 0)])
        editor.cast(flow.values[product.outputs[0]], "float32", [("", -1, 0)])
    assert dump(graph.file.model).splitlines()[1:] == [
        "  %1: f32[4,4] = Log(x)",
        "  %2: f16[4,4] = Cast(%1, f16)  Default/Cast-amp",
        "  %3: f32[4,4] = Cast(%2, f32)  Default/Cast-amp",
        "  %4: f16[4,4] = MatMul(%2, %2, false, false)",
        "  %5: f32[4,4] = Cast(%4, f32)  Default/Cast-amp",
        "  %6: f32[4,4] = Exp(%3)",
        "  %7: (f32[4,4], f32[4,4]) = MakeTuple(%5, %6)",
        "  return %7",
    ]
    assert faults(graph.file.model, model) == []


@pytest.mark.parametrize("behind", [True, False])
def test_a_parameter_itself_is_cast_behind_its_load_where_that_stands_before(behind: bool) -> None:
    load, early = "a: f32[4,4] = Load(w, state)", "o = MakeTuple(w, w)"
    model = parse(f"""
        main(x: f32[4,4])
          parameter w: f32[4,4]
          {load if behind else early}
          {early if behind else load}
          m = ReLU(a)
          p = MakeTuple(m, o)
          return p
    """)
    graph = graph_of(model)
    flow = graph.dataflow()
    weight = next(value for value in flow.values if value.parameter)
    with graph.editor(flow) as editor:
        editor.cast(weight, "float16", [("", flow.ops[0].index, 0), ("", -1, 1), ("", -1, 2)])
        editor.retype(flow.values[flow.ops[0].outputs[0]], "float16")
    names = view.primitives(graph.file.model)
    sources = [node.input[0] for node in graph.file.model.graph.node if view.kind_of(node, names) == "Cast"]
    assert sorted(sources) == (["main:a"] if behind else ["main:a", "main:w"])
    assert faults(graph.file.model, model) == []


def test_a_value_that_changed_its_name_is_still_found() -> None:
    """The result takes the name of the output; casts of what had it, and of the cast that has it, come after."""
    model = parse("""
        main(x: f32[4,4])
          a = ReLU(x)
          b = Exp(a)
          return a
    """)
    graph = graph_of(model)
    flow = graph.dataflow()
    a = flow.values[flow.ops[0].outputs[0]]
    with graph.editor(flow) as editor:
        editor.cast(a, "float16", [("", -1, 0)])
        editor.round(a, "float16", [("", 1, 0)])
    lines = dump(graph.file.model).splitlines()
    assert lines[2:4] == [
        "  %2: f16[4,4] = Cast(%1, f16)  Default/Cast-amp",
        "  %3: f32[4,4] = Cast(%2, f32)  Default/Cast-amp",
    ]
    assert lines[4:] == ["  %4: f32[4,4] = Exp(%3)", "  return %2"]
    assert graph.file.model.graph.output[0].name == "main:a"


def test_a_place_tells_the_first_name_of_what_stands_there() -> None:
    """When another value is the output, ReLU's result makes room for its name, and is known by its first one still."""
    model = parse("""
        main(x: f32[4,4])
          a = ReLU(x)
          b = Exp(a)
          c = Log(b)
          return a
    """)
    body = Body(model.graph, FreshNames(view.all_names(model)))
    end, operand = OperandPlace(None, 0), OperandPlace(body.nodes[1], 0)
    body.give(end, "main:c")
    assert list(body.nodes[1].input) == ["main:a_amp"] == [body.present_name("main:a")]
    assert (body.first_name_at(operand), body.first_name_at(end)) == ("main:a", "main:c")
    assert body.first_name_at(OperandPlace(body.nodes[0], 0)) == "main:x"


def test_a_moved_cast_takes_what_stands_behind_it_along_once() -> None:
    model = parse("""
        main(x: f32[4,4])
          a = Log(x)
          b = Exp(a)
          c = Cast(a, f16)
          d = ReLU(c)
          e = Cast(d, f32)
          f = Add(b, e)
          return f
    """)
    graph = graph_of(model)
    flow = graph.dataflow()
    with graph.editor(flow) as editor:
        editor.round(flow.values[flow.ops[0].outputs[0]], "float16", [("", flow.ops[1].index, 0)])
    names = [node.output[0] for node in graph.file.model.graph.node]
    assert len(names) == len(set(names)) and faults(graph.file.model, model) == []


def test_every_graph_has_its_own_cast_and_constant() -> None:
    model = parse("""
        main(x: f32[4,4])
          parameter w: f32[4,4]
          l = Load(w, state)
          a = MatMul(x, l, false, false)
          y: f32[4,4] = call f(a, w, state)
          return y
        f(z: f32[4,4], *w, u: state)
          l = Load(w, u)
          m = MatMul(z, l, false, false)
          return m
    """)
    result = convert(model, store_weights="keep")
    assert faults(result, model) == []
    assert [sum("Cast" in node.op_type for node in graph.node) for graph in (result.graph, *result.functions)] == [3, 1]


def test_stored_numbers_are_rounded() -> None:
    model = parse("""
        main(x: f32[2,2])
          a = MatMul(x, f32[2,2]=0.1, false, false)
          return a
    """)
    result = convert(model, dtype="bfloat16")
    [tensor] = [t for n in result.graph.node for a in n.attribute if a.name == "value" for t in a.tensors]
    assert tensor.data_type == 16
    assert np.frombuffer(tensor.raw_data, np.uint16).tolist() == [0x3DCD] * 4


def test_a_plan_with_rewrites_that_somebody_added_is_told() -> None:
    model = parse("main(x: f32[4,4])\na = MatMul(x, x, false, false)\nreturn a")
    plan = plan_of(model)
    plan.rewrites.append(Norm("norm", "", (0,), "LayerNormalization", "main:x", "", "", -1, 1e-5))
    with pytest.raises(AmpError, match="AMP40"):
        followed(model, plan)
