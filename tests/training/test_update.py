"""The update's graph: what is moved together or in place, what it costs in nodes and passes, and the same numbers."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from ampgraph.api.build_step import build_training_step
from ampgraph.training.run import binding as bindings
from ampgraph.training.run.binding import _session_options
from ampgraph.training.run.trainer import Trainer
from ampgraph.training.step import flat_update, gradient_graph, norms_together, update, update_graph, vectors
from ampgraph.training.step.aliasing import in_place
from ampgraph.training.step.cut import cut
from ampgraph.training.step.loss_scale import DynamicLossScale
from ampgraph.training.step.optimizers import SGD, AdamW
from ampgraph.training.step.state_tensors import StateTensor
from ampgraph.training.step.training_step import TrainingStep, session_model
from onnx_text import parse
from present import present
from training.nets import Runner, batches, blobs, layers, linear_step, regression, update_nodes
from training.test_cut import bits, same_bits
from training.test_parallel import trained as by_ranks

FORMS = {
    "sgd": "sgd:lr=0.1",
    "momentum": "sgd:lr=0.05,momentum=0.9,nesterov=yes,weight_decay=0.01",
    "adam": "adam:lr=0.01,weight_decay=0.02",
    "adamw": "adamw:lr=0.01",
    "groups": ["b*=adamw:lr=0.02,weight_decay=0", "*=adamw:lr=0.01"],
}


def trained(monkeypatch, limit, **options):
    """Parameters, averages and losses after 30 steps, two of which overflow."""
    monkeypatch.setattr(flat_update, "ON_CPU", limit)
    monkeypatch.setattr(flat_update, "ELSEWHERE", limit)
    step = build_training_step(regression(), loss="loss", **options)
    run = Trainer(step, "cpu", strict=options["level"] != "O0", threads=1)
    for number, batch in enumerate(batches(30)):
        run.step({**batch, "x": batch["x"] * np.float32(1e30)} if number in (4, 20) else batch)
    kept = [entry.name for entry in step.layout.of("parameter", "average", "scale", "counter")]
    return step, {name: run.value(name).tobytes() for name in kept}


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("level", ["O0", "O2", "O3"])
@pytest.mark.parametrize("form", FORMS)
def test_together_is_as_one_by_one_to_the_bit(form, level, target, monkeypatch):
    """Also over steps that overflow, with a running average and low parameters."""
    options = {"optimizer": FORMS[form], "level": level, "loss_scale": "dynamic:init=1024", "ema": 0.9}
    options["target"] = target
    step, apart = trained(monkeypatch, 0, **options)
    flat, together = trained(monkeypatch, 1 << 20, **options)
    assert together == apart
    slots = [len(found.layout.of("slot")) for found in (flat, step)]
    assert slots[0] < slots[1] or form == "sgd"


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_an_overflow_leaves_all_as_it_was(target, monkeypatch):
    monkeypatch.setattr(flat_update, "ON_CPU", 1 << 20)
    step = build_training_step(
        regression(), loss="loss", target=target, level="O0", optimizer="adamw:lr=0.1", loss_scale="dynamic:init=1024"
    )
    run = Runner(step)
    run.state["w1"] = np.copysign(np.zeros_like(run.state["w1"]), -1)  # -0.0 too
    before = {e.name: run.state[e.name].tobytes() for e in step.layout.of("parameter", "slot")}
    [batch] = batches(1)
    run({**batch, "t": batch["t"] * np.float32(np.inf)})
    assert {name: run.state[name].tobytes() for name in before} == before


@pytest.mark.parametrize("level", ["O0", "O2", "O3"])
def test_nodes_do_not_grow_with_the_number_of_parameters(level):
    """Nor those of Casts. A matrix is read through a Reshape, and so is its gradient; but not where low ones lie side
    by side as rows, all behind a Reshape, and many of one width are taken apart as rows by a Split of their own."""
    few, many = layers(2, level=level), layers(20, level=level)
    split = Counter({"Split": level == "O2"})
    assert update_nodes(few) + split == update_nodes(many)
    reshapes = [sum(node.op_type == "Reshape" for node in step.model.graph) for step in (few, many)]
    assert (reshapes[1] - reshapes[0] < 0) if level == "O2" else (reshapes[1] - reshapes[0] == 2 * 18)


@pytest.mark.slow
def test_o2_has_few_nodes_more_than_o0():
    """With a loss scale in both, or in neither: Casts, and what puts low tensors together."""
    source = Path(__file__).resolve().parents[2] / "models" / "digits_cnn_forward.onnx"
    options: dict[str, Any] = {"loss": "cross_entropy", "optimizer": "adamw", "clip_norm": 1.0, "batch": 64}
    for scale in ("dynamic", None):
        wide, low = (build_training_step(source, level=level, loss_scale=scale, **options) for level in ("O0", "O2"))
        assert len(low.model.graph) <= 1.05 * len(wide.model.graph)


def test_a_loss_scale_takes_so_many_nodes():
    """For any number of parameters."""
    for count in (2, 20):
        scaled, plain = (update_nodes(layers(count, loss_scale=scale)).total() for scale in ("dynamic", None))
        assert scaled - plain == 9


def test_on_cuda_nodes_run_in_the_order_of_the_graph(tmp_path):
    """ONNX Runtime's own order puts off the gradients of biases, and holds what they are summed of."""
    step = layers(6, batch=2)
    options = _session_options("cuda", strict=False, threads=1)
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "order")
    session = onnxruntime.InferenceSession(session_model(step)[0].SerializeToString(), options)
    batch = {"h0": np.ones((2, 4), np.float32), "labels": np.ones((2, 4), np.float32)}
    session.run(None, {**step.fed(step.initial_state), **batch})
    events = json.loads(Path(session.end_profiling()).read_text())
    ran = [event["name"].removesuffix("_kernel_time") for event in sorted(events, key=lambda event: event["ts"])]
    names = [node.name or "" for node in step.model.graph]
    written = [name for name in names if name.startswith("grad/") and name in set(ran)]
    assert [name for name in ran if name in set(written)] == written and len(written) > 20


