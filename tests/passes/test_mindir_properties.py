"""Random MindIR models at every level: types, order, names, interface, the same again, plans, patterns."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from ampgraph.core.errors import AmpError
from ampgraph.core.pass_ import run
from ampgraph.core.plan import Plan
from ampgraph.formats.mindir import schema
from ampgraph.passes.apply_plan import ApplyPlan
from ampgraph.passes.pipeline import default_pipeline
from formats.mindir.checker import faults, interface
from formats.mindir.parse import convert, data, dump, followed, graph_of, parse, plan_of
from formats.mindir.random_texts import random_texts
from share import examples

LEVELS, DTYPES, POLICIES = ("O1", "O2", "O3", "auto"), ("float16", "bfloat16"), ("ampgraph", "mindspore")
SHARED = settings(deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
MANY, FEW = settings(SHARED, max_examples=examples(200)), settings(SHARED, max_examples=50)

OPTIONS = st.fixed_dictionaries(
    {
        "level": st.sampled_from(LEVELS),
        "dtype": st.sampled_from(DTYPES),
        "policy": st.sampled_from(POLICIES),
        "store_weights": st.sampled_from((None, "low", "keep")),
    }
)


@pytest.mark.slow
@MANY
@given(random_texts(), OPTIONS)
def test_a_conversion(text: str, options: dict[str, Any]) -> None:
    note(text)
    model = parse(text)
    assert faults(model) == []
    before = data(model)
    result = convert(model, **options)
    note(dump(result, True))
    admitted = options["policy"] == "ampgraph"  # MindSpore's own mixed precision asks no type inference
    assert [fault for fault in faults(result, model) if admitted or "does not admit" not in fault] == []
    assert data(model) == before
    if options["policy"] == "ampgraph" or options["level"] != "auto":
        assert interface(result) == interface(model)
    assert data(convert(model, **options)) == data(result)
    if options["policy"] == "ampgraph":
        assert data(convert(result, **options)) == data(result)


@pytest.mark.slow
@FEW
@given(random_texts(), OPTIONS)
def test_plans_and_second_runs(text: str, options: dict[str, Any]) -> None:
    note(text)
    model = parse(text)
    plan = plan_of(model, **options)
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert data(followed(model, again)) == data(convert(model, **options))
    other = parse(text.replace("return ", "e = Erf(x)\nreturn ", 1))
    with pytest.raises(AmpError) as caught:
        followed(other, again)
    assert caught.value.code == "AMP403"
    # a second run of each pass changes nothing
    note(text)
    plan, graph = plan_of(parse(text), **options), graph_of(parse(text))
    for step in default_pipeline(plan, graph.dataflow(plan.dtype)):
        run((step,), graph, check=options["policy"] == "ampgraph")  # MindSpore's own asks no type inference
        before = data(graph.file.model)
        if isinstance(step, ApplyPlan):  # once: its decisions are made
            with contextlib.suppress(AmpError):
                assert step(graph).count == 0
        else:
            assert step(graph).count == 0
        assert data(graph.file.model) == before


@pytest.mark.slow
@FEW
@given(
    random_texts(),
    OPTIONS,
    st.lists(st.sampled_from(("MatMul", "Add", "Exp", "AddN", "call")), max_size=3, unique=True),
)
def test_patterns(text: str, options: dict[str, Any], kinds: list[str]) -> None:
    note(text)
    model = parse(text)
    options = {**options, "policy": "ampgraph"}
    held = [kind for kind in kinds if f"= {kind}(" in text]
    result = convert(model, fp32=[f"op:{kind}" for kind in held], **options)
    note(dump(result, True))
    assert faults(result, model) == []
    low = {"float16": "f16", "bfloat16": "bf16"}[options["dtype"]]
    given_lines, lines = dump(model, True).splitlines(), dump(result, True).splitlines()
    for kind in held:
        count = sum(f"{low}[" in line.split(" = ")[0] for line in given_lines if f"= {kind}(" in line)
        assert sum(f"{low}[" in line.split(" = ")[0] for line in lines if f"= {kind}(" in line) == count


@pytest.mark.slow
@FEW
@given(random_texts(), st.sampled_from(DTYPES))
def test_borders_that_are_asked_to_be_low(text: str, dtype: str) -> None:
    note(text)
    model = parse(text)
    result = convert(model, "O2", dtype, io="low")
    note(dump(result, True))
    assert faults(result, model) == []
    if "InplaceAddExt" in text:
        return  # an input that is written in place stays as it is
    [x, z] = [info.tensor[0].data_type for info in result.graph.input[:2]]
    assert x == z == {"float16": 10, "bfloat16": 16}[dtype]


@pytest.mark.slow
@FEW
@given(random_texts(), st.data())
def test_unknown_fields_survive(text: str, random: Any) -> None:
    """Fields of a later version, in every message that is not removed."""
    note(text)
    model = parse(text)
    marks = []
    for number, message in enumerate((model, *model.graph.node, model.graph, *model.functions, *model.graph.parameter)):
        if getattr(message, "op_type", "") == "Constant" or random.draw(st.booleans()):
            mark = b"mark %05d" % number
            message.MergeFromString(b"\xa2\x1f" + bytes([len(mark)]) + mark)  # field 500, bytes
            marks.append(mark)
    result = data(convert(model, "O2", fp32=["op:Cast"] if "Cast(" in text else []))
    gone = [mark for mark in marks if mark not in result]
    assert len(gone) <= text.count("Cast(")  # of casts that do nothing any more


def test_models_that_stay_as_they_are() -> None:
    model = parse("main(x: f32[4])\na = MatMul(x, x, false, false)\nreturn a")
    before = data(model)
    with pytest.raises(AmpError):
        convert(model, fp32=["op:MatMul"], low=["op:MatMul"])
    assert data(model) == before
    assert data(convert(model, "O0")) == before
    # a model without anything low is returned as it is
    model = parse("main(x: f32[4])\na = Pow(x, x)\nb = NobodyKnowsThis(a)\nreturn b")
    assert data(convert(model)) == data(model)
    assert schema.Model.FromString(data(model)) == model
