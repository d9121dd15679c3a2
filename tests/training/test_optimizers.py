"""Optimizers, parameter groups, averages and schedules against PyTorch's, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ampgraph.api.build_step import build_training_step
from ampgraph.core.errors import AmpError
from ampgraph.training.run.schedules import (
    Schedule,
    parse_schedule,
    parse_schedules,
    rates,
)
from ampgraph.training.run.trainer import Trainer
from ampgraph.training.step.optimizers import SGD, Adam, AdamW, groups_of, parse_optimizer, spelled_optimizer
from present import present
from training.nets import WEIGHTS, Runner, batches, regression, torch_loss, weights

STEPS = 40
CASES = {
    "sgd:lr=0.1": lambda p: torch.optim.SGD(p, 0.1),
    "sgd:lr=0.1,momentum=0.9": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "sgd:lr=0.05,momentum=0.9,nesterov=yes": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
    "sgd:lr=0.1,momentum=0.9,weight_decay=0.01": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "adam:lr=0.01": lambda p: torch.optim.Adam(p, 0.01),
    "adam:lr=0.01,beta1=0.8,beta2=0.99,eps=1e-6,weight_decay=0.02": lambda p: torch.optim.Adam(
        p, 0.01, (0.8, 0.99), 1e-6, weight_decay=0.02
    ),
    "adamw:lr=0.01": lambda p: torch.optim.AdamW(p, 0.01),
    "adamw:lr=0.02,weight_decay=0.1": lambda p: torch.optim.AdamW(p, 0.02, weight_decay=0.1),
}


def trained_by_torch(make, clip=None, clip_value=None, frozen=(), rates=None, average=None):
    """``make``: parameters by name -> optimizers. ``rates``: tables, for each group of the first one."""
    parameters = {name: torch.tensor(array) for name, array in weights().items()}
    trained = {name: parameter.requires_grad_() for name, parameter in parameters.items() if name not in frozen}
    optimizers = make(trained)
    for number, batch in enumerate(batches(STEPS)):
        for group, table in zip(optimizers[0].param_groups, rates or (), strict=False):
            group["lr"] = float(table[min(number, len(table) - 1)])
        for optimizer in optimizers:
            optimizer.zero_grad()
        torch_loss(parameters, batch).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(trained.values(), clip)
        if clip_value is not None:
            torch.nn.utils.clip_grad_value_(trained.values(), clip_value)
        for optimizer in optimizers:
            optimizer.step()
        if average is not None:
            average(parameters)
    return {name: parameter.detach().numpy() for name, parameter in trained.items()}


def build(optimizer, **options):
    return build_training_step(regression(), loss="loss", optimizer=optimizer, **{"level": "O0", **options})


def trained_by_us(optimizer, rates=None, count=STEPS, **options):
    trainer = Trainer(build(optimizer, **options), threads=1, strict=True)
    if rates is not None:
        trainer.set_rates(rates)
    for batch in batches(count):
        trainer.step(batch)
    return trainer


def assert_close(ours, reference, apart=True):
    """Relative L2 of each parameter, or of all together."""
    rows = [(ours[name].ravel(), expected.ravel()) for name, expected in reference.items()]
    for found, wanted in rows if apart else [tuple(map(np.concatenate, zip(*rows, strict=True)))]:
        assert np.linalg.norm(found - wanted) / np.linalg.norm(wanted) < 1e-6


def one(optimizer):
    """The optimizer of torch over all parameters."""
    return lambda parameters: [CASES[optimizer](list(parameters.values()))]


@pytest.mark.parametrize("optimizer", CASES)
def test_forty_steps_follow_torch(optimizer):
    assert_close(trained_by_us(optimizer).state, trained_by_torch(one(optimizer)), apart=False)


@pytest.mark.parametrize("optimizer", ["sgd:lr=0.1,momentum=0.9", "adam:lr=0.01"])
@pytest.mark.parametrize("loss_scale", [None, "static:1024", "dynamic:init=65536"])
def test_clipping_by_the_norm_of_unscaled_gradients(optimizer, loss_scale):
    ours = trained_by_us(optimizer, clip_norm=0.3, loss_scale=loss_scale)
    assert_close(ours.state, trained_by_torch(one(optimizer), clip=0.3), apart=False)


def test_a_table_of_learning_rates():
    """Its last row holds for all further steps."""
    rates, name = np.linspace(0.1, 0.01, 30, dtype=np.float32), "sgd:lr=0.1,momentum=0.9"
    assert_close(trained_by_us(name, rates).state, trained_by_torch(one(name), rates=[rates]), apart=False)


def test_low_parameters_are_updated_in_float32():
    """An update of a tenth of a unit in the last place is not lost in the arithmetic, only in the storing."""
    step = build_training_step(
        regression(), loss="loss", optimizer=SGD(0.01), level="O3", loss_scale="static:256", target="cpu"
    )
    run = Runner(step)
    before = run.state["w1"]
    [batch] = batches(1)
    run(batch)
    parameters = {n: torch.tensor(a.astype(np.float16).astype(np.float32)) for n, a in weights().items()}
    for parameter in parameters.values():
        parameter.requires_grad_()
    torch_loss(parameters, batch).backward()
    exact = before.astype(np.float32) - 0.01 * present(parameters["w1"].grad).numpy()
    assert before.dtype == np.float16 and run.state["w1"].dtype == np.float16
    ulp = np.spacing(np.abs(exact).astype(np.float16)).astype(np.float32)
    assert (np.abs(run.state["w1"].astype(np.float32) - exact) <= ulp).all()


@pytest.mark.parametrize("optimizer", [SGD(0.1, 0.9, True, 0.01), Adam(0.002, 0.8, 0.95), AdamW(weight_decay=0.3)])
def test_the_spelled_form_reads_back(optimizer):
    assert parse_optimizer(spelled_optimizer(optimizer)) == optimizer
    groups = groups_of([("kernel:0=*", optimizer), ("d.*", "shared"), ("*", None)])
    assert groups_of(str(groups).split("; ")) == groups


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("adm:lr=1", "unknown optimizer 'adm'"),
        ("adam:rate=1", "unknown option 'rate'"),
        ("adam:lr=1,lr=2", "'lr' is given twice"),
        ("adam:lr=fast", "lr=fast is not a number"),
        ("sgd:lr=-1", "lr=-1.0 is not a number from 0"),
        ("sgd:lr=nan", "lr=nan is not a number"),
        ("sgd:lr=1e39", "lr=1e\\+39 is not a number from 0 that float32 holds"),
        ("adam:beta1=1", "beta1=1.0 is not in"),
        ("sgd:nesterov=yes", "nesterov needs momentum"),
        ("sgd:momentum=0.9,nesterov=perhaps", "neither yes nor no"),
    ],
)
def test_mistakes_are_told(text, told):
    with pytest.raises(AmpError, match=f"AMP322.*{told}") as caught:
        parse_optimizer(text)
    assert caught.value.hint


GROUPS = [("b*", AdamW(lr=0.02, weight_decay=0)), ("w2", AdamW(lr=0.005)), ("*", AdamW(lr=0.01, weight_decay=0.1))]


def three_groups(p):
    rows = [
        {"params": [p["b1"], p["b2"]], "lr": 0.02, "weight_decay": 0},
        {"params": [p["w2"]], "lr": 0.005},
        {"params": [p["w1"]], "lr": 0.01, "weight_decay": 0.1},
    ]
    return [torch.optim.AdamW(rows)]


def test_groups_are_those_of_torch():
    assert_close(trained_by_us(GROUPS).state, trained_by_torch(three_groups))


def test_several_optimizers_under_one_loss_scale():
    def two(p):
        return [torch.optim.SGD([p["w1"], p["b1"]], 0.05, momentum=0.9), torch.optim.Adam([p["w2"], p["b2"]], 0.01)]

    ours = trained_by_us(["?1=sgd:lr=0.05,momentum=0.9", "*=adam:lr=0.01"], loss_scale="dynamic:init=1024")
    assert_close(ours.state, trained_by_torch(two))


@pytest.mark.parametrize(
    ("optimizer", "more", "kept"),
    [
        ([("?1", None), ("*", Adam(0.01))], {}, ("w2", "b2")),
        ([("?1", "frozen"), ("*", Adam(0.01))], {}, ("w2", "b2")),
        ("adam:lr=0.01", {"freeze": ["w1", "b*"]}, ("w2",)),
    ],
)
def test_what_is_frozen_stays_and_is_no_state(optimizer, more, kept):
    state = trained_by_us(optimizer, **more).state
    assert "w1" not in state and "b1" not in state
    assert_close(state, trained_by_torch(one("adam:lr=0.01"), frozen=set(WEIGHTS) - set(kept)))


def test_every_group_has_its_table_of_rates():
    tables = [np.linspace(0.02, 0.001, n, dtype=np.float32) for n in (30, 40, 10)]
    patterns = ["*", "b*", "w2"]  # in the order of their first parameter
    assert patterns == [pattern for pattern, _ in build(GROUPS).layout.groups]
    ours = trained_by_us(GROUPS, dict(zip(patterns, [tables[2], tables[0], tables[1]], strict=True)))
    assert_close(ours.state, trained_by_torch(three_groups, rates=tables))


@pytest.mark.parametrize("loss_scale", [None, "static:1024"])
def test_clipping_by_value(loss_scale):
    name = "sgd:lr=0.1,momentum=0.9"
    ours = trained_by_us(name, clip_value=0.02, loss_scale=loss_scale)
    assert_close(ours.state, trained_by_torch(one(name), clip_value=0.02))


def test_the_average_is_that_of_torch():
    torch_average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    kept: dict[str, torch.Tensor] = {}

    def average(parameters):
        with torch.no_grad():
            if not kept:
                kept.update({name: value.detach().clone() for name, value in parameters.items()})
            else:
                torch_average(list(kept.values()), list(parameters.values()), 1)

    trained_by_torch(one("adam:lr=0.01"), average=average)
    state = trained_by_us("adam:lr=0.01", ema=0.9).state
    assert_close({name: state[f"ema/{name}"] for name in kept}, {name: value.numpy() for name, value in kept.items()})


def test_a_skipped_step_leaves_the_average():
    trainer = trained_by_us("adam", count=2, ema=0.9, loss_scale="static:1024")
    before = trainer.state
    [batch] = batches(1)
    assert not trainer.step({**batch, "t": batch["t"] * np.float32(1e38)}).finite
    assert all(np.array_equal(before[name], array) for name, array in trainer.state.items())


@pytest.mark.parametrize(
    ("optimizer", "code", "told"),
    [
        ([("b*", SGD())], "AMP305", "no optimizer's pattern matches parameter 'w1', nor 1 more"),
        ([("c*", SGD()), ("*", SGD())], "AMP305", "pattern 'c\\*' matches no parameter"),
        ([("*", SGD()), ("b*", SGD())], "AMP305", "'b\\*' matches nothing that '\\*' before it does not match"),
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
        ({"clip_value": 1, "clip_norm": 1}, "cannot be combined"),
        ({"ema": 1}, "ema=1 is not a number between 0 and 1"),
    ],
)
def test_numbers_that_make_no_sense(options, told):
    with pytest.raises(AmpError, match=f"AMP322.*{told}"):
        build("sgd", **options)


def test_groups_that_are_alike_are_one_to_the_bit():
    """At O2, with a step that overflows among them; a norm of all gradients would be summed in another order."""
    options = {"level": "O2", "target": "cuda", "loss_scale": "dynamic:init=65536,interval=4"}
    forms = "adam:lr=0.01", ["b*=adam:lr=0.01", "*=adam:lr=0.01"]
    whole, parts = (trained_by_us(form, count=20, **options) for form in forms)
    assert parts.scale == whole.scale and parts.updates == whole.updates < 20
    assert all(np.array_equal(whole.value(name), parts.value(name)) for name in WEIGHTS)


TWO_GROUPS = ["b*=adamw:lr=0.02,weight_decay=0", "*=sgd:lr=0.01,momentum=0.9"]
DATA = {name: np.concatenate([batch[name] for batch in batches(4)]) for name in ("x", "t")}
FIT = {"batch_size": 16, "seed": 5}


def make_trainer(optimizer=TWO_GROUPS, **options):
    step = build_training_step(regression(), loss="loss", optimizer=optimizer, level="O0", ema=0.9, **options)
    return Trainer(step, threads=1, strict=True)


def tables(trainer):
    rows, found = trainer.layout.groups, trainer.layout.rate_tables
    return {p: trainer.value(table) for (p, _), (table, _) in zip(rows, found, strict=True)}


def test_one_schedule_moves_each_group_by_its_own_rate():
    trainer = make_trainer()
    trainer.fit(DATA, epochs=2, lr_schedule="cosine:warmup=2", **FIT)
    found = tables(trainer)
    for pattern, rate in (("b*", 0.02), ("*", 0.01)):
        np.testing.assert_array_equal(found[pattern], rates("cosine:warmup=2", rate, 8))


def test_a_schedule_for_one_group_and_another_training_behind_it():
    trainer = make_trainer()
    for _ in range(2):
        trainer.fit(DATA, epochs=1, lr_schedule={"b*": "linear:end=0.5"}, **FIT)
    table = rates("linear:end=0.5", 0.02, 4)
    np.testing.assert_array_equal(tables(trainer)["b*"], np.concatenate([np.repeat(table[:1], 4), table]))
    np.testing.assert_array_equal(tables(trainer)["*"], np.full(8, 0.01, np.float32))


def test_going_on_from_a_checkpoint_ends_in_the_same_bytes(tmp_path):
    schedule = {"b*": "step:every=3,gamma=0.5", "*": "constant:warmup=3"}
    whole, first, second = make_trainer(), make_trainer(), make_trainer()
    whole.fit(DATA, epochs=3, lr_schedule=schedule, **FIT)
    first.fit(DATA, epochs=2, lr_schedule=schedule, checkpoint=tmp_path, **FIT)
    with pytest.raises(AmpError, match="AMP405.*is from a training with lr_schedule"):
        second.fit(DATA, epochs=3, lr_schedule="constant", checkpoint=tmp_path, resume=True, **FIT)
    second.fit(DATA, epochs=3, lr_schedule=schedule, checkpoint=tmp_path, resume=True, **FIT)
    for name, array in whole.state.items():
        np.testing.assert_array_equal(array, second.state[name], err_msg=name)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"c*": "cosine"}, "no group of parameters 'c\\*'"),
        ([0.1, 0.2], "one row of learning rates for a step with 2 groups"),
    ],
)
def test_schedules_that_fit_no_group(given, told):
    with pytest.raises(AmpError, match=f"AMP324.*{told}") as caught:
        make_trainer().fit(DATA, epochs=1, lr_schedule=given, **FIT)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], None),
        (["linear", "cosine:warmup=100"], "cosine:warmup=100"),
        (["head.*=cosine:warmup=2", "*=constant"], {"head.*": "cosine:warmup=2", "*": "constant"}),
        (["kernel:0=step:every=2"], {"kernel:0": "step:every=2"}),
    ],
)
def test_the_words_of_the_command_line(words, found):
    assert parse_schedules(words) == found


@pytest.mark.parametrize("words", [["a=cosine", "a=linear"], ["a=cosine", "linear"]])
def test_words_that_make_no_sense(words):
    with pytest.raises(AmpError, match="AMP324"):
        parse_schedules(words)


UPDATES, RATE = 50, 0.3


def _torch_rates(make, steps=UPDATES):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=RATE)
    scheduler = make(optimizer)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def _after_warmup(make, warmup):
    """torch's way to put one schedule behind another."""
    lr = torch.optim.lr_scheduler

    def build(optimizer):
        first = lr.LambdaLR(optimizer, lambda t: (t + 1) / warmup)
        return lr.SequentialLR(optimizer, [first, make(optimizer)], [warmup])

    return build


