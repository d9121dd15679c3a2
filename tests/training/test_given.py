"""Training graphs that have their backward already, through build-step: the same step, buffers, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import ModelProto, TensorProto, helper, numpy_helper
from torch import nn
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch.utils._pytree import tree_leaves
from typer.testing import CliRunner

import ampgraph
from ampgraph.api.build_step import build_training_step
from ampgraph.cli.app import app
from ampgraph.core.errors import AmpError
from ampgraph.training.forward.exported_backward import (
    ExportedBackward,
    forward_part,
    parse_gradients,
    read_exported_backward,
)
from ampgraph.training.forward.read import read_forward
from ampgraph.training.run.evaluation import trained_model
from ampgraph.training.run.trainer import Trainer
from ampgraph.training.step.loss_scale import DynamicLossScale
from onnx_text import parse
from present import present
from training.nets import WEIGHTS, Runner, batches, joint, marked, regression, weights

pytestmark = pytest.mark.slow

KEY = "pkg.torch.export.ExportedProgram.graph_signature"
SCALE = DynamicLossScale(init=1024.0, interval=3)


def build(model, **options):
    given = {"optimizer": "adam:lr=0.02", "level": "O0", "loss_scale": SCALE, "clip_norm": 0.5}
    return build_training_step(model, **{**given, **options})


def trajectory(step, count=12, strict=False, poisoned=()):
    """What every step tells, and the bits of the state at its end."""
    trainer, told = Trainer(step, "cpu", strict=strict), []
    for number, batch in enumerate(batches(count)):
        if number in poisoned:
            batch["x"][0, 0] = np.inf
        result = trainer.step(batch)
        told.append(f"{result.loss!r} {result.finite} {result.scale} {result.grad_norm!r}")  # NaN is NaN
    return told, {name: array.tobytes() for name, array in trainer.state.items()}


def types(step):
    """Operators and the types of what they make; Identity is a name."""
    nodes = [node for node in step.model.graph if node.op_type != "Identity"]
    return Counter((node.op_type, str([value.dtype for value in node.outputs])) for node in nodes)


def refused(code, model, **options):
    with pytest.raises(AmpError) as caught:
        build(model, **options)
    assert caught.value.code == code and caught.value.hint, caught.value
    return str(caught.value)


def told_by_torch():
    """A graph whose outputs are named in torch's own signature."""
    model = joint("made_{}")
    told = "\n".join(f"made_{name}: GRADIENT_TO_PARAMETER target='{name}'" for name in WEIGHTS)
    told += "".join(f"\np_{name}: PARAMETER target='{name}'" for name in WEIGHTS) + "\nloss: LOSS_OUTPUT"
    model.metadata_props.add(key=KEY, value=told)
    return model


NAMED = {"gradients": {name: f"d{name}" for name in WEIGHTS}, "seed": "start", "loss": "loss"}
SAME: dict[str, tuple[Callable[[], ModelProto], dict[str, Any], dict[str, Any]]] = {
    "plain": (joint, {}, {}),
    "without a scale": (joint, {}, {"loss_scale": None}),
    "a static scale": (joint, {}, {"loss_scale": "static:64"}),
    "sgd": (joint, {}, {"optimizer": "sgd:lr=0.1"}),
    "a scale in float64": (joint, {}, {"loss_scale": "dynamic:init=1024,rule=mindspore"}),
    "frozen parameters": (joint, {}, {"freeze": ["w*"]}),
    "a seed of shape 1": (partial(joint, shape=(1,)), {}, {}),
    "no seed": (partial(joint, seed=""), {}, {"loss_scale": "none"}),
    "options name what no convention finds": (partial(joint, "d{}", "start"), NAMED, {}),
    "torch says what outputs are": (told_by_torch, {}, {}),
}


@pytest.mark.parametrize("name", SAME)
def test_at_o0_it_trains_as_the_forward_graph_does_to_the_bit(name, tmp_path):
    make, own, options = SAME[name]
    onnx.save(make(), tmp_path / "joint.onnx")
    ours = build(tmp_path / "joint.onnx", **own, **options)
    theirs = build(regression(), loss="loss", **options)
    onnx.checker.check_model(ir.to_proto(ours.model), full_check=True)
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


