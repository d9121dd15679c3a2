"""Reverse-mode differentiation of a graph: from one scalar back to the values that are asked for.

Griewank and Walther, Evaluating Derivatives (2008), chapter 3: every node is visited once, in reverse order, when the
gradients of all its outputs are complete. Gradients have the type and the shape of their value.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import onnx_ir as ir

from ...core.dataflow import HELD, KEPT
from ...core.errors import AmpError
from ...core.names import FreshNames
from ...formats.onnx.nodes import kind_of, place_of
from ...formats.onnx.walk import bodies, captured
from . import rules  # noqa: F401
from .builder import FLOATS, Builder, sum_to
from .registry import DETACHED, GradientRule, Unsupported, rule_of
from .rules.control import through_bodies


def differentiate(
    graph: ir.Graph, loss: ir.Value, wanted: Sequence[ir.Value], seed: ir.Value | None = None
) -> list[ir.Value]:
    """Appends to ``graph`` the gradient of ``seed * loss`` for each of the values ``wanted``.

    Args:
        graph: flat, sorted, with the type and the rank of every value on the way known (see `read_forward`).
        loss: a float scalar of the graph.
        wanted: graph inputs, initializers or results; float.
        seed: a scalar that the gradient starts from, a loss scale; 1 by default.

    Raises:
        AmpError: AMP210 an operator on the way has no rule, or none for its form or for one of its inputs, AMP211 a
            wanted value has no influence on the loss, AMP212 a shape that a rule needs is not known.
    """
    return _Differentiation(graph, wanted).run(loss, seed)


def depends(graph: ir.Graph, loss: ir.Value) -> set[ir.Value]:
    """For gradients: values of a sorted graph that ``loss`` depends on by float values that are not detached."""
    found = {loss}
    for node in reversed(list(graph)):
        if DETACHED not in node.metadata_props and any(value in found for value in node.outputs):
            inputs = [value for value in (*node.inputs, *captured(node)) if value is not None]
            found.update(value for value in inputs if value.dtype is None or value.dtype in FLOATS)
    return found


class _Differentiation:
    """One differentiation of a graph. ``wanted``: the values whose gradients are asked for; ``active``: the values that
    depend on these, which alone need gradients; ``pending``: value -> the gradients that have arrived for it."""

    def __init__(self, graph: ir.Graph, wanted: Sequence[ir.Value]) -> None:
        self.graph, self.wanted = graph, wanted
        self.nodes = list(graph)
        self.builder = Builder(graph)
        self.builder.trained = set(wanted)
        self.active = self._influenced()
        self.pending: dict[ir.Value, list[ir.Value]] = {}

    def _influenced(self) -> set[ir.Value]:
        """For gradients: the values that depend on a wanted one through float values, and the wanted ones."""
        active = set(self.wanted)
        for node in self.nodes:
            if DETACHED in node.metadata_props:
                continue
            if any(value in active for value in (*node.inputs, *captured(node)) if value is not None):
                active.update(out for out in node.outputs if out.dtype is None or out.dtype in FLOATS)
        return active

    def run(self, loss: ir.Value, seed: ir.Value | None) -> list[ir.Value]:
        """The gradient of ``seed * loss`` (None: 1) by each wanted value, in their order. Raises AmpError AMP211 where
        the loss does not depend on one, and what `_step` raises."""
        found = self.sweep([(loss, self.builder.number(1, loss) if seed is None else seed)])
        missing = [value.name for value, gradient in zip(self.wanted, found, strict=True) if gradient is None]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise AmpError(
                "AMP211",
                f"the loss does not depend on '{missing[0]}'{more}",
                hint="freeze what is not to be trained, or name the loss that depends on it",
            )
        made = [gradient for gradient in found if gradient is not None]
        self.builder.drop_unused(len(self.nodes), set(made))
        return made

    def sweep(self, seeds: Sequence[tuple[ir.Value, ir.Value]]) -> list[ir.Value | None]:
        """The gradients of the wanted values, None where nothing flows back, from ``seeds``, values with theirs."""
        for value, gradient in seeds:
            self.pending.setdefault(value, []).append(gradient)
        for node in reversed(self.nodes):
            gradients = [self._complete(value) for value in node.outputs]
            if any(gradient is not None for gradient in gradients):
                self._step(node, gradients)
        return [self._complete(value) for value in self.wanted]

    def _step(self, node: ir.Node, gradients: list[ir.Value | None]) -> None:
        """Goes back through one node by its gradient rule, from the gradients of its outputs; those of its inputs are
        pending until all their readers were visited. Raises AmpError AMP210 without a rule, for a form that the rule
        does not take, or where it gives nothing for an input that needs a gradient; AMP212 for an unknown shape."""
        rule = rule_of(node)
        needed = [value is not None and value in self.active for value in node.inputs]
        if bodies(node):
            self._step_through_bodies(node, gradients)
            return
        if not any(needed):
            return
        if rule is None:
            raise _no_rule_error(node, f"no gradient rule for {kind_of(node)}")
        self.builder.scope = node.name or node.op_type
        try:
            # why the node itself is float32, at every level or where norms are, else "": its gradients follow it
            held, kept = (node.meta.get(key, "") for key in (HELD, KEPT))
            with self.builder.float32(held), self.builder.float32_as_norms(kept):
                made = rule(self.builder, node, gradients)
        except Unsupported as error:
            raise _no_rule_error(node, str(error)) from error
        except ValueError as error:
            hint = "give the input shapes when you export it"
            raise AmpError("AMP212", str(error), where=place_of(node), hint=hint) from error
        for n, (value, gradient) in enumerate(zip(node.inputs, made, strict=True)):
            if not needed[n] or value is None:
                continue
            if gradient is not None:
                self._add(node, rule, value, gradient)
            elif n not in rule.constant and (value.dtype is None or value.dtype in FLOATS):
                raise _no_rule_error(node, f"no gradient for input {n} of {kind_of(node)}, '{value.name}'")

    def _step_through_bodies(self, node: ir.Node, gradients: list[ir.Value | None]) -> None:
        """Goes back through an If, Loop or Scan from the gradients of its outputs, as `through_bodies`."""
        self.builder.scope = node.name or node.op_type
        try:
            found = through_bodies(self.builder, node, gradients, self.active, _inner_gradients)
        except Unsupported as error:
            raise _no_rule_error(node, str(error)) from error
        for value, gradient in found:
            self.pending.setdefault(value, []).append(gradient)

    def _add(self, node: ir.Node, rule: GradientRule, value: ir.Value, gradient: ir.Value) -> None:
        """Notes the ``gradient`` that the node brings back for its input ``value``, summed if broadcast."""
        if rule.broadcasts:
            gradient = sum_to(self.builder, gradient, value, node.outputs[0])
        if gradient.dtype is None:
            gradient.type, gradient.shape = value.type, value.shape
        self.pending.setdefault(value, []).append(gradient)

    def _complete(self, value: ir.Value) -> ir.Value | None:
        """The sum of the gradients that arrived for a value, None for none, when all readers are done."""
        parts = self.pending.get(value)
        if not parts:
            return None
        self.builder.scope = value.name or ""
        total, *others = _join_neighbours(self.builder, parts, value)
        for part in others:
            total = self.builder.typed(self.builder.op("Add", total, part), value)
        self.pending[value] = [total]
        return total


def _join_neighbours(b: Builder, parts: Sequence[ir.Value], value: ir.Value) -> list[ir.Value]:
    """The gradients that arrived for a value, to be added: those of neighbouring pieces of it, each padded with zeros,
    are one Concat of the pieces instead: half of the time of an encoder's step on an H100 was Pad (benchmarks/gpu.md).
    """
    placed = [part for part in parts if part in b.placed and b.dim(value, b.placed[part].axis) is not None]
    placed.sort(key=lambda part: (b.placed[part].axis, b.placed[part].before))
    found = [part for part in parts if part not in placed]
    for axis, alike in groupby(placed, key=lambda part: b.placed[part].axis):
        whole, runs = b.dim(value, axis) or 0, list[list[ir.Value]]()
        for part in alike:
            if runs and b.placed[part].before == whole - b.placed[runs[-1][-1]].behind:  # starts where that one ends
                runs[-1].append(part)
            else:
                runs.append([part])
        found += [run[0] for run in runs if len(run) == 1]
        for run in (run for run in runs if len(run) > 1):
            joined = b.joined([b.placed[part].piece for part in run], axis)
            before, behind = b.placed[run[0]].before, b.placed[run[-1]].behind
            if before or behind:
                joined = b.padded(joined, b.rank(value), b.ints(before), b.ints(behind), b.ints(axis))
            found.append(b.typed(joined, value))
    return found


def _inner_gradients(
    graph: ir.Graph, seeds: list[tuple[ir.Value, ir.Value]], wanted: Sequence[ir.Value], fresh: FreshNames
) -> list[ir.Value | None]:
    """Differentiates the body of an If, Loop or Scan in place, as `control.DifferentiateBody` says."""
    body = _Differentiation(graph, wanted)
    body.builder.fresh = fresh
    found = body.sweep(seeds)
    body.builder.drop_unused(len(body.nodes), {value for value in found if value is not None})
    return found


def _no_rule_error(node: ir.Node, message: str) -> AmpError:
    """The AmpError AMP210 for a node that has no gradient, with what to do instead."""
    hint = (
        "export it written out in simpler operators, freeze what is in front of it, or register a rule: "
        f'@ampgraph.gradient("{kind_of(node)}")'
    )
    return AmpError("AMP210", message, where=place_of(node), hint=hint)
