"""Parameter groups, clipping by value and the running average of weights, against PyTorch's."""

import numpy as np
import pytest
import torch

from ampgraph import AmpError
from ampgraph.api.build_step import build_training_step
from ampgraph.training.run.trainer import Trainer
from ampgraph.training.step.groups import groups_of
from ampgraph.training.step.optimizers import SGD, Adam, AdamW
from training.small_steps import batches, regression, torch_loss, weights

STEPS = 40


def build(optimizer, **options):
    return build_training_step(regression(), loss="loss", optimizer=optimizer, **{"level": "O0", **options})


def trained_by_us(step, rates=None, count=STEPS):
    trainer = Trainer(step, threads=1, strict=True)
    if rates is not None:
        trainer.set_rates(rates)
    for batch in batches(count):
        trainer.step(batch)
    return trainer


def trained_by_torch(make, clip=None, rates=None, average=None):
    """``make``: parameters by name -> optimizers. ``rates``: tables, for each group of the first one."""
    parameters = {name: torch.tensor(array).requires_grad_() for name, array in weights().items()}
    optimizers = make(parameters)
    for number, batch in enumerate(batches(STEPS)):
        for group, table in zip(optimizers[0].param_groups, rates or (), strict=False):
            group["lr"] = float(table[min(number, len(table) - 1)])
        for optimizer in optimizers:
            optimizer.zero_grad()
        torch_loss(parameters, batch).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_value_(list(parameters.values()), clip)
        for optimizer in optimizers:
            optimizer.step()
        if average is not None:
            average(parameters)
    return {name: parameter.detach().numpy() for name, parameter in parameters.items()}


def assert_close(ours, reference, bound=1e-6):
    for name, expected in reference.items():
        assert np.linalg.norm(ours[name] - expected) / np.linalg.norm(expected) < bound, name


GROUPS = [("b*", AdamW(lr=0.02, weight_decay=0)), ("w2", AdamW(lr=0.005)), ("*", AdamW(lr=0.01, weight_decay=0.1))]


def three_groups(p):
    rows = [
        {"params": [p["b1"], p["b2"]], "lr": 0.02, "weight_decay": 0},
        {"params": [p["w2"]], "lr": 0.005},
        {"params": [p["w1"]], "lr": 0.01, "weight_decay": 0.1},
    ]
    return [torch.optim.AdamW(rows)]


def test_groups_are_those_of_torch():
    assert_close(trained_by_us(build(GROUPS)).state, trained_by_torch(three_groups))


def test_several_optimizers_under_one_loss_scale():
    def two(p):
        return [torch.optim.SGD([p["w1"], p["b1"]], 0.05, momentum=0.9), torch.optim.Adam([p["w2"], p["b2"]], 0.01)]

    step = build(["?1=sgd:lr=0.05,momentum=0.9", "*=adam:lr=0.01"], loss_scale="dynamic:init=1024")
    assert_close(trained_by_us(step).state, trained_by_torch(two))


@pytest.mark.parametrize("by", [None, "frozen"])
def test_a_frozen_group_stays_and_is_no_state(by):
    def rest(p):
        return [torch.optim.Adam([p["w2"], p["b2"]], 0.01)]

    trainer = trained_by_us(build([("?1", by), ("*", Adam(0.01))]))
    reference = trained_by_torch(rest)
    assert "w1" not in trainer.state and "b1" not in trainer.state
    assert_close(trainer.state, {name: reference[name] for name in ("w2", "b2")})


def test_every_group_has_its_table_of_rates():
    tables = [np.linspace(0.02, 0.001, n, dtype=np.float32) for n in (30, 40, 10)]
    step = build(GROUPS)
    patterns = [pattern for pattern, _ in step.layout.groups]
    ours = trained_by_us(step, dict(zip(patterns, [tables[2], tables[0], tables[1]], strict=True)))
    assert patterns == ["*", "b*", "w2"]  # in the order of their first parameter
    assert_close(ours.state, trained_by_torch(three_groups, rates=tables))


