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
from ..runtime.targets import executed_session, runtime_of
from ..runtime.tensorrt_rtx import BuildJob, build_all
from .kinds import Data, PathLike
from .run import open_session
from .verify import TOLERANCE, verify

SAMPLES = 4  # that are run where nobody says how many
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
    runs = None if builds else runtime_of(target, runtime)
    sound = _Check(os.fspath(model), *(("", "") if runs is None else (target, runtime)))
    with quiet_collector():
        graph = sound.read()
        if graph is not None and sound.valid(graph):
            sound.stored(graph)
            sound.idle(graph)
            sound.opens()
            if builds:
                sound.builds(graph, runtime, against, data, dims, sm)
            count = SAMPLES if samples is None else samples
            sound.finite(graph, data, count, dims, runs)
            if against is not None:
                sound.right(against, data, count, tolerance, dims, progress)
    return sound.done("" if runs is None else runs.name)


def only_builds(target: str, runtime: str) -> bool:
    """Whether a verb's ``runtime`` only builds the model, as the runtime of ``target``, one of ONNX, executes none;
    empty for what was not given. Raises AmpError AMP304 for an unknown target."""
    return bool(runtime and target and load_kernels(place_word(target)).builder)


def check_build(
    model: PathLike, against: PathLike, runtime: str, data: Data = None, dims: Mapping[str, int] | None = None
) -> Checked:
    """The rule ``builds`` of `check` alone, with the kernels of both engines. Raises as `check` does."""
    sound = _Check(os.fspath(model))
    graph = sound.read()
    if graph is not None:
        sound.builds(graph, runtime, against, data, dims)
    return sound.done()


@dataclass
class _Check:
    """The rules, one after the other, and what came of them. ``target``: whose runtime, of the environment of the
    Python ``runtime``, executes the model; a run is strict if empty."""

    model: str
    target: str = ""
    runtime: str = ""
    passed: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    engines: list[str] = field(default_factory=list)

    def done(self, by: str = "") -> Checked:
        """The report of `check`: all rules, met, left out or violated. ``by``: the runtime that ran the model."""
        skipped, findings = tuple(self.skipped.items()), tuple(self.findings)
        return Checked(self.model, tuple(self.passed), skipped, findings, by, tuple(self.engines))

    def _found(self, rule: str, problems: Iterable[str], level: str = "error", hint: str = "") -> bool:
        """Adds a finding of `check` for each problem, of a ``level`` (`error` or `warning`) and with a ``hint``, or
        notes the rule as met; returns whether there was none."""
        found = [Finding(rule, level, problem, hint) for problem in problems]
        self.findings += found
        self.passed += [] if found else [rule]
        return not found

    def _attempt(self, rule: str, run: Callable[[], Iterable[str]], level: str = "error", hint: str = "") -> None:
        """Runs a rule that executes something: what does not run is a finding, a runtime that is missing a rule left
        out. ``level``, ``hint``: of what ``run`` finds."""
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

    def valid(self, graph: Graph) -> bool:
        """Checks the rule `valid` of `check`: the format's checker, and types of operators."""
        return self._found("valid", [*filter(None, [graph.fault()]), *graph.conflicts()])

    def stored(self, graph: Graph) -> None:
        """The rule of the verb `check` that no stored tensor of the model holds NaN."""
        flow = graph.dataflow()
        held = [value for value in flow.values if value.weight and value.dtype in FLOATS and not value.container]
        bad = [v.name for v in held if any(np.isnan(piece).any() for piece in flow.weights.chunks(v))]
        self._found("stored", (f"'{name}' holds NaN" for name in bad), hint="export it again")

    def idle(self, graph: Graph) -> None:
        """The rule of the verb `check` that no Cast of the model does nothing."""
        count = len(idle_casts(graph.dataflow())) // 2
        self._found("casts", [f"{count} Casts change no type, or nobody reads them"] if count else [], "warning")

    def opens(self) -> None:
        """Checks that ONNX Runtime opens the model as its users do, with its default optimisations, which must not
        break it. What the CPU lacks kernels for is no fault; so is what MindSpore runs, which has no such."""
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

    def builds(
        self, graph: Graph, runtime: str, against: PathLike | None, data: Data, dims: Mapping[str, int] | None,
        sm: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        """An engine by TensorRT; a refusal that the reference meets as well is no fault of the conversion."""
        sizes, values = engine_sizes(graph, dims or {}, data)
        models = [path for path in (self.model, against) if path is not None]
        answer, *others = build_all([BuildJob(path, "", sizes, values, sm) for path in models], python=runtime)
        self.engines = [one.engine.said for one in (*others, answer) if one.engine]
        said = [str(one) for one in answer.refused] or [answer.died] * bool(answer.died)
        known = {op.name for op in graph.dataflow().ops}
        nodes = [
            f"--fp32 {one.node if one.node in known else f'op:{one.operator}'}" for one in answer.refused if one.node
        ]
        hint = f"convert it with {' '.join(nodes)}" if nodes else "ampgraph diff names what a conversion changed"
        level = "error"
        if others and not others[0].ok:
            level, hint = "warning", f"{against} is refused as well: {others[0].why}"
        self._found("builds", [f"{answer.runtime}: {words}" for words in said], level, hint)

    def finite(
        self, graph: Graph, data: Data, count: int, dims: Mapping[str, int] | None, runs: Runtime | None
    ) -> None:
        """The rule `finite` of the verb `check`: a run on a few samples, by the target's runtime where it is here."""

        def run() -> list[str]:
            strict = not is_mindir(self.model)
            session = (
                open_session(self.model, strict=strict) if runs is None else executed_session(runs, self.model, graph)
            )
            drawn = load_samples(graph, data, count=count, dims=dims).fit_to(session.run)
            return list(dict.fromkeys(text for feeds in drawn for text in _infinite(session.run(feeds))))

        hint = "ampgraph verify with the float32 model names the node" if data is not None else "give --data to be sure"
        self._attempt("finite", run, "warning" if data is None else "error", hint)

    def right(
        self, against: PathLike, data: Data, count: int, tolerance: float, dims: Mapping[str, int] | None,
        progress: Progress | None,
    ) -> None:  # fmt: skip
        """Checks the rule `right`: a run of the model beside its reference."""

        def run() -> list[str]:
            found = verify(
                against, self.model, data=data, samples=count, tolerance=tolerance, dims=dims, nodes=0,
                target=self.target, runtime=self.runtime, progress=progress,
            )  # fmt: skip
            wrong = [output for output in found.outputs if not output.within(tolerance)]
            said = [f"'{output.name}' is not within {tolerance:g} of {against}" for output in wrong]
            return said or ([] if found.ok else [f"it is not within {tolerance:g} of {against}"])

        self._attempt("right", run, hint="ampgraph verify names the nodes to blame")


def _infinite(outputs: Mapping[str, Result]) -> Iterator[str]:
    """For `check`: the outputs of a run of the model that hold inf or NaN."""
    for name, value in outputs.items():
        array = np.asarray(value) if not isinstance(value, (list, dict)) and value is not None else np.zeros(1)
        if array.dtype.name in FLOATS and not np.isfinite(array.astype(np.float64)).all():
            yield f"output '{name}' is infinite or NaN"
