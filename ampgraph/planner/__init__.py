"""Decides; never edits. lists -> regions and ties -> guards -> the user's patterns -> minimum cut."""

from __future__ import annotations

from ..dataflow import Dataflow
from ..plans import Plan, Why
from .assemble import assemble
from .classify import classify
from .costs import Costs, build_problem
from .cut import solve
from .state import CUT, FREE, HIGH, LIST, LOW, Options, State

__all__ = ["Options", "make_plan"]


def make_plan(flow: Dataflow, options: Options, digest: str) -> Plan:
    """The plan of a model at a level: the same dataflow and options give the same plan."""
    state = decide(flow, options)
    return assemble(state, {}, digest)


def decide(flow: Dataflow, options: Options) -> State:
    """Every unit decided, with the reasons."""
    state = State(flow, options)
    classify(state)
    _cut(state)
    return state


def _cut(state: State) -> None:
    """What is still free takes the cheaper type; where nothing is low by right, all of it stays float32."""
    flow = state.flow
    roots = {flow.find(unit.id) for unit in flow.units}
    free = [root for root in roots if state.value[root] == FREE]
    seeds = any(state.value[root] == LOW and state.rank[root] >= LIST for root in roots)
    if not seeds:
        for root in free:
            state.set(root, HIGH, CUT, Why("cut", "nothing in the model is low at this level"))
        return
    problem = build_problem(state, Costs(flow, state.options.dims))
    solution = solve(problem)
    for root in free:
        low = solution.get(root, problem.fixed.get(root, HIGH)) == LOW
        text = "costs least in the low type, with its neighbours" if low else "costs least in float32, with its neighbours"
        state.set(root, LOW if low else HIGH, CUT, Why("cut", text))
