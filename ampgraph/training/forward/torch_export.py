"""Exports a torch module as a forward graph that trains.

torch's exporter is made for inference, and its optimizer merges parameters that start out equal (all LayerNorm weights
become one), folds BatchNormalization into Conv, and keeps one name of tied weights while it lists both. It does so
without a word, and each of it breaks a training. Here the graph is exported as it is, and optimized with every
parameter and running statistic as an input, which nothing can merge or fold.
"""

from __future__ import annotations

import io
import logging
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from ...core.arguments import check_annotated
from ...core.errors import AmpError, first_line
from ...core.installing import pip_install
from ...core.light_imports import stand_in
from ...formats.onnx.graph import OnnxGraph
from ..gradients.builder import Builder
from ..gradients.registry import DETACHED, PADDING
from .batch_norm import refuse_synchronised
from .export_check import check_export, in_mode
from .parameters import parameter_names, store_buffers
from .read import SIGNATURE, STACK

if TYPE_CHECKING:
    import torch
else:  # imported when somebody asks for the types of what names it
    torch = stand_in("torch")

CALL = "pkg.torch.onnx.fx_node"  # metadata of a node: the call in torch's graph that it was made from
PADDED = re.compile(r"\baten\.embedding\.default\]\(args = \(%\w+, %\w+, (\d+)")  # in `CALL`: its padding_idx
PARAMETER_LINE = re.compile(r"^.*\bPARAMETER target='([^']*)'.*\n?", re.MULTILINE)  # of the metadata `SIGNATURE`


@dataclass(frozen=True)
class ExportedForward:
    """A torch module's forward graph in a file; ``str`` is the path, ``parameters`` are those that train."""

    path: str
    inputs: list[str]
    outputs: list[str]
    parameters: list[str]

    def __fspath__(self) -> str:
        return self.path

    def __str__(self) -> str:
        return self.path


def export_for_training(
    module: torch.nn.Module,
    args: Sequence[object],
    path: str | os.PathLike[str],
    *,
    dynamic_batch: bool = True,
    check: bool = True,
    unroll: bool = False,
) -> ExportedForward:
    """Writes a torch module as ``path``, a forward graph for `ampgraph.build_training_step`.

    The graph keeps the names of the parameters. Dropout is exported as it trains; BatchNormalization trains by the
    statistics of its batch, and its running statistics become state of the step. Parameters with ``requires_grad``
    false are weights like any other and are not trained. Tied weights are one parameter, under the first of its names.
    `Trainer.export_weights` and ``ampgraph export-weights`` write the model of inference again, trained. What
    is detached gets no gradient, and the padding row of an embedding gets none from it.

    Args:
        module: a torch.nn.Module in float32. Its own training mode is put back afterwards.
        args: example arguments; the inputs of the graph are called as those of ``forward``.
        path: where the graph goes, whole or not at all.
        dynamic_batch: the first axis of every tensor in ``args`` may have any size; examples need two rows or more.
        check: run graph and module on the examples, both in evaluation mode, and refuse an export whose outputs or
            gradients differ: torch.no_grad(), hooks and some arguments are not part of a graph.
        unroll: LSTM and GRU as so many steps as the examples have, each in operators of its own, in place of the one
            operator of ONNX.

    Returns what was written: the path, names of inputs, outputs and trained parameters.

    Raises:
        AmpError: AMP105 where the file cannot be written, AMP214 for a module that torch cannot export, that is not
            float32, or of which the exporter leaves something out, or SyncBatchNorm, AMP501 without
            torch or onnxscript.
    """
    check_annotated(export_for_training, locals())
    torch = _torch()
    parameters = dict(module.named_parameters(remove_duplicate=False))
    _refuse_modules(torch, module, parameters)
    model = _exported(torch, module, args, dynamic_batch, unroll)
    refuse_synchronised(model.graph)
    _untie(model.graph, parameters)
    _mark_dropout_and_padding(model.graph)
    own = len(model.graph.outputs)  # `store_buffers` adds others behind them
    _optimize(model, {*parameters, *store_buffers(module, model)})
    _list_trained(model, parameters)
    for node in model.graph.all_nodes():
        node.metadata_props.pop(STACK, None)
    if check:
        check_export(module, args, model, own)
    OnnxGraph(model).save(path)
    sides = (model.graph.inputs, model.graph.outputs[:own])
    inputs, outputs = ([value.name or "" for value in values] for values in sides)
    return ExportedForward(os.fspath(path), inputs, outputs, parameter_names(model))


