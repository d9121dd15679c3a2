"""Commands that only report: their arguments and printing."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from ..core.recipe import Given, recipe_of
from ..core.recipe_values import dims
from .completion import completes
from .options import (
    DataOption,
    DimOption,
    HtmlOption,
    JsonOption,
    MetricOption,
    ModelArgument,
    SamplesOption,
    SeedOption,
    recipe_options,
)
from .terminal import done, progress, show, show_json, signals_wait


@recipe_options("policy", "target", "lists", "dims")
def inspect(
    model: ModelArgument,
    fields: Given,
    against: Annotated[
        str | None, typer.Option("--against", metavar="ORIGINAL", help="The model that it was made from.")
    ] = None,
    runtime: Annotated[
        str,
        typer.Option(
            "--runtime",
            metavar="PYTHON",
            help="The python of an environment whose onnxruntime, or TensorRT, tells what the target makes of it.",
        ),
    ] = "",
    model_explorer: Annotated[
        str | None,
        typer.Option(
            "--model-explorer", metavar="FILE", help="Write node data of Model Explorer: precision by colour."
        ),
    ] = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show nodes, weights and casts by precision, by layer, and against the original.

    \b
    ampgraph inspect model.O2.onnx
    ampgraph inspect model.O2.onnx --against model.onnx
    ampgraph inspect model.O2.onnx --against model.onnx --runtime gpu-environment/bin/python
    ampgraph inspect model.O2.onnx --against model.onnx --target tensorrt --runtime build/tensorrt/bin/python
    """
    with signals_wait():
        from ..api.inspect import inspect as look
        from ..core.files import text_file
        from ..formats.checks import faults_reported
        from ..report.overlay import overlay
        from ..report.text import inspection_lines

    with progress() as bar, faults_reported(model, against):
        bar.stage("reading")
        with text_file(model_explorer, lambda: f"{json.dumps(overlay(model), indent=1)}\n", "--model-explorer"):
            pass
        found = look(model, against, recipe=recipe_of(None, fields), runtime=runtime, html=html, progress=bar.stage)
    show_json(found.to_dict()) if as_json else show(inspection_lines(found))


@recipe_options()
def explain(
    model: ModelArgument,
    fields: Given,
    node: Annotated[
        str | None,
        typer.Argument(
            metavar="[NODE]",
            help="A node's or an output's name, or a pattern: a line each where it means several; all that is float32, "
            "by reason, if not given.",
            autocompletion=completes("node"),
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say why a node has its precision: list and line, guard and number, region, or costs.

    \b
    ampgraph explain model.onnx
    ampgraph explain model.onnx /encoder/Add_3
    ampgraph explain model.onnx op:Softmax --level O1
    """
    with signals_wait():
        from ..api.plan import explain_all
        from ..report.explain import explanation_lines, float32_lines

    with progress() as bar:
        found = explain_all(model, node or "*", recipe=recipe_of(None, fields), progress=bar.part)
    if node is None:
        found = [one for one in found if one.held]
        show_json([one.to_dict() for one in found]) if as_json else show(float32_lines(*found))
    elif as_json:
        show_json(found[0].to_dict() if len(found) == 1 else [one.to_dict() for one in found])
    else:
        show(explanation_lines(*found))


@recipe_options("level", "policy", "dtype", "target", "lists")
def lists(
    fields: Given,
    operator: Annotated[
        str | None, typer.Argument(metavar="[OPERATOR]", help="An operator or a glob; all if not given.")
    ] = None,
    rules: Annotated[bool, typer.Option("--rules", help="The planner's rules instead of the operators.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the lists in force: class, what the level does with it, why, and which line says so.

    \b
    ampgraph lists
    ampgraph lists Softmax --level auto
    ampgraph lists 'com.microsoft::*' --lists mine.toml
    ampgraph lists --policy mindspore --level O1
    ampgraph lists --rules
    """
    from ..api.inspect import lists as listed
    from ..report.listing import listing_lines, rule_lines, rule_rows

    if rules:
        show_json([row.to_dict() for row in rule_rows()]) if as_json else show(rule_lines())
        return
    rows = listed(operator, recipe=recipe_of(None, fields))
    show_json([row.to_dict() for row in rows]) if as_json else show(listing_lines(rows))


@recipe_options("level", "policy", "lists")
def export_mixlist(
    output: Annotated[str, typer.Option("-o", "--output", metavar="OUT.json", help="Where the list goes.")],
    fields: Given,
    as_json: JsonOption = False,
) -> None:
    """Write the lists as CANN's modify_mixlist file, for its own mixed precision on Ascend (docs/ascend.md).

    \b
    ampgraph export-mixlist --level auto -o mixlist.json
    ampgraph export-mixlist --policy mindspore --level auto -o mixlist.json
    """
    from ..api.mixlist import export_mixlist as export
    from ..api.mixlist import mixlist_lines

    mixlist = export(output, recipe=recipe_of(None, fields))
    show_json({"output": output, **mixlist.to_dict()}) if as_json else show(mixlist_lines(mixlist, output))


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
