"""Numbers that scale an operand of scores behind its Reshapes and Transposes, in front of these: TensorRT takes them
into the kernel that adds the projection's bias there, and starts a kernel of its own for what is behind the moves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...core.dataflow import FLOAT32, Dataflow, Op
from ...core.graph import NodeEditor
from ...core.walk import source
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
    tried = True

    @property
    def writes(self) -> str:
        return "scaling before the moves"

    @property
    def gone(self) -> tuple[int, ...]:
        """The scaling behind the moves; the moves stay."""
        return self.nodes[-1:]

    @property
    def result(self) -> str:
        """The value that the moves make: it is scaled already then, and read instead."""
        return self.moved

    @property
    def said(self) -> str:
        return "reads or makes what a number scaled behind moves, and scales before them now"

    @classmethod
    def find(cls, known: Known) -> Iterator[ScaledEarly]:
        """The scalings of both operands of a product whose result, shifted by a mask, a Softmax reads, each with the
        moves behind it."""
        flow, traits = known.flow, known.traits
        forms = known.options.kernels.attention
        for softmax in flow.with_roles({kind for kind, form in forms.items() if known.options.dtype in form.early}):
            product = flow.writer(source(flow, softmax.inputs[0], traits.operators("additions")))
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
        (scaled,) = editor.add(scaling.kind, read, [FLOAT32], scope=first.scope, name=name, of=scaling)
        editor.give(scaled, [(self.scope, first.index, 0)])
        editor.give(moved, [flow.place(use) for use in flow.uses[result]])
        self.refuse(editor.remove(scaling))
        if writer is not None:
            editor.remove(writer)  # unless others read it
        for op in moves:  # whoever compares values by name compares what they hold
            editor.rename(flow.values[op.outputs[0]], "scaled")


def _moves_before(known: Known, scaling: Op) -> list[Op]:
    """The moves in a row, first one first, whose result ``scaling`` multiplies or divides by a stored number; empty
    where it cannot scale what the first one reads.

    Nobody else reads what is between them, what is moved is computed float32 of no fewer dimensions than the number,
    and nobody speaks of one of the nodes.
    """
    flow, found = known.flow, list[Op]()
    two = known.traits.has(scaling.role, "scalings") and scaling.slots and len(scaling.inputs) == 2
    if not two or flow.scalar(scaling.inputs[1]) is None or not is_inside(flow, scaling):
        return []
    value = scaling.inputs[0]
    while (op := flow.writer(value)) is not None and len(flow.uses[value]) == 1 and op.scope == scaling.scope:
        if not known.traits.has(op.role, "reshapes") or not op.slots or not is_inside(flow, op):
            break
        found.append(op)
        value = op.inputs[0]
    spoken = named_ops(known)
    computed = flow.writer(value) is not None and flow.values[value].dtype == FLOAT32
    ranks = len(flow.shape(scaling.inputs[1]) or ()), len(flow.shape(value) or ())
    fits = computed and ranks[0] <= ranks[1] and not any(op.id in spoken for op in (*found, scaling))
    return found[::-1] if fits else []
