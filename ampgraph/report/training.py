"""The reports of `build-step`, `train` and `export-weights`."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from ..core.json_types import JsonObject
from ..core.shown import Shown, plural
from ..oplists.traits import has
from .lines import first, in_rows, titled

if TYPE_CHECKING:
    from ..training.mindspore.step_trainer import MindirTrainer
    from ..training.run.fitting import Epoch, History
    from ..training.run.step_log import StepLog
    from ..training.run.trainer import Trainer
    from ..training.step.training_step import TrainingStep

FLOATS = {
    ir.DataType.FLOAT: "float32",
    ir.DataType.DOUBLE: "float64",
    ir.DataType.FLOAT16: "float16",
    ir.DataType.BFLOAT16: "bfloat16",
}
NAMED = 4  # parameters; --json has all
PARTS = ("forward", "backward", "update")
PREFIXES = {"grad": "backward", "step": "update"}  # names that the gradient and the update give to their nodes


@dataclass(frozen=True, repr=False)
class StepReport(Shown):
    """The report of `build-step`: a training step in numbers. ``nodes`` and ``products`` (of matrices and
    convolutions): part, one of `PARTS` -> type -> how many compute in it; ``trained``: how many ``parameters``;
    ``trained_numbers``: of how many numbers; ``frozen``: names of parameters that stay as they are."""

    model: str
    output: str
    options: JsonObject
    trained: int
    parameters: list[str]
    trained_numbers: int
    frozen: list[str]
    state_bytes: int
    inputs: list[str]
    nodes: dict[str, dict[str, int]]
    products: dict[str, dict[str, int]]
    notes: list[dict[str, str]] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The text that `build-step` prints, by lines."""
        given = self.options
        clip = given.get("clip_norm")
        more = [name for name in ("clip_value", "ema", "penalty") if name in given]
        rows = [
            ("model", self.model),
            ("result", self.output),
            ("options", f"level {given.get('level')}, {given.get('dtype')}, target {given.get('target')}"),
            ("loss", str(given.get("loss"))),
            *titled("optimizer", str(given.get("optimizer")).split("; ")),
            ("loss scale", re.sub(r",\w+=none", "", str(given.get("loss_scale")))),
            ("clip norm", "none" if clip is None else str(clip)),
            *((name.replace("_", " "), str(given[name])) for name in more),
            ("trained", f"{plural(self.trained, 'parameter')}, {self.trained_numbers:,} numbers"),
            ("", first(self.parameters, NAMED)),
            *([("frozen", first(self.frozen, NAMED))] if self.frozen else []),
            ("state", f"{self.state_bytes:,} bytes"),
            *((part, _counts_by_type(self.nodes[part], self.products[part])) for part in PARTS),
            ("inputs", ", ".join(self.inputs)),
            *((note["topic"], ": ".join(filter(None, (note["where"], note["text"])))) for note in self.notes),
        ]
        return in_rows(rows)


def describe_step(step: TrainingStep, model: str, output: str) -> StepReport:
    """The report of `build-step`. ``model`` and ``output``: the names of the forward graph's file and the step's."""
    state = step.initial_state
    trained = [state[name] for name in step.parameters]
    nodes: dict[str, Counter[str]] = {part: Counter() for part in PARTS}
    products: dict[str, Counter[str]] = {part: Counter() for part in PARTS}
    for node in step.model.graph:
        dtype = next((FLOATS[v.dtype] for v in node.outputs if v.dtype is not None and v.dtype in FLOATS), "")
        part = PREFIXES.get((node.name or "").split("/")[0], "forward")
        if dtype and not has(node.op_type, "casts"):
            nodes[part][dtype] += 1
            if has(node.op_type, "products"):
                products[part][dtype] += 1
    return StepReport(
        model=model,
        output=output,
        options=dict(step.layout.options),
        trained=len(trained),
        parameters=step.parameters,
        trained_numbers=sum(array.size for array in trained),
        frozen=_untrained_parameters(step),
        state_bytes=sum(array.nbytes for array in state.values()),
        inputs=list(step.layout.inputs),
        nodes={part: dict(sorted(found.items())) for part, found in nodes.items()},
        products={part: dict(sorted(found.items())) for part, found in products.items()},
        notes=[asdict(note) for note in step.notes],
    )


