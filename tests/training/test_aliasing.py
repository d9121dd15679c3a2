"""Which state may be overwritten where it lies: a small graph for each thing that makes it unsafe, and real runs."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ampgraph.training.run import binding as bindings
from ampgraph.training.run.trainer import Trainer
from ampgraph.training.step.aliasing import in_place
from ampgraph.training.step.loss_scale import DynamicLossScale
from ampgraph.training.step.optimizers import SGD, AdamW
from ampgraph.training.step.state_tensors import StateTensor
from onnx_text import parse
from training.steps import blobs, linear_step

ENTRIES = [StateTensor("s", "parameter", "next/s"), StateTensor("t", "slot", "next/t")]


def _graph(body, more=""):
    """A graph of two states s, t and one input x, all float[4,4]."""
    made = f"float[4,4] next_s, float[4,4] next_t{more}"
    text = f"step (float[4,4] s, float[4,4] t, float[4,4] x) => ({made}) {{ {body} }}"
    graph = ir.from_proto(parse(text, opset=21)).graph
    for value in graph.outputs:
        value.name = (value.name or "").replace("next_", "next/")
    return graph


SAFE = {
    "read before it is written": "y = MatMul(x, s) z = Relu(y) next_s = Sub(s, z) next_t = Add(t, x)",
    "nobody else reads it": "next_s = Add(s, x) next_t = Mul(t, x)",
    "an Identity in front of the output": "y = Relu(s) z = Sub(s, y) next_s = Identity(z) next_t = Add(t, x)",
    "read through a view, before": "v = Transpose(s) y = MatMul(x, v) z = Relu(y)"
    " next_s = Sub(s, z) next_t = Add(t, x)",
    "only its shape is read, later": "y = Shape(s) z = Reshape(x, y) next_s = Sub(s, x) next_t = Add(t, z)",
    "read as low, and written": "h = Cast<to = 10>(s) f = Cast<to = 1>(h) next_s = Sub(f, x) next_t = Add(t, x)",
}
UNSAFE = {
    "read by what does not precede the writer": "next_s = Sub(s, x) y = MatMul(x, s) next_t = Add(t, y)",
    "read after it is written": "next_s = Sub(s, x) y = MatMul(next_s, s) next_t = Add(t, y)",
    "read later through a view": "v = Transpose(s) z = Relu(v) next_s = Sub(s, z) y = MatMul(v, x) next_t = Add(t, y)",
    "read later through a Cast": "h = Cast<to = 10>(s) f = Cast<to = 1>(h) z = Relu(f)"
    " next_s = Sub(s, z) y = MatMul(f, x) next_t = Add(t, y)",
    "read later times a constant": "c = Constant<value_float = 2.0>() v = Mul(s, c) z = Relu(v)"
    " next_s = Sub(s, z) y = MatMul(v, x) next_t = Add(t, y)",
    "the writer is no elementwise operator": "next_s = MatMul(x, s) next_t = Add(t, x)",
    "the writer reads it transposed": "v = Transpose(s) next_s = Sub(v, x) next_t = Add(t, x)",
    "the writer reads it transposed as well": "v = Transpose(s) next_s = Sub(s, v) next_t = Add(t, x)",
    "the order follows from a shape alone": "y = MatMul(x, s) n = Shape(y) z = Reshape(x, n)"
    " next_s = Sub(s, z) next_t = Add(t, x)",
    "read by a product that the writer may be fused with": "y = MatMul(x, s) next_s = Add(s, y) next_t = Add(t, x)",
    "and scaled in between": "c = Constant<value_float = 2.0>() v = Transpose(s) y = MatMul(x, v) z = Mul(y, c)"
    " next_s = Add(x, z) next_t = Add(t, x)",
    "a copy of another state": "next_s = Identity(t) next_t = Add(t, s)",
}


@pytest.mark.parametrize("name", SAFE)
def test_safe(name):
    assert in_place(_graph(SAFE[name]), ENTRIES) >= {"s"}


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe(name):
    assert "s" not in in_place(_graph(UNSAFE[name]), ENTRIES)


def test_a_state_that_is_an_output_itself_is_not_overwritten():
    graph = _graph("next_s = Sub(s, x) next_t = Add(t, x)")
    graph.outputs.append(graph.inputs[0])
    assert in_place(graph, ENTRIES) == {"t"}


def test_nor_one_whose_view_is_an_output():
    graph = _graph("v = Transpose(s) z = Relu(v) next_s = Sub(s, z) next_t = Add(t, x)")
    assert in_place(graph, ENTRIES) == {"s", "t"}
    graph.outputs.append(next(node for node in graph if node.op_type == "Transpose").outputs[0])
    assert in_place(graph, ENTRIES) == {"t"}


def test_a_state_that_never_changes_has_no_place_to_write_to():
    graph = _graph("next_s = Sub(s, x) next_t = Add(t, x)")
    assert in_place(graph, [StateTensor("s", "schedule"), ENTRIES[1]]) == {"t"}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("scale", [None, DynamicLossScale(interval=2)], ids=["plain", "scaled"])
@pytest.mark.parametrize("optimizer", [SGD(0.1, momentum=0.9, nesterov=True), AdamW(0.05)], ids=["sgd", "adamw"])
def test_in_place_runs_are_bit_identical_to_copies(monkeypatch, optimizer, scale, strict):
    data = blobs()

    def states():
        trainer = Trainer(linear_step(optimizer, scale, clip=1.0, low=True, counted=True), strict=strict, threads=1)
        found = []
        for start in range(0, 96, 16):
            trainer.step({name: array[start : start + 16] for name, array in data.items()})
            found.append(trainer.state)
        return trainer, found

    trainer, here = states()
    assert {"weight", "bias", "mean"} <= trainer._binding.in_place
    monkeypatch.setattr(bindings, "in_place", lambda graph, entries: frozenset())
    copier, there = states()
    assert not copier._binding.in_place
    for one, other in zip(here, there, strict=True):
        assert all(np.array_equal(one[name], other[name], equal_nan=True) for name in one)
    assert not np.array_equal(here[0]["weight"], here[-1]["weight"])
