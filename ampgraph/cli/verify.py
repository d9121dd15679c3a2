"""`ampgraph verify` and `ampgraph tune`: their arguments and printing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import AmpError
from ..core.files import refuse_output, sources_of
from ..core.recipe import Given, recipe_of
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
    recipe_options,
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

    with progress() as bar:
        found = compare(
            reference, model, data=data, samples=samples, tolerance=tolerance, metric=metric, device=device,
            seed=seed, dims=dict(dims(dim)), nodes=nodes, steps=steps, cache=cache or (), html=html, progress=bar.part,
        )  # fmt: skip
        done()
    show_json(found.to_dict()) if as_json else show(found.lines())
    if not found.ok:
        sys.stdout.flush()
        sys.exit(1)


@recipe_options()
def tune(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The float32 .onnx file.")],
    data: DataOption = None,
    tolerance: Annotated[
        float, typer.Option("--tolerance", metavar="X", help="The error that 9 of 10 samples must meet.")
    ] = 1e-2,
    metric: MetricOption = "l2",
    samples: SamplesOption = None,
    seed: SeedOption = 0,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="OUT", help="Write the tuned model there.")
    ] = None,
    *,
    fields: Given,
    sensitivity: Annotated[
        str | None,
        typer.Option(
            "--sensitivity", metavar="FILE.json|FILE.csv", help="Write which nodes matter how much; 18 runs more."
        ),
    ] = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find as little float32 as meets a tolerance, by at most 20 strict runs over the samples.

    \b
    ampgraph tune model.onnx --data samples/ --tolerance 5e-3 -o tuned.onnx
    ampgraph tune model.onnx --data samples/ --metric argmax --tolerance 0.01 --json

    Without -o no model is written: the report lists the patterns for `convert`. The exit code is 1 where the tolerance
    cannot be met; nothing is written then.
    """
    with signals_wait():
        from ..api.tune import tune as find
        from ..core.files import text_file

    if sensitivity is not None:
        _refuse_table(sensitivity, model, data, output)
    with progress() as bar:
        found = find(
            model, recipe=recipe_of(None, fields), data=data, tolerance=tolerance, metric=metric, samples=samples,
            seed=seed, output=output, sensitivity=sensitivity is not None, html=html, progress=bar.part,
        )  # fmt: skip
        if sensitivity is not None and found.sensitivity is not None:
            table = found.sensitivity
            with text_file(
                sensitivity, table.to_csv if sensitivity.endswith(".csv") else table.to_json, "--sensitivity"
            ):
                pass
        done()
    show_json(found.to_dict()) if as_json else show(found.lines())
    if not found.met:
        sys.stdout.flush()
        sys.exit(1)


def _refuse_table(path: str, *sources: str | None) -> None:
    """Raises AmpError AMP311 for an unknown format, AMP105 and AMP106 for a path that cannot be written."""
    if not path.endswith((".json", ".csv")):
        hint = "end its name in .json or .csv"
        raise AmpError("AMP311", f"--sensitivity {path}: unknown file format", hint=hint)
    refuse_output(Path(path), sources_of(*sources), "--sensitivity")
