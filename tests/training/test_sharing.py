"""Two steps that train by turns over shared state: a small GAN against torch, and on digits."""

import runpy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from onnx import numpy_helper

import ampgraph
from ampgraph import AmpError, Trainer
from onnx_text import parse
from share import FULL
from training.nets import batches, regression

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "gan_digits.py"


@dataclass(frozen=True)
class Sizes:
    noise: int = 4
    data: int = 6
    hidden: int = 8

    def weights(self) -> dict[str, np.ndarray]:
        random = np.random.default_rng(0)
        shapes = {"g_w1": (self.noise, self.hidden), "g_b1": (self.hidden,)}
        shapes |= {"g_w2": (self.hidden, self.data), "g_b2": (self.data,)}
        shapes |= {"d_w1": (self.data, self.hidden), "d_b1": (self.hidden,), "d_w2": (self.hidden, 1), "d_b2": (1,)}
        return {
            name: (random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
            for name, shape in shapes.items()
        }


SMALL, DIGITS = Sizes(), Sizes(16, 64, 64)
BATCH, ROUNDS, ADAM = 16, 20, ampgraph.Adam(0.01)
MADE = """m1 = MatMul (noise, g_w1)  a1 = Add (m1, g_b1)  h = Tanh (a1)  m2 = MatMul (h, g_w2)  made = Add (m2, g_b2)
          m3 = MatMul (made, d_w1)  a3 = Add (m3, d_b1)  h3 = Softplus (a3)
          m4 = MatMul (h3, d_w2)  of_made = Add (m4, d_b2)"""
LOSSES = {
    "g": "away = Neg (of_made)  each = Softplus (away)  loss = ReduceMean <keepdims = 0> (each)",
    "d": """m5 = MatMul (real, d_w1)  a5 = Add (m5, d_b1)  h5 = Softplus (a5)
          m6 = MatMul (h5, d_w2)  of_real = Add (m6, d_b2)
          away = Neg (of_real)  one = Softplus (away)  two = Softplus (of_made)
          each = Add (one, two)  loss = ReduceMean <keepdims = 0> (each)""",
}


def forward(name, sizes):
    real = f"float[N,{sizes.data}] real, " if name == "d" else ""
    text = f"g ({real}float[N,{sizes.noise}] noise) => (float loss) {{ {MADE} {LOSSES[name]} }}"
    model = parse(text, opset=20)
    model.graph.initializer.extend(numpy_helper.from_array(array, key) for key, array in sizes.weights().items())
    return model


def build(name, sizes=SMALL, adam=ADAM, **options):
    other = {"g": "d", "d": "g"}[name]
    groups = [(f"{other}_*", "shared"), ("*", adam)]
    given = {"optimizer": groups, "level": "O0", **options}
    return ampgraph.build_training_step(forward(name, sizes), loss="loss", **given)


def pair(sizes=SMALL, strict=True, **options):
    first = Trainer(build("g", sizes, **options), threads=1, strict=strict)
    return first, Trainer(build("d", sizes, **options), threads=1, strict=strict, share=first)


def rounds(count=ROUNDS, seed=1):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        real = rng.standard_normal((BATCH, SMALL.data)) * 0.3 + np.arange(SMALL.data)
        noise = rng.standard_normal((2, BATCH, SMALL.noise))
        yield real.astype(np.float32), noise[0].astype(np.float32), noise[1].astype(np.float32)


def by_torch():
    p = {name: torch.tensor(array).requires_grad_() for name, array in SMALL.weights().items()}
    parts = [[value for name, value in p.items() if name.startswith(part)] for part in ("g", "d")]
    of_g, of_d = (torch.optim.Adam(part, 0.01) for part in parts)

    def made(noise):
        return torch.tanh(noise @ p["g_w1"] + p["g_b1"]) @ p["g_w2"] + p["g_b2"]

    def score(x):
        return F.softplus(x @ p["d_w1"] + p["d_b1"]) @ p["d_w2"] + p["d_b2"]

    def moved(optimizer, loss):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    losses = []
    for real, first, second in (map(torch.tensor, row) for row in rounds()):
        both = F.softplus(-score(real)) + F.softplus(score(made(first).detach()))
        losses.append(moved(of_d, both.mean()))
        losses.append(moved(of_g, F.softplus(-score(made(second))).mean()))
    return losses, {name: value.detach().numpy() for name, value in p.items()}


def by_turns(generator, discriminator):
    losses = []
    for real, first, second in rounds():
        losses.append(discriminator.step({"real": real, "noise": first}).loss)
        losses.append(generator.step({"noise": second}).loss)
    return losses


def test_twenty_rounds_follow_torch():
    generator, discriminator = pair()
    losses, expected = by_torch()
    np.testing.assert_allclose(by_turns(generator, discriminator), losses, rtol=1e-5)
    for trainer in (generator, discriminator):
        for name, array in expected.items():
            np.testing.assert_allclose(trainer.value(name), array, atol=1e-6, err_msg=name)


def test_low_precision_with_a_loss_scale_each():
    generator, discriminator = pair(level="O2", target="cuda", loss_scale="dynamic:init=1024")
    losses, _ = by_torch()
    np.testing.assert_allclose(by_turns(generator, discriminator), losses, rtol=2e-2)
    assert generator.scale == discriminator.scale == 1024
    assert not [name for name in generator.state if name.startswith("exp_avg/d")]


def test_a_state_that_is_loaded_is_that_of_both(tmp_path):
    generator, discriminator = pair()
    by_turns(generator, discriminator)
    for name, trainer in (("g", generator), ("d", discriminator)):
        trainer.save(tmp_path / name)
    saved = {**generator.state, **discriminator.state}
    later = pair()
    for name, trainer in zip(("g", "d"), later, strict=True):
        trainer.load(tmp_path / name)
    assert by_turns(generator, discriminator) == by_turns(*later)
    discriminator.load_state({name: saved[name] for name in discriminator.state})
    np.testing.assert_array_equal(generator.value("g_w1"), saved["g_w1"])


def test_a_skipped_step_leaves_what_is_shared():
    generator, discriminator = pair(loss_scale="static:1024")
    by_turns(generator, discriminator)
    before = generator.state
    [(_, noise, _)] = rounds(1)
    assert not discriminator.step({"real": np.full((BATCH, SMALL.data), -1e38, np.float32), "noise": noise}).finite
    assert all(np.array_equal(before[name], array) for name, array in generator.state.items())


def test_what_cannot_be_shared():
    generator, discriminator = build("g"), build("d")
    frozen = build("g", optimizer=[("d_*", "frozen"), ("*", "adam")])
    with pytest.raises(AmpError, match="AMP405.*'d_w1' and 3 more is trained by one step and a constant"):
        Trainer(discriminator, share=Trainer(frozen))
    other = ampgraph.build_training_step(regression(), loss="loss", optimizer="sgd", level="O0")
    with pytest.raises(AmpError, match="AMP405.*no parameter of the same name"):
        Trainer(other, share=Trainer(generator))
    with pytest.raises(AmpError, match="AMP325.*is not a trainer"):
        Trainer(discriminator, share=generator)  # type: ignore[arg-type]
    with pytest.raises(AmpError, match="AMP325.*without accumulate"):
        Trainer(discriminator, accumulate=2, share=Trainer(generator))
    wide = ampgraph.build_training_step(regression(), loss="loss", optimizer="sgd", level="O3", target="cuda")
    with pytest.raises(AmpError, match="AMP405.*'w1' is float32"):
        Trainer(other, share=Trainer(wide, strict=True))


def test_one_step_twice_is_one_training_by_turns():
    """Two optimizers move the same parameters, each with its slots."""
    step = ampgraph.build_training_step(regression(), loss="loss", optimizer="sgd:lr=0.1", level="O0")
    alone, first = Trainer(step, threads=1), Trainer(step, threads=1)
    turns = [first, Trainer(step, threads=1, share=first)]
    third = Trainer(step, threads=1, share=turns[1])
    for number, batch in enumerate(batches(6)):
        assert alone.step(batch).loss == (*turns, third)[number % 3].step(batch).loss
    assert all(np.array_equal(alone.value(name), first.value(name)) for name in step.parameters)


@pytest.mark.slow
@pytest.mark.skipif(not FULL, reason="13 s of CPU; the same is trained above: ./test full")
@pytest.mark.filterwarnings("ignore")  # of torch's exporter, about itself
def test_the_example_comes_nearer(tmp_path):
    before, after = runpy.run_path(str(EXAMPLE))["main"](tmp_path, 20)
    assert after < before / 3


def trained_by_turns(*targets):
    """The common state after four rounds, the matrices trained by one step and the biases by the other."""
    forms = (["w*=adam:lr=0.05", "b*=shared"], ["b*=adam:lr=0.05", "w*=shared"])
    steps = [
        ampgraph.build_training_step(regression(), loss="loss", optimizer=form, level="O0", target=target)
        for form, target in zip(forms, targets, strict=True)
    ]
    one = Trainer(steps[0], "cpu", threads=1)
    two = Trainer(steps[1], "cpu", threads=1, share=one)
    for batch in batches(4):
        one.step(batch)
        two.step(batch)
    return [{name: trainer.value(name) for name in ("w1", "b1", "w2", "b2")} for trainer in (one, two)]


@pytest.mark.parametrize("targets", [("cuda", "cuda"), ("cuda", "cpu"), ("cpu", "cuda")])
def test_what_is_a_vector_in_one_graph_is_shared_with_one_that_has_its_shape(targets):
    expected, _ = trained_by_turns("cpu", "cpu")
    for found in trained_by_turns(*targets):
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array, strict=True)