SCHEDULERS = {
    "constant": lambda o, n: torch.optim.lr_scheduler.LambdaLR(o, lambda t: 1.0),
    "linear": lambda o, n: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.0, n),
    "linear:end=0.25": lambda o, n: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.25, n),
    "cosine": lambda o, n: torch.optim.lr_scheduler.CosineAnnealingLR(o, n),
    "cosine:end=0.1": lambda o, n: torch.optim.lr_scheduler.CosineAnnealingLR(o, n, eta_min=0.1 * RATE),
    "step:every=7,gamma=0.5": lambda o, n: torch.optim.lr_scheduler.StepLR(o, 7, 0.5),
}


@pytest.mark.parametrize("text", SCHEDULERS)
@pytest.mark.parametrize("warmup", [0, 8])
def test_the_table_is_that_of_torch(text, warmup):
    make = SCHEDULERS[text]
    left = UPDATES - warmup
    built = (lambda o: make(o, left)) if not warmup else _after_warmup(lambda o: make(o, left), warmup)
    spelled = text if not warmup else f"{text}{',' if ':' in text else ':'}warmup={warmup}"
    table = rates(spelled, RATE, UPDATES)
    assert table.dtype == np.float32 and table.shape == (UPDATES,)
    np.testing.assert_allclose(table, _torch_rates(built), rtol=2e-6, atol=1e-8)


