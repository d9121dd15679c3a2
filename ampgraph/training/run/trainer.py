"""Runs training steps on ONNX Runtime: the state stays on the device, results are copied only when asked for."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...core.arrays import Array, Feeds
from ...core.errors import AmpError, first_line, nearest
from ...core.light_imports import Later
from ...runtime.onnxruntime_session import OrtTensor, as_numpy
from ..step.loss_scale import DynamicLossScale, parse_loss_scale
from ..step.state_tensors import PARAMETER, SCALE
from ..step.training_step import StepLayout, StepResult, TrainingStep
from . import checkpoint as files
from .accumulation import AccumulatingBinding
from .binding import SHARED, Binding, CapturedBinding
from .dataset import TrainingData
from .evaluation import Evaluator, save_trained, trained_model
from .fitting import History, OnEpoch, OnStep, fit
from .options import FitOptions, RunOptions
from .parallel import open_binding
from .ranks import AUTO
from .schedules import Given, rate_state
from .step_inputs import StepInputs

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
else:
    ProcessGroup = Later("torch.distributed", "ProcessGroup")


class Trainer:
    """A training step and its state on a device.

    Args:
        step: a `TrainingStep`, or the path of a saved one.
        device: auto (the best that is here), cpu, cuda, tensorrt or cann.
        strict: run on the CPU with every low value really rounded: the only CPU run that shows what low precision does.
        threads: how many threads a step may take on the CPU; 0 for all.
        accumulate: how many micro-batches share the batch of one update. Their gradients are summed, and checked once:
            one that overflows skips the update. The batch is the whole one; its loss must be a mean over samples.
        distributed: ``auto`` shares every batch with the processes that torchrun has started, if it has; None trains
            alone; or a process group of torch.distributed. All ranks call the same methods in the same order.
        share: a trainer whose parameters and running statistics of the same names are this one's too, now and later:
            steps that train by turns. Parameters that only the other step trains are ``shared`` in this one.
        communicate: the type in which processes send their gradients: float32, float16 or bfloat16.
        shard_optimizer: each process keeps the optimizer's state of its part of the parameters alone (ZeRO-1).
        cuda_graph: each step is launched as one CUDA graph, for a step built with ``batch``. The state takes twice its
            memory, and every step waits for its loss.

    Raises:
        AmpError: AMP1xx and AMP206 for the step, AMP321, AMP323 and AMP505 for the device, AMP325 for
            ``threads``, ``accumulate``, ``distributed`` and the last two, AMP325 and AMP405 for what cannot be shared,
            AMP501 and AMP509 for the other processes, AMP502 where the device has no kernel for the step, AMP504 where
            it has no room for the state.
    """

    def __init__(
        self,
        step: TrainingStep | str | os.PathLike[str],
        device: str = "auto",
        *,
        strict: bool = False,
        threads: int = 0,
        accumulate: int = 1,
        distributed: str | ProcessGroup | None = AUTO,
        share: Trainer | None = None,
        communicate: str = "float32",
        shard_optimizer: bool = False,
        cuda_graph: bool = False,
    ) -> None:
        options = RunOptions(device, strict, threads, accumulate, communicate, shard_optimizer, cuda_graph)
        self.training_step = TrainingStep.load(step) if isinstance(step, (str, os.PathLike)) else step
        self.layout = self.training_step.layout
        self.accumulate = options.accumulate
        self._binding, self.group = open_binding(self.training_step, options, distributed)
        self.feeds = StepInputs(self.training_step, self.accumulate * self.group.world)
        self._own_feeds = StepInputs(self.training_step, self.accumulate)
        first = self.training_step.initial_state
        self._types = {name: (array.dtype, array.shape) for name, array in first.items()}
        self._rate = float(first[self.layout.rates][0]) if self.layout.rates else 0.0
        self._binding.put(first)
        if share is not None:
            if not isinstance(share, Trainer):
                message = f"share={share!r} is not a trainer"
                raise AmpError("AMP325", message, hint="open the other step first: share=ampgraph.Trainer(other)")
            _join_states(self.training_step, self._binding, share.training_step, share._binding)
        self._digest = ""
        self._evaluator: Evaluator | None = None

    @property
    def device(self) -> str:
        """The device that training steps run on: cpu, cuda, tensorrt or cann."""
        return self._binding.device

    @property
    def digest(self) -> str:
        """The digest of the training step, which a checkpoint must bear to belong to it; computed once."""
        self._digest = self._digest or files.digest(self.training_step)
        return self._digest

    # -- steps --------------------------------------------------------------------------------------------------------

    def step(self, batch: Feeds) -> StepResult[OrtTensor]:
        """One training step, whole or not at all. ``batch``: arrays by input name; labels under ``labels``. With other
        processes each rank gives its own part of the batch. Raises AmpError AMP503 for a batch that does not fit,
        before anything runs; AMP504 where the run stops, AMP509 where another process is gone."""
        return _step_result(self.layout, *self._binding.run_own(self._own_feeds.checked(batch)))

    def step_checked(self, batch: Mapping[str, Array]) -> StepResult[OrtTensor]:
        """Runs one training step on arrays that `StepInputs` has checked; with several processes, every rank is given
        the whole batch and computes its part."""
        return _step_result(self.layout, *self._binding.run(batch))

    def set_rates(self, table: Sequence[float] | Array | Mapping[str, Array]) -> None:
        """Sets the learning rate of every update from the first on; the last one holds for all that follow. For a step
        with several groups of parameters: a table by the pattern of each group. Raises AmpError AMP324 for what is no
        row of numbers from 0, and for a group that is not there."""
        self._binding.replace(rate_state(self.layout, table))

    @property
    def updates(self) -> int:
        """How many updates of the training the state has seen; steps that were skipped do not count."""
        return int(self.value(self.layout.count)) if self.layout.count else 0

    @property
    def scale(self) -> float:
        """The loss scale of the next training step; 1 for none."""
        return float(self.value(self.layout.scale)) if self.layout.scale else 1.0

    @property
    def learning_rate(self) -> float:
        """The learning rate that the training step was built with (that of its first group), before any schedule."""
        return self._rate

    # -- state --------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> dict[str, Array]:
        """A copy of the whole training state by name: parameters, slots, running statistics, loss scale, counters."""
        return {name: self._binding.get(name) for name in self._types}

    def value(self, name: str) -> Array:
        """A copy of one tensor of the training state."""
        return self._binding.get(name)

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Replaces the whole training state, arrays by name. Raises AmpError AMP405 for one that is not of this step;
        the old state stays then. Raises AmpError AMP504 where the device has no room for it; then there is none."""
        if not isinstance(state, Mapping):
            message = f"a state is a dictionary of arrays, not a {type(state).__name__}"
            raise AmpError("AMP405", message, hint="give all of trainer.state")
        for name in state:
            if name not in self._types:
                raise AmpError("AMP405", f"this step has no state '{name}'", hint=nearest(name, list(self._types)))
        arrays, tables = {}, {table for table, _ in self.layout.rate_tables}
        for name, (dtype, shape) in self._types.items():
            if name not in state:
                raise AmpError("AMP405", f"the state has no '{name}'", hint="give all of trainer.state")
            try:
                array = arrays[name] = np.asarray(state[name])
            except ValueError as error:
                message = f"state '{name}' is not an array: {first_line(error)}"
                raise AmpError("AMP405", message, hint=f"give {dtype} {list(shape)}") from error
            fits = array.ndim == 1 and array.size if name in tables else array.shape == shape
            if array.dtype != dtype or not fits:
                message = f"state '{name}' is {array.dtype} {list(array.shape)}, not {dtype} {list(shape)}"
                raise AmpError("AMP405", message, hint="take the state of a trainer of the same step")
        _check_counter(self.layout, arrays)
        self._binding.put(arrays)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a checkpoint (safetensors), whole or not at all. Raises AmpError AMP105."""
        files.save(path, files.Checkpoint(self.digest, self.late_state()))

    def late_state(self) -> dict[str, files.LateArray]:
        """The training state by name, each tensor copied from the device when it is asked for, before the next step."""
        read = self._binding.reader()
        return {
            name: files.LateArray(dtype, self._binding.shape(name), functools.partial(read, name))
            for name, (dtype, _) in self._types.items()
        }

    def load(self, path: str | os.PathLike[str]) -> files.Checkpoint[Array]:
        """Reads a checkpoint and takes over its training state. Raises AmpError AMP101, AMP108, AMP501 as reading one
        does, AMP405 for one of another step."""
        found = files.load(path)
        files.check_belongs(found, self.digest, os.fspath(path))
        self.load_state(found.state)
        return found

    # -- more than a step ---------------------------------------------------------------------------------------------

    def evaluate(self, data: TrainingData, *, batch_size: int = 256) -> dict[str, float]:
        """The forward graph in float32 on ``data``: ``loss``, ``accuracy`` where labels are classes, ``samples``."""
        evaluator = self.prepare_evaluation()
        return evaluator.measure({name: self.value(name) for name in evaluator.weights}, data, batch_size)

    def prepare_evaluation(self) -> Evaluator:
        """Opens the training step's forward graph, once, to `evaluate`. Raises AmpError AMP206 for a step without."""
        if self._evaluator is None:
            self._evaluator = Evaluator(self.training_step, self.device)
        return self._evaluator

    def export_weights(self, path: str | os.PathLike[str], *, ema: bool = False) -> None:
        """Writes the forward model with the weights as they are now, for `ampgraph.convert`; ``ema``: with their
        running average. Raises AmpError AMP206 for a step that holds no forward graph, or no average."""
        save_trained(self.training_step, self.state, path, average=ema)

    def fit(
        self,
        data: TrainingData,
        *,
        epochs: int,
        batch_size: int,
        validate: TrainingData | None = None,
        lr_schedule: Given = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 0,
        resume: bool = False,
        seed: int = 0,
        last_batch: str = "drop",
        on_step: OnStep | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> History:
        """Trains for some epochs, in random order, with a learning-rate schedule and checkpoints: arguments as
        `FitOptions` has them, each step and epoch told to ``on_step`` and ``on_epoch``."""
        options = FitOptions(epochs, batch_size, lr_schedule, checkpoint, checkpoint_every, resume, seed, last_batch)
        return fit(self, data, validate, options, on_step, on_epoch, self.group)


def _check_counter(layout: StepLayout, state: Mapping[str, Array]) -> None:
    """Raises AmpError AMP405 for a training state whose counter of finite steps is beyond the loss scale's interval:
    the step looks it up in a table, and a device would read past its end without a word."""
    policy, name = parse_loss_scale(str(layout.options.get("loss_scale", "none"))), layout.find(SCALE, "step/counter")
    if isinstance(policy, DynamicLossScale) and name and not 0 <= int(state[name]) < policy.interval:
        message = f"state '{name}' is {int(state[name])}: the scale may grow every {policy.interval} steps"
        raise AmpError("AMP405", message, hint=f"it is 0 to {policy.interval - 1}")


def _step_result(layout: StepLayout, values: dict[str, OrtTensor], scale: OrtTensor | None) -> StepResult[OrtTensor]:
    """The `StepResult` of a training step, from its outputs by name and the loss scale after it, all still on the
    device. Outputs that a binding leaves out (parts of the loss) are missing in it too."""
    parts = {name: values[output] for name, output in layout.parts if output in values}
    finite, norm = values.get(layout.finite), values.get(layout.norm)
    return StepResult(as_numpy, values[layout.loss], finite, scale, norm, parts)


# -- steps that train by turns ----------------------------------------------------------------------------------------


def _join_states(step: TrainingStep, mine: Binding, other_step: TrainingStep, theirs: Binding) -> None:
    """Lets two bindings share parameters and running statistics of equal names, whose values are those of ``theirs``,
    as where a generator and a discriminator train by turns. Slots, loss scale and counters stay apart, as each torch
    optimizer has its own. Raises AmpError AMP325 for a trainer that accumulates or shares its batches, and for two
    devices; AMP405 for steps without a common state, for state that differs in type or shape, and for what one step
    trains and is a constant of the other."""
    if any(isinstance(one, AccumulatingBinding) for one in (mine, theirs)):
        hint = "omit accumulate in both trainers, and give distributed=None"
        raise AmpError("AMP325", "steps that share their state run without accumulate and in one process", hint=hint)
    if any(isinstance(one, CapturedBinding) for one in (mine, theirs)):
        message = "a CUDA graph reads its state where it lay first, and a shared one may lie with the other step"
        raise AmpError("AMP325", message, hint="omit cuda_graph in both trainers")
    if mine.device != theirs.device:
        message = f"a step on {mine.device} cannot share the state of one on {theirs.device}"
        raise AmpError("AMP325", message, hint=f"device='{theirs.device}' for both")
    names = _common_state(step, other_step)
    _refuse_constants(step, other_step)
    _refuse_constants(other_step, step)
    mine.holders = theirs.holders
    for name in names:
        mine.holders.setdefault(name, theirs)


def _common_state(step: TrainingStep, other: TrainingStep) -> list[str]:
    """The names of parameters and running statistics that two training steps share. Raises AmpError AMP405 where there
    are none, and where one differs in type or shape."""
    mine, theirs = step.initial_state, other.initial_state
    others = {entry.name for entry in other.layout.of(*SHARED)}
    names = [entry.name for entry in step.layout.of(*SHARED) if entry.name in others]
    if not names:
        hint = "export both from modules that hold the networks under the same names: self.g, self.d"
        raise AmpError("AMP405", "the two steps have no parameter of the same name to share", hint=hint)
    for name in names:
        one, two = mine[name], theirs[name]
        if one.dtype != two.dtype or one.shape != two.shape:
            message = (
                f"'{name}' is {one.dtype} {list(one.shape)} here, and {two.dtype} {list(two.shape)} in the other step"
            )
            raise AmpError("AMP405", message, hint="build both from the same networks, at the same level")
    return names


def _refuse_constants(step: TrainingStep, other: TrainingStep) -> None:
    """Raises AmpError AMP405 where a constant of a training step is trained by the ``other`` one that shares its state:
    it would stay as it was here."""
    trained = {entry.name for entry in other.layout.of(PARAMETER)}
    stored = trained_model(step, step.initial_state).graph.initializers
    frozen = [name for name in stored if name in trained and name not in step.initial_state]
    if frozen:
        more = f" and {len(frozen) - 1} more" if len(frozen) > 1 else ""
        message = f"'{frozen[0]}'{more} is trained by one step and a constant of the other, where it would never change"
        raise AmpError("AMP405", message, hint=f"build that one with --optimizer '{frozen[0]}=shared', and not frozen")