@pytest.mark.parametrize(("seed", "left"), [("s", ["y"]), ("", ["y", "norm"])])
def test_what_is_no_gradient_stays_with_the_forward(seed: str, left: list[str]) -> None:
    """What is computed from gradients is known by the seed alone."""
    text = "g (float[2, 2] x, float[2, 2] s) => (float[2, 2] y, float[2, 2] dw, float norm)"
    text += "{ y = MatMul (x, w)  dw = MatMul (x, s)  norm = ReduceL2 <keepdims = 0> (dw) }"
    model = ir.from_proto(parse(text, {"w": np.eye(2, dtype=np.float32)}))
    part = forward_part(model, ExportedBackward("y", {"w": "dw"}, seed))
    assert [value.name for value in part.graph.outputs] == left
    assert len(part.graph) == (1 if seed else 3)


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


@pytest.mark.parametrize("names", ["gradient:{}", "{}.grad", "grad_{}", "{}_grad"])
@pytest.mark.parametrize("seed", ["seed", "scale", "grad_output", "tangents_1"])
def test_conventions(names, seed):
    given = read_exported_backward(read_forward(joint(names, seed)), None, None, None)
    assert given is not None and given.seed == seed and given.loss == "loss"
    assert given.gradients == {name: names.format(name) for name in WEIGHTS}


def test_a_forward_graph_is_none():
    assert read_exported_backward(read_forward(regression()), None, None, None) is None


def test_an_option_goes_before_a_convention():
    model = joint()
    model.graph.output.extend([helper.make_tensor_value_info("other", TensorProto.FLOAT, WEIGHTS["w1"])])
    model.graph.node.append(helper.make_node("Identity", ["w1"], ["other"]))
    given = read_exported_backward(read_forward(model), None, {"w1": "other"}, None)
    assert given is not None and given.gradients["w1"] == "other" and given.gradients["w2"] == "gradient:w2"


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


JOINT = """<ir_version: 9, opset_import: ["" : 20]>
    g (float[8,4] x, float seed) => (float loss, float[4] w_grad, float[4] new_mean, int64 new_count)
    <float[4] w = {1, 2, 3, 4}, float[4] mean = {0, 0, 0, 0}, int64 count = {5}, float k = {0.9}, float j = {0.1},
     int64[1] ax = {0}, float n = {32.0}, int64 one = {1}> {
      mu = ReduceMean <keepdims = 0> (x, ax)  a = Mul (mean, k)  b = Mul (mu, j)  new_mean = Add (a, b)
      new_count = Add (count, one)  c = Sub (x, mu)  y = Mul (c, w)  y2 = Mul (y, y)
      loss = ReduceMean <keepdims = 0> (y2)  two = Add (y, y)  d = Mul (two, c)  e = Div (d, n)  f = Mul (e, seed)
      w_grad = ReduceSum <keepdims = 0> (f, ax)
    }"""
SIGNATURE = """loss: LOSS_OUTPUT\nw_grad: GRADIENT_TO_PARAMETER target='w'\nnew_mean: BUFFER_MUTATION target='mean'
new_count: BUFFER_MUTATION target='count'\np: PARAMETER target='w'\nb: BUFFER target='mean'\nc: BUFFER target='count'"""


def with_buffers(text=JOINT, told=SIGNATURE):
    model = parse(text)
    model.metadata_props.add(key=KEY, value=told)
    return model


def data(seed=0):
    return {"x": np.random.default_rng(seed).standard_normal((8, 4)).astype(np.float32)}


@pytest.mark.parametrize("level", ["O0", "O2", "O3"])
def test_running_values_of_a_joint_graph_are_state(level):
    step = build(with_buffers(), level=level, optimizer="sgd:lr=0.1", clip_norm=None)
    assert step.parameters == ["w"] and [entry.name for entry in step.layout.of("running")] == ["mean", "count"]
    trainer, mean = Trainer(step, "cpu", strict=level != "O0"), np.zeros(4)
    for number in range(5):
        assert trainer.step(data(number)).finite
        mean = 0.9 * mean + 0.1 * data(number)["x"].astype(np.float64).mean(0)
    np.testing.assert_allclose(trainer.value("mean"), mean, rtol=1e-5 if level == "O0" else 2e-2, atol=1e-4)
    assert trainer.value("mean").dtype == np.float32 and trainer.value("count") == 10
    before, poisoned = trainer.state, data()
    poisoned["x"][0, 0] = np.inf
    assert not trainer.step(poisoned).finite
    for name in ("w", "mean", "count"):
        np.testing.assert_array_equal(trainer.value(name), before[name])
    assert np.isfinite(trainer.evaluate(data())["loss"])
    stored = trained_model(step, trainer.state).graph.initializers
    np.testing.assert_array_equal(present(stored["mean"].const_value).numpy(), trainer.value("mean"))


