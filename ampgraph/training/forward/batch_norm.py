"""BatchNormalization as it trains: by the mean and the variance of the batch, with running statistics updated.

ONNX Runtime's CUDA kernel refuses training_mode, and exporters drop the mode. So every BatchNormalization is given the
statistics of its own data as its mean and variance, and stays a node of inference; a mark on it tells the gradient rule
that these depend on the data.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import onnx_ir as ir

from ...core.dataflow import HELD
from ...core.errors import AmpError
from ...core.plan import Note
from ...formats.onnx.nodes import attribute, operand, place_of
from ...formats.onnx.origins import CLASSES
from ..gradients.builder import Builder
from ..gradients.rules.norms import BATCH, KEEP
from .read import STACK, signature

FUSED = "pkg.onnxscript.rewriter.rule_name"  # metadata: by which rule torch's exporter fused others into a node
FLOAT = ir.DataType.FLOAT
SYNCHRONISED = "SyncBatchNorm"  # torch's class, which its exporter writes as a plain BatchNormalization


@dataclass(frozen=True)
class Average:
    """A running statistic of a BatchNormalization (``old``), and the statistic of the batch that it moves towards."""

    old: ir.Value
    batch: ir.Value
    rate: float

    def next(self, b: Builder, start: ir.Value) -> ir.Value:
        """Adds a running statistic's next value, from the present one: start + (batch - start) rate."""
        return b.op("Add", start, b.op("Mul", b.op("Sub", self.batch, start), b.number(self.rate)))


def lost_for_inference(model: ir.Model) -> tuple[Note, ...]:
    """Before a training step is built: a note on a model that torch exported for inference, where BatchNormalization is
    folded into convolutions and Dropout left out; none for any other. It shows in weights with numbers for names (older
    exporter), or in metadata (newer one)."""
    if model.producer_name != "pytorch" or any(node.op_type == "Dropout" for node in model.graph):
        return ()
    found = [
        node.name or node.outputs[0].name or ""
        for node in model.graph
        if "BatchNorm" in node.metadata_props.get(FUSED, "")
        or any((value.name or "").startswith("onnx::Conv") for value in node.inputs[1:2] if value is not None)
    ]
    if found:
        text = (
            f"BatchNormalization is folded into convolutions ({len(found)}), as exports for inference have it, and "
            "Dropout is gone: another network is trained than the module; ampgraph.export_for_training keeps both"
        )
        return (Note("export", found[0], text),)
    if signature(model) and not any(STACK in node.metadata_props for node in model.graph):
        return ()
    text = "exported for inference: Dropout is gone, if the module has any; ampgraph.export_for_training keeps it"
    return (Note("export", "", text),)


def lower_batch_norm(graph: ir.Graph, *, exported_mode: bool = False, frozen: Collection[str] = ()) -> list[Average]:
    """Rewrites every BatchNormalization of a flat graph.

    Args:
        exported_mode: those that were exported for inference stay: a backward that is there is made for that.
        frozen: names of running means and variances that stay as they are, and their nodes in the form of inference;
            but with ``exported_mode`` those that were exported for training.

    Returns:
        how each running mean and variance moves: as in torch, whose momentum is one minus ONNX's, with the variance
        over n - 1. What several nodes share is moved by one after the other, and is there for each. Statistics that the
        graph computes itself are no state.

    Raises:
        AmpError: AMP212 if the rank of the data is not known.
    """
    b = Builder(graph, "train")
    running: list[Average] = []
    for node in b.in_front_of_each(lambda node: is_trained(node, exported_mode)):
        stored = [initializer_of(value) for value in node.inputs[3:5]]
        still = any(value.name in frozen for value in stored if value is not None)
        with b.float32(KEEP):
            if still and not exported_mode:
                _set_inference(node)
            elif attribute(node, "training_mode", 0) or all(value is not None for value in stored):
                _use_batch_statistics(b, node, running)
            else:
                _write_in_simple_operators(b, node)
    return [one for one in running if one.old.is_initializer() and one.old.name not in frozen]


def is_trained(node: ir.Node, exported_mode: bool) -> bool:
    """Whether a node is a BatchNormalization that trains: any; with ``exported_mode`` one exported for training."""
    norm = node.op_type == "BatchNormalization" and node.domain in ("", "ai.onnx")
    return norm and (not exported_mode or bool(attribute(node, "training_mode", 0)))


