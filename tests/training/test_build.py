"""Building training steps: losses, labels, what is a parameter, precision, batches of one size, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import helper, numpy_helper
from torch import nn

import ampgraph
from ampgraph.api.build_step import build_training_step
from ampgraph.core.errors import AmpError
from ampgraph.formats.onnx import io as onnx_io
from ampgraph.training.forward.parameters import parameter_names
from ampgraph.training.forward.read import SIGNATURE, fix_batch, read_forward, signature
from ampgraph.training.gradients import registry
from ampgraph.training.run.binding import GRAPH, Binding, CapturedBinding
from ampgraph.training.run.evaluation import trained_model
from ampgraph.training.run.options import RunOptions
from ampgraph.training.run.trainer import Trainer
from ampgraph.training.step.optimizers import SGD
from ampgraph.training.step.packed_forward import FORWARD, unpack
from ampgraph.training.step.training_step import ClassInput, StepLayout, TrainingStep
from onnx_text import parse
from present import present
from training.nets import BATCH, WEIGHTS, Runner, batches, regression, weights

MODELS = Path(__file__).resolve().parents[2] / "models"
CNN = MODELS / "digits_cnn_forward.onnx"


def linear(dims, weight=(6, 4), product="y = MatMul (x, w)", made=None, opset=20):
    """One product of data of some sizes and a weight ``w``."""
    sizes = ", ".join(str(dim) for dim in dims)
    made = ", ".join(str(dim) for dim in made or (*dims[:-1], weight[1]))
    head = f"g (float[{sizes}] x) => (float[{made}] y) {{ {product} }}"
    array = np.random.default_rng(2).standard_normal(weight).astype(np.float32) / 2
    return parse(head, opset=opset, w=array)


def build(model=None, **options):
    given = {"optimizer": "sgd:lr=0.5", "level": "O0", "loss": "loss", **options}
    return build_training_step(regression() if model is None else model, **given)


def refused(code, model=None, **options):
    with pytest.raises(AmpError) as caught:
        build(model, **options)
    assert caught.value.code == code and caught.value.hint, caught.value
    return str(caught.value)


def one_step(model, batch, reference, **options):
    """The loss and the weight after one step are torch's."""
    runner = Runner(build(model, **options))
    weight = torch.tensor(runner.state["w"]).double().requires_grad_()
    loss = reference(weight)
    loss.backward()
    told = runner(batch)[runner.step.layout.loss]
    assert told.shape == () and told.dtype == np.float32
    np.testing.assert_allclose(told, loss.item(), rtol=1e-5)
    np.testing.assert_allclose(runner.state["w"], (weight - 0.5 * present(weight.grad)).detach(), rtol=1e-4, atol=1e-6)
    return runner.step


def normal(*shape):
    return np.random.default_rng(4).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("dims", [(7, 6), (3, 5, 6), ("N", 6), ("N", "L", 6)])
def test_cross_entropy_of_rows(dims):
    shape = tuple({"N": 7, "L": 5}.get(dim, dim) for dim in dims)
    x, labels = normal(*shape), np.random.default_rng(5).integers(0, 4, shape[:-1])

    def reference(weight):
        scores = torch.tensor(x).double() @ weight
        return torch.nn.functional.cross_entropy(scores.reshape(-1, 4), torch.tensor(labels).reshape(-1))

    step = one_step(linear(dims), {"x": x, "labels": labels}, reference, loss="cross_entropy")
    assert (step.layout.labels, step.layout.classes, step.layout.inputs) == ("labels", 4, ("x", "labels"))
    [given] = [value for value in step.model.graph.inputs if value.name == "labels"]
    assert given.dtype == ir.DataType.INT64 and len(given.shape) == len(dims) - 1


def test_cross_entropy_of_pictures():
    x, labels = normal(2, 3, 4, 5), np.random.default_rng(5).integers(0, 4, (2, 4, 5))
    model = linear(("N", 3, 4, 5), (4, 3, 1, 1), "y = Conv (x, w)", ("N", 4, 4, 5))

    def reference(weight):
        scores = torch.nn.functional.conv2d(torch.tensor(x).double(), weight)
        return torch.nn.functional.cross_entropy(scores, torch.tensor(labels))

    step = one_step(model, {"x": x, "labels": labels}, reference, loss="cross_entropy")
    assert step.layout.classes == 4


