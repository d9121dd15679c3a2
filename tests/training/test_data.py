"""Data from folders, patterns and iterables, normalised or not, trains as the same numbers in memory do."""

from __future__ import annotations

import gzip
import struct
import tracemalloc

import numpy as np
import pytest
import torch

import ampgraph
from ampgraph.api.build_step import build_training_step
from ampgraph.core.errors import AmpError
from ampgraph.training.run import dataset
from ampgraph.training.run.dataset import LazyBatch, Normalized, normalized
from ampgraph.training.run.step_inputs import StepInputs
from ampgraph.training.run.trainer import Trainer
from cli_helpers import refused
from onnx_text import parse
from present import present
from training.nets import blobs, linear_step

DATA = blobs(50)
FIT = {"epochs": 2, "batch_size": 16, "seed": 5}


def trained(data, step=None, accumulate=1, **more):
    trainer = Trainer(step or linear_step(), "cpu", threads=1, accumulate=accumulate)
    history = trainer.fit(data, **{**FIT, **more})
    return {name: array.tobytes() for name, array in trainer.state.items()}, history


def linear(loss="cross_entropy", rows="N"):
    """A step of a product of 4 numbers to 3 classes."""
    head = f"g (float[{rows},4] x) => (float[{rows},3] y) {{ y = MatMul (x, w) }}"
    model = parse(head, w=np.full((4, 3), 0.5, np.float32))
    return build_training_step(model, loss=loss, optimizer="sgd:lr=0.1", level="O0")


def idx(array, code):
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes([0, 0, code, array.ndim]) + sizes + array.astype(array.dtype.newbyteorder(">")).tobytes()


def fill(folder, kind):
    """The data as files of a kind, beside what is no data."""
    folder.mkdir()
    (folder / "README").write_text("of a friend")
    np.save(folder / "more.npy", np.zeros(3))
    if kind == "npz":
        np.savez(folder / "all.npz", **DATA)
    for name, array in DATA.items() if kind != "npz" else ():
        if kind.startswith("npy"):
            np.save(folder / f"{name}.npy", np.asfortranarray(array))
        else:
            code = 13 if array.dtype == np.float32 else 8
            packed = idx(array if code == 13 else array.astype(np.uint8), code)
            (folder / f"{name}-idx{array.ndim}-ubyte").write_bytes(packed)
    for path in sorted(folder.iterdir()) if kind.endswith("gz") else ():
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    return folder


@pytest.mark.parametrize("kind", ["npy", "npy.gz", "npz", "npz.gz", "idx", "idx.gz"])
def test_a_folder_trains_as_arrays_do(kind, tmp_path):
    folder = fill(tmp_path / "data", kind)
    state, history = trained(str(folder), validate=folder, checkpoint=tmp_path / "one")
    same, other = trained(DATA, validate=DATA, checkpoint=tmp_path / "other")
    assert state == same and history.losses.tobytes() == other.losses.tobytes()
    assert history.epochs[-1].validation == other.epochs[-1].validation
    found = Trainer(linear_step(), "cpu").feeds.dataset(folder)
    assert all(isinstance(array, np.memmap) for array in found.arrays.values())


def test_a_large_npz_file_stays_on_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, "LARGE", 1)
    np.savez(tmp_path / "stored.npz", **DATA)
    np.savez_compressed(tmp_path / "packed.npz", **DATA)
    states = [trained(tmp_path / f"{name}.npz")[0] for name in ("stored", "packed")]
    found = Trainer(linear_step(), "cpu").feeds.dataset(tmp_path / "stored.npz")
    assert states == [trained(DATA)[0]] * 2 and isinstance(found.arrays["x"], np.memmap)
    damaged = bytearray((tmp_path / "stored.npz").read_bytes())
    damaged[300] ^= 1
    (tmp_path / "stored.npz").write_bytes(damaged)
    with pytest.raises(AmpError, match="AMP108.*CRC"):
        trained(tmp_path / "stored.npz")