def initializer_of(value: ir.Value | None) -> ir.Value | None:
    """Forward graph: the initializer that a value is, also behind Identities; None for one that is computed."""
    while value is not None and (maker := value.producer()) is not None and maker.op_type == "Identity":
        value = maker.inputs[0]
    return value if value is not None and value.is_initializer() else None


def _set_inference(node: ir.Node) -> None:
    """Makes a BatchNormalization one of inference: readers of its running outputs read the statistics it is given."""
    for old, value in zip(node.outputs[1:], node.inputs[3:5], strict=False):
        assert value is not None
        old.replace_all_uses_with(value, replace_graph_outputs=True)
    node.resize_outputs(1)
    node.attributes.pop("training_mode", None)


def _write_in_simple_operators(b: Builder, node: ir.Node) -> None:
    """Writes a BatchNormalization of inference whose statistics the graph computes in simple operators, so that these
    get gradients. Raises AmpError AMP212 as `_known_rank`."""
    x, scale, bias, mean, variance = (operand(node, n) for n in range(5))
    rank = _known_rank(b, node, x)

    def along(value: ir.Value) -> ir.Value:
        axes = range(1, rank - 1)
        if not axes:
            return value
        dims = [] if value.shape is None else [*value.shape, *[1] * len(axes)]
        return b.typed(b.op("Unsqueeze", value, b.ints(*axes)), value.dtype or FLOAT, *dims)

    epsilon = b.number(float(attribute(node, "epsilon", 1e-5)), variance)
    root = b.typed(b.op("Sqrt", b.typed(b.op("Add", variance, epsilon), variance)), variance)
    factor = b.typed(b.op("Div", scale, root), scale)
    centered = b.typed(b.op("Sub", x, along(mean)), x)
    scaled = b.typed(b.op("Mul", centered, along(factor)), x)
    b.replace(node.outputs[0], b.typed(b.op("Add", scaled, along(bias)), x))
    b.graph.remove(node, safe=True)


def _known_rank(b: Builder, node: ir.Node, x: ir.Value) -> int:
    """The rank of a BatchNormalization's data. Raises AmpError AMP212 where it is not known."""
    if x.shape is None:
        message, hint = f"the rank of '{x.name}' is not known", "give the input shapes when you export it"
        raise AmpError("AMP212", message, where=place_of(node), hint=hint)
    return b.rank(x)


def _use_batch_statistics(b: Builder, node: ir.Node, running: list[Average]) -> None:
    """Gives a BatchNormalization the mean and variance of its batch in the place of its statistics, and adds to
    ``running`` how the running ones move (the variance over n - 1, as in torch)."""
    x, _scale, _bias, *given = node.inputs
    old_mean, old_variance = (initializer_of(value) or value for value in given)
    assert x is not None and old_mean is not None and old_variance is not None
    axes = [0, *range(2, _known_rank(b, node, x))]
    x = b.cast(x, FLOAT) if x.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) else x
    count = b.typed(b.count(x, axes), FLOAT)
    mean = b.typed(b.op("Div", b.sum(x, axes, keep=False), count), old_mean)
    along = b.op("Unsqueeze", mean, b.ints(*axes)) if len(axes) > 1 else mean
    centered = b.op("Sub", x, along)
    squares = b.sum(b.op("Mul", centered, centered), axes, keep=False)
    variance = b.typed(b.op("Div", squares, count), old_variance)
    others = b.op("Max", b.op("Sub", count, b.number(1)), b.number(1))
    momentum = float(attribute(node, "momentum", 0.9))
    for place, (old, batch) in enumerate(((old_mean, mean), (old_variance, b.op("Div", squares, others))), 1):
        running.append(Average(old, batch, 1 - momentum))
        read = node.outputs[place] if len(node.outputs) > place else None
        if read is not None and (read.uses() or read.is_graph_output()):
            new = old
            for one in running:
                new = b.typed(one.next(b, new), old) if one.old is old else new
            read.replace_all_uses_with(new, replace_graph_outputs=True)
    node.resize_outputs(1)
    node.replace_input_with(3, mean)
    node.replace_input_with(4, variance)
    node.attributes.pop("training_mode", None)
    node.meta[BATCH] = True
    node.meta[HELD] = KEEP


def refuse_synchronised(graph: ir.Graph, frozen: Collection[str] = ()) -> None:
    """Raises AmpError AMP214 for an nn.SyncBatchNorm that trains, where the exporter says that it is one. ``frozen``:
    names of running statistics that stay as they are."""
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
