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
    """Scales a value before moves. Nodes: moves one after the other up to the value ``moved``, and last the one that
    multiplies or divides it by ``factor``, a stored number; both are names. What the first move reads is scaled."""

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
        """Yields the scalings of a product's operands before a Softmax and masks, each with the moves before it."""
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
        """Scales what the first move reads, gives the readers of the scaled value what the last move makes, and renames
        what the moves make, which holds other numbers then."""
        *moves, scaling = self.edited(editor)
        moved, factor = self.operands(editor, flow)
        first, result = moves[0], scaling.outputs[0]
        data, writer = flow.values[first.inputs[0]], flow.writer(factor.id)
        if writer is not None:  # a node that may stand behind the moves
            numbers = flow.weights.array(factor)
            self.refuse(numbers is not None)
            assert numbers is not None
            factor = editor.constant(numbers, factor.name, data)
        name = f"{data.name}_scaled"
        (scaled,) = editor.add(
            scaling.kind, [data, factor], [FLOAT32], scope=first.scope, name=name, metadata_of=scaling
        )
        editor.rewire(scaled, [(self.scope, first.index, 0)])
        editor.rewire(moved, [flow.place(use) for use in flow.uses[result]])
        self.refuse(editor.remove(scaling))
        if writer is not None:
            editor.remove(writer)  # unless others read it
        for op in moves:  # whoever compares values by name compares what they hold
            editor.rename(flow.values[op.outputs[0]], "scaled")


@dataclass(frozen=True)
class ScaledAcross(RewriteRule):
    """Scales one operand of scores instead of the other. Nodes: the one that multiplies or divides ``moved`` by
    ``factor``, a stored number, and the product that reads the result and ``other``, which further products read and
    which is scaled for this one then; all three are names."""

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
        """Yields the scalings of an operand of a product before a Softmax whose other operand may be scaled instead."""
        flow, values = known.flow, known.flow.values
        forms = known.options.kernels.attention
        for softmax in flow.with_roles({kind for kind, form in forms.items() if known.options.dtype in form.across}):
            for product in scores_before(known, softmax):
                for value, other in zip(product.inputs, product.inputs[::-1], strict=True):
                    scaling = flow.writer(value)
                    if scaling is not None and _is_worth_moving(known, scaling, product, other):
                        names = [values[v].name for v in (*scaling.inputs, other)]
                        yield cls("across", *cls.place(flow, scaling, product), *names)
                        break

    def write(self, editor: NodeEditor, flow: Dataflow) -> None:
        """Scales the other operand for the product, which reads the first one unscaled then; the old scaling goes."""
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


def _is_worth_moving(known: Known, scaling: Op, product: Op, other: int) -> bool:
    """Rewrite `across`: whether ``scaling`` may scale ``other`` instead, an operand of the same product that further
    products read, while nobody but the scaling and the product reads what it scales and makes."""
    flow = known.flow
    if scaling.scope != product.scope or not _can_scale(known, scaling, other, [product]):
        return False
    alone = all(len(flow.uses[v]) == 1 for v in (scaling.inputs[0], scaling.outputs[0]))
    return alone and any(reader.role == product.role for reader in flow.readers(other) if reader is not product)


def _moves_before(known: Known, scaling: Op) -> list[Op]:
    """Rewrite `early`: the moves in a row, first one first, whose result ``scaling`` multiplies or divides by a stored
    number, and between which nobody else reads; empty where it cannot scale what the first one reads (`_can_scale`)."""
    flow = known.flow

    def moved_value(op: Op) -> int:
        moves = op.scope == scaling.scope and op.slots and known.traits.has(op.role, "reshapes") and is_inside(flow, op)
        return op.inputs[0] if moves and len(flow.uses[op.outputs[0]]) == 1 else NONE

    value = scaling.inputs[0] if scaling.inputs else NONE
    found = list(operators_above(flow, value, moved_value))
    return found[::-1] if _can_scale(known, scaling, value_above(flow, value, moved_value), found) else []


def _can_scale(known: Known, scaling: Op, value: int, others: list[Op]) -> bool:
    """Rewrites `early` and `across`: whether an operator multiplies or divides by a stored number and may do so with
    ``value`` instead, which is computed float32 of no fewer dimensions than the number. The user's patterns must not
    name it, nor the ``others``, which the rewrite edits too."""
    flow, named = known.flow, named_ops(known)
    scales = known.traits.has(scaling.role, "scalings") and scaling.slots and len(scaling.inputs) == 2
    if not scales or flow.scalar(scaling.inputs[1]) is None or not is_inside(flow, scaling):
        return False
    is_computed = flow.writer(value) is not None and flow.values[value].dtype == FLOAT32
    fits = len(flow.shape(scaling.inputs[1]) or ()) <= len(flow.shape(value) or ())
    return is_computed and fits and not any(op.id in named for op in (scaling, *others))
