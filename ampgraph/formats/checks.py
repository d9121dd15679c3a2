"""What is checked around a conversion: nothing is written over its input, and a damaged model is reported as such."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import AmpError, first_line
from ..core.files import refusals_reported, refuse_output, temporaries
from ..core.graph import Graph, is_mindir

MODEL_SUFFIXES = {".onnx", ".mindir"}


def refuse_overwriting(graph: Graph, output: Path, sources: Iterable[Path], option: str) -> None:
    """As `refuse_output`, the model's data files among the sources."""
    refuse_output(output, [*sources, *graph.data_files()], option)


def refuse_result(graph: Graph, output: Path, sources: Iterable[Path], option: str) -> None:
    """As `refuse_overwriting`, and AMP105 for a result that would be named like a model of the other format."""
    if output.suffix.lower() in MODEL_SUFFIXES - {graph.suffix}:
        message = f"is named like another format: the model is {graph.format}, and stays it"
        raise AmpError("AMP105", message, where=str(output), hint=f"{option} {output.with_suffix(graph.suffix)}")
    refuse_overwriting(graph, output, sources, option)


@contextlib.contextmanager
def model_files(path: Path) -> Iterator[Callable[[str], Path]]:
    """Names of temporary files beside a model that is written, removed at the end whatever happens.

    Raises AmpError AMP105 for a place that can be no file, and for what the system refuses inside."""
    with refusals_reported(path, "-o"), temporaries(path) as temporary:
        refuse_output(path)
        yield temporary


@contextlib.contextmanager
def faults_reported(*models: object) -> Iterator[None]:
    """Where something fails that should not, tells whether the models, files or ModelProtos, were valid to begin with;
    of other things nothing is said."""
    import logging

    logging.getLogger("onnx_ir").setLevel(logging.CRITICAL)  # its warnings would come before the one message
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, AmpError) and not error.code.startswith("AMP9"):
            raise
        for model in models:
            fault = "" if is_mindir(model) else _fault(model)
            if fault:
                raise AmpError(
                    "AMP204",
                    f"cannot be used: the file is faulty: {fault}",
                    where=str(model) if isinstance(model, (str, os.PathLike)) else "model",
                    hint="export it again, or repair it; AMPGRAPH_DEBUG=1 shows where it failed",
                ) from error
        raise


def _fault(model: object) -> str:
    """The first thing that onnx.checker says against a model, or an empty string."""
    import onnx

    if not isinstance(model, (str, os.PathLike, onnx.ModelProto)):
        return ""
    try:
        onnx.checker.check_model(model, full_check=True)
        proto = model if isinstance(model, onnx.ModelProto) else onnx.load(model, load_external_data=False)
        return "it holds names that are no text" if _no_text(proto) else ""
    except Exception as error:  # the checker raises several kinds
        return first_line(error)


def _no_text(message: Any) -> bool:
    """Whether a string field of a protobuf message, however deep, is not UTF-8."""
    for field, value in message.ListFields():
        items = value if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else [value]
        if field.type == field.TYPE_STRING and any(isinstance(item, bytes) for item in items):
            return True
        if field.type == field.TYPE_MESSAGE and any(_no_text(item) for item in items):
            return True
    return False
