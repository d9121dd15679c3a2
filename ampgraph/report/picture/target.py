"""What a target's runtime makes of the nodes that are drawn: which run as one, where each runs, which are gone."""

from __future__ import annotations

from collections import Counter

from ...core.json_types import Json, JsonObject
from ..fusions import Fusions
from .drawing import INPUT, OUTPUT, Box, Drawing


def on_target(found: Fusions | None, drawing: Drawing) -> JsonObject | None:
    """What the page says of a target; None where nobody asked.

    ``main``: where most nodes run; ``elsewhere``: provider -> nodes; ``kernels``: [operator, provider, nodes] of those
    that compute several nodes, or one by another operator; ``gone``: nodes that none computes, since they were folded.
    """
    if found is None:
        return None
    if found.after is None:
        return {"title": f"on {found.device}: cannot be told: {found.note}", "kernels": []}
    numbers = {box.makes: number for number, box in enumerate(drawing.nodes) if box.makes}
    runs: dict[int, str] = {}
    kernels: list[Json] = []
    for node in found.nodes:
        members = [numbers[name] for name in node.computes if name in numbers]
        runs |= dict.fromkeys(members, node.provider)
        if len(members) > 1 or [drawing.nodes[number].kind for number in members] not in ([], [node.kind]):
            kernels.append([node.kind, node.provider, [*sorted(members)]])
    counts = Counter(runs.values()).most_common(1)
    main = counts[0][0] if counts else ""
    elsewhere: dict[str, list[Json]] = {}
    for number, provider in sorted(runs.items()):
        if provider != main:
            elsewhere.setdefault(provider, []).append(number)
    places: JsonObject = {}
    places.update(elsewhere)
    return {
        "title": f"on {found.device}, as {found.runtime} {found.how} it; nothing was run",
        "main": main,
        "elsewhere": places,
        "kernels": kernels,
        "gone": [number for number, box in enumerate(drawing.nodes) if _counts(box) and number not in runs],
    }


def _counts(box: Box) -> bool:
    """Whether a node of the picture is one that a runtime would be seen to run."""
    return bool(box.makes) and box.kind not in (INPUT, OUTPUT)
