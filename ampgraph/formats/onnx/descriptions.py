"""What was done to nodes, written where viewers show it: into their metadata, before IR version 10 into the model's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import onnx_ir as ir

from ...core.annotations import NODES, PRECISION, REASON

NODE_METADATA = 10  # the IR version that gave nodes metadata
CAST = "cast: for what reads it in this type"


def describe(model: ir.Model, rows: Iterable[tuple[ir.Node, str, str]], about: Mapping[str, str]) -> None:
    """Writes (node, type, reason) rows, and what is said of the model. Entries that are there stay as they are."""
    if (model.ir_version or 0) >= NODE_METADATA:
        for node, dtype, reason in rows:
            own = node.metadata_props
            if PRECISION not in own and REASON not in own:
                own[PRECISION], own[REASON] = dtype, reason
    elif NODES not in model.metadata_props:
        model.metadata_props[NODES] = _table(rows)
    for key, text in about.items():
        model.metadata_props.setdefault(key, text)


def _table(rows: Iterable[tuple[ir.Node, str, str]]) -> str:
    """{type: {reason: names of nodes, of first outputs where nodes have none}} as JSON."""
    table: dict[str, dict[str, list[str]]] = {}
    for node, dtype, reason in rows:
        name = node.name or next((value.name for value in node.outputs if value.name), "")
        table.setdefault(dtype, {}).setdefault(reason, []).append(name or "")
    return json.dumps(table, ensure_ascii=False, separators=(",", ":"))
