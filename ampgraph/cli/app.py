"""The command line: arguments and printing. What is heavy is imported by the command that needs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from .. import __version__
from . import (
    mixlist as cli_mixlist,
)
from . import (
    numbers as cli_numbers,
)
from . import (
    train as cli_train,
)
from . import (
    tune as cli_tune,
)
from . import (
    verify as cli_verify,
)
from .console import done, guarded, main, progress, show, show_json, signals_wait
from .numbers import parse_dims

__all__ = ["app", "main"]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="The .onnx or .mindir file.")]
LevelOption = Annotated[
    str | None, typer.Option("--level", metavar="LEVEL", help="O0, O1, O2, O3 or auto; O2 if not given.")
]
DtypeOption = Annotated[
    str | None, typer.Option("--dtype", metavar="TYPE", help="float16 or bfloat16; float16 if not given.")
]
PolicyOption = Annotated[
    str | None,
    typer.Option("--policy", metavar="POLICY", help="Whose lists and rules: ampgraph; mindspore for MindIR."),
]
ListsOption = Annotated[
    list[str] | None, typer.Option("--lists", metavar="FILE", help="A TOML file merged over the lists; repeatable.")
]
Fp32Option = Annotated[
    list[str] | None, typer.Option("--fp32", metavar="PATTERN", help="Keep these nodes in float32; repeatable.")
]
LowOption = Annotated[
    list[str] | None, typer.Option("--low", metavar="PATTERN", help="Make these nodes low; repeatable.")
]
IoOption = Annotated[
    list[str] | None,
    typer.Option(
        "--io", metavar="keep|low|NAME=low", help="Types of graph inputs and outputs; keep if not given; repeatable."
    ),
]
TargetOption = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="TARGET",
        help="Where it will run: cuda (the default), tensorrt, cann or cpu; MindIR: ascend (the default) or cpu.",
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store-weights",
        metavar="low|keep",
        help="low: weights that only low operators read are stored low; keep: cast when it runs; low if not given.",
    ),
]
DimOption = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=N", help="Size of a symbolic dimension, for costs and generated inputs."),
]
DataOption = Annotated[
    str | None,
    typer.Option(
        "--data", metavar="DIR|FILE.npz", help="Measure ranges on these samples: what would overflow stays float32."
    ),
]
SamplesOption = Annotated[
    int | None, typer.Option("--samples", metavar="N", help="Measure on N samples at most; generated without --data.")
]
RangesOption = Annotated[
    str | None, typer.Option("--ranges", metavar="FILE", help="Ranges that were measured before, instead of --data.")
]
MarginOption = Annotated[
    float | None,
    typer.Option("--range-margin", metavar="X", help="Float32 for what X times over would overflow; 2 if not given."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]

PATTERNS = "A PATTERN is a node name glob, op:Kind, scope:layers.3.* or value:NAME."


@dataclass(frozen=True)
class Steering:
    """The options that steer a plan, as given; None where they were not."""

    level: str | None
    dtype: str | None
    policy: str | None
    lists: list[str] | None
    fp32: list[str] | None
    low: list[str] | None
    io: list[str] | None
    target: str | None
    dim: list[str] | None
    store_weights: str | None

    def given(self) -> list[str]:
        """The options that the user wrote."""
        return [f"--{name.replace('_', '-')}" for name, value in vars(self).items() if value not in (None, [])]

    def options(self, model: str) -> Any:
        """The planner's options for a model. Raises AmpError for a name that does not exist."""
        from ..api import pipeline
        from ..core.graph import is_mindir

        return pipeline.build_options(
            "O2" if self.level is None else self.level,
            "float16" if self.dtype is None else self.dtype,
            "ampgraph" if self.policy is None else self.policy,
            self.lists or (),
            self.fp32 or (),
            self.low or (),
            self.target,
            parse_dims(self.dim or ()),
            self.store_weights,
            "MindIR" if is_mindir(model) else "ONNX",
        )

    def low_io(self, graph: Any) -> frozenset[str]:
        """The graph inputs and outputs that are to be low."""
        from ..api import pipeline

        return pipeline.low_interface(graph, self.io or "keep")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"ampgraph {__version__}")
        raise typer.Exit()


