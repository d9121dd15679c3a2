"""Losses against torch: added ones, several in one step, and gradient penalties."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import checker, numpy_helper, shape_inference
from torch import nn
from torch.nn import functional as F

import ampgraph
from ampgraph import GradientPenalty
from ampgraph.api.build_step import build_training_step
from ampgraph.core.errors import AmpError
from ampgraph.report.training import epoch_line
from ampgraph.training.forward.losses import (
    cross_entropy,
    loss_terms,
    lower_losses,
    mse,
    parse_losses,
    read_spelled,
    spelled_terms,
)
from ampgraph.training.gradients.builder import Builder
from ampgraph.training.gradients.driver import differentiate
from ampgraph.training.run.trainer import Trainer
from ampgraph.training.step.penalty import parse_penalty
from ampgraph.training.step.training_step import TrainingStep
from onnx_text import parse
from present import present
from share import FULL
from training.gradients import normal
from training.nets import BATCH, HIDDEN, INPUTS, WEIGHTS, batches, regression, torch_loss, weights

FLOAT = ir.DataType.FLOAT


def declared(shape: tuple[int, ...], dynamic: bool) -> ir.Shape:
    """Equal sizes have equal names; classes are known."""
    return ir.Shape([f"S{size}" if dynamic and size != 7 else size for size in shape])


def value(name: str, array: np.ndarray, dynamic: bool) -> ir.Value:
    kind = ir.TensorType(ir.DataType.from_numpy(array.dtype))
    return ir.Value(name=name, type=kind, shape=declared(array.shape, dynamic))


def computed(make, x: np.ndarray, y: np.ndarray, dynamic: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The loss and its gradient."""
    inputs = [value("x", x, dynamic), value("y", y, dynamic)]
    graph = ir.Graph(inputs, [], nodes=[], opset_imports={"": 20}, name="g")
    loss = make(Builder(graph, "loss"), *inputs)
    assert loss.dtype == FLOAT and list(loss.shape) == []
    found = differentiate(graph, loss, [inputs[0]])
    graph.outputs.extend([loss, *found])
    proto = ir.to_proto(ir.Model(graph, ir_version=9))
    checker.check_model(proto)
    return tuple(onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x, "y": y}))


def against(found: tuple[np.ndarray, ...], x: np.ndarray, function) -> None:
    tensor = torch.tensor(x.astype(np.float64), requires_grad=True)
    loss = function(tensor)
    loss.backward()
    np.testing.assert_allclose(found[0], loss.item(), rtol=1e-5)
    scale = present(tensor.grad).abs().max().item()
    np.testing.assert_allclose(found[1] / scale, present(tensor.grad).numpy() / scale, atol=1e-5)


def labels_of(shape: tuple[int, ...], dtype=np.int64) -> np.ndarray:
    labels = np.random.default_rng(3).integers(0, 7, shape).astype(dtype)
    labels.reshape(-1)[1] = -100
    return labels


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("shape", [(5, 7), (4, 7, 3), (2, 7, 3, 4)])
def test_cross_entropy(shape, dtype, dynamic):
    x, y = 3 * normal(*shape), labels_of((shape[0], *shape[2:]), dtype)
    found = computed(by_rows, x, y, dynamic)
    against(found, x, lambda x: F.cross_entropy(x, torch.tensor(y).long()))


def by_rows(b: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
    return cross_entropy(b, x, y, 1)


@pytest.mark.parametrize("dynamic", [False, True])
def test_classes_may_come_last(dynamic):
    x, y = normal(4, 3, 7), labels_of((4, 3))
    found = computed(lambda b, x, y: cross_entropy(b, x, y, 2), x, y, dynamic)
    against(found, x, lambda x: F.cross_entropy(x.transpose(1, 2), torch.tensor(y)))


def test_nothing_is_learnt_where_all_labels_are_ignored():
    loss, gradient = computed(by_rows, normal(3, 7), np.full(3, -100))
    assert loss == 0 and not gradient.any()


@pytest.mark.parametrize("bad", [7, -1, 2**40, -(2**40)])
def test_a_label_that_is_no_class_makes_the_loss_and_its_gradient_nan(bad):
    loss, gradient = computed(by_rows, normal(4, 7), np.array([0, bad, 2, -100]))
    assert np.isnan(loss) and np.isnan(gradient[1]).all() and np.isfinite(gradient[[0, 2, 3]]).all()


def test_large_logits_stay_numbers():
    x = np.array([[3e38, 0, -3e38, 0, 0, 0, 0]] * 2, np.float32)
    loss, gradient = computed(by_rows, x, np.array([0, 1]))
    assert np.isfinite(loss) and np.isfinite(gradient).all()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(5,), (4, 3), (2, 3, 4)])
