"""The metadata of converted files: keys of a second conversion, and damaged texts."""

from __future__ import annotations

import pytest

from ampgraph.core.annotations import NODES, conversion_metadata, pinned_in, reasons_in, split_reason, target_in
from ampgraph.core.names import literal, pattern_for
from ampgraph.core.plan import Plan
from ampgraph.core.repairs import SHOWN, options_text


def test_a_second_conversion_has_keys_of_its_own() -> None:
    first = conversion_metadata(Plan("", "O2", "float16", "ampgraph", "cuda", pinned=["op:Pow"]), ())
    second = conversion_metadata(Plan("", "O1", "float16", "ampgraph", "webgpu", pinned=["op:Exp", "op:Pow"]), first)
    assert first.keys() == {f"ampgraph.{key}" for key in ("version", "level", "dtype", "policy", "target", "fp32")}
    assert second.keys() == {key.replace(".", ".2.", 1) for key in first}
    assert target_in(first) == "cuda" and target_in(first | second) == "webgpu" and target_in({}) == ""
    assert pinned_in(first | second) == ("op:Pow", "op:Exp")


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"float32": []}', '{"float32": {"why": "a"}}', "[" * 99999])
def test_damaged_metadata_says_nothing(text: str) -> None:
    assert reasons_in({NODES: text}) == {}
    assert pinned_in({"ampgraph.fp32": '["op:Exp"]', "ampgraph.2.fp32": text}) == ("op:Exp",)


def test_reasons_by_name() -> None:
    reasons = reasons_in({NODES: '{"float32": {"list: deny: exponentials": ["a", "b", 3]}}'})
    assert reasons == dict.fromkeys("ab", "list: deny: exponentials")
    assert split_reason(reasons["a"]) == ("list", "deny: exponentials") and split_reason("") == ("", "")


def test_patterns_that_mean_one_node() -> None:
    assert literal("a[0]*?") == "a[[]0][*][?]" and literal("/layer.0/Add") == "/layer.0/Add"
    assert pattern_for("Add_1", "y") == "Add_1"
    assert pattern_for("", "y") == pattern_for("op:Add", "y") == "value:y"  # a name that would mean an operator


def test_many_options_on_a_line() -> None:
    options = tuple(f"--fp32 n{i}" for i in range(SHOWN + 2))
    assert options_text(options[:2]) == "--fp32 n0 --fp32 n1"
    assert options_text(options).endswith(f"--fp32 n{SHOWN - 1} and 2 more, see --json")
