"""The graph that a target's ONNX Runtime would run, from a process of its own, in this environment or in another one.

A session is opened, and nothing is run: the runtime fuses, chooses kernels, places nodes and adds its copies, and
writes the graph that results. A model that kills the runtime kills that process alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import onnx

from ..core.errors import AmpError
from . import fuse_one, optimize_one
from .optimized import Optimized, name_nodes, read_optimized

Level = Literal["DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_ALL"]
SIZE_LIMIT = 2_000_000_000  # bytes: protobuf writes no more in one piece
SECONDS = 600.0


class NotOptimized(Exception):
    """No session was made; the message says why. ``elsewhere``: the environment is at fault, not the model."""

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
    """The optimised graph of a model.

    Args:
        model: a path, or a model whose external data, if any, lies in ``folder``.
        provider: whose graph; what it does not take falls to the CPU's.
        python: the interpreter of an environment with onnxruntime; this one if empty.
        level: of the runtime's optimisations.

    Raises:
        NotOptimized: there is no such provider, or the runtime refuses the model, or dies of it.
        AmpError: AMP508 for an interpreter that cannot be started.
    """
    proto, folder = named(model, folder)
    with tempfile.TemporaryDirectory(prefix="ampgraph-") as scratch:
        made, runtime, log = _opened(proto, provider, python, level, folder, Path(scratch))
        return read_optimized(proto, onnx.load(made, load_external_data=False), log, runtime)


def written_out(
    model: onnx.ModelProto, provider: str, *, python: str = "", level: Level = "ENABLE_EXTENDED"
) -> onnx.ModelProto:
    """A model, its weights in it, as the runtime writes it out when it has optimised it; as `optimized` otherwise."""
    with tempfile.TemporaryDirectory(prefix="ampgraph-") as scratch:
        return onnx.load(_opened(named(model, "")[0], provider, python, level, "", Path(scratch))[0])


def _opened(
    proto: onnx.ModelProto, provider: str, python: str, level: Level, folder: str, scratch: Path
) -> tuple[Path, str, str]:
    """The file that a session wrote of its graph, the runtime's name, and what it logged."""
    if proto.ByteSize() > SIZE_LIMIT:
        raise NotOptimized("it is over 2 GB in one piece")
    given, made = scratch / "model.onnx", scratch / "optimized.onnx"
    given.write_bytes(proto.SerializeToString())
    told, log = _ask(python, optimize_one.__file__, [str(given), str(made), _providers(provider), level, folder])
    runtime = f"ONNX Runtime {told.get('runtime', '')}"
    if "error" in told:
        raise NotOptimized(f"{runtime}: {told['error']}", elsewhere=_absent(told, provider))
    if provider not in told["providers"]:
        raise NotOptimized(f"{runtime} cannot start {provider} here", elsewhere=True)
    return made, runtime, log


def fused_for(model: Path, folder: Path, architectures: Sequence[str], *, python: str = "") -> list[Path]:
    """The files that ONNX Runtime's transformers optimizer made of a file, by its fusions for some architectures.

    Raises NotOptimized where that environment has no such optimizer, and as `optimized`.
    """
    told, _ = _ask(python, fuse_one.__file__, [str(model), str(folder), ",".join(architectures)])
    if "error" in told:
        raise NotOptimized(f"the transformers optimizer cannot be used: {told['error']}", elsewhere=True)
    return [folder / f"{name}.onnx" for name in told["made"]]


def named(model: str | os.PathLike[str] | onnx.ModelProto, folder: str) -> tuple[onnx.ModelProto, str]:
    """A copy whose nodes have names of their own, and the folder of its external data."""
    proto = onnx.ModelProto()
    if isinstance(model, onnx.ModelProto):
        proto.CopyFrom(model)
    else:
        proto = onnx.load(os.fspath(model), load_external_data=False)
        folder = os.path.dirname(os.path.abspath(model))
    name_nodes(proto.graph)
    return proto, os.path.abspath(folder) if folder else ""


def _providers(provider: str) -> str:
    return ",".join(dict.fromkeys((provider, "CPUExecutionProvider")))


def _absent(told: dict[str, Any], provider: str) -> bool:
    return provider not in told["available"]


def _ask(python: str, script: str, words: list[str]) -> tuple[dict[str, Any], str]:
    """What the child process answered, and what the runtime logged."""
    words = [python or sys.executable, "-I", script, *words]
    try:
        ended = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=SECONDS
        )
    except OSError as error:
        hint = "name the python of an environment that has onnxruntime-gpu"
        raise AmpError("AMP508", f"cannot be started: {error.strerror or error}", where=python, hint=hint) from error
    except subprocess.TimeoutExpired as error:
        raise NotOptimized(f"no session was made within {SECONDS:g} seconds") from error
    if ended.returncode < 0:
        died = signal.strsignal(-ended.returncode) or f"signal {-ended.returncode}"
        raise NotOptimized(f"ONNX Runtime dies of it while it loads: {died}")
    lines = ended.stdout.strip().splitlines()
    if ended.returncode or not lines:
        last = (ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"])[-1]
        raise AmpError("AMP508", f"is not a working Python: {last}", where=python or sys.executable)
    told: dict[str, Any] = json.loads(lines[-1])
    return told, ended.stderr