def test_mse(shape, dynamic):
    x, y = normal(*shape), normal(*shape, seed=1)
    against(computed(mse, x, y, dynamic), x, lambda x: F.mse_loss(x, torch.tensor(y).double()))
    whole = y.round().astype(np.int64)
    against(computed(mse, x, whole, dynamic), x, lambda x: F.mse_loss(x, torch.tensor(whole).double()))


def lowered(body: str, weighted: bool, result: str) -> ir.Model:
    more = ", float[7] w" if weighted else ""
    text = f"g (float[N,7,S] x, int64[N,S] y{more}) => (float[{result}] z) {{ {body} }}"
    proto = parse(text)
    model = ir.from_proto(shape_inference.infer_shapes(proto))
    lower_losses(model.graph)
    assert not [node for node in model.graph if node.op_type.endswith("Loss")]
    return model


@pytest.mark.parametrize("ignored", [-100, 2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("kind", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
def test_nodes_that_an_exporter_wrote(kind, reduction, weighted, ignored):
    x, y, w = normal(4, 7, 3), labels_of((4, 3)), normal(7, seed=4, low=0.1)
    y[y == -100] = ignored
    operands = "x, y, w" if weighted else "x, y"
    body = f'z = {kind} <reduction = "{reduction}", ignore_index = {ignored}> ({operands})'
    model = lowered(body, weighted, "N,S" if reduction == "none" else "")
    graph, function = model.graph, F.cross_entropy if kind.startswith("Softmax") else F.nll_loss
    seed = ir.Value(name="seed", type=ir.TensorType(FLOAT), shape=graph.outputs[0].shape)
    graph.inputs.append(seed)
    graph.outputs.extend(differentiate(graph, graph.outputs[0], [graph.inputs[0]], seed))
    proto = ir.to_proto(model)
    checker.check_model(proto)
    start = normal(4, 3, seed=5) if reduction == "none" else np.array(1.5, np.float32)
    given = {"x": x, "y": y, "seed": start} | ({"w": w} if weighted else {})
    names = [output.name for output in graph.outputs]
    assert names[0] == "z"
    z, dx = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, given)
    tensor, weight = torch.tensor(x, requires_grad=True), torch.tensor(w) if weighted else None
    made = function(tensor, torch.tensor(y), weight, ignore_index=ignored, reduction=reduction)
    np.testing.assert_allclose(z, made.detach().numpy(), rtol=1e-5, atol=1e-6)
    (made * torch.tensor(start)).sum().backward()
    np.testing.assert_allclose(dx, present(tensor.grad).numpy(), atol=1e-5)


def test_logarithms_that_a_loss_node_gives_out():
    model = lowered("l, p = SoftmaxCrossEntropyLoss (x, y)  z = Add (l, l)", False, "")
    model.graph.outputs.append(next(node for node in model.graph if node.op_type == "LogSoftmax").outputs[0])
    x, y = normal(4, 7, 3), labels_of((4, 3)) % 7
    z, p = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString()).run(None, {"x": x, "y": y})
    np.testing.assert_allclose(p, F.log_softmax(torch.tensor(x), 1).numpy(), rtol=1e-5)
    np.testing.assert_allclose(z, 2 * F.cross_entropy(torch.tensor(x), torch.tensor(y)).item(), rtol=1e-5)


def test_labels_of_unknown_rank_are_told():
    proto = parse("g (float[N,7] x, int64[N] y) => (float z) { z = SoftmaxCrossEntropyLoss (x, y) }")
    model = ir.from_proto(proto)
    model.graph.inputs[1].shape = None
    with pytest.raises(AmpError, match="AMP212.*rank of 'y'"):
        lower_losses(model.graph)


def two_heads():
    """Logits, and two losses that are computed in the graph."""
    model = parse(
        f"""g (float[N,{INPUTS}] x, float[N,3] t) => (float[N,3] y, float near, float[1] small) {{
          m1 = MatMul (x, w1)  a1 = Add (m1, b1)  h = Tanh (a1)  m2 = MatMul (h, w2)  y = Add (m2, b2)
          d = Sub (y, t)  s = Mul (d, d)  near = ReduceMean <keepdims = 0> (s)
          q = Mul (w1, w1)  f = ReduceMean <keepdims = 0> (q)  k = Constant <value_ints = [1]> ()
          small = Reshape (f, k)
        }}""",
        opset=20,
    )
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights().items())
    return model


