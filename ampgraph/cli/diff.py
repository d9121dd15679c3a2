"""`ampgraph diff`: its arguments and printing."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ..core.recipe_values import dims
from .options import DataOption, DimOption, JsonOption, MetricOption, SamplesOption, SeedOption
from .terminal import done, progress, show, show_json, signals_wait

FirstArgument = Annotated[str, typer.Argument(metavar="A", help="A model, or a plan (.json).")]
SecondArgument = Annotated[str, typer.Argument(metavar="B", help="Another one, made from the same model.")]


ReferenceOption = Annotated[
    str | None,
    typer.Option("--reference", metavar="MODEL", help="What both were made from: both are run strictly beside it."),
]


def diff(
    first: FirstArgument,
    second: SecondArgument,
    reference: ReferenceOption = None,
    data: DataOption = None,
    samples: SamplesOption = None,
    seed: SeedOption = 0,
    dim: DimOption = None,
    metric: MetricOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Show in what two conversions of one model, or two plans for it, differ, and with --reference in error.

    \b
    ampgraph diff model.O1.onnx model.O2.onnx
    ampgraph diff before.json after.json
    ampgraph diff model.O1.onnx model.O2.onnx --reference model.onnx --data samples/

    The exit code is 1 where they differ.
    """
    with signals_wait():
        from ..api.diff import diff as compared
        from ..report.diff import difference_lines

    with progress() as bar:
        bar.stage("reading")
        found = compared(
            first, second, reference=reference, data=data, samples=samples, seed=seed, dims=dict(dims(dim)),
            metric=metric, progress=bar.part,
        )  # fmt: skip
        done()
    show_json(found.to_dict()) if as_json else show(difference_lines(found))
    if not found.alike:
        sys.stdout.flush()
        sys.exit(1)
