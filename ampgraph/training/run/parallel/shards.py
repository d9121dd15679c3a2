"""Which rank updates which parameters: an update graph cut down to the part of one of them (ZeRO-1).

A parameter goes with its slots and its average: with all state that its update reads, or that reads its update. The
check for inf and NaN and the norm stay whole on every rank, so all decide alike without a word between them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import onnx_ir as ir

from ....core.errors import AmpError
from ...step.cut import drop_unread
from ...step.state_tensors import AVERAGE, PARAMETER, SLOT
from ...step.training_step import TrainingStep

SHARED_OUT = (PARAMETER, SLOT, AVERAGE)


def owners(update: TrainingStep, sizes: Mapping[str, int], ranks: int) -> dict[str, int]:
    """The rank of every parameter, slot and average that is updated; ``sizes``: their numbers. The largest first, each
    to the rank that has least.

    Raises AmpError AMP325 where a rank would get nothing: small parameters are updated together, and stay so.
    """
    entries = [entry for entry in update.layout.of(*SHARED_OUT) if entry.output]
    made = {value.name: value for value in update.model.graph.outputs}
    together = {entry.name: {entry.name} for entry in entries}
    for entry in entries:
        for name in _read(made[entry.output]) & set(together):
            joined = together[entry.name] | together[name]
            together |= dict.fromkeys(joined, joined)
    kinds = list({id(names): sorted(names) for names in together.values()}.values())
    found: dict[str, int] = {}
    loads = [0] * ranks
    for names in sorted(kinds, key=lambda names: (-sum(sizes[name] for name in names), names)):
        rank = loads.index(min(loads))
        loads[rank] += sum(sizes[name] for name in names)
        found |= dict.fromkeys(names, rank)
    if not min(loads):
        message = f"the parameters of this step are updated in {len(kinds)} runs, too few for {ranks} ranks"
        raise AmpError("AMP325", message, hint="leave --shard-optimizer away: it saves memory for larger networks")
    return found


def _read(value: ir.Value) -> set[str]:
    """The inputs that a value depends on."""
    found, seen, open_values = set(), set(), [value]
    while open_values:
        value = open_values.pop()
        if value in seen:
            continue
        seen.add(value)
        if (node := value.producer()) is None:
            found.add(value.name or "")
        else:
            open_values += [read for read in node.inputs if read is not None]
    return found


def shard(update: TrainingStep, away: Collection[str]) -> TrainingStep:
    """The update without the state ``away``; its model is changed."""
    layout, graph = update.layout, update.model.graph
    states = tuple(entry for entry in layout.states if entry.name not in away)
    wanted = {layout.loss, layout.finite, layout.norm, *(entry.output for entry in states)}
    kept = [value for value in graph.outputs if value.name in wanted]
    graph.outputs.clear()
    graph.outputs.extend(kept)
    drop_unread(update.model, {entry.name for entry in states})
    have = {value.name for value in graph.inputs}
    return replace(
        update, layout=replace(layout, states=states, inputs=tuple(name for name in layout.inputs if name in have))
    )
