"""Norms whose statistics are those of all processes, which no graph of one process can take."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from ...core.errors import AmpError
from ...formats.onnx.origins import CLASSES
from .lowerings.batch_norm import initializer_of, is_trained

SYNCHRONISED = "SyncBatchNorm"  # torch's class, which its exporter writes as a plain BatchNormalization


def refuse_synchronised(graph: ir.Graph, frozen: Collection[str] = ()) -> None:
    """Raises AmpError AMP214 for a norm that torch would synchronise, where it trains and the exporter says so.

    ``frozen``: names of running statistics that stay as they are.
    """
    for node in graph:
        if is_trained(node, exported_mode=False) and SYNCHRONISED in node.metadata_props.get(CLASSES, ""):
            stored = [initializer_of(value) for value in node.inputs[3:5]]
            if any(value is not None and value.name in frozen for value in stored):
                continue
            name = next((value.name or "" for value in stored if value is not None), node.name or "")
            message = "is an nn.SyncBatchNorm, and a graph has the statistics of its own process alone"
            hint = (
                "export it before convert_sync_batchnorm, with nn.BatchNorm: each process normalises its share of the "
                "batch, and the running statistics are averaged"
            )
            raise AmpError("AMP214", message, where=name.rpartition(".")[0] or name, hint=hint)
