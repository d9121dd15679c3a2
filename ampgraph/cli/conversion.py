"""`ampgraph convert`, with ``-`` as a model: stdin and stdout by files; and `ampgraph demo`, the first example."""

from __future__ import annotations

import contextlib
import importlib.util
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, NoReturn

from ..core.errors import AmpError, Unmatched
from ..core.files import refusals_reported, whole_file
from ..core.metric_names import metrics_help
from ..core.recipe import OF_READING, Given, Recipe, flags, recipe_of
from ..core.shown import json_value
from ..core.verdict import CheckVerdict
from .command import HTML, MODEL, CommandOutput, argument, command, option, recipe_fields, switch
from .terminal import Display, hold_signals, ignore_interrupts, verbose

PIPE = "-"
MODEL_FILE, DATA_FILE = "digits_transformer.onnx", "digits_heldout.npz"  # of the demo
NAME_PARTS = ("fp32", "low", "io", "dims")
"""Options of `convert` whose words name parts of a model."""


@dataclass(frozen=True)
class PipeFiles:
    """The files that `convert` reads and writes where ``-`` was given: ``output``: None for the default name;
    ``result``: the file to send to stdout, or None."""

    model: str
    output: Path | None
    result: Path | None = None

    def deliver(self) -> None:
        """Sends the ``result`` of `convert` to stdout, if it was written. Raises AmpError AMP105 for several files."""
        if self.result is None or not self.result.is_file():
            return
        if len(list(self.result.parent.iterdir())) > 1:
            message = "the weights are in a file of their own, and stdout takes one file"
            raise AmpError("AMP105", message, where=PIPE, hint="name a file with -o")
        sys.stdout.buffer.write(self.result.read_bytes())
        sys.stdout.buffer.flush()


@contextlib.contextmanager
def pipe_files(model: str, output: str | None, dry_run: bool) -> Iterator[PipeFiles]:
    """The files for `convert` of a model and a result either of which may be ``-``: a model from stdin must be ONNX,
    and its result goes to stdout unless ``output`` is given.

    ``-`` stands for a file in a temporary folder; errors name ``-`` instead of it. Raises AmpError AMP105 where a
    result would be printed on a terminal."""
    if PIPE not in (model, output):
        yield PipeFiles(model, None if output is None else Path(output))
        return
    with tempfile.TemporaryDirectory(prefix="ampgraph-") as folder:
        try:
            source, place = model, output
            if model == PIPE:
                source, place = str(Path(folder, "stdin.onnx")), output or PIPE
                Path(source).write_bytes(sys.stdin.buffer.read())
            if place != PIPE:
                yield PipeFiles(source, None if place is None else Path(place))
                return
            if sys.stdout.isatty() and not dry_run:
                message = "a model cannot be printed on a terminal"
                raise AmpError("AMP105", message, where=PIPE, hint="name a file with -o")
            result = Path(folder, "made", f"stdout{Path(source).suffix}")
            result.parent.mkdir()
            yield PipeFiles(source, result, result)
        except AmpError as error:
            if error.where.startswith(folder):
                error.where = PIPE
            raise