@pytest.mark.parametrize("keep", [0, 1])
def test_a_named_loss(keep):
    model = linear(
        (7, 6), product=f"m = MatMul (x, w)  s = Mul (m, m)  y = ReduceMean <keepdims = {keep}> (s)", made=(1,)
    )
    shape = helper.make_tensor_value_info("y", 1, [1, 1] if keep else [])
    model.graph.output[0].CopyFrom(shape)
    x = normal(7, 6)
    step = one_step(model, {"x": x}, lambda weight: ((torch.tensor(x).double() @ weight) ** 2).mean(), loss="y")
    assert (step.layout.labels, step.layout.inputs) == ("", ("x",))


def test_an_input_that_is_called_labels_keeps_its_name():
    model = linear(("N", 6))
    model.graph.input[0].name = model.graph.node[0].input[0] = "labels"
    assert build(model, loss="mse").layout.labels == "labels_1"


def test_losses_that_are_none():
    assert "no loss is named" in refused("AMP213", regression(), loss=None)
    assert "did you mean 'cross_entropy'" in refused("AMP213", regression(), loss="crossentropy")
    assert "there are: cross_entropy, mse, loss" in refused("AMP213", regression(), loss="qqq")
    assert "not a float32 scalar" in refused("AMP213", linear((7, 6)), loss="y")
    assert "cannot take cross_entropy" in refused("AMP213", regression(), loss="cross_entropy")
    single = parse(
        """g (float[N,2] x) => (float[N,1] y) <float[2,1] w = {1, 2}>
        { y = MatMul (x, w) }""",
        opset=20,
    )
    assert "it has one class" in refused("AMP213", single, loss="cross_entropy")
    whole = linear((7, 6), product="m = MatMul (x, w)  y = Cast <to = 7> (m)")
    whole.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    for loss in ("mse", "cross_entropy", "y"):
        refused("AMP213", whole, loss=loss)


def test_freeze():
    assert build(regression(), freeze=["w*", "b1"]).parameters == ["b2"]
    assert "nothing is left" in refused("AMP211", regression(), freeze=["*"])
    assert "did you mean 'w1'" in refused("AMP305", regression(), freeze=["w11"])
    state = build(regression(), freeze=["w1"]).initial_state
    assert "w1" not in state and "w2" in state


def test_a_parameter_without_gradient_is_named():
    model = regression()
    model.graph.initializer.append(numpy_helper.from_array(normal(3), "lost"))
    assert "'lost'" in refused("AMP211", model)
    model.graph.initializer.append(numpy_helper.from_array(normal(3), "gone"))
    assert "'lost' and 1 more" in refused("AMP211", model)
    assert build(model, freeze=["lost", "gone"]).parameters == list(WEIGHTS)


def test_running_statistics_are_no_parameters():
    model = parse(
        """g (float[N,3,4] x) => (float loss)
        <float[3] scale = {1, 1, 1}, float[3] bias = {0, 0, 0},
         float[3] mean = {0, 0, 0}, float[3] variance = {1, 1, 1}> {
          y = BatchNormalization (x, scale, bias, mean, variance)
          a = Tanh (y)  loss = ReduceMean <keepdims = 0> (a)
        }""",
        opset=20,
    )
    step = build(model)
    assert step.parameters == ["scale", "bias"]
    assert [entry.name for entry in step.layout.of("running")] == ["mean", "variance"]


def test_weights_stored_low_are_refused():
    model = linear((7, 6))
    half = numpy_helper.to_array(model.graph.initializer[0]).astype(np.float16)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(half, "w"))
    for place in (model.graph.input[0], model.graph.output[0]):
        place.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    assert "float32 model" in refused("AMP205", model, loss="mse")


@pytest.mark.parametrize("options", [{}, {"loss_scale": "dynamic"}, {"loss_scale": "dynamic", "clip_norm": 1e6}])
def test_one_parameter_alone(options):
    """Its gradient is the only reader of the inverse scale, which ONNX Runtime wants to fuse."""
    x, labels = normal(7, 6), normal(7, 4)

    def reference(weight):
        return ((torch.tensor(x).double() @ weight - torch.tensor(labels)) ** 2).mean()

    one_step(linear(("N", 6)), {"x": x, "labels": labels}, reference, loss="mse", **options)


def mish():
    return linear((7, 6), product="m = MatMul (x, w)  s = Mish (m)  y = ReduceMean <keepdims = 0> (s)", made=(1,))


def scalar(model, name="y"):
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info(name, 1, []))
    return model