@pytest.mark.parametrize("loss_scale", [None, "static:1024"])
def test_clipping_by_value(loss_scale):
    def one(p):
        return [torch.optim.SGD(p.values(), 0.1, momentum=0.9)]

    step = build("sgd:lr=0.1,momentum=0.9", clip_value=0.02, loss_scale=loss_scale)
    assert_close(trained_by_us(step).state, trained_by_torch(one, clip=0.02))


def test_the_average_is_that_of_torch():
    torch_average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    kept: dict[str, torch.Tensor] = {}

    def average(parameters):
        with torch.no_grad():
            if not kept:
                kept.update({name: value.detach().clone() for name, value in parameters.items()})
            else:
                torch_average(list(kept.values()), list(parameters.values()), 1)

    trained_by_torch(lambda p: [torch.optim.Adam(p.values(), 0.01)], average=average)
    state = trained_by_us(build("adam:lr=0.01", ema=0.9)).state
    assert_close({name: state[f"ema/{name}"] for name in kept}, {name: value.numpy() for name, value in kept.items()})


def test_a_skipped_step_leaves_the_average():
    trainer = trained_by_us(build("adam", ema=0.9, loss_scale="static:1024"), count=2)
    before = trainer.state
    [batch] = batches(1)
    assert not trainer.step({**batch, "t": batch["t"] * np.float32(1e38)}).finite
    assert all(np.array_equal(before[name], array) for name, array in trainer.state.items())


@pytest.mark.parametrize(
    ("optimizer", "code", "told"),
    [
        ([("b*", SGD())], "AMP305", "no optimizer's pattern matches parameter 'w1', nor 1 more"),
        ([("c*", SGD()), ("*", SGD())], "AMP305", "pattern 'c\\*' matches no parameter"),
        ([("*", SGD()), ("b*", SGD())], "AMP305", "'b\\*' matches is matched by '\\*' before it"),
        ([("*", SGD()), ("*", Adam())], "AMP322", "'\\*' is given twice"),
        ([("*", "frozen")], "AMP322", "no group has an optimizer"),
        ([("b*", SGD()), "*"], "AMP322", "unknown optimizer"),
        ([SGD()], "AMP322", "a group of parameters is \\(pattern, optimizer\\)"),
        (["*.bias=adm:lr=1"], "AMP322", "unknown optimizer 'adm'"),
        ([], "AMP322", "no group has an optimizer"),
    ],
)
def test_groups_that_make_no_sense(optimizer, code, told):
    with pytest.raises(AmpError, match=f"{code}.*{told}") as caught:
        build(optimizer)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"clip_value": 0}, "clip_value=0 is not a positive number"),
        ({"clip_value": 1, "clip_norm": 1}, "cannot be had together"),
        ({"ema": 1}, "ema=1 is not a number between 0 and 1"),
    ],
)
def test_numbers_that_make_no_sense(options, told):
    with pytest.raises(AmpError, match=f"AMP322.*{told}"):
        build("sgd", **options)


def test_the_spelled_form_reads_back():
    groups = groups_of([("kernel:0=*", SGD(0.1, 0.9)), ("d.*", "shared"), ("*", None)])
    assert groups_of(str(groups).split("; ")) == groups


def test_groups_that_are_alike_are_one_to_the_bit():
    """At O2, with a step that overflows among them; a norm of all gradients would be summed in another order."""
    options = {"level": "O2", "target": "cuda", "loss_scale": "dynamic:init=65536,interval=4"}
    one, two = build("adam:lr=0.01", **options), build(["b*=adam:lr=0.01", "*=adam:lr=0.01"], **options)
    whole, parts = trained_by_us(one, count=20), trained_by_us(two, count=20)
    assert parts.scale == whole.scale and parts.updates == whole.updates < 20
    assert all(np.array_equal(whole.value(name), parts.value(name)) for name in one.parameters)
