"""Data from folders, patterns and iterables trains as the same numbers in memory do; what is no data is refused."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
import torch

from ampgraph.api.build_step import build_training_step
from ampgraph.core.errors import AmpError
from ampgraph.training.run import dataset
from ampgraph.training.run.dataset import Dataset
from ampgraph.training.run.trainer import Trainer
from cli_helpers import refused
from onnx_text import parse
from training.steps import blobs, linear_step

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
    for last, words in (("pad", "only with cross_entropy"), ("keep", "takes 4 samples"), ("nope", "none of drop")):
        with pytest.raises(AmpError, match=f"AMP325.*{words}"):
            Trainer(mse, "cpu").fit(data, epochs=1, batch_size=4, last_batch=last)
    with pytest.raises(AmpError, match="AMP325.*last batch of 2 is too small for 3"):
        trained(DATA, linear(), last_batch="keep", accumulate=3)


def test_going_on_with_another_last_batch_is_refused(tmp_path):
    trained(DATA, checkpoint=tmp_path)
    with pytest.raises(AmpError, match="AMP405.*last_batch=drop, not keep"):
        trained(DATA, checkpoint=tmp_path, resume=True, last_batch="keep")


def test_a_data_set_is_given_on():
    made = Trainer(linear_step(), "cpu").feeds.dataset(DATA)
    assert isinstance(made, Dataset) and trained(made)[0] == trained(DATA)[0]


@pytest.mark.slow
def test_on_the_command_line(tmp_path, amp):
    linear_step().save(tmp_path / "step.onnx")
    folder = fill(tmp_path / "data", "idx")
    words = ("train", tmp_path / "step.onnx", "--epochs", 1, "--batch-size", 16, "--data")
    status, out, _ = amp(*words, folder, "--last-batch", "pad", "--json")
    assert status == 0 and '"steps": 4' in out
    refused(amp(*words, folder, "--last-batch", "no"), "AMP325", "drop, keep, pad")
    refused(amp(*words, tmp_path), "AMP101", "no arrays")