def build(loss, **options):
    return build_training_step(two_heads(), loss=loss, optimizer="sgd:lr=0.5", **{"level": "O0", **options})


def labelled():
    [batch] = batches(1)
    return {**batch, "labels": np.arange(len(batch["x"])) % 3}


def by_torch(batch, terms):
    p = {name: torch.tensor(array).requires_grad_() for name, array in weights().items()}
    y = torch.tanh(torch.tensor(batch["x"]) @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]
    parts = {
        "near": ((y - torch.tensor(batch["t"])) ** 2).mean(),
        "small": (p["w1"] ** 2).mean(),
        "cross_entropy": torch.nn.functional.cross_entropy(y, torch.tensor(batch["labels"])),
    }
    total = sum(weight * parts[name] for name, weight in terms.items())
    found = torch.autograd.grad(total, list(p.values()))
    after = {name: (p[name] - 0.5 * gradient).detach().numpy() for name, gradient in zip(p, found, strict=True)}
    return total.item(), {name: parts[name].item() for name in terms}, after


@pytest.mark.parametrize(
    "given",
    [["near=1.0", "small=0.5"], {"small": 2, "near": -0.25}, ["cross_entropy", "small=0.1", "near=3"], ["near=2"]],
)
def test_the_weighted_sum_and_its_parts(given, tmp_path):
    build(given, output=tmp_path / "step.onnx")
    step, terms, batch = TrainingStep.load(tmp_path / "step.onnx"), present_terms(given), labelled()
    trainer = Trainer(step, threads=1)
    result = trainer.step({name: batch[name] for name in step.layout.inputs})
    total, parts, after = by_torch(batch, terms)
    assert result.loss == pytest.approx(total, rel=1e-5) and result.parts == pytest.approx(parts, rel=1e-5)
    for name in WEIGHTS:
        np.testing.assert_allclose(trainer.value(name), after[name], atol=1e-6)


def present_terms(given):
    found = loss_terms(given)
    assert found is not None
    return found


def test_parts_are_float32_under_a_loss_scale():
    trainer = Trainer(build(["near", "small=0.5"], level="O2", target="cuda", loss_scale="static:1024"), strict=True)
    batch = labelled()
    result = trainer.step({"x": batch["x"], "t": batch["t"]})
    _, parts, _ = by_torch(batch, {"near": 1, "small": 0.5})
    assert result.parts == pytest.approx(parts, rel=2e-3)


def test_one_loss_has_no_parts():
    step = build("near")
    assert step.layout.parts == () and step.layout.options["loss"] == "near"
    assert build(["near", "small=0.5"]).layout.options["loss"] == "near=1.0, small=0.5"


def test_micro_batches_report_no_parts():
    trainer = Trainer(build({"near": 1, "small": 0.5}), threads=1, accumulate=2)
    whole = Trainer(build({"near": 1, "small": 0.5}), threads=1)
    batch = {name: array for name, array in labelled().items() if name != "labels"}
    result = trainer.step(batch)
    assert result.parts == {} and result.loss == pytest.approx(whole.step(batch).loss, rel=1e-6)


def test_an_epoch_tells_the_mean_of_every_part():
    trainer = Trainer(build({"near": 1, "small": 0.5}), threads=1)
    rows = list(batches(3))
    data = {name: np.concatenate([batch[name] for batch in rows]) for name in ("x", "t")}
    [epoch] = trainer.fit(data, epochs=1, batch_size=16).epochs
    assert epoch.loss == pytest.approx(epoch.parts["near"] + 0.5 * epoch.parts["small"], rel=1e-5)
    assert "small 0." in epoch_line(epoch, 1)


def test_the_validation_measures_the_sum():
    trainer = Trainer(build({"near": 1, "small": 0.5}), threads=1)
    batch = {name: array for name, array in labelled().items() if name != "labels"}
    measured = trainer.evaluate(batch)
    assert measured["loss"] == pytest.approx(trainer.step(batch).loss, rel=1e-5)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"near": 0}, "the weight of loss 'near' is 0"),
        (["near", "near=2"], "'near' is given twice"),
        ({"cross_entropy": 1, "mse": 1}, "would read the same labels"),
        ([], "is neither a name"),
        (["near", "far=2"], "--loss far is neither a loss nor an output"),
    ],
)
def test_terms_that_make_no_sense(given, told):
    with pytest.raises(AmpError, match=f"AMP213.*{told}") as caught:
        build(given)
    assert caught.value.hint


