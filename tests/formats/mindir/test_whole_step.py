"""A file of a whole training step: casts in the network and in its gradients, all else float32."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ampgraph import AmpError
from ampgraph.cli.conversion import refuse_loss_scale
from ampgraph.formats.mindir import view
from ampgraph.formats.mindir.graph import MindirGraph
from ampgraph.formats.mindir.step import UNSCALED, check_finite
from ampgraph.formats.mindir.weights import MindirFile
from formats.mindir.parse import convert, parse, plan_of

NET, LOSS = "Default/network-WithLossCell/_backbone-Net", "Default/network-WithLossCell/_loss_fn-Loss"
STEP = f"""
    main(x: f32[4,4], t: f32[4,4], status: i32[8], zeros: i32[8])
      parameter w: f32[4,4]
      parameter v: f32[4,4]
      parameter scale_sense: f32[]
      parameter rate: f32[]
      a: f32[4,4] = Load(w, state) @{NET}/Load-op0
      p = MatMul(x, a, false, true) @{NET}/1-Dense/MatMul-op0
      h = Add(p, x) @{NET}/Add-op0
      b: f32[4,4] = Load(v, state) @{NET}/Load-op1
      y = MatMul(h, b, false, true) @{NET}/2-Dense/MatMul-op0
      d = Sub(y, t) @{LOSS}/Sub-op0
      loss: f32[] = ReduceMean(d, [0, 1], false) @{LOSS}/ReduceMean-op0
      s: f32[] = Load(scale_sense, state) @Default/Load-op0
      seed = Mul(d, s) @Gradients/{LOSS}/Grad_Sub/Mul-op0
      dh = MatMul(seed, b, false, false) @Gradients/{NET}/2-Dense/Grad_MatMul/MatMul-op0
      dv = MatMul(seed, h, true, false) @Gradients/{NET}/2-Dense/Grad_MatMul/MatMul-op1
      dp = MatMul(dh, a, false, false) @Gradients/{NET}/2-Dense/Grad_MatMul/MatMul-op2
      both = MakeTuple(dh, dp) @Gradients/{NET}/MakeTuple-op0
      dx: f32[4,4] = AddN(both) @Gradients/{NET}/AddN-op0
      dw = MatMul(dx, x, true, false) @Gradients/{NET}/2-Dense/Grad_MatMul/MatMul-op3
      one = Reciprocal(s) @Default/Reciprocal-op0
      gw = Mul(dw, one) @{NET}/Mul-op0
      gv = Mul(dv, one) @{NET}/Mul-op1
      grads = MakeTuple(gw, gv) @Default/MakeTuple-op0
      ready = Depend(status, grads) @Default/Depend-op0
      got = NPUGetFloatStatusV2(ready) @Default/NPUGetFloatStatusV2-op0
      later = Depend(ready, got) @Default/Depend-op1
      clear = NPUClearFloatStatusV2(later) @Default/NPUClearFloatStatusV2-op0
      read = Depend(got, clear) @Default/Depend-op2
      same: bool[8] = Equal(zeros, read) @Default/Equal-op0
      fine: bool[] = ReduceAll(same, none, false) @Default/ReduceAll-op0
      bad = LogicalNot(fine) @Default/LogicalNot-op0
      twice = Mul(s, f32[]=2) @{NET}/Mul-op2
      next = Select(bad, s, twice) @Default/loss_scaling_manager-Cell/Select-op0
      set = Assign(scale_sense, next, state) @Default/loss_scaling_manager-Cell/Assign-op0
      m = ApplyGradientDescent(w, rate, gw) @Default/optimizer-SGD/ApplyGradientDescent-op0
      n = ApplyGradientDescent(v, rate, gv) @Default/optimizer-SGD/ApplyGradientDescent-op1
      done = MakeTuple(loss, bad, next)
      return done
"""
INSIDE = {"p", "h", "y", "dh", "dv", "dp", "dx", "dw"}


def low_nodes(model: Any) -> set[str]:
    """The operators whose results are float16, Casts aside."""
    known = view.primitives(model)
    found = set()
    for node in model.graph.node:
        kind = view.kind_of(node, known)
        shown = [view.dtype_of(t) for t in view.elements(view.attribute(node, "shape")) if t is not None]
        if "float16" in shown and kind not in ("Cast", "Load", "Depend", "Constant", *view.TUPLES):
            found.add(node.output[0].removeprefix("main:"))
    return found


@pytest.mark.parametrize(
    ("level", "policy", "low"),
    [
        ("O2", "ampgraph", INSIDE),
        ("O3", "ampgraph", INSIDE),
        ("O1", "ampgraph", INSIDE - {"h", "dx"}),
        ("O2", "mindspore", INSIDE),
        ("O1", "mindspore", INSIDE - {"h", "dx"}),
    ],
)
def test_the_network_is_low_by_level_and_nothing_else(level: str, policy: str, low: set[str]) -> None:
    """Even where a scope of the network's stands on an operator of the step: unscaling, and the new scale."""
    assert low_nodes(convert(parse(STEP), level, policy=policy)) == low


