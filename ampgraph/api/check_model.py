"""`ampgraph.check`: whether a model file is sound, for continuous integration."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from ..core.arguments import check_annotated
from ..core.arrays import Result
from ..core.collector import quiet_collector
from ..core.errors import AmpError
from ..core.graph import Graph, is_mindir
from ..core.progress import Progress
from ..core.spellings import place_word
from ..formats import adapters
from ..formats.checks import faults_reported
from ..numerics.inputs.samples import load_samples
from ..oplists.kernels import load_kernels
from ..passes.fuse_casts import idle_casts
from ..report.findings import Checked, Finding
from ..report.fusions import engine_sizes
from ..runtime.executed import Runtime
from ..runtime.opening import opening_refusal
from ..runtime.ports import Session
from ..runtime.targets import executed_session, runtime_of
from ..runtime.tensorrt_rtx import BuildJob, build_all
from .kinds import Data, PathLike
from .run import open_session
from .verify import TOLERANCE, verify

SAMPLES = 4  # that are run by default
NOT_INSTALLED = "AMP501"
FLOATS = ("float16", "bfloat16", "float32", "float64")


def check(
    model: PathLike,
    against: PathLike | None = None,
    *,
    data: Data = None,
    samples: int | None = None,
    tolerance: float = TOLERANCE,
    dims: Mapping[str, int] | None = None,
    target: str = "tensorrt",
    runtime: str = "",
    sm: Iterable[str] = (),
    progress: Progress | None = None,
) -> Checked:
    """Looks whether a model file is sound: it reads, is valid, and a run of it is finite, and right.

    Args:
        model: a path (.onnx or .mindir).
        against: the float32 model that it was made from; a strict run is then held against it.
        data: samples as `verify` takes them; generated if not given. A run on generated inputs that is not finite is
            a warning, as they are no real ones.
        samples: how many at most; 4 if not given.
        tolerance: as in `verify`.
        dims: sizes of symbolic dimensions, for generated inputs.
        target: where it is to run. openvino executes it, where OpenVINO is here or in the environment that ``runtime``
            names; the run is strict elsewhere.
        runtime: the Python of an environment with what the target needs. TensorRT for RTX parses the model and builds
            an engine of it without a GPU: what it refuses is a finding, and so is a crash. Not asked if empty.
        sm: compute capabilities of the GPUs that the engine is for, ``75`` or ``89``; TensorRT's own choice if empty.
        progress: hears of progress: what is done, how much of it, of how much.

    Raises:
        AmpError: for mistakes in the arguments and in ``data``; AMP404 for a target that nothing builds for, AMP501 and
            AMP508 for a ``runtime`` that cannot be asked. What is wrong with the model is a finding.
    """
    check_annotated(check, locals())
    builds, sm = only_builds(target, runtime), tuple(sm)
    if sm and not builds:
        hint = "--runtime names the Python of an environment with TensorRT for RTX"
        raise AmpError("AMP404", "--sm says for which GPUs an engine is built, and none is built", hint=hint)
    executing = None if builds else runtime_of(target, runtime)
    rules = _ModelCheck(os.fspath(model)) if executing is None else _ModelCheck(os.fspath(model), target, runtime)
    with quiet_collector():
        graph = rules.read()
        if graph is not None and rules.check_valid(graph):
            rules.check_stored(graph)
            rules.check_casts(graph)
            rules.check_opens()
            if builds:
                rules.check_builds(graph, runtime, against, data, dims, sm)
            count = SAMPLES if samples is None else samples
            rules.check_finite(graph, data, count, dims, executing)
            if against is not None:
                rules.check_right(against, data, count, tolerance, dims, progress)
    return rules.report("" if executing is None else executing.name)


def only_builds(target: str, runtime: str) -> bool:
    """Whether a verb's ``runtime`` only builds the model, as the runtime of ``target``, one of ONNX, executes none;
    empty for what was not given. Raises AmpError AMP304 for an unknown target."""
    return bool(runtime and target and load_kernels(place_word(target)).builder)


def check_build(
    model: PathLike, against: PathLike, runtime: str, data: Data = None, dims: Mapping[str, int] | None = None
) -> Checked:
    """For `convert` and `verify`: the rules ``reads`` and ``builds`` of `check` alone, with the kernels of the engines
    of both models. ``runtime``: the Python of an environment with TensorRT. Raises as `check` does."""
    rules = _ModelCheck(os.fspath(model))
    graph = rules.read()
    if graph is not None:
        rules.check_builds(graph, runtime, against, data, dims)
    return rules.report()


@dataclass
class _ModelCheck:
    """The rules of `check`, a method each, and what came of them so far: ``passed``, ``skipped`` with the reason, or
    violated by ``findings``. ``target``: whose runtime, in the environment of the Python ``runtime``, executes the
    model; "": runs are strict. ``engines``: what TensorRT makes of the reference, and of the model."""

    model: str
    target: str = ""
    runtime: str = ""
    passed: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    engines: list[str] = field(default_factory=list)

    def report(self, by: str = "") -> Checked:
        """The report of `check` on the rules looked at so far. ``by``: the runtime that ran the model, by name; "" for
        strict runs."""
        skipped, findings = tuple(self.skipped.items()), tuple(self.findings)
        return Checked(self.model, tuple(self.passed), skipped, findings, by, tuple(self.engines))

    def _found(self, rule: str, problems: Iterable[str], level: str = "error", hint: str = "") -> bool:
        """Adds a finding of `check` for each problem, of a ``level`` (``error`` or ``warning``) and with a ``hint``;
        notes the rule as met where there is no problem. Returns whether it is met."""
        found = [Finding(rule, level, problem, hint) for problem in problems]
        self.findings += found
        self.passed += [] if found else [rule]
        return not found

    def _attempt(self, rule: str, run: Callable[[], Iterable[str]], level: str = "error", hint: str = "") -> None:
        """For `check`: adds the problems that ``run`` returns, as `_found` does. ``run`` executes the model: where that
        fails it is a finding too, an error; where the runtime is not installed the rule is skipped."""
        try:
            self._found(rule, run(), level, hint)
        except AmpError as error:
            if error.code == NOT_INSTALLED:
                self.skipped[rule] = error.message
            elif error.code in ("AMP502", "AMP504"):
                self._found(rule, [error.message], hint=error.hint)
            else:
                raise

    def read(self) -> Graph | None:
        """The graph of the model to check; None where it cannot be read, which is a finding."""
        try:
            with faults_reported():
                graph, _ = adapters.load(self.model)
                graph.prepare()
        except AmpError as error:
            self._found("reads", [f"{error.code}: {error.message}"], hint=error.hint)
            return None
        self._found("reads", [])
        return graph

    def check_valid(self, graph: Graph) -> bool:
        """The rule ``valid`` of `check`: the format's checker and the types of all operators. Returns whether it is
        met: the other rules need a valid graph."""
        return self._found("valid", [*filter(None, [graph.fault()]), *graph.conflicts()])

    def check_stored(self, graph: Graph) -> None:
        """The rule ``stored`` of the verb `check`: no stored tensor of the model holds NaN."""
        flow = graph.dataflow()
        held = [value for value in flow.values if value.weight and value.dtype in FLOATS and not value.container]
        bad = [v.name for v in held if any(np.isnan(piece).any() for piece in flow.weights.chunks(v))]
        self._found("stored", (f"'{name}' holds NaN" for name in bad), hint="export it again")

    def check_casts(self, graph: Graph) -> None:
        """The rule ``casts`` of the verb `check`: no Cast of the model does nothing; a warning."""
        count = len(idle_casts(graph.dataflow())) // 2  # two marks for each Cast
        self._found("casts", [f"{count} Casts change no type, or nobody reads them"] if count else [], "warning")

    def check_opens(self) -> None:
        """The rule ``opens`` of `check`: ONNX Runtime opens the model as users do, with its default optimisations. The
        rule is skipped where the CPU only lacks kernels, or refuses the model without them too, and where ONNX Runtime
        cannot be asked. MindIR models do not have this rule."""
        if is_mindir(self.model):
            return
        try:
            found = opening_refusal(self.model)
        except AmpError as error:
            self.skipped["opens"] = error.message
            return
        if found is not None and not found.died and (found.lacks_kernel or not found.optimised):
            self.skipped["opens"] = f"the CPU does not: {found.said}"
            return
        hint = "inspect --runtime PYTHON tells what becomes of it on its own target"
        self._found("opens", [] if found is None else [f"{found.said}, {found.why}"], hint=hint)

    def check_builds(
        self, graph: Graph, runtime: str, against: PathLike | None, data: Data, dims: Mapping[str, int] | None,
        sm: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        """The rule ``builds`` of `check`: the TensorRT of the Python ``runtime`` builds an engine of the model, for
        ``sm`` as `check` takes it. A finding is a warning, no fault of the conversion, where the reference has one."""
        sizes, values = engine_sizes(graph, dims or {}, data)
        models = [path for path in (self.model, against) if path is not None]
        answer, *others = build_all([BuildJob(path, "", sizes, values, sm) for path in models], python=runtime)
        self.engines = [one.engine.said for one in (*others, answer) if one.engine]
        problems = [str(one) for one in answer.refused]
        if not problems and answer.died:
            problems = [answer.died]
        names = {op.name for op in graph.dataflow().ops}
        pins = [one.node if one.node in names else f"op:{one.operator}" for one in answer.refused if one.node]
        hint = "ampgraph diff names what a conversion changed"
        if pins:
            hint = f"convert it with {' '.join(f'--fp32 {pattern}' for pattern in pins)}"
        level = "error"
        if others and not others[0].ok:
            level, hint = "warning", f"{against} is refused as well: {others[0].why}"
        self._found("builds", [f"{answer.runtime}: {text}" for text in problems], level, hint)

    def check_finite(
        self, graph: Graph, data: Data, count: int, dims: Mapping[str, int] | None, executing: Runtime | None
    ) -> None:
        """The rule ``finite`` of the verb `check`: a run on ``count`` samples, by the runtime ``executing`` or strict
        for None, gives finite outputs. On generated inputs, for ``data`` None, a finding is a warning."""

        def run() -> list[str]:
            if executing is not None:
                session: Session = executed_session(executing, self.model, graph)
            else:
                session = open_session(self.model, strict=not is_mindir(self.model))
            drawn = load_samples(graph, data, count=count, dims=dims).fit_to(session.run)
            return list(dict.fromkeys(text for feeds in drawn for text in _infinite(session.run(feeds))))

        hint = "ampgraph verify with the float32 model names the node" if data is not None else "give --data to be sure"
        self._attempt("finite", run, "warning" if data is None else "error", hint)

    def check_right(
        self, against: PathLike, data: Data, count: int, tolerance: float, dims: Mapping[str, int] | None,
        progress: Progress | None,
    ) -> None:  # fmt: skip
        """The rule ``right`` of `check`: the outputs of the model are within the tolerance of the reference's, as
        `verify` compares them on ``count`` samples."""

        def run() -> list[str]:
            found = verify(
                against, self.model, data=data, samples=count, tolerance=tolerance, dims=dims, nodes=0,
                target=self.target, runtime=self.runtime, progress=progress,
            )  # fmt: skip
            wrong = [output for output in found.outputs if not output.within(tolerance)]
            if wrong or found.ok:
                return [f"'{output.name}' is not within {tolerance:g} of {against}" for output in wrong]
            return [f"it is not within {tolerance:g} of {against}"]  # by a measure of all outputs together

        self._attempt("right", run, hint="ampgraph verify names the nodes to blame")


def _infinite(outputs: Mapping[str, Result]) -> Iterator[str]:
    """For `check`: a text for each output of a run of the model that holds inf or NaN. Sequences, maps and absent
    optional values are not looked at."""
    for name, value in outputs.items():
        if value is None or isinstance(value, (list, dict)):
            continue
        array = np.asarray(value)
        if array.dtype.name in FLOATS and not np.isfinite(array.astype(np.float64)).all():
            yield f"output '{name}' is infinite or NaN"
