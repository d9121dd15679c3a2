"""Commands that run models and those that only report: their options and what they print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..core.errors import AmpError, nearest
from ..core.files import refuse_output, sources_of, text_file
from ..core.metric_names import metrics_help
from ..core.recipe import Given, recipe_of
from .command import (
    ABOUT,
    DATA,
    DEVICE,
    DIM,
    HTML,
    METRIC,
    MODEL,
    RUNTIME,
    SAMPLES,
    SEED,
    TARGET,
    CommandOutput,
    argument,
    command,
    option,
    output_of_report,
    recipe_fields,
    switch,
)
from .terminal import Display, hold_signals, quiet

FORMATS = ("text", "json", "junit", "sarif")


@command(
    model=MODEL,
    fields=recipe_fields("policy", "target", "lists", "dims"),
    against=option("ORIGINAL", "The model that it was made from."),
    runtime=option(
        "PYTHON", "The python of an environment whose onnxruntime, or TensorRT, tells what the target makes of it.", ""
    ),
    model_explorer=option("FILE", "Write node data of Model Explorer: precision by colour."),
    html=HTML,
)
def inspect(bar: Display, *, model: str, fields: Given, model_explorer: str | None, **options: Any) -> CommandOutput:
    """Show nodes, weights and casts by precision, by layer, and against the original.

    \b
    ampgraph inspect model.O2.onnx
    ampgraph inspect model.O2.onnx --against model.onnx
    ampgraph inspect model.O2.onnx --against model.onnx --runtime gpu-environment/bin/python
    ampgraph inspect model.O2.onnx --against model.onnx --target tensorrt --runtime build/tensorrt/bin/python
    """
    with hold_signals():
        from ..api.inspect import inspect as look
        from ..formats.checks import faults_reported
        from ..report.inspect import overlay

    with faults_reported(model, options["against"]):
        bar.stage("reading")
        with text_file(model_explorer, lambda: f"{json.dumps(overlay(model), indent=1)}\n", "--model-explorer"):
            pass
        return output_of_report(look(model, recipe=recipe_of(None, fields), progress=bar.stage, **options))


@command(
    models=argument("MODEL...", "The .onnx or .mindir files.", kind=list[str]),
    against=option("ORIGINAL", "The float32 model that they were made from."),
    data=DATA,
    samples=SAMPLES,
    tolerance=option("X", "The error that 9 of 10 samples must meet.", 1e-2),
    dim=DIM,
    target=option("TARGET", "What --runtime is for: tensorrt builds it, openvino executes it.", "tensorrt"),
    runtime=RUNTIME,
    sm=option("N", "Build for GPUs of this compute capability: 75, 89; repeatable.", repeats=True),
    form=option("|".join(FORMATS), "How the report is written.", "text", flag=("--format",)),
)
def check(bar: Display, *, models: list[str], form: str, sm: list[str] | None, **options: Any) -> CommandOutput:
    """Say whether model files are sound: for continuous integration, or before a commit.

    \b
    ampgraph check models/*.onnx
    ampgraph check model.O2.onnx --against model.onnx --data samples/
    ampgraph check model.O2.onnx --against model.onnx --runtime build/tensorrt/bin/python --sm 75
    ampgraph check model.O1.onnx --against model.onnx --target openvino
    ampgraph check model.O2.onnx --format junit > report.xml

    A file reads, with data files that belong to it; it is valid; no stored tensor holds NaN; no Cast is idle; ONNX
    Runtime opens it, with its default optimisations; TensorRT builds it, with --runtime; a run is finite, and right
    beside --against: a strict run, or with --target openvino one by its real kernels, where OpenVINO is installed or
    --runtime names it. The exit code is 1 where something of that is an error.
    """
    with hold_signals():
        from ..api.check_model import check as look
        from ..report.findings import junit, sarif

    if form not in FORMATS:
        hint = nearest(form, list(FORMATS)) or f"one of {', '.join(FORMATS)}"
        raise AmpError("AMP301", f"invalid value for --format: {form}", hint=hint)
    found = []
    for model in models:
        bar.stage(f"checking {model}")
        found.append(look(model, sm=sm or (), **options))
    written = {"junit": junit, "sarif": sarif}.get(form)

    def lines() -> list[str]:
        return written(found).splitlines() if written else [line for one in found for line in one.lines()]

    return CommandOutput(found, lines, all(one.ok for one in found))


@command(
    first=argument("A", "A model, or a plan (.json)."),
    second=argument("B", "Another one, made from the same model."),
    reference=option("MODEL", "What both were made from: both are run strictly beside it."),
    data=DATA,
    samples=SAMPLES,
    seed=SEED,
    dim=DIM,
    metric=METRIC,
)
def diff(bar: Display, *, first: str, second: str, **options: Any) -> CommandOutput:
    """Show in what two conversions of one model, or two plans for it, differ, and with --reference in error.

    \b
    ampgraph diff model.O1.onnx model.O2.onnx
    ampgraph diff before.json after.json
    ampgraph diff model.O1.onnx model.O2.onnx --reference model.onnx --data samples/

    The exit code is 1 where they differ.
    """
    with hold_signals():
        from ..api.diff import diff as compared

    bar.stage("reading")
    found = compared(first, second, progress=bar.part, **options)
    return output_of_report(found, found.alike)


@command(
    model=MODEL,
    fields=recipe_fields(),
    node=argument(
        "[NODE]",
        "A node's or an output's name, or a pattern: a line each where it means several; all that is float32, "
        "by reason, if not given.",
        None,
    ),
)
def explain(bar: Display, *, model: str, fields: Given, node: str | None) -> CommandOutput:
    """Say why a node has its precision: list and line, guard and number, region, or costs.

    \b
    ampgraph explain model.onnx
    ampgraph explain model.onnx /encoder/Add_3
    ampgraph explain model.onnx op:Softmax --level O1
    """
    with hold_signals():
        from ..api.plan import explain_all
        from ..report.explain import explanation_lines, float32_lines

    found = explain_all(model, node or "*", recipe=recipe_of(None, fields), progress=bar.part)
    if node is None:
        found = [one for one in found if one.held]
        return CommandOutput(found, lambda: float32_lines(*found))
    return CommandOutput(found[0] if len(found) == 1 else found, lambda: explanation_lines(*found))


@command(
    model=MODEL,
    data=option("FILE.npz", "Arrays by input name; generated if not given."),
    output=option("OUT.npz", "Write the outputs there.", flag=("-o", "--output")),
    device=DEVICE,
    strict=switch("Run on the CPU with every low value really rounded (ONNX)."),
    target=TARGET,
    runtime=RUNTIME,
    seed=SEED,
    dim=DIM,
)
def run(bar: Display, *, model: str, data: str | None, output: str | None, **options: Any) -> CommandOutput:
    """Run a model once: ONNX on ONNX Runtime, MindIR on MindSpore.

    \b
    ampgraph run model.onnx --data inputs.npz -o outputs.npz
    ampgraph run model.O2.onnx --strict --seed 3
    ampgraph run net.O2.mindir --data inputs.npz --device cpu
    ampgraph run model.O1.onnx --target openvino --runtime openvino-environment/bin/python
    """
    with hold_signals():
        from ..api.run import run_with_notes
        from ..report.outputs import describe_outputs, layer_lines, maps_in
        from ..runtime.data import save_npz

    if output is not None:
        refuse_output(Path(output), sources_of(model, data), "-o")
    bar.stage("running")
    found = run_with_notes(model, data, **options)
    notes, maps = [*(() if quiet() else found.notes), *found.doubts], []
    if output is not None:
        bar.stage("writing")
        maps = [name for name, value in found.outputs.items() if maps_in(value)]
        save_npz(output, {name: value for name, value in found.outputs.items() if name not in maps})
    if maps:
        notes.append(f"not in {output}, which holds arrays and no maps: {', '.join(maps)}")
    rows = describe_outputs(found.outputs)
    by = [f"executed by {found.by}: {line}" for line in layer_lines(found.layers)]
    report: object = {"outputs": rows, "by": found.by, "layers": found.layers} if found.by else rows
    return CommandOutput(report, lambda: [*map(str, rows), *by], notes=tuple(notes))


@command(
    reference=argument("REFERENCE", "The float32 .onnx or .mindir file."),
    model=argument("MODEL", "What was made from it."),
    data=DATA,
    samples=SAMPLES,
    seed=SEED,
    tolerance=option("X", "The error that 9 of 10 samples must meet at every output.", 1e-2),
    metric=METRIC,
    device=DEVICE,
    target=TARGET,
    runtime=RUNTIME,
    dim=DIM,
    nodes=option("N", "Name N nodes where the error grows; 5 where it is missed, else none.", kind=int),
    steps=option("N", "Run N steps from each sample, what a model remembers fed back to it.", kind=int),
    cache=option("IN=OUT", "An output to feed back, 'past_*=present_*'; found if not given.", repeats=True),
    html=HTML,
    webgpu_page=option(
        "DIR", "Write a page that repeats it in a browser, on the browser's GPU, with all that it needs."
    ),
    onnxruntime_web=option("DIR", "The npm package for that page; found in node_modules or by npm if not given."),
)
def verify(
    bar: Display, *, reference: str, model: str, cache: list[str] | None, target: str, runtime: str, **options: Any
) -> CommandOutput:
    """Say whether a model still computes what its reference does, and which nodes are to blame if not.

    \b
    ampgraph verify model.onnx model.O2.onnx
    ampgraph verify model.onnx model.O2.onnx --data samples/ --tolerance 1e-3
    ampgraph verify decoder.onnx decoder.O2.onnx --steps 64
    ampgraph verify model.onnx model.O1.onnx --target openvino --runtime openvino-environment/bin/python
    ampgraph verify model.onnx model.O2.onnx --target tensorrt --runtime build/tensorrt/bin/python
    ampgraph verify model.onnx model.O2.onnx --target webgpu --webgpu-page page

    On the CPU an ONNX model runs strictly: every low value is really rounded, which a plain run does not do. With
    --target openvino its real kernels execute the model, where OpenVINO is installed or --runtime names it; with
    --target tensorrt and --runtime both are built as well, and run strictly. The exit code is 1 where the tolerance is
    missed, anything is infinite or NaN that is finite in the reference, or TensorRT refuses what the reference is
    taken for.
    """
    with hold_signals():
        from ..api.check_model import check_build, only_builds
        from ..api.verify import verify as compare

    builds = only_builds(target, runtime)
    options |= {"target": target, "runtime": "" if builds else runtime}
    found = compare(reference, model, cache=cache or (), progress=bar.part, **options)
    place = options["webgpu_page"]
    served = (
        (f"{place}: python -m http.server -d {place}, then open http://localhost:8000",)
        if place and not quiet()
        else ()
    )
    if not builds:
        return CommandOutput(found, found.lines, found.ok, notes=served)
    built = check_build(model, reference, runtime, options["data"], options["dims"])
    data = found.to_dict() | {"build": built.to_dict()}
    return CommandOutput(data, lambda: found.lines() + built.lines(), found.ok and built.ok, notes=served)


@command(
    models=argument("MODEL...", "The .onnx files; the others are held against the first one.", kind=list[str]),
    data=option("FILE.npz", "A sample, by input name; generated if not given."),
    target=option("TARGET", "Only the runtime of this target, whatever types it computes in there.", ""),
    runtime=option("PYTHON", "The python of an environment with one more runtime; repeatable.", repeats=True),
    rounds=option("N", "How often each model runs, in turn.", 20),
    seed=SEED,
    dim=DIM,
)
def bench(bar: Display, *, models: list[str], runtime: list[str] | None, **options: Any) -> CommandOutput:
    """Time models side by side, on one thread and on all, on the runtimes that are here.

    \b
    ampgraph bench model.onnx model.O1.onnx
    ampgraph bench model.onnx model.O1.onnx --target openvino --runtime openvino-environment/bin/python
    ampgraph bench model.onnx model.O1.onnx --runtime build/openvino/bin/python --runtime build/webgpu/bin/python

    Models take turns, so that what else the machine does meets all of them. Where a runtime has a low precision of its
    own (OpenVINO's bfloat16), the first model is timed with that too.
    """
    with hold_signals():
        from ..api.bench import bench as timed

    found = timed(models, runtime=runtime or (), progress=bar.part, **options)
    return CommandOutput(found, found.lines, notes=() if quiet() else found.notes)


@command(
    model=argument("MODEL", "The float32 .onnx file."),
    data=DATA,
    tolerance=option("X", "The error that 9 of 10 samples must meet.", 1e-2),
    metric=option("NAME|FUNCTION", metrics_help(), "l2"),
    samples=SAMPLES,
    seed=SEED,
    output=option("OUT", "Write the tuned model there.", flag=("-o", "--output")),
    fields=recipe_fields(),
    sensitivity=option("FILE.json|FILE.csv", "Write which nodes matter how much; 18 runs more."),
    html=HTML,
)
def tune(bar: Display, *, model: str, fields: Given, sensitivity: str | None, **options: Any) -> CommandOutput:
    """Find as little float32 as meets a tolerance, by at most 20 strict runs over the samples.

    \b
    ampgraph tune model.onnx --data samples/ --tolerance 5e-3 -o tuned.onnx
    ampgraph tune model.onnx --data samples/ --metric argmax --tolerance 0.01 --json

    Without -o no model is written: the report lists the patterns for `convert`. The exit code is 1 where the tolerance
    cannot be met; nothing is written then.
    """
    with hold_signals():
        from ..api.tune import tune as find

    if sensitivity is not None:
        if not sensitivity.endswith((".json", ".csv")):
            hint = "end its name in .json or .csv"
            raise AmpError("AMP311", f"--sensitivity {sensitivity}: unknown file format", hint=hint)
        refuse_output(Path(sensitivity), sources_of(model, options["data"], options["output"]), "--sensitivity")
    wanted = sensitivity is not None
    found = find(model, recipe=recipe_of(None, fields), sensitivity=wanted, progress=bar.part, **options)
    table = found.sensitivity
    if sensitivity is not None and table is not None:
        written = table.to_csv if sensitivity.endswith(".csv") else table.to_json
        with text_file(sensitivity, written, "--sensitivity"):
            pass
    return output_of_report(found, found.met)


@command(
    fields=recipe_fields("level", "policy", "dtype", "target", "lists"),
    operator=argument("[OPERATOR]", "An operator or a glob; all if not given.", None),
    rules=switch("The planner's rules instead of the operators."),
)
def lists(bar: Display, *, fields: Given, operator: str | None, rules: bool) -> CommandOutput:
    """Show the lists in force: class, what the level does with it, why, and which line says so.

    \b
    ampgraph lists
    ampgraph lists Softmax --level auto
    ampgraph lists 'com.microsoft::*' --lists mine.toml
    ampgraph lists --policy mindspore --level O1
    ampgraph lists --rules
    """
    from ..api.inspect import lists as listed
    from ..report.listing import rule_lines, rule_rows

    if rules:
        return CommandOutput(rule_rows(), rule_lines)
    found = listed(operator, recipe=recipe_of(None, fields))
    return CommandOutput(list(found), found.lines)


@command(
    term=argument(
        "[TERM]...", "A word of a report, a rule, a rewrite, a metric or an error code.", None, kind=list[str]
    )
)
def help(bar: Display, *, term: list[str] | None) -> CommandOutput:
    """Say what a word of a report means.

    \b
    ampgraph help
    ampgraph help region
    ampgraph help by the cut
    ampgraph help AMP403
    """
    from ..report.glossary import meanings, overview

    return output_of_report(meanings(" ".join(term), ABOUT) if term else overview())


@command(
    output=option("OUT.json", "Where the list goes.", ..., flag=("-o", "--output")),
    fields=recipe_fields("level", "policy", "lists"),
)
def export_mixlist(bar: Display, *, output: str, fields: Given) -> CommandOutput:
    """Write the lists as CANN's modify_mixlist file, for its own mixed precision on Ascend (docs/ascend.md).

    \b
    ampgraph export-mixlist --level auto -o mixlist.json
    ampgraph export-mixlist --policy mindspore --level auto -o mixlist.json
    """
    from ..api.mixlist import export_mixlist as export

    mixlist = export(output, recipe=recipe_of(None, fields))
    lines = [f"result      {output}", *mixlist.lines()]
    return CommandOutput({"output": output, **mixlist.to_dict()}, lambda: lines)
