"""Models executed by a runtime that computes in low precision for real, in a process of its own.

runtime = Runtime("openvino", python="beside/bin/python")      # this environment's Python if empty
session = ExecutedSession(runtime, "model.O1.onnx", inputs, outputs)
session.run(feeds); session.layers()                           # what every layer was computed in

The process has every session of its runtime. A model that kills it is an error like any other, AMP504.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
import tempfile
import threading
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..core.arrays import Feeds, Result
from ..core.errors import AmpError, NoMemory
from ..core.installing import pip_install
from ..core.low_types import numpy_type
from ..core.shown import Data
from . import session_one
from .child import signal_words
from .onnxruntime_session import out_of_memory
from .ports import Port, check_feeds, contradiction, names_of_outputs

SECONDS = 600.0  # for one question
ELSEWHERE = "; --runtime PYTHON names an environment that has it"


@dataclass(frozen=True)
class ExecutedLayer(Data):
    """A layer of what a runtime made of a model: its kind there, the type it computes in, the nodes of the file in it;
    "" and () where the runtime does not say."""

    name: str
    kind: str
    dtype: str
    nodes: tuple[str, ...]
    on: str = ""
    """The provider of ONNX Runtime that has it."""


class Runtime:
    """A process of a runtime, which lives as long as this object.

    Attributes:
        name: with its version.
        low: the low types that it computes in here; in others it takes a file and computes it in float32.
        note: what its times do not say; empty where they say what they are.
    """

    def __init__(self, kind: str, python: str = "") -> None:
        """``kind``: an extra of the package. Raises AmpError AMP501 where it is not installed, AMP508 for what is no
        working Python."""
        self._kind, self._python = kind, python
        self._folder = tempfile.TemporaryDirectory(prefix="ampgraph-")
        self.scratch = Path(self._folder.name)
        words = [python or sys.executable, "-I", session_one.__file__, kind]
        self._errors = open(self.scratch / "stderr", "w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        try:
            self._child = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
            )
        except OSError as error:
            hint = f"name the python of an environment: {pip_install(kind)}"
            raise AmpError(
                "AMP508", f"cannot be started: {error.strerror or error}", where=words[0], hint=hint
            ) from error
        weakref.finalize(self, _end_process, self._child, self._errors, self._folder)
        about = self._read_answer()
        if about is None:
            raise AmpError("AMP508", f"is not a working Python: {self._why_ended()}", where=words[0])
        if "lacking" in about:
            raise AmpError("AMP501", f"{about['lacking']} ({words[0]})", hint=pip_install(kind) + ELSEWHERE)
        self.name, self.low, self.note = str(about["runtime"]), tuple(about["low"]), str(about.get("note", ""))

    def ask(self, asked: str, **question: object) -> dict[str, Any]:
        """The answer of the runtime's process to a question of `session_one`, a method and its arguments. Raises
        AmpError AMP504 where the process dies, RuntimeError where it refuses or fails."""
        assert self._child.stdin is not None
        found = None
        if self._child.poll() is None:
            self._child.stdin.write(json.dumps({"ask": asked, **question}) + "\n")
            self._child.stdin.flush()
            found = self._read_answer()
        if found is None:
            raise AmpError(
                "AMP504", f"{self.name} dies of it: {self._why_ended()}", hint="ampgraph check names the cause"
            )
        if "error" in found:
            raise RuntimeError(found["error"])
        return found

    @property
    def alive(self) -> bool:
        """Whether the runtime's process runs, so that more can be asked."""
        return self._child.poll() is None

    def _read_answer(self) -> dict[str, Any] | None:
        """The next answer of the runtime's process, as JSON; None where that ended, or took more than `SECONDS`."""
        assert self._child.stdout is not None
        timer = threading.Timer(SECONDS, self._child.kill)
        timer.start()
        try:
            line = self._child.stdout.readline()
        finally:
            timer.cancel()
        found: dict[str, Any] | None = json.loads(line) if line.endswith("\n") else None
        return found

    def _why_ended(self) -> str:
        """Why the process ended: the last line that it wrote, or the signal that killed it."""
        code = self._child.wait()
        self._errors.seek(0)
        last = (self._errors.read().strip().splitlines() or [f"exit status {code}"])[-1]
        return signal_words(code) if code < 0 else last


def is_here(kind: str) -> bool:
    """Whether a kind of runtime (OpenVINO, WebGPU) is installed in this Python."""
    return importlib.util.find_spec(session_one.KINDS[kind].module) is not None


def _end_process(child: subprocess.Popen[str], errors: Any, folder: tempfile.TemporaryDirectory[str]) -> None:
    """Ends a runtime's process, closes its pipes, and removes the folder of arrays."""
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout, errors):
        if pipe is not None:
            with contextlib.suppress(OSError):  # what was written last may have no reader any more
                pipe.close()
    folder.cleanup()


