"""Policies are found by name; each is one file that registers its rule, and one list."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

import ampgraph
from ampgraph.core.dataflow import Dataflow, Op
from ampgraph.core.errors import AmpError
from ampgraph.core.plan import Plan
from ampgraph.core.recipe import Recipe
from ampgraph.oplists.options import Options
from ampgraph.planner.assemble import DecidedModel
from ampgraph.planner.policies import registry
from ampgraph.planner.policies.forward import ForwardTypes, begin, verdicts_of_types
from ampgraph.planner.policies.registry import Policy
from ampgraph.report.explain import explanation_lines
from onnx_text import parse

MODEL = """g (float[2, 2] x, float[2, 2] w) => (float[2, 2] y) {
    a = MatMul (x, w) b = Exp (a) c = Add (a, b) d = MatMul (c, w) e = Relu (d) y = Neg (e)
}"""

LIST = """
[framework]
name = "Sixth 1.0"
unlisted = "follows"

[classes.fast]
at = "low"
about = "made low"
source = "sixth/rules.py, line 6"

[classes.slow]
at = "float32"
about = "kept in float32"
source = "sixth/rules.py, line 7"

[fast]
six = ["dot"]
MatMul = "dot"

[slow]
Exp = "exp"
"""


class Sixth(ForwardTypes):
    """A framework that nobody has."""

    def _float32_for(self, op: Op, slot: str, unit: int) -> str:
        listing = self.options.lists.listing(self.flow, op)
        if listing is None:
            return self.widest(op, unit)
        return "" if listing.cls == "fast" else f"{op.kind} is slow"


def decide(flow: Dataflow, options: Options) -> DecidedModel:
    begun = begin(flow, options)
    types = Sixth(begun.flow, options, begun.given)
    types.settle()
    return begun.finish("Sixth", verdicts_of_types(types), {})


@pytest.fixture
def sixth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Policy:
    path = tmp_path / "sixth.toml"
    path.write_text(LIST, encoding="utf-8")
    monkeypatch.setattr(registry, "_POLICIES", {name: registry.policy(name) for name in registry.names()})
    return registry.register(
        Policy(
            name="sixth",
            framework="Sixth",
            rule=decide,
            levels={"O0": "off", "O1": "on"},
            default_level="O1",
            dtypes=("float16",),
            lists=lambda setting: path,
        )
    )


def types(plan: Plan) -> dict[str, str]:
    return {f"{d.kind}{d.index}": d.dtype for d in plan.decisions if d.index >= 0}


def test_a_policy_from_outside_needs_no_change_here(sixth: Policy, tmp_path: Path) -> None:
    plan = ampgraph.plan(parse(MODEL), policy="sixth")
    assert plan.level == "O1" and plan.policy == "sixth"
    low = {"MatMul0": "float16", "MatMul3": "float16", "Relu4": "float16", "Neg5": "float16"}
    assert types(plan) == {**low, "Exp1": "float32", "Add2": "float32"}
    result = ampgraph.convert(parse(MODEL), policy="sixth", check="off")
    again = ampgraph.convert(parse(MODEL), plan=Plan.from_json(plan.to_json()), check="off")
    assert again.SerializeToString() == result.SerializeToString()
    found = "\n".join(explanation_lines(ampgraph.explain(parse(MODEL), "b", policy="sixth")))
    assert "sixth.toml:21: slow, float32 at O1: exp" in found
    assert "Sixth 1.0: kept in float32 (sixth/rules.py, line 7)" in found and "by sixth: Exp is slow" in found


def test_the_command_line_knows_it(sixth: Policy, tmp_path: Path, amp: Callable[..., tuple[int, str, str]]) -> None:
    path, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    onnx.save(parse(MODEL), path)
    code, told, _ = amp("convert", path, "--policy", "sixth", "--check", "off", "-o", out)
    assert code == 0 and "policy sixth" in told and "(Sixth's rules)" in told
    assert amp("inspect", out, "--policy", "sixth")[0] == 0


def test_a_sixth_policy(sixth: Policy) -> None:
    rows = ampgraph.lists(policy="sixth")
    assert [(row.operator, row.cls, row.at_level) for row in rows] == [
        ("Exp", "slow", "float32"), ("MatMul", "fast", "low"), ("six::dot", "fast", "low")
    ]  # fmt: skip
    dot = ampgraph.lists("dot", policy="sixth")
    assert "rule" in "\n".join(dot.lines()) and str(dot[0].to_dict()["rule"]).startswith("Sixth 1.0: made low")
    assert [row.at_level for row in ampgraph.lists("Exp", policy="sixth", level="O0")] == ["float32"]
    assert ampgraph.lists("Relu", policy="sixth")[0].at_level == "follows"
    # patterns win and the report says that parity is gone
    plan = ampgraph.plan(parse(MODEL), policy="sixth", fp32="op:MatMul", low="op:Exp")
    assert types(plan)["MatMul0"] == "float32" and types(plan)["Exp1"] == "float16"
    notes = [note.text for note in plan.notes if note.topic == "parity"]
    assert notes == ["--fp32 and --low decided 3 slots: the result is not what Sixth does any more"]
    # what has no meaning is refused with what has one
    with pytest.raises(AmpError) as caught:
        ampgraph.plan(parse(MODEL), policy="sixth", level="O2")
    assert caught.value.code == "AMP302" and "O1: on" in caught.value.hint
    with pytest.raises(AmpError, match="does not support bfloat16"):
        ampgraph.plan(parse(MODEL), policy="sixth", dtype="bfloat16")


def test_a_user_edits_its_list_by_its_own_classes(sixth: Policy, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('[fast]\nExp = "I know"\n', encoding="utf-8")
    plan = ampgraph.plan(parse(MODEL), policy="sixth", lists=mine)
    assert set(types(plan).values()) == {"float16"}
    mine.write_text('[allow]\nExp = "I know"\n', encoding="utf-8")
    with pytest.raises(AmpError, match="unknown table 'allow'"):
        ampgraph.plan(parse(MODEL), policy="sixth", lists=mine)


def test_levels_and_names_are_checked() -> None:
    assert {"ampgraph", "mindspore"} <= set(registry.names())
    for name in registry.names():
        found = registry.policy(name)
        assert found.default_level in found.levels and found.name == name
        assert ampgraph.lists(policy=name)
    # an unknown policy
    with pytest.raises(AmpError) as caught:
        registry.policy("mindsproe")
    assert caught.value.code == "AMP303" and "did you mean 'mindspore'?" in caught.value.hint
    # the level of a policy is checked with the recipe
    with pytest.raises(AmpError, match="AMP303"):
        registry.policy("mindspore").check(Recipe(policy="mindspore"), "ONNX")
