"""What TensorRT makes of a model: what it refuses, and the kernels of the engine that it builds.

answer = build(model, python="build/tensorrt/bin/python")      # TensorRT for RTX, which needs no GPU to build
answer.refused or answer.engine.kernels

Networks are strongly typed, as all are from TensorRT 11 on: the types in the file are those of the kernels. An
engine is built in a process of its own, and not run. A model that kills the builder kills that process alone.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx

from ..core.arrays import Array
from ..core.errors import AmpError
from ..core.installing import pip_install
from . import tensorrt_one
from .optimized import kind_of, walk_nodes
from .optimizing import Died, run_python, with_named_nodes

SECONDS = 600.0
EXTRA = "tensorrt-rtx"
TYPES = {"Half": "float16", "BFloat16": "bfloat16", "Float": "float32"}
"""The float types of the engine's own list, by their words there."""
ATTENTION = "mha"
"""What the name of a kernel that computes a whole attention holds."""
NOISE = ("cudaError 35", "no CUDA-capable device")
"""What TensorRT says behind any refusal where there is no GPU."""
SYNCHRONISES = ("signal", "wait")
"""Kinds of layers that start no kernel: a stream waits for another one."""
_MOVES = re.compile(r"(?:__myl_)?(?:Cast)+(?:_myl\d+.*|_0x.*)?$")
_TENSOR = re.compile(r"\{ Name: (.*?), Dimensions: (\[[^\]]*\]).*?Datatype: (\w+)")
_FIELD = re.compile(r", (?=(?:Inputs|Constants|Outputs|TacticName|StreamId|Metadata): )")
_NODE = re.compile(r"\[ONNX Layer: ([^\]]*)\]")
_BETWEEN = re.compile(r"[\s,:;(){}\[\]|`'\"]+")
_WORDS = re.compile(r"^(?:Invalid Node - .*\n)?(?:\w+::\w+: )?(?:Error Code \d+: )?")


@dataclass(frozen=True)
class RefusedNode:
    """What TensorRT does not take. ``by``: its `parser`, or its `builder`, which may name no node ("")."""

    by: str
    node: str
    operator: str
    words: str

    def __str__(self) -> str:
        where = f"node '{self.node}' ({self.operator}): " if self.operator else ""
        return f"{where}{self.words}"


@dataclass(frozen=True)
class Kernel:
    """A layer of an engine. ``kind``: `gemm`, `conv`, `kgen` (made by its compiler), ...; ``reads`` and ``makes``:
    float types; ``nodes``: those of the file that it computes."""

    name: str
    kind: str
    reads: frozenset[str]
    makes: frozenset[str]
    nodes: tuple[str, ...]
    computes: tuple[str, ...] = ()
    """The same nodes by the first output of each."""

    @property
    def attends(self) -> bool:
        """Whether this kernel of a TensorRT engine computes a whole attention."""
        return ATTENTION in self.name

    @property
    def casts(self) -> bool:
        """Whether this kernel of a TensorRT engine is a Cast and nothing else."""
        return bool(_MOVES.match(self.name)) and len(self.reads | self.makes) > 1

    @property
    def dtype(self) -> str:
        """The float types of a TensorRT kernel for a report: `float16`, `float16->float32`, or "" where it has none."""
        reads, makes = "/".join(sorted(self.reads)), "/".join(sorted(self.makes))
        if reads and makes and reads != makes:
            return f"{reads}->{makes}"
        return reads or makes


@dataclass(frozen=True)
class Engine:
    """What TensorRT built of a model: its kernels, in the order of the run, and its ``size`` serialized, in bytes."""

    kernels: tuple[Kernel, ...]
    size: int

    @cached_property
    def attentions(self) -> int:
        """How many kernels of a TensorRT engine compute a whole attention each."""
        return sum(kernel.attends for kernel in self.kernels)

    @cached_property
    def casts(self) -> int:
        """How many kernels of a TensorRT engine are Casts and nothing else."""
        return sum(kernel.casts for kernel in self.kernels)

    @property
    def said(self) -> str:
        """A TensorRT engine in a few words: `28 kernels (24 float16, 4 float16->float32), 2 attentions, 1.2 MB`."""
        types = ", ".join(f"{count} {dtype}" for dtype, count in sorted(self.types.items()))
        return f"{len(self.kernels)} kernels ({types}), {self.attentions} attentions, {self.size / 1e6:.1f} MB"

    @cached_property
    def types(self) -> Counter[str]:
        """How many kernels of a TensorRT engine there are of each float type."""
        return Counter(kernel.dtype for kernel in self.kernels if kernel.dtype)