def test_on_a_cpu_a_parameter_is_written_where_it_lies():
    """One node of its own, and one more where AdamW's decay reads it."""
    few, many = (update_nodes(layers(count, target="cpu", ema=None)) for count in (2, 20))
    assert many - few == Counter({"Sub": 36, "Mul": 36})


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_parameters_that_are_moved_together_take_no_second_place(target):
    step = layers(3, target=target)
    written = in_place(step.model.graph, step.layout.states)
    assert {entry.name for entry in step.layout.of("parameter", "slot", "average")} <= written


def test_the_state_has_its_shapes_and_the_graph_vectors(tmp_path):
    layers(3).save(tmp_path / "step.onnx")
    step = TrainingStep.load(tmp_path / "step.onnx")
    assert {step.initial_state[name].shape for name in ("w0", "ema/w2")} == {(4, 4)}
    fed = step.fed(step.initial_state)
    assert {fed[name].shape for name in ("w0", "ema/w2")} == {(16,)} and fed["b0"].shape == (4,)
    assert {name: array.shape for name, array in step.seen(fed).items()} == {
        name: array.shape for name, array in step.initial_state.items()
    }


def test_long_runs_are_cut_and_large_parameters_stay_alone(monkeypatch):
    step = build_training_step(regression(), loss="loss", optimizer="adam", level="O0", target="cpu")
    assert len(step.layout.of("slot")) == 2  # all four together
    monkeypatch.setattr(flat_update, "ON_CPU", 30)
    step = build_training_step(regression(), loss="loss", optimizer="adam", level="O0", target="cpu")
    slots = [entry.name for entry in step.layout.of("slot") if entry.name.startswith("exp_avg/")]
    assert slots == ["exp_avg/w1", "exp_avg/b1", "exp_avg/w2+1"]


