"""`ampgraph convert`: its arguments and printing, and ``-`` as a model: stdin and stdout by files."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from ..core.errors import AmpError
from ..core.metric_names import metrics_help
from ..core.recipe import OF_READING, Given, flags, recipe_of
from .completion import completes
from .options import HtmlOption, JsonOption, ModelArgument, recipe_options
from .terminal import done, progress, show, show_json, signals_wait

if TYPE_CHECKING:
    from ..report.summary import Summary


PIPE = "-"


@dataclass(frozen=True)
class Piped:
    """The files that stand for what was given. ``result`` None: nothing goes to stdout."""

    model: str
    output: Path | None
    result: Path | None = None

    def deliver(self) -> None:
        """Sends the result to stdout, if there is one and it goes there. Raises AmpError AMP105 for several files."""
        if self.result is None or not self.result.is_file():
            return
        if len(list(self.result.parent.iterdir())) > 1:
            message = "the weights are in a file of their own, and stdout takes one file"
            raise AmpError("AMP105", message, where=PIPE, hint="name a file with -o")
        sys.stdout.buffer.write(self.result.read_bytes())
        sys.stdout.buffer.flush()


@contextlib.contextmanager
def _named_as_given(folder: str) -> Iterator[None]:
    """An error about a file of a folder that is gone afterwards is one about ``-``."""
    try:
        yield
    except AmpError as error:
        if error.where.startswith(folder):
            error.where = PIPE
        raise


@contextlib.contextmanager
def piped(model: str, output: str | None, dry_run: bool) -> Iterator[Piped]:
    """Files for a model and a result of which either may be ``-``; a model from stdin, which is ONNX, goes to stdout.

    Raises AmpError AMP105 where stdout is a terminal.
    """
    if PIPE not in (model, output):
        yield Piped(model, None if output is None else Path(output))
        return
    with tempfile.TemporaryDirectory(prefix="ampgraph-") as folder, _named_as_given(folder):
        source, place = model, output
        if model == PIPE:
            source, place = str(Path(folder, "stdin.onnx")), output or PIPE
            Path(source).write_bytes(sys.stdin.buffer.read())
        if place != PIPE:
            yield Piped(source, None if place is None else Path(place))
            return
        if sys.stdout.isatty() and not dry_run:
            raise AmpError("AMP105", "a model cannot be printed on a terminal", where=PIPE, hint="name a file with -o")
        result = Path(folder, "made", f"stdout{Path(source).suffix}")
        result.parent.mkdir()
        yield Piped(source, result, result)


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
CheckOption = Annotated[
    str | None,
    typer.Option(
        "--check",
        metavar="auto|off|require",
        help="Strict run of the result on a few samples, --data or generated; require: no file unless it is met.",
        autocompletion=completes("check"),
    ),
]
ToleranceOption = Annotated[
    float | None,
    typer.Option("--tolerance", metavar="X", help="Of the check; 0.01 if not given, 0.05 in bfloat16."),
]
RepairOption = Annotated[
    bool,
    typer.Option("--repair", help="Where the check is missed, hold in float32 what ranges, else a search, find."),
]
CheckMetricOption = Annotated[
    str | None, typer.Option("--metric", metavar="NAME|FUNCTION", help=f"Of the check. {metrics_help()}")
]
LossScaleOption = Annotated[
    str | None, typer.Option("--loss-scale", metavar="SCALE", hidden=True, help="Refused, with what to do instead.")
]
MetadataOption = Annotated[
    bool,
    typer.Option(
        "--metadata/--no-metadata", help="The file says what was done: type and reason by node, level, --fp32."
    ),
]

OptimizeOption = Annotated[
    bool,
    typer.Option("--optimize", help="ONNX Runtime's own fusions for the target first, where they save nodes."),
]
RuntimeOption = Annotated[
    str | None,
    typer.Option(
        "--runtime",
        metavar="PYTHON",
        help="Of --optimize: the python of an environment whose onnxruntime has the target.",
    ),
]


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
    check: CheckOption = None,
    tolerance: ToleranceOption = None,
    repair: RepairOption = False,
    metric: CheckMetricOption = None,
    metadata: MetadataOption = True,
    html: HtmlOption = None,
    optimize: OptimizeOption = False,
    runtime: RuntimeOption = None,
    loss_scale: LossScaleOption = None,
    as_json: JsonOption = False,
) -> None:
    """Convert a model to mixed precision.

    \b
    ampgraph convert model.onnx --level auto -o fast.onnx
    ampgraph convert model.onnx --dtype bfloat16 --fp32 'scope:decoder.*' --fp32 op:Pow
    ampgraph convert model.onnx --data samples/ --ranges-out ranges.json
    ampgraph convert model.onnx --optimize --runtime gpu-environment/bin/python
    ampgraph convert model.onnx --dry-run --json
    ampgraph convert - -o - < model.onnx > model.O2.onnx     (the report goes to stderr)

    It ends with a check, in a process of its own and within a minute and 4 GB. The exit code is 1 where the result
    misses the tolerance, and where --check require leaves no file; what generated inputs leave in doubt is said.
    """
    with signals_wait():
        from ..api.calibrate import Measuring
        from ..api.check import convert_and_check
        from ..api.pictures import picture_conversion, refuse_page
        from ..api.steps import Checking, Job

    measuring = Measuring(data, samples, ranges_out)
    given = [*flags(name for name in fields if name not in OF_READING), *measuring.given()]
    _refuse(model, loss_scale, plan_in, given)
    with piped(model, output, dry_run) as pipe, progress() as bar:
        job = Job(
            pipe.model, recipe_of(None, fields), plan_in, measuring, pipe.output, beside=True, plan_out=plan_out,
            dry_run=dry_run, report=True, option="-o", metadata=metadata,
            checking=Checking(check, tolerance, repair, metric), optimize=_optimizer(optimize, runtime),
        )  # fmt: skip
        refuse_page(html, model, output, data, plan_in, plan_out)
        result = convert_and_check(job, bar.part)
        picture_conversion(html, result.graph, result.summary, result.choices)
        pipe.deliver()
        done()
    summary = result.summary
    assert summary is not None  # the job asks for one
    if PIPE in (model, output):
        summary = replace(summary, model=model, output=summary.output and (output or PIPE))
    _tell(summary, sys.stdout if pipe.result is None else sys.stderr, as_json)


def _tell(summary: Summary, to: TextIO, as_json: bool) -> None:
    """Prints the report, and ends with 1 where the check is missed."""
    from ..report.text import summary_lines

    show_json(summary.to_dict(), to) if as_json else show(summary_lines(summary), to)
    if summary.check is not None and (summary.check.missed or (summary.output is None and not summary.check.ok)):
        sys.stdout.flush()
        sys.exit(1)


def _refuse(model: str, loss_scale: str | None, plan_in: str | None, given: Sequence[str]) -> None:
    """Raises AmpError AMP205 for a loss scale, and AMP404 for options beside a plan that says them."""
    from ..api.loss_scales import refuse_loss_scale
    from ..core.errors import AmpError

    if loss_scale is not None:
        refuse_loss_scale(model, loss_scale)
    if plan_in and given:
        hint = "omit it, or omit --plan-in"
        raise AmpError("AMP404", f"{given[0]} cannot change the given plan", hint=hint)


def _optimizer(optimize: bool, runtime: str | None) -> bool | str:
    """Whether the runtime optimises first, or by whose Python. Raises AmpError AMP404 for one without a task."""
    from ..core.errors import AmpError

    if runtime and not optimize:
        raise AmpError(
            "AMP404", "--runtime names the environment for --optimize, which is not given", hint="add --optimize"
        )
    return optimize and (runtime or True)
