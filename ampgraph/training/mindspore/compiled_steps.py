"""The functions of a training step that MindSpore compiles.

MindSpore reads the source of the functions inside ``gradients_of``, ``with_scaler``, ``with_given_scale`` and
``scaler_of_cell``: they are written for its parser, which wants no annotations. The order of a step is that of
MindSpore's documentation: scale, gradients, unscale (by a product with the reciprocal), finite check, optimizer only if
finite, new scale.
"""
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from ...core.errors import AmpError
from ...formats.mindir.step import refuse_whole_step
from ...runtime.mindspore_session import MindirPorts


def check_trainable(ports: MindirPorts, model: Any, where: str) -> None:
    """Before MindSpore trains: raises AmpError AMP205 for a file that is not forward and one float32 scalar loss."""
    refuse_whole_step(model, where)
    outputs = list(ports.outputs.values())
    if len(outputs) != 1 or outputs[0].shape != ():
        given = ", ".join(str(port) for port in outputs)
        message = f"does not give one scalar loss, but {given or 'nothing'}"
        raise AmpError("AMP205", message, where=where, hint="export a Cell whose construct returns the mean loss")
    if outputs[0].dtype != "float32":
        message = f"gives its loss in {outputs[0].dtype}, which a scale would overflow"
        raise AmpError("AMP205", message, where=where, hint="keep the loss in float32")


def gradients_of(ms: ModuleType, forward: Callable[..., Any], optimizer: Any) -> Callable[..., Any]:
    """For a MindSpore training step: the function (inputs, scale) -> ((scaled loss, loss), gradients of the scaled loss
    by the optimizer's parameters); ``forward``: inputs -> loss."""

    def scaled(inputs, scale):
        loss = forward(*inputs)
        return loss * scale, loss

    made: Callable[..., Any] = ms.value_and_grad(scaled, None, optimizer.parameters, has_aux=True)
    return made


def with_scaler(ms: ModuleType, gradients: Callable[..., Any], optimizer: Any, scaler: Any) -> Callable[..., Any]:
    """A compiled MindSpore training step, inputs -> (loss, finite, next scale), whose ``optimizer`` moves the
    parameters where gradients are finite; the scale is a LossScaler's. ``gradients``: `gradients_of`."""
    one, all_finite = ms.Tensor(1.0, ms.float32), ms.amp.all_finite

    def step(*inputs):
        (_, loss), grads = gradients(inputs, scaler.scale(one))
        grads = scaler.unscale(grads)
        finite = all_finite(grads)
        if finite:
            optimizer(grads)
        scaler.adjust(finite)
        return loss, finite, scaler.scale(one)

    compiled: Callable[..., Any] = ms.jit(step)
    return compiled


def with_given_scale(ms: ModuleType, gradients: Callable[..., Any], optimizer: Any, skips: bool) -> Callable[..., Any]:
    """A compiled MindSpore training step, (scale, inputs) -> (loss, finite), whose ``optimizer`` moves the parameters;
    ``skips``: only where gradients are finite. ``gradients`` as `gradients_of`."""
    all_finite, unscaled = ms.amp.all_finite, _unscale_function(ms)

    def step(scale, *inputs):
        (_, loss), grads = gradients(inputs, scale)
        grads = unscaled(scale, grads)
        finite = all_finite(grads)
        if not skips or finite:
            optimizer(grads)
        return loss, finite

    compiled: Callable[..., Any] = ms.jit(step)
    return compiled


def _unscale_function(ms: ModuleType) -> Callable[..., Any]:
    """For a MindSpore training step: the function (scale, gradients) -> gradients times the reciprocal of the scale, as
    mindspore.amp's scalers compute it."""
    hyper_map, partial, reciprocal = ms.ops.HyperMap(), ms.ops.Partial(), ms.ops.Reciprocal()

    def unscale(scale, grad):
        return grad * reciprocal(scale).astype(grad.dtype)

    def unscaled(scale, grads):
        return hyper_map(partial(unscale, scale), grads)

    return unscaled


def scaler_of_cell(ms: ModuleType, cell: Any) -> Any:
    """For a MindSpore training step: a LossScaler around an update cell such as nn.DynamicLossScaleUpdateCell."""
    unscaled, base = _unscale_function(ms), ms.amp.LossScaler

    class CellScaler(base):  # type: ignore[misc,valid-type]
        def __init__(self):
            start = ms.Tensor(cell.get_loss_scale(), ms.float32)
            self.scale_value = ms.Parameter(start, name="scale_sense")
            self.cell = cell

        def scale(self, inputs):
            return inputs * self.scale_value

        def unscale(self, inputs):
            return unscaled(self.scale_value, inputs)

        def adjust(self, grads_finite):
            self.cell(self.scale_value, ms.ops.logical_not(grads_finite))
            return True

    return CellScaler()
