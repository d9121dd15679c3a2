"""The command line: the program and its commands, with help that has those options first that everybody needs.

What is heavy is imported by the command that needs it."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ..core.recipe_values import PATTERNS
from ..core.version import __version__
from . import conversion, models, train
from .command import command_name

MANY = 15  # options: fewer are read as one list
GROUPS = {
    "Precision": (
        "policy", "lists", "keep_io_types", "store_weights", "freeze_weights", "rewrite", "rule", "fp32_stream",
        "opset", "optimize", "runtime",
    ),
    "Numbers": ("samples", "dim", "dims", "ranges", "range_margin", "ranges_out", "seed"),
    "Check": ("tolerance", "repair", "metric", "check_memory"),
    "Output": (
        "plan_in", "plan_out", "metadata", "html", "webgpu_page", "onnxruntime_web", "jobs", "transformers_js",
        "as_json", "quiet", "verbose",
    ),
}  # fmt: skip
"""Title in a command's help -> the names of its options' keywords; options without one stand in front."""


class GroupedCommand(TyperCommand):
    """A command whose help has titles if it has `MANY` options."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes a command's options for its help, in titled groups if they are many; a lone one stands in front."""
        shown = [(param, param.get_help_record(ctx)) for param in self.get_params(ctx)]
        options = [(param, record) for param, record in shown if record and param.param_type_name == "option"]
        if len(options) < MANY:
            super().format_options(ctx, formatter)
            return
        title_of = {name: title for title, names in GROUPS.items() for name in names}
        titles: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": [], **{title: [] for title in GROUPS}}
        for param, record in shown:
            if record:
                first = "Options" if param.param_type_name == "option" else "Arguments"
                titles[title_of.get(str(param.name), first)].append(record)
        for title in GROUPS:
            if len(titles[title]) == 1:  # no group
                titles["Options"][-1:-1] = titles.pop(title)  # --help is the last
        for title, records in titles.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda word: word.replace("_", "-"),  # --store_weights too
    },
)


def _version(wanted: bool) -> None:
    """Prints the version of ampgraph and exits, if ``wanted``: the callback of the program's --version."""
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
    ampgraph convert pipeline/ -o pipeline.fp16 every model of a folder, and its tree as it is
    ampgraph inspect model.O2.onnx --against model.onnx
    ampgraph diff model.O1.onnx model.O2.onnx   in what two conversions or two plans differ
    ampgraph explain model.onnx /encoder/Add_3  why that node has its precision
    ampgraph verify model.onnx model.O2.onnx    is it still right, and which nodes are to blame if not
    ampgraph check *.onnx                       are these files sound? for continuous integration
    ampgraph bench model.onnx model.O1.onnx     how fast is it on the runtimes that are here?
    ampgraph tune model.onnx --data samples/    as little float32 as meets a tolerance
    ampgraph run model.O2.onnx --data x.npz     one run, on whatever is here
    ampgraph lists Softmax                      what the lists say of an operator
    ampgraph help region                        what a word of a report means
    ampgraph build-step model.onnx ...          a training step; then train, export-weights
    """


COMMANDS = (
    conversion.convert, models.inspect, models.check, models.diff, models.explain, models.run, models.verify,
    models.bench, models.tune, conversion.demo, models.lists, models.help, models.export_mixlist, train.build_step,
    train.train, train.export_weights,
)  # fmt: skip
OF_PATTERNS = (conversion.convert, models.explain, models.tune, train.build_step)
for command in COMMANDS:
    app.command(command_name(command), cls=GroupedCommand, epilog=PATTERNS if command in OF_PATTERNS else None)(command)
