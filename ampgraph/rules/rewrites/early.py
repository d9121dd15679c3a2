"""Where the number stands that scales an operand of scores.

In front of Reshapes and Transposes: TensorRT takes it into the kernel that adds the projection's bias there, and starts
a kernel of its own for what is behind the moves. On the operand that another product reads too: TensorRT makes one
product of two that read the same, and then no attention of the first one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...core.dataflow import FLOAT32, NONE, Dataflow, Op
from ...core.graph import NodeEditor
from ...core.walk import first_operand_of, operators_above, value_above
from ..fusions import scores_before
from ..known import Known, named_ops
from ..rewrite import RewriteRule, is_inside


@dataclass(frozen=True)
class ScaledEarly(RewriteRule):
    """Nodes that move a value one after the other up to ``moved``, and the last one, which multiplies or divides that
    by ``factor``, a stored number. What the first one reads is scaled instead."""

    moved: str
    factor: str

    names = ("early",)
    reading = ("moved", "factor")

    @property
    def writes(self) -> str:
        """What this rewrite writes, as a plan's lines say it."""
        return "scaling before the moves"

    @property
    def removed_nodes(self) -> tuple[int, ...]:
        """The scaling behind the moves; the moves stay."""
        return self.nodes[-1:]

    @property
    def result(self) -> str:
        """The value that the moves make: it is scaled already then, and read instead."""
        return self.moved

    @property
    def explanation(self) -> str:
        """What the rewrite did to a node, as `explain` says it."""
        return "reads or makes what a number scaled behind moves, and scales before them now"

    @classmethod
    def find(cls, known: Known) -> Iterator[ScaledEarly]:
        """The scalings of both operands of a product whose result, shifted by a mask, a Softmax reads, each with the
        moves behind it."""
        flow, traits = known.flow, known.traits
        forms = known.options.kernels.attention
        for softmax in flow.with_roles({kind for kind, form in forms.items() if known.options.dtype in form.early}):
            product = flow.writer(value_above(flow, softmax.inputs[0], first_operand_of(traits.operators("additions"))))
            for value in product.inputs if product is not None and traits.has(product.role, "scores") else ():
                scaling = flow.writer(value)
                chain = _moves_before(known, scaling) if scaling is not None else []
                if scaling is not None and chain:
                    names = [flow.values[v].name for v in (chain[-1].outputs[0], scaling.inputs[1])]
                    yield cls("early", *cls.place(flow, *chain, scaling), *names)

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        """Scales what the first move reads, and gives the readers of the scaled value what the last move makes."""
        *moves, scaling = self.edited(editor)
        moved, factor = self.operands(editor, flow)
        first, result = moves[0], scaling.outputs[0]
        data, writer = flow.values[first.inputs[0]], flow.writer(factor.id)
        if writer is not None:  # a node that may stand behind the moves
            numbers = flow.weights.array(factor)
            self.refuse(numbers is not None)
            assert numbers is not None
            factor = editor.constant(numbers, factor.name, data)
        read = [data, factor]
        name = f"{read[0].name}_scaled"
        (scaled,) = editor.add(scaling.kind, read, [FLOAT32], scope=first.scope, name=name, metadata_of=scaling)
        editor.rewire(scaled, [(self.scope, first.index, 0)])
        editor.rewire(moved, [flow.place(use) for use in flow.uses[result]])
        self.refuse(editor.remove(scaling))
        if writer is not None:
            editor.remove(writer)  # unless others read it
        for op in moves:  # whoever compares values by name compares what they hold
            editor.rename(flow.values[op.outputs[0]], "scaled")