def test_a_missing_rule_is_named_and_can_be_declared(monkeypatch):
    monkeypatch.setattr(registry, "_RULES", {k: v for k, v in registry._RULES.items() if k != "Mish"})
    model = scalar(mish())
    model.graph.node[1].name = "the_mish"
    told = refused("AMP210", model, loss="y")
    assert "node 'the_mish'" in told and '@ampgraph.gradient("Mish")' in told

    @ampgraph.gradient("Mish")
    def wrong(b, node, g):
        return b.op("Mul", g, b.number(0))

    @ampgraph.gradient("Mish")
    def right(b, node, g):
        """x tanh(softplus x): tanh(s) + x (1 - tanh(s)^2) sigmoid(x)."""
        x = node.inputs[0]
        t = b.op("Tanh", b.op("Softplus", x))
        slope = b.op("Mul", b.op("Sub", b.number(1), b.op("Mul", t, t)), b.op("Sigmoid", x))
        return b.op("Mul", g, b.op("Add", t, b.op("Mul", x, slope)))

    x = normal(7, 6)
    reference = torch.nn.functional.mish
    one_step(model, {"x": x}, lambda weight: reference(torch.tensor(x).double() @ weight).mean(), loss="y")


def test_a_rule_of_the_user_goes_before_ours(monkeypatch):
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    batch = next(batches(1))
    before = Runner(build(regression()))
    before(batch)

    @ampgraph.gradient("Tanh")
    def nothing(b, node, g):
        return b.op("Mul", g, b.number(0))

    after = Runner(build(regression()))
    after(batch)
    np.testing.assert_array_equal(after.state["w1"], weights()["w1"])
    np.testing.assert_array_equal(after.state["w2"], before.state["w2"])
    assert (before.state["w1"] != weights()["w1"]).any()


def trained(step, count=5):
    runner = Runner(step)
    losses = [float(runner(batch)[step.layout.loss]) for batch in batches(count)]
    return losses, runner.state


def same(ours, theirs):
    (ours, state), (theirs, other) = trained(ours), trained(theirs)
    assert ours == theirs
    for name in WEIGHTS:
        np.testing.assert_array_equal(state[name], other[name])


@pytest.mark.parametrize("opset", [11, 13, 17])
def test_an_older_opset_is_lifted(opset):
    model = regression()
    model.opset_import[0].version = opset
    model.ir_version = 7
    onnx.checker.check_model(model, full_check=True)
    step = build(model)
    assert step.model.opset_imports[""] >= 18
    same(step, build(regression()))


def test_functions_are_inlined():
    model = regression()
    kept = [node for node in model.graph.node if node.output[0] not in ("m1", "a1")]
    body = [helper.make_node("MatMul", ["p", "q"], ["r"]), helper.make_node("Add", ["r", "s"], ["t"])]
    opsets = [helper.make_opsetid("", 20)]
    model.functions.append(helper.make_function("local", "Dense", ["p", "q", "s"], ["t"], body, opsets))
    model.opset_import.append(helper.make_opsetid("local", 1))
    del model.graph.node[:]
    model.graph.node.extend([helper.make_node("Dense", ["x", "w1", "b1"], ["a1"], domain="local"), *kept])
    onnx.checker.check_model(model, full_check=True)
    step = build(model)
    assert not step.model.functions
    same(step, build(regression()))


def test_mindir_and_steps_are_refused(tmp_path):
    assert "train_step" in refused("AMP104", MODELS / "digits_cnn.mindir")
    build(regression(), output=tmp_path / "step.onnx")
    assert "training step" in refused("AMP205", tmp_path / "step.onnx")


def test_the_model_that_is_given_stays_as_it_was(tmp_path):
    model = regression()
    before = model.SerializeToString(deterministic=True)
    build(model, level="O2")
    assert model.SerializeToString(deterministic=True) == before
    held = ir.from_proto(model)
    build(held, level="O3")
    assert ir.to_proto(held).SerializeToString(deterministic=True) == ir.to_proto(
        ir.from_proto(model)
    ).SerializeToString(deterministic=True)


class Plain(SGD):
    """An optimizer of the user."""


def test_an_optimizer_of_the_user():
    step = build(optimizer=Plain(0.5))
    assert step.layout.options["optimizer"] == "Plain:lr=0.5,momentum=0.0,nesterov=no,weight_decay=0.0"
    same(step, build())


NONE = [
    *(
        ("AMP322", "is not an optimizer", "optimizer", one)
        for one in (torch.optim.SGD([torch.ones(2)], 0.1), SGD, None, 0.1)
    ),
    *(("AMP320", "neither a policy nor", "loss_scale", one) for one in (1024, 2.0**16, True, [1])),
    *(
        ("AMP322", "not a positive number", "clip_norm", one)
        for one in ("1", True, -1, float("nan"), 1e-50, [1.0], 0.0)
    ),
    *(("AMP213", "is neither a name", "loss", one) for one in ([1], 1, {1: 2.0})),
    *(("AMP301", "", "batch", one) for one in (0, -1, 2.5, "many", True)),
    ("AMP322", "", "optimizer", "lion"),
    ("AMP320", "", "loss_scale", "sometimes"),
    ("AMP302", "", "level", "O7"),
]


