"""The arithmetic of the loss scales of PyTorch, Apex, TensorFlow, Keras, MXNet and MindSpore, a row each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ScaleRule:
    """The arithmetic of a dynamic rule and the numbers it comes with.

    A finite step counts; the ``interval``-th in a row multiplies the scale by ``growth`` and counts from 0 again.
    A step that overflows shrinks the scale and counts from 0.
    """

    source: str  # what it is the arithmetic of
    number: str  # float32 or float64: the type of the scale, to which every result is rounded
    product: str  # the type in which scale and factor are multiplied or divided
    divides: bool  # shrinks by a division by 1/backoff instead of a product with backoff
    finite_only: bool  # a growth whose result is not finite is left out
    one_factor: bool  # the real one has one factor: growth and 1/backoff
    init: float = 65536.0
    interval: int = 2000
    floor: float | None = None
    cap: float | None = None
    patience: int | None = None
    late: bool = False  # a step makes the scale that the step before decided current, and decides the next


RULES = {
    "pytorch": ScaleRule("torch.amp.GradScaler", "float32", "float64", False, True, False),
    "apex": ScaleRule("apex.amp LossScaler", "float64", "float64", False, False, True, cap=2.0**24),
    "tensorflow": ScaleRule(
        "tf_keras LossScaleOptimizer (Keras 2)", "float32", "float32", True, True, True, init=32768.0, floor=1.0
    ),
    "keras": ScaleRule("keras LossScaleOptimizer (Keras 3)", "float32", "float32", False, False, True, init=32768.0),
    "mxnet": ScaleRule(
        "mxnet.contrib.amp LossScaler", "float64", "float64", False, False, True, cap=2.0**24, late=True
    ),
    "mindspore": ScaleRule(
        "mindspore.amp.DynamicLossScaler", "float32", "float32", True, True, True, init=2.0**24, floor=1.0
    ),
    "mindspore-cell": ScaleRule(
        "mindspore.nn.DynamicLossScaleUpdateCell", "float32", "float32", False, False, True, init=2.0**24, floor=1.0
    ),
    "mindspore-manager": ScaleRule(
        "mindspore.amp.DynamicLossScaleManager.update_loss_scale",
        "float64",
        "float64",
        False,
        False,
        True,
        init=2.0**24,
        floor=1.0,
        patience=1000,
    ),
}
"""Read from the sources of PyTorch 2.13, Apex (e13873deb), tf_keras 2.21, Keras 3, MXNet 1.9.1 and MindSpore 2.10, and
compared with each of them by running. MindSpore's manager counts in Python's numbers: where a factor that is no
power of two passes 2**53, its integers are exact and ours are rounded."""
