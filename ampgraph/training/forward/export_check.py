"""Compares an exported graph with its module, forwards and backwards: an exporter may leave something out without a
word. Both run in evaluation mode on the examples; gradients are those of a random weighted sum of all outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from ...core.arrays import Array
from ...core.errors import AmpError, first_line
from ...formats.onnx.data_files import INLINE_LIMIT
from ...runtime.onnxruntime_session import QUIET
from ..gradients.builder import Builder
from ..gradients.driver import depends, differentiate
from .losses import lower_losses
from .random_numbers import is_random
from .read import FLOATS, infer, read_forward

if TYPE_CHECKING:
    import torch

Arrays = dict[str, Array]
TOLERANCE = 1e-3  # of the largest element: float32 kernels differ by far less, a forgotten argument by more
SLOPE = 1e-2  # of the largest gradient
UNCHECKED = "or check=False exports it all the same"


@contextmanager
def in_mode(module: torch.nn.Module, training: bool) -> Iterator[None]:
    """For an export: puts a module into training or evaluation mode; afterwards each part has its own mode again."""
    modes = [(part, part.training) for part in module.modules()]
    module.train(training)
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def check_export(module: torch.nn.Module, args: Sequence[object], model: ir.Model, own: int) -> None:
    """Compares an exported graph with its module: the first ``own`` outputs, and gradients. Raises AmpError AMP214
    where they differ. Nothing is compared of a graph that draws random numbers (beside Dropout) or returns more or less
    than the module, of weights beyond one message, and without ONNX Runtime; no gradients without a rule."""
    weights = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)
    if weights > INLINE_LIMIT or any(is_random(node) for node in model.graph.all_nodes()):
        return
    graph = read_forward(model).graph
    for node in graph.all_nodes():
        if node.op_type == "Dropout":
            node.resize_inputs(1)
    del graph.outputs[own:]
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad and name in graph.initializers}
    wanted, slopes, sums = _run_module(module, args, trained)
    given = [value.detach().cpu().numpy() for value in _tensors(args)]
    if len(given) != len(graph.inputs) or len(wanted) != len(graph.outputs):
        return
    feeds = dict(zip((value.name or "" for value in graph.inputs), given, strict=True))
    found = _run_graph(graph, feeds)
    if found is None:
        return
    for name, here, there in zip(found, found.values(), wanted, strict=True):
        message = _difference(here, there)
        if message:
            hint = f"torch's exporter left something out, or forward() computes something else each time; {UNCHECKED}"
            raise AmpError("AMP214", f"output '{name}' {message} by the module", hint=hint)
    gradients = _graph_gradients(graph, list(trained), feeds, sums)
    if gradients is not None:
        _compare_gradients(gradients, slopes)


def _difference(here: Array, there: Array) -> str:
    """How an output of the exported graph differs from the module's, in words; "" within `TOLERANCE`."""
    if here.shape != there.shape:
        return f"has the shape {list(here.shape)} in the exported graph, and {list(there.shape)}"
    if here.dtype.kind != "f" or not here.size or not np.isfinite(there).all():
        return ""
    away, largest = np.abs(here.astype(np.float64) - there), np.abs(there).max()
    if away.max() <= TOLERANCE * largest:
        return ""
    worst = np.unravel_index(int(away.argmax()), here.shape)
    return f"is {here[worst]:.5g} at {[int(n) for n in worst]} in the exported graph, and {there[worst]:.5g}"


def _compare_gradients(found: Mapping[str, Array], wanted: Mapping[str, Array]) -> None:
    """Raises AmpError AMP214 where a gradient of the exported graph (by parameter; 0 where it is missing) differs from
    the module's by more than `SLOPE`."""
    largest = max((float(np.abs(array).max(initial=0)) for array in wanted.values()), default=0.0)
    if not np.isfinite(largest):
        return
    for name, there in wanted.items():
        here = found.get(name, np.zeros_like(there))
        away = np.abs(here - there)
        if away.size and not away.max() <= SLOPE * largest:
            worst = np.unravel_index(int(away.argmax()), away.shape)
            message = f"is {here[worst]:.5g} at {[int(n) for n in worst]} by the exported graph, and {there[worst]:.5g}"
            hint = "a graph knows of detach(), not of torch.no_grad(), hooks, scale_grad_by_freq or sparse gradients; "
            raise AmpError("AMP214", f"the gradient of '{name}' {message} by the module", hint=hint + UNCHECKED)


