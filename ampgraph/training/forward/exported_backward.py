"""A graph that was exported with its backward: which outputs are its loss and gradients, and the input that the
gradients start from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from ...core.errors import AmpError, nearest
from ..gradients.builder import Builder
from .parameters import mutations
from .read import FLOATS, signature, type_and_shape

SEEDS = ("seed", "scale", "grad_output", "tangents_1")
NAMES = ("gradient:{}", "{}.grad", "grad_{}", "{}_grad")
TORCH_GRADIENT = re.compile(r"(\S+): GRADIENT_TO_PARAMETER target='([^']*)'")
TORCH_LOSS = re.compile(r"(\S+): LOSS_OUTPUT")


@dataclass(frozen=True)
class ExportedBackward:
    """Names in a graph with its backward, which lowerings keep: the outputs that are the loss and the gradients, and
    the input that the gradients start from."""

    loss: str
    gradients: Mapping[str, str]  # parameter -> output
    seed: str  # "" where there is none

    def values(self, graph: ir.Graph) -> tuple[ir.Value, dict[str, ir.Value]]:
        """Of a graph with its backward: the loss, and the gradients by parameter, as they are now in ``graph``."""
        outputs = _outputs_by_name(graph)
        return outputs[self.loss], {name: outputs[output] for name, output in self.gradients.items()}


def parse_gradients(words: Iterable[str]) -> dict[str, str]:
    """The gradients that a command line names for a graph with its backward, by words ``PARAM=OUTPUT``: parameter ->
    output. Raises AmpError AMP305 for another word, and for a parameter that is given twice."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, output = word.rpartition("=")
        if not equals or not name or not output or name in found:
            message = "is given twice" if name in found else "does not say PARAM=OUTPUT"
            raise AmpError("AMP305", f"--gradient {word} {message}", hint="--gradient encoder.weight=grad_0")
        found[name] = output
    return found


def read_exported_backward(
    model: ir.Model, loss: str | None, gradients: Mapping[str, str] | None, seed: str | None
) -> ExportedBackward | None:
    """Finds loss, gradients and seed of a graph with its backward; None for a forward graph. Gradients are named by
    ``gradients`` (parameter -> output), by torch's list of outputs, or by their own name: `NAMES`. The loss is the
    output ``loss``, torch's, or the only other output that is a float scalar. The seed is the input ``seed``, or the
    one of `SEEDS` that all gradients depend on. Raises AmpError AMP213 and AMP215 for names that do not fit."""
    graph = model.graph
    found = _gradient_outputs(model, gradients or {})
    if not found:
        if seed is not None:
            hint = "name the outputs that are gradients: --gradient PARAM=OUTPUT"
            raise AmpError("AMP215", f"--seed-input {seed}: no output is a parameter's gradient", hint=hint)
        return None
    named = _loss_output(model, loss, {*found.values(), *mutations(model).values()})
    return ExportedBackward(named, found, _seed_input(graph, named, found, seed))


def gradients_of(given: Mapping[str, ir.Value], parameters: Sequence[ir.Value]) -> list[ir.Value]:
    """The gradients of the parameters in a graph with its backward, in their order; ``given``: parameter -> gradient.
    Raises AmpError AMP211 for one that is missing, AMP215 for one of another type or shape than its parameter."""
    missing = [value.name for value in parameters if value.name not in given]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        hint = f"name its output: --gradient {missing[0]}=OUTPUT, or --freeze what is not to be trained"
        raise AmpError("AMP211", f"no output is the gradient of '{missing[0]}'{more}", hint=hint)
    for value in parameters:
        gradient = given[value.name or ""]
        want, have = type_and_shape(value), type_and_shape(gradient)
        if want != have:
            message = f"output '{gradient.name}' is {have}, and its parameter '{value.name}' is {want}"
            raise AmpError("AMP215", message, hint="a gradient has the type and the shape of its parameter, both known")
    return [given[value.name or ""] for value in parameters]


