"""What a converted file says of itself: the keys of its metadata, and what is read from them again."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping

from .plan import Plan, Why
from .version import __version__

PRECISION, REASON, NODES = "ampgraph.precision", "ampgraph.reason", "ampgraph.nodes"
_PINNED = re.compile(r"ampgraph(\.\d+)?\.fp32")
_TARGET = re.compile(r"ampgraph(?:\.(\d+))?\.target")


def conversion_metadata(plan: Plan, taken: Collection[str]) -> dict[str, str]:
    """For the metadata of a converted file: key -> text on its plan; keys begin with ``ampgraph.``, a second time
    ``ampgraph.2.``.

    ``taken``: the keys that the file has already."""
    head, number = "ampgraph", 1
    while f"{head}.version" in taken:
        number += 1
        head = f"ampgraph.{number}"
    words = {"version": __version__, "level": plan.level, "dtype": plan.dtype, "policy": plan.policy}
    words["target"] = plan.target
    if plan.pinned:
        words["fp32"] = json.dumps(plan.pinned, ensure_ascii=False)
    return {f"{head}.{name}": word for name, word in words.items()}


def reason_text(why: Why) -> str:
    """A node's reason as the metadata of files has it: ``RULE: TEXT``."""
    return f"{why.rule}: {why.text}"


def split_reason(text: str) -> tuple[str, str]:
    """A node's reason in the metadata of a file as (rule, text); ("", "") for an empty one."""
    rule, _, why = text.partition(": ")
    return rule, why


def target_in(metadata: Mapping[str, str]) -> str:
    """From a file's metadata: the target of the last conversion that it tells of; "" where it tells of none."""
    matches = [match for match in map(_TARGET.fullmatch, metadata) if match]
    last = max(matches, key=lambda match: int(match[1] or 1), default=None)
    return "" if last is None else metadata[last[0]]


def reasons_in(metadata: Mapping[str, str]) -> dict[str, str]:
    """From a file's metadata: name of a node -> its reason, by the table of files before IR version 10."""
    try:
        table = json.loads(metadata.get(NODES, "{}"))
    except (ValueError, RecursionError):
        return {}
    found: dict[str, str] = {}
    for reasons in table.values() if isinstance(table, dict) else ():
        for reason, names in reasons.items() if isinstance(reasons, dict) else ():
            found |= {name: reason for name in names if isinstance(name, str)} if isinstance(names, list) else {}
    return found


def pinned_in(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """From a file's metadata: the patterns (--fp32) that earlier conversions pinned to float32."""
    found: list[str] = []
    for key, text in metadata.items():
        if _PINNED.fullmatch(key):
            try:
                patterns = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(patterns, list):
                found += [pattern for pattern in patterns if isinstance(pattern, str)]
    return tuple(dict.fromkeys(found))
