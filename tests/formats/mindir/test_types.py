"""Types of converted MindIR models are ours to check: MindSpore's loader promotes what does not fit, and says nothing.

Every converted model passes the pass `VerifyTypes` and the independent checker; both find a type that is put in wrong.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from ampgraph.api import pipeline
from ampgraph.core.errors import AmpError
from ampgraph.formats.mindir import schema, view
from ampgraph.formats.mindir.step import UPDATE
from ampgraph.oplists.mindspore_schemas import NO_SLOT, Operator, is_slot, operators
from ampgraph.oplists.operators import load_op_lists
from ampgraph.passes.verify_types import VerifyTypes
from ampgraph.report.summary import Summary, node_choices, summarize
from formats.mindir.checker import faults, types_of
from formats.mindir.parse import _options, convert, data, dump, graph_of, parse
from formats.mindir.random_texts import random_texts
from present import present

pytestmark = pytest.mark.slow  # a grid: many small cases

OPTIMIZERS = [entry for entry in operators().values() if UPDATE.match(entry.name)]  # files with one are refused
OTHERS = [entry for entry in operators().values() if entry not in OPTIMIZERS]
SEVERAL = [entry for entry in OTHERS if len(entry.outputs) > 1]
WRITERS = [entry for entry in OTHERS if entry.effect]
NUMBERS = {"epsilon": "0.001", "training_mode": "true", "momentum": "0.1"}
LOW = {"float16": "f16", "bfloat16": "bf16"}


def text_of(entry: Operator) -> str:
    """A model of one operator between products: slots read a product, and products read its float results.

    What an operator with a side effect is given behind its first slot are parameters, directly.
    """
    attributes = {place.operand: NUMBERS.get(name, "1") for name, place in entry.attributes.items()}
    operands, parameters = [], []
    for position, slot in enumerate(entry.inputs):
        if position in attributes:
            operands.append(attributes[position])
        elif entry.effect and not (position == 0 and is_slot(slot)):
            parameters.append(f"parameter p{position}: f32[4,4]")
            operands.append(f"p{position}")
        else:
            operands.append("a" if is_slot(slot) else "b")
    short = {"int8": "i32", "int32": "i32", "int64": "i64", "bool": "bool"}
    types = [f"{short.get(slot, 'f32')}[4,4]" for slot in entry.outputs]
    made = types[0] if len(types) == 1 else f"({', '.join(types)})"
    lines = ["main(x: f32[4,4])", "parameter w: f32[4,4]", *parameters, "l = Load(w, state)"]
    lines += ["a = MatMul(x, l, false, false)", "b = Exp(a)"]
    lines.append(f"n: {made} = {entry.name}({', '.join([*operands, *(['state'] if entry.effect else [])])})")
    lines += ["u = UpdateState(state, n)"] if entry.effect else []
    results = []
    for number, kind in enumerate(types):
        name = "n" if len(types) == 1 else f"t{number}"
        lines += [f"{name} = TupleGetItem(n, {number})"] if len(types) > 1 else []
        lines += [f"m{number} = MatMul({name}, l, false, false)"] if kind == "f32[4,4]" else []
        results.append(f"m{number}" if kind == "f32[4,4]" else name)
    lines += [f"r = MakeTuple({', '.join(results)})", *(["o = Depend(r, u)"] if entry.effect else [])]
    return "\n".join([*lines, f"return {'o' if entry.effect else 'r'}"])


def node_of(model: Any, kind: str) -> Any:
    known = view.primitives(model)
    return next(node for node in model.graph.node if view.kind_of(node, known) == kind)


def types_read(model: Any, node: Any) -> list[str]:
    """The element types of the tensors that a node reads."""
    kinds = {t.name: schema.ELEMENT_TYPES[t.data_type] for t in model.graph.parameter}
    kinds |= {i.name: schema.ELEMENT_TYPES[i.tensor[0].data_type] for i in model.graph.input}
    kinds |= {n.output[0]: types_of(view.attribute(n, "shape")) for n in model.graph.node}
    return [kinds[name] for name in node.input]


def types_made(model: Any, node: Any) -> tuple[str, ...]:
    found = types_of(view.attribute(node, "shape"))
    return found if isinstance(found, tuple) else (found,)


def verify(model: Any) -> None:
    VerifyTypes()(graph_of(model))


def is_found(model: Any, original: Any) -> tuple[bool, bool]:
    """Whether `VerifyTypes` and the checker find something wrong."""
    try:
        verify(model)
        ours = False
    except AmpError as error:
        assert error.code == "AMP901"
        ours = True
    return ours, faults(model, original) != []


@pytest.mark.parametrize("entry", OPTIMIZERS, ids=lambda entry: entry.name)
def test_optimizers_have_no_slot_and_are_refused(entry: Operator) -> None:
    assert not entry.slots
    with pytest.raises(AmpError, match="AMP205"):
        convert(parse(text_of(entry)))


# -- operators with several outputs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("entry", SEVERAL, ids=lambda entry: entry.name)
def test_every_operator_with_several_outputs_has_its_rule(entry: Operator, dtype: str) -> None:
    model = parse(text_of(entry))
    for level in ("O2", "O3"):
        result = convert(model, level, dtype)
        assert faults(result, model) == []
        verify(result)
        node = node_of(result, entry.name)
        read, made = types_read(result, node), types_made(result, node)
        assert len(made) == len(entry.outputs)
        for number, slot in enumerate(entry.outputs):
            if is_slot(slot):
                given = {read[place] for place, name in enumerate(entry.inputs) if name == slot}
                assert {made[number]} == given - {""}
            elif slot in ("float32", NO_SLOT):
                assert made[number] == "float32"
        for place, slot in enumerate(entry.inputs):
            assert slot != NO_SLOT or read[place] in ("", "float32")


NORMS = {
    "LayerNorm": "low float32 float32",
    "LayerNormExt": "low float32 float32",
    "LayerNormV3": "low low low",
    "LayerNormGrad": "low low low",
    "LayerNormGradExt": "low low low",
    "LayerNormGradV3": "low low low",
    "AddLayerNormV2": "low float32 float32 low",
    "BatchNorm": "low float32 float32 float32 float32",
    "BatchNormExt": "low float32 float32",
    "BatchNormGrad": "low low low",
    "GroupNorm": "low low low",
    "GroupNormGrad": "low low low",
    "InstanceNorm": "low float32 float32",
    "InstanceNormGrad": "low float32 float32",
    "RmsNorm": "low float32",
    "RmsNormGrad": "low float32",
    "AddRmsNorm": "low float32 low",
}
"""What norms and their gradients make at O3, by hand; BatchNorm and InstanceNorm are given written statistics here."""


def test_every_operator_is_listed() -> None:
    assert {entry.name for entry in SEVERAL if "Norm" in entry.name} == set(NORMS)
    # What has slots and no list would stay float32: `test_mindir_operators` asks it of roles, this of the others.
    lists = load_op_lists()
    decided = [entry for entry in operators().values() if entry.slots]
    assert [entry.name for entry in decided if lists.entry(entry.kind) is None] == []


@pytest.mark.parametrize("name", NORMS)
def test_norms_are_kept_at_o2_and_low_at_o3(name: str) -> None:
    model = parse(text_of(operators()[name]))
    result = convert(model, "O3")
    wanted = NORMS[name].replace("low", "float16").split()
    assert list(types_made(result, node_of(result, name))) == wanted
    kept = convert(model, "O2")
    assert set(types_made(kept, node_of(kept, name))) == {"float32"}


# -- operators without an entry ---------------------------------------------------------------------------------------

UNKNOWN = """
    main(x: f32[8,8])
      parameter w: f32[8,8]
      l = Load(w, state)
      a = MatMul(x, l, false, false)
      n: (f32[8,8], f32[8,8]) = NobodyKnowsThis(a, l)
      t = TupleGetItem(n, 1)
      b = MatMul(t, l, false, false)
      return b