@command(
    model=MODEL,
    output=option("OUT", "Default: MODEL.O2.onnx beside the input.", flag=("-o", "--output")),
    fields=recipe_fields(),
    plan_in=option("FILE", "Apply this plan; it says all the options above."),
    plan_out=option("FILE", "Write the plan as JSON, in a dry run too."),
    data=option("DIR|FILE.npz", "Measure ranges on these samples: what would overflow stays float32."),
    samples=option("N", "Measure on N samples at most; generated without --data.", kind=int),
    ranges_out=option("FILE", "Write what was measured, for --ranges; not in a dry run."),
    dry_run=switch("Plan and report; write no model."),
    check=option(
        "auto|off|require",
        "Strict run of the result on a few samples, --data or generated; require: no file unless it is met.",
    ),
    tolerance=option("X", "Of the check; 0.01 if not given, 0.05 in bfloat16.", kind=float),
    repair=switch("Where the check is missed, pin to float32 what ranges, else a search, find."),
    metric=option("NAME|FUNCTION", f"Of the check. {metrics_help()}"),
    check_memory=option("GB", "That the check may take; 4.3 if not given.", kind=float),
    metadata=switch(
        "The file says what was done: type and reason by node, level, --fp32.", "--metadata/--no-metadata", default=True
    ),
    html=HTML,
    optimize=switch("ONNX Runtime's own fusions for the target first, where they save nodes."),
    runtime=option(
        "PYTHON",
        "The python of an environment: for --optimize, whose onnxruntime has the target; else for --target tensorrt, "
        "with TensorRT for RTX, which builds what was written.",
    ),
    loss_scale=option("SCALE", "Refused, with what to do instead.", hidden=True),
    jobs=option("N", "Of a folder: at most N models at once, as far as memory allows; 1 if not given.", kind=int),
    transformers_js=switch("Of a folder: X.onnx -> X_fp16.onnx, X_q4.onnx -> X_q4f16.onnx; others are copied."),
)
def convert(
    bar: Display, *, model: str, output: str | None, jobs: int | None, transformers_js: bool, **options: Any
) -> CommandOutput:
    """Convert a model, or each model of a folder, to mixed precision.

    \b
    ampgraph convert model.onnx --level auto -o fast.onnx
    ampgraph convert model.onnx --dtype bfloat16 --fp32 'scope:decoder.*' --fp32 op:Pow
    ampgraph convert model.onnx --data samples/ --ranges-out ranges.json
    ampgraph convert model.onnx --optimize --runtime gpu-environment/bin/python
    ampgraph convert model.onnx --target tensorrt --runtime build/tensorrt/bin/python
    ampgraph convert model.onnx --dry-run --json
    ampgraph convert pipeline/ -o pipeline.fp16 --jobs 2     (its tree and names are kept, what is no model is copied)
    ampgraph convert - -o - < model.onnx > model.O2.onnx     (the report goes to stderr)

    It ends with a check, in a process of its own, within a minute and --check-memory. The exit code is 1 where the
    result misses the tolerance, where TensorRT refuses it and takes the original, and where --check require leaves no
    file; what generated inputs leave in doubt is said. Of a folder, 2 where a model failed; the others are converted
    all the same, and a second call does what is left.
    """
    if Path(model).is_dir():
        from .folder import convert_folder

        return convert_folder(
            bar, convert_in_child, options, model=model, output=output, jobs=max(jobs or 1, 1), web=transformers_js
        )
    if jobs is not None or transformers_js:
        message = f"{'--jobs' if jobs is not None else '--transformers-js'} is for a folder, and {model} is none"
        raise AmpError("AMP404", message, hint="omit it")
    return _convert_one(bar, model=model, output=output, **options)


def convert_in_child(options: dict[str, Any], answer: Callable[[Any], None]) -> None:
    """Command `convert FOLDER`, in the process of one model: converts it, and answers ``report``, ``ok``, what is
    ``said`` in a line and ``unmatched`` words, or ``error`` and ``hint``. Words of options (of `_convert_one`, which
    are changed) that match nothing in this model are left out: they need only match in one of them."""
    unmatched: list[str] = []
    while True:
        try:
            output = _convert_one(Display(), **options)
            break
        except AmpError as error:
            fields = options["fields"]
            word = error.word if isinstance(error, Unmatched) else ""
            places = [name for name in NAME_PARTS if word in fields.get(name, ())]
            if not places:
                answer({"error": str(AmpError(error.code, error.message, where=error.where)), "hint": error.hint})
                return
            for name in places:
                fields[name] = [given for given in fields[name] if given != word]
            unmatched.append(word)
    report: Any = json_value(output.data)
    verdict, said = report["check"], "not checked" if report["changed"] else "nothing to lower"
    if verdict is not None:
        verdict["seconds"] = 0.0  # the one thing that differs from run to run
        said = str(CheckVerdict.from_dict(verdict))
    answer({"ok": output.ok, "said": said, "report": report, "unmatched": unmatched})


def _convert_one(
    bar: Display, *, model: str, output: str | None, fields: Given, dry_run: bool, plan_in: str | None,
    plan_out: str | None, html: str | None, metadata: bool, loss_scale: str | None, **rest: Any,
) -> CommandOutput:  # fmt: skip
    """Command `convert` on one model: converts it, and returns its report."""
    with hold_signals():
        from ..api.calibrate import Measuring
        from ..api.check_model import check_build, only_builds
        from ..api.checked import convert_and_check
        from ..api.steps import Checking, Job
        from ..report.picture.writing import picture_conversion, refuse_page

    data, runtime = rest["data"], rest["runtime"]
    measuring = Measuring(data, rest["samples"], rest["ranges_out"])
    if loss_scale is not None:
        refuse_loss_scale(model, loss_scale)
    given = [*flags(name for name in fields if name not in OF_READING), *measuring.options_given()]
    if plan_in and given:
        raise AmpError("AMP404", f"{given[0]} cannot change the given plan", hint="omit it, or omit --plan-in")
    recipe = recipe_of(None, fields)
    builds = not rest["optimize"] and only_builds(recipe.target or "", runtime)
    if runtime and not rest["optimize"] and not builds:
        message = "--runtime names the environment for --optimize or --target tensorrt, and neither is given"
        raise AmpError("AMP404", message, hint="add one of them; verify --runtime runs models by other targets")
    with pipe_files(model, output, dry_run) as pipe:
        job = Job(
            pipe.model, recipe, plan_in, measuring, pipe.output, beside=True, plan_out=plan_out,
            dry_run=dry_run, report=True, option="-o", metadata=metadata,
            optimize=rest["optimize"] and (runtime or True),
            checking=Checking(rest["check"], rest["tolerance"], rest["repair"], rest["metric"], rest["check_memory"]),
        )  # fmt: skip
        refuse_page(html, model, output, data, plan_in, plan_out)
        result = convert_and_check(job, bar.part)
        picture_conversion(html, result.graph, result.summary, result.choices)
        written = result.summary.output if result.summary else None
        built = check_build(written, pipe.model, runtime, data, dict(recipe.dims)) if builds and written else None
        pipe.deliver()
        ignore_interrupts()
    summary = result.summary
    assert summary is not None  # the job asks for one
    if PIPE in (model, output):
        summary = replace(summary, model=model, output=summary.output and (output or PIPE))
    missed = summary.check is not None and (summary.check.missed or (summary.output is None and not summary.check.ok))
    data = summary.to_dict() | ({"build": built.to_dict()} if built else {})
    ok = not missed and (built is None or built.ok)
    return CommandOutput(
        data, lambda: summary.lines(verbose()) + (built.lines() if built else []), ok, aside=pipe.result is not None
    )