@pytest.mark.parametrize(("code", "told", "option", "value"), NONE, ids=str)
def test_options_that_are_none(code, told, option, value):
    """Checked before anything is built."""
    assert told in refused(code, **{option: value})


def test_numbers_of_numpy_and_one_pattern_alone():
    rate: Any = np.float32(0.5)
    ours = build(optimizer=SGD(rate), clip_norm=np.float32(2), freeze="w*")
    theirs = build(optimizer=SGD(0.5), clip_norm=2, freeze=["w*"])
    assert ours.parameters == theirs.parameters == ["b1", "b2"] and ours.layout == theirs.layout


@pytest.mark.parametrize("rate", [1e39, "0.1", True, float("inf"), -0.1])
def test_what_is_no_learning_rate(rate):
    with pytest.raises(AmpError, match="AMP322.*lr="):
        SGD(rate)


WEIGHT = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)


def model(body, labels="int64[N] y", result="float loss"):
    return parse(f"g (float[N,4] x, {labels}) => ({result}) {{ {body} }}", opset=20, w=WEIGHT)


OWN = "a = MatMul (x, w)  loss = SoftmaxCrossEntropyLoss (a, y)"


def stepped(step, feeds):
    trainer = Trainer(step, "cpu", strict=step.layout.options["level"] != "O0")
    before = trainer.state
    result = trainer.step_checked(feeds)
    return result, [name for name, array in trainer.state.items() if array.tobytes() != before[name].tobytes()]


@pytest.mark.parametrize("level", ["O0", "O2"])
@pytest.mark.parametrize("added", [False, True])
def test_a_step_with_a_label_that_is_no_class_is_skipped(level, added):
    source = model("p = MatMul (x, w)  u = Identity (y)", result="float[N,3] p") if added else model(OWN)
    loss = "cross_entropy" if added else "loss"
    step = build(source, loss=loss, level=level, loss_scale="dynamic:init=1024")
    x = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    labels = np.array([0, 1, 2, 7, 0, 1, 2, 0])
    feeds = {"x": x, "y": labels} | ({"labels": labels} if added else {})
    result, moved = stepped(step, feeds)
    assert np.isnan(result.loss) and not result.finite and result.scale == 512
    assert moved == ["step/scale"]
    right = {name: np.clip(array, 0, 2) if name != "x" else array for name, array in feeds.items()}
    result, moved = stepped(step, right)
    assert result.finite and "w" in moved


def test_labels_of_a_loss_of_the_graph_are_refused_before_the_step_runs():
    """At O0 there is no scale, and nothing would leave out the step."""
    trainer = Trainer(build(model(OWN)), "cpu")
    x = np.ones((3, 4), np.float32)
    with pytest.raises(AmpError, match=r"AMP503.*label 3 at \[1\] of 'y' is not a class"):
        trainer.step({"x": x, "y": np.array([0, 3, 1])})
    assert np.isfinite(trainer.step({"x": x, "y": np.array([0, 2, 1])}).loss)


NUMBERS = """minus = Constant <value_ints = [-1]> ()  one = Constant <value_ints = [0]> ()
    two = Constant <value_ints = [8]> ()  a = MatMul (x, w)"""
ANOTHER = OWN.replace("loss =", "other =") + "  s = Mul (a, a)  loss = ReduceMean <keepdims = 0> (s)"
LABELS = [
    (OWN, "int64[N] y", "loss", ClassInput("y", 3, None)),
    (
        "a = MatMul (x, w)  l = LogSoftmax (a)  loss = NegativeLogLikelihoodLoss <ignore_index = -1> (l, y)",
        *("int32[N] y", "loss", ClassInput("y", 3, -1)),
    ),
    ("c = Cast <to = 7> (y)  r = Reshape (c, minus)", "int32[N,1] y", "loss", ClassInput("y", 3, None)),
    # computed, or read in part
    *((f"r = {made}", "int64[N] y, float[N] z", "loss", None)
      for made in ("Add (y, one)", "Slice (y, one, two)", "Cast <to = 7> (z)")),
    (ANOTHER, "int64[N] y", "loss", None),
    (ANOTHER, "int64[N] y", "other", ClassInput("y", 3, None)),
]  # fmt: skip


@pytest.mark.parametrize(("body", "labels", "loss", "known"), LABELS)
def test_what_a_step_knows_of_its_labels(body, labels, loss, known):
    body = body if "loss" in body else f"{NUMBERS}  {body}  loss = SoftmaxCrossEntropyLoss (a, r)"
    layout = build(
        model(body, labels, "float loss, float other" if "other" in body else "float loss"), loss=loss
    ).layout
    assert StepLayout.from_json(layout.to_json()) == layout
    assert layout.class_inputs == (() if known is None else (known,))


