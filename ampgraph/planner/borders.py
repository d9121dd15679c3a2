"""Values that carry on across the border of a body or a function: the same data under another number."""

from __future__ import annotations

from collections.abc import Iterable

from ..dataflow import NONE, Dataflow


class Borders:
    """``before``: what a formal is given, a loop brings back, or a body returns. ``after`` is the reverse."""

    def __init__(self, flow: Dataflow) -> None:
        self.before: dict[int, list[int]] = {}
        self.after: dict[int, list[int]] = {}
        for scope in flow.scopes:
            if scope.op == NONE:
                continue
            op = flow.ops[scope.op]
            if not op.outputs or op.kind not in ("If", "Loop", "Scan") and scope.kind != "function":
                continue
            first = 1 if op.kind == "Loop" else 0
            skip = max(len(op.inputs) - len(scope.inputs), 0) if op.kind == "Scan" else 0
            given = op.inputs[skip:] if op.kind != "If" else []
            self._pass(zip(given, scope.inputs, strict=False))
            self._pass(zip(scope.outputs[first:], op.outputs, strict=False))
            if op.kind in ("Loop", "Scan"):
                states = len(given) - (flow.attribute(op, "num_scan_inputs") or 0 if op.kind == "Scan" else 2)
                formals = scope.inputs[2:] if op.kind == "Loop" else scope.inputs
                self._pass(list(zip(scope.outputs[first:], formals, strict=False))[:states])

    def _pass(self, pairs: Iterable[tuple[int, int]]) -> None:
        for source, target in pairs:
            if source != NONE and target != NONE:
                self.before.setdefault(target, []).append(source)
                self.after.setdefault(source, []).append(target)

    def origins(self, value: int) -> set[int]:
        """A value with all that it is passed from."""
        return _closure(value, self.before)

    def copies(self, value: int) -> set[int]:
        """A value with all that it is passed to."""
        return _closure(value, self.after)


def _closure(value: int, step: dict[int, list[int]]) -> set[int]:
    found, work = {value}, [value]
    while work:
        for other in step.get(work.pop(), ()):
            if other not in found:
                found.add(other)
                work.append(other)
    return found
