"""A gradient penalty as nodes, in float32: gradients under the loss scale, unscaled, their norm, its distance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from ...core.errors import AmpError, nearest
from ..forward.read import FLOATS, described, infer
from ..gradients.builder import Builder
from ..gradients.driver import depends, differentiate
from .penalty import INPUTS, PARAMETERS, GradientPenalty

Value = ir.Value
REASON = "the norm of gradients is a part of the loss"


class PenaltyBuilder:
    """Adds a penalty to a graph whose loss and batch are known."""

    def __init__(self, model: ir.Model, penalty: GradientPenalty, seed: Value | None) -> None:
        """``seed``: the loss scale, from which the inner gradients start too, or None."""
        self.model, self.graph, self.penalty, self.seed = model, model.graph, penalty, seed
        self.builder = Builder(self.graph, "penalty")

    def value(
        self, loss: Value, outputs: Mapping[str, Value], inputs: Sequence[Value], parameters: Sequence[Value]
    ) -> Value:
        """The penalty without its weight: a float32 scalar.

        ``outputs``: of the forward graph; ``inputs``: the batch without its labels.
        Raises AmpError AMP213 for a name that is not there, AMP210 to AMP212 as `differentiate` does.
        """
        inner = loss if self.penalty.output is None else self._summed(outputs)
        wanted = self._wanted(inner, inputs, parameters)
        gradients = differentiate(self.graph, inner, wanted, self.seed)
        infer(self.model)
        b = self.builder = Builder(self.graph, "penalty")
        with b.float32(REASON):
            found = self._distance([self._unscaled(gradient) for gradient in gradients])
        infer(self.model)
        return found

    def _summed(self, outputs: Mapping[str, Value]) -> Value:
        """The sum of all elements of the named output."""
        name = self.penalty.output or ""
        if name not in outputs:
            hint = nearest(name, list(outputs)) or f"there are: {', '.join(outputs)}"
            raise AmpError("AMP213", f"penalty: there is no output '{name}'", hint=hint)
        output = outputs[name]
        if output.dtype not in FLOATS or output.shape is None:
            message = f"penalty: output '{name}' is {described(output)}"
            raise AmpError("AMP213", message, hint="name a float output whose shape is known")
        b = self.builder
        with b.float32(REASON):
            return b.typed(b.op("ReduceSum", output, keepdims=0), ir.DataType.FLOAT)

    def _wanted(self, inner: Value, inputs: Sequence[Value], parameters: Sequence[Value]) -> list[Value]:
        """What the gradient is with respect to: of parameters, those that it depends on."""
        reached = depends(self.graph, inner)
        floats = {value.name or "": value for value in inputs if value.dtype in FLOATS and value in reached}
        what = "the loss" if self.penalty.output is None else f"output '{self.penalty.output}'"
        if self.penalty.of == PARAMETERS:
            wanted = [value for value in parameters if value in reached]
        else:
            wanted = [floats[name] for name in self._named(list(floats), what)]
        if not wanted:
            message = f"penalty: {what} depends on no {'parameter' if self.penalty.of == PARAMETERS else 'float input'}"
            raise AmpError("AMP213", message, hint="name another output")
        return wanted

    def _named(self, floats: list[str], what: str) -> list[str]:
        """The inputs that are meant."""
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

    def _unscaled(self, gradient: Value) -> Value:
        if self.seed is None:
            return gradient
        b = self.builder
        # as in `add_update`: not 1 / seed
        return b.typed(b.op("Mul", gradient, b.op("Reciprocal", self.seed)), gradient)

    def _distance(self, gradients: list[Value]) -> Value:
        b, given = self.builder, self.penalty
        sums = [self._sum(gradient) for gradient in gradients]
        total = sums[0]
        for more in sums[1:]:
            total = b.typed(b.op("Add", total, more), total)
        if given.norm == 2 and (given.power == 1 or given.target):
            total = self._root(total)
        squared = given.norm == 2 and given.power == 2 and not given.target
        if given.target:
            total = b.typed(b.op("Sub", total, b.number(given.target)), total)
        if given.power == 2 and not squared:
            total = b.typed(b.op("Mul", total, total), total)
        elif given.target:
            total = b.typed(b.op("Abs", total), total)
        if given.of == PARAMETERS:
            return total
        return b.typed(b.op("ReduceMean", total, keepdims=0), ir.DataType.FLOAT)

    def _sum(self, gradient: Value) -> Value:
        """The sum of squares or of absolute values: of everything, or for each sample."""
        b, kind = self.builder, "ReduceSumSquare" if self.penalty.norm == 2 else "ReduceL1"
        if self.penalty.of == PARAMETERS:
            return b.typed(b.op(kind, gradient, keepdims=0), ir.DataType.FLOAT)
        axes = range(1, b.rank(gradient))
        if not axes:
            made = b.op("Mul", gradient, gradient) if kind == "ReduceSumSquare" else b.op("Abs", gradient)
            return b.typed(made, gradient)
        made = b.op(kind, gradient, b.ints(*axes), keepdims=0)
        assert gradient.shape is not None
        return b.typed(made, ir.DataType.FLOAT, gradient.shape[0])

    def _root(self, squares: Value) -> Value:
        """The square root, whose derivative at 0 is 0, as that of torch's norm."""
        b = self.builder
        zero = b.op("Equal", squares, b.number(0))
        zero.type, zero.shape = ir.TensorType(ir.DataType.BOOL), squares.shape
        safe = b.typed(b.op("Where", zero, b.number(1), squares), squares)
        return b.typed(b.op("Where", zero, b.number(0), b.typed(b.op("Sqrt", safe), squares)), squares)
