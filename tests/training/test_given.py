"""Training graphs that have their backward already, through build-step."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch.utils._pytree import tree_leaves
from typer.testing import CliRunner

import ampgraph
from ampgraph.cli.app import app
from ampgraph.core.errors import AmpError
from ampgraph.training.forward.exported_backward import parse_gradients, read_exported_backward
from ampgraph.training.forward.read import read_forward
from ampgraph.training.run.evaluation import trained_model
from ampgraph.training.run.trainer import Trainer
from onnx_text import parse
from present import present
from training.joint_graphs import build, joint, marked, refused, trajectory, types
from training.small_steps import WEIGHTS, Runner, batches, regression

pytestmark = pytest.mark.slow  # a grid: many small cases

# -- the same step as from the forward graph -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"loss_scale": None}, {"loss_scale": "static:64"}, {"optimizer": "sgd:lr=0.1"}]
)
def test_at_o0_it_trains_as_the_forward_graph_does_to_the_bit(options, tmp_path):
    onnx.save(joint(), tmp_path / "joint.onnx")
    ours = build(tmp_path / "joint.onnx", **options)
    theirs = build(regression(), loss="loss", **options)
    assert trajectory(ours, poisoned=[5]) == trajectory(theirs, poisoned=[5])
    assert ours.layout.states == theirs.layout.states and ours.layout.inputs == theirs.layout.inputs == ("x", "t")


@pytest.mark.parametrize("level", ["O1", "O2", "O3", "auto"])
def test_with_low_precision_it_decides_the_same(level):
    ours, theirs = build(marked(), level=level), build(regression(), loss="loss", level=level)
    mine, other = ({key: n for key, n in types(step).items() if key[0] != "Reshape"} for step in (ours, theirs))
    assert mine == other and any("FLOAT16" in made for _, made in mine)  # a view has what shape inference gives it
    assert trajectory(ours, 6, strict=True, poisoned=[2]) == trajectory(theirs, 6, strict=True, poisoned=[2])


@pytest.mark.parametrize("rule, seed", [("pytorch", "float"), ("mindspore", "float"), ("pytorch", "float[1]")])
def test_a_scale_beyond_float16_stays_float32(rule, seed):
    """The seed is spread out before anything makes it smaller, and then goes into a low product."""
    model = parse(
        """g (float[16,6] x, SEED seed) => (float loss, float[6,4] w_grad)
        <int64[2] sizes = {16, 4}> {
          m = MatMul (x, w)  loss = ReduceMean <keepdims = 0> (m)
          all = Expand (seed, sizes)  c = Size (m)  n = Cast <to = 1> (c)  g = Div (all, n)
          t = Transpose <perm = [1, 0]> (x)  w_grad = MatMul (t, g)
        }""".replace("SEED", seed),
        opset=20,
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones((6, 4), np.float32), "w"))
    step = build(model, level="O2", loss_scale=f"dynamic:init=131072,rule={rule}")
    trainer = Trainer(step, "cpu", strict=True)
    [batch] = batches(1)
    assert trainer.step({"x": batch["x"]}).finite
    assert any("FLOAT16" in made for kind, made in types(step) if kind == "MatMul")


def test_a_scale_in_float64_gets_its_cast_in_front():
    scale = "dynamic:init=1024,rule=mindspore"
    ours, theirs = build(joint(), loss_scale=scale), build(regression(), loss="loss", loss_scale=scale)
    onnx.checker.check_model(ir.to_proto(ours.model), full_check=True)
    assert trajectory(ours, 4) == trajectory(theirs, 4)


def test_a_seed_of_shape_1():
    ours, theirs = build(joint(shape=(1,))), build(regression(), loss="loss")
    assert trajectory(ours, 4) == trajectory(theirs, 4)


PRODUCT = """<ir_version: 9, opset_import: ["" : 20]>
    g (float[16,6] x, float[1] seed) => (float loss, float[6] w_grad)
    <float[6] w = {1, 2, 3, 4, 5, 6}, float size = {96.0}, int64[1] rows = {0}, float[6] one = {1, 1, 1, 1, 1, 1},
     float[6] mean = {0, 0, 0, 0, 0, 0}> {
      m = Mul (x, w)  NORM  loss = ReduceMean <keepdims = 0> (y)
      s = ReduceSum <keepdims = 0> (x, rows)  t = Div (s, size)  w_grad = Mul (t, seed)
    }"""


def test_a_seed_of_shape_1_keeps_the_rank_of_what_it_multiplies():
    [batch] = batches(1)
    step = build(parse(PRODUCT.replace("NORM", "y = Identity (m)")), optimizer="sgd:lr=1", clip_norm=None)
    runner = Runner(step)
    runner({"x": batch["x"]})
    assert runner.state["w"].shape == (6,)
    np.testing.assert_allclose(runner.state["w"], np.arange(1, 7) - batch["x"].sum(0) / 96, rtol=1e-5)


def test_batch_statistics_where_the_graph_was_exported_with_them():
    for mode, running in ((0, []), (1, ["mean", "one"])):
        more = ", new_mean, new_variance" if mode else ""
        norm = f"y{more} = BatchNormalization <training_mode = {mode}> (m, one_, mean_, mean, one)"
        text = PRODUCT.replace("NORM", f"one_ = Identity (one)  mean_ = Identity (mean)  {norm}")
        step = build(parse(text))
        assert step.parameters == ["w"] and [entry.name for entry in step.layout.of("running")] == running
        [node] = [node for node in step.model.graph if node.op_type == "BatchNormalization"]
        assert (node.inputs[3].name == "mean") == (mode == 0) and not node.attributes.get_int("training_mode", 0)


def test_it_exports_the_forward_part():
    step = build(joint())
    trainer = Trainer(step, "cpu")
    [batch] = batches(1)
    trainer.step(batch)
    model = trained_model(step, trainer.state)
    assert [value.name for value in model.graph.outputs] == ["loss"]
    assert [value.name for value in model.graph.inputs] == ["x", "t"]
    assert {node.op_type for node in model.graph} == {node.op_type for node in regression().graph.node}
    np.testing.assert_array_equal(present(model.graph.initializers["w1"].const_value).numpy(), trainer.state["w1"])
    assert trainer.evaluate(batch)["loss"] == pytest.approx(Trainer(build(model, loss="loss")).step(batch).loss)


def test_frozen_parameters_keep_their_gradient_out():
    step = build(joint(), freeze=["w*"])
    assert step.parameters == ["b1", "b2"]
    assert trajectory(step, 4) == trajectory(build(regression(), loss="loss", freeze=["w*"]), 4)


# -- torch's joint graph -------------------------------------------------------------------------------------------


class Classifier(torch.nn.Module):
    """The loss is spelled out: torch 2.13 exports nll_loss_backward without its division by the number of rows."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)

    def forward(self, x, labels):
        chances = torch.log_softmax(self.last(torch.tanh(self.first(x))), 1)
        return -chances.gather(1, labels.unsqueeze(1)).mean()