@pytest.mark.parametrize("text", [*SCHEDULERS, "cosine:warmup=3,end=0.5", "step"])
def test_a_schedule_reads_what_it_writes(text):
    schedule = parse_schedule(text)
    assert parse_schedule(str(schedule)) == schedule


def test_numbers_are_the_table_itself():
    assert rates([0.1, 0.2], RATE, UPDATES).tolist() == [np.float32(0.1), np.float32(0.2)]


@pytest.mark.parametrize(
    "text, word",
    [
        ("cosin", "did you mean 'cosine'"),
        ("cosine:", "one of"),
        ("cosine:warmup", "'warmup' is not KEY=VALUE"),
        ("cosine:warmup=x", "not a number"),
        ("cosine:warmup=-1", "whole number from 0"),
        ("cosine:gamma=2", "unknown option 'gamma'"),
        ("cosine:end=1,end=2", "given twice"),
        ("linear:end=inf", "not a number"),
        ("step:every=0", "whole number from 1"),
        ("cosine:warmup=50", "takes all 50 updates"),
        ("step:every=1,gamma=10", "update 41 is beyond what float32 holds"),
        ("step:every=1,gamma=1e30", "update 3 is beyond"),
        ("linear:end=1e300", "update 2 is beyond"),
    ],
)
def test_what_makes_no_sense_is_told(text, word):
    with pytest.raises(AmpError, match="AMP324") as found:
        rates(text, RATE, UPDATES)
    assert word in str(found.value) and found.value.hint