def forward_part(model: ir.Model, exported: ExportedBackward) -> ir.Model:
    """A copy of a graph with its backward, without that: the outputs that are no gradients and do not depend on the
    seed, and what computes them. Without a seed an output that gradients make, as their norm, stays."""
    copy = model.clone()
    graph, backward = copy.graph, set(exported.gradients.values())
    seed = next((value for value in graph.inputs if value.name == exported.seed), None)
    scaled = _values_behind(graph, seed)
    kept = [value for value in graph.outputs if value.name not in backward and value not in scaled]
    graph.outputs.clear()
    graph.outputs.extend(kept)
    common.RemoveUnusedNodesPass()(copy)
    if seed is not None:
        _drop_input(graph, seed)
    return copy


def refuse_copies(model: ir.Model, forward: ir.Model, parameters: Sequence[ir.Value]) -> None:
    """Raises AmpError AMP215 for a tensor that only the backward of a graph reads (``forward`` lacks it) and that holds
    a parameter's numbers in any order: an exporter that folds constants copies a weight transposed, untrained."""
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if name in forward.graph.initializers or tensor is None or tensor.dtype != ir.DataType.FLOAT:
            continue
        alike = [p for p in parameters if p.const_value is not None and p.const_value.size == tensor.size > 1]
        numbers = np.sort(tensor.numpy(), axis=None) if alike else np.zeros(1)
        if numbers[0] == numbers[-1]:  # all are the same: a constant
            continue
        for parameter, stored in ((p, p.const_value) for p in alike):
            if stored is not None and np.array_equal(numbers, np.sort(stored.numpy(), axis=None)):
                copy = f"'{name}', a copy of parameter '{parameter.name}' that would not be trained"
                hint = "export it without folding constants; torch.onnx: optimize=False"
                raise AmpError("AMP215", f"the backward reads {copy}", hint=hint)


def start_from(b: Builder, name: str, start: ir.Value) -> None:
    """Makes the gradients of a graph with its backward start from the scalar ``start``, not the input ``name``."""
    graph = b.graph
    seed = next(value for value in graph.inputs if value.name == name)
    value = b.op("Reshape", start, b.ints(*[1] * len(seed.shape))) if seed.shape else start
    seed.replace_all_uses_with(value, replace_graph_outputs=True)
    _drop_input(graph, seed)
    graph.sort()


def _drop_input(graph: ir.Graph, value: ir.Value) -> None:
    """A graph with its backward: removes an input that nothing reads, and its default."""
    graph.inputs.remove(value)
    graph.initializers.pop(value.name or "", None)


def _outputs_by_name(graph: ir.Graph) -> dict[str, ir.Value]:
    """A graph with its backward: its outputs by name."""
    return {value.name or "": value for value in graph.outputs}


def _gradient_outputs(model: ir.Model, named: Mapping[str, str]) -> dict[str, str]:
    """A graph with its backward: parameter -> the output that is its gradient: as the user ``named`` it, as torch says,
    or by the output's name. Raises AmpError AMP215 for a name that is not there, and where two outputs fit."""
    graph = model.graph
    outputs, stored = (
        _outputs_by_name(graph),
        [name for name, value in graph.initializers.items() if value.dtype in FLOATS],
    )
    for name, output in named.items():
        for word, known, kind in ((name, stored, "parameter"), (output, list(outputs), "output")):
            if word not in known:
                hint = nearest(word, known) or f"there are: {', '.join(known[:8])}"
                raise AmpError("AMP215", f"--gradient {name}={output}: the model has no {kind} '{word}'", hint=hint)
    by_torch = {name: output for output, name in TORCH_GRADIENT.findall(signature(model))}
    found: dict[str, str] = {}
    for name in stored:
        fitting = [word.format(name) for word in NAMES if word.format(name) in outputs]
        if by_torch.get(name, "") in outputs:
            fitting = [by_torch[name]]
        if name not in named and len(fitting) > 1:
            message = f"'{fitting[0]}' and '{fitting[1]}' may both be the gradient of '{name}'"
            raise AmpError("AMP215", message, hint=f"say which: --gradient {name}={fitting[0]}")
        if name in named or fitting:
            found[name] = named[name] if name in named else fitting[0]
    return found


