"""Optimizers in the graph against PyTorch's, and what they refuse."""

import numpy as np
import pytest
import torch

from ampgraph import AmpError
from ampgraph.api.build_step import build_training_step
from ampgraph.training.step.optimizers import SGD, Adam, AdamW, parse_optimizer, spelled
from present import present
from training.small_steps import Runner, batches, regression, torch_loss, weights

STEPS = 60
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


def trained_by_torch(make, clip=None, frozen=(), rates=None):
    parameters = {name: torch.tensor(array) for name, array in weights().items()}
    trained = [parameter.requires_grad_() for name, parameter in parameters.items() if name not in frozen]
    optimizer = make(trained)
    for number, batch in enumerate(batches(STEPS)):
        if rates is not None:
            optimizer.param_groups[0]["lr"] = float(rates[min(number, len(rates) - 1)])
        optimizer.zero_grad()
        torch_loss(parameters, batch).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(trained, clip)
        optimizer.step()
    return {name: parameter.detach().numpy() for name, parameter in parameters.items()}


def trained_by_us(optimizer, rates=None, **options):
    run = Runner(build_training_step(regression(), loss="loss", optimizer=optimizer, level="O0", **options))
    if rates is not None:
        run.state["step/learning_rates"] = np.array(rates, np.float32)
        run.state["step/last_rate"] = np.array(len(rates) - 1, np.int64)
    for batch in batches(STEPS):
        run(batch)
    return run.state


def assert_close(ours, reference):
    """Relative L2 over all parameters together."""
    rows = [(ours[name].ravel(), expected.ravel()) for name, expected in reference.items()]
    found, wanted = (np.concatenate(part).astype(np.float64) for part in zip(*rows, strict=True))
    assert np.linalg.norm(found - wanted) / np.linalg.norm(wanted) < 1e-6


@pytest.mark.parametrize("optimizer", CASES)
def test_sixty_steps_follow_torch(optimizer):
    assert_close(trained_by_us(optimizer), trained_by_torch(CASES[optimizer]))


@pytest.mark.parametrize("optimizer", ["sgd:lr=0.1,momentum=0.9", "adam:lr=0.01"])
@pytest.mark.parametrize("loss_scale", [None, "static:1024", "dynamic:init=65536"])
def test_clipping_by_the_norm_of_unscaled_gradients(optimizer, loss_scale):
    ours = trained_by_us(optimizer, clip_norm=0.3, loss_scale=loss_scale)
    assert_close(ours, trained_by_torch(CASES[optimizer], clip=0.3))


def test_frozen_parameters_stay():
    ours = trained_by_us("adam:lr=0.01", freeze=["w1", "b*"])
    reference = trained_by_torch(CASES["adam:lr=0.01"], frozen=("w1", "b1", "b2"))
    assert "w1" not in ours and "b1" not in ours
    assert_close(ours, {"w2": reference["w2"]})


def test_a_table_of_learning_rates():
    """Its last row holds for all further steps."""
    rates = np.linspace(0.1, 0.01, 40, dtype=np.float32)
    make = CASES["sgd:lr=0.1,momentum=0.9"]
    assert_close(trained_by_us("sgd:lr=0.1,momentum=0.9", rates), trained_by_torch(make, rates=rates))


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
    assert parse_optimizer(spelled(optimizer)) == optimizer


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("adm:lr=1", "unknown optimizer 'adm'"),
        ("adam:rate=1", "unknown option 'rate=1'"),
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
