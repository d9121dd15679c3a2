"""What a model is run on: samples from files, from a program, or generated where there are none."""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ...core.dataflow import NONE, Dataflow
from ...core.errors import AmpError, is_whole, nearest
from ...core.graph import Graph
from ...formats import adapters
from ...formats.kinds import Model, is_graph
from ...runtime.ports import Port
from .fitting import Learnt
from .generate import Generator
from .given import Inputs, from_arrays, from_iterable, from_list, from_path
from .sample_set import Samples
from .sizes import GraphInput, Place

HINTS = 12  # sizes of weights that an input may have
MOST_SAMPLES = 1_000_000  # that can be asked for
COUNT = 8  # samples that are generated where nobody says how many


def load_samples(
    model: Model | Graph,
    data: object = None,
    count: int | None = None,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    lacking: Collection[str] = (),
) -> Samples:
    """The samples to run a model on.

    Args:
        model: what `ampgraph.convert` takes, or a Graph of `ampgraph.formats`.
        data: None (inputs are generated from ``seed``), or
            an .npz file: one sample, but N where every input's array has one more dimension in front, or N times the
            leading size that the model fixes (``[1, 3, 224, 224]`` and 32 images). Where the model leaves its leading
            size open, all rows are one sample;
            a folder of .npz files: one sample each, in the order of their names, read one at a time;
            a mapping from input names to arrays: as a file; or an iterable of such mappings, a sample each. A list or
            tuple is used as it is. Anything else (a generator, a DataLoader) is read once, and its arrays are copied
            and kept in memory, since another pass may give other samples: ``count`` of them, or 256.
            Arrays that are no inputs, such as labels, are left out, and ``notes`` says so.
        count: how many samples at most; all if None, and 8 where they are generated.
        seed: for generated inputs.
        dims: sizes of symbolic dimensions, for generated inputs.
        lacking: inputs that data may leave out.

    Raises:
        AmpError: AMP101 (a path that cannot be read), AMP108 (not an .npz, an empty folder, no samples), AMP310 (a
            dimension that the model does not have), AMP503 (an array that is missing, does not fit the model, has no
            rows or holds NaN; an input that cannot be generated). Of a folder and of a list the first sample is looked
            at now, the others when their turn comes.
    """
    count, seed = _whole(count, seed)
    graph = model if is_graph(model) else adapters.load(model)[0]
    _check_dims(graph, dims or {})
    flow, ports = _ports(graph)
    if data is None:
        return _generated(flow, ports, COUNT if count is None else count, seed, dims or {})
    inputs = Inputs(
        {p.name: Port(p.name, p.dtype, p.shape) for p in ports},
        frozenset(p.name for p in ports if _has_default(flow, p) or p.name in lacking),
        frozenset(p.name for p in ports if flow.shape(p.value) is None),
    )
    if isinstance(data, (str, os.PathLike)):
        return from_path(data, inputs, count)
    if isinstance(data, Mapping):
        return from_arrays(data, "data", inputs, count)
    if isinstance(data, Iterable) and not hasattr(data, "__array__"):
        return from_list(data, inputs, count) if isinstance(data, (list, tuple)) else from_iterable(data, inputs, count)
    message = f"cannot take samples from a {type(data).__name__}"
    hint = f"give an .npz file, a folder of them, or an iterable of mappings such as {inputs.example}"
    raise AmpError("AMP108", message, hint=hint)


def _whole(count: int | None, seed: int) -> tuple[int | None, int]:
    """Whole numbers of Python, where numpy's were given. Raises AmpError AMP503 for what is none."""
    if count is not None and not (is_whole(count) and 0 < count <= MOST_SAMPLES):
        hint = f"ask for a whole number, 1 to {MOST_SAMPLES:,}"
        raise AmpError("AMP503", f"{count!r} samples are asked for", hint=hint)
    if not is_whole(seed):
        raise AmpError("AMP503", f"seed {seed!r} is no whole number", hint="for example 0")
    return None if count is None else int(count), int(seed)


def _check_dims(graph: Any, dims: Mapping[str, int]) -> None:
    names = sorted(graph.dimensions()) if dims else []
    there = f"there are: {', '.join(names[:8])}" if names else "the model names none"
    for name, size in dims.items():
        if name not in names:
            message = f"--dim {name}: the model has no dimension of that name"
            raise AmpError("AMP310", message, hint=nearest(str(name), names) or there)
        if not is_whole(size) or size < 1:
            raise AmpError("AMP310", f"--dim {name}={size!r} is no size", hint=f"for example --dim {name}=8")


def _ports(graph: Any) -> tuple[Dataflow, list[GraphInput]]:
    """The dataflow of a graph and its inputs, weights that are listed as inputs among them."""
    graph.prepare()
    flow = graph.dataflow()
    ports = []
    for value in flow.scopes[0].inputs:
        item = flow.values[value]
        dtype = "" if item.container else {"string": "object"}.get(item.dtype, item.dtype)
        ports.append(GraphInput(item.name, dtype, tuple(flow.shape(value) or ()), value))
    return flow, ports


def _has_default(flow: Dataflow, port: GraphInput) -> bool:
    """Whether an input is a weight that a caller may override (models of IR version 3)."""
    native = flow.values[port.value].native
    return hasattr(native, "is_initializer") and native.is_initializer()


def _generated(flow: Dataflow, ports: list[GraphInput], count: int, seed: int, dims: Mapping[str, int]) -> Samples:
    needed = [port for port in ports if not _has_default(flow, port)]

    def resized(learnt: Learnt) -> tuple[Samples, Mapping[Place, int]]:
        made = Generator(flow, needed, seed, dims, learnt)
        return Samples(True, made.notes(count), count, lambda: map(made.sample, range(count)), resized), made.places()

    return replace(resized({})[0], _hints=_sizes_of_weights(flow))


def _sizes_of_weights(flow: Dataflow) -> tuple[int, ...]:
    """The sizes that the first weights have, in the order of their readers."""
    weights = (flow.values[v] for op in flow.ops for v in op.inputs if v != NONE and flow.values[v].weight)
    sizes = (size for item in weights for size in flow.shape(item.id) or () if isinstance(size, int) and size > 1)
    return tuple(itertools.islice(dict.fromkeys(sizes), HINTS))
