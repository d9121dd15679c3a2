"""What the outputs of a model are, as its last operators tell."""

from __future__ import annotations

from ...core.dataflow import NONE, Dataflow, Op
from ...core.walk import upstream
from ...oplists.traits import has

NUMBERS, PROBABILITIES, LOGARITHMS, ROWS = "numbers", "probabilities", "log probabilities", "rows"


def roles_of(flow: Dataflow) -> dict[str, str]:
    """What each output holds, by name: ``probabilities`` and ``log probabilities`` that a softmax or sigmoid makes and
    moves alone follow, ``rows`` that depend on which were selected (suppression, top k), else ``numbers``."""
    names = {value: flow.values[value].name for value in flow.scopes[0].outputs}
    return {name: _role(flow, value) for value, name in names.items()}


def _role(flow: Dataflow, value: int) -> str:
    """What an output holds, as `roles_of` says it, by the operators that its value comes from."""
    before = upstream(flow, [value], lambda op: () if has(op.role, "products") else op.inputs)  # back to the products
    if any(_picks_rows(flow, op) for op in before):
        return ROWS
    maker = _computing_operator(flow, value)
    if maker is None:
        return NUMBERS
    if has(maker.role, "log_probabilities"):
        return LOGARITHMS
    return PROBABILITIES if has(maker.role, "probabilities") else NUMBERS


def _computing_operator(flow: Dataflow, value: int) -> Op | None:
    """For what an output holds: the operator that computes a value's elements, which moves only pass on; of an If that
    of its first branch. None for an input and a stored tensor."""
    op = flow.writer(value)
    while op is not None:
        if op.role == "If":
            branch = next(scope for scope in flow.scopes if scope.kind == "body" and scope.op == op.id)
            value = branch.outputs[op.outputs.index(value)]
        elif has(op.role, "passes_on") and op.inputs and op.inputs[0] != NONE:
            value = op.inputs[0]
        else:
            return op
        op = flow.writer(value)
    return None


def _picks_rows(flow: Dataflow, op: Op) -> bool:
    """For what an output holds: whether an operator selects rows by value (top k, suppression), in a body too."""
    if not has(op.role, "control_flow"):
        return has(op.role, "picks_rows")
    inside = {scope.id for scope in flow.scopes if scope.kind == "body" and scope.op == op.id}
    return any(_picks_rows(flow, inner) for inner in flow.ops if inner.scope in inside)
