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
    """In the metadata of a converted file: what is said of its plan, by key.

    ``taken``: keys that it has: what a second conversion says stands under ``ampgraph.2``."""
    head, number = "ampgraph", 1
    while f"{head}.version" in taken:
        number += 1
        head = f"ampgraph.{number}"
    words = {"level": plan.level, "dtype": plan.dtype, "policy": plan.policy, "target": plan.target}
    said = {f"{head}.version": __version__, **{f"{head}.{name}": word for name, word in words.items()}}
    return said | ({f"{head}.fp32": json.dumps(plan.pinned, ensure_ascii=False)} if plan.pinned else {})


def reason_text(why: Why) -> str:
    """A node's reason as files say it: the rule, then why."""
    return f"{why.rule}: {why.text}"


def split_reason(text: str) -> tuple[str, str]:
    """A node's reason in a file as (rule, why)."""
    rule, _, why = text.partition(": ")
    return rule, why


def target_in(metadata: Mapping[str, str]) -> str:
    """In a file's metadata: the target of the last conversion that it tells of; empty where it tells of none."""
    numbers = [int(found[1] or 1) for key in metadata if (found := _TARGET.fullmatch(key))]
    last = max(numbers, default=1)
    return metadata.get(f"ampgraph.{last}.target" if last > 1 else "ampgraph.target", "")


def reasons_in(metadata: Mapping[str, str]) -> dict[str, str]:
    """In a file's metadata: reasons by names of nodes, as a file before IR version 10 says them in a table."""
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
    """In a file's metadata: the patterns of what earlier conversions pinned to float32, if it is a list of texts."""
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
