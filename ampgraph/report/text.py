"""Reports as plain text, a list of lines each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..core.dataflow import FLOAT32
from ..oplists.rows import ListRow
from ..planner.policies.registry import policy
from .casts import CastReport
from .fusions import Fusions
from .inspect import OTHER, PRECISIONS, Changes, Inspection, Layer
from .lines import in_rows, plural, rewrite_line
from .summary import ORDINARY, Held, Summary

EXAMPLES = 3
CASTS_SHOWN = 40  # more come in groups; --json lists each


def _share(part: int, whole: int) -> str:
    return f" ({100 * part / whole:.1f} %)" if whole else ""


def _in_words(rule: str, chosen: str) -> str:
    """Why nodes have their type, by the rule that decided."""
    if rule == chosen:
        return f"by {policy(chosen).framework}'s rules"
    return ORDINARY.get(rule, f"held by guard {rule}")


# -- convert ----------------------------------------------------------------------------------------------------------


def summary_lines(summary: Summary) -> list[str]:
    """The report of `convert`."""
    rows = [
        ("model", summary.model),
        ("result", summary.output or _unwritten(summary)),
        ("options", f"level {summary.level}, {summary.dtype}, policy {summary.policy}, target {summary.target}"),
    ]
    if not summary.changed:
        rows.append(("", f"nothing to lower{_why_nothing(summary)}: the result is the model as it is"))
    rows += _node_rows(summary) + _heavy_rows(summary)
    added = summary.casts_after - summary.casts_before
    rows.append(("casts", f"{summary.casts_before:,} -> {summary.casts_after:,} ({added:+,})"))
    rows.append(
        (
            "weights",
            f"{summary.bytes_before:,} -> {summary.bytes_after:,} bytes"
            + _share(summary.bytes_after, summary.bytes_before),
        )
    )
    for what, count in summary.rewrites.items():
        rows.append(("rewrites", rewrite_line(what, count)))
    rows += _range_rows(summary)
    rows += _held_rows("guards", summary.guards, no_guard(summary))
    rows += _held_rows("opset", summary.opset) + _held_rows("unlisted", summary.unlisted)
    rows += _note_rows(summary)
    if summary.check is not None:
        rows.append(("check", str(summary.check)))
    return in_rows(rows)


def _unwritten(summary: Summary) -> str:
    return "not written (dry run)" if summary.check is None else "not written (--check require)"


def no_guard(summary: Summary) -> str:
    """What is said where no guard fired: it is no promise as long as nobody looked at values."""
    if not policy(summary.policy).ours:
        return "none: the policy is its framework's"
    if not summary.changed:
        return "none needed: nothing was lowered"
    if any(note["topic"] == "samples" for note in summary.notes):
        return "none fired beside what was measured"
    return "none fired; ranges were not measured"


def _why_nothing(summary: Summary) -> str:
    """Why nothing is lowered, where no node of float32 is there to give a reason of its own."""
    if summary.nodes:
        return ""
    if not summary.floats:
        return ", as no node makes floating numbers"
    kinds = " and ".join(f"{plural(count, 'node')} of {dtype}" for dtype, count in summary.floats.items())
    hint = "; export the model in float32" if "float64" in summary.floats else ""
    return f", as only float32 is ({kinds}{hint})"


def _node_rows(summary: Summary) -> list[tuple[str, str]]:
    low, high = summary.nodes.get(summary.dtype, 0), summary.nodes.get(FLOAT32, 0)
    rows = [("nodes", f"{low:,} {summary.dtype}, {high:,} float32, {summary.other:,} without float32 data")]
    for dtype, rules in summary.reasons.items():
        message = ", ".join(f"{count:,} {_in_words(rule, summary.policy)}" for rule, count in rules.items())
        rows.append(("", f"{dtype}: {message}"))
    return rows


def _heavy_rows(summary: Summary) -> list[tuple[str, str]]:
    heavy = summary.heavy
    total = heavy.low + heavy.float32 + heavy.given
    given = f", {heavy.given:,} of them low in the file already" if heavy.given else ""
    rows = [("heavy", f"{heavy.low + heavy.given:,} of {total:,} low{given}")]
    return rows + [("", _held(held)) for held in heavy.held]


def _held_rows(title: str, held: Sequence[Held], none: str = "") -> list[tuple[str, str]]:
    if not held:
        return [(title, none)] if none else []
    message = [_held(item) for item in held]
    return list(zip([title] + [""] * (len(message) - 1), message, strict=True))


def _held(held: Held) -> str:
    more = " ..." if held.count > 1 else ""
    return f"{held.count:,} {held.kind} float32 ({held.first}{more}): {held.text}"


def _range_rows(summary: Summary) -> list[tuple[str, str]]:
    """What was measured on which samples: the values that pass the limit, and how many nodes are float32 for it."""
    samples = [note["text"] for note in summary.notes if note["topic"] == "samples"]
    if not samples:
        return []
    passing = [note["text"] for note in summary.notes if note["topic"] == "range"]
    nodes = plural(summary.reasons.get(FLOAT32, {}).get("range", 0), "node")
    message = (
        f"{plural(len(passing), 'value')} out of range, {nodes} float32 for it" if passing else "all values in range"
    )
    shown = [f"and {len(passing) - EXAMPLES:,} more"] if len(passing) > EXAMPLES else []
    return [("ranges", message), *(("", text) for text in [*passing[:EXAMPLES], *shown, *samples])]


def _note_rows(summary: Summary) -> list[tuple[str, str]]:
    """Notes by topic; what the rows above said already is left out."""
    topics: dict[str, list[str]] = {}
    for note in summary.notes:
        if not (note["topic"] == "unlisted" and summary.unlisted) and note["topic"] not in ("samples", "range"):
            where = f"{note['where']}: " if note["where"] else ""
            topics.setdefault(note["topic"], []).append(f"{where}{note['text']}")
    rows = []
    for topic, message in topics.items():
        rows += list(zip([topic, *[""] * EXAMPLES], message[:EXAMPLES], strict=False))
        if len(message) > EXAMPLES:
            rows.append(("", f"and {len(message) - EXAMPLES:,} more"))
    return rows


# -- inspect ----------------------------------------------------------------------------------------------------------


def inspection_lines(found: Inspection) -> list[str]:
    """The report of `inspect`."""
    size = f"{plural(found.file_nodes, 'node')}, {found.version}, {found.weight_bytes:,} bytes of weights"
    lines = [f"{found.model}: {size}", "", f"{'':12}{'nodes':>9}{'heavy':>9}{'weights':>9}{'bytes':>17}"]
    names = [n for n in (*PRECISIONS, OTHER) if found.nodes.get(n) or found.weights.get(n)]
    names += [n for n in found.weights if n not in names]
    for name in names:
        stored = found.weights.get(name)
        lines.append(
            f"{name:12}{found.nodes.get(name, 0):>9,}{found.heavy.get(name, 0):>9,}"
            f"{stored.count if stored else 0:>9,}{stored.bytes if stored else 0:>17,}"
        )
    if found.unknown:
        lines.append(f"no schema known for: {', '.join(found.unknown)}")
    lines += ["", *_cast_lines(found.casts), "", "layers", *_layer_lines(found.layers)]
    if found.difference:
        lines += ["", *_difference_lines(found.difference)]
    return lines + (["", *_fusion_lines(found.fusions)] if found.fusions else [])


def _cast_lines(casts: Sequence[CastReport]) -> list[str]:
    if len(casts) <= CASTS_SHOWN:
        return [f"casts: {len(casts)}"] + [f"  {c.source} -> {c.target}  {c.reason}" for c in casts]
    groups: dict[tuple[str, str, str], list[CastReport]] = {}
    for cast in casts:
        groups.setdefault((cast.source, cast.target, cast.sort), []).append(cast)
    lines = [f"casts: {len(casts):,}, in groups (--json lists each)"]
    for (source, target, sort), members in sorted(groups.items(), key=lambda item: -len(item[1])):
        lines.append(f"  {source} -> {target}  {sort}: {len(members):,}")
        lines += [f"    {member.reason}" for member in members[:EXAMPLES]]
    return lines


def _counts(nodes: Counter[str] | dict[str, int]) -> str:
    return ", ".join(f"{nodes[name]:,} {name}" for name in (*PRECISIONS, OTHER) if nodes.get(name))


def _layer_lines(layers: Layer) -> list[str]:
    """The tree; numbered neighbours that are alike share a line."""
    rows = [("  (all)", _counts(layers.nodes)), *_layer_rows(layers, 1)]
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {counts}" for name, counts in rows]


def _layer_rows(layer: Layer, depth: int) -> list[tuple[str, str]]:
    rows = []
    for name, child in _alike(list(layer.children.values())):
        rows.append(("  " * depth + name, _counts(child.nodes) + ("" if name == child.name else " each")))
        rows += _layer_rows(child, depth + 1)
    return rows


def _alike(children: list[Layer]) -> list[tuple[str, Layer]]:
    groups: list[list[Layer]] = []
    for child in children:
        last = groups[-1][-1] if groups else None
        if (
            last
            and last.name.isdigit()
            and child.name.isdigit()
            and int(child.name) == int(last.name) + 1
            and _shape(last) == _shape(child)
        ):
            groups[-1].append(child)
        else:
            groups.append([child])
    return [(g[0].name if len(g) == 1 else f"{g[0].name}-{g[-1].name}", g[0]) for g in groups]


def _shape(layer: Layer) -> object:
    return dict(layer.nodes), [(name, _shape(child)) for name, child in layer.children.items()]


def _difference_lines(found: Changes) -> list[str]:
    size = f"{found.nodes:+,} nodes, {found.casts:+,} casts, {found.bytes:+,} bytes of weights"
    lines = [f"against {found.original}: {size}"]
    for (kind, before, now), names in found.changed.items():
        lines.append(f"  {len(names):>6,} {kind}: {before} -> {now}")
    for what, counts in (("only in the original", found.gone), ("only here", found.new)):
        if counts:
            lines.append(f"  {what}: " + ", ".join(f"{count:,} {kind}" for kind, count in counts.items()))
    return lines if len(lines) > 1 else [*lines, "  no node changed its precision"]


def _fusion_lines(found: Fusions) -> list[str]:
    name = found.device
    sides = [side for side in (found.before, found.after) if side]
    if not sides:
        return [f"fused operators and placement on {name}: cannot be told: {found.note}"]
    alone = ", the original alone" if not found.after else ""
    lines = [f"on {name}, as {found.runtime} {found.how} it{alone}; nothing was run"]
    for title, kind in dict.fromkeys(key for side in sides for key in side.rows()):
        shown = " -> ".join(str(side.rows().get((title, kind), 0)) for side in sides)
        lines.append(f"  {title:<8}{kind}{': ' if kind else ''}{shown}")
    return lines + ([f"  {found.note}"] if found.note else [])


# -- explain and lists ------------------------------------------------------------------------------------------------


def list_lines(rows: Sequence[ListRow], level: str) -> list[str]:
    """The report of `lists`: a table, or one operator in full."""
    if len(rows) == 1:
        return _one_operator(rows[0], level)
    table = [("operator", "class", f"at {level}", "source", "reason")]
    table += [(row.title, row.cls or "-", row.at_level, row.source or "-", row.reason) for row in rows]
    widths = [max(len(line[column]) for line in table) for column in range(4)]
    return ["  ".join([*(f"{line[i]:<{widths[i]}}" for i in range(4)), line[4]]) for line in table]


def _one_operator(row: ListRow, level: str) -> list[str]:
    unlisted = "no rule of its own" if row.sort else "in no list"
    said = [(row.sort or "operator", row.operator), ("class", row.cls or unlisted), (f"at {level}", row.at_level)]
    if row.asked:
        said.insert(0, ("asked", f"{row.asked} of MindSpore, which the lists call {row.operator}"))
    if row.cls or row.sort:
        said.append(("reason", row.reason))
    if row.source:
        said.append(("source", row.source))
    if row.rule:
        said.append(("rule", row.rule))
    said += [(f"on {target}", f"left to the cut: {reason}") for target, reason in row.inside.items()]
    said += [("float32", f"{slot}: {reason}") for slot, reason in row.float32_slots.items()]
    said += [("one type", ", ".join(group)) for group in row.tied]
    return in_rows(said)