def test_the_words_of_the_command_line():
    assert parse_losses([]) is None and parse_losses(["mse", "near"]) == "near"
    assert parse_losses(["near", "small=0.5"]) == ["near", "small=0.5"]


def test_labels_that_count_for_nothing_are_not_shared_with_other_losses():
    trainer = Trainer(build(["cross_entropy", "near=1"]), threads=1, accumulate=2)
    batch = labelled()
    batch["labels"][0] = -100
    with pytest.raises(AmpError, match="AMP503.*other parts"):
        trainer.step(batch)
    with pytest.raises(AmpError, match="AMP325.*cross_entropy alone"):
        trainer.fit(labelled(), epochs=1, batch_size=10, last_batch="pad")


CRITIC = {name: array for name, array in weights(1).items() if name != "b2"}


def critic() -> onnx.ModelProto:
    """A critic of real and mixed samples, as a Wasserstein GAN trains it: the loss, and the scores of the mixed."""
    model = parse(
        f"""g (float[N,{INPUTS}] x, float[N,{INPUTS}] mixed) => (float loss, float[N,3] score) {{
          m1 = MatMul (x, w1)  a1 = Add (m1, b1)  h1 = Softplus (a1)  real = MatMul (h1, w2)
          m2 = MatMul (mixed, w1)  a2 = Add (m2, b1)  h2 = Softplus (a2)  score = MatMul (h2, w2)
          loss = ReduceMean <keepdims = 0> (real)
        }}""",
        opset=20,
    )
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in CRITIC.items())
    return model


def batch_of(names, seed=3):
    random = np.random.default_rng(seed)
    return {name: random.standard_normal((BATCH, INPUTS)).astype(np.float32) for name in names}


def moved(step, batch):
    """The loss, its parts, and the gradients: what SGD with a rate of 1 takes off."""
    trainer = Trainer(step, threads=1, strict=True)
    before = trainer.state
    result = trainer.step(batch)
    assert result.finite
    return result, {name: before[name] - trainer.value(name) for name in step.parameters}


def assert_gradients(ours, total, parameters, bound):
    found = torch.autograd.grad(total, list(parameters.values()))
    largest = max(float(gradient.abs().max()) for gradient in found)
    for name, gradient in zip(parameters, found, strict=True):
        assert np.abs(ours[name] - gradient.numpy()).max() <= bound * largest, name


def distance(norms, given):
    return (norms - given.target).abs() ** given.power


def of_regression(given, parameters, batch):
    loss = torch_loss(parameters, batch)
    gradients = torch.autograd.grad(loss, list(parameters.values()), create_graph=True)
    whole = torch.cat([gradient.reshape(-1) for gradient in gradients])
    return loss, distance(torch.linalg.vector_norm(whole, given.norm), given)


REGRESSION = [
    GradientPenalty(of="parameters", power=1),
    GradientPenalty(weight=0.5),
    GradientPenalty(weight=0.02, norm=1, power=1),
    GradientPenalty(weight=2, target=1),
]


def of_critic(given, parameters, batch):
    """As Gulrajani et al.: a norm for each mixed sample."""
    mixed = torch.tensor(batch["mixed"]).requires_grad_()

    def score(x):
        return torch.nn.functional.softplus(x @ parameters["w1"] + parameters["b1"]) @ parameters["w2"]

    [gradient] = torch.autograd.grad(score(mixed).sum(), [mixed], create_graph=True)
    return score(torch.tensor(batch["x"])).mean(), distance(gradient.norm(given.norm, dim=1), given).mean()


SCORES = [
    GradientPenalty(weight=10, of="mixed", output="score", target=1),
    GradientPenalty(weight=5, of="mixed", output="score"),
    GradientPenalty(weight=5, of="inputs", output="score", norm=1, power=1),
]


