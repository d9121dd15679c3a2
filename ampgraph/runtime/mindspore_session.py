"""Running a .mindir file on MindSpore's graph executor: on the CPU, or on an Ascend NPU.

Unverified here: everything on Ascend; the calls are those that MindSpore 2.10 documents. On the CPU low values are
stored low and computed in float32, and most bfloat16 operators have no kernel.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ..core.arrays import Array, Feeds, Result
from ..core.errors import AmpError, first_line, nearest
from ..core.installing import pip_install
from ..core.low_types import numpy_type
from ..formats.mindir import io as mindir_io
from ..formats.mindir.schema import ELEMENT_TYPES, TENSOR, TENSORS
from .ports import Port, Tensor, check_feeds, names_of_outputs

UNKNOWN_RANK = (-2,)  # how MindSpore writes a shape of which nothing is known
TENSOR_KINDS = (TENSOR, TENSORS)


@dataclass(frozen=True)
class MindirPorts:
    """What a MindIR file takes and gives. Inputs bear the names of the arguments that were exported, in their order;
    outputs, which have no names in MindIR, are ``output0``, ``output1``, ... (a tuple counts by its elements)."""

    inputs: dict[str, Port]
    outputs: dict[str, Port]
    prefix: str  # what the file writes before every name: the graph's own and a colon
    low: frozenset[str]  # float16, bfloat16: those that occur among the stored and computed tensors

    def check(self, feeds: Feeds) -> dict[str, Array | Tensor]:
        """For a session of MindSpore: the feeds, given by short or full names, by short ones in the file's order, as
        arrays or Tensors. Raises AmpError AMP503 for what does not fit or is given twice."""
        given: dict[str, Result] = {}
        for word, value in feeds.items():
            name = word.removeprefix(self.prefix)
            if name in given:
                raise AmpError("AMP503", f"input '{name}' is given twice", hint="by its short or its full name")
            given[name] = value
        checked = check_feeds(self.inputs, given, ())
        return {name: checked[name] for name in self.inputs}


def _mindir_port(name: str, dtype: str, dims: tuple[int, ...]) -> Port:
    """An input or output as MindIR says it: -1 is an open size, -2 alone an unknown rank."""
    ranked = dims != UNKNOWN_RANK
    return Port(name, dtype, tuple(None if dim == -1 else dim for dim in dims) if ranked else (), ranked)


def read_ports(path: str | os.PathLike[str]) -> tuple[MindirPorts, Any]:
    """The inputs and outputs of a MindIR file by short names, and its ModelProto.

    Raises AmpError AMP1xx for the file, AMP502 for an input that is not a tensor.
    """
    model = mindir_io.load(path).model
    prefix = f"{model.graph.name}:"
    inputs = [_input_port(value, value.name.removeprefix(prefix), path) for value in model.graph.input]
    found: list[Any] = []
    for value in model.graph.output:
        found += value.tensor or _tuple_tensors(value.attr_info)
    outputs = [
        _mindir_port(f"output{index}", ELEMENT_TYPES.get(tensor.data_type, "other"), tuple(tensor.dims))
        for index, tensor in enumerate(found)
    ]
    low = _low_types(model)
    return MindirPorts({p.name: p for p in inputs}, {p.name: p for p in outputs}, prefix, low), model


def _low_types(model: Any) -> frozenset[str]:
    """For a session of MindSpore: the low types that parameters and constants of a MindIR ModelProto have."""
    graphs = (model.graph, *model.functions)
    kinds = {tensor.data_type for graph in graphs for tensor in graph.parameter}
    nodes = (node for graph in graphs for node in graph.node)
    kinds |= {tensor.data_type for node in nodes for entry in node.attribute for tensor in entry.tensors}
    return frozenset({ELEMENT_TYPES.get(kind, "") for kind in kinds} & {"float16", "bfloat16"})


def _tuple_tensors(info: Any) -> Iterator[Any]:
    """The tensors of a tuple that a MindIR file declares as an output (an AttributeProto), however deep, in order."""
    if info.type in TENSOR_KINDS:
        yield from info.tensors
    for value in info.values:
        yield from _tuple_tensors(value)


def _input_port(value: Any, name: str, path: Any) -> Port:
    """An input of a MindIR file (a ValueInfoProto) as the port ``name``. Raises AmpError AMP502 for what is no tensor
    of numbers; ``path``: the file, for it."""
    if len(value.tensor) != 1:
        hint = "export a network whose arguments are tensors"
        raise AmpError("AMP502", f"input '{name}' is a tuple or a number, not a tensor", where=str(path), hint=hint)
    kind = ELEMENT_TYPES.get(value.tensor[0].data_type, "")
    if not kind or kind == "string":
        raise AmpError("AMP502", f"'{name}' has a type that cannot be fed", where=str(path), hint="export numbers")
    return _mindir_port(name, kind, tuple(value.tensor[0].dims))


# -- what runs it -----------------------------------------------------------------------------------------------------

DEVICES = {"cpu": "CPU", "ascend": "Ascend", "auto": ""}
DUMPS = "MS_OM_PATH"  # a graph that does not compile is written there, or beside the user's files
LOG_LEVEL = "GLOG_v"  # 4: what ends the process, nothing else


def import_mindspore() -> ModuleType:
    """The mindspore module. Raises AmpError AMP501 where it is not installed.

    Whoever imports it first decides how much it logs: ours is silent, for its errors are raised as well.
    """
    loaded = "mindspore" in sys.modules
    quiet = not loaded and LOG_LEVEL not in os.environ
    if quiet:
        os.environ[LOG_LEVEL] = "4"
    try:
        import mindspore
    except ImportError as error:
        message = "mindspore is not installed"
        if not isinstance(error, ModuleNotFoundError) or error.name != "mindspore":
            message = f"mindspore cannot be imported: {first_line(error)}"
        raise AmpError("AMP501", message, hint=pip_install("mindspore")) from error
    finally:
        if quiet:
            os.environ.pop(LOG_LEVEL, None)
    module: ModuleType = mindspore
    return module


def select_device(ms: ModuleType, device: str) -> str:
    """Makes ``cpu``, ``ascend`` or whatever is there (``auto``) the device of this process; returns MindSpore's name.

    On Ascend the types in the file are kept (precision mode must_keep_origin_dtype). Raises AmpError AMP321 for an
    unknown word, AMP505 for a device that is not there.
    """
    word = device.lower() if isinstance(device, str) else device
    if word not in DEVICES:
        hint = nearest(str(device), list(DEVICES)) or f"there are: {', '.join(DEVICES)}"
        raise AmpError("AMP321", f"unknown device '{device}'", hint=hint)
    current = ms.get_context("device_target")
    wanted = DEVICES[word] or current
    if wanted != current:
        try:
            ms.set_device(wanted)
        except (RuntimeError, ValueError) as error:
            message = f"mindspore {ms.__version__} finds no {wanted} device here: {_devices_there(error)}"
            hint = (
                "install the NPU driver and the CANN toolkit, source its set_env.sh, then install mindspore for it; "
                "or use device cpu"
            )
            raise AmpError("AMP505", message, hint=hint if wanted == "Ascend" else "use device auto") from error
    if wanted == "Ascend":
        _keep_file_types(ms)
    return wanted


def _devices_there(error: BaseException) -> str:
    """The devices that MindSpore runs on here, in words, from its error about another one; else that error's words."""
    found = re.search(r"only supports one of the \[(.*?)\]", str(error))
    return "it runs on " + found[1].replace("'", "") + " only" if found else error_words(error)


