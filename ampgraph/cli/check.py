"""`ampgraph check`: its arguments and printing."""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated

import typer

from ..core.recipe_values import dims
from .options import DataOption, DimOption, SamplesOption
from .terminal import done, progress, show, show_json, signals_wait

TargetOption = Annotated[
    str, typer.Option("--target", metavar="TARGET", help="The target that --runtime builds an engine for.")
]
RuntimeOption = Annotated[
    str, typer.Option("--runtime", metavar="PYTHON", help="The python of an environment with TensorRT for RTX.")
]
FORMATS = ("text", "json", "junit", "sarif")


def check(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="The .onnx or .mindir files.")],
    against: Annotated[
        str | None, typer.Option("--against", metavar="ORIGINAL", help="The float32 model that they were made from.")
    ] = None,
    data: DataOption = None,
    samples: SamplesOption = None,
    tolerance: Annotated[
        float, typer.Option("--tolerance", metavar="X", help="The error that 9 of 10 samples must meet.")
    ] = 1e-2,
    dim: DimOption = None,
    target: TargetOption = "tensorrt",
    runtime: RuntimeOption = "",
    form: Annotated[
        str, typer.Option("--format", metavar="|".join(FORMATS), help="How the report is written.")
    ] = "text",
) -> None:
    """Say whether model files are sound: for continuous integration, or before a commit.

    \b
    ampgraph check models/*.onnx
    ampgraph check model.O2.onnx --against model.onnx --data samples/
    ampgraph check model.O2.onnx --against model.onnx --runtime build/tensorrt/bin/python
    ampgraph check model.O2.onnx --format junit > report.xml

    A file reads, with data files that belong to it; it is valid; no stored tensor holds NaN; no Cast is idle; ONNX
    Runtime opens it, with its default optimisations; TensorRT builds it, with --runtime; a strict run is finite, and
    right beside --against. The exit code is 1 where something of that is an error.
    """
    with signals_wait():
        from ..api.check_model import check as look
        from ..core.errors import AmpError, nearest
        from ..report.findings import junit, sarif

    if form not in FORMATS:
        hint = nearest(form, list(FORMATS)) or f"one of {', '.join(FORMATS)}"
        raise AmpError("AMP301", f"invalid value for --format: {form}", hint=hint)
    with progress() as bar:
        found, sizes = [], dict(dims(dim))
        for model in models:
            bar.stage(f"checking {model}")
            asked = partial(look, model, against, data=data, samples=samples, tolerance=tolerance)
            found.append(asked(dims=sizes, target=target, runtime=runtime))
        done()
    if form == "json":
        show_json([one.to_dict() for one in found])
    else:
        written = {"junit": junit, "sarif": sarif}.get(form)
        show([line for one in found for line in one.lines()] if written is None else written(found).splitlines())
    if not all(one.ok for one in found):
        sys.stdout.flush()
        sys.exit(1)
