"""Decides; never edits. lists -> regions and ties -> guards -> the user's patterns -> minimum cut."""

from __future__ import annotations

from ..core.dataflow import Dataflow
from ..core.plan import Plan, Why
from .assemble import assemble
from .classify import classify
from .costs import Costs, build_problem
from .cut import solve
from .guards.accuracy import guard_accuracy
from .guards.hazards import spread_hazards
from .guards.index import guard_indices
from .guards.place import guard_streams, release_branches, release_tail
from .guards.ranges import guard_ranges, passing, report_ranges
from .guards.weights import guard_weights, reads_low, report_floors, report_flushing
from .overrides import apply_overrides
from .policies.mindspore import decide_like_mindspore
from .regions import find_rewrites, tie_regions
from .state import CUT, FREE, HIGH, LIST, LOW, Options, State

__all__ = ["Options", "decide", "find_rewrites", "make_plan"]


def make_plan(flow: Dataflow, options: Options, digest: str) -> Plan:
    """The plan of a model at a level: the same dataflow and options give the same plan."""
    if options.level.white == "float32":  # O0: nothing is asked to be low
        apply_overrides(State(flow, options))  # a mistake in a pattern is told at every level
        return Plan(digest, options.level.name, options.dtype, options.policy, options.target)
    state, floors = decide(flow, options)
    return assemble(state, floors, digest)


def decide(flow: Dataflow, options: Options) -> tuple[State, dict[int, float]]:
    """Every unit decided, with the reasons, and the floors of mask constants (by value)."""
    if options.policy == "mindspore":
        return decide_like_mindspore(flow, options), {}
    state, floors = judge(flow, options)
    _cut(state)
    floors = {value: floor for value, floor in floors.items() if reads_low(state, value)}
    report_floors(state, floors)
    report_flushing(state)
    report_ranges(state)
    return state, floors


def judge(flow: Dataflow, options: Options) -> tuple[State, dict[int, float]]:
    """All that lists, regions, patterns and guards decide; what they leave FREE is the cut's."""
    state = State(flow, options)
    state.passing = passing(state)
    classify(state)
    tie_regions(state)
    apply_overrides(state)
    guard_indices(state)
    guard_accuracy(state)
    guard_streams(state)
    floors = guard_weights(state)
    guard_ranges(state)
    spread_hazards(state)
    release_tail(state)
    release_branches(state)
    return state, floors


def _cut(state: State) -> None:
    """What is still free takes the cheaper type; where nothing is low by right, all of it stays float32."""
    flow = state.flow
    roots = {flow.find(unit.id) for unit in flow.units}
    free = [root for root in roots if state.value[root] == FREE]
    state.seeded = any(state.value[root] == LOW and state.rank[root] >= LIST for root in roots)
    if not state.seeded:
        for root in free:
            state.set(root, HIGH, CUT, Why("cut", "nothing in the model is low at this level"))
        return
    problem = build_problem(state, Costs(flow, state.options.dims))
    solution = solve(problem)
    for root in free:
        low = solution.get(root, problem.fixed.get(root, HIGH)) == LOW
        dtype = "the low type" if low else "float32"
        why = Why("cut", f"costs least in {dtype}, with its neighbours")
        state.set(root, LOW if low else HIGH, CUT, why if low else state.wide.get(root, why))