def _run_graph(graph: ir.Graph, feeds: Arrays) -> Arrays | None:
    """The outputs of an exported graph by name, computed by ONNX Runtime; None where that is not installed. Raises
    AmpError AMP214 where it refuses the graph."""
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = QUIET
    content = ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString()
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        found = session.run(None, feeds)
    except Exception as error:  # onnxruntime raises kinds of its own for every fault
        message = f"ONNX Runtime refuses the exported graph: {first_line(error)}"
        raise AmpError("AMP214", message, hint=f"write the module in other operators, {UNCHECKED}") from error
    return {value.name or "": np.asarray(array) for value, array in zip(graph.outputs, found, strict=True)}


def _graph_gradients(graph: ir.Graph, trained: Sequence[str], feeds: Arrays, sums: Sequence[Array]) -> Arrays | None:
    """The gradients of an exported graph by parameter, of the sum of its outputs times ``sums``; parameters without
    influence are missing. None where an operator has no gradient rule, and without ONNX Runtime."""
    try:
        lower_losses(graph)
        b, parts = Builder(graph, "check"), []
        for value, factor in zip(graph.outputs, sums, strict=True):
            if value.dtype in FLOATS:
                parts.append(b.op("ReduceSum", b.op("Mul", value, b.constant(factor)), keepdims=0))
        loss = b.op("Sum", *parts)
        loss.type, loss.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([])
        model = ir.Model(graph, ir_version=10)
        infer(model)
        reached = depends(graph, loss)
        values = [graph.initializers[name] for name in trained if graph.initializers[name] in reached]
        found = differentiate(graph, loss, values)
    except AmpError as error:
        if error.code in ("AMP210", "AMP212"):  # build-step says so
            return None
        raise
    del graph.outputs[:]
    for value, gradient in zip(values, found, strict=True):
        end = b.copy(b.typed(gradient, value))
        end.name = f"gradient of {value.name}"
        graph.outputs.append(end)
    run = _run_graph(graph, feeds)
    return None if run is None else dict(zip((value.name or "" for value in values), run.values(), strict=True))


def _run_module(
    module: torch.nn.Module, args: Sequence[object], trained: Mapping[str, torch.nn.Parameter]
) -> tuple[list[Any], Arrays, list[Any]]:
    """For an export's check: a module's outputs, its gradients by parameter (0 for one without influence), and the
    random factors of the outputs in the sum that these are the gradients of. The module's buffers are put back."""
    import torch

    held = ((part, name, b) for part in module.modules() for name, b in part._buffers.items() if b is not None)
    kept = [(part, name, buffer, buffer.clone()) for part, name, buffer in held]
    random = np.random.default_rng(0)
    try:
        with in_mode(module, training=False), torch.enable_grad():
            outputs = _tensors(module(*args))
            sums = [np.asarray(random.standard_normal(value.shape), np.float32) for value in outputs]
            pairs = [(v, torch.from_numpy(f)) for v, f in zip(outputs, sums, strict=True) if v.requires_grad]
            total = sum(((v * f).sum() for v, f in pairs), torch.zeros(()))
            names = list(trained)
            found: Sequence[Any] = [None] * len(names)
            if total.requires_grad and names:
                found = torch.autograd.grad(total, [trained[name] for name in names], allow_unused=True)
    finally:
        for part, name, buffer, numbers in kept:  # evaluation may move them too
            buffer.copy_(numbers)
            part._buffers[name] = buffer
    slopes = {
        name: np.zeros(tuple(trained[name].shape), np.float32) if slope is None else slope.cpu().numpy()
        for name, slope in zip(names, found, strict=True)
    }
    return [value.detach().cpu().numpy() for value in outputs], slopes, sums


def _tensors(tree: object) -> list[torch.Tensor]:
    """For an export's check: the tensors in nested arguments or results of a torch module, in order."""
    import torch

    return [leaf for leaf in torch.utils._pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