@pytest.mark.parametrize("loss_scale", [None, "static:1024"])
@pytest.mark.parametrize("given", [*REGRESSION, *SCORES], ids=str)
def test_penalties_are_those_of_torch(given, loss_scale):
    model, stored, reference = (
        (critic(), CRITIC, of_critic) if given.output else (regression(), weights(), of_regression)
    )
    batch = batch_of(("x", "mixed")) if given.output else next(batches(1))
    options = {"loss": "loss", "optimizer": "sgd:lr=1", "level": "O0", "loss_scale": loss_scale}
    result, ours = moved(build_training_step(model, penalty=given, **options), batch)
    parameters = {name: torch.tensor(array).requires_grad_() for name, array in stored.items()}
    loss, penalty = reference(given, parameters, batch)
    assert result.parts == pytest.approx({"loss": loss.item(), "penalty": penalty.item()}, rel=1e-5)
    assert result.loss == pytest.approx(loss.item() + given.weight * penalty.item(), rel=1e-5)
    assert_gradients(ours, loss + given.weight * penalty, parameters, 1e-5)


def test_an_inner_gradient_that_overflows_skips_the_step():
    step = build_training_step(
        regression(), loss="loss", optimizer="sgd", level="O2", target="cuda", penalty=REGRESSION[0],
        loss_scale="dynamic:init=2^40",
    )  # fmt: skip
    trainer = Trainer(step, strict=True, threads=1)
    before = trainer.state
    [batch] = batches(1)
    assert not trainer.step(batch).finite and trainer.scale == 2.0**39
    assert all(np.array_equal(before[name], trainer.value(name)) for name in step.parameters)


def test_a_gradient_of_zero_has_a_norm_that_can_be_differentiated():
    """As torch.norm, unlike pow(2).sum().sqrt()."""
    given = GradientPenalty(weight=10, of="mixed", output="score", target=1)
    step = build_training_step(critic(), loss="loss", optimizer="sgd:lr=1", level="O0", penalty=given)
    batch = batch_of(("x", "mixed"))
    batch["mixed"][3] = -1e4 * np.sign(CRITIC["w1"][:, 0])  # softplus of a column is 0 there
    model = {**CRITIC, "w1": np.repeat(CRITIC["w1"][:, :1], HIDDEN, 1)}
    trainer = Trainer(step, threads=1)
    trainer.load_state({**trainer.state, "w1": model["w1"]})
    trainer.step(batch)
    assert all(np.isfinite(trainer.value(name)).all() for name in step.parameters)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("weight=0", "weight=0.0 is not a positive number"),
        ("weight=big", "weight=big is not a number"),
        ("norm=3", "norm=3 is neither 1 nor 2"),
        ("of=x,target=1", "target=1 for the gradients of a mean loss"),
        ("scale=2", "unknown option 'scale'"),
        ("of=y", "the loss depends on no float input 'y'"),
        ("of=inputs", "of=inputs may be x or t"),
        ("of=x,output=scores", "the model has no output 'scores'"),
    ],
)
def test_penalties_that_make_no_sense(text, told):
    with pytest.raises(AmpError, match=f"AMP213.*{told}") as caught:
        build_training_step(regression(), loss="loss", optimizer="sgd", penalty=text)
    assert caught.value.hint


def test_micro_batches_share_only_what_is_a_mean_over_samples():
    means = [
        GradientPenalty(of=of, output=output).of_samples
        for of in ("parameters", "inputs", "x")
        for output in (None, "score")
    ]
    assert means == [False, False, False, True, False, True]
    options: dict[str, Any] = {"loss": "loss", "optimizer": "sgd:lr=1", "level": "O0"}
    with pytest.raises(AmpError, match="AMP325.*penalty is of the whole batch"):
        Trainer(build_training_step(regression(), **options, penalty="power=1"), accumulate=2)
    step = build_training_step(critic(), **options, penalty=SCORES[0])
    batch, whole, shared = batch_of(("x", "mixed")), Trainer(step, threads=1), Trainer(step, threads=1, accumulate=2)
    assert shared.step(batch).loss == pytest.approx(whole.step(batch).loss, rel=1e-6)
    np.testing.assert_allclose(shared.value("w1"), whole.value("w1"), atol=1e-6)


def test_the_spelled_form_reads_back():
    for given in (*REGRESSION, *SCORES):
        assert parse_penalty(str(given)) == given


SCALE = 256.0


class WithLoss(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, y):
        return F.cross_entropy(self.net(x), y)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.TransformerEncoderLayer(16, 2, 32, 0.0, "gelu", batch_first=True), nn.Linear(16, 5)

    def forward(self, x):
        return self.head(self.layer(x).mean(1))


