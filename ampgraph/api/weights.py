"""`ampgraph.export_weights`: the forward model of a training step with the weights of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..core.arguments import check_annotated
from ..formats.checks import faults_reported, refuse_overwriting
from ..formats.onnx.graph import OnnxGraph
from ..report.training import ExportedWeights
from ..training.run import checkpoint as files
from ..training.run.evaluation import save_trained
from ..training.run.fitting import FILE
from ..training.step.training_step import TrainingStep
from .kinds import PathLike


def export_weights(
    step: PathLike,
    checkpoint: PathLike,
    output: PathLike,
    *,
    ema: bool = False,
    progress: Callable[[str], None] | None = None,
) -> ExportedWeights:
    """Writes the forward model with the weights of a checkpoint: float32, for inference, ready for `convert`.

    Args:
        step: the file that `build_training_step` gave and `TrainingStep.save` wrote.
        checkpoint: the folder that `train` was given, or a file in it.
        output: where the model goes, whole or not at all.
        ema: the running average of the weights, which a step built with it keeps, instead of the weights.
        progress: hears what is done next.

    Raises:
        AmpError: AMP101 for files that are missing, AMP108 and AMP405 for a checkpoint that is damaged or of another
            step, AMP105 and AMP106 for a place where nothing can be written.
    """
    check_annotated(export_weights, locals())
    tell = progress or (lambda stage: None)
    place = Path(checkpoint)
    place = place / FILE if place.is_dir() else place
    with faults_reported(step):
        tell("reading")
        given = TrainingStep.load(step)
        refuse_overwriting(OnnxGraph(given.model), Path(output), [Path(step), place], "-o")
        found = files.load(place)
        files.check_belongs(found, files.digest(given), str(place))
        tell("writing")
        save_trained(given, found.state, output, average=ema)
    return ExportedWeights(str(step), str(place), str(output), int(found.state[given.layout.count]))