def test_an_added_loss_has_its_own_words():
    source = model("p = MatMul (x, w)  u = Identity (y)", result="float[N,3] p")
    layout = build(source, loss="cross_entropy").layout
    assert (layout.labels, layout.classes, layout.class_inputs) == ("labels", 3, ())


VECTORS = {"scale": [1.0, 0.5, 2.0], "shift": [0.1, 0, -0.1], "mean": [0.2, 0, -0.2], "variance": [1.0, 2.0, 0.5]}


def normed(mode=0):
    outputs = "n, new_mean, new_variance" if mode else "n"
    model = parse(
        f"""g (float[N,4] x, float[N,3] t) => (float loss) {{
          a = MatMul (x, w)  {outputs} = BatchNormalization <training_mode = {mode}> (a, scale, shift, mean, variance)
          d = Sub (n, t)  s = Mul (d, d)  loss = ReduceMean <keepdims = 0> (s)
        }}""",
        opset=20,
    )
    arrays = {"w": np.random.default_rng(2).standard_normal((4, 3)), **VECTORS}
    for name, array in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array, np.float32), name))
    return model


def batch(seed=0):
    random = np.random.default_rng(seed)
    return {name: random.standard_normal((8, size)).astype(np.float32) for name, size in (("x", 4), ("t", 3))}


def normed_step(model, level="O0", **options):
    given = {"optimizer": "sgd:lr=0.1,momentum=0.9", "loss_scale": "dynamic:init=1024", **options}
    return build(model, level=level, **given)


def bits(trainer):
    return {name: array.tobytes() for name, array in trainer.state.items() if not name.startswith("step/")}


@pytest.mark.parametrize("level", ["O0", "O2"])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 1e30])
@pytest.mark.parametrize("freeze", [[], ["w"], ["w", "scale"]])
def test_a_step_that_overflows_leaves_all_as_it_was(level, bad, freeze):
    """1e30: only the new variance overflows where the product is float32."""
    trainer = Trainer(normed_step(normed(), level, freeze=freeze), "cpu", strict=level != "O0")
    trainer.step(batch())
    before, poisoned = bits(trainer), batch(1)
    poisoned["x"][2, 1] = bad
    result = trainer.step(poisoned)
    assert not result.finite and result.scale == 512 and bits(trainer) == before
    assert trainer.step(batch(2)).finite
    now = bits(trainer)
    assert {"mean", "variance", "shift"} <= {name for name in now if now[name] != before[name]}


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("freeze", ["mean", "variance", "*"])
def test_frozen_statistics_stay_and_are_computed_with(mode, freeze):
    freeze = [*VECTORS] if freeze == "*" else freeze
    step = normed_step(normed(mode), optimizer="sgd:lr=0.1", freeze=freeze)
    trainer = Trainer(step, "cpu")
    assert not step.layout.of("running")
    feeds, stored = batch(), {v.name: v.const_value.numpy() for v in step.model.graph.initializers.values()}
    stored |= step.initial_state
    tensors = {name: torch.tensor(stored[name]).double() for name in ("w", *VECTORS)}
    tensors["w"].requires_grad_()
    x, t = (torch.tensor(feeds[name]).double() for name in "xt")
    scale, shift, mean, variance = (tensors[name] for name in VECTORS)
    made = ((x @ tensors["w"] - mean) / torch.sqrt(variance + 1e-5) * scale + shift - t) ** 2
    made.mean().backward()
    assert trainer.step(feeds).loss == pytest.approx(made.mean().item(), rel=1e-5)
    expected = tensors["w"].detach() - 0.1 * present(tensors["w"].grad)
    np.testing.assert_allclose(trainer.value("w"), expected, rtol=1e-4, atol=1e-6)
    exported = trained_model(step, trainer.state).graph.initializers
    for name in ("mean", "variance"):
        np.testing.assert_array_equal(present(exported[name].const_value).numpy(), np.array(VECTORS[name], np.float32))


class Unaveraged(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)
        self.last = nn.Linear(4, 1)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x))).mean((2, 3)))