def test_what_moves_alone_comes_before_the_run_that_it_stands_in():
    sizes = {"a": 4, "b": 20, "c": 5, "d": 0, "e": 2, "f": 10, "g": 9}
    values = [ir.Value(name=name, shape=ir.Shape([size])) for name, size in sizes.items()]
    runs = [[value.name for value in run] for run in flat_update._into_runs(values, 10)]
    assert runs == [["b"], ["d"], ["a", "c"], ["f"], ["e"], ["g"]]


def test_an_optimizer_of_the_user_moves_one_by_one():
    class Own(AdamW):
        """It may look at a tensor as a whole."""

    step = build_training_step(regression(), loss="loss", optimizer=Own(), level="O0", target="cpu")
    assert len(step.layout.of("slot")) == 8


WIDTH, MIDDLE, FEATURES = 8, 16, 3
PLACE = f"step/{update_graph.SCOPE}"
OPTIMIZERS = ("adamw:lr=0.1", "sgd:lr=0.1,momentum=0.9", "sgd:lr=0.1")
SAME = (0.9, 0.9, 0.9)


def built(text, arrays, **options) -> TrainingStep:
    model = parse(text, {name: array.astype(np.float32) for name, array in arrays.items()}, opset=20)
    return build_training_step(model, **{"loss": "loss", "optimizer": "sgd:lr=0.1", "level": "O0", **options})


def kinds(step: TrainingStep) -> Counter[str]:
    """Operators of the update."""
    return Counter(node.op_type for node in step.model.graph if (node.name or "").startswith("step/"))


def rows(layers=3, width=WIDTH, **options) -> TrainingStep:
    """Weights as torch keeps them, the other way round: the gradient of each is behind a Transpose."""
    blocks = [
        f"t{n} = Transpose (u{n}) m{n} = MatMul (x{n}, t{n}) a{n} = Add (m{n}, b{n}) r{n} = Relu (a{n}) "
        f"s{n} = Transpose (v{n}) o{n} = MatMul (r{n}, s{n}) x{n + 1} = MatMul (o{n}, w{n})"
        for n in range(layers)
    ]
    text = f"""g (float[2,4,{width}] x0) => (float loss) {{ {" ".join(blocks)}
        p = Mul (x{layers}, x{layers}) loss = ReduceMean <keepdims = 0> (p) }}"""
    random = np.random.default_rng(0)
    sizes = {"u": (MIDDLE, width), "v": (width, MIDDLE), "w": (width, width), "b": (MIDDLE,)}
    arrays = {f"{name}{n}": random.standard_normal(size) / 3 for n in range(layers) for name, size in sizes.items()}
    return built(text, arrays, loss_scale="static:64", **options)


def normed(momenta=SAME[:2], width=FEATURES, **options) -> TrainingStep:
    """Products with norms behind them."""
    blocks = [
        f"p{n} = MatMul (x{n}, w{n}) x{n + 1} = BatchNormalization <momentum = {m}> (p{n}, s{n}, b{n}, m{n}, v{n})"
        for n, m in enumerate(momenta)
    ]
    text = f"""g (float[N,{width}] x0) => (float loss) {{ {" ".join(blocks)} y = MatMul (x{len(momenta)}, w)
        p = Mul (y, y) loss = ReduceMean <keepdims = 0> (p) }}"""
    random, count = np.random.default_rng(0), range(len(momenta))
    arrays = {f"{name}{n}": random.random(width) + 0.5 for n in count for name in "sbmv"}
    arrays |= {name: random.standard_normal((width, width)) for name in ("w", *(f"w{n}" for n in count))}
    return built(text, arrays, **{"loss_scale": "dynamic:init=8", **options})


