"""The graph that a target's ONNX Runtime would run, from a process of its own, in this environment or in another one.

A session is opened, and nothing is run: the runtime fuses, chooses kernels, places nodes and adds its copies, and
writes the graph that results. A model that kills the runtime kills that process alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import onnx

from ..core.errors import AmpError
from . import optimize_one
from .child import signal_words
from .optimized import Optimized, kind_of, name_nodes, read_optimized, walk_nodes

Level = Literal["DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_ALL"]
SIZE_LIMIT = 2_000_000_000  # bytes: protobuf writes no more in one piece
SECONDS = 600.0


class NotOptimized(Exception):
    """ONNX Runtime optimised nothing; the message says why. ``elsewhere``: the environment is at fault."""

    def __init__(self, why: str, elsewhere: bool = False) -> None:
        super().__init__(why)
        self.elsewhere = elsewhere


def optimized(
    model: str | os.PathLike[str] | onnx.ModelProto,
    provider: str = "CUDAExecutionProvider",
    *,
    python: str = "",
    level: Level = "ENABLE_ALL",
    folder: str = "",
) -> Optimized:
    """The graph of a model as ONNX Runtime optimises it.

    Args:
        model: a path, or a model whose external data, if any, lies in ``folder``.
        provider: whose graph; what it does not take falls to the CPU's.
        python: the interpreter of an environment with onnxruntime; this one if empty.
        level: of the runtime's optimisations.

    Raises:
        NotOptimized: there is no such provider, or the runtime refuses the model, or dies of it.
        AmpError: AMP508 for an interpreter that cannot be started.
    """
    proto, folder = with_named_nodes(model, folder)
    with tempfile.TemporaryDirectory(prefix="ampgraph-") as scratch:
        made, runtime, log = _optimise_in_child(proto, provider, python, level, folder, Path(scratch))
        return read_optimized(proto, onnx.load(made, load_external_data=False), log, runtime)


def write_optimized(
    model: onnx.ModelProto, provider: str, *, python: str = "", level: Level = "ENABLE_EXTENDED"
) -> onnx.ModelProto:
    """A model, its weights in it, as ONNX Runtime writes it out when it has optimised it. Raises as `optimized`."""
    with tempfile.TemporaryDirectory(prefix="ampgraph-") as scratch:
        return onnx.load(
            _optimise_in_child(with_named_nodes(model, "")[0], provider, python, level, "", Path(scratch))[0]
        )


def _optimise_in_child(
    proto: onnx.ModelProto, provider: str, python: str, level: Level, folder: str, scratch: Path
) -> tuple[Path, str, str]:
    """Has ONNX Runtime optimise a graph in a child process: the file in ``scratch`` to which it wrote the graph, the
    runtime's name and version, and what it logged. ``proto``: its nodes have names, by which the log knows them, and
    its external data lie in ``folder`` ("" for none), as `with_named_nodes` gives both. Raises as `optimized`."""
    if proto.ByteSize() > SIZE_LIMIT:
        raise NotOptimized("it is over 2 GB in one piece")
    given, made = scratch / "model.onnx", scratch / "optimized.onnx"
    given.write_bytes(proto.SerializeToString())
    providers = ",".join(dict.fromkeys((provider, "CPUExecutionProvider")))
    told, log = _ask(python, "optimize", str(given), str(made), providers, level, folder)
    runtime = f"ONNX Runtime {told.get('runtime', '')}"
    if "error" in told:
        raise NotOptimized(f"{runtime}: {told['error']}", elsewhere=provider not in told["available"])
    if provider not in told["providers"]:
        raise NotOptimized(f"{runtime} cannot start {provider} here", elsewhere=True)
    return made, runtime, log


def fuse_for(model: Path, folder: Path, architectures: Sequence[str], *, python: str = "") -> list[Path]:
    """The files in ``folder`` that ONNX Runtime's transformers optimizer made of a file, by its fusions for each of
    some architectures; those for which it failed are missing.

    Raises NotOptimized where that environment has no such optimizer, and as `optimized`.
    """
    told, _ = _ask(python, "fuse", str(model), str(folder), ",".join(architectures))
    if "error" in told:
        raise NotOptimized(f"the transformers optimizer cannot be used: {told['error']}", elsewhere=True)
    return [folder / f"{name}.onnx" for name in told["made"]]


def with_named_nodes(model: str | os.PathLike[str] | onnx.ModelProto, folder: str) -> tuple[onnx.ModelProto, str]:
    """For ONNX Runtime's optimizer: a copy of a model whose nodes have names, and the absolute folder of its external
    data: that of a path, else ``folder``, "" for none."""
    proto = onnx.ModelProto()
    if isinstance(model, onnx.ModelProto):
        proto.CopyFrom(model)
    else:
        proto = onnx.load(os.fspath(model), load_external_data=False)
        folder = os.path.dirname(os.path.abspath(model))
    name_nodes(proto.graph)
    return proto, os.path.abspath(folder) if folder else ""


def _ask(python: str, *words: str) -> tuple[dict[str, Any], str]:
    """What `optimize_one`, a child process, answered to ``words``, as JSON, and what ONNX Runtime logged there. Raises
    NotOptimized where it dies or takes too long, AmpError AMP508 for what is no working Python."""
    lacking = "that has onnxruntime-gpu"
    try:
        said, log = run_python(python, [optimize_one.__file__, *words], SECONDS, lacking)
    except Died as how:
        dies = f"ONNX Runtime dies of it while it loads: {how}"
        raise NotOptimized(dies if str(how) else f"no session was made within {SECONDS:g} seconds") from how
    last = said.strip().splitlines()[-1]
    try:
        told: dict[str, Any] = json.loads(last)
    except ValueError:
        raise no_python_error(python, last, lacking) from None
    return told, log


def no_python_error(python: str, said: str, lacking: str) -> AmpError:
    """The error where ``--runtime`` names a program that is no Python, or one without what is needed (``lacking``,
    "that has ..."); ``said``: the last line that it wrote."""
    hint = f"name the python of an environment {lacking}"
    return AmpError("AMP508", f"is not a working Python: {said}", where=python or sys.executable, hint=hint)


class Died(Exception):
    """How another Python ended, as its text: by which signal, or "" where its time was up."""


def run_python(
    python: str, words: Sequence[str], seconds: float, lacking: str, *, silent: bool = False
) -> tuple[str, str]:  # fmt: skip
    """What a script wrote to standard output and to standard error, run by a Python of any environment, this one's if
    empty.

    Raises Died, and AmpError AMP508 for what is no working Python; ``lacking``: what its environment has to have;
    ``silent``: whether a script that works may write nothing."""
    python = python or sys.executable
    try:
        ended = subprocess.run(
            [python, "-I", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=seconds, check=False,
        )  # fmt: skip
    except OSError as error:
        hint = f"name the python of an environment {lacking}"
        raise AmpError("AMP508", f"cannot be started: {error.strerror or error}", where=python, hint=hint) from error
    except subprocess.TimeoutExpired as error:
        raise Died from error
    if ended.returncode < 0:
        raise Died(signal_words(ended.returncode))
    if ended.returncode or not (silent or ended.stdout.strip()):
        last = (ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"])[-1]
        raise no_python_error(python, last, lacking)
    return ended.stdout, ended.stderr


# -- by a session of the target or by the transformers optimizer, whichever has fewer nodes ---------------------------

CPU = "CPUExecutionProvider"
ARCHITECTURES = ("bert", "gpt2", "t5", "bart", "clip", "unet", "conformer")
"""Whose fusions of the transformers optimizer are tried: the others' are the same, or ask for more than a model."""
Admits = Callable[[onnx.ModelProto], bool]