@pytest.mark.slow
@pytest.mark.parametrize("level", ["O0", "O2"])
def test_a_module_without_running_statistics(level, tmp_path):
    """It normalizes by its batch, in the training and after it."""
    torch.manual_seed(0)
    module, path = Unaveraged(), tmp_path / "forward.onnx"
    x = torch.randn(8, 1, 6, 6)
    ampgraph.export_for_training(module, (x,), path)
    step = normed_step(path, level, loss="mse", optimizer="sgd:lr=0.1")
    assert not step.layout.of("running") and set(step.parameters) == set(dict(module.named_parameters()))
    trainer, optimizer = Trainer(step, "cpu", strict=level != "O0"), torch.optim.SGD(module.parameters(), 0.1)
    labels = torch.randn(8, 1)
    feeds = {"x": x.numpy(), "labels": labels.numpy()}
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(module(x), labels)
        loss.backward()
        optimizer.step()
        assert trainer.step(feeds).loss == pytest.approx(loss.item(), rel=1e-5 if level == "O0" else 1e-2)
    evaluated = nn.functional.mse_loss(module.eval()(x), labels).item()
    assert trainer.evaluate(feeds)["loss"] == pytest.approx(evaluated, rel=1e-4 if level == "O0" else 1e-2)


SHAPES = {"Shape", "Size"}


def small(batch: int | None = BATCH, **options: Any) -> TrainingStep:
    return build(optimizer="adam:lr=0.05", batch=batch, **{"level": "O2", **options})


@pytest.fixture(scope="module")
def cnn() -> dict[int | None, TrainingStep]:
    options: dict[str, Any] = {"loss": "cross_entropy", "optimizer": "adamw", "level": "O0"}
    return {batch: build_training_step(CNN, batch=batch, clip_norm=1.0, **options) for batch in (None, 4)}


def shapes(step: TrainingStep) -> list[str]:
    return [node.op_type for node in step.model.graph.all_nodes() if node.op_type in SHAPES]


@pytest.mark.slow
def test_no_shape_is_computed(cnn: dict[int | None, TrainingStep]) -> None:
    assert shapes(cnn[None]) and not shapes(cnn[4])
    assert len(list(cnn[4].model.graph)) < len(list(cnn[None].model.graph))


@pytest.mark.slow
def test_it_learns_the_same(cnn: dict[int | None, TrainingStep]) -> None:
    """Dropout, statistics of the batch and the update are those of the step for any batch."""
    random = np.random.default_rng(0)
    value = next(v for v in cnn[None].model.graph.inputs if v.name == cnn[None].layout.inputs[0])
    assert value.shape is not None
    sizes = [4, *(dim for dim in value.shape[1:] if isinstance(dim, int))]
    feeds: dict[str, np.ndarray] = {
        cnn[None].layout.inputs[0]: random.random(sizes, np.float32),
        "labels": np.arange(4),
    }
    trainers = [Trainer(step, "cpu", threads=1) for step in cnn.values()]
    losses = [[trainer.step(feeds).loss for _ in range(3)] for trainer in trainers]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    with pytest.raises(AmpError, match="AMP503"):
        trainers[1].step({name: array[:3] for name, array in feeds.items()})


def test_the_forward_graph_stays_open() -> None:
    step = small()
    forward = unpack(step.model.metadata_props[FORWARD], step.initial_state)
    fed = [value for value in forward.graph.inputs if not value.is_initializer()]
    assert fed and all(value.shape and isinstance(value.shape[0], ir.SymbolicDim) for value in fed)


@pytest.mark.parametrize(
    ("x", "t", "fixed"),
    [
        ("N", "N", (4, 4)),
        ("N", "?", (4, 4)),
        ("?", "?", (4, 4)),
        ("?", "N", (4, "N")),  # whatever it is, the first input does not say that it is the batch
        ("N", "M", (4, "M")),
        ("N", "3", (4, 3)),
        ("3", "?", (3, 4)),
    ],
)
def test_which_inputs_follow_the_batch(x: str, t: str, fixed: tuple[int | str, ...]) -> None:
    text = f"g (float[{x}, 2] x, float[{t}, 2] t) => (float[{x}, 2] y) {{ h = Relu (x)  y = Neg (h)  z = Neg (t) }}"
    model = onnx_io.deserialize(parse(text), None)
    fix_batch(model, 4)
    sizes = [value.shape[0] for value in model.graph.inputs if value.shape]
    assert tuple(size.value if isinstance(size, ir.SymbolicDim) else size for size in sizes) == fixed
    [result] = model.graph.outputs
    assert result.shape is not None and (result.shape[0] == 4) == (x == "N")  # an output follows a name alone


def test_an_axis_with_an_empty_name_has_none() -> None:
    """A file may say so: two such axes have nothing in common."""
    model = parse("g (float[?, ?] x) => (float[?, ?] y) { y = Neg (x) }")
    for dim in model.graph.input[0].type.tensor_type.shape.dim:
        dim.dim_param = ""
    opened = onnx_io.deserialize(model, None)
    fix_batch(opened, 4)
    [x] = opened.graph.inputs
    assert x.shape is not None and x.shape[0] == 4 and isinstance(x.shape[1], ir.SymbolicDim)


