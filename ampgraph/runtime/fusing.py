"""A model as ONNX Runtime's own offline optimisation leaves it: by a session of the target, or by its transformers
optimizer, whichever has fewer nodes where it runs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx

from .optimized import kind_of, walk
from .optimizing import Level, NotOptimized, fused_for, optimized, written_out

CPU = "CPUExecutionProvider"
ARCHITECTURES = ("bert", "gpt2", "t5", "bart", "clip", "unet", "conformer")
"""Whose fusions of the transformers optimizer are tried: the others' are the same, or ask for more than a model."""
Admits = Callable[[onnx.ModelProto], bool]


@dataclass(frozen=True)
class Counter:
    """Counts the nodes that a provider would run. Raises NotOptimized for what it refuses."""

    provider: str
    python: str
    level: Level

    def __call__(self, proto: onnx.ModelProto) -> int:
        return len(optimized(proto, self.provider, python=self.python, level=self.level).nodes)


@dataclass(frozen=True)
class FusedModel:
    """``proto``: the model, as it was given where nothing has fewer nodes; ``how`` says what made it. ``before``,
    ``after``: nodes of the graph that the provider of ``counter`` would run, in float32."""

    proto: onnx.ModelProto
    how: str
    before: int
    after: int
    counter: Counter


def best_fused(proto: onnx.ModelProto, provider: str, admits: Admits, *, python: str = "") -> FusedModel:
    """The best of what is tried; equals of the graph are told apart by the nodes of their files.

    Args:
        proto: with its weights in it.
        provider: of the target. Where the environment has none such the CPU's counts, and no session fuses.
        admits: whether the target can run what was made.
        python: the interpreter of an environment with onnxruntime; this one if empty.

    Raises:
        NotOptimized: there is no onnxruntime, or it refuses the model.
    """
    counter = _counter(proto, provider, python)
    before = counter(proto)
    best, how, least = proto, "", (before, node_count(proto))
    for made, name in _candidates(proto, counter, python):
        if not _same_interface(proto, made) or not admits(made):
            continue
        size = (counter(made), node_count(made))
        if size < least:
            best, how, least = made, name, size
    if best is not proto:
        _keep_metadata(proto, best)
    return FusedModel(best, how, before, least[0], counter)


def _counter(proto: onnx.ModelProto, provider: str, python: str) -> Counter:
    """By the target's provider, else by the CPU's without its own layouts."""
    try:
        optimized(proto, provider, python=python, level="DISABLE_ALL")
    except NotOptimized as why:
        if not why.elsewhere:
            raise
        return Counter(CPU, python, "ENABLE_EXTENDED")
    return Counter(provider, python, "ENABLE_ALL" if provider != CPU else "ENABLE_EXTENDED")


def _candidates(proto: onnx.ModelProto, counter: Counter, python: str) -> Iterator[tuple[onnx.ModelProto, str]]:
    """What a session of the target writes out, and what the transformers optimizer makes, each kind once."""
    if counter.level == "ENABLE_ALL":
        yield written_out(proto, counter.provider, python=python), "a session"
    seen: set[tuple[str, ...]] = set()
    plain = written_out(proto, CPU, python=python, level="ENABLE_BASIC")
    with tempfile.TemporaryDirectory(prefix="ampgraph-") as scratch:
        given = Path(scratch, "model.onnx")
        given.write_bytes(plain.SerializeToString())
        for path in fused_for(given, Path(scratch), ARCHITECTURES, python=python):
            made = onnx.load(path)
            kinds = tuple(sorted(kind_of(node) for node, _ in walk(made.graph)))
            if kinds not in seen:
                seen.add(kinds)
                yield made, f"the transformers optimizer, as {path.stem}"


def node_count(proto: onnx.ModelProto) -> int:
    """Nodes of a file, bodies included."""
    return sum(1 for _ in walk(proto.graph))


def _same_interface(one: onnx.ModelProto, two: onnx.ModelProto) -> bool:
    """Whether inputs and outputs have the same names and types, in the same order."""
    return _interface(one) == _interface(two)


def _interface(proto: onnx.ModelProto) -> list[tuple[str, int]]:
    stored = {tensor.name for tensor in proto.graph.initializer}
    values = [value for value in proto.graph.input if value.name not in stored]
    return [(value.name, value.type.tensor_type.elem_type) for value in (*values, *proto.graph.output)]


def _keep_metadata(given: onnx.ModelProto, made: onnx.ModelProto) -> None:
    known = {entry.key for entry in made.metadata_props}
    made.metadata_props.extend(entry for entry in given.metadata_props if entry.key not in known)