@dataclass(frozen=True)
class NodeCounter:
    """Counts the nodes that a provider of ONNX Runtime would run of a model. NotOptimized for what it refuses."""

    provider: str
    python: str
    level: Level

    def __call__(self, proto: onnx.ModelProto) -> int:
        return len(optimized(proto, self.provider, python=self.python, level=self.level).nodes)


@dataclass(frozen=True)
class FusedModel:
    """What `best_fused` chose: ``proto``, the model, as it was given where nothing has fewer nodes; ``how`` says what
    made it, "" for nothing. ``before``, ``after``: nodes that the provider of ``counter`` would run, in float32."""

    proto: onnx.ModelProto
    how: str
    before: int
    after: int
    counter: NodeCounter


def best_fused(proto: onnx.ModelProto, provider: str, admits: Admits, *, python: str = "") -> FusedModel:
    """The fused model of those tried of which the provider runs fewest nodes; of equals, with fewest in its file.

    Args:
        proto: with its weights in it.
        provider: of the target. Where the environment has none such the CPU's counts, and no session fuses.
        admits: whether the target can run what was made.
        python: the interpreter of an environment with onnxruntime; this one if empty.

    Raises:
        NotOptimized: there is no onnxruntime, or it refuses the model.
    """
    counter = _node_counter(proto, provider, python)
    before = counter(proto)
    best, how, least = proto, "", (before, node_count(proto))
    for made, name in _fusions(proto, counter, python):
        if _interface(proto) != _interface(made) or not admits(made):
            continue
        size = (counter(made), node_count(made))
        if size < least:
            best, how, least = made, name, size
    if best is not proto:  # ONNX Runtime leaves metadata out when it writes a graph
        known = {entry.key for entry in best.metadata_props}
        best.metadata_props.extend(entry for entry in proto.metadata_props if entry.key not in known)
    return FusedModel(best, how, before, least[0], counter)