class JointOf(torch.nn.Module):
    """A module's loss and gradients, as torch's joint export traces them; tangents_1 is what they start from."""

    def __init__(self, module, x, labels):
        super().__init__()
        self.inner, names = module, [name for name, _ in module.named_parameters()]

        def loss(*given):
            return (torch.func.functional_call(module, dict(zip(names, given, strict=False)), given[len(names) :]),)

        self.traced = aot_export_joint_simple(loss, (*module.parameters(), x, labels), trace_joint=True)

    def forward(self, x, labels, tangents_1):
        made = self.traced([*self.inner.parameters(), x, labels], [tangents_1])
        return tuple(tree_leaves(made))


@pytest.mark.slow
def test_a_joint_graph_of_torch(tmp_path):
    torch.manual_seed(0)
    module, rng = Classifier(), np.random.default_rng(0)
    x, labels = torch.tensor(rng.standard_normal((16, 6)), dtype=torch.float32), torch.tensor(rng.integers(0, 3, 16))
    ampgraph.export_for_training(module, (x, labels), tmp_path / "forward.onnx", dynamic_batch=False)
    whole = (x, labels, torch.tensor(1.0))
    ampgraph.export_for_training(JointOf(module, x, labels), whole, tmp_path / "joint.onnx", dynamic_batch=False)
    loss, *made = [value.name for value in onnx.load(tmp_path / "joint.onnx").graph.output]
    names = [f"inner.{name}" for name, _ in module.named_parameters()]
    for level in ("O0", "O2"):
        options = {"level": level, "optimizer": "sgd:lr=0.5"}
        ours = build(tmp_path / "joint.onnx", gradients=dict(zip(names, made, strict=True)), **options)
        [name] = [value.name for value in onnx.load(tmp_path / "forward.onnx").graph.output]
        theirs = build(tmp_path / "forward.onnx", loss=name, **options)
        assert ours.layout.inputs == ("x", "labels") and ours.parameters == names
        trainers = [Trainer(step, "cpu", strict=True) for step in (ours, theirs)]
        batch = {"x": x.numpy(), "labels": labels.numpy()}
        told = np.array([[trainer.step(batch).loss for _ in range(8)] for trainer in trainers])
        np.testing.assert_allclose(told[0], told[1], rtol=1e-5 if level == "O0" else 5e-3)
        assert told[0, -1] < told[0, 0] - 0.1