def test_what_a_step_adds_is_not_rounded_away():
    """Between 256 and 512 float16 has steps of 1/4: a mean would not move by less."""
    text = JOINT.replace("mean = {0, 0, 0, 0}", "mean = {300, 300, 300, 300}").replace("k = {0.9}", "k = {0.9999}")
    trainer = Trainer(build(with_buffers(text), level="O2"), "cpu", strict=True)
    trainer.step(data())
    expected = 300 * 0.9999 + 0.1 * data()["x"].astype(np.float64).mean(0)
    np.testing.assert_allclose(trainer.value("mean"), expected, atol=2e-3)


def test_a_frozen_buffer_stays():
    step = build(with_buffers(), freeze=["mean"])
    trainer = Trainer(step, "cpu")
    trainer.step(data())
    assert [entry.name for entry in step.layout.of("running")] == ["count"]
    assert not step.model.graph.initializers["mean"].const_value.numpy().any()


def test_buffers_that_cannot_be_state():
    assert "not in the graph" in refused(
        "AMP215", with_buffers(told=SIGNATURE.replace("target='mean'", "target='lost'"))
    )
    assert "is not an output" in refused("AMP215", with_buffers(told=SIGNATURE.replace("new_mean:", "a:")))
    told = refused("AMP215", with_buffers(JOINT.replace("float[4] mean = {0, 0, 0, 0}", "float mean = {0}")))
    assert "'new_mean' is FLOAT [4]" in told and "'mean' is FLOAT []" in told


def test_a_count_of_batches_that_nobody_reads_is_no_matter():
    told = SIGNATURE.replace("target='count'", "target='norm.num_batches_tracked'")
    assert [entry.name for entry in build(with_buffers(told=told)).layout.of("running")] == ["mean"]


class Moving(nn.Module):
    average: torch.Tensor

    def __init__(self):
        super().__init__()
        self.last, self.norm = nn.Linear(4, 1), nn.BatchNorm1d(4)
        self.register_buffer("average", torch.zeros(4))

    def forward(self, x):
        self.average.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return self.last(self.norm(x - self.average))


def test_a_module_that_moves_an_average_of_its_own(tmp_path):
    """It is state, as that of its BatchNorm is; unless it is frozen. The export leaves the module's own as it was."""
    torch.manual_seed(0)
    module, x = Moving(), torch.randn(4, 4)
    made = ampgraph.export_for_training(module, (x,), tmp_path / "forward.onnx")
    assert not module.average.any() and made.outputs == ["linear"]
    trainer = ampgraph.Trainer(build(made, loss="mse"))
    for _ in range(3):
        trainer.step({"x": x.numpy(), "labels": np.zeros((4, 1), np.float32)})
        module(x)
    np.testing.assert_allclose(trainer.state["average"], module.average.numpy(), rtol=1e-6)
    step = build(tmp_path / "forward.onnx", loss="mse", freeze=["average"])
    assert [entry.name for entry in step.layout.of("running")] == ["norm.running_mean", "norm.running_var"]


def test_without_a_seed_there_is_no_scale():
    assert "would protect nothing" in refused("AMP215", joint(seed=""))
    assert "would protect nothing" in refused("AMP215", joint(seed=""), level="O2", loss_scale="default")


def test_a_missing_gradient():
    model = joint(wanted=("w1", "b1", "w2"))
    assert "'b2'" in refused("AMP211", model)
    assert build(model, freeze=["b2"]).parameters == ["w1", "b1", "w2"]