@dataclass(frozen=True)
class BuildAnswer:
    """What TensorRT made of one model. ``runtime``: name and version; ``refused``: what it does not take; ``engine``:
    None where it is refused; ``died``: how the process ended that was to build it, which is a refusal too."""

    runtime: str
    refused: tuple[RefusedNode, ...] = ()
    engine: Engine | None = None
    died: str = ""

    @property
    def ok(self) -> bool:
        """Whether TensorRT took the model."""
        return not (self.refused or self.died)

    @property
    def why(self) -> str:
        """What TensorRT says against the model, in one line; empty if it took it."""
        return self.died or "; ".join(map(str, self.refused))


@dataclass(frozen=True)
class BuildJob:
    """A model to be built by TensorRT; ``folder``: of its external data, "" for beside it or none. ``sizes``: of open
    dimensions, by `NAME` or `INPUT:AXIS`: least, best, largest; ``values``: of inputs that are shapes, by name, once or
    three times likewise; ``capabilities``: of the GPUs to build for, as `89`, TensorRT's own choice if empty."""

    model: str | os.PathLike[str] | onnx.ModelProto
    folder: str = ""
    sizes: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    values: Mapping[str, Sequence[int] | Sequence[Sequence[int]]] = field(default_factory=dict)
    capabilities: tuple[str, ...] = ()


EngineSizes = tuple[dict[str, tuple[int, int, int]], dict[str, list[list[int]]]]


def sizes_of(samples: Iterable[Mapping[str, Array]]) -> EngineSizes:
    """For TensorRT: the ``sizes`` and ``values`` of a `BuildJob` whose engine takes some samples, best the last one:
    the sizes of all axes, and the numbers of all integer inputs of at most one axis, which may be shapes."""
    sizes: dict[str, tuple[int, int, int]] = {}
    values: dict[str, list[list[int]]] = {}
    for feeds in samples:
        for name, array in feeds.items():
            for axis, size in enumerate(array.shape):
                least, _, largest = sizes.get(f"{name}:{axis}", (size, size, size))
                sizes[f"{name}:{axis}"] = min(least, size), size, max(largest, size)
            if array.dtype.kind in "iu" and array.ndim <= 1:
                given = array.reshape(-1).tolist()
                least, _, largest = values.get(name, [given] * 3)
                pairs = list(zip(least, largest, given, strict=False))
                values[name] = [[min(a, c) for a, _, c in pairs], given, [max(b, c) for _, b, c in pairs]]
    return sizes, values


def build(job: BuildJob, *, python: str = "") -> BuildAnswer:
    """What TensorRT for RTX makes of one model: an engine's kernels, or its refusal.

    Args:
        job: the model, and what its engine is for.
        python: the interpreter of an environment with TensorRT for RTX; this one if empty.

    Raises:
        AmpError: AMP501 where that environment has no TensorRT, AMP508 for one that cannot be started, AMP301 for a
            compute capability that it does not know.
    """
    return next(build_all([job], python=python))


def build_all(jobs: Iterable[BuildJob], *, python: str = "") -> Iterator[BuildAnswer]:
    """What TensorRT makes of each of several models, in their order, raising as `build`; a process takes them up to the
    first that it refuses, another one goes on behind it."""
    with tempfile.TemporaryDirectory(prefix="ampgraph-") as scratch:
        written = [_written_job(job, Path(scratch, f"{number}.onnx")) for number, job in enumerate(jobs)]
        while written:
            told = _answers_of(written, python, Path(scratch))
            yield from told
            written = written[len(told) :]


def _written_job(job: BuildJob, path: Path) -> dict[str, Any]:
    """A job for `tensorrt_one`, as JSON; the model is written to ``path`` with a name for every node. ``nodes``, which
    is for `_read_answer`: by that name the operator, and the first output if there is one."""
    proto, folder = with_named_nodes(job.model, job.folder)
    path.write_bytes(proto.SerializeToString())
    nodes = {node.name: (kind_of(node), *node.output[:1]) for node, _ in walk_nodes(proto.graph)}
    sizes = {name: list(said) for name, said in job.sizes.items()}
    values = {name: list(said) for name, said in job.values.items()}
    return {
        "model": str(path), "folder": folder, "sizes": sizes, "values": values, "capabilities": list(job.capabilities),
        "nodes": nodes,
    }  # fmt: skip