"""


def summary_of(model: Any, level: str) -> Summary:
    graph = graph_of(model)
    options = _options(level, "float16")
    plan, flow = pipeline.plan_graph(graph, options, frozenset())
    made, before = node_choices(plan, flow, options.lists), graph.census()
    changed = pipeline.run_passes(graph, plan, flow)
    after = graph.census()
    return summarize(plan, made, before, after, options.lists, model="", output=None, changed=changed)


@pytest.mark.parametrize("level", ["O1", "O2", "O3", "auto"])
def test_an_operator_without_an_entry_stays_float32_and_is_reported(level: str) -> None:
    model = parse(UNKNOWN)
    result = convert(model, level)
    node = node_of(result, "NobodyKnowsThis")
    assert types_read(result, node) == ["float32", "float32"] and set(types_made(result, node)) == {"float32"}
    assert faults(result, model) == []
    assert set(types_made(result, node_of(result, "MatMul"))) == {"float16"}
    summary = summary_of(model, level)
    assert [(row.rule, row.kind, row.count) for row in summary.unlisted] == [("unknown", "NobodyKnowsThis", 1)]
    assert [(n["topic"], n["where"]) for n in summary.notes if n["topic"] == "unlisted"] == [
        ("unlisted", "NobodyKnowsThis")
    ]


# -- parameters that are written --------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", WRITERS, ids=lambda entry: entry.name)
def test_what_a_side_effect_writes_is_never_cast(entry: Operator) -> None:
    model = parse(text_of(entry))
    given = list(node_of(model, entry.name).input)
    stored = {tensor.name for tensor in model.graph.parameter} - {"main:w"}
    assert stored & set(given)
    for options in ({"level": "O3"}, {"level": "O2", "io": "low"}, {"level": "O3", "policy": "mindspore"}):
        result = convert(model, **options)
        assert faults(result, model) == []
        read = list(node_of(result, entry.name).input)
        assert [name for name in read if name in stored] == [name for name in given if name in stored]
        kinds = {tensor.name: tensor.data_type for tensor in result.graph.parameter}
        assert {kinds[name] for name in stored} == {1}


# -- both checks can fail ---------------------------------------------------------------------------------------------

WHOLE = """
    main(x: f32[8,8])
      parameter w: f32[8,8]
      parameter g: f32[8]
      l = Load(w, state)
      s = Load(g, state)
      a = MatMul(x, l, false, false)
      n: (f32[8,8], f32[8,1], f32[8,1]) = LayerNorm(a, s, s, -1, -1, 1e-05)
      y = TupleGetItem(n, 0)
      v = TupleGetItem(n, 1)
      t = MakeTuple(y, y)
      c: f32[16,8] = Concat(t, 0)
      z: f32[16,8] = call f(c, w, state)
      q: f32[16,8] = Mul(z, f32[8]=0.5)
      o = MakeTuple(q, v)
      return o
    f(b: f32[16,8], *w, u: state)
      l = Load(w, u)
      m: f32[16,8] = MatMul(b, l, false, false)
      return m