def streamed(layers=4, batch: int | None = 2, **options) -> TrainingStep:
    """A residual stream with a norm behind each block, and its mean square."""
    blocks = [
        f"m{n} = MatMul (h{n}, w{n}) a{n} = Add (h{n}, m{n}) "
        f"h{n + 1} = LayerNormalization <axis = -1> (a{n}, s{n}, b{n})"
        for n in range(layers)
    ]
    text = f"""g (float[N,4,{WIDTH}] h0) => (float loss) {{ {" ".join(blocks)} p = Mul (h{layers}, target)
        loss = ReduceMean <keepdims = 0> (p) }}"""
    random = np.random.default_rng(0)
    arrays = {f"w{n}": random.standard_normal((WIDTH, WIDTH)) / 3 for n in range(layers)}
    arrays |= {f"s{n}": random.random(WIDTH) + 0.5 for n in range(layers)}
    arrays |= {f"b{n}": random.standard_normal(WIDTH) / 4 for n in range(layers)}
    arrays["target"] = random.standard_normal((4, WIDTH))
    return built(text, arrays, **{"optimizer": "adamw", "level": "O2", "freeze": ["target"], "batch": batch, **options})


def states(step: TrainingStep, factors=(1, np.inf, 1)) -> list[dict[str, bytes]]:
    """The state after each of some batches, in strict runs; one overflows."""
    trainer, random, found = Trainer(step, "cpu", strict=True, threads=1), np.random.default_rng(1), []
    if "w" in trainer.state:  # -0.0 too
        trainer.load_state({**trainer.state, "w": np.copysign(np.zeros_like(trainer.state["w"]), np.float32(-1))})
    [value] = [value for value in step.model.graph.inputs if value.name == step.layout.inputs[0]]
    sizes = [dim if isinstance(dim, int) else 8 for dim in present(value.shape)]
    for factor in factors:
        trainer.step({present(value.name): random.standard_normal(sizes).astype(np.float32) * np.float32(factor)})
        kept = step.layout.of("parameter", "running", "scale", "counter")
        found.append({entry.name: trainer.value(entry.name).tobytes() for entry in kept})
    return found


Patch = tuple[Any, str, Any]
NEVER, NOTHING = (lambda *_: False), (lambda *_: None)
MECHANISMS: dict[str, tuple[Callable[..., TrainingStep], str, list[Patch]]] = {
    "rows of one width": (
        rows, "Reshape", [(vectors, "_row_width", lambda *_: 0), (vectors, "_rows_pay", NEVER)],
    ),
    "choices": (normed, "Where", [(update_graph, "_pays", NEVER)]),
    "running statistics": (partial(normed, SAME), "Sub", [(update, "_move_as_one", NEVER)]),
    "statistics of several momenta": (partial(normed, (0.9, 0.5, 0.9)), "", [(update, "_move_as_one", NEVER)]),
    "norms": (streamed, "LayerNormalization", [(gradient_graph, "run_norms_together", NOTHING)]),
}  # fmt: skip
"""By name: a step, the operator of which it has fewer, and what is patched to do without the mechanism."""


