"""`ampgraph.convert`: a model in mixed precision."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, overload

from ..core.arguments import check_annotated, check_callables, check_kind
from ..core.errors import AmpError
from ..core.pass_ import Pass
from ..core.plan import Plan
from ..core.progress import Progress, silent
from ..core.recipe import OF_READING, OPTIONS, Given, OtherFields, Recipe, Unpack
from ..core.spellings import KEEP_IO
from ..core.verdict import CheckVerdict, PrecisionWarning
from ..numerics.metrics.metric import Function
from ..report.picture.writing import picture_conversion, refuse_page
from ..report.summary import Summary
from .calibrate import Measuring
from .checked import convert_and_check
from .keywords import recipe_for, takes_recipe
from .kinds import Data, FromPath, InMemory, Model, OutPath, PathLike
from .steps import Checking, Job


class ConvertOptions(OtherFields, total=False):
    """The keywords of `convert` that do not decide what type it returns, for its overloads."""

    recipe: Recipe | str | None
    plan: Plan | None
    data: Data
    passes: Sequence[Pass]
    check_passes: bool
    check: str | None
    tolerance: float | None
    repair: bool
    metric: str | Function | None
    check_memory: float | None
    metadata: bool
    html: PathLike | None
    optimize: bool | str
    progress: Progress | None


@overload
def convert(
    model: Model, level: str | int | None = None, *, output: OutPath, report: Literal[False] = False,
    **options: Unpack[ConvertOptions],
) -> OutPath: ...  # fmt: skip


@overload
def convert(
    model: InMemory, level: str | int | None = None, *, output: None = None, report: Literal[False] = False,
    **options: Unpack[ConvertOptions],
) -> InMemory: ...  # fmt: skip


@overload
def convert(
    model: PathLike, level: str | int | None = None, *, output: None = None, report: Literal[False] = False,
    **options: Unpack[ConvertOptions],
) -> FromPath: ...  # fmt: skip


@overload
def convert(
    model: Model, level: str | int | None = None, *, output: OutPath, report: Literal[True],
    **options: Unpack[ConvertOptions],
) -> tuple[OutPath, Summary]: ...  # fmt: skip


@overload
def convert(
    model: InMemory, level: str | int | None = None, *, output: None = None, report: Literal[True],
    **options: Unpack[ConvertOptions],
) -> tuple[InMemory, Summary]: ...  # fmt: skip


@overload
def convert(
    model: PathLike, level: str | int | None = None, *, output: None = None, report: Literal[True],
    **options: Unpack[ConvertOptions],
) -> tuple[FromPath, Summary]: ...  # fmt: skip


@takes_recipe
def convert(
    model: Model,
    level: str | int | None = None,
    *,
    recipe: Recipe | str | None = None,
    plan: Plan | None = None,
    data: Data = None,
    output: PathLike | None = None,
    report: bool = False,
    passes: Sequence[Pass] = (),
    check_passes: bool = False,
    check: str | None = None,
    tolerance: float | None = None,
    repair: bool = False,
    metric: str | Function | None = None,
    check_memory: float | None = None,
    metadata: bool = True,
    html: PathLike | None = None,
    optimize: bool | str = False,
    progress: Progress | None = None,
    **fields: Unpack[OtherFields],
) -> object:
    """Converts a model to mixed precision; the caller's object is never changed.

    Args:
        model: a path (.onnx or .mindir), onnx.ModelProto, onnx_ir.Model, onnx_graphsurgeon.Graph or torch ONNXProgram.
        level: O0, O1, O2, O3 or auto; O2, or the policy's own, if not given.
        recipe: an `ampgraph.Recipe`, or the short text of one: ``"O2,float16,fp32=op:Pow"``.
        plan: apply this plan instead of making one; it says all but the opset and ``freeze_weights``.
        data: run the model in float32 on these samples (an .npz file, a folder of them, an iterable of mappings): what
            passes the limit of the low type stays float32. Where the result misses then, and without them does not, the
            ranges are not used.
        output: write the result there, whole or not at all, and return the path.
        report: return the report that the command prints as well, an `ampgraph.Summary`; ``.check`` is the verdict.
        passes: your own, which run behind the conversion's: functions of a graph that return a Change.
        check_passes: verify the graph behind each pass; the error names the pass.
        check: ``auto`` (a strict run of the result on a few samples, yours or generated, in a process of its own, for a
            second or more; where it is not ok, what overflows, or else what makes most of the error, is float32 in
            further conversions, of which one that is ok is kept; a PrecisionWarning says what is missed all the same),
            ``require`` (nothing is written or returned unless that was done and met), ``off``. None: as the environment
            variable AMPGRAPH_CHECK says, else ``auto``.
        tolerance: of that run: the error that 9 of 10 samples must meet at every output; 1e-2 in float16, 5e-2 in
            bfloat16.
        repair: where it is missed, what is to blame is searched for, and pinned to float32: by the ranges of the
            samples, by what the check has tried, else by `tune`.
        metric: what that run is judged by, as `verify` takes it; a function has to be found by its module.
        check_memory: GB that it may take; 4.3 if not given. What needs more is not checked.
        metadata: the result says what was done: type and reason of each node that changed (before IR version 10 in one
            entry of the model), version, level and patterns pinned to float32, which a later conversion heeds.
        html: write a page there, whole or not at all: the graph of the result by layers, precision as colour, reasons.
        optimize: ONNX Runtime's own offline optimisation for the target comes first, where it saves nodes: its fused
            operators are part of the result. True, or the Python of an environment that has onnxruntime.
        progress: hears of progress: what is done, how much of it, of how much.
        **fields: of the recipe; each replaces the recipe's own:

    Returns:
        ``output`` when it is given, else the same kind as ``model`` (for a path: onnx.ModelProto, or onnx_ir.Model when
        its weights are external); with ``report`` a pair of that and the report.

    Raises:
        AmpError: for every mistake in the input or the arguments; AMP507 where ``check`` requires what is not met.
    """
    check_annotated(convert, locals())
    given: Given = {"level": level, **fields}
    wanted = recipe_for(convert, recipe, given)
    if plan is not None:
        _refuse_beside_plan(wanted, given, data)
    check_kind("plan", plan, (Plan, str), "give what ampgraph.plan returned, or Plan.read(FILE)")
    check_callables("passes", passes)
    place = None if output is None else Path(output)
    refuse_page(html, model, output, data)
    job = Job(
        model, wanted, plan, Measuring(data), place, passes=tuple(passes), check_passes=check_passes,
        checking=Checking(check, tolerance, repair, metric, check_memory), metadata=metadata,
        report=report or html is not None, optimize=optimize,
    )  # fmt: skip
    done = convert_and_check(job, progress or silent)
    picture_conversion(html, done.graph, done.summary, done.choices)
    _announce(done.verdict, check)
    result = done.model() if output is None else output
    return (result, done.summary) if report else result


@overload
def apply(model: Model, plan: Plan, *, output: OutPath) -> OutPath: ...


@overload
def apply(model: InMemory, plan: Plan, *, output: None = None) -> InMemory: ...


@overload
def apply(model: PathLike, plan: Plan, *, output: None = None) -> FromPath: ...


def apply(model: Model, plan: Plan, *, output: PathLike | None = None) -> object:
    """Applies a plan to the model that it was made for. Raises AmpError AMP403 for another model."""
    return convert(model, plan=plan, output=output)


def _announce(verdict: CheckVerdict | None, check: str | None) -> None:
    """Warns the caller of `convert`, which must call this itself, of a check that was missed or is in doubt; None:
    there was none. Raises AmpError AMP507 where ``check`` is "require" and the result does not meet it."""
    if verdict is None or verdict.ok:
        return
    if check == "require" and not verdict.passes_require:
        hint = "with check='auto' the file is written all the same"
        raise AmpError("AMP507", f"the result was not kept: {verdict}", hint=hint)
    if verdict.missed or verdict.doubtful:
        warnings.warn(PrecisionWarning(verdict), stacklevel=3)


def _refuse_beside_plan(recipe: Recipe, given: Given, data: Data) -> None:
    """Raises AmpError AMP404 where `convert` is given, beside a plan, anything that the plan decides: data, or options
    other than those of reading the model. ``given``: the recipe's fields that were keywords; None or an empty value
    counts as not given."""
    keywords = {name for name, value in given.items() if value is not None and value not in ((), [], {}, "")}
    names = keywords | set(recipe.set())
    found = [name for name in (*OPTIONS, KEEP_IO) if name not in OF_READING and name in names]
    found += ["data"] if data is not None else []
    if found:
        hint = "make the plan with it, or omit plan="
        raise AmpError("AMP404", f"{found[0]}= cannot change the given plan", hint=hint)
