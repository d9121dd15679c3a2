"""What the tests of frameworks' policies share: our types beside a framework's, node by node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from ampgraph.api import pipeline
from ampgraph.core.dataflow import FLOAT32
from ampgraph.core.recipe import Recipe
from ampgraph.formats import adapters
from ampgraph.numerics.strict.session import run_strict
from ampgraph.oplists.options import Options
from ampgraph.planner.assemble import DecidedModel
from ampgraph.planner.resolve import resolve
from ampgraph.planner.steps import decide
from oracles.answers import Answers

NEVER = ("slot", "schema")
"""Reasons of slots that are float32 in every node of their operator."""


def resolved(kernels: bool, fields: dict[str, Any]) -> Options:
    """``kernels``: whether the result must run on ONNX Runtime too."""
    options = resolve(Recipe.of(**fields), "ONNX")
    return (
        options
        if kernels
        else replace(options, kernels=replace(options.kernels, missing="unasked", broken={}, tied={}))
    )


def decided_model(model: onnx.ModelProto, kernels: bool = True, **fields: Any) -> DecidedModel:
    """A model as a policy decides it."""
    options = resolved(kernels, fields)
    flow, _ = pipeline.rewrite_graph(adapters.load(model)[0], options, frozenset())
    return decide(flow, options)


def letters(decided: DecidedModel) -> str:
    """Our types in the order of the nodes, as `oracles.answers` writes a framework's."""
    text = ["."] * sum(op.scope == 0 for op in decided.flow.ops)
    for op in decided.flow.ops:
        whys = {unit: decided.settled.why(unit) for unit in op.slots.values()}
        low = {decided.settled.is_low(unit) for unit, why in whys.items() if why is None or why.rule not in NEVER}
        if op.scope == 0 and low:
            text[op.index] = "x" if len(low) > 1 else "l" if low.pop() else "f"
    return "".join(text)


def differences(answers: Answers, name: str, case: str, ours: str) -> list[tuple[str, str, str, str]]:
    """(kind, PyTorch's operator, theirs, ours) of every node whose type is another."""
    theirs, nodes = answers.types[name][case], answers.model(name).graph.node
    assert len(theirs) == len(nodes) == len(ours)
    rows = zip(nodes, theirs, ours, strict=True)
    return [
        (node.op_type, origin(node), real, own) for node, real, own in rows if "." not in (real, own) and real != own
    ]


def origin(node: onnx.NodeProto) -> str:
    """The operator of PyTorch that a node names."""
    text = next((prop.value for prop in node.metadata_props if prop.key.endswith("fx_node")), "")
    return text.partition("target=torch.ops.")[2].partition("(")[0].rstrip("]").rpartition(".")[0]


def strict_errors(answers: Answers, name: str, case: str, **fields: Any) -> list[float]:
    """How far our strict run is from the framework's outputs, by output: in halves of a last place of the low type at
    the output's own scale, for each low node. Empty where the framework refuses a module, or rounds between two
    products of what is one Einsum in the file."""
    triple = any(node.op_type == "Einsum" and len(node.input) > 2 for node in answers.model(name).graph.node)
    if triple or answers.types[name][case].startswith("refused"):
        return []
    options = resolved(False, fields)
    graph = adapters.load(answers.model(name))[0]
    plan, flow = pipeline.plan_graph(graph, options, frozenset())
    pipeline.run_passes(graph, plan, flow)
    found = run_strict(graph, answers.inputs(name))
    steps = max(1, sum(decision.dtype != FLOAT32 for decision in plan.decisions))
    half = 2.0**-11 if options.dtype == "float16" else 2.0**-8
    errors = []
    for ours, theirs in zip(found.values(), answers.outputs_of(name, case), strict=True):
        ours, theirs = (np.asarray(array, np.float32).reshape(-1) for array in (ours, theirs))
        finite = np.isfinite(theirs)
        assert np.array_equal(finite, np.isfinite(ours))
        wide = theirs[finite]
        place = half * 2.0 ** np.floor(np.log2(np.abs(wide).max(initial=2.0**-14)))
        errors.append(float(np.abs(ours[finite] - wide).max(initial=0) / place / steps))
    return errors
