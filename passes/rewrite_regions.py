"""Writes decomposed norms as their standard operator, which keeps float32 inside on low data and needs no cast; Clips
without a kernel as Max and Min; and constants behind a convolution into its weights and bias."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ..core.dataflow import NONE, Dataflow
from ..core.errors import AmpError
from ..core.graph import Attribute, Graph, NodeEditor
from ..core.pass_ import Change, foreign
from ..core.plan import FOLDS, MAX_AND_MIN, Rewrite


@dataclass(frozen=True)
class RewriteRegions:
    """The rewrites of a plan, which names nodes by their places in the file.

    A graph keeps in mind that they were done, so a second run changes nothing. Raises AmpError AMP402 for nodes that
    the model does not have, AMP403 for a format that needs no rewrites."""

    rewrites: tuple[Rewrite, ...] = ()
    low: str = "float16"

    def __repr__(self) -> str:
        kinds = Counter(item.what for item in self.rewrites)
        return f"RewriteRegions({', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))})"

    def __call__(self, graph: Graph) -> Change:
        if not self.rewrites or graph.remembers(self):
            return Change(0)
        flow = graph.dataflow(self.low)
        with graph.editor(flow) as editor:
            if not isinstance(editor, NodeEditor):
                hint = "make a plan for this model, or take its rewrites out"
                kind = self.rewrites[0].kind
                raise AmpError("AMP403", f"the plan writes a {kind}, which no {graph.format} model needs", hint=hint)
            for item in self.rewrites:
                _check(item, editor, flow)
                _write(item, editor)
        graph.remember(self)
        return Change(len(self.rewrites))


def _write(item: Rewrite, editor: NodeEditor) -> None:
    name = "clip" if item.kind == MAX_AND_MIN else item.name
    if name in ("clip", *FOLDS):
        if not editor.write_anew(name, item.scope, item.nodes):
            raise foreign(f"writes nodes {list(item.nodes)} of scope '{item.scope}' as {item.what}")
        return
    attributes: dict[str, Attribute] = {"axis": item.axis, "epsilon": float(item.epsilon), "stash_type": 1}
    editor.replace(item.scope, item.nodes, item.kind, item.inputs, attributes)


def _check(item: Rewrite, editor: NodeEditor, flow: Dataflow) -> None:
    ops = [op for index in item.nodes if (op := editor.op(item.scope, index)) is not None]
    if not ops or len(ops) < len(item.nodes):
        raise foreign(f"rewrites nodes {list(item.nodes)} of scope '{item.scope}'")
    known = {flow.values[i].name for op in ops for i in op.inputs if i != NONE}
    for name in item.inputs:
        if name not in known:
            raise foreign(f"makes {item.kind} read '{name}'", "does not read there")