def changed(model, name, dims, kind, *nodes):
    """Output ``name`` is another one."""
    [output] = [value for value in model.graph.output if value.name == name]
    [node] = [node for node in model.graph.node if list(node.output) == [name]]
    node.output[0] = "before"
    model.graph.node.extend(nodes)
    output.CopyFrom(helper.make_tensor_value_info(name, kind, dims))
    return model


def test_a_gradient_of_another_shape_or_type():
    turned = helper.make_node("Transpose", ["before"], ["gradient:w1"], perm=[1, 0])
    told = refused("AMP215", changed(joint(), "gradient:w1", [8, 6], TensorProto.FLOAT, turned))
    assert "FLOAT [8, 6]" in told and "FLOAT [6, 8]" in told
    wide = helper.make_node("Cast", ["before"], ["gradient:w1"], to=TensorProto.DOUBLE)
    assert "DOUBLE" in refused("AMP215", changed(joint(), "gradient:w1", [6, 8], TensorProto.DOUBLE, wide))
    rows = [
        helper.make_node("NonZero", ["before"], ["rows"]),
        helper.make_node("Cast", ["rows"], ["gradient:w1"], to=1),
    ]
    assert "N" in refused("AMP215", changed(joint(), "gradient:w1", [2, "N"], TensorProto.FLOAT, *rows))


def test_options_that_name_nothing():
    assert "did you mean 'gradient:w" in refused("AMP215", joint(), gradients={"w1": "gradient:w"})
    assert "no parameter 'w9'" in refused("AMP215", joint(), gradients={"w9": "gradient:w1"})
    assert "did you mean 'seed'" in refused("AMP215", joint(), seed="seeds")
    assert "no output is a parameter's gradient" in refused("AMP215", regression(), loss="loss", seed="x")


@pytest.mark.parametrize("seed, word", [("x", "not a float32 scalar"), ("other", "does not depend on it")])
def test_seeds_that_are_none(seed, word):
    model = joint()
    model.graph.input.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, []))
    assert word in refused("AMP215", model, seed=seed)


def test_a_loss_that_is_scaled_is_refused():
    model = changed(joint(), "loss", [], TensorProto.FLOAT, helper.make_node("Mul", ["before", "seed"], ["loss"]))
    for node in model.graph.node:
        node.input[:] = ["before" if name == "loss" else name for name in node.input]
    assert "depends on it too" in refused("AMP215", model, seed="seed")
    assert "would protect nothing" in refused("AMP215", model)


def test_losses_that_are_none():
    assert "which is one of its outputs" in refused("AMP213", joint(), loss="cross_entropy")
    assert "which is one of its outputs" in refused("AMP213", joint(), loss="gradient:w1")
    model = joint()
    model.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3]))
    assert "not a float32 scalar" in refused("AMP213", model, loss="y")
    model.graph.output.append(helper.make_tensor_value_info("second", TensorProto.FLOAT, []))
    model.graph.node.append(helper.make_node("ReduceMax", ["y"], ["second"], keepdims=0))
    assert "may each be the loss" in refused("AMP213", model)
    assert trajectory(build(model, loss="loss"), 2) == trajectory(build(regression(), loss="loss"), 2)
    del model.graph.output[0], model.graph.output[-1]
    assert "no output is a float scalar" in refused("AMP213", model)


def test_a_folded_copy_of_a_weight_is_refused():
    """The backward of the product with w2 reads its transpose: as torch exports it with constants folded."""
    model = joint()
    [reader] = [
        n for n in model.graph.node if n.op_type in ("MatMul", "Gemm") and "w2" in n.input and "h" not in n.input
    ]
    array = weights()["w2"]
    stored = array if reader.op_type == "Gemm" else np.ascontiguousarray(array.T)
    model.graph.initializer.append(numpy_helper.from_array(stored, "folded"))
    reader.input[list(reader.input).index("w2")] = "folded"
    assert "a copy of parameter 'w2'" in refused("AMP215", model)


def test_two_outputs_for_one_parameter():
    model = joint()
    model.graph.output.append(helper.make_tensor_value_info("w1.grad", TensorProto.FLOAT, WEIGHTS["w1"]))
    model.graph.node.append(helper.make_node("Identity", ["gradient:w1"], ["w1.grad"]))
    assert "may both be the gradient" in refused("AMP215", model)
    assert build(model, gradients={"w1": "w1.grad"}).parameters == list(WEIGHTS)
