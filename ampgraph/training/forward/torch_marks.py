"""What a torch module says of its gradients, and ONNX has no operator for: detach() and the padding of embeddings.

The exporter leaves an Identity for the one, which any optimizer removes, and nothing of the other but the text of the
traced call. Both become metadata of a node, which the gradient rules read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import onnx_ir as ir

from ..gradients.registry import DETACHED, PADDING

CALL = "pkg.torch.onnx.fx_node"
PADDED = re.compile(r"\baten\.embedding\.default\]\(args = \(%\w+, %\w+, (\d+)")


def mark_padding(graph: ir.Graph) -> None:
    """Tells each Gather of an embedding which row, its ``padding_idx``, gets no gradient from it."""
    for node in graph:
        found = PADDED.search(node.metadata_props.get(CALL, "")) if node.op_type == "Gather" else None
        if found:
            node.metadata_props[PADDING] = found[1]


@contextmanager
def detached_apart(graph: ir.Graph) -> Iterator[None]:
    """Cuts a graph at every detach(), for an optimizer that would remove it, and joins it again by marked nodes."""
    cuts: list[tuple[ir.Node, ir.Value, int]] = []
    places: dict[ir.Value, int] = {}
    for node in [node for node in graph if "aten.detach" in node.metadata_props.get(CALL, "")]:
        x, y = node.inputs[0], node.outputs[0]
        if node.op_type != "Identity" or x is None or y.is_graph_output():
            continue
        after = ir.Value(name=y.name, type=y.type, shape=y.shape)
        y.replace_all_uses_with(after)
        graph.remove(node, safe=True)
        graph.inputs.append(after)
        if x not in places:
            places[x] = len(graph.outputs)
            graph.outputs.append(x)
        cuts.append((node, after, places[x]))
    yield
    ends = list(graph.outputs)
    for node, after, place in cuts:
        graph.inputs.remove(after)
        joined = ir.Node("", "Identity", [ends[place]], num_outputs=1, name=node.name)
        joined.metadata_props[DETACHED] = "1"
        [made] = joined.outputs
        made.name, made.type, made.shape = after.name, after.type, after.shape
        after.replace_all_uses_with(made)
        graph.append(joined)
    if places:
        del graph.outputs[min(places.values()) :]
        graph.sort()
