"""Policies are found by name; each is one file that registers its rule."""

from __future__ import annotations

import pytest

import ampgraph
from ampgraph.core.dataflow import Dataflow
from ampgraph.core.errors import AmpError
from ampgraph.oplists.operators import POLICIES
from ampgraph.planner.decided import DecidedModel
from ampgraph.planner.options import Options
from ampgraph.planner.policies import registry
from onnx_text import parse


def test_every_policy_that_lists_know_has_a_rule() -> None:
    assert registry.names() == sorted(POLICIES)


def test_an_unknown_policy() -> None:
    with pytest.raises(AmpError) as caught:
        registry.rule("mindsproe")
    assert caught.value.code == "AMP303" and "did you mean 'mindspore'?" in caught.value.hint


def test_the_rule_of_a_policy_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    rule = registry.rule("ampgraph")

    def watched(flow: Dataflow, options: Options) -> DecidedModel:
        seen.append(options.policy)
        return rule(flow, options)

    monkeypatch.setitem(registry._RULES, "ampgraph", watched)
    ampgraph.plan(parse("g (float[4] x) => (float[4] y) { y = Exp (x) }"))
    assert seen == ["ampgraph"]
