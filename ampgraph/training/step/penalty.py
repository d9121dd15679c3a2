"""Gradient penalties: terms of a loss that are computed from gradients, so that the step differentiates twice.

Sources: "Gradient penalty" in PyTorch's automatic mixed precision examples; Gulrajani et al., Improved Training of
Wasserstein GANs (2017), equation 3; Drucker and LeCun, Improving generalization performance using double
backpropagation (1992).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import onnx_ir as ir

from ...core.errors import AmpError, is_number, nearest
from ..forward.read import FLOATS, infer, type_and_shape
from ..gradients.builder import Builder
from ..gradients.driver import depends, differentiate
from ..option_text import BadOption, read_options, types_of

PARAMETERS, INPUTS = "parameters", "inputs"
FORM = "weight=10,of=inputs,output=score,target=1"
GREATEST = float(np.finfo(np.float32).max)
REASON = "the norm of gradients is a part of the loss"
Value = ir.Value


@dataclass(frozen=True)
class GradientPenalty:
    """A gradient penalty, ``weight * |norm(gradient) - target| ** power``, which is added to the loss.

    Args:
        weight: of the penalty in the loss.
        of: what the gradient is with respect to. ``parameters``: all that are trained, in one norm. ``inputs``: the
            float input, or names, ``x+z``: a norm for each sample over all of them, and the mean of the penalties.
        output: an output of the forward graph whose elements are summed up and differentiated, as a critic's score;
            without it, the loss.
        norm: 2 or 1.
        target: what the norm should be; Wasserstein GANs take 1. It needs an ``output`` where ``of`` is an input: the
            gradient of a mean loss shrinks with the batch.
        power: 2 or 1. PyTorch's example adds the norm itself: ``GradientPenalty(of="parameters", power=1)``.

    Raises AmpError AMP213 for what makes no sense.
    """

    weight: float = 1.0
    of: str = PARAMETERS
    output: str | None = None
    norm: int = 2
    target: float = 0.0
    power: int = 2

    def __post_init__(self) -> None:
        for name in ("weight", "target"):
            value = getattr(self, name)
            least = 0 if name == "target" else float(np.finfo(np.float32).tiny)
            if not is_number(value) or not least <= value <= GREATEST:
                raise _bad_penalty(f"{name}={value!r} is not a {'' if name == 'target' else 'positive '}number")
            object.__setattr__(self, name, float(value))
        for name in ("norm", "power"):
            if type(getattr(self, name)) is not int or getattr(self, name) not in (1, 2):
                raise _bad_penalty(f"{name}={getattr(self, name)!r} is neither 1 nor 2")
        for name in ("of", "output"):
            value = getattr(self, name)
            if not (isinstance(value, str) and value) and not (name == "output" and value is None):
                raise _bad_penalty(f"{name}={value!r} is not a name")
        if self.target and self.of != PARAMETERS and self.output is None:
            message = (
                f"target={self.target:g} for the gradients of a mean loss, which shrink with the size of the batch"
            )
            raise AmpError("AMP213", f"penalty: {message}", hint="name what is to have such gradients: output=score")

    @property
    def of_samples(self) -> bool:
        """Whether the gradient penalty is a mean over the samples, so that micro-batches and ranks may share a batch.
        It is not without ``output``: the gradient of a mean loss shrinks with the batch."""
        return self.of != PARAMETERS and self.output is not None

    def __str__(self) -> str:
        """The gradient penalty as the text that `parse_penalty` reads."""
        return ",".join(f"{f.name}={v}" for f in fields(self) if (v := getattr(self, f.name)) is not None)


def parse_penalty(text: str) -> GradientPenalty:
    """Reads a gradient penalty from text: ``weight=10,of=inputs,output=score,target=1``, each with its default. Raises
    AmpError AMP213 for another text."""
    try:
        return GradientPenalty(**read_options(text.strip(), types_of(GradientPenalty)))
    except BadOption as bad:
        raise AmpError("AMP213", f"--penalty {text}: {bad}", hint=bad.hint) from None


def as_penalty(given: object) -> GradientPenalty | None:
    """What a user gave as a gradient penalty: an object, its text, or None. Raises AmpError AMP213 otherwise."""
    if given is None or isinstance(given, GradientPenalty):
        return given
    if not isinstance(given, str):
        raise _bad_penalty(f"{given!r} is not a penalty")
    return parse_penalty(given)


def _bad_penalty(message: str) -> AmpError:
    """The AmpError AMP213 for a gradient penalty that makes no sense, with an example as its hint."""
    return AmpError("AMP213", f"penalty: {message}", hint=f"for example {FORM}, or of=parameters,power=1")


class PenaltyBuilder:
    """Adds a gradient penalty to a graph, in float32: its gradients (under the loss scale, then unscaled), their norm,
    and the norm's distance from the target."""

    def __init__(self, model: ir.Model, penalty: GradientPenalty, seed: Value | None) -> None:
        """``seed``: the loss scale, from which the inner gradients start too, or None."""
        self.model, self.graph, self.penalty, self.seed = model, model.graph, penalty, seed
        self.builder = Builder(self.graph, "penalty")

    def value(
        self, loss: Value, outputs: Mapping[str, Value], inputs: Sequence[Value], parameters: Sequence[Value]
    ) -> Value:
        """Adds the gradient penalty without its weight, a float32 scalar. ``outputs``: of the forward graph by name;
        ``inputs``: the batch without its labels; ``parameters``: those that are trained. Raises AmpError AMP213 for a
        name that is not there, AMP210 to AMP212 as `differentiate` does."""
        inner = loss if self.penalty.output is None else self._summed(outputs)
        wanted = self._penalised_values(inner, inputs, parameters)
        gradients = differentiate(self.graph, inner, wanted, self.seed)
        infer(self.model)
        b = self.builder = Builder(self.graph, "penalty")
        with b.float32(REASON):
            if self.seed is not None:  # by the reciprocal, as in `add_update`: not 1 / seed
                gradients = [self._alike("Mul", one, b.op("Reciprocal", self.seed)) for one in gradients]
            found = self._distance(gradients)
        infer(self.model)
        return found

    def _summed(self, outputs: Mapping[str, Value]) -> Value:
        """Of a gradient penalty: the sum of all elements of its ``output``, which is differentiated. Raises AmpError
        AMP213 for an output that is not there, or is no float of a known shape."""
        name = self.penalty.output or ""
        if name not in outputs:
            hint = nearest(name, list(outputs)) or f"there are: {', '.join(outputs)}"
            raise AmpError("AMP213", f"penalty: the model has no output '{name}'", hint=hint)
        output = outputs[name]
        if output.dtype not in FLOATS or output.shape is None:
            message = f"penalty: output '{name}' is {type_and_shape(output)}"
            raise AmpError("AMP213", message, hint="name a float output whose shape is known")
        b = self.builder
        with b.float32(REASON):
            return b.typed(b.op("ReduceSum", output, keepdims=0), ir.DataType.FLOAT)

    def _penalised_values(self, inner: Value, inputs: Sequence[Value], parameters: Sequence[Value]) -> list[Value]:
        """Of a gradient penalty: the values by which ``inner`` is differentiated: inputs, or the parameters that it
        depends on. Raises AmpError AMP213 where there are none."""
        reached = depends(self.graph, inner)
        floats = {value.name or "": value for value in inputs if value.dtype in FLOATS and value in reached}
        what = "the loss" if self.penalty.output is None else f"output '{self.penalty.output}'"
        if self.penalty.of == PARAMETERS:
            wanted = [value for value in parameters if value in reached]
        else:
            wanted = [floats[name] for name in self._named_inputs(list(floats), what)]
        if not wanted:
            message = f"penalty: {what} depends on no {'parameter' if self.penalty.of == PARAMETERS else 'float input'}"
            raise AmpError("AMP213", message, hint="name another output")
        return wanted

    def _named_inputs(self, floats: list[str], what: str) -> list[str]:
        """Of a gradient penalty: the names of the inputs that ``of`` says, all of ``floats``; ``what`` is
        differentiated, for messages. Raises AmpError AMP213 for a name that is not there, and for "inputs" where there
        are several."""
        if self.penalty.of == INPUTS:
            if len(floats) > 1:
                message = f"penalty: of=inputs may be {' or '.join(floats)}"
                raise AmpError("AMP213", message, hint=f"of={floats[0]}, or of={'+'.join(floats)}")
            return floats
        names = self.penalty.of.split("+")
        for name in names:
            if name not in floats:
                hint = nearest(name, floats) or f"there are: {', '.join(floats) or 'none'}, and of=parameters"
                raise AmpError("AMP213", f"penalty: {what} depends on no float input '{name}'", hint=hint)
        return list(dict.fromkeys(names))

    def _distance(self, gradients: list[Value]) -> Value:
        """Of a gradient penalty: |norm(gradients) - target| ** power, without a root that would be squared again; of
        inputs the mean over the samples."""
        penalty = self.penalty
        sums = [self._sum(gradient) for gradient in gradients]
        total = sums[0]
        for more in sums[1:]:
            total = self._alike("Add", total, more)
        if penalty.norm == 2 and (penalty.power == 1 or penalty.target):
            total = self._root(total)
        if penalty.target:
            total = self._alike("Sub", total, self.builder.number(penalty.target))
        if penalty.power == 2 and (penalty.norm == 1 or penalty.target):
            total = self._alike("Mul", total, total)
        elif penalty.target:
            total = self._alike("Abs", total)
        if penalty.of == PARAMETERS:
            return total
        return self.builder.typed(self.builder.op("ReduceMean", total, keepdims=0), ir.DataType.FLOAT)

    def _alike(self, kind: str, value: Value, *others: Value) -> Value:
        """Of a gradient penalty: adds a node ``kind`` whose result has the type and the shape of ``value``."""
        return self.builder.typed(self.builder.op(kind, value, *others), value)

    def _sum(self, gradient: Value) -> Value:
        """Of a gradient penalty: the sum of a gradient's squares (norm 2) or absolute values (norm 1): of all elements
        for parameters, of each sample for inputs."""
        b, kind = self.builder, "ReduceSumSquare" if self.penalty.norm == 2 else "ReduceL1"
        if self.penalty.of == PARAMETERS:
            return b.typed(b.op(kind, gradient, keepdims=0), ir.DataType.FLOAT)
        axes = range(1, b.rank(gradient))
        if not axes:
            return self._alike("Mul", gradient, gradient) if self.penalty.norm == 2 else self._alike("Abs", gradient)
        made = b.op(kind, gradient, b.ints(*axes), keepdims=0)
        assert gradient.shape is not None
        return b.typed(made, ir.DataType.FLOAT, gradient.shape[0])

    def _root(self, squares: Value) -> Value:
        """Of a gradient penalty: the square root, whose derivative at 0 is 0, as that of torch's norm."""
        b = self.builder
        zero = b.op("Equal", squares, b.number(0))
        zero.type, zero.shape = ir.TensorType(ir.DataType.BOOL), squares.shape
        safe = b.typed(b.op("Where", zero, b.number(1), squares), squares)
        return b.typed(b.op("Where", zero, b.number(0), self._alike("Sqrt", safe)), squares)
