"""Nodes that the target computes wrongly in float32 too: no choice of types mends them, so they are said."""

from __future__ import annotations

from collections.abc import Callable

from ...core.plan import Note
from ..decisions import Decisions, describe
from .rule import Findings, Sight, runs


def channels_by_3(groups: int, outputs: int, channels: int, *kernel: int) -> str:
    """Why WebGPU computes a convolution wrongly, for a rule's note: it reads channels three at a time where it writes
    four; "" where it does not."""
    found = groups == 1 and max(kernel, default=1) > 1 and outputs % 4 == 0 and channels > 3
    text = f"a kernel larger than 1 over {channels} channels, a multiple of 3 and not of 4"
    return text if found and channels % 3 == 0 and channels % 4 > 0 else ""


def groups_by_4(groups: int, outputs: int, *_: int) -> str:
    """Why WebGPU computes a convolution wrongly, for a rule's note: it writes four outputs at a time, those of the next
    group among them; "" where it does not."""
    each = outputs // groups
    text = f"{groups} groups of {each} outputs each, more than 4 and not a multiple of 4"
    return text if groups > 1 and each > 4 and each % 4 > 0 else ""


def even_groups_into_one(groups: int, channels: int, outputs: int, *_: int) -> str:
    """Why WebGPU computes a ConvTranspose wrongly, for a rule's note: it reads two channels at a time, counted from
    those of the first group; "" where it does not."""
    each = channels // groups
    text = f"{groups} groups of {each} channels each, an even number, into one output each"
    return text if groups > 1 and outputs == 1 and each % 2 == 0 else ""


CONDITIONS: dict[str, Callable[..., str]] = {
    "channels_by_3": channels_by_3,
    "groups_by_4": groups_by_4,
    "even_groups_into_one": even_groups_into_one,
}
"""Conditions by the names that tables of kernels give under `wrong`: called with the groups of a convolution and the
sizes of its weight, and returning why the target computes it wrongly, or ""."""


@runs(
    "fault",
    trigger="a node that the target is known to compute wrongly in every type",
    action="a warning: float32 does not help",
    levels="every",
)
def wrong_kernels(sight: Sight, decided: Decisions) -> Findings:
    """Notes on nodes that the target computes wrongly in every type, by known sizes alone: one that is open is no
    reason to warn."""
    flow, kernels, notes = sight.facts.flow, sight.facts.options.kernels, []
    for op in flow.with_roles(kernels.wrong):
        shape = flow.shape(op.inputs[1]) or ()
        sizes = [size for size in shape if isinstance(size, int) and size > 0]
        for condition in kernels.wrong[op.role] if len(sizes) == len(shape) > 1 else ():
            why = CONDITIONS[condition](flow.attribute(op, "group") or 1, *sizes)
            if why:
                text = f"{kernels.target} computes it wrongly, in float32 too: {why}"
                notes.append(Note("fault", describe(flow, op), text))
    return Findings(notes=notes)