def test_a_fixed_batch_is_another() -> None:
    model = regression()
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = 8
    assert build(model, batch=8).layout.inputs
    with pytest.raises(AmpError, match="whose batch is fixed: 8"):
        build(model, batch=16)


class OnCpu(CapturedBinding):
    """The places and turns of a graph, on a device that records none; each step is run twice, as for recording."""

    def _with_provider_options(self, providers):
        return providers

    def _run_options(self, turn):
        self._session.run_with_iobinding(self._bindings[turn])
        return


def test_a_captured_step_asks_cuda_for_graphs_and_no_other_device() -> None:
    binding = CapturedBinding.__new__(CapturedBinding)
    binding.device = "cuda"
    asked: Any = binding._with_provider_options(["CUDAExecutionProvider", "CPUExecutionProvider"])
    (cuda, options), cpu = asked
    assert (cuda, cpu) == ("CUDAExecutionProvider", "CPUExecutionProvider") and options["enable_cuda_graph"] == "1"
    binding.device = "cpu"
    with pytest.raises(AmpError, match="AMP325.*cpu has no CUDA graphs"):
        binding._with_provider_options(["CPUExecutionProvider"])


def test_what_is_put_or_bound_elsewhere_is_recorded_anew() -> None:
    """A CUDA graph has the addresses that it was recorded with: no name of one is used for others."""
    step = small()
    binding, names = OnCpu(step, RunOptions("cpu", threads=1)), set[str]()
    for change in (lambda: binding.put(step.initial_state), lambda: binding.put(step.initial_state),
                   lambda: binding._rebind({})):  # fmt: skip
        change()
        new = [CapturedBinding._run_options(binding, turn).get_run_config_entry(GRAPH) for turn in (0, 1)]
        assert len({*new}) == 2 and names.isdisjoint(new)
        names.update(new)


@pytest.mark.parametrize("level", ["O0", "O2"])
def test_steps_in_places_of_their_own(level: str) -> None:
    step = small(level=level)
    plain, captured = (kind(step, RunOptions("cpu", threads=1)) for kind in (Binding, OnCpu))
    for binding in (plain, captured):
        binding.put(step.initial_state)
    for number, batch in enumerate(batches(5)):
        made, scale = plain.run(batch)
        found, other = captured.run(batch)
        assert {name: value.numpy() for name, value in made.items()} == {n: v.numpy() for n, v in found.items()}
        assert (scale and scale.numpy()) == (other and other.numpy())
        if number == 2 and step.layout.rates:
            for binding in (plain, captured):
                binding.replace({step.layout.rates: np.array([0.01], np.float32)})
    for entry in step.layout.states:
        np.testing.assert_array_equal(plain.get(entry.name), captured.get(entry.name))


def test_what_a_graph_needs_is_said() -> None:
    with pytest.raises(AmpError, match="cpu has no CUDA graphs"):
        Trainer(small(), "cpu", cuda_graph=True)
    with pytest.raises(AmpError, match="build the step with --batch N"):
        Trainer(small(None), "cpu", cuda_graph=True)
    with pytest.raises(AmpError, match="of a whole step on one device"):
        Trainer(small(), "cpu", cuda_graph=True, accumulate=2)


def names(body, inputs="float[N,4] x", **stored):
    model = parse(f"g ({inputs}) => (float[N,4] y) {{ {body} }}", opset=20)
    arrays = {name: np.asarray(array, np.float32) for name, array in stored.items()}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    return parameter_names(ir.from_proto(model))


EYE = np.eye(4)


def test_the_rule_finds_what_torch_calls_a_parameter():
    model = read_forward(MODELS / "digits_cnn_forward.onnx")
    told = parameter_names(model)
    assert signature(model) and len(told) >= 16
    for props in (model.graph.metadata_props, model.metadata_props):
        props.pop(SIGNATURE, None)
    assert not signature(model) and sorted(parameter_names(model)) == sorted(told)


def test_the_normalization_of_the_data_and_a_mask_are_not_trained():
    body = "c = Sub (x, mean)  d = Div (c, std)  a = MatMul (d, w)  b = Add (a, mask)  y = Add (b, bias)"
    given = {"w": EYE, "mean": [1, 2, 3, 4], "std": [1, 1, 1, 2], "mask": [[0, 0, -1e9, 0]], "bias": [0, 0, 1, 0]}
    assert names(body, **given) == ["w", "bias"]


