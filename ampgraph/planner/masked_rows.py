"""A Softmax, a test behind it that selects zero for rows that are wholly masked, and a product: written attention.

What the target makes one kernel of, and what its builder dies of, is in its table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..core.dataflow import NONE, Op
from .decisions import Tie
from .facts.facts import Facts


@dataclass(frozen=True)
class MaskedRows:
    """The operators of one place. ``why``: the Softmax is left to the cut, empty where it is not."""

    softmax: Op
    test: Op
    select: Op
    products: tuple[Op, ...]
    why: str

    @property
    def ties(self) -> Iterator[Tie]:
        """The selection has the type of the products that read it; where all has to be low, the test has it too."""
        together = [self.select, *([self.test] if self.why else [])]
        for product in self.products:
            yield Tie(tuple(unit for op in (*together, product) for unit in op.slots.values()))


def masked_rows(facts: Facts) -> Iterator[MaskedRows]:
    """Every such place."""
    flow, options = facts.flow, facts.options
    for op in flow.ops:
        form = options.kernels.attention.get(op.kind)
        if form is None:
            continue
        readers = [flow.ops[use.op] for use in flow.uses[op.outputs[0]] if use.op != NONE]
        tests = {reader.outputs[0]: reader for reader in readers if reader.kind == form.tests}
        for select in (reader for reader in readers if reader.kind == form.selects):
            test = next((tests[value] for value in select.inputs if value in tests), None)
            products = tuple(_products(facts, select.outputs[0]))
            if test is not None and products:
                why = f"on {options.target} it is one kernel with the products around it, low"
                yield MaskedRows(op, test, select, products, why if options.dtype in form.low else "")


def _products(facts: Facts, value: int) -> Iterator[Op]:
    """The products that read a value, under whatever shape."""
    for use in facts.flow.uses[value]:
        reader = facts.flow.ops[use.op] if use.op != NONE else None
        if reader is not None and facts.traits.has(reader.role, "scores"):
            yield reader
        elif reader is not None and facts.traits.has(reader.role, "reshapes"):
            yield from _products(facts, reader.outputs[0])
