"""`ampgraph.build_training_step`: from a forward graph to a training step, converted by the same planner and passes as
any model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..core.arguments import check_annotated
from ..core.collector import quiet_collector
from ..core.errors import AmpError, is_number
from ..core.json_types import JsonObject
from ..core.plan import Note
from ..core.recipe import Recipe, RecipeFields, Unpack
from ..formats import adapters
from ..formats.onnx.graph import OnnxGraph
from ..oplists.options import Options
from ..planner.policies.registry import policy as policy_of
from ..planner.resolve import resolve
from ..training.forward.batch_norm import lost_for_inference
from ..training.forward.losses import loss_terms, spelled_terms
from ..training.forward.read import check_batch, read_forward
from ..training.step.flat_update import Grouping
from ..training.step.gradient_graph import GradientGraph
from ..training.step.loss_scale import DynamicLossScale, LossScale, StaticLossScale, parse_loss_scale
from ..training.step.optimizers import Groups, Optimizer, groups_of
from ..training.step.penalty import GradientPenalty, as_penalty
from ..training.step.training_step import TrainingStep
from ..training.step.update import UpdateOptions
from . import pipeline
from .keywords import recipe_for, takes_recipe
from .kinds import Model, PathLike
from .prepare import at_given_opset

DEFAULT = "default"
HAZARD = "mask"
"""The topic of those notes of a plan that a step keeps: as it is not run when it is built, no check tells of it."""
OptimizerLike = str | Optimizer
OptimizerRow = str | tuple[str, OptimizerLike | None]
"""A group of parameters: ``(pattern, optimizer)``, or the command-line form ``PATTERN=FORM``."""
_OF_FORWARD = "ranges are of the forward graph alone"
MEANINGLESS = {
    "io": "the inputs and outputs of a step keep their types",
    "freeze_weights": "what is not to be trained is named by freeze",
    "ranges": _OF_FORWARD,
    "range_margin": _OF_FORWARD,
}
"""Fields of a recipe that a training step has no place for, and why."""


@takes_recipe
def build_training_step(
    model: Model,
    *,
    loss: str | Mapping[str, float] | Sequence[str] | None = None,
    optimizer: OptimizerLike | Sequence[OptimizerRow],
    recipe: Recipe | str | None = None,
    loss_scale: str | LossScale | None = DEFAULT,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    ema: float | None = None,
    penalty: GradientPenalty | str | None = None,
    freeze: str | Sequence[str] = (),
    output: PathLike | None = None,
    gradients: Mapping[str, str] | None = None,
    seed: str | None = None,
    batch: int | None = None,
    **fields: Unpack[RecipeFields],
) -> TrainingStep:
    """A training step of a forward graph, or of one that has its backward, for stock ONNX Runtime.

    Args:
        model: what `ampgraph.convert` takes, in float32 and with its weights.
        loss: ``cross_entropy`` (of the first output, with an input ``labels`` of class numbers), ``mse`` (with an input
            ``labels`` like the first output), or the name of an output that is a float scalar. A graph with gradients
            has its loss: by default its only float scalar output. Several are added up by their weights,
            ``{"a": 1.0, "b": 0.5}``, and reported as ``StepResult.parts``.
        optimizer: `SGD`, `Adam` or `AdamW`, or their command-line form, ``sgd:lr=0.1,momentum=0.9``. Or groups of
            parameters, ``[("*.bias", AdamW(weight_decay=0)), ("*", AdamW())]``, the first pattern that matches a name
            wins; in the place of an optimizer ``frozen`` for what is not trained, ``shared`` for what is not trained
            here, but by another step with which a `Trainer` shares it.
        recipe: an `ampgraph.Recipe`, or the short text of one. It holds for forward and backward. Parameters and all
            other state are float32, but for O3, which stores parameters low.
        loss_scale: a policy of `ampgraph.training.step.loss_scale`, its command-line form, or None for neither scale
            nor skipped steps. By default dynamic at O1, O2 and auto with float16, else None.
        clip_norm: the largest L2 norm of all unscaled gradients together.
        clip_value: the largest absolute value of a number of an unscaled gradient.
        ema: the decay of a running average of the weights, which is kept beside them and can be exported.
        penalty: a `GradientPenalty` that is added to the loss, or its command-line form, ``of=parameters,power=1``.
        freeze: name patterns of parameters that are not trained. One that matches the running mean or variance of a
            BatchNormalization leaves that node in the form of inference: it computes with these statistics, which stay
            as they are; where the graph has its backward they only stay.
        output: write the step there.
        gradients: for a graph that has its backward, the output that is a parameter's gradient, by parameter. By
            default outputs ``gradient:P``, ``P.grad``, ``grad_P`` and ``P_grad`` are the gradient of parameter P.
        seed: the float32 scalar input that these gradients start from, which becomes the loss scale. By default one
            of ``seed``, ``scale``, ``grad_output``, ``tangents_1``.
        batch: the one size that its batches have: shapes are then numbers, and on CUDA nothing of a step runs on the
            host. Evaluation and the trained model take any.
        **fields: of the recipe, but for io and ranges; each replaces the recipe's own:

    Raises:
        AmpError: AMP205 for a model that is a training step already, AMP210 an operator without gradient rule, AMP211
            a parameter without gradient, AMP212 a shape that is not known, AMP213 a loss that is none, AMP215 for
            gradients, seeds and buffers that do not fit, AMP301 to AMP305 for the recipe, ``freeze`` and the
            patterns of groups, AMP320 for the loss scale, AMP322 for optimizers, clipping and ema.
    """
    check_annotated(build_training_step, locals())
    wanted = recipe_for(build_training_step, recipe, fields)
    _refuse_meaningless(wanted)
    options = resolve(wanted, "ONNX")
    policy = _loss_scale_policy(loss_scale, options.level.name, options.dtype)
    groups, update = groups_of(optimizer), UpdateOptions(clip_norm, clip_value, ema)
    losses, extra = loss_terms(loss), as_penalty(penalty)
    size = check_batch(batch)
    freeze = (freeze,) if isinstance(freeze, str) else tuple(freeze)
    with quiet_collector():
        moved = None if wanted.opset is None else at_given_opset(adapters.load(model)[0], wanted)
        forward = read_forward(moved.model if isinstance(moved, OnnxGraph) else model)
        lost = lost_for_inference(forward)
        joint = GradientGraph(forward, losses, policy, freeze, gradients, seed, groups, size)
        # a user who says which nodes are low decides on these products too
        joint.differentiate(policy, extra, pins_boundary_products=not wanted.low)
        notes = lost + _lower_precision(joint, options)
        step = replace(_finished_step(joint, options, groups, policy, update), notes=notes)
    if output is not None:
        step.save(output)
    return step


def _finished_step(
    joint: GradientGraph, options: Options, groups: Groups, policy: LossScale | None, update: UpdateOptions
) -> TrainingStep:
    """The last step of `build_training_step`: adds the update to the gradients, and writes into the step's layout the
    options that it was built by, of which those that say nothing (no penalty, clip_value, ema) are left out."""
    built: JsonObject = {"level": options.level.name, "dtype": options.dtype, "target": options.target}
    built |= {"loss": spelled_terms(joint.losses), "clip_norm": update.clip_norm, "optimizer": str(groups)}
    if update.clip_value is not None:
        built["clip_value"] = update.clip_value
    if update.ema is not None:
        built["ema"] = update.ema
    if joint.penalty is not None:
        built["penalty"] = str(joint.penalty)
    built["loss_scale"] = "none" if policy is None else str(policy)
    return joint.finish(update, built)


def _refuse_meaningless(recipe: Recipe) -> None:
    """For `build_training_step`: raises AmpError AMP301 for a field of the recipe that means nothing for a step, AMP303
    for a policy that says nothing of gradients."""
    if not policy_of(recipe.policy).ours:
        hint = "omit --policy, or convert an exported training graph"
        raise AmpError("AMP303", f"policy '{recipe.policy}' has no rules for gradients", hint=hint)
    for name in recipe.set():
        if name in MEANINGLESS:
            hint = f"omit it: {MEANINGLESS[name]}"
            raise AmpError("AMP301", f"{name} has no meaning for a training step", hint=hint)


def _lower_precision(joint: GradientGraph, options: Options) -> tuple[Note, ...]:
    """For `build_training_step`: plans forward and backward together and carries the plan out, but for level O0; at O3
    parameters are stored low. Returns the plan's notes that a step keeps."""
    if options.level.name == "O0":
        return ()
    graph, together = OnnxGraph(joint.model), Grouping.on(options.target)
    options = replace(options, cast_together=together.longest if together.vectors else 0)
    stored_low = (*joint.parameters, *joint.given) if options.level.name == "O3" else ()
    graph.prepare()
    plan, flow = pipeline.plan_prepared_graph(graph, options, frozenset(value.name or "" for value in stored_low))
    pipeline.run_passes(graph, plan, flow)
    joint.match_types()
    return tuple(note for note in plan.notes if note.topic == HAZARD)


def _loss_scale_policy(given: str | LossScale | None, level: str, dtype: str) -> LossScale | None:
    """The loss scale that `build_training_step` was asked for, None for none: "default" is a dynamic one for float16 at
    O1, O2 and auto, another text one in the command line's form. Raises AmpError AMP320 for what is no loss scale."""
    if isinstance(given, str):
        if given != DEFAULT:
            return parse_loss_scale(given)
        return DynamicLossScale() if dtype == "float16" and level in ("O1", "O2", "auto") else None
    if given is not None and not isinstance(given, (StaticLossScale, DynamicLossScale)):
        hint = f"static:{given} for a scale that stays" if is_number(given) else "ampgraph.DynamicLossScale()"
        raise AmpError("AMP320", f"loss_scale={given!r} is neither a policy nor the text of one", hint=hint)
    return given
