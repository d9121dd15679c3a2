"""Sessions of ONNX Runtime over models in memory whose weights may lie in files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..runtime.devices import import_onnxruntime
from ..runtime.onnxruntime_session import QUIET

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, SessionOptions

CPU = ("CPUExecutionProvider",)
SEARCHES = ["TransposeOptimizer", "CommonSubexpressionElimination"]
"""Optimisers that search the whole graph: a fifth of the opening, and nothing won in a few runs; exact both ways."""


def quiet_options(folder: str, threads: int = 0) -> SessionOptions:
    """The runtime\'s options for a session that logs nothing; ``folder``: where the data files of the model are."""
    options = import_onnxruntime().SessionOptions()
    options.log_severity_level = QUIET
    options.intra_op_num_threads = threads
    if folder:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    return options


def cpu_options(folder: str, threads: int = 0) -> SessionOptions:
    """The options for a strict run: what a pair of Casts rounds stays rounded at this level."""
    options = quiet_options(folder, threads)
    options.enable_mem_reuse = False  # its plan takes the square of the nodes; arrays are freed all the same
    options.graph_optimization_level = import_onnxruntime().GraphOptimizationLevel.ORT_ENABLE_BASIC
    return options


def in_file_order(options: SessionOptions) -> SessionOptions:
    """The options with nodes run in the order of the graph, but for sizes, which come as soon as they can."""
    options.execution_order = import_onnxruntime().ExecutionOrder.PRIORITY_BASED
    return options


def opened(content: bytes, options: SessionOptions, providers: tuple[str, ...] = CPU) -> InferenceSession:
    """A session of the runtime; what it raises is the runtime's own."""
    runtime = import_onnxruntime()
    return runtime.InferenceSession(content, options, providers=list(providers), disabled_optimizers=SEARCHES)


def opened_anyhow(content: bytes, options: SessionOptions) -> InferenceSession:
    """A session on the CPU, without optimizations where these break the model: some do beside what nobody reads.

    It raises the runtime's own first error where it does not open so either.
    """
    try:
        return opened(content, options)
    except Exception as error:  # onnxruntime raises kinds of its own for every fault
        options.graph_optimization_level = import_onnxruntime().GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            return opened(content, options)
        except Exception:
            raise error from None
