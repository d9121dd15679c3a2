"""`ampgraph convert`: its arguments and printing."""

from __future__ import annotations

from typing import Annotated

import typer

from ..core.recipe import Given, flags, recipe_of
from .console import done, progress, show, show_json, signals_wait
from .options import JsonOption, ModelArgument, recipe_options

OutputOption = Annotated[
    str | None, typer.Option("-o", "--output", metavar="OUT", help="Default: MODEL.O2.onnx beside the input.")
]
PlanInOption = Annotated[
    str | None, typer.Option("--plan-in", metavar="FILE", help="Apply this plan; it says all the options above.")
]
PlanOutOption = Annotated[
    str | None, typer.Option("--plan-out", metavar="FILE", help="Write the plan as JSON, in a dry run too.")
]
DataOption = Annotated[
    str | None,
    typer.Option(
        "--data", metavar="DIR|FILE.npz", help="Measure ranges on these samples: what would overflow stays float32."
    ),
]
SamplesOption = Annotated[
    int | None,
    typer.Option("--samples", metavar="N", help="Measure on N samples at most; generated without --data."),
]
RangesOutOption = Annotated[
    str | None,
    typer.Option("--ranges-out", metavar="FILE", help="Write what was measured, for --ranges; not in a dry run."),
]
DryOption = Annotated[bool, typer.Option("--dry-run", help="Plan and report; write no model.")]


@recipe_options()
def convert(
    model: ModelArgument,
    output: OutputOption = None,
    *,
    fields: Given,
    plan_in: PlanInOption = None,
    plan_out: PlanOutOption = None,
    data: DataOption = None,
    samples: SamplesOption = None,
    ranges_out: RangesOutOption = None,
    dry_run: DryOption = False,
    as_json: JsonOption = False,
) -> None:
    """Convert a model to mixed precision.

    \b
    ampgraph convert model.onnx --level auto -o fast.onnx
    ampgraph convert model.onnx --dtype bfloat16 --fp32 'scope:decoder.*' --fp32 op:Pow
    ampgraph convert model.onnx --data samples/ --ranges-out ranges.json
    ampgraph convert model.onnx --dry-run --json
    """
    with signals_wait():
        from pathlib import Path

        from ..api.measuring import Measuring
        from ..api.steps import Job, run
        from ..core.errors import AmpError
        from ..report.text import summary_lines

    measuring = Measuring(data, samples, ranges_out)
    given = [*flags(name for name in fields if name != "opset"), *measuring.given()]
    if plan_in and given:
        hint = "leave it away, or leave --plan-in away"
        raise AmpError("AMP404", f"{given[0]} cannot change a plan that is given", hint=hint)
    job = Job(
        model,
        recipe_of(None, fields),
        plan=plan_in,
        measuring=measuring,
        output=None if output is None else Path(output),
        beside=True,
        plan_out=plan_out,
        dry_run=dry_run,
        report=True,
        option="-o",
    )
    with progress() as bar:
        summary = run(job, bar.part).summary
        done()
    assert summary is not None  # the job asks for one
    show_json(summary.to_dict()) if as_json else show(summary_lines(summary))