@app.callback()
def ampgraph(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Automatic mixed precision for ONNX and MindIR models.

    \b
    ampgraph convert model.onnx                 writes model.O2.onnx, mostly float16
    ampgraph convert model.onnx --data samples/ the same, but what overflows on these samples stays float32
    ampgraph inspect model.O2.onnx --against model.onnx
    ampgraph explain model.onnx /encoder/Add_3  why that node has its precision
    ampgraph verify model.onnx model.O2.onnx    is it still right, and which nodes are to blame if not
    ampgraph tune model.onnx --data samples/    as little float32 as meets a tolerance
    ampgraph run model.O2.onnx --data x.npz     one run, on whatever is here
    ampgraph lists Softmax                      what the lists say of an operator
    ampgraph build-step model.onnx ...          a training step; then train, export-weights
    """


@app.command(epilog=PATTERNS)
@guarded
def convert(
    model: ModelArgument,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="OUT", help="Default: MODEL.O2.onnx beside the input.")
    ] = None,
    level: LevelOption = None,
    dtype: DtypeOption = None,
    policy: PolicyOption = None,
    lists: ListsOption = None,
    fp32: Fp32Option = None,
    low: LowOption = None,
    io: IoOption = None,
    target: TargetOption = None,
    dim: DimOption = None,
    store_weights: StoreOption = None,
    opset: Annotated[
        int | None, typer.Option("--opset", metavar="N", help="Move the model to this opset first.")
    ] = None,
    plan_in: Annotated[
        str | None, typer.Option("--plan-in", metavar="FILE", help="Apply this plan; it says all the options above.")
    ] = None,
    plan_out: Annotated[
        str | None, typer.Option("--plan-out", metavar="FILE", help="Write the plan as JSON, in a dry run too.")
    ] = None,
    data: DataOption = None,
    samples: SamplesOption = None,
    ranges: RangesOption = None,
    ranges_out: Annotated[
        str | None,
        typer.Option("--ranges-out", metavar="FILE", help="Write what was measured, for --ranges; not in a dry run."),
    ] = None,
    range_margin: MarginOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Plan and report; write no model.")] = False,
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
        from ..api.conversion import Job, run
        from ..api.measuring import Measuring
        from ..formats.checks import faults_reported
        from ..report.text import summary_lines

    steering = Steering(level, dtype, policy, lists, fp32, low, io, target, dim, store_weights)
    with progress() as bar, faults_reported(model):
        measuring = Measuring(data, samples, ranges, ranges_out, range_margin)
        summary = run(Job(model, output, steering, opset, plan_in, plan_out, dry_run, measuring), bar)
        done()
    show_json(summary.to_dict()) if as_json else show(summary_lines(summary))


@app.command()
@guarded
def inspect(
    model: ModelArgument,
    against: Annotated[
        str | None, typer.Option("--against", metavar="ORIGINAL", help="The model that it was made from.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show nodes, weights and casts by precision, by layer, and against the original.

    \b
    ampgraph inspect model.O2.onnx
    ampgraph inspect model.O2.onnx --against model.onnx
    """
    with signals_wait():
        from ..formats.checks import faults_reported
        from ..report.inspect import inspect as look
        from ..report.text import inspection_lines

    with progress() as bar, faults_reported(model, against):
        bar.stage("reading")
        found = look(model, against, progress=bar.stage)
    show_json(found.to_dict()) if as_json else show(inspection_lines(found))


@app.command(epilog=PATTERNS)
@guarded
def explain(
    model: ModelArgument,
    node: Annotated[
        str, typer.Argument(metavar="NODE", help="A node's name, a glob that one name matches, or an output's name.")
    ],
    level: LevelOption = None,
    dtype: DtypeOption = None,
    policy: PolicyOption = None,
    lists: ListsOption = None,
    fp32: Fp32Option = None,
    low: LowOption = None,
    io: IoOption = None,
    target: TargetOption = None,
    dim: DimOption = None,
    store_weights: StoreOption = None,
    ranges: RangesOption = None,
    range_margin: MarginOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say why a node has its precision: list and line, guard and number, region, or costs.

    \b
    ampgraph explain model.onnx /encoder/Add_3
    ampgraph explain model.onnx 'node_Softmax_*' --level O1
    """
    with signals_wait():
        from ..api.conversion import explained
        from ..api.measuring import Measuring
        from ..formats.checks import faults_reported
        from ..report.text import explanation_lines

    steering = Steering(level, dtype, policy, lists, fp32, low, io, target, dim, store_weights)
    with progress() as bar, faults_reported(model):
        found = explained(model, node, steering, bar, Measuring(ranges=ranges, margin=range_margin))
    show_json(found.to_dict()) if as_json else show(explanation_lines(found))


app.command("run")(guarded(cli_numbers.run))
app.command("verify")(guarded(cli_verify.verify))
app.command("tune", epilog=PATTERNS)(guarded(cli_tune.tune))


@app.command()
@guarded
def lists(
    operator: Annotated[
        str | None, typer.Argument(metavar="[OPERATOR]", help="An operator or a glob; all if not given.")
    ] = None,
    policy: PolicyOption = None,
    level: LevelOption = None,
    lists: ListsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the lists in force: class, what the level does with it, why, and which line says so.

    \b
    ampgraph lists
    ampgraph lists Softmax --level auto
    ampgraph lists 'com.microsoft::*' --lists mine.toml
    ampgraph lists --policy mindspore --level O1
    """
    from ..oplists.levels import load_level
    from ..report.listing import listed
    from ..report.text import list_lines

    files = lists or []
    chosen = load_level("O2" if level is None else level, files)
    rows = listed("ampgraph" if policy is None else policy, chosen, files, operator or "")
    show_json([row.to_dict() for row in rows]) if as_json else show(list_lines(rows, chosen.name))


app.command("export-mixlist")(guarded(cli_mixlist.export_mixlist))
app.command("build-step", epilog=PATTERNS)(guarded(cli_train.build_step))
app.command("train")(guarded(cli_train.train))
app.command("export-weights")(guarded(cli_train.export_weights))
