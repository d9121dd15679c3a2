"""`ampgraph verify`: its arguments and printing."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ..core.recipe_values import dims
from .options import (
    DataOption,
    DeviceOption,
    DimOption,
    HtmlOption,
    JsonOption,
    MetricOption,
    SamplesOption,
    SeedOption,
)
from .terminal import done, progress, show, show_json, signals_wait


def verify(
    reference: Annotated[str, typer.Argument(metavar="REFERENCE", help="The float32 .onnx or .mindir file.")],
    model: Annotated[str, typer.Argument(metavar="MODEL", help="What was made from it.")],
    data: DataOption = None,
    samples: SamplesOption = None,
    seed: SeedOption = 0,
    tolerance: Annotated[
        float,
        typer.Option("--tolerance", metavar="X", help="The error that 9 of 10 samples must meet at every output."),
    ] = 1e-2,
    metric: MetricOption = "auto",
    device: DeviceOption = "auto",
    dim: DimOption = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes", metavar="N", help="Name N nodes where the error grows; 5 where it is missed, else none."
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps", metavar="N", help="Run N steps from each sample, what a model remembers fed back to it."
        ),
    ] = None,
    cache: Annotated[
        list[str] | None,
        typer.Option(
            "--cache", metavar="IN=OUT", help="An output to feed back, 'past_*=present_*'; found if not given."
        ),
    ] = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say whether a model still computes what its reference does, and which nodes are to blame if not.

    \b
    ampgraph verify model.onnx model.O2.onnx
    ampgraph verify model.onnx model.O2.onnx --data samples/ --tolerance 1e-3
    ampgraph verify decoder.onnx decoder.O2.onnx --steps 64

    On the CPU an ONNX model runs strictly: every low value is really rounded, which a plain run does not do. The exit
    code is 1 where the tolerance is missed, or anything is infinite or NaN that is finite in the reference.
    """
    with signals_wait():
        from ..api.verify import verify as compare
        from ..report.verification import verification_lines

    with progress() as bar:
        found = compare(
            reference, model, data=data, samples=samples, tolerance=tolerance, metric=metric, device=device,
            seed=seed, dims=dict(dims(dim)), nodes=nodes, steps=steps, cache=cache or (), html=html, progress=bar.part,
        )  # fmt: skip
        done()
    show_json(found.to_dict()) if as_json else show(verification_lines(found))
    if not found.ok:
        sys.stdout.flush()
        sys.exit(1)
