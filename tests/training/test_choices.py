"""What an overflow leaves as it was, chosen by one node where that is cheaper: the same numbers, the same parts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest

from ampgraph.api.build_step import build_training_step
from ampgraph.training.step import update_graph
from ampgraph.training.step.cut import cut
from ampgraph.training.step.optimizers import AdamW
from ampgraph.training.step.training_step import TrainingStep
from onnx_text import parse
from training.small_steps import Runner
from training.test_cut import bits, same_bits
from training.test_parallel import trained

FEATURES = 3
PLACE = f"step/{update_graph.SCOPE}"
OPTIMIZERS = ("adamw:lr=0.1", "sgd:lr=0.1,momentum=0.9", "sgd:lr=0.1")


def built(optimizer, width=FEATURES, norms=2, **options) -> TrainingStep:
    """Products with norms behind them."""
    blocks = [
        f"p{n} = MatMul (x{n}, w{n}) x{n + 1} = BatchNormalization (p{n}, s{n}, b{n}, m{n}, v{n})" for n in range(norms)
    ]
    text = f"""g (float[N,{width}] x0) => (float loss) {{ {" ".join(blocks)} y = MatMul (x{norms}, w)
        p = Mul (y, y) loss = ReduceMean <keepdims = 0> (p) }}"""
    random = np.random.default_rng(0)
    arrays = {f"{name}{n}": random.random(width) + 0.5 for n in range(norms) for name in "sbmv"}
    arrays |= {f"w{n}": random.standard_normal((width, width)) for n in range(norms)}
    arrays["w"] = random.standard_normal((width, width))
    model = parse(text, {name: array.astype(np.float32) for name, array in arrays.items()}, opset=20)
    given = {"loss_scale": "dynamic:init=8", "level": "O0", "loss": "loss", **options}
    return build_training_step(model, optimizer=optimizer, **given)


def one_by_one(monkeypatch, *given, **options) -> TrainingStep:
    with monkeypatch.context() as patch:
        patch.setattr(update_graph, "_pays", lambda *_: False)
        return built(*given, **options)


def kinds(graph: ir.Graph) -> Counter[str]:
    """Of the update."""
    return Counter(node.op_type for node in graph if (node.name or "").startswith("step/"))


def run(step: TrainingStep) -> list[dict[str, bytes]]:
    """The state after each of some batches; one overflows."""
    runner, random, found = Runner(step), np.random.default_rng(1), []
    runner.state["w"] = np.copysign(np.zeros_like(runner.state["w"]), -1)
    for factor in (1, np.inf, 1):
        runner({"x0": random.standard_normal((8, FEATURES)).astype(np.float32) * np.float32(factor)})
        found.append({name: array.tobytes() for name, array in runner.state.items()})
    return found


@pytest.mark.parametrize(("optimizer", "saved"), list(zip(OPTIMIZERS, (3, 2, 1), strict=True)))
@pytest.mark.parametrize("level", ["O0", "O2"])
def test_fewer_nodes_and_the_same_numbers(optimizer, saved, level, monkeypatch):
    together, apart = built(optimizer, level=level), one_by_one(monkeypatch, optimizer, level=level)
    more, fewer = (kinds(step.model.graph) for step in (apart, together))
    assert more.total() - fewer.total() == saved
    assert (together.layout, run(together)) == (apart.layout, run(apart))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_without_running_statistics(optimizer):
    """Two vectors of slots and one of parameters take as many nodes one by one."""
    names = [node.name or "" for node in built(optimizer, norms=0).model.graph]
    assert not any(name.startswith(PLACE) for name in names)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_both_sides_of_a_cut_compute_the_same(optimizer, monkeypatch):
    """The gradients read parameters and statistics by themselves, and not out of all that is chosen."""
    together, apart = built(optimizer), one_by_one(monkeypatch, optimizer)
    one, other = cut(together), cut(apart)
    assert {value.name for value in one.gradients.model.graph.inputs} == {
        value.name for value in other.gradients.model.graph.inputs
    }
    assert (len(one.summed), one.moved.keys()) == (len(other.summed), other.moved.keys()) and len(one.moved) == 4
    feeds = [{"x0": np.random.default_rng(1).standard_normal((8, FEATURES)).astype(np.float32)}] * 2
    same_bits(together, feeds, strict=False)


class Own(AdamW):
    """It may look at a tensor as a whole."""


@pytest.mark.slow
@pytest.mark.parametrize("given", ["adamw", [("s*", Own()), ("*", "adamw")]], ids=["one", "own"])
def test_ranks_share_out_what_is_chosen_together(given):
    """Beside statistics, which all ranks hold, and an optimizer of the user, whose state is on one of them."""
    step, random = built(given, level="O2"), np.random.default_rng(1)
    assert any(PLACE in (node.name or "") for node in step.model.graph)
    feeds = [{"x0": random.standard_normal((8, FEATURES)).astype(np.float32) * np.float32(n)} for n in (1, 1e30, 1)]
    whole, parts = trained(step, feeds, strict=True), trained(step, feeds, strict=True, shard_optimizer=True)
    assert repr(whole[0]) == repr(parts[0]) and bits(whole[1]) == bits(parts[1])


def test_large_ones_are_chosen_one_by_one():
    """Their bytes are worth more than launches."""
    names = [node.name or "" for node in built(OPTIMIZERS[0], width=128).model.graph]
    assert not any(name.startswith(PLACE) for name in names)
