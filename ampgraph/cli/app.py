"""The command line: the program and its commands. What is heavy is imported by the command that needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from ..core.recipe_values import PATTERNS
from ..core.version import __version__
from . import check, convert, demo, numbers, reports, train, verify
from .terminal import guarded
from .volume import with_volume

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda word: word.replace("_", "-"),  # --store_weights too
    },
)


def _command(function: Callable[..., None]) -> Callable[..., None]:
    return guarded(with_volume(function))


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
    ampgraph demo                               the first example: writes a small model, converts it, verifies it
    ampgraph convert model.onnx                 writes model.O2.onnx, mostly float16
    ampgraph convert model.onnx --data samples/ the same, but what overflows on these samples stays float32
    ampgraph inspect model.O2.onnx --against model.onnx
    ampgraph diff model.O1.onnx model.O2.onnx   in what two conversions or two plans differ
    ampgraph explain model.onnx /encoder/Add_3  why that node has its precision
    ampgraph verify model.onnx model.O2.onnx    is it still right, and which nodes are to blame if not
    ampgraph check *.onnx                       are these files sound? for continuous integration
    ampgraph tune model.onnx --data samples/    as little float32 as meets a tolerance
    ampgraph run model.O2.onnx --data x.npz     one run, on whatever is here
    ampgraph lists Softmax                      what the lists say of an operator
    ampgraph build-step model.onnx ...          a training step; then train, export-weights
    """


app.command("convert", epilog=PATTERNS)(_command(convert.convert))
app.command("inspect")(_command(reports.inspect))
app.command("check")(_command(check.check))
app.command("diff")(_command(reports.diff))
app.command("explain", epilog=PATTERNS)(_command(reports.explain))
app.command("run")(_command(numbers.run))
app.command("verify")(_command(verify.verify))
app.command("tune", epilog=PATTERNS)(_command(verify.tune))
app.command("demo")(_command(demo.demo))
app.command("lists")(_command(reports.lists))
app.command("export-mixlist")(_command(reports.export_mixlist))
app.command("build-step", epilog=PATTERNS)(_command(train.build_step))
app.command("train")(_command(train.train))
app.command("export-weights")(_command(train.export_weights))