def _exported(
    torch: ModuleType, module: torch.nn.Module, args: Sequence[object], dynamic_batch: bool, unroll: bool
) -> ir.Model:
    """Of an export for training: the model that torch's exporter makes of a module in training mode, not optimised; of
    one that takes gradients inside of its forward, with these written out. Arguments as `export_for_training`. Raises
    AmpError AMP214 where torch cannot export it."""
    shapes = _batch_shapes(torch, args) if dynamic_batch else None
    with in_mode(module, training=True), exportable_torch(torch), quiet_logs(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of an export in training mode, which is meant
        try:
            try:
                return _program(torch, module, args, shapes, unroll)
            except Exception as error:
                if not takes_gradients(error) or any(True for _ in module.buffers()):
                    raise
                return _with_inner_gradients(torch, module, args, shapes, unroll)
        except Exception as error:  # torch.export raises many kinds
            message = f"torch cannot export the module: {first_line(_causes(error)[-1])}"
            raise AmpError("AMP214", message, hint=what_to_change(error, dynamic_batch)) from error


def _program(
    torch: ModuleType, module: torch.nn.Module, args: Sequence[object], shapes: tuple[Any, ...] | None, unroll: bool
) -> ir.Model:
    """Of an export for training: the model that torch's exporter writes of a module as it is, not optimised.
    ``shapes``: torch.export's ``dynamic_shapes``, None for the sizes of the examples. Raises whatever torch does."""
    from .decompositions import decomposed

    # Without no_grad torch 2.13 traces one kind of attention and decomposes another where a bias needs a gradient: T5
    with torch.no_grad():
        traced = torch.export.export(module, tuple(args), dynamic_shapes=shapes, strict=False)
        program = torch.onnx.export(decomposed(traced, unroll), dynamo=True, optimize=False, verbose=False)
    model: ir.Model = program.model
    return model


def _with_inner_gradients(
    torch: ModuleType, module: torch.nn.Module, args: Sequence[object], shapes: tuple[Any, ...] | None, unroll: bool
) -> ir.Model:
    """Of an export for training: `_program` of a module that takes gradients inside of its forward, with these written
    out first. That loses the names of forward's arguments, so the inputs are given them again. They keep torch's names
    where an argument is no single tensor, or another value of the graph has such a name."""
    from .decompositions import input_names, with_gradients_written

    of_args = None if shapes is None else (shapes,)  # the written module takes all arguments as one, *args
    model = _program(torch, with_gradients_written(module, args), args, of_args, unroll)
    names, results = input_names(module), {value.name for node in model.graph for value in node.outputs}
    if len(names) == len(model.graph.inputs) and results.isdisjoint(names):
        for value, name in zip(model.graph.inputs, names, strict=True):
            value.name = name
    return model


def _torch() -> ModuleType:
    """Imports torch for an export. Raises AmpError AMP501 where it, or onnxscript's optimizer, is not installed."""
    try:
        import onnxscript.optimizer  # noqa: F401
        import torch
    except ImportError as error:
        raise AmpError("AMP501", f"{error.name} is not installed", hint=pip_install("torch")) from error
    module: ModuleType = torch
    return module


def _refuse_modules(torch: ModuleType, module: torch.nn.Module, parameters: Mapping[str, torch.nn.Parameter]) -> None:
    """Before an export for training: raises AmpError AMP214 for a floating-point parameter that is not float32, and for
    torch.nn.utils.spectral_norm, which works by hooks; its successor in parametrizations is exported."""
    for name, parameter in parameters.items():
        if parameter.is_floating_point() and parameter.dtype != torch.float32:
            message = f"parameter '{name}' is {str(parameter.dtype).removeprefix('torch.')}"
            raise AmpError("AMP214", message, hint="module.float(): the level decides what is low")
    for name, part in module.named_modules():
        if any(type(hook).__name__ == "SpectralNorm" for hook in part._forward_pre_hooks.values()):
            message = f"'{name}' has torch.nn.utils.spectral_norm, whose hooks a graph cannot hold"
            raise AmpError("AMP214", message, hint="torch.nn.utils.parametrizations.spectral_norm is exported")


def _batch_shapes(torch: ModuleType, args: Sequence[Any]) -> tuple[Any, ...]:
    """Of an export for training: torch.export's ``dynamic_shapes``, by which the first axes of all tensors are one open
    batch. Raises AmpError AMP214 for an example of fewer than two rows."""
    batch, shapes = torch.export.Dim("batch"), []
    for number, value in enumerate(args):
        is_tensor = isinstance(value, torch.Tensor) and value.dim() > 0
        if is_tensor and value.shape[0] < 2:
            message = f"argument {number} has a batch of {value.shape[0]}, which torch.export would make a constant"
            raise AmpError("AMP214", message, hint="give examples of two rows or more, or dynamic_batch=False")
        shapes.append({0: batch} if is_tensor else None)
    return tuple(shapes)


def _first_names(parameters: Mapping[str, torch.nn.Parameter]) -> dict[str, str]:
    """Of an export for training: any name of a parameter -> the first of its names; tied weights have several."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(parameter), name) for name, parameter in parameters.items()}


def _untie(graph: ir.Graph, parameters: Mapping[str, torch.nn.Parameter]) -> None:
    """Of an export for training: leaves one initializer for each parameter, under the first of its names."""
    for name, first in _first_names(parameters).items():
        value = graph.initializers.get(name)
        if value is None or name == first:
            continue
        kept = graph.initializers.get(first)
        if kept is not None:
            value.replace_all_uses_with(kept)
            graph.initializers.pop(name)
            continue
        graph.initializers.pop(name)
        value.name = first
        if value.const_value is not None:
            value.const_value.name = first
        graph.initializers[first] = value


def _mark_dropout_and_padding(graph: ir.Graph) -> None:
    """Of an export for training: gives Dropout inside of scaled_dot_product_attention the input that says it trains,
    which the exporter forgets (it would be optimised away), and marks each Gather of an embedding with its
    ``padding_idx``, the row that gets no gradient."""
    b = Builder(graph, "export")
    for node in graph:
        if node.op_type == "Dropout" and len(node.inputs) < 3:
            node.resize_inputs(3)
            node.replace_input_with(2, b.constant(np.array(True)))
        if node.op_type == "Gather" and (padded := PADDED.search(node.metadata_props.get(CALL, ""))):
            node.metadata_props[PADDING] = padded[1]


def _optimize(model: ir.Model, states: Collection[str]) -> None:
    """Of an export for training: runs onnxscript's optimizer on a model in which the initializers ``states`` and the
    running statistics of norms are inputs, so that it can neither fold nor merge them."""
    import onnxscript.optimizer

    graph = model.graph
    norms = [node for node in graph if node.op_type == "BatchNormalization"]
    running = {value.name for node in norms for value in node.inputs[3:5] if value is not None}
    held = []
    for name in [name for name in graph.initializers if name in states or name in running]:
        value = graph.initializers.pop(name)
        held.append((value, value.const_value))
        value.const_value = None
        graph.inputs.append(value)
    with detached_apart(graph), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, of constants that are folded
        onnxscript.optimizer.optimize(model)
    for value, tensor in held:
        graph.inputs.remove(value)
        value.const_value = tensor
        graph.initializers[value.name or ""] = value


def _list_trained(model: ir.Model, parameters: Mapping[str, torch.nn.Parameter]) -> None:
    """Of an export for training: reduces the exporter's list of parameters in the model's metadata to those that train
    (requires_grad), under one name each."""
    first = _first_names(parameters)
    trained = {first[name] for name, parameter in parameters.items() if parameter.requires_grad}
    for props in (model.graph.metadata_props, model.metadata_props):
        if SIGNATURE in props:
            kept = PARAMETER_LINE.sub(lambda line: line[0] if line[1] in trained else "", props[SIGNATURE])
            props[SIGNATURE] = kept


# -- functions of torch that are replaced during an export; detach(), which ONNX has no operator for -------------------


@contextmanager
def exportable_torch(torch: ModuleType) -> Iterator[None]:
    """During an export, replaces functions of torch that torch.export cannot trace, and puts them back afterwards.
    nn.Transformer does not look whether a mask is causal, which only chooses a kernel; the power iterations of
    spectral_norm see a detached weight, as under their torch.no_grad(); cdist and ctc_loss, whose own kernels ask for
    sizes, are written in other operators."""
    from .decompositions import cdist, ctc_loss

    transformer, norm = torch.nn.modules.transformer, torch.nn.utils.parametrizations._SpectralNorm
    iterate = norm._power_method
    replacements: list[tuple[Any, str, Callable[..., Any]]] = [
        (transformer, "_detect_is_causal_mask", lambda mask, is_causal=None, size=None: bool(is_causal)),
        (norm, "_power_method", lambda own, weight, iterations: iterate(own, weight.detach(), iterations)),
        (torch, "cdist", cdist),
        (torch, "ctc_loss", ctc_loss),
    ]
    with ExitStack() as undo:
        for holder, name, function in replacements:
            undo.callback(setattr, holder, name, getattr(holder, name))
            setattr(holder, name, function)
        yield


@contextmanager
def detached_apart(graph: ir.Graph) -> Iterator[None]:
    """During an export, cuts the graph at every detach(), since an optimizer that runs meanwhile would remove it;
    afterwards an Identity marked `DETACHED` joins it again at each cut. At a cut, what is detached is an output of the
    graph, and what reads it reads a new input."""
    cuts: list[tuple[ir.Node, ir.Value, int]] = []  # the Identity of a detach(), the new input, the output's number
    places: dict[ir.Value, int] = {}  # what is detached -> the number of the output that it is
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


# -- hints for an export that failed -----------------------------------------------------------------------------------


GENERAL = "does module(*args) run, without branches on numbers that it computes?"
FIXED = " dynamic_batch=False exports at the size of the examples"
ADVICE = (
    (r"data-dependent|GuardOnDataDependent", "a branch on a number that the module computes: choose by torch.where, or "
     "give the number as an argument (experts of transformers: _experts_implementation='batched_mm')"),
    (r"No ONNX function found for .*?op='([\w.]+)'", "{0} has no form in ONNX: write it with other operators"),
    (r"Constraints violated", "the module fixes the size of a first axis: give a batch that is no other size "
     "of the examples, or dynamic_batch=False"),
    (r"No decompositions registered for .*complex", "complex numbers have no form in ONNX: compute with real ones"),
)  # fmt: skip
PACKED = (
    "pass padded sequences and pick each row's last step by its length: what is packed has sizes that depend on numbers"
)
INNER = "a gradient inside of forward is written out by make_fx, but not of a module with buffers: BatchNorm's, masks"


@contextmanager
def quiet_logs() -> Iterator[None]:
    """During an export, silences torch's loggers and the graphs that it prints on stderr."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def what_to_change(error: BaseException, dynamic_batch: bool) -> str:
    """The hint for an error of torch's exporter: what in the module to change, by its text and its frames."""
    values = (value for frame in _frames(error) for value in frame.f_locals.values())
    if _came_through(error, "torch/nn/utils/rnn.py") or any(type(v).__name__ == "PackedSequence" for v in values):
        return PACKED
    text = "\n".join(map(str, _causes(error)))
    if takes_gradients(error):
        return INNER
    for pattern, advice in ADVICE:
        if found := re.search(pattern, text):
            return advice.format(*found.groups())
    return GENERAL + (FIXED if dynamic_batch else "")


def takes_gradients(error: BaseException) -> bool:
    """Whether an error of torch's exporter comes from a forward with gradients of its own."""
    by_autograd = _came_through(error, "torch/autograd/__init__.py")
    return by_autograd or any("functorch" in str(part) for part in _causes(error))


def _frames(error: BaseException) -> Iterator[FrameType]:
    """Of an error of torch's exporter: the stack frames that it came through, those of its causes included."""
    for part in _causes(error):
        yield from (frame for frame, _ in walk_tb(part.__traceback__))


def _came_through(error: BaseException, file: str) -> bool:
    """Whether an error of torch's exporter came through ``file`` of torch, a path's end."""
    return any(Path(frame.f_code.co_filename).as_posix().endswith(file) for frame in _frames(error))


def _causes(error: BaseException) -> list[BaseException]:
    """An error of torch's exporter, which wraps others in advice, followed by its causes, the innermost last."""
    return [error] if error.__cause__ is None else [error, *_causes(error.__cause__)]
