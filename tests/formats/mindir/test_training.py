"""Training steps are known by their optimizer or their gradients, in any graph of the file."""

import pytest

from ampgraph import AmpError
from formats.mindir.parse import convert, parse

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