def _answers_of(written: list[dict[str, Any]], python: str, scratch: Path) -> list[BuildAnswer]:
    """Runs one process of TensorRT that builds ``written`` jobs: its answers, at least one, up to the first model that
    it refuses or dies of. ``scratch``: a folder for the files between. Raises AmpError as `build`."""
    jobs, answers = scratch / "jobs.json", scratch / "answers.jsonl"
    jobs.write_text(json.dumps({"models": written}), encoding="utf-8")
    answers.unlink(missing_ok=True)
    died = ""
    try:
        words = [tensorrt_one.__file__, str(jobs), str(answers)]
        run_python(python, words, SECONDS, "with TensorRT for RTX", silent=True)
    except Died as how:
        died = f"TensorRT dies of it: {how}" if str(how) else f"no engine was built within {SECONDS:g} seconds"
    lines = answers.read_text(encoding="utf-8").splitlines(keepends=True) if answers.is_file() else []
    whole = [json.loads(line) for line in lines if line.endswith("\n")]
    found = [_read_answer(told, job["nodes"], python) for told, job in zip(whole, written, strict=False)]
    if not found and not died:
        hint = f"--runtime names a Python that has TensorRT for RTX: {pip_install(EXTRA)}"
        raise AmpError("AMP508", f"{python or sys.executable} exited without an answer", hint=hint)
    if died and len(found) < len(written):
        found.append(BuildAnswer("TensorRT for RTX", died=died))
    return found


def _read_answer(told: dict[str, Any], nodes: Mapping[str, tuple[str, ...]], python: str) -> BuildAnswer:
    """What `tensorrt_one` answered of a build (``told``), with kernels by the nodes that they compute, ``nodes`` as in
    `_written_job`. Raises AmpError AMP501 without TensorRT, AMP301 for a compute capability it does not know."""
    if "error" in told:
        place = f"; --runtime PYTHON names an environment that has it{f', which {python} is not' if python else ''}"
        raise AmpError("AMP501", told["error"], hint=pip_install(EXTRA) + place)
    if "capability" in told:
        message = f"TensorRT for RTX builds for no GPU of compute capability '{told['capability']}'"
        raise AmpError("AMP301", message, hint=f"it knows {', '.join(told['known'])}")
    refused = dict.fromkeys(_read_refusal(**said, nodes=nodes) for said in told["refused"])
    kernels = [
        replace(kernel, computes=tuple(made for name in kernel.nodes for made in nodes.get(name, ())[1:]))
        for kernel in read_kernels(told["layers"])
    ]
    engine = Engine(tuple(kernels), told["bytes"]) if told["bytes"] else None
    return BuildAnswer(f"TensorRT for RTX {told['runtime']}", tuple(refused), engine)


def _read_refusal(by: str, node: str, operator: str, words: str, nodes: Mapping[str, tuple[str, ...]]) -> RefusedNode:
    """What TensorRT's parser or builder refuses (``by``), as `tensorrt_one` answers it; where it names no node, the
    first of ``nodes`` that occurs in its ``words``, if one does."""
    node = node or next((part for part in _BETWEEN.split(words) if part in nodes), "")
    return RefusedNode(by, node, operator or nodes.get(node, ("",))[0], refusal_text(words))


def refusal_text(words: str) -> str:
    """TensorRT's words in one line: without the node, C++ function and error code in front, which a report says itself
    or has no use for, and without the lines that it always writes where there is no GPU (`NOISE`)."""
    lines = [line for line in _WORDS.sub("", words).splitlines() if not any(noise in line for noise in NOISE)]
    return " ".join(" ".join(lines).split())


def read_kernels(text: str) -> Iterator[Kernel]:
    """The kernels in the list that TensorRT's builder logs of an engine, without layers that only synchronise."""
    for line in text.partition("\nI/O Tensors:")[0].splitlines():
        head, found, rest = line.partition(", LayerType: ")
        if not (found and head.startswith("Name: ")):
            continue
        kind, *parts = _FIELD.split(rest)
        if kind.split(",")[0] in SYNCHRONISES:
            continue
        fields = dict(part.split(": ", 1) for part in parts if ": " in part)
        read = [*_float_types_in(fields.get("Inputs", "")), *_float_types_in(fields.get("Constants", ""), least=2)]
        nodes = tuple(_NODE.findall(fields.get("Metadata", "")))
        yield Kernel(
            head[6:], kind.split(",")[0], frozenset(read), frozenset(_float_types_in(fields.get("Outputs", ""))), nodes
        )


def _float_types_in(text: str, least: int = 0) -> Iterator[str]:
    """In TensorRT's log: the float types in a list of tensors, those left out whose largest size is below ``least``:
    constants of one element are factors that a product took in."""
    for _, shape, dtype in _TENSOR.findall(text):
        sizes = [int(size) for size in re.findall(r"\d+", shape)]
        if dtype in TYPES and max(sizes, default=1) >= least:
            yield TYPES[dtype]