"""


def _read_around_a_cast(model: Any, kind: str) -> None:
    graph = next(g for g in (model.graph, *model.functions) if any(kind in node.op_type for node in g.node))
    casts = {node.output[0]: node.input[0] for node in graph.node if "Cast" in node.op_type}
    node = next(n for n in graph.node if kind in n.op_type and casts.keys() & set(n.input))
    position = next(place for place, name in enumerate(node.input) if name in casts)
    node.input[position] = casts[node.input[position]]


def _retype(abstract: Any, number: int, position: int = 0) -> None:
    present(list(view.elements(abstract))[position]).data_type = number


WRONG = {
    "a product that reads float32": lambda m: _read_around_a_cast(m, "MatMul"),
    "an output that reads low": lambda m: _read_around_a_cast(m, "MakeTuple"),
    "a product that says float32": lambda m: _retype(view.attribute(node_of(m, "MatMul"), "shape"), 1),
    "a norm whose mean says low": lambda m: _retype(view.attribute(node_of(m, "LayerNorm"), "shape"), 10, 1),
    "a norm whose result says float32": lambda m: _retype(view.attribute(node_of(m, "LayerNorm"), "shape"), 1, 0),
    "a function that says what it is given is float32": lambda m: _retype_info(m.functions[0].input[0], 1),
    "a formal that is not of its parameter's type": lambda m: _retype_info(m.functions[0].input[1], 1),
    "a tuple that says float32": lambda m: _retype(view.attribute(node_of(m, "MakeTuple"), "shape"), 1),
    "a Load that says float32": lambda m: _retype(view.attribute(node_of(m, "Load"), "shape"), 1),
    "an element of a tuple that says float32": lambda m: _retype(
        view.attribute(node_of(m, "TupleGetItem"), "shape"), 1
    ),
    "an output that says low": lambda m: _retype(m.graph.output[0].attr_info, 10),
    "a function's output that says float32": lambda m: _retype_info(m.functions[0].output[0], 1),
    "a call that says float32": lambda m: _retype(view.attribute(_call(m), "shape"), 1),
    "a weight that is float32 again": lambda m: _store_float32(m, "w"),
    "a constant that is float32 again": lambda m: _float32_constant(m),
    "a norm's scale that is float32 again": lambda m: _store_float32(m, "g"),
}


def _retype_info(info: Any, number: int) -> None:
    info.tensor[0].data_type = number


def _call(model: Any) -> Any:
    return next(node for node in model.graph.node if node.op_type == "REF::f")


def _store_float32(model: Any, key: str) -> None:
    tensor = next(tensor for tensor in model.graph.parameter if tensor.ref_key == key)
    assert tensor.data_type == 10
    tensor.data_type, tensor.raw_data = 1, tensor.raw_data * 2


def _float32_constant(model: Any) -> None:
    [tensor] = [
        tensor
        for node in model.graph.node
        if node.op_type == "Constant"
        for tensor in view.elements(view.attribute(node, "value"))
        if tensor is not None and tensor.data_type == 10
    ]
    tensor.data_type, tensor.raw_data = 1, tensor.raw_data * 2


@pytest.mark.parametrize("name", WRONG)
def test_both_checks_find(name: str) -> None:
    model = parse(WHOLE)
    result = convert(model, "O3")
    assert is_found(result, model) == (False, False)
    right = data(result)
    WRONG[name](result)
    assert data(result) != right
    assert is_found(result, model) == (True, True), dump(result, True)


@pytest.mark.slow
@settings(max_examples=50, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(random_texts(), st.sampled_from(("O1", "O2", "O3", "auto")), st.data())
def test_both_checks_find_a_wrong_type_anywhere(text: str, level: str, random: Any) -> None:
    """One type is made another, of any node that the table knows, in the main graph or a function."""
    model = parse(text)
    result = convert(model, level)
    known = view.primitives(result)
    places = []
    for graph in (result.graph, *result.functions):
        for node in graph.node:
            entry = operators().get(view.kind_of(node, known))
            if entry is None or node.op_type == "Constant":
                continue
            for number, tensor in enumerate(view.elements(view.attribute(node, "shape"))):
                fixed = not entry.structural and entry.role != "Cast" and entry.slot_of_output(number) == NO_SLOT
                if tensor is not None and tensor.data_type in (1, 10) and not fixed:
                    places.append((node.output[0], tensor))
    if places:
        name, tensor = random.draw(st.sampled_from(places))
        tensor.data_type = 11 - tensor.data_type
        note(f"{name} is wrong in\n{dump(result, True)}")
        assert is_found(result, model) == (True, True)
