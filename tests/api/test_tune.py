"""`ampgraph.tune` with models: what it promotes, what it writes, and its answers to bad input."""

import errno
import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ampgraph
from ampgraph import AmpError
from ampgraph.api import bench
from ampgraph.api import tune as tuning
from ampgraph.core.node_names import literal
from ampgraph.numerics.metrics import verdict as judging
from ampgraph.numerics.search import BUDGET
from ampgraph.numerics.strict.session import StrictSession
from hard_models import HARD_MODELS
from onnx_text import parse
from present import present

pytest.importorskip("onnxruntime")


def tuned(name, count=4, **more):
    hard = HARD_MODELS[name]
    model = hard.build()
    return model, hard.feeds(count), ampgraph.tune(model, data=hard.feeds(count), **more)


@pytest.mark.parametrize("tolerance", [1e-2, 1.0])
def test_inputs_and_outputs_may_be_low(tolerance):
    text = "agraph (float[4,64] x) => (float[4,64] y) { a = MatMul(x, w)  b = Add(a, big)  y = Sub(b, big) }"
    model = parse(text, w=np.eye(64, dtype=np.float32), big=np.full(64, 100, np.float32))
    found = ampgraph.tune(model, samples=2, io=["*=low"], tolerance=tolerance)
    assert found.met and bool(found.patterns) == (tolerance < 1)
    converted = ampgraph.convert(model, io=["*=low"], fp32=found.patterns)
    assert {value.type.tensor_type.elem_type for value in (*converted.graph.input, *converted.graph.output)} == {
        TensorProto.FLOAT16
    }


@pytest.fixture(scope="module")
def bytes_tuned():
    """The tuning that others must equal."""
    return tuned("bytes", tolerance=5e-5)[2]


def strict_error(model, converted, feeds):
    """The relative L2 of the worst output at the 90th percentile, once more."""
    ours, theirs = StrictSession(model), StrictSession(converted)
    errors = []
    for feed in feeds:
        want, got = ours.run(feed), theirs.run(feed)
        errors.append(max(np.linalg.norm(got[n] - want[n]) / np.linalg.norm(want[n]) for n in want))
    return sorted(errors)[math.ceil(0.9 * len(errors)) - 1]


def counting(kind, opened):
    """The class, noting that it is opened."""

    def opener(*given, **more):
        opened.append(kind.__name__)
        return kind(*given, **more)

    return opener


@pytest.mark.slow
def test_a_model_of_400_nodes_takes_few_strict_runs(monkeypatch):
    """Counted from outside: each candidate opens one session, and one is opened whose nodes are switched."""
    opened: list[str] = []
    for name in ("StrictSession", "SwitchedSession"):
        monkeypatch.setattr(bench, name, counting(getattr(bench, name), opened))
    hard = HARD_MODELS["llama"]
    model, feeds = hard.build(), hard.feeds(2)
    found = tuning.tune(model, data=feeds, tolerance=4.5e-4)
    assert len(model.graph.node) >= 390 and found.met
    assert found.runs == len(opened) - 3 <= 8  # two are the reference's: what is right, and how sensitive it is
    assert opened.count("SwitchedSession") == 1
    start, whole = found.candidates[0], found.candidates[1]
    chosen = next(c for c in found.candidates if c.chosen)
    assert start.error > 4.5e-4 >= chosen.error and whole.error == 0
    assert start.bytes < chosen.bytes < 0.6 * whole.bytes
    monkeypatch.undo()
    assert strict_error(model, ampgraph.apply(model, present(found.plan)), feeds) == pytest.approx(found.error)
    again = ampgraph.convert(model, "O2", fp32=found.patterns)
    assert again.SerializeToString() == ampgraph.apply(model, present(found.plan)).SerializeToString()


@pytest.mark.slow
def test_what_overflows_is_found_and_little_else_promoted():
    model, feeds, found = tuned("t5", tolerance=5e-3)
    assert found.met and not math.isfinite(found.candidates[0].error)
    assert len(found.patterns) <= 8 and any("wo" in pattern for pattern in found.patterns)
    assert found.to_dict()["candidates"][0]["error"] is None
    assert strict_error(model, ampgraph.apply(model, present(found.plan)), feeds) <= 5e-3


@pytest.mark.slow
def test_branches_are_tuned_too():
    """The low nodes in the bodies of an If."""
    model, feeds, found = tuned("lstm", 8, tolerance=1e-6)
    assert found.met and any("rising" in p or "falling" in p for p in found.patterns)


@pytest.mark.slow
def test_what_was_float32_stays_so_when_its_neighbours_are_promoted():
    model, _, found = tuned("detector", tolerance=1e-9)
    assert found.met and found.error == 0
    assert ampgraph.apply(model, present(found.plan)).SerializeToString() == model.SerializeToString()


@pytest.mark.slow
def test_bfloat16_and_another_level():
    _, _, found = tuned("bytes", tolerance=4e-4, dtype="bfloat16", level="auto")
    assert found.met and found.dtype == "bfloat16" and found.level == "auto" and found.patterns


@pytest.mark.slow
def test_what_the_user_asked_for_is_kept():
    _, _, found = tuned("lstm", tolerance=3e-4, low=["op:LSTM"], fp32=["forecast*"])
    assert not found.met and found.plan is None and found.patterns == ()
    assert found.error > 3e-4 and found.runs == 2


@pytest.mark.slow
def test_the_same_input_gives_the_same_plan(bytes_tuned):
    one, two = bytes_tuned, tuned("bytes", tolerance=5e-5)[2]
    assert one.to_dict() == two.to_dict() and one.plan.to_json() == two.plan.to_json()


def test_O0_has_nothing_to_promote():
    _, _, found = tuned("bytes", tolerance=1e-9, level="O0")
    assert found.met and found.runs == 1 and found.patterns == ()