def _untrained_parameters(step: TrainingStep) -> list[str]:
    """Report of `build-step`: names of parameters of the forward graph that the step leaves as they are; none for a
    step that does not hold its forward graph."""
    from ..training.forward.parameters import parameter_names
    from ..training.run.evaluation import trained_model
    from ..training.step.packed_forward import FORWARD

    if FORWARD not in step.model.metadata_props:
        return []
    model = trained_model(step, step.initial_state)
    state = set(step.initial_state)
    return [name for name in parameter_names(model) if name not in state]


def _counts_by_type(nodes: dict[str, int], products: dict[str, int]) -> str:
    """Report of `build-step`: how many nodes and products are of each type, in words."""
    words = [", ".join(f"{n:,} {dtype}" for dtype, n in counts.items()) for counts in (nodes, products)]
    return f"nodes: {words[0] or 'none'}" + (f"; products: {words[1]}" if products else "")


# -- train ------------------------------------------------------------------------------------------------------------


def epoch_line(epoch: Epoch, epochs: int) -> str:
    """A line of the report of `train` on an epoch of ``epochs``: losses, skipped steps, loss scale, validation."""
    words = [f"epoch {epoch.number}/{epochs}", f"loss {epoch.loss:.5g}"]
    words += [f"{name} {number:.5g}" for name, number in epoch.parts.items()]
    if epoch.skipped:
        words.append(f"{plural(epoch.skipped, 'step')} skipped")
    if epoch.scale != 1:
        words.append(f"scale {epoch.scale:g}")
    for name, number in epoch.validation.items():
        if name != "samples":
            words.append(f"validation {name} {number:.5g}")
    return "  ".join(words)


def history_dict(history: History) -> JsonObject:
    """The history of a training as plain data, for the JSON of `train`."""
    return {
        "epochs": [epoch.to_dict() for epoch in history.epochs],
        "steps": len(history.losses),
        "steps_before": history.resumed,
        "skipped": int((~history.finite).sum()),
        "dropped_samples": history.dropped,
    }


def closing_lines(history: History, checkpoint: str | None, resume: bool) -> list[str]:
    """The last lines of the report of `train`: samples left out, where it went on from if it was to ``resume``, and
    where the checkpoint is. ``checkpoint``: its folder, or None."""
    lines = []
    if history.dropped:
        lines.append(f"left out     {history.dropped} samples of each epoch: they fill no batch")
    if resume:
        before = f"went on after {history.resumed} steps" if history.resumed else "no checkpoint yet: from the start"
        lines.append(f"resumed      {before}" + ("" if history.epochs else "; nothing was left to train"))
    if checkpoint is None:
        lines.append("checkpoint   none: the trained weights are not kept (--checkpoint DIR keeps them)")
    else:
        from ..training.run.fitting import FILE

        lines.append(f"checkpoint   {Path(checkpoint) / FILE}")
    return lines


@dataclass(frozen=True, repr=False)
class Trained(Shown):
    """What `train` did. ``checkpoint``: the folder of the checkpoint, ``html``: the page, None for none; ``resumed``:
    whether it was to go on from a checkpoint; ``trainer`` holds the state; ``log``: what every step told, where that
    was wanted; ``ranks``: how many processes shared every batch, of which this was number ``rank``."""

    step: str
    device: str
    strict: bool
    checkpoint: str | None
    html: str | None
    resumed: bool
    rank: int
    ranks: int
    history: History
    trainer: Trainer | MindirTrainer
    log: StepLog | None = None

    @property
    def first(self) -> bool:
        """Whether this process is the first, which alone prints the report of `train`."""
        return self.rank == 0

    def to_dict(self) -> JsonObject:
        """The report of `train` as plain data for JSON."""
        report: JsonObject = {name: getattr(self, name) for name in ("step", "device", "strict", "checkpoint")}
        if self.html:
            report["html"] = self.html
        if self.ranks > 1:
            report["ranks"] = self.ranks
        return report | history_dict(self.history)

    def lines(self) -> list[str]:
        """The end of the report of `train`, by lines, behind those that it printed for each epoch."""
        lines = closing_lines(self.history, self.checkpoint, self.resumed)
        return [*lines, f"page         {self.html}"] if self.html else lines


@dataclass(frozen=True, repr=False)
class ExportedWeights(Shown):
    """What `export_weights` wrote, from which files, and how many updates the weights have seen."""

    step: str
    checkpoint: str
    result: str
    updates: int

    def lines(self) -> list[str]:
        """The text that `export-weights` prints, by lines."""
        return [f"{name:<11} {value}" for name, value in self.to_dict().items()]
