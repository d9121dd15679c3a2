"""Masks of numbers like -10,000 that are added to scores: low, a row that they hide whole forgets its scores.

Softmax of scores - 10,000 is that of the scores, and float32 keeps three digits of them there. float16 knows every
eighth number, so that all places of such a row become alike. Rows of which something is seen lose nothing.
Masks that are made of inputs alone are written less their largest number in each row: `rules.rewrites.mask`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...core.dataflow import Op
from ...core.plan import Note
from ..decisions import Decisions, describe
from ..facts.facts import Facts
from .rule import Findings, Rule


def report_coarse_masks(facts: Facts, found: Findings, settled: Decisions) -> Iterator[Note]:
    """One note for each number that is added low."""
    added: dict[float, list[Op]] = {}
    adding = facts.traits.operators("affine") - facts.traits.operators("scalings")
    for op in facts.flow.with_roles(adding):
        value = op.outputs[0]
        if facts.masks.has(value) and not facts.masks.is_shifted(value) and _is_low(facts, settled, op):
            number = max(facts.masks.hidden_by(v) for v in op.inputs)  # last: what is behind an addition may be long
            if number:
                added.setdefault(number, []).append(op)
    for number, ops in sorted(added.items()):
        many = f", and {len(ops) - 1} more" if len(ops) > 1 else ""
        lost = "rows hidden whole lose their scores; if there are such, hold it and its Softmax with --fp32"
        text = f"adds masks of {number:,.0f} in {facts.options.dtype}{many}: {lost}"
        yield Note("mask", describe(facts.flow, ops[0]), text)


def _is_low(facts: Facts, settled: Decisions, op: Op) -> bool:
    """Whether the sum is low, or is rounded on its way to a Softmax."""
    return any(settled.is_low(unit) for unit in op.slots.values()) or facts.masks.reads_low(settled, op.outputs[0])


coarse_masks = Rule(
    "mask",
    trigger="a mask of numbers like -10,000 that is added to scores in float16",
    action="said, as rows that it hides whole lose their scores",
    levels="every",
    report=report_coarse_masks,
)