def test_numbers_that_are_not_the_datas_normalization_are_trained():
    """Two numbers that are added; what is subtracted from no data, and data that are subtracted from a bias."""
    assert names("y = Add (x, b)", inputs="float[N,2] x", b=[0.5, 1]) == ["b"]
    assert names("h = Relu (x)  y = Sub (h, b)", b=[1, 2, 3, 4]) == ["b"]
    assert names("y = Sub (b, x)", b=[1, 2, 3, 4]) == ["b"]
    assert names("y = Concat <axis = 0> (x, none)", none=np.zeros((0, 4))) == []


@pytest.mark.parametrize("number", [-1e4, -65504, float("-inf"), float("nan")])
def test_a_mask_by_its_numbers(number):
    assert names("y = Add (x, mask)", mask=[0, 0, number, 0]) == []


def test_what_is_subtracted_from_a_result_is_trained():
    assert names("a = MatMul (x, w)  b = Sub (a, c)  y = Div (b, d)", w=EYE, c=[1] * 4, d=[2] * 4) == ["w", "c", "d"]
    assert names("a = Sub (x, c)  y = Mul (a, c)", c=[1, 2, 3, 4]) == ["c"]  # read elsewhere too


@pytest.mark.parametrize("view", ["Cast <to = 1> (x)", "Identity (x)", "Unsqueeze (x, zero)"])
def test_the_data_may_be_viewed_first(view):
    assert names(f"zero = Constant <value_ints = [0]> ()  v = {view}  y = Sub (v, mean)", mean=[1, 2, 3, 4]) == []


@pytest.mark.parametrize(
    "body, shape",
    [
        ("y = Gemm (x, w, b)", (1,)),
        ("a = MatMul (x, w)  y = Add (a, b)", (1,)),
        ("a = MatMul (x, w)  y = Add (b, a)", (1,)),
        ("s = Constant <value_ints = [1, 1]> ()  a = MatMul (x, w)  v = Reshape (b, s)  y = Add (a, v)", (1,)),
        ("a = MatMul (x, w)  y = PRelu (a, b)", (1,)),
        ("a = MatMul (x, w)  y = MatMul (a, b)", (1, 1)),
        ("a = MatMul (x, w)  y = LayerNormalization (a, b)", (1,)),
    ],
)
def test_a_weight_of_one_number_is_trained(body, shape):
    assert names(body, w=np.ones((4, 1)), b=np.ones(shape)) == ["w", "b"]


@pytest.mark.parametrize("body", ["y = Add (a, b)", "y = Mul (a, b)", "y = Pow (a, b)", "y = Max (a, b)"])
def test_another_constant_of_one_number_is_not(body):
    assert names(f"m = MatMul (x, w)  a = Abs (m)  {body}", w=EYE, b=[0.5]) == ["w"]


@pytest.mark.parametrize(
    "body, size",
    [
        ("e = Constant <value_floats = [0.0]> ()  y = Resize (x, e, c)", 2),
        ("b = Less (x, c)  y = Cast <to = 1> (b)", 4),
    ],
)
def test_what_gets_no_gradient_is_not_trained(body, size):
    assert names(body, c=np.ones(size)) == []


def test_tokens_positions_and_tables_are_trained():
    body = "e = Gather (table, ids)  p = Add (e, places)  c = Concat <axis = 0> (token, p)  y = Where (b, other, c)"
    given = {"table": EYE, "places": EYE, "token": [[1, 2, 3, 4]], "other": [1, 2, 3, 4]}
    assert names(body, "int64[N] ids, bool[N,4] b", **given) == list(given)


def test_running_statistics_are_not_trained():
    body = "y = BatchNormalization (x, w, c, m, v)"
    assert names(body, **{name: np.ones(4) for name in "wcmv"}) == ["w", "c"]


@pytest.mark.parametrize("opset", [18, 20, 21])
def test_the_type_of_a_group_normalization_is_that_of_its_data(opset):
    """onnx's inference tells nothing of it, and so nothing of what comes behind."""
    width = 4 if opset >= 21 else 2
    model = parse(
        """g (float[N,4,3] x) => (float[N,4,3] y) {
          n = GroupNormalization <num_groups = 2> (x, s, s)  h = Cast <to = 10> (n)  y = Cast <to = 1> (h)
        }""",
        opset=opset,
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones(width, np.float32), "s"))
    norm, down, _ = read_forward(model).graph
    assert [(v.dtype, list(present(v.shape))) for node in (norm, down) for v in node.outputs] == [
        (ir.DataType.FLOAT, ["N", 4, 3]),
        (ir.DataType.FLOAT16, ["N", 4, 3]),
    ]