@pytest.mark.parametrize("level", ["O0", "O2"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS[:2])
@pytest.mark.parametrize("name", MECHANISMS)
def test_fewer_nodes_and_the_same_numbers(name, optimizer, level, monkeypatch):
    """Each mechanism beside what is built without it."""
    make, kind, patches = MECHANISMS[name]
    together = make(optimizer=optimizer, level=level)
    for patch in patches:
        monkeypatch.setattr(*patch)
    apart = make(optimizer=optimizer, level=level)
    few, many = (Counter(node.op_type for node in step.model.graph) for step in (together, apart))
    assert few[kind] < many[kind] or not kind
    assert states(together) == states(apart)


def test_rows_are_taken_apart_where_that_pays(monkeypatch):
    """Products of low weights too."""
    few = states(rows(level="O2"))
    monkeypatch.setattr(vectors, "LAUNCH", 0)
    assert states(rows(level="O2")) == few


def test_a_gradient_whose_source_has_no_known_shape_can_be_cut():
    """What is behind the view is the result of a Loop; the gradient itself has the shape of its parameter."""
    text = f"""g (float[5,{WIDTH}] x) => (float loss) {{ m = MatMul (x, u) a = Add (m, b)
        y = Loop (n, go, a) <body = turn (int64 i, bool c0, float[5,{WIDTH}] h) => (bool c1, float[5,{WIDTH}] o) {{
          c1 = Identity (c0) k = MatMul (h, v) o = Tanh (k) }}>
        z = Mul (y, d) p = Mul (z, z) loss = ReduceMean <keepdims = 0> (p) }}"""
    arrays = {name: np.eye(WIDTH, dtype=np.float32) for name in "uv"}
    arrays |= {"b": np.ones(WIDTH, np.float32), "d": np.ones(WIDTH, np.float32)}
    arrays |= {"n": np.array(2), "go": np.array(True)}
    model = parse(text, arrays, opset=20)
    step = build_training_step(model, loss="loss", optimizer="adamw", level="O0", target="cuda", loss_scale="static:8")
    assert sum(math.prod(shape) for shape in cut(step).summed.values()) == 2 * WIDTH**2 + 2 * WIDTH


@pytest.mark.parametrize(("optimizer", "saved"), list(zip(OPTIMIZERS, (3, 2, 1), strict=True)))
@pytest.mark.parametrize("level", ["O0", "O2"])
def test_a_choice_for_all_saves_nodes(optimizer, saved, level, monkeypatch):
    together = normed(optimizer=optimizer, level=level)
    monkeypatch.setattr(update_graph, "_pays", lambda *_: False)
    apart = normed(optimizer=optimizer, level=level)
    assert kinds(apart).total() - kinds(together).total() == saved and together.layout == apart.layout


FEW = [(optimizer, {"momenta": ()}) for optimizer in OPTIMIZERS]


@pytest.mark.parametrize(("optimizer", "more"), [*FEW, (OPTIMIZERS[0], {"width": 128})])
def test_where_one_by_one_is_no_dearer(optimizer, more):
    """Two vectors of slots and one of parameters take as many nodes; the bytes of large ones are worth more."""
    assert not any((node.name or "").startswith(PLACE) for node in normed(optimizer=optimizer, **more).model.graph)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_both_sides_of_a_cut_compute_the_same(optimizer, monkeypatch):
    """The gradients read parameters and statistics by themselves, and not out of all that is chosen."""
    together = normed(optimizer=optimizer)
    monkeypatch.setattr(update_graph, "_pays", lambda *_: False)
    one, other = cut(together), cut(normed(optimizer=optimizer))
    names = [{value.name for value in part.gradients.model.graph.inputs} for part in (one, other)]
    assert names[0] == names[1]
    assert (len(one.summed), one.moved.keys()) == (len(other.summed), other.moved.keys()) and len(one.moved) == 4
    feeds = [{"x0": np.random.default_rng(1).standard_normal((8, FEATURES)).astype(np.float32)}] * 2
    same_bits(together, feeds, strict=False)


class Own(AdamW):
    """It may look at a tensor as a whole."""


@pytest.mark.slow
@pytest.mark.parametrize("given", ["adamw", [("s*", Own()), ("*", "adamw")]], ids=["one", "own"])
def test_ranks_share_out_what_is_chosen_together(given):
    """Beside statistics, which all ranks hold, and an optimizer of the user, whose state is on one of them."""
    step, random = normed(optimizer=given, level="O2"), np.random.default_rng(1)
    assert any(PLACE in (node.name or "") for node in step.model.graph)
    feeds = [{"x0": random.standard_normal((8, FEATURES)).astype(np.float32) * np.float32(n)} for n in (1, 1e30, 1)]
    whole, parts = (by_ranks(step, feeds, strict=True, shard_optimizer=shard) for shard in (False, True))
    assert repr(whole[0]) == repr(parts[0]) and bits(whole[1]) == bits(parts[1])


@pytest.mark.parametrize("target", ["cuda", "cpu"])
@pytest.mark.parametrize("scale", [None, "dynamic"])
def test_nodes_do_not_grow_with_the_number_of_norms(scale, target):
    options = {"optimizer": "sgd", "loss_scale": scale, "target": target, "freeze": ["s*", "b*", "w?"]}
    few, many = (kinds(normed((0.9,) * count, **options)) for count in (1, 4))
    assert few == many and many["Split"] == 1


def test_running_statistics_keep_their_digits_where_all_is_low():
    step = normed(SAME, level="O3", optimizer="sgd")
    statistics = [states(step, (1,))[0][entry.name] for entry in step.layout.of("running")]
    found = [np.frombuffer(one, np.float32) for one in statistics]
    assert any((one != one.astype(np.float16)).any() for one in found)


@pytest.mark.parametrize("reader", ["Sign", "Ceil"])
def test_a_norm_without_a_gradient_tells_nothing_by_a_scale_that_it_shares(reader):
    """What its statistics overflow to is seen all the same."""
    text = f"""g (float[N,{FEATURES}] x, float[N,{FEATURES}] z) => (float loss) {{ x0 = MatMul (x, w)
        x1 = BatchNormalization (x0, s, b, m0, v0) x2 = BatchNormalization (z, s, b, m1, v1)
        d = {reader} (x2) p = Mul (x1, d) loss = ReduceMean <keepdims = 0> (p) }}"""
    arrays = {name: np.ones(FEATURES, np.float32) for name in ("s", "b", "m0", "v0", "m1", "v1")}
    model = parse(text, arrays | {"w": np.eye(FEATURES, dtype=np.float32)}, opset=20)
    runner = Runner(build_training_step(model, loss="loss", optimizer="sgd", level="O0", loss_scale="dynamic:init=8"))
    start, x = dict(runner.state), np.random.default_rng(1).standard_normal((4, FEATURES)).astype(np.float32)
    runner({"x": x, "z": np.where(x == x[1, 1], np.float32(1e30), x)})
    assert runner.state["step/scale"] == 4
    assert all(np.array_equal(runner.state[name], start[name]) for name in (*arrays, "w"))


@pytest.mark.parametrize("scale", [None, "static:8,skip=no", "static:8", "dynamic:init=8"])
def test_an_infinite_variance_spoils_no_parameter(scale):
    """Where nothing is skipped its gradient is 0; elsewhere the step is."""
    step = normed(loss_scale=scale)
    runner, x = Runner(step), np.random.default_rng(1).standard_normal((8, FEATURES)).astype(np.float32)
    runner.state["w0"] = runner.state["w0"] * np.float32(1e30)
    runner({"x0": x})
    assert all(np.isfinite(runner.state[name]).all() for name in step.parameters)


def norms(step: TrainingStep) -> int:
    return sum(node.op_type == "LayerNormalization" for node in step.model.graph)


@pytest.mark.parametrize(("level", "nodes"), [("O0", 1), ("O2", 2)])
def test_a_backward_runs_norms_by_one_node(level, nodes):
    """Whatever their number; forward norms are one by one. At O2 the first has float32 data, and its own node."""
    few, many = streamed(4, level=level), streamed(8, level=level)
    assert [norms(few), norms(many)] == [4 + nodes, 8 + nodes]
    assert sum(node.name == "grad/norms/LayerNormalization" for node in many.model.graph) == 1


def test_not_where_bytes_cost_more_or_sizes_are_not_known(monkeypatch):
    assert norms(streamed(batch=None, target="cuda")) == norms(streamed(target="cpu")) == 8
    monkeypatch.setattr(norms_together, "LAUNCH", 1 << 8)
    assert norms(streamed()) == 8 and norms(streamed(2)) == 4


@pytest.mark.parametrize(("longest", "count"), [(4 * 2 * 4 * WIDTH, 5), (4 * 2 * 4 * WIDTH - 1, 8)])
def test_norms_of_more_numbers_than_the_longest_all_stay_as_they_are(longest, count, monkeypatch):
    """The data of the four are of 2 x 4 x WIDTH numbers each."""
    limited = norms_together.run_norms_together
    monkeypatch.setattr(gradient_graph, "run_norms_together", lambda graph, _: limited(graph, longest))
    assert norms(streamed(4, level="O0")) == count


LAST = "n7 = LayerNormalization (f7, ones)"
OTHERS = [
    ((WIDTH,), LAST),
    ((2, 1, 1), LAST),  # a scale for each row
    ((WIDTH,), "n7 = LayerNormalization (n6, ones)"),  # of another's result
    ((WIDTH,), "c = Cast <to = 1> (f7) n7 = LayerNormalization (c, ones)"),
]


@pytest.mark.parametrize(("shape", "last"), OTHERS)
def test_norms_of_the_forward_that_one_node_may_not_compute(shape, last, monkeypatch):
    """Norms of the input times a constant, which no gradient passes, all with one scale of ``shape``."""
    random = np.random.default_rng(0)
    data = " ".join(f"f{n} = Mul (h0, k{n})" for n in range(8))
    each = " ".join(f"n{n} = LayerNormalization (f{n}, ones)" for n in range(7))
    text = f"""g (float[N,4,{WIDTH}] h0) => (float loss) {{ {data} {each} {last} m = MatMul (h0, w)
        y = Sum (m, {", ".join(f"n{n}" for n in range(8))}) p = Mul (y, y) loss = ReduceMean <keepdims = 0> (p) }}"""
    frozen = {f"k{n}": random.random(WIDTH) + 0.5 for n in range(8)} | {"ones": random.random(shape)}
    arrays, found = frozen | {"w": random.random((WIDTH, WIDTH))}, []
    for _ in range(2):
        found.append(states(built(text, arrays, freeze=list(frozen), batch=2), (1, 1)))
        monkeypatch.setattr(gradient_graph, "run_norms_together", lambda *_: None)
    assert found[0] == found[1]


SIZES = (67, 131)
FORWARD = f"g (float[8,{SIZES[0]}] x) => (float[8,{SIZES[1]}] y) {{ y = MatMul (x, w) }}"
DROPPED = "g (float[32,512] x) => (float loss) <float r = {0.25}, bool t = {1}> "
DROPPED += "{ a = Mul (x, w)  y = Dropout (a, r, t)  loss = ReduceMean <keepdims = 0> (y) }"
VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")


def passes(step, batch, size, tmp_path) -> Counter[str]:
    """Nodes that write ``size`` numbers and compute, by operator, in what ONNX Runtime makes of a step on the CPU."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(tmp_path / "optimised.onnx"), 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    proto, _ = session_model(step)
    onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    model = onnx.load(tmp_path / "optimised.onnx")
    nodes = {node.output[0]: node.op_type for node in model.graph.node if node.op_type not in VIEWS}
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in nodes)
    plain = onnxruntime.SessionOptions()
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), plain, providers=["CPUExecutionProvider"])
    made = session.run(list(nodes), {**step.fed(step.initial_state), **batch})
    return Counter(kind for kind, array in zip(nodes.values(), made, strict=True) if np.size(array) == size)


@pytest.mark.parametrize(
    "optimizer, count",
    [("sgd", 2), ("sgd:momentum=0.9", 4), ("sgd:momentum=0.9,nesterov=yes", 6), ("adam", 12), ("adamw", 13)],
)
def test_an_update_is_so_many_passes(optimizer, count, tmp_path):
    """None of them a copy; the gradient itself is one more."""
    model = parse(FORWARD, w=np.ones(SIZES, np.float32))
    step = build_training_step(model, loss="mse", optimizer=optimizer, level="O0")
    batch = {"x": np.ones((8, SIZES[0]), np.float32), "labels": np.ones((8, SIZES[1]), np.float32)}
    found = passes(step, batch, np.prod(SIZES), tmp_path)
    gradient = found.pop("Gemm", 0) + found.pop("MatMul", 0) + found.pop("FusedMatMul", 0)
    assert gradient == 1 and found.total() == count and not found["Identity"], found


def test_a_dropout_is_so_many_passes(tmp_path):
    """Four of int32 for the numbers, one that compares, the mask, and a product with it forwards and backwards."""
    model = parse(DROPPED, w=np.ones((512,), np.float32))
    step = build_training_step(model, loss="loss", optimizer="sgd", level="O0")
    found = passes(step, {"x": np.ones((32, 512), np.float32)}, 32 * 512, tmp_path)
    numbers = {"Mul": 2, "Add": 2, "GreaterOrEqual": 1, "Where": 1}
    around = {"Mul": 4}  # a, y, and their gradients
    assert found == Counter(numbers) + Counter(around), found


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