NETWORKS = {
    "norm and gelu": (lambda: nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 5)), (6, 8)),
    "pooled": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, stride=2),
            nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(8, 5),
        ),
        (6, 3, 8, 8),
    ),
    "batch statistics": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Softplus(), nn.AvgPool2d(2), nn.Flatten(),
            nn.Linear(128, 5),
        ),
        (6, 3, 8, 8),
    ),
    "discriminator": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 4, 2, 1, bias=False), nn.LeakyReLU(0.2), nn.Conv2d(8, 16, 4, 2, 1, bias=False),
            nn.InstanceNorm2d(16, affine=True), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(256, 5),
        ),
        (6, 3, 16, 16),
    ),
    "transformer": (Encoder, (6, 7, 16)),
}  # fmt: skip


@pytest.fixture(scope="module", params=NETWORKS if FULL else ["pooled"])
def network(request, tmp_path_factory):
    make, shape = NETWORKS[request.param]
    torch.manual_seed(0)
    module, x, y = WithLoss(make()), torch.randn(*shape), torch.arange(shape[0]) % 5
    path = tmp_path_factory.mktemp("network") / "forward.onnx"
    ampgraph.export_for_training(module, (x, y), path, dynamic_batch=False, check=False)
    return module, path, x, y


def output_name(path):
    return onnx.load(path, load_external_data=False).graph.output[0].name


def of_network(module, x, y, of, low=False):
    """The loss with its penalty, and its gradients; ``low``: under autocast, and unscaled as in PyTorch's example."""
    module.train()
    scale = SCALE if low else 1.0
    with (
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),  # the only one with a second derivative
        torch.autocast("cpu", torch.float16, enabled=low),
    ):
        given = x.clone().requires_grad_(True)
        loss = module(given, y)
        wanted = list(module.parameters()) if of == "parameters" else [given]
        found = [g.float() / scale for g in torch.autograd.grad(loss * scale, wanted, create_graph=True)]
        if of == "parameters":
            penalty = torch.linalg.vector_norm(torch.cat([g.reshape(-1) for g in found]))
        else:
            penalty = found[0].reshape(len(x), -1).pow(2).sum(1).mean()
        total = loss + penalty
        gradients = torch.autograd.grad(total * scale, list(module.parameters()))
    rows = zip(module.named_parameters(), gradients, strict=True)
    return total.item(), {name: present(gradient).float().numpy() / scale for (name, _), gradient in rows}


def farthest(found, reference):
    """The largest error, over the largest gradient."""
    largest = max(float(np.abs(gradient).max()) for gradient in reference.values())
    return max(float(np.abs(found[name] - gradient).max()) for name, gradient in reference.items()) / largest


def by_us(path, x, y, **options):
    step = ampgraph.build_training_step(
        path, loss=output_name(path), optimizer="sgd:lr=1", target="cuda", loss_scale=f"dynamic:init={SCALE}", **options
    )
    trainer = ampgraph.Trainer(step, threads=1, strict=True)
    before = trainer.state
    result = trainer.step(dict(zip(step.layout.inputs, (x.numpy(), y.numpy()), strict=True)))
    assert result.finite
    return result.loss, {name: before[name] - trainer.value(name) for name in step.parameters}


@pytest.mark.slow
@pytest.mark.parametrize(("of", "power"), [("parameters", 1), ("inputs", 2)])
def test_of_a_network_as_torch(network, of, power):
    """O0 to 1e-5 of the largest gradient; O2 about as far from it as torch under autocast."""
    module, path, x, y = network
    penalty = ampgraph.GradientPenalty(of=of, power=power)
    total, reference = of_network(module, x, y, of)
    loss, found = by_us(path, x, y, penalty=penalty, level="O0")
    assert loss == pytest.approx(total, rel=1e-5) and farthest(found, reference) < 1e-5
    loss, found = by_us(path, x, y, penalty=penalty, level="O2")
    low, theirs = of_network(module, x, y, of, low=True)
    assert loss == pytest.approx(low, rel=5e-3)
    assert farthest(found, reference) < 1.5 * farthest(theirs, reference) + 1e-3


@pytest.mark.parametrize("terms", [{"mse": 1.0}, {"mse": 0.5}, {"a=b": 1.0, "c": 2.0}])
def test_the_text_of_a_loss_is_read_again(terms: dict[str, float]) -> None:
    assert read_spelled(spelled_terms(terms)) == terms
