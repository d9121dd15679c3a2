"""Options of the command line: those of a recipe, made from its fields, and what several commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import GenericAlias
from typing import Annotated, Any

import typer

from ..core.metric_names import metrics_help
from ..core.recipe import OPTIONS
from ..core.spellings import KEEP_IO
from .completion import completes

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="The .onnx or .mindir file.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]
HtmlOption = Annotated[
    str | None,
    typer.Option("--html", metavar="FILE", help="Write a page to look at: the graph by layers, precisions, reasons."),
]
DimOption = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=N", help="Size of a symbolic dimension in generated samples; repeatable."),
]
DeviceOption = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="DEVICE",
        help="auto (the best that is here), cpu, cuda, tensorrt, cann; MindIR: cpu, ascend.",
        autocompletion=completes("device"),
    ),
]
SamplesOption = Annotated[
    int | None, typer.Option("--samples", metavar="N", help="At most N samples; 8 where they are generated.")
]
SeedOption = Annotated[int, typer.Option("--seed", metavar="N", help="For generated samples.")]
MetricOption = Annotated[str, typer.Option("--metric", metavar="NAME|FUNCTION", help=metrics_help())]
DataOption = Annotated[
    str | None,
    typer.Option("--data", metavar="DIR|FILE.npz", help="Samples, by input name; generated if not given."),
]


def recipe_options(*names: str, but: tuple[str, ...] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the options of a recipe's fields, of all or of some, in the place of its parameter ``fields``.

    The command gets there what the user wrote, and nothing for options that were left away.
    """
    chosen = [name for name in OPTIONS if (not names or name in names) and name not in but]
    chosen += [KEEP_IO] if "io" in chosen else []

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)

        @functools.wraps(command)
        def run(**values: Any) -> None:
            given = {name: values.pop(name) for name in chosen}
            fields = {name: value for name, value in given.items() if value not in (None, [])}
            command(**values, fields=fields)

        parameters: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            parameters += map(_parameter, chosen) if parameter.name == "fields" else [parameter]
        plain = [p.replace(kind=p.KEYWORD_ONLY) for p in parameters]
        run.__signature__ = signature.replace(parameters=plain)  # type: ignore[attr-defined]
        return run

    return decorated


def _parameter(name: str) -> inspect.Parameter:
    if name == KEEP_IO:
        shown = typer.Option(None, "--keep-io-types/--no-keep-io-types", help="The same as --io keep, and --io low.")
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=shown, annotation=bool | None)
    option = OPTIONS[name]
    kind = GenericAlias(list, (option.kind,)) if option.repeats else option.kind
    metavar = option.metavar or None  # a flag takes no word
    shown = typer.Option(None, option.flag, metavar=metavar, help=option.help, autocompletion=completes(name))
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=shown, annotation=kind | None)