def test_gradients_are_looked_at() -> None:
    flow = MindirGraph(MindirFile(parse(STEP), None)).dataflow()
    names = {op.id: flow.values[op.outputs[0]].name.removeprefix("main:") for op in flow.ops if op.outputs}
    assert {names[op.id]: names[op.follows] for op in flow.ops if op.follows >= 0} == {
        "dh": "y", "dv": "y", "dp": "p", "dw": "p",
    }  # fmt: skip
    assert {names[op.id] for op in flow.ops if not op.held and op.id in names} == INSIDE
    # off ascend the gradients are looked at
    model = parse(STEP)
    assert check_finite(model) == 2
    known = view.primitives(model)
    kinds = [view.kind_of(node, known) for node in model.graph.node]
    assert [kinds.count(kind) for kind in ("IsFinite", "ReduceAll", "LogicalAnd")] == [2, 2, 1]
    assert not [kind for kind in kinds if kind.startswith("NPU") or kind in ("Depend", "Equal")]
    assert MindirGraph(MindirFile(model, None)).fault() == ""
    assert check_finite(model) == 0


def test_the_first_gradient_belongs_to_what_the_loss_reads() -> None:
    """A gradient that reads nothing but the loss's is known by the value that the network hands to the loss."""
    text = STEP.replace("y = MatMul(h, b, false, true)", "q = MatMul(h, b, false, true)")
    text = text.replace("d = Sub(y, t)", f"y = Neg(q) @{NET}/Neg-op0\n      d = Sub(y, t)")
    text = text.replace("dh = ", f"dq = Neg(seed) @Gradients/{NET}/Grad_Neg/Neg-op0\n      dh = ", 1)
    flow = MindirGraph(MindirFile(parse(text.replace("MatMul(seed", "MatMul(dq")), None)).dataflow()
    names = {op.id: flow.values[op.outputs[0]].name.removeprefix("main:") for op in flow.ops if op.outputs}
    follows = {names[op.id]: names[op.follows] for op in flow.ops if op.follows >= 0}
    assert (follows["dq"], follows["dh"], follows["dv"]) == ("y", "q", "q")


def test_steps_that_are_refused() -> None:
    model = parse(STEP.replace("Depend(status, grads)", "Depend(status, gw)"))
    with pytest.raises(AmpError, match="AMP205.*unknown form") as caught:
        check_finite(model)
    assert "TrainOneStepWithLossScaleCell" in caught.value.hint
    # a step without a network of its own is refused
    with pytest.raises(AmpError, match="AMP205.*whole training step") as caught:
        convert(parse(STEP.replace("network-WithLossCell/_backbone-Net", "Net")))
    assert "TrainOneStepWithLossScaleCell" in caught.value.hint and "built anew" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (STEP, "leave --loss-scale out"),
        (STEP.replace("scale_sense", "factor"), r"export nn.TrainOneStepWithLossScaleCell\("),
        ("main(x: f32[4])\n a = ReLU(x)\n return a", "train_step scales the loss"),
    ],
)
def test_who_asks_for_a_loss_scale_is_told_where_one_comes_from(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "step.mindir"
    file.write_bytes(parse(text).SerializeToString())
    with pytest.raises(AmpError, match="AMP205") as caught:
        refuse_loss_scale(str(file), "dynamic")
    assert re.search(told, caught.value.hint)


@pytest.mark.parametrize(
    ("text", "dtype", "noted"),
    [(STEP, "float16", False), (STEP.replace("scale_sense", "factor"), "float16", True)]
    + [(STEP.replace("scale_sense", "factor"), "bfloat16", False)],
)
def test_a_float16_step_without_a_loss_scale_is_named(text: str, dtype: str, noted: bool) -> None:
    notes = [note.text for note in plan_of(parse(text), dtype=dtype).notes if note.topic == "loss scale"]
    assert notes == ([UNSCALED] if noted else [])


# Training steps are known by their optimizer or their gradients, in any graph of the file.

FORWARD = """
    main(x: f32[4,4])
      parameter w: f32[4,4]
      a = MatMul(x, w, false, false)
      return a
"""


def marked(scope: str = "", kind: str = ""):
    model = parse(FORWARD)
    [product] = [node for node in model.graph.node if "MatMul" in node.op_type]
    product.domain = scope or product.domain
    for primitive in model.primitives:
        primitive.op_type = kind if kind and primitive.op_type == "MatMul" else primitive.op_type
    return model


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (marked("Default/optimizer-AdamWeightDecay/MatMul-op0"), "AdamWeightDecay"),
        (marked("Gradients/Default/head-Dense/Grad_MatMul/MatMul-op0"), "gradients"),
        (marked(kind="ApplyMomentum"), "ApplyMomentum"),
        (marked(kind="FusedSparseLazyAdam"), "FusedSparseLazyAdam"),
    ],
)
def test_a_training_step_is_refused(model, named):
    with pytest.raises(AmpError, match=rf"AMP205.*whole training step \({named}\)") as caught:
        convert(model)
    assert "TrainOneStepWithLossScaleCell" in caught.value.hint


@pytest.mark.parametrize("kind", ["ApplyRotaryPosEmb", "AdaptiveAvgPool2D", "MatMul"])
def test_a_forward_graph_is_not(kind):
    convert(marked(kind=kind))
