"""What schema, kernels and the file leave no choice of: decided slot by slot with the lists (`planner.classify`)."""

from __future__ import annotations

from .rule import Rule


def _slot_rule(name: str, trigger: str, action: str = "float32 for the slot") -> Rule:
    return Rule(name, trigger, action, levels="every", validity=True)


SLOT_RULES = (
    _slot_rule(
        "boundary",
        "an input or output of the model that keeps its type, or is low in the file",
        "the type that it has",
    ),
    _slot_rule("unknown", "an operator of which no schema is known"),
    _slot_rule("slot", "a slot that `op_lists/tied_slots.toml` keeps in float32"),
    _slot_rule("schema", "a schema that does not admit the low type"),
    _slot_rule("opset", "a type, a kernel or a Cast that only a later opset has"),
    _slot_rule("kernel", "the target has no low kernel, or one that fails here", "float32 for the operator"),
    _slot_rule("gradient", "a node of our own gradients and updates that computes in float32", "float32 for it"),
)