@pytest.mark.parametrize("head", ["", "a,b,c,d,class\n", "labels,a,b,c,d\n"])
def test_a_table_trains_as_arrays_do(head, tmp_path):
    x = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)
    labels = np.arange(20) % 3
    columns = [labels[:, None], x] if head.startswith("labels") else [x, labels[:, None]]
    rows = "\n".join(",".join(f"{number!r}" for number in row) for row in np.concatenate(columns, 1).tolist())
    (tmp_path / "t.csv").write_text(head + rows)
    assert trained(tmp_path / "t.csv", linear())[0] == trained({"x": x, "labels": labels}, linear())[0]
    (tmp_path / "t.csv").write_text(f"{head}{rows}\n1,2,house,4,0")
    with pytest.raises(AmpError, match="AMP108.*is not an array, or is damaged"):
        trained(tmp_path / "t.csv", linear())


@pytest.mark.slow
def test_sets_side_by_side_as_mnist_has_them(tmp_path):
    """Axes are those of the input, numbers become float32, and a pattern names one of the sets."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 12), ("t10k", 5)):
        image = rng.integers(0, 256, (count, 2, 3)).astype(np.uint8)
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(image, 8)))
        (tmp_path / f"{part}-labels-idx1-ubyte.gz").write_bytes(
            gzip.compress(idx(rng.integers(0, 3, count).astype(np.uint8), 8))
        )
    model = parse("g (float[N,6] x) => (float[N,3] y) { y = MatMul (x, w) }", w=np.ones((6, 3), np.float32))
    feeds = Trainer(build_training_step(model, loss="cross_entropy", optimizer="sgd"), "cpu").feeds
    found = feeds.dataset(tmp_path / "t10k-*")
    rows = next(iter(found.in_order(5, whole=True)))
    assert (found.samples, rows["x"].shape, rows["x"].dtype, rows["labels"].dtype) == (5, (5, 6), np.float32, np.int64)
    assert np.array_equal(rows["x"], image.reshape(5, 6))
    with pytest.raises(AmpError, match=r"AMP503.*two files hold 'x'(.|\n)*'.*train\*'"):
        feeds.dataset(tmp_path)


def test_files_are_looked_at_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, "PIECE", 200)
    bad = {name: array.copy() for name, array in DATA.items()}
    bad["x"][41, 2] = np.nan
    for name, array in bad.items():
        np.save(tmp_path / f"{name}.npy", array)
    with pytest.raises(AmpError, match="AMP503.*'x' is NaN"):
        trained(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\0\0\x08", b"\0\0\x08\x01\0\0\0\x05abc", b"\0\0\x07\x01\0\0\0\x01a", b"PK"])
@pytest.mark.parametrize("name", ["x-idx1-ubyte", "x.npy", "x.npy.gz", "x.npz"])
def test_files_that_are_damaged(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(AmpError, match="AMP10[18]") as caught:
        trained(tmp_path)
    assert caught.value.where == str(tmp_path / name) and caught.value.hint


def test_two_files_of_one_input_are_refused(tmp_path):
    np.savez(tmp_path / "all.npz", **DATA)
    np.save(tmp_path / "x.npy", DATA["x"])
    with pytest.raises(AmpError, match="AMP503.*two files hold 'x', the second is x.npy"):
        trained(str(tmp_path))


def test_a_batch_reads_the_samples_that_are_asked_for():
    whole = next(StepInputs(linear_step()).dataset(DATA).shuffled(16, seed=3, epoch=0))
    batch = next(StepInputs(linear_step()).dataset(DATA).shuffled(16, seed=3, epoch=0))
    assert isinstance(batch, LazyBatch) and (batch.samples, len(batch), set(batch)) == (16, 2, set(DATA))
    assert np.array_equal(batch.part(4, 9)["x"], whole["x"][4:9])
    assert np.array_equal(present(batch.column("labels")), whole["labels"]) and batch.column("no such") is None


def test_sizes_of_a_batch_that_cannot_be():
    fixed = linear(rows="8")
    for feeds, size, words in (
        (StepInputs(fixed), 4, "takes 8 samples at once, not 4"),
        (StepInputs(fixed, 2), 8, "takes 16 samples at once, not 8"),
        (StepInputs(linear_step(), 4), 3, "a batch of 3 is too small for 4 micro-batches"),
        (StepInputs(linear_step()), 0, "batch size 0 is not a whole number from 1"),
    ):
        with pytest.raises(AmpError, match=f"AMP503.*{words}"):
            feeds.check_batch_size(size)
    assert StepInputs(fixed, 2).check_batch_size(16) == 16


def test_objects_are_never_loaded(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(AmpError, match="AMP108.*pickled"):
        trained(tmp_path)


def test_a_folder_without_arrays(tmp_path):
    for place in (tmp_path, tmp_path / "train-*"):
        with pytest.raises(AmpError, match="AMP101.*no arrays"):
            trained(str(place))


class Again:
    """Batches of uneven sizes, again and again."""

    def __init__(self, sizes, make=dict):
        self.sizes, self.make = sizes, make

    def __iter__(self):
        start = 0
        for size in self.sizes:
            yield self.make((name, array[start : start + size]) for name, array in DATA.items())
            start += size


@pytest.mark.parametrize("sizes", [[16, 16, 18], [50], [1] * 50, [30, 20]])
def test_batches_of_an_iterable_are_put_together_anew(sizes):
    rows = Again(sizes, lambda pairs: tuple(torch.tensor(array) for _, array in pairs))
    states = [trained(source, validate=source)[0] for source in (Again(sizes), rows)]
    trainer = Trainer(linear_step(), "cpu", threads=1)
    for _ in range(FIT["epochs"]):
        for start in (0, 16, 32):
            trainer.step({name: array[start : start + 16] for name, array in DATA.items()})
    assert states[0] == states[1] == {name: array.tobytes() for name, array in trainer.state.items()}


def test_a_loader_of_torch():
    pairs = torch.utils.data.TensorDataset(*map(torch.tensor, DATA.values()))
    loader = torch.utils.data.DataLoader(pairs, 7, shuffle=True, generator=torch.Generator().manual_seed(0))
    _, history = trained(loader, last_batch="keep")
    assert len(history.losses) == 8 and history.losses[-1] < history.losses[0] and history.dropped == 0


@pytest.mark.parametrize(
    "data, words",
    [
        (iter([DATA]), "one epoch uses up"),
        ([], "gives no batch"),
        ([3], "a batch of data is a int"),
        ([{"x": DATA["x"]}], "no value for input 'labels'"),
        ([(DATA["x"], DATA["labels"][:9])], "has 50 samples"),
        ([{"x": DATA["x"] * np.nan, "labels": DATA["labels"]}], "is NaN"),
        (7, "data is a int"),
    ],
)
def test_iterables_that_are_no_data(data, words):
    with pytest.raises(AmpError, match=f"AMP503.*{words}"):
        trained(data)


def test_the_last_batch():
    """50 samples in batches of 16 leave 2: kept they are a step; padded the step is the same but for its size."""
    step = linear()
    dropped, kept, padded, shared = (
        trained(DATA, step, last_batch=last, accumulate=parts)
        for last, parts in (("drop", 1), ("keep", 1), ("pad", 1), ("pad", 4))
    )
    assert [len(found[1].losses) for found in (dropped, kept, padded)] == [6, 8, 8]
    assert [found[1].dropped for found in (dropped, kept, padded)] == [2, 0, 0]
    for other in (padded, shared):
        np.testing.assert_allclose(kept[1].losses, other[1].losses, rtol=0, atol=5e-7)
    assert dropped[0] != kept[0] and dropped[0] == trained(DATA, step)[0]
    assert len(trained(DATA, step, last_batch="keep", batch_size=64)[1].losses) == 2
    assert len(trained(DATA, linear(rows=16), last_batch="pad")[1].losses) == 8


def test_a_last_batch_that_cannot_be():
    mse = linear("mse", rows=4)
    data = {"x": np.ones((6, 4), np.float32), "labels": np.ones((6, 3), np.float32)}
    for last, words in (("pad", "only with cross_entropy"), ("keep", "takes 4 samples"), ("nope", "not one of drop")):
        with pytest.raises(AmpError, match=f"AMP325.*{words}"):
            Trainer(mse, "cpu").fit(data, epochs=1, batch_size=4, last_batch=last)
    with pytest.raises(AmpError, match="AMP325.*last batch of 2 is too small for 3"):
        trained(DATA, linear(), last_batch="keep", accumulate=3)


def test_going_on_with_another_last_batch_is_refused(tmp_path):
    trained(DATA, checkpoint=tmp_path)
    with pytest.raises(AmpError, match="AMP405.*last_batch=drop, not keep"):
        trained(DATA, checkpoint=tmp_path, resume=True, last_batch="keep")


@pytest.mark.slow
def test_on_the_command_line(tmp_path, amp):
    linear_step().save(tmp_path / "step.onnx")
    folder = fill(tmp_path / "data", "idx")
    words = ("train", tmp_path / "step.onnx", "--epochs", 1, "--batch-size", 16, "--data")
    status, out, _ = amp(*words, folder, "--last-batch", "pad", "--json")
    assert status == 0 and '"steps": 4' in out
    refused(amp(*words, folder, "--last-batch", "no"), "AMP325", "drop, keep, pad")
    refused(amp(*words, tmp_path), "AMP101", "no arrays")


RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (20, 3, 4, 5)).astype(np.uint8)
LABELS = RNG.integers(0, 3, 20)
MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)


def step_of(*sizes):
    """A step that takes samples of some sizes and means over all axes but the last."""
    axes = ", ".join(str(axis) for axis in range(1, len(sizes)))
    shape = ", ".join(map(str, sizes))
    body = "m = ReduceMean <keepdims = 0> (x, axes)  y = MatMul (m, w)" if axes else "y = MatMul (x, w)"
    given = f"<int64[{len(sizes) - 1}] axes = {{{axes}}}>" if axes else ""
    text = f"g (float[N,{shape}] x) => (float[N,3] y) {given} {{ {body} }}"
    return build_training_step(
        parse(text, opset=18, w=np.full((sizes[-1], 3), 0.5, np.float32)),
        loss="cross_entropy",
        optimizer="sgd",
        level="O0",
    )


def rows_of(data, *sizes):
    return next(iter(StepInputs(step_of(*sizes)).dataset(data).in_order(20, whole=True)))["x"]


def expected():
    """As torchvision does: to [0, 1], then by channel."""
    wide = IMAGES.astype(np.float64) / 255
    return (wide - np.reshape(MEAN, (3, 1, 1))) / np.reshape(STD, (3, 1, 1))


@pytest.mark.parametrize("source", ["arrays", "npy", "npz", "batches", "tensors"])
def test_pixels_become_what_torchvision_makes_of_them(source, tmp_path):
    arrays: dict[str, np.ndarray] = {"x": IMAGES, "labels": LABELS}
    if source == "npy":
        for name, array in arrays.items():
            np.save(tmp_path / f"{name}.npy", array)
    np.savez(tmp_path / "all.npz", x=IMAGES, labels=LABELS) if source == "npz" else None
    rows = [arrays, tmp_path, tmp_path / "all.npz", [arrays], [(torch.tensor(IMAGES), torch.tensor(LABELS))]]
    data = dict(zip(["arrays", "npy", "npz", "batches", "tensors"], rows, strict=True))[source]
    found = rows_of(ampgraph.Normalized(data, 1 / 255, MEAN, STD), 3, 4, 5)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected(), atol=1e-6)


def test_an_iterable_is_normalised_as_arrays_are():
    feeds = StepInputs(linear_step())
    parts, whole = (feeds.dataset(Normalized(data, 2.0, 0.5, 0.25)) for data in (Again([20, 30]), DATA))
    for here, there in zip(parts.in_order(16, whole=False), whole.in_order(16, whole=False), strict=True):
        assert {name: array.tobytes() for name, array in here.items()} == {n: a.tobytes() for n, a in there.items()}
    assert parts.digest() == "stream of 50x: 2.0 (0.5,) (0.25,)\n" != feeds.dataset(Again([20, 30])).digest()


def test_channels_are_axis_1_or_the_last():
    last = {"x": np.ascontiguousarray(IMAGES.transpose(0, 2, 3, 1)), "labels": LABELS}
    found = rows_of(Normalized(last, 1 / 255, MEAN, STD), 4, 5, 3)
    np.testing.assert_allclose(found.transpose(0, 3, 1, 2), expected(), atol=1e-6)
    for sizes, words in (((3, 4, 3), "two axes have"), ((4, 3, 5), "neither axis 1 nor the last")):
        with pytest.raises(AmpError, match=f"AMP325.*3 channels.*{words}"):
            rows_of(Normalized({"x": np.zeros((20, *sizes), np.uint8), "labels": LABELS}, 1, MEAN), *sizes)


def test_channels_that_come_last_are_not_read_as_first():
    with pytest.raises(AmpError, match="AMP503.*'x'"):
        rows_of({"x": IMAGES.transpose(0, 2, 3, 1), "labels": LABELS}, 3, 4, 5)
    flat = rows_of({"x": IMAGES.reshape(20, 3, 20), "labels": LABELS}, 3, 4, 5)
    np.testing.assert_array_equal(flat, IMAGES)


def test_a_checkpoint_knows_how_its_data_was_normalised(tmp_path):
    data = {"x": IMAGES, "labels": LABELS}
    fit = {"epochs": 1, "batch_size": 10, "checkpoint": tmp_path}
    ampgraph.Trainer(step_of(3, 4, 5), "cpu").fit(Normalized(data, 1 / 255), **fit)
    trainer = ampgraph.Trainer(step_of(3, 4, 5), "cpu")
    assert not trainer.fit(Normalized(data, 1 / 255), resume=True, **fit).epochs
    for other in (data, Normalized(data, 1 / 256), Normalized(data, 1 / 255, 0.5)):
        with pytest.raises(AmpError, match="AMP405.*other data"):
            trainer.fit(other, resume=True, **fit)
    measured = trainer.evaluate(Normalized(data, 1 / 255))
    assert measured["loss"] < trainer.evaluate(data)["loss"]


def test_two_inputs_are_named():
    text = "g (float[N,3] a, float[N,3] b) => (float[N,3] y) { c = Add (a, b)  y = MatMul (c, w) }"
    step = build_training_step(parse(text, w=np.eye(3, dtype=np.float32)), loss="cross_entropy", optimizer="sgd")
    feeds = StepInputs(step)
    data = {"a": np.ones((4, 3), np.float32), "b": np.ones((4, 3), np.float32), "labels": np.zeros(4, np.int64)}
    made = feeds.dataset(Normalized(Normalized(data, 2.0, input="a"), mean=0.5, std=0.25, input="b"))
    [rows] = made.in_order(4, whole=True)
    assert rows["a"].max() == rows["b"].min() == 2
    for name, words in (("", "2 inputs can be normalised: a, b"), ("labels", "'labels' is not a float32 input")):
        with pytest.raises(AmpError, match=f"AMP325.*{words}"):
            feeds.dataset(Normalized(data, 2.0, input=name))


@pytest.mark.parametrize(
    "given, words",
    [
        ({"scale": 0}, "scale=0 cannot scale data"),
        ({"scale": float("nan")}, "scale=nan cannot scale data"),
        ({"std": 0}, "std=0 divides"),
        ({"std": (1.0, -1.0)}, "std=-1 divides"),
        ({"mean": "0.5"}, "mean='0.5' is neither"),
        ({"mean": ()}, r"mean=\(\) is neither"),
        ({"mean": (1, 2), "std": (1, 2, 3)}, "2 means and 3 deviations"),
    ],
)
def test_numbers_that_make_no_sense(given, words):
    with pytest.raises(AmpError, match=f"AMP325.*{words}") as caught:
        Normalized({}, **given)
    assert caught.value.hint


def test_the_words_of_a_command_line():
    assert normalized("d", ["0.1307,0.3081"], ["1/255"]) == Normalized("d", 1 / 255, 0.1307, 0.3081)
    assert normalized("d", ["x = 1 2,3 4"], []) == Normalized("d", 1.0, (1, 2), (3, 4), "x")
    assert normalized("d", ["a=1,2"], ["b=3"]) == Normalized(Normalized("d", 3.0, input="b"), 1.0, 1.0, 2.0, "a")
    assert normalized("d", [], []) == "d"
    for words, told in ((["0.5"], "not MEAN,STD"), (["=1,2"], "names no input"), (["1,two"], "'two' is not a number")):
        with pytest.raises(AmpError, match=f"AMP325.*{told}"):
            normalized("d", words, [])
    with pytest.raises(AmpError, match="(?s)AMP325.*'1/0' is not a number.*--scale FACTOR"):
        normalized("d", [], ["1/0"])


@pytest.mark.slow
def test_on_the_command_line_normalized(tmp_path, amp):
    step_of(3, 4, 5).save(tmp_path / "step.onnx")
    np.savez(tmp_path / "d.npz", x=IMAGES, labels=LABELS)
    words = ("train", tmp_path / "step.onnx", "--data", tmp_path / "d.npz", "--epochs", 1, "--batch-size", 10, "--json")
    losses = [amp(*words, *more) for more in ((), ("--scale", "1/255", "--normalize", "0.49 0.48 0.45,0.25"))]
    assert all(status == 0 for status, _, _ in losses) and losses[0][1] != losses[1][1]
    refused(amp(*words, "--normalize", "0.5"), "AMP325", "MEAN,STD")


WIDTH, BATCH = 1024, 16


def sparse(folder, samples):
    """Files of a set of float32 rows, all of them a hole."""
    folder.mkdir()
    for name, shape, dtype in (("x", (samples, WIDTH), np.float32), ("labels", (samples,), np.uint8)):
        with open(folder / f"{name}.npy", "wb") as file:
            np.lib.format.write_array_header_1_0(
                file, {"descr": dtype().dtype.str, "fortran_order": False, "shape": shape}
            )
            file.truncate(file.tell() + int(np.prod(shape)) * dtype().itemsize)
    return folder


def allocated(folder):
    """The most bytes that checking, hashing and an epoch's first batches hold at once."""
    head = f"g (float[N,{WIDTH}] x) => (float[N,3] y) {{ y = MatMul (x, w) }}"
    model = parse(head, w=np.zeros((WIDTH, 3), np.float32))
    feeds = StepInputs(build_training_step(model, loss="cross_entropy", optimizer="sgd", level="O0"))
    tracemalloc.start()
    try:
        made = feeds.dataset(Normalized(folder, 1 / 255, 0.5))
        made.digest()
        order = made.shuffled(BATCH, 0, 0)
        assert all(next(order)["x"].shape == (BATCH, WIDTH) for _ in range(20))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path, monkeypatch):
    """16 and 64 MiB by pieces of 1 MiB: what more is held is the order of the samples, 8 bytes for each."""
    monkeypatch.setattr(dataset, "PIECE", 1 << 20)
    peaks = [allocated(sparse(tmp_path / f"{samples}", samples)) for samples in (4096, 16384)]
    assert peaks[1] < 8 << 20 and peaks[1] - peaks[0] < 16 * (16384 - 4096), peaks
