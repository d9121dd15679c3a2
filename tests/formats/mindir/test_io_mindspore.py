"""Files that MindSpore exports are read, and MindSpore loads and runs what is written."""

import os
from pathlib import Path

import numpy as np
import pytest

from ampgraph.core.errors import AmpError
from ampgraph.formats.mindir import io as mindir_io
from ampgraph.formats.mindir import weights as mindir_weights
from formats.mindir.files import dense, write, write_split

pytestmark = pytest.mark.mindspore
KEY = b"0123456789ABCDEF"
INPUT = np.random.default_rng(0).standard_normal((2, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def ms():
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    mindspore = pytest.importorskip("mindspore")
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    return mindspore


def network(ms):
    from mindspore import nn

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.second = nn.Dense(16, 300), nn.LayerNorm((300,)), nn.Dense(300, 10)
            self.shift = ms.Tensor(np.arange(10, dtype=np.float32))

        def construct(self, x):
            return self.second(self.norm(self.first(x))) + self.shift

    ms.set_seed(1)
    net = Net()
    net.set_train(False)
    return net


@pytest.fixture(scope="module")
def exports(ms, tmp_path_factory):
    """One network in one file, with one data file, with several, and encrypted in three ways."""
    from mindspore.train import serialization

    folder, net, sample = tmp_path_factory.mktemp("exports"), network(ms), ms.Tensor(INPUT)

    def export(name, **options):
        ms.export(net, sample, file_name=str(folder / name), file_format="MINDIR", **options)

    export("together")
    for mode in ("AES-GCM", "AES-CBC", "SM4-CBC"):
        export(f"encrypted_{mode}", enc_key=KEY, enc_mode=mode)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serialization, "TOTAL_SAVE", 1)  # KiB
        export("split")
        patch.setattr(serialization, "PARAMETER_SPLIT_SIZE", 15)
        export("parts")
    return folder


@pytest.fixture(scope="module")
def run(ms):
    """What the graph executor computes for a file."""
    from mindspore import nn

    return lambda path: nn.GraphCell(ms.load(str(path)))(ms.Tensor(INPUT)).asnumpy()


FILES = {"together": "together.mindir", "split": "split_graph.mindir", "parts": "parts_graph.mindir"}


@pytest.mark.parametrize("name", FILES)
def test_unchanged(exports, run, name, tmp_path):
    from mindspore.train.mind_ir_pb2 import ModelProto

    given = exports / FILES[name]
    expected, file = run(given), mindir_io.load(given)
    assert len(mindir_io.data_files(file)) == {"together": 0, "split": 1, "parts": 2}[name]
    mindir_io.save(file, tmp_path / "out.mindir")
    mindir_io.copy_unchanged(given, tmp_path / "copy.mindir")
    assert (tmp_path / "copy.mindir").read_bytes() == given.read_bytes()
    np.testing.assert_array_equal(run(tmp_path / "out.mindir"), expected)
    np.testing.assert_array_equal(run(tmp_path / "copy.mindir"), expected)

    theirs, mine = (ModelProto.FromString(p.read_bytes()) for p in (given, tmp_path / "out.mindir"))
    for one, other in zip(theirs.graph.parameter, mine.graph.parameter, strict=True):
        if one.HasField("external_data"):
            assert one.external_data.offset == other.external_data.offset
            other.external_data.location = one.external_data.location
    assert theirs == mine
    data = zip(mindir_io.data_files(file), mindir_io.data_files(mindir_io.load(tmp_path / "out.mindir")), strict=True)
    assert all(one.read_bytes() == other.read_bytes() for one, other in data)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", FILES)
def test_rounded_weights(exports, run, ms, name, dtype, tmp_path):
    file = mindir_io.load(exports / FILES[name])
    exact = {t.ref_key: mindir_weights.elements(file, t).copy() for t in file.model.graph.parameter}
    for tensor in file.model.graph.parameter:
        if tensor.ref_key.endswith("weight"):
            mindir_weights.round_tensor(file, tensor, dtype)
    mindir_io.save(file, tmp_path / "out.mindir")
    cell = ms.nn.GraphCell(ms.load(str(tmp_path / "out.mindir")))
    for held in cell.get_parameters():
        low = held.name.endswith("weight")
        assert held.dtype == (getattr(ms, dtype) if low else ms.float32)
        expected = ms.Tensor(exact[held.name].reshape(held.shape)).astype(held.dtype).float().asnumpy()
        np.testing.assert_array_equal(held.float().asnumpy(), expected)
    if dtype == "float16":  # MindSpore has no bfloat16 kernels for the CPU
        result, reference = run(tmp_path / "out.mindir"), run(exports / FILES[name])
        assert 0 < np.abs(result - reference).max() < 5e-3


@pytest.mark.parametrize("mode", ["AES-GCM", "AES-CBC", "SM4-CBC"])
def test_encrypted(exports, mode):
    path = exports / f"encrypted_{mode}.mindir"
    with pytest.raises(AmpError) as raised:
        mindir_io.load(path)
    assert raised.value.code == "AMP102" and f"is encrypted ({mode})" in str(raised.value)


def test_encrypted_by_the_users_own_function(ms, tmp_path):
    def own(content: bytes, key: bytes) -> bytes:
        return bytes(byte ^ key[0] for byte in content)

    path = tmp_path / "own.mindir"
    options = {"enc_key": KEY, "enc_mode": own}
    ms.export(network(ms), ms.Tensor(INPUT), file_name=str(path), file_format="MINDIR", **options)
    with pytest.raises(AmpError, match="encrypted, cut short, or another format"):
        mindir_io.load(path)


def test_built_models_are_models(ms, tmp_path):
    """What the other tests are made of loads and runs in MindSpore, split or not."""
    sample = ms.Tensor(INPUT[:, :6])
    results = []
    for path in (write(dense(), tmp_path / "net.mindir"), write_split(dense(), tmp_path / "folder", files=2)):
        results.append(ms.nn.GraphCell(ms.load(str(path)))(sample).asnumpy())
    np.testing.assert_array_equal(*results)
    weight, bias = (
        mindir_weights.elements(file, tensor)
        for file in [mindir_io.load(Path(tmp_path / "net.mindir"))]
        for tensor in file.model.graph.parameter
    )
    expected = INPUT[:, :6] @ weight.reshape(6, 5) + bias + np.arange(5, dtype=np.float32)
    np.testing.assert_allclose(results[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("header", [0, 2])
def test_mindspore_wants_the_header_too(ms, tmp_path, header):
    """Why a data file that does not start with 1 is refused."""
    path = write_split(dense(), tmp_path)
    data = tmp_path / "net_variables" / "data_0"
    data.write_bytes(bytes([header]) + data.read_bytes()[1:])
    with pytest.raises(RuntimeError, match="Load MindIR failed"):
        ms.load(str(path))
    with pytest.raises(AmpError, match="little endian"):
        mindir_io.load(path)