def _node_counter(proto: onnx.ModelProto, provider: str, python: str) -> NodeCounter:
    """What counts a model's nodes after optimisation: the target's provider, or the CPU's, without its own layouts,
    where the environment does not have that. Raises NotOptimized for a model that is refused."""
    try:
        optimized(proto, provider, python=python, level="DISABLE_ALL")
    except NotOptimized as why:
        if not why.elsewhere:
            raise
        return NodeCounter(CPU, python, "ENABLE_EXTENDED")
    return NodeCounter(provider, python, "ENABLE_ALL" if provider != CPU else "ENABLE_EXTENDED")


def _fusions(proto: onnx.ModelProto, counter: NodeCounter, python: str) -> Iterator[tuple[onnx.ModelProto, str]]:
    """Fused models and what made each, in words: as the target's session of ONNX Runtime writes it out (if ``counter``
    is of the target), and as the transformers optimizer makes it for each architecture, without repetitions."""
    if counter.level == "ENABLE_ALL":
        yield write_optimized(proto, counter.provider, python=python), "a session"
    seen: set[tuple[str, ...]] = set()
    plain = write_optimized(proto, CPU, python=python, level="ENABLE_BASIC")
    with tempfile.TemporaryDirectory(prefix="ampgraph-") as scratch:
        given = Path(scratch, "model.onnx")
        given.write_bytes(plain.SerializeToString())
        for path in fuse_for(given, Path(scratch), ARCHITECTURES, python=python):
            made = onnx.load(path)
            kinds = tuple(sorted(kind_of(node) for node, _ in walk_nodes(made.graph)))
            if kinds not in seen:
                seen.add(kinds)
                yield made, f"the transformers optimizer, as {path.stem}"


def node_count(proto: onnx.ModelProto) -> int:
    """Nodes of a file that ONNX Runtime's optimizer wrote, bodies included."""
    return sum(1 for _ in walk_nodes(proto.graph))


def _interface(proto: onnx.ModelProto) -> list[tuple[str, int]]:
    """Of a file for ONNX Runtime's optimizer: names and element types of inputs that must be fed, and of outputs."""
    stored = {tensor.name for tensor in proto.graph.initializer}
    values = [value for value in proto.graph.input if value.name not in stored]
    return [(value.name, value.type.tensor_type.elem_type) for value in (*values, *proto.graph.output)]