def _keep_file_types(ms: ModuleType) -> None:
    """For all sessions of MindSpore on Ascend: computes in the types of the file; AMP505 where others were chosen."""
    try:
        ms.device_context.ascend.op_precision.precision_mode("must_keep_origin_dtype")
    except RuntimeError as error:
        message = (
            f"another Ascend precision mode is set, which would override the types in the file: {error_words(error)}"
        )
        raise AmpError("AMP505", message, hint="set none, or must_keep_origin_dtype") from error


@contextlib.contextmanager
def graph_mode(ms: ModuleType) -> Iterator[None]:
    """Sets MindSpore's GRAPH mode inside of the with, the caller's mode afterwards."""
    before = ms.get_context("mode")
    if before == ms.GRAPH_MODE:
        yield
        return
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        yield
    finally:
        ms.set_context(mode=before)


def error_words(error: BaseException) -> str:
    """What an error of MindSpore says, in one line: its headings, advice and call stacks left out."""
    for line in str(error).splitlines():
        text = line.strip()
        if text and not text.startswith("- ") and text.strip("-"):
            return text.split(", Please")[0].split(". Please")[0].split(", please")[0].rstrip(". ")
    return first_line(error)


def load_cell(ms: ModuleType, path: str | os.PathLike[str]) -> Any:
    """The nn.GraphCell that MindSpore makes of a MindIR file. Raises AmpError AMP502."""
    if Path(path).suffix != ".mindir":
        hint = "rename it, with its data folder"
        raise AmpError("AMP502", "MindSpore reads files named *.mindir only", where=str(path), hint=hint)
    try:
        return ms.nn.GraphCell(ms.load(str(path)))
    except Exception as error:  # the loader raises several kinds
        hint = "export it again; `ampgraph inspect` may name the fault"
        raise AmpError(
            "AMP502", f"MindSpore refuses the model: {error_words(error)}", where=str(path), hint=hint
        ) from error