def plain(nodes=("MatMul",), width=4, **more):
    """x times a weight, a node each, without names."""
    names = ["x", *(f"v{i}" for i in range(len(nodes) - 1)), "y"]
    made = [helper.make_node(kind, [names[i], "w"], [names[i + 1]]) for i, kind in enumerate(nodes)]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [width, width]) for n in "xy"]
    weight = numpy_helper.from_array(np.linspace(-1, 1, width * width, dtype=np.float32).reshape(width, width), "w")
    graph = helper.make_graph(made, "g", ports[:1], ports[1:], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9, **more)


def test_nodes_without_a_name_are_named_by_their_value():
    found = ampgraph.tune(plain(("MatMul", "MatMul")), tolerance=1e-9)
    assert found.met and set(found.patterns) == {"value:v0", "value:y"}
    assert any("generated" in note or "seed" in note for note in found.notes)


def test_names_with_brackets_mean_themselves():
    model = plain(("MatMul", "MatMul"))
    model.graph.node[0].name, model.graph.node[1].name = "a[0]*", "op:b"
    found = ampgraph.tune(model, tolerance=1e-9)
    assert set(found.patterns) == {"a[[]0][*]", "value:y"} and literal("plain/name_1") == "plain/name_1"


def test_functions_are_tuned_by_the_names_in_their_bodies():
    body = [helper.make_node("MatMul", ["a", "b"], ["c"], name="inner")]
    function = helper.make_function("my", "Cell", ["a", "b"], ["c"], body, [helper.make_opsetid("", 18)])
    model = plain(("Cell", "Cell"), functions=[function])
    model.opset_import.append(helper.make_opsetid("my", 1))
    for node, name in zip(model.graph.node, ("one", "two"), strict=True):
        node.domain, node.name = "my", name
    found = ampgraph.tune(model, tolerance=1e-9)
    assert found.met and found.patterns == ("inner",)


@pytest.mark.slow
def test_weights_beside_the_model(tmp_path):
    hard = HARD_MODELS["vit"]
    path = tmp_path / "vit.onnx"
    onnx.save(hard.build(), path, save_as_external_data=True, location="vit.bin")
    found = ampgraph.tune(path, data=hard.feeds(2), tolerance=1e-4, output=tmp_path / "out.onnx")
    assert found.met and found.output == str(tmp_path / "out.onnx") and found.patterns
    assert strict_error(str(path), str(tmp_path / "out.onnx"), hard.feeds(2)) == pytest.approx(found.error)


def test_progress_is_told():
    told = []
    ampgraph.tune(plain(), tolerance=1e-9, samples=2, progress=lambda *part: told.append(part))
    assert told[0][0].startswith("run 0 of at most 20: running the reference")
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert all(done < total == 2 * (BUDGET + 1) for _, done, total in told)


@pytest.mark.slow
def test_outputs_in_a_file_give_the_same_tuning(monkeypatch, bytes_tuned):
    monkeypatch.setattr(judging, "IN_MEMORY", 0)
    assert tuned("bytes", tolerance=5e-5)[2].to_dict() == bytes_tuned.to_dict()


def test_a_place_that_cannot_be_written_is_told_before_anything_runs(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    told = []
    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(AmpError, match="AMP105.*Read-only"):
        ampgraph.tune(plain(), tolerance=1e-2, output=tmp_path / "o.onnx", progress=lambda *part: told.append(part))
    assert told == []


@pytest.mark.parametrize("tolerance", [0, -1e-3, float("nan"), float("inf")])
def test_a_tolerance_that_is_none(tolerance):
    with pytest.raises(AmpError, match="AMP312.*tolerance"):
        ampgraph.tune(plain(), tolerance=tolerance)


def test_bad_input(tmp_path):
    with pytest.raises(AmpError, match="AMP312.*'cosin'\nhint: did you mean 'cosine'"):
        ampgraph.tune(plain(), metric="cosin")
    with pytest.raises(AmpError, match="AMP108.*no sample"):
        ampgraph.tune(plain(), data=[])
    with pytest.raises(AmpError, match="AMP304.*MindIR"):
        ampgraph.tune(tmp_path / "a.mindir")
    with pytest.raises(AmpError, match="AMP305"):
        ampgraph.tune(plain(), fp32=["nothing"])
    with pytest.raises(AmpError, match="AMP503.*NaN"):
        ampgraph.tune(plain(), data=[{"x": np.full((4, 4), np.nan, np.float32)}])


def test_a_mask_that_stays_float32_is_floored_all_the_same():
    """Its constant is stored in float32 because its Add is, though what follows is low."""
    nodes = [
        helper.make_node("Add", ["x", "m"], ["s"], name="add"),
        helper.make_node("Reshape", ["s", "shape"], ["r"], name="move"),
        helper.make_node("Softmax", ["r"], ["p"], name="soft"),
        helper.make_node("MatMul", ["p", "w"], ["y"], name="product"),
    ]
    model = plain()
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    mask = np.where(np.tri(4), 0, -1e9).astype(np.float32)
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in (("m", mask), ("shape", np.array([4, 4]))))
    converted = ampgraph.convert(model, "O2", fp32=["add"], low=["move", "soft"])
    stored = {i.name: numpy_helper.to_array(i) for i in converted.graph.initializer}
    assert stored["m"].dtype == np.float32 and stored["m"].min() == -32752
    assert np.isfinite(StrictSession(converted).run({"x": np.zeros((4, 4), np.float32)})["y"]).all()


def test_a_tolerance_that_is_no_number_is_told():
    with pytest.raises(AmpError, match="AMP312.*must be a positive number, not '1e-3'"):
        ampgraph.tune("model.onnx", tolerance="1e-3")  # type: ignore[arg-type]