def test_powers_beyond_float64():
    """10 to the 400th, which Python itself refuses."""
    with pytest.raises(AmpError, match="AMP324.*update 41 is beyond") as found:
        rates("step:every=1,gamma=10", 0.1, 400)
    assert found.value.hint


@pytest.mark.parametrize(
    "table", [[], [[0.1]], [float("nan")], [-0.1], [1e39], [10**400], ["a"], [None], [[0.1], [0.1, 0.2]], {"a": 1}, 0.1]
)
def test_a_table_that_is_none_is_told(table):
    with pytest.raises(AmpError, match="AMP324"):
        rates(table, RATE, UPDATES)


def test_a_schedule_object_is_checked_too():
    with pytest.raises(AmpError, match="AMP324"):
        Schedule("cosine", warmup=1.5)  # type: ignore[arg-type]
    with pytest.raises(AmpError, match="AMP324"):
        Schedule("step", gamma="0.1")  # type: ignore[arg-type]
    with pytest.raises(AmpError, match="AMP324"):
        Schedule(["cosine"])  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers():
    of_numpy: dict[str, Any] = {"warmup": np.int64(3), "every": np.int32(5), "gamma": np.float64(0.5)}
    made = Schedule("step", **of_numpy)
    assert made == Schedule("step", warmup=3, every=5, gamma=0.5) and str(made) == "step:warmup=3,every=5,gamma=0.5"