@dataclass(frozen=True)
class ScaledAcross(RewriteRule):
    """A node that multiplies or divides ``moved``, an operand of scores, by ``factor``, a stored number, and their
    product, whose other operand, ``other``, further products read. For this product ``other`` is scaled instead."""

    moved: str
    factor: str
    other: str

    names = ("across",)
    reading = ("moved", "factor", "other")
    rewires = True

    @property
    def writes(self) -> str:
        """What this rewrite writes, as a plan's lines say it."""
        return "scaling of the other operand"

    @property
    def explanation(self) -> str:
        """What the rewrite did to a node, as `explain` says it."""
        return "makes scores of which a number scales the other operand now, which further products read unscaled"

    @classmethod
    def find(cls, known: Known) -> Iterator[ScaledAcross]:
        """Scalings of a product's operand before a Softmax, where the other operand may be scaled in its place."""
        flow, values = known.flow, known.flow.values
        forms = known.options.kernels.attention
        for softmax in flow.with_roles({kind for kind, form in forms.items() if known.options.dtype in form.across}):
            for product in scores_before(known, softmax):
                for value, other in zip(product.inputs, product.inputs[::-1], strict=True):
                    scaling = flow.writer(value)
                    if scaling is not None and _scales_for(known, scaling, product, other):
                        names = [values[v].name for v in (*scaling.inputs, other)]
                        yield cls("across", *cls.place(flow, scaling, product), *names)
                        break

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        """Scales the other operand, which the product reads then, and has all read unscaled what was scaled."""
        scaling, product = self.edited(editor)
        moved, factor, other = self.operands(editor, flow)
        self.refuse(scaling.outputs[0] in product.inputs)
        place, name = product.inputs.index(scaling.outputs[0]), f"{other.name}_scaled"
        (scaled,) = editor.add(
            scaling.kind, [other, factor], [FLOAT32], scope=product.scope, name=name, metadata_of=scaling
        )
        editor.rewire(moved, [(self.scope, product.index, place)])
        editor.rewire(scaled, [(self.scope, product.index, 1 - place)])
        self.refuse(editor.remove(scaling))


def _scales_for(known: Known, scaling: Op, product: Op, other: int) -> bool:
    """Whether a node scales for a product alone what nobody else reads, and further products read what the product
    reads beside: computed float32 of no fewer dimensions than the number."""
    flow = known.flow
    if scaling.scope != product.scope or not _can_scale(known, scaling, other, [product]):
        return False
    alone = all(len(flow.uses[v]) == 1 for v in (scaling.inputs[0], scaling.outputs[0]))
    return alone and any(reader.role == product.role for reader in flow.readers(other) if reader is not product)


def _moves_before(known: Known, scaling: Op) -> list[Op]:
    """The moves in a row, first one first, whose result ``scaling`` multiplies or divides by a stored number; empty
    where it cannot scale what the first one reads.

    Nobody else reads what is between them, what is moved is computed float32 of no fewer dimensions than the number,
    and nobody speaks of one of the nodes.
    """
    flow = known.flow

    def moved(op: Op) -> int:
        moves = op.scope == scaling.scope and op.slots and known.traits.has(op.role, "reshapes") and is_inside(flow, op)
        return op.inputs[0] if moves and len(flow.uses[op.outputs[0]]) == 1 else NONE

    value = scaling.inputs[0] if scaling.inputs else NONE
    found = list(operators_above(flow, value, moved))
    return found[::-1] if _can_scale(known, scaling, value_above(flow, value, moved), found) else []


def _can_scale(known: Known, scaling: Op, value: int, others: list[Op]) -> bool:
    """Whether a node that multiplies or divides by a stored number may do so with ``value`` instead: computed float32
    of no fewer dimensions than the number. Nobody may speak of it or of the ``others``."""
    flow, spoken = known.flow, named_ops(known)
    two = known.traits.has(scaling.role, "scalings") and scaling.slots and len(scaling.inputs) == 2
    if not two or flow.scalar(scaling.inputs[1]) is None or not is_inside(flow, scaling):
        return False
    computed = flow.writer(value) is not None and flow.values[value].dtype == FLOAT32
    ranks = len(flow.shape(scaling.inputs[1]) or ()), len(flow.shape(value) or ())
    return computed and ranks[0] <= ranks[1] and not any(op.id in spoken for op in (scaling, *others))