def _loss_output(model: ir.Model, named: str | None, taken: set[str]) -> str:
    """A graph with its backward: the output that is the loss, of those not ``taken`` as gradients and buffers: as
    named, as torch says, or the only float scalar. Raises AmpError AMP213 for none or several."""
    outputs = _outputs_by_name(model.graph)
    others = [name for name in outputs if name not in taken]
    if named is not None:
        if named not in others:
            message = f"--loss {named}: a graph that has its gradients has its loss, which is one of its outputs"
            hint = nearest(named, others) or f"there are: {', '.join(others) or 'gradients only'}"
            raise AmpError("AMP213", message, hint=hint)
        return named
    by_torch: list[str] = [name for name in TORCH_LOSS.findall(signature(model)) if name in others]
    found = by_torch or [name for name in others if outputs[name].dtype in FLOATS and _is_scalar(outputs[name])]
    if len(found) != 1:
        message = f"outputs {', '.join(found)} may each be the loss" if found else "no output is a float scalar: a loss"
        raise AmpError("AMP213", message, hint="name the loss: --loss OUTPUT")
    return found[0]


def _seed_input(graph: ir.Graph, loss: str, gradients: Mapping[str, str], named: str | None) -> str:
    """A graph with its backward: the input that the gradients start from, "" for none: the one ``named``, or of `SEEDS`
    that can be it. Raises AmpError AMP215 for a named input that cannot be it, and where two can."""
    inputs = {value.name or "": value for value in graph.inputs}
    if named is not None and named not in inputs:
        hint = nearest(named, list(inputs)) or f"there are: {', '.join(inputs)}"
        raise AmpError("AMP215", f"--seed-input {named}: the model has no such input", hint=hint)
    found = []
    for name in SEEDS if named is None else (named,):
        problem = _why_no_seed(graph, inputs[name], loss, gradients) if name in inputs else "no input"
        if not problem:
            found.append(name)
        elif named is not None:
            hint = "the input that the gradients start from, 1 for those of the loss itself"
            raise AmpError("AMP215", f"--seed-input {named}: {problem}", hint=hint)
    if len(found) > 1:
        message = f"gradients start from input '{found[0]}' and from input '{found[1]}'"
        raise AmpError("AMP215", message, hint=f"say which is the scale: --seed-input {found[0]}")
    return found[0] if found else ""


def _why_no_seed(graph: ir.Graph, value: ir.Value, loss: str, gradients: Mapping[str, str]) -> str:
    """A graph with its backward: why an input is not what gradients, and not the loss, start from; "" if it is."""
    if value.dtype != ir.DataType.FLOAT or not _is_scalar(value):
        return f"it is not a float32 scalar but {type_and_shape(value)}"
    outputs, reached = _outputs_by_name(graph), _values_behind(graph, value)
    free = [name for name in gradients.values() if outputs[name] not in reached]
    if free:
        return f"the gradient '{free[0]}' does not depend on it"
    return f"the loss '{loss}' depends on it too" if outputs[loss] in reached else ""


def _values_behind(graph: ir.Graph, start: ir.Value | None) -> set[ir.Value]:
    """A graph with its backward: the values of the sorted graph that depend on ``start``, and itself; none for None."""
    if start is None:
        return set()
    reached = {start}
    for node in graph:
        if any(value in reached for value in node.inputs):
            reached.update(node.outputs)
    return reached


def _is_scalar(value: ir.Value) -> bool:
    """A graph with its backward: whether a value is known to have one element."""
    return value.shape is not None and all(dim == 1 for dim in value.shape)