# -- how things are found ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", ["gradient:{}", "{}.grad", "grad_{}", "{}_grad"])
@pytest.mark.parametrize("seed", ["seed", "scale", "grad_output", "tangents_1"])
def test_conventions(names, seed):
    given = read_exported_backward(read_forward(joint(names, seed)), None, None, None)
    assert given is not None and given.seed == seed and given.loss == "loss"
    assert given.gradients == {name: names.format(name) for name in WEIGHTS}


def test_a_forward_graph_is_none():
    assert read_exported_backward(read_forward(regression()), None, None, None) is None


def test_options_name_what_no_convention_finds():
    model = joint("d{}", "start")
    refused("AMP213", model)  # a forward graph: no loss is named
    gradients = {name: f"d{name}" for name in WEIGHTS}
    step = build(model, gradients=gradients, seed="start", loss="loss")
    assert trajectory(step, 4) == trajectory(build(regression(), loss="loss"), 4)


def test_an_option_goes_before_a_convention():
    model = joint()
    model.graph.output.extend([helper.make_tensor_value_info("other", TensorProto.FLOAT, WEIGHTS["w1"])])
    model.graph.node.append(helper.make_node("Identity", ["w1"], ["other"]))
    given = read_exported_backward(read_forward(model), None, {"w1": "other"}, None)
    assert given is not None and given.gradients["w1"] == "other" and given.gradients["w2"] == "gradient:w2"


def test_torch_says_what_outputs_are():
    model = joint("made_{}")
    told = "\n".join(f"made_{name}: GRADIENT_TO_PARAMETER target='{name}'" for name in WEIGHTS)
    told += "".join(f"\np_{name}: PARAMETER target='{name}'" for name in WEIGHTS) + "\nloss: LOSS_OUTPUT"
    key = "pkg.torch.export.ExportedProgram.graph_signature"
    model.graph.metadata_props.add(key=key, value=told)
    assert trajectory(build(model), 4) == trajectory(build(regression(), loss="loss"), 4)


def test_an_input_that_is_data_is_no_seed():
    model = joint(seed="start")
    model.graph.input.append(helper.make_tensor_value_info("scale", TensorProto.FLOAT, []))
    model.graph.node.append(helper.make_node("Identity", ["scale"], ["kept"]))
    given = read_exported_backward(read_forward(model), None, None, None)
    assert given is not None and given.seed == ""


def test_dropout_of_a_joint_graph_repeats():
    """Its mask is read by the backward."""
    model = parse(
        """g (float[16,6] x, float seed) => (float loss, float[6] w_grad)
        <float[6] w = {1, 2, 3, 4, 5, 6}, float ratio = {0.5}, bool mode = {1}> {
          m = Mul (x, w)  d, kept = Dropout (m, ratio, mode)  loss = ReduceMean <keepdims = 0> (d)
          n = Constant <value_float = 48.0> ()  s = Div (seed, n)  k = Cast <to = 1> (kept)
          gd = Mul (k, s)  gx = Mul (gd, x)  a = Constant <value_ints = [0]> ()
          w_grad = ReduceSum <keepdims = 0> (gx, a)
        }""",
        opset=20,
    )
    runners = [Runner(build(model, clip_norm=None, optimizer="sgd:lr=1")) for _ in range(2)]
    [batch] = batches(1)
    ours, theirs = ([float(runner({"x": batch["x"]})["loss"]) for _ in range(4)] for runner in runners)
    assert ours == theirs and len(set(ours)) == 4
    kept = (runners[0].state["w"] != np.arange(1, 7)).sum()
    assert kept == 6


# -- the command line ----------------------------------------------------------------------------------------------


def test_command(tmp_path):
    source, output = tmp_path / "joint.onnx", tmp_path / "step.onnx"
    onnx.save(joint("d{}", "start"), source)
    words = ["build-step", str(source), "--optimizer", "sgd:lr=0.1", "-o", str(output), "--seed-input", "start"]
    for name in WEIGHTS:
        words += ["--gradient", f"{name}=d{name}"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    step = ampgraph.TrainingStep.load(output)
    assert step.parameters == list(WEIGHTS) and step.layout.options["loss"] == "loss"


def test_words_of_the_command():
    assert parse_gradients(["a=b", "c.d=e"]) == {"a": "b", "c.d": "e"}
    for words in (["a"], ["=b"], ["a="], ["a=b", "a=c"]):
        with pytest.raises(AmpError, match="AMP305"):
            parse_gradients(words)
