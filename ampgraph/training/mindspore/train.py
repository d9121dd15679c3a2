"""Trains a .mindir file of forward and loss on MindSpore, which differentiates it; optimizer and scaler are yours.

    step = ampgraph.training.mindspore.train_step(
        "loss.O2.mindir", lambda params: nn.Momentum(params, 0.05, 0.9), amp.DynamicLossScaler(2**16, 2, 1000)
    )
    for x, y in batches:
        result = step(x, y)  # result.loss, result.finite, result.scale

MindSpore differentiates a loaded graph only inside a plain function whose scale is an argument; a GraphCell within
another Cell silently gets gradients of 0. That is why this module writes that function, and not its user.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ...core.errors import AmpError
from ...core.files import whole_file
from ...formats.mindir.step import written_parameters
from ...runtime import mindspore_session as runtime
from ...runtime.mindspore_session import MindirPorts, read_ports
from ..step.loss_scale import DynamicLossScale, LossScaleState, StaticLossScale, parse_loss_scale
from ..step.training_step import StepResult
from . import compiled_steps as steps
from .cut_graph import forward_of

__all__ = ["StepResult", "TrainStep", "train_step"]


def train_step(
    path: str | os.PathLike[str],
    optimizer: Callable[[list[Any]], Any],
    loss_scaler: Any = None,
    *,
    device: str = "auto",
) -> TrainStep:
    """A training step on a file whose one output is a float32 scalar loss.

    Args:
        path: forward and loss as exported by ``mindspore.export``, converted or not.
        optimizer: gets the list of trainable Parameters and gives an nn.Optimizer over them, or over some.
        loss_scaler: ``amp.StaticLossScaler``, ``amp.DynamicLossScaler`` or another LossScaler;
            ``amp.FixedLossScaleManager`` or ``amp.DynamicLossScaleManager`` (by its update cell, as mindspore.Model);
            ``ampgraph.training.step.loss_scale``'s policies, or their command-line form; None for neither scale
            nor skipped steps.
        device: ``cpu``, ``ascend`` or ``auto``.

    Raises:
        AmpError: AMP1xx for the file, AMP501, AMP502, AMP505 as `runtime.mindspore.Session`; AMP205 for a file that
            cannot be trained so, AMP322 for an optimizer or a scaler that does not fit.
    """
    ports, model = read_ports(path)
    steps.check_trainable(ports, model, str(path))
    ms = runtime.import_mindspore()
    target = runtime.select_device(ms, device)
    if not callable(optimizer) or isinstance(optimizer, ms.nn.Optimizer):
        hint = "for example lambda params: nn.Momentum(params, 0.05, 0.9)"
        raise AmpError("AMP322", "optimizer is not a function of the parameters", hint=hint)
    scale = _scale_of(ms, loss_scaler)
    forward, parameters = forward_of(ms, path, model)
    frozen = written_parameters(model)
    trainable = [parameter for name, parameter in parameters.items() if name not in frozen]
    if not trainable:
        raise AmpError(
            "AMP205", "has no parameters to train", where=str(path), hint="export the network with its weights"
        )
    low = next((p for p in trainable if str(p.dtype).lower() in ("float16", "bfloat16")), None)
    if low is not None:
        raise AmpError(
            "AMP205",
            f"parameter '{low.name}' is stored in {str(low.dtype).lower()}: an optimizer needs float32",
            where=str(path),
            hint="convert the float32 file again with --store-weights keep",
        )
    made = optimizer(trainable)
    _check_optimizer(ms, made, trainable)
    return TrainStep(ms, ports, target, forward, parameters, made, scale)


class TrainStep:
    """A MindSpore training step that keeps its state: ``step(x, y)`` or ``step(x=x, y=y)`` of numpy arrays or mindspore
    Tensors trains once. Raises AmpError AMP503 for arrays that do not fit the file, AMP504 when MindSpore stops, AMP506
    when more steps in a row overflowed than the loss scale's ``patience``."""

    def __init__(
        self,
        ms: ModuleType,
        ports: MindirPorts,
        device: str,
        forward: Callable[..., Any],
        parameters: dict[str, Any],
        optimizer: Any,
        scale: Any,
    ) -> None:
        self._ms, self._ports, self.device = ms, ports, device
        self.parameters: dict[str, Any] = parameters
        """The file's Parameters by name, statistics included: what mindspore.load_param_into_net takes. To change one
        use mindspore.ops.assign: a compiled step does not see what set_data writes."""
        self.optimizer, self._scale = optimizer, scale
        self._state: LossScaleState | None = None
        gradients = steps.gradients_of(ms, forward, optimizer)
        if isinstance(scale, (StaticLossScale, DynamicLossScale)):
            self._state = scale.start()
            skips = isinstance(scale, DynamicLossScale) or scale.skip
            self._step = steps.with_given_scale(ms, gradients, optimizer, skips)
        else:
            self._step = steps.with_scaler(ms, gradients, optimizer, scale)

    def __call__(self, *arrays: Any, **named: Any) -> StepResult[Any]:
        names = list(self._ports.inputs)
        if len(arrays) > len(names):
            message = f"{len(arrays)} arrays for {len(names)} inputs"
            raise AmpError("AMP503", message, hint=f"the inputs are {', '.join(names)}")
        given = dict(zip(names, arrays, strict=False))
        twice = [name for name in named if name in given]
        if twice:
            raise AmpError("AMP503", f"input '{twice[0]}' is given twice", hint="by its place or by its name")
        tensors = runtime.to_tensors(self._ms, self._ports.check({**given, **named}))
        with runtime.reporting_stops(self._ports, self.device), runtime.graph_mode(self._ms):
            if self._state is None:
                return StepResult(_as_array, *self._step(*tensors))
            scale = self._ms.Tensor(np.float32(self._state.scale))
            return self._result_after_step(*self._step(scale, *tensors))

    def _result_after_step(self, loss: Any, finite: Any) -> StepResult[Any]:
        """The result of a MindSpore training step under a loss scale of ours, which is updated on the host. Raises
        AmpError AMP506 when its patience ends."""
        policy, state = self._scale, self._state
        if isinstance(policy, DynamicLossScale) and state is not None:
            finite = bool(_as_array(finite))
            state = self._state = policy.update(state, finite)
            if policy.exhausted(state):
                message = f"{state.overflows} steps in a row overflowed; the loss scale is down to {state.scale:g}"
                raise AmpError("AMP506", message, hint="look for NaN in the data, or lower the learning rate")
        return StepResult(_as_array, loss, finite, state.scale if state else 1.0)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes parameters, optimizer state and loss scale as a MindSpore checkpoint, whole or not at all. Random
        states (Dropout) are not in it. Raises AmpError AMP105."""
        path = _checkpoint_path(path)
        kept = [{"name": name, "data": data} for name, data in self._checkpoint_tensors().items()]
        with whole_file(path, suffix=path.suffix) as temporary:
            try:
                self._ms.save_checkpoint(kept, str(temporary))
            except Exception as error:  # MindSpore raises several kinds
                message = f"cannot be written: {runtime.error_words(error)}"
                raise AmpError("AMP105", message, where=str(path), hint="choose another place") from error

    def load(self, path: str | os.PathLike[str]) -> None:
        """Takes over the state that `save` wrote. Raises AmpError AMP101 for no such file, AMP105 for a name that is
        not *.ckpt, AMP109 for a file that is no checkpoint of this step; nothing changes then."""
        path = _checkpoint_path(path)
        if not path.is_file():
            raise AmpError("AMP101", "no such file", where=str(path), hint="step.save(path) writes one")
        try:
            found = self._ms.load_checkpoint(str(path))
        except Exception as error:  # MindSpore raises several kinds
            message = f"is not a checkpoint, or is cut short: {runtime.error_words(error)}"
            raise AmpError("AMP109", message, where=str(path), hint="step.save(path) writes one") from error
        wanted = self._checkpoint_tensors()
        for name, data in wanted.items():
            if name not in found or found[name].shape != data.shape or found[name].dtype != data.dtype:
                message = f"is not of this step: '{name}' is missing or of another shape or type"
                raise AmpError("AMP109", message, where=str(path), hint="use the same file, optimizer and scaler")
        for name, data in wanted.items():
            if isinstance(data, self._ms.Parameter):
                self._ms.ops.assign(data, self._ms.Tensor(found[name].asnumpy(), data.dtype))
        if self._state is not None:
            numbers = [found[f"loss_scale.{name}"].asnumpy().item() for name in vars(self._state)]
            self._state = LossScaleState(*numbers)

    def _checkpoint_tensors(self) -> dict[str, Any]:
        """Everything that a MindSpore training step changes, by its name in a checkpoint: the parameters of file,
        optimizer and scaler, or a loss scale of ours as Tensors, which are copies."""
        kept = dict(self.parameters)
        own = {id(parameter) for parameter in kept.values()}
        for name, parameter in self.optimizer.parameters_and_names():
            if id(parameter) not in own:
                kept[f"optimizer.{name}"] = parameter
        if self._state is None:
            for name, value in vars(self._scale).items():
                cell = isinstance(value, self._ms.nn.Cell)
                rows = value.parameters_and_names() if cell else [(name, value)]
                kept |= {f"loss_scaler.{key}": one for key, one in rows if isinstance(one, self._ms.Parameter)}
            return kept
        tensor = self._ms.Tensor
        return kept | {
            f"loss_scale.{name}": tensor(np.array(value, np.float64 if name in ("scale", "pending") else np.int32))
            for name, value in vars(self._state).items()
        }


def _checkpoint_path(path: str | os.PathLike[str]) -> Path:
    """The path of a MindSpore checkpoint. Raises AmpError AMP105 for a name that MindSpore would change."""
    if Path(path).suffix != ".ckpt":
        raise AmpError("AMP105", "MindSpore's checkpoints are named *.ckpt", where=str(path), hint="name it so")
    return Path(path)


def _scale_of(ms: ModuleType, given: Any) -> Any:
    """The loss scale of a MindSpore training step, from what `train_step` takes: a policy of ours, or a LossScaler of
    MindSpore; for None or "none" one of 1 that skips nothing. Raises AmpError AMP320 for a text, AMP322 otherwise."""
    if given is None:
        return StaticLossScale(1.0, skip=False)
    if isinstance(given, str):
        return parse_loss_scale(given) or StaticLossScale(1.0, skip=False)
    if isinstance(given, (StaticLossScale, DynamicLossScale, ms.amp.LossScaler)):
        return given
    if isinstance(given, ms.amp.LossScaleManager):
        cell = given.get_update_cell()
        if cell is None or isinstance(cell, ms.nn.FixedLossScaleUpdateCell):
            return StaticLossScale(given.get_loss_scale(), skip=cell is not None)
        return steps.scaler_of_cell(ms, cell)
    message = f"a {type(given).__name__} is not a loss scaler"
    raise AmpError("AMP322", message, hint="for example amp.DynamicLossScaler(2**16, 2, 1000), or None")


def _check_optimizer(ms: ModuleType, optimizer: Any, trainable: list[Any]) -> None:
    """Before MindSpore trains: raises AmpError AMP322 for what is no optimizer, one with a loss scale of its own, and
    one that holds other parameters than the file's."""
    if not isinstance(optimizer, ms.nn.Optimizer):
        message = f"the optimizer function gave a {type(optimizer).__name__}, not an nn.Optimizer"
        raise AmpError("AMP322", message, hint="for example lambda params: nn.Momentum(params, 0.05, 0.9)")
    if optimizer.loss_scale != 1.0:
        message = f"the optimizer divides by a loss scale of its own ({optimizer.loss_scale:g})"
        hint = "leave loss_scale out of it: the step divides the gradients already, once"
        raise AmpError("AMP322", message, hint=hint)
    own = {id(parameter) for parameter in trainable}
    foreign = [parameter.name for parameter in optimizer.parameters if id(parameter) not in own]
    if foreign:
        message = f"the optimizer holds '{foreign[0]}', which is not a trainable parameter of the file"
        raise AmpError("AMP322", message, hint="use the list that the function is given, or a part of it")


def _as_array(value: Any) -> Any:
    """Of a MindSpore training step: a tensor as an array; a number as it is."""
    return value.asnumpy() if hasattr(value, "asnumpy") else value