@contextlib.contextmanager
def reporting_stops(ports: MindirPorts, device: str) -> Iterator[None]:
    """Turns an error of MindSpore inside of the with, while it compiles or runs, into an AmpError AMP504; what it dumps
    then goes to a folder that ends with the process. ``device``: MindSpore's name for it."""
    dumps_elsewhere = DUMPS in os.environ
    os.environ.setdefault(DUMPS, _dump_folder().name)
    try:
        yield
    except AmpError:
        raise
    except Exception as error:  # RuntimeError, TypeError, ValueError: as it comes
        hint = "GLOG_v=1 shows what MindSpore did"
        if "bfloat16" in ports.low and device == "CPU":
            hint = "MindSpore's CPU has few bfloat16 kernels: run it on Ascend, or convert with --dtype float16"
        raise AmpError("AMP504", f"MindSpore stopped: {error_words(error)}", hint=hint) from error
    finally:
        if not dumps_elsewhere:
            os.environ.pop(DUMPS, None)


@functools.cache
def _dump_folder() -> tempfile.TemporaryDirectory[str]:
    """A temporary folder for what MindSpore writes beside a run, one for each process."""
    return tempfile.TemporaryDirectory(prefix="ampgraph-")  # goes with the process


def to_tensors(ms: ModuleType, arrays: Mapping[str, Array | Tensor]) -> list[Tensor]:
    """Checked feeds as tensors of MindSpore, in their order; those that are tensors already stay where they are."""
    return [a if hasattr(a, "asnumpy") else ms.Tensor(np.asarray(a, order="C")) for a in arrays.values()]


def to_numpy(tensor: Tensor) -> Array:
    """A tensor of MindSpore as an array; bfloat16 as ml_dtypes has it."""
    array = np.asarray(tensor.asnumpy())
    return array.view(np.uint16).view(numpy_type("bfloat16")) if array.dtype.name == "bfloat16" else array


class MindsporeSession:
    """A .mindir file, loaded once and run often.

    State that the file updates (a whole training step) is kept from run to run.
    Raises AmpError: AMP1xx for the file, AMP501 without MindSpore, AMP502 for a model that it refuses, AMP505 for a
    device that is not there.
    """

    def __init__(self, path: str | os.PathLike[str], device: str = "auto") -> None:
        self.ports, _ = read_ports(path)
        self.inputs, self.outputs = self.ports.inputs, self.ports.outputs
        self.required = list(self.inputs)
        self._ms = import_mindspore()
        self.device = select_device(self._ms, device)
        self._cell = load_cell(self._ms, path)

    def run(self, feeds: Feeds, *, outputs: Sequence[str] | None = None) -> dict[str, Array]:
        """Runs MindSpore once; the outputs by name, all or some.

        Raises AmpError AMP503 for feeds that do not fit and an output that is not there, AMP504 when MindSpore stops.
        """
        arrays = self.ports.check(feeds)
        with reporting_stops(self.ports, self.device), graph_mode(self._ms):
            results = self._cell(*to_tensors(self._ms, arrays))
            found = [to_numpy(tensor) for tensor in _flat_results(results)]
        names = list(self.outputs)
        if len(names) != len(found):  # the file tells less than MindSpore gives
            names = [f"output{index}" for index in range(len(found))]
        made = dict(zip(names, found, strict=True))
        return {name: made[name] for name in names_of_outputs(made, outputs)}


def _flat_results(results: Any) -> Iterator[Tensor]:
    """The tensors of what a MindSpore graph returns, nested tuples and lists of them, in order."""
    if isinstance(results, (tuple, list)):
        for result in results:
            yield from _flat_results(result)
    else:
        yield results
