"""Models run step by step: caches found by their names, fed back to each side, errors by step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto

import ampgraph
from ampgraph import AmpError
from ampgraph.numerics.decoding import Decoder, decoder_of, decoding_of, find_pairs, sample_tokens
from ampgraph.numerics.inputs.states import CachePair
from ampgraph.numerics.pairs import MindirPair
from ampgraph.numerics.strict.session import StrictSession
from ampgraph.runtime.ports import Port
from cli_helpers import refused
from onnx_text import parse
from present import plain, present

WORDS, WIDTH = 24, 16


def decoder(past: str = "past_key_values.0.", now: str = "present.0.", gain: float = 1.0) -> ModelProto:
    """One layer of attention over a cache; with a ``gain`` its keys are as large as it says."""
    names = (f"{past}key", f"{past}value", f"{now}key", f"{now}value")
    k, v, nk, nv = (name.replace(".", "_DOT_") for name in names)
    rng = np.random.default_rng(0)
    weights = {n: (rng.standard_normal((WIDTH, WIDTH)) * WIDTH**-0.5).astype(np.float32) for n in ("wq", "wk", "wv")}
    weights |= {"table": rng.standard_normal((WORDS, WIDTH)).astype(np.float32), "gain": np.float32(gain)}
    weights["wl"] = rng.standard_normal((WIDTH, WORDS)).astype(np.float32)
    model = parse(
        f"""g (int64[1, T] input_ids, int64[1, S] attention_mask, float[1, P, {WIDTH}] {k}, float[1, P, {WIDTH}] {v})
            => (float[1, T, {WORDS}] logits, float[1, Q, {WIDTH}] {nk}, float[1, Q, {WIDTH}] {nv})
            <float one = {{1}}, float far = {{-10000}}, float small = {{0.01}}, int64[1] at = {{1}}> {{
            e = Gather (table, input_ids)
            q = MatMul (e, wq)
            key = MatMul (e, wk)
            large = Mul (key, gain)
            value = MatMul (e, wv)
            {nk} = Concat <axis = 1> ({k}, large)
            {nv} = Concat <axis = 1> ({v}, value)
            turned = Transpose <perm = [0, 2, 1]> ({nk})
            score = MatMul (q, turned)
            scaled = Div (score, gain)
            seen = Cast <to = 1> (attention_mask)
            hidden = Sub (one, seen)
            away = Mul (hidden, far)
            bias = Unsqueeze (away, at)
            masked = Add (scaled, bias)
            p = Softmax (masked)
            o = MatMul (p, {nv})
            r = Add (e, o)
            logits = MatMul (r, wl)
        }}""",
        weights,
    )
    return _renamed(model)


def _renamed(model: ModelProto) -> ModelProto:
    """Names with dots, which the text form does not have."""
    for names in (n for node in model.graph.node for n in (node.input, node.output)):
        for i, name in enumerate(names):
            names[i] = name.replace("_DOT_", ".")
    for value in (*model.graph.input, *model.graph.output):
        value.name = value.name.replace("_DOT_", ".")
    return model


def prompts(count: int = 2, cache: bool = False) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(5)
    empty = np.zeros((1, 0, WIDTH), np.float32)
    more = {"past_key_values.0.key": empty, "past_key_values.0.value": empty} if cache else {}
    sizes = [3 + i for i in range(count)]
    return [
        {"input_ids": rng.integers(0, WORDS, (1, n)), "attention_mask": np.ones((1, n), np.int64), **more}
        for n in sizes
    ]


def generated(model: ModelProto, steps: int) -> tuple[list[int], list[np.ndarray]]:
    """The tokens and the scores of a loop written by hand."""
    session, feeds = StrictSession(model), dict(prompts(1, cache=True)[0])
    tokens, scores = [], []
    for _ in range(steps):
        out = session.run(feeds)
        scores.append(out["logits"])
        tokens.append(int(out["logits"][0, -1].argmax()))
        feeds = {
            "input_ids": np.array([[tokens[-1]]]),
            "attention_mask": np.ones((1, feeds["attention_mask"].shape[1] + 1), np.int64),
            "past_key_values.0.key": out["present.0.key"],
            "past_key_values.0.value": out["present.0.value"],
        }
    return tokens, scores


def test_steps_and_their_figures() -> None:
    model = decoder()
    seen: list[Mapping[str, Any]] = []

    def logits(reference: Mapping[str, Any], result: Mapping[str, Any]) -> float:
        seen.append(reference)
        return 0.0

    found = ampgraph.verify(model, model, data=prompts(1), steps=6, metric=logits)
    tokens, scores = generated(model, 6)
    assert found.ok and len(seen) == 6 and len(set(tokens)) > 1
    for mine, want in zip(seen, scores, strict=True):
        np.testing.assert_allclose(mine["logits"], want, rtol=1e-6)
    assert seen[-1]["present.0.key"].shape == (1, 3 + 5, WIDTH)
    # figures of steps
    model = decoder()
    found = ampgraph.verify(model, ampgraph.convert(model), data=prompts(2), steps=12)
    assert found.ok and found.samples == 2 and len(found.steps) == 12
    assert all(0 < step.error < 1e-2 and step.output == "logits" for step in found.steps)
    worst = present(found.worst_step)
    assert worst.error == max(step.error for step in found.steps)
    text = "\n".join(found.lines())
    assert f"at step {worst.step}, output logits" in text
    assert "past_key_values.0.key from present.0.key" in text and "likeliest of the reference's logits" in text
    assert plain(found.to_dict())["steps"][3]["error"] == found.steps[3].error
    # generated samples start with an empty cache
    model = decoder()
    found = ampgraph.verify(model, ampgraph.convert(model), steps=3, samples=2)
    assert found.ok and len(found.steps) == 3


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_low_cache_is_fed_back_low(dtype: str) -> None:
    model = decoder()
    low = ampgraph.convert(model, dtype=dtype, io=["past*=low", "present*=low"])
    kept = ampgraph.convert(model, dtype=dtype)
    elements = {value.name: value.type.tensor_type.elem_type for value in low.graph.input}
    assert elements["past_key_values.0.key"] in (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    errors = [
        present(ampgraph.verify(model, m, data=prompts(2), steps=8, tolerance=5e-2).worst_step).error
        for m in (low, kept)
    ]
    assert 0 < errors[0] < (1e-2 if dtype == "float16" else 5e-2) and 0 < errors[1] < 5e-2


def test_an_error_that_only_later_steps_have_is_missed_and_blamed() -> None:
    """A cache that a conversion spoils: the first step does not read it."""
    model = decoder()
    spoiled = decoder()
    node = next(n for n in spoiled.graph.node if n.output[0] == "present.0.value")
    node.input[0] = "worse"
    worse = onnx.helper.make_node("Mul", ["past_key_values.0.value", "small"], ["worse"], name="worse")
    spoiled.graph.node.insert(0, worse)
    assert ampgraph.verify(model, spoiled, data=prompts(2, cache=True)).ok
    found = ampgraph.verify(model, spoiled, data=prompts(2), steps=4)
    assert not found.ok and found.steps[0].error == 0 and found.steps[1].error > 1e-2
    assert found.traced is not None and found.traced % 4 > 0
    assert "step " in "\n".join(found.lines())


STATE = """g (float[1, 8] frame, float[1, 8] state_in) => (float[1, 8] y, float[1, 8] state_out) {
    s = Add (frame, state_in)  state_out = Tanh (s)  y = Neg (state_out) }"""


def test_a_state_without_tokens_takes_the_next_samples() -> None:
    model = parse(STATE)
    frames = [{"frame": np.full((1, 8), x, np.float32)} for x in (0.1, 0.2, 0.3)]
    seen: list[float] = []

    def noted(reference: Mapping[str, Any], result: Mapping[str, Any]) -> float:
        seen.append(float(reference["y"][0, 0]))
        return 0.0

    ampgraph.verify(model, model, data=frames, steps=3, metric=noted)
    state, want = 0.0, []
    for x in (0.1, 0.2, 0.3):
        state = np.tanh(x + state)
        want.append(-state)
    assert seen[:3] == pytest.approx(want, rel=1e-5) and len(seen) == 9


def port(name: str, *shape: int | str, dtype: str = "float32") -> Port:
    return Port(name, dtype, shape)


@pytest.mark.parametrize(
    ("past", "now", "axis"),
    [
        (port("past_key_values.0.key", "b", 4, "past", 8), port("present.0.key", "b", 4, "all", 8), 2),
        (port("past_key_values.1.decoder.value", 1, 4, "p", 8), port("present.1.decoder.value", 1, 4, "q", 8), 2),
        (port("past_0", 2, "b", 4, "p", 8), port("present_0", 2, "b", 4, "p + s", 8), 3),
        (port("stateIn", 1, 64), port("stateOut", 1, 64), None),
        (port("h_in", 1, 64), port("h_out", 1, 64), None),
        (port("prev_cache_k", "b", 8), port("new_cache_k", "b", 8), None),
    ],
)
def test_pairs_by_name_and_shape(past: Port, now: Port, axis: int | None) -> None:
    (pair,) = find_pairs({past.name: past, "x": port("x", 1, 64)}, {"y": port("y", 1, 64), now.name: now})
    assert (pair.past, pair.present, pair.axis) == (past.name, now.name, axis)


@pytest.mark.parametrize(
    ("past", "now"),
    [
        (port("input_image", 1, 3, 8, 8), port("output_image", 1, 3, 8, 8)),
        (port("past_key", 1, 8), port("present_key", 1, 8, 8)),
        (port("past_key", 1, 8), port("present_value", 1, 8)),
    ],
)
def test_what_is_no_pair(past: Port, now: Port) -> None:
    with pytest.raises(AmpError, match="AMP312.*--steps needs a cache"):
        find_pairs({past.name: past}, {now.name: now})


def test_pairs_and_parts() -> None:
    inputs = {n: port(n, 1, 8) for n in ("a1", "a2", "x")}
    outputs = {n: port(n, 1, 8) for n in ("b1", "b2", "y")}
    pairs = find_pairs(inputs, outputs, ["a*=b*"])
    assert [(pair.past, pair.present) for pair in pairs] == [("a1", "b1"), ("a2", "b2")]
    for text, told in (
        ("a*", "is not IN=OUT"),
        ("z=b1", "no input 'z'"),
        ("a1=z", "no output 'z'"),
        ("a*=b1", "is not IN=OUT"),
    ):
        with pytest.raises(AmpError, match=f"AMP312.*{told}"):
            find_pairs(inputs, outputs, [text])
    # the parts that inputs play
    names = ("input_ids", "attention_mask", "position_ids", "encoder_attention_mask")
    inputs = {n: port(n, "b", "s", dtype="int64") for n in names} | {
        "use_cache_branch": port("use_cache_branch", 1, dtype="bool")
    }
    found = decoder_of(inputs, {"logits": port("logits", "b", "s", 9)}, ())
    assert (found.tokens, found.scores, found.masks) == ("input_ids", "logits", ("attention_mask",))
    assert (found.positions, found.flags) == (("position_ids",), ("use_cache_branch",))
    assert sample_tokens(np.eye(4)[None]).tolist() == [3] and sample_tokens(np.eye(4)).tolist() == [0, 1, 2, 3]
    assert sample_tokens(np.array([[5, 6]])).tolist() == [6] and sample_tokens(np.array([7])).tolist() == [7]


def test_the_command(amp: Any, tmp_path: Path) -> None:
    onnx.save(decoder(), tmp_path / "m.onnx")
    onnx.save(ampgraph.convert(decoder()), tmp_path / "low.onnx")
    words = ("verify", tmp_path / "m.onnx", tmp_path / "low.onnx")
    status, out, _ = amp(*words, "--steps", 20, "--samples", 2)
    assert status == 0 and "steps       worst " in out and "19: " in out
    status, out, _ = amp(*words, "--steps", 2, "--samples", 1, "--cache", "past_key_values.*=present.*")
    assert status == 0
    refused(amp(*words, "--cache", "a=b"), "AMP312", "add --steps")
    refused(amp(*words, "--steps", 0), "AMP312", "--steps 0")


def test_feeds_of_the_first_step() -> None:
    """The cache is emptied, with what masks and positions have for it, and flags say that there is no past; given
    states stay, in samples of the user's alone."""
    pairs = (CachePair("past", "present", 1), CachePair("state", "new", None))
    decoder = Decoder(pairs, "ids", "logits", masks=("mask",), positions=("places",), flags=("has_past",))
    ports = {"past": Port("past", "float16", (1, "p", 4)), "state": Port("state", "float32", (1, "s"))}
    feeds: dict[str, Any] = {"ids": np.ones((1, 2), np.int64), "mask": np.ones((1, 5), np.int64)}
    feeds |= {"places": np.array([[3, 4]]), "has_past": np.array([True]), "past": np.ones((1, 3, 4), np.float16)}
    first = decoder.first_feeds(feeds, ports, generated=True)
    assert first["past"].shape == (1, 0, 4) and first["mask"].shape == (1, 2) and first["places"].tolist() == [[0, 1]]
    assert first["state"].tolist() == [[0]] and first["state"].dtype == np.float32 and not first["has_past"].any()
    given = decoder.first_feeds(feeds, ports, generated=False)
    assert given["past"] is feeds["past"] and given["mask"] is feeds["mask"]


def test_mindir_is_not_run_step_by_step() -> None:
    with pytest.raises(AmpError) as caught:
        decoding_of(MindirPair.__new__(MindirPair), 3, ())
    assert caught.value.code == "AMP304"
    assert decoding_of(MindirPair.__new__(MindirPair), None, ()) is None