def refuse_loss_scale(model: str, scale: str) -> NoReturn:
    """For `convert --loss-scale`: raises AmpError AMP205 with what to do instead, AMP1xx for an unreadable MindIR
    file."""
    from ..core.graph import is_mindir
    from ..formats.mindir import io as mindir_io
    from ..formats.mindir.step import LOSS_SCALE_CELL, has_loss_scale, is_step

    message, hint = "convert adds no loss scale", f"ampgraph build-step --loss-scale {scale} builds a step with one"
    if is_mindir(model):
        read = mindir_io.load(model).model
        hint = "ampgraph.training.mindspore.train_step scales the loss of a file of forward and loss"
        if is_step(read):
            message, hint = "holds a training step without a loss scale", f"export {LOSS_SCALE_CELL}"
            if has_loss_scale(read):
                message, hint = "holds its loss scale already", "leave --loss-scale out"
    raise AmpError("AMP205", message, where=model, hint=hint)


@command(folder=argument("[DIR]", "Where its files go; ampgraph-demo if not given.", "ampgraph-demo"))
def demo(bar: Display, *, folder: str) -> CommandOutput:
    """Write a small transformer, convert it to float16, and verify the result on 360 images.

    \b
    ampgraph demo
    ampgraph demo somewhere/else
    """
    with hold_signals():
        from ..api.checked import convert_and_check
        from ..api.steps import Checking, Job
        from ..api.verify import verify
        from ..core.installing import pip_install

    model, data = write_demo(folder)
    made = model.with_name("digits_transformer.O2.onnx")
    job = Job(str(model), Recipe(), output=made, report=True, checking=Checking(None))
    summary = convert_and_check(job, bar.part).summary
    runs = importlib.util.find_spec("onnxruntime") is not None
    verified = verify(str(model), str(made), data=str(data), progress=bar.part) if runs else None
    assert summary is not None  # the job asks for one
    missing = [f"verify      not run: onnxruntime is not installed: {pip_install('cpu')}"]

    def lines() -> list[str]:
        return [
            "$ " + _command_line("convert", model), *summary.lines(),
            "", "$ " + _command_line("verify", model, made, "--data", data),
            *(verified.lines() if verified else missing),
            "", "next:", "  " + _command_line("inspect", made, "--against", model),
            "  " + _command_line("explain", model, "node_add_77"), "  " + _command_line("convert", "your_model.onnx"),
        ]  # fmt: skip

    return CommandOutput({"convert": summary.to_dict(), "verify": verified.to_dict() if verified else None}, lines)


def write_demo(folder: str) -> tuple[Path, Path]:
    """Command `demo`: writes a small float32 transformer and 360 images for it, which come with the package, into a
    folder that is made; returns the paths of both.

    Raises AmpError AMP105 where that cannot be done.
    """
    place = Path(folder)
    if place.exists() and not place.is_dir():
        raise AmpError("AMP105", "is not a folder", where=str(place), hint="name another one")
    with refusals_reported(place):
        place.mkdir(parents=True, exist_ok=True)
    for name in (MODEL_FILE, DATA_FILE):
        with whole_file(place / name) as temporary:
            temporary.write_bytes(resources.files("ampgraph.models").joinpath(name).read_bytes())
    return place / MODEL_FILE, place / DATA_FILE


def _command_line(*words: object) -> str:
    """Command `demo`: a command line to copy: with ``ampgraph`` where it is on the path, else ``python -m``."""
    start = ["ampgraph"] if shutil.which("ampgraph") else [sys.executable, "-m", "ampgraph"]
    return shlex.join([*start, *map(str, words)])
