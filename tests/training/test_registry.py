"""Rules of the user: what is declared, and what a rule may return."""

from pathlib import Path

import pytest

import ampgraph
from ampgraph.core.errors import AmpError
from ampgraph.training.gradients import registry, rules  # noqa: F401
from onnx_text import parse
from training.nets import regression

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def own_rules(monkeypatch):
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))


def build(model):
    return ampgraph.build_training_step(model, loss="loss", optimizer="sgd:lr=0.1", level="O0")


def test_the_example_of_the_documentation():
    @ampgraph.gradient("my.domain::Cube")
    def cube(b, node, g):
        [x] = node.inputs
        with b.float32("x * x leaves the range of float16"):
            return b.op("Mul", g, b.op("Mul", b.op("Mul", x, x), b.number(3, x)))

    model = parse(
        """<ir_version: 9, opset_import: ["" : 20, "my.domain" : 1]>
        g (float[4] x) => (float loss) <float[4] w = {1, 2, 3, 4}, float[4] y> {
          h = Mul (x, w)  y = my.domain.Cube (h)  loss = ReduceMean <keepdims = 0> (y)
        }"""
    )
    model.graph.output[0].type.tensor_type.shape.SetInParent()
    made = [node.op_type for node in build(model).model.graph if "Cube" in node.name]
    assert made == ["Mul", "Mul", "Mul"]


@pytest.mark.parametrize("kinds", [(), (1,), ("",), ("ai.onnx::Mul",)])
def test_a_rule_is_for_an_operator(kinds):
    with pytest.raises(AmpError, match=r"AMP210.*is for an operator"):
        ampgraph.gradient(*kinds)


@pytest.mark.parametrize(
    ("made", "told"), [(3.0, "returned float"), ([None, 1], "returned int"), ([None] * 3, "returned 3 for 1 inputs")]
)
def test_what_a_rule_must_not_return(made, told):
    ampgraph.gradient("Tanh")(lambda b, node, g: made)
    with pytest.raises(AmpError, match=rf"AMP210.*rule for Tanh {told}"):
        build(regression())


def test_the_documentation_lists_all_rules():
    told = (ROOT / "docs" / "training.md").read_text().split("differences in float64:\n\n")[1].split("\n\n")[0]
    found = list(registry.kinds())
    assert told.rstrip(".").replace("\n", " ").split(", ") == found