class ExecutedSession:
    """A model that a runtime has opened in its process. ``hint``: another precision than the file's, as `session_one`
    names it, "" for none; ``threads``: 0 for the runtime's own choice."""

    def __init__(
        self, runtime: Runtime, model: str, inputs: Mapping[str, Port], outputs: Mapping[str, Port], *,
        threads: int = 0, hint: str = "",
    ) -> None:  # fmt: skip
        """``model``: a file, with these inputs and outputs. Raises AmpError AMP502 where the runtime refuses it."""
        self.runtime, self.inputs, self.outputs, self.required = runtime, inputs, outputs, list(inputs)
        try:
            opened = runtime.ask("open", model=str(Path(model).absolute()), threads=threads, hint=hint)
        except RuntimeError as error:
            raise runtime_refusal(runtime.name, str(error), model) from error
        self._session = opened["session"]
        self._fed = _port_places(opened["inputs"], list(inputs))
        self._made = _port_places(opened["outputs"], list(outputs))

    def run(self, feeds: Feeds, *, outputs: Sequence[str] | None = None) -> dict[str, Result]:
        """Runs a target's runtime; outputs by name. AmpError AMP503 for what does not fit, AMP504 if it stops."""
        wanted = names_of_outputs(self.outputs, outputs)
        self.feed(feeds)
        self.time()
        return {name: value for name, value in self.results().items() if name in wanted}

    def feed(self, feeds: Feeds) -> None:
        """Sends the runtime's process the arrays, by input, that the next runs read."""
        checked = check_feeds(self.inputs, feeds, ())
        arrays = {str(self._fed[name]): array for name, array in checked.items() if name in self._fed}
        path = self.runtime.scratch / "feeds.npz"  # which takes bfloat16 as 16-bit words
        np.savez(path, **{n: a.view("V2") if a.dtype.name == "bfloat16" else a for n, a in arrays.items()})
        self._ask("feed", contradiction(self.inputs, checked), feeds=str(path))

    def time(self) -> tuple[float, float]:
        """Runs a target's runtime once on what was fed: the seconds that took, and CPU seconds of its process."""
        told = self._ask("run")
        return told["seconds"], told["cpu"]

    def results(self) -> dict[str, Result]:
        """The outputs of the session's last run, by name."""
        path = self.runtime.scratch / "results.npz"
        self._ask("results", results=str(path))
        with np.load(path) as arrays:
            found = {name: arrays[str(place)] for name, place in self._made.items()}
        low = numpy_type("bfloat16")
        return {name: array.view(low) if array.dtype.kind == "V" else array for name, array in found.items()}

    def close(self) -> None:
        """Frees what the runtime's process holds of the model."""
        self._ask("close")

    def layers(self) -> tuple[ExecutedLayer, ...]:
        """The layers that the runtime made of the model, with their types; empty where it does not tell."""
        rows = self._ask("layers")["layers"]
        return tuple(ExecutedLayer(r["name"], r["kind"], r["dtype"], tuple(r["nodes"]), r.get("on", "")) for r in rows)

    def _ask(self, asked: str, contradiction: str = "", **question: object) -> dict[str, Any]:
        """Asks the runtime's process about this session; its answer. Raises AmpError AMP504 where the model does not
        run, with ``contradiction``, what does not agree in what was fed, as a hint."""
        try:
            return self.runtime.ask(asked, session=self._session, **question)
        except RuntimeError as error:
            hint = f"{contradiction}: feed rows that belong together" if contradiction else "look at what was fed"
            raise AmpError("AMP504", f"{self.runtime.name} stopped: {telling_line(str(error))}", hint=hint) from error


def _port_places(ports: list[list[str]], names: Sequence[str]) -> dict[str, int]:
    """The place of each of the file's names among the ``ports`` of a runtime, each with its names there. Where there
    are as many, one that has other names there is known by its place; else it is left out."""
    by_name = {name: place for place, port in enumerate(ports) for name in port}
    if len(ports) == len(names):
        return {name: by_name.get(name, place) for place, name in enumerate(names)}
    return {name: by_name[name] for name in names if name in by_name}


def runtime_refusal(runtime: str, error: str, where: str) -> AmpError:
    """The error where a runtime refuses the model ``where``, in its words: AMP502, or AMP504 for want of memory."""
    if out_of_memory(RuntimeError(error)):
        return NoMemory(f"out of memory while {runtime} opens it", where=where, hint="try a smaller model")
    hint = "convert for its own --target, or hold the operator with --fp32"
    return AmpError("AMP502", f"{runtime} refuses the model: {telling_line(error)}", where=where, hint=hint)


def telling_line(error: str) -> str:
    """The line of a runtime's error that says most: the last that is no trace of C++ calls, or the last of all."""
    lines = [line.strip() for line in error.splitlines()]
    told = [
        line for line in lines if line and not line.startswith(("Exception from ", "Check '", "While ", "Summary:"))
    ]
    return (told or lines)[-1].rstrip(".")


def by_precision(layers: Sequence[ExecutedLayer]) -> dict[str, Counter[str]]:
    """Of the layers that a runtime made: float type -> kinds that compute in it, constants and boundaries left out."""
    found: dict[str, Counter[str]] = {}
    for layer in layers:
        if layer.dtype in ("float32", "bfloat16", "float16") and layer.kind not in ("Const", "Input", "Output"):
            found.setdefault(layer.dtype, Counter())[layer.kind] += 1
    return found
