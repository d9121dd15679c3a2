"""One network of mindcv beside MindSpore's own mixed precision, in a process of its own.

``python -m mindir.zoo_one NAME SIZE LEVEL ... [--folder FOLDER]`` (with ``tests`` and mindcv on the path) builds the
network from a seed, exports it in float32 and as `auto_mixed_precision` makes it, converts the float32 file with the
policies ``mindspore`` and ``ampgraph``, runs all of them, and prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import amp, nn, ops

import ampgraph
from formats.mindir import text
from mindir import compare, export
from npz import write_npz

SEED = 7
IMAGES = 3
"""How many images a file is run on: errors are medians over them."""


def build(name: str, size: int) -> nn.Cell:
    """The network with the same random weights at every call, and the statistics of random images in its norms."""
    from mindcv.models import create_model

    ms.set_seed(SEED)
    np.random.seed(SEED)
    net = create_model(name, num_classes=10).set_train(False)
    statistics = Path(f"{name}.npz")
    if not statistics.exists():
        write_npz(statistics, measured(net, size))
    with np.load(statistics) as found:
        for parameter in net.get_parameters():
            if parameter.name in found:
                parameter.set_data(ms.Tensor(found[parameter.name]))
    return net


def measured(net: nn.Cell, size: int) -> dict[str, np.ndarray]:
    """What norms with stored statistics see: without it values vanish or overflow from layer to layer."""
    norms = [cell for _, cell in net.cells_and_names() if isinstance(cell, nn.BatchNorm1d | nn.BatchNorm2d)]
    if not norms:
        return {}
    kept = [(norm, norm.bn_train) for norm in norms]
    for norm in norms:
        norm.bn_train = ops.BatchNorm(is_training=True, epsilon=norm.eps, momentum=1.0)
        norm.training = True
    ms.set_context(mode=ms.PYNATIVE_MODE)
    net(ms.Tensor(np.random.default_rng(SEED).standard_normal((4, 3, size, size)).astype(np.float32)))
    ms.set_context(mode=ms.GRAPH_MODE)
    for norm, before in kept:
        norm.bn_train, norm.training = before, False
    found = [parameter for norm in norms for parameter in (norm.moving_mean, norm.moving_variance)]
    return {parameter.name: parameter.asnumpy() for parameter in found}


def images(size: int) -> list[np.ndarray]:
    dice = np.random.default_rng(SEED)
    return [dice.standard_normal((1, 3, size, size)).astype(np.float32) for _ in range(IMAGES)]


def written(name: str, level: str, arrays: list[np.ndarray], file: Path) -> list[np.ndarray]:
    """Exports a network at a level, and what the file computes of each image."""
    net = build(name, arrays[0].shape[-1])
    if level != "fp32":
        net = amp.auto_mixed_precision(net, level, ms.float16)
        net.set_train(False)
    ms.export(net, ms.Tensor(arrays[0]), file_name=str(file), file_format="MINDIR")
    return export.run(file, arrays, len(arrays))


def distance(one: list[np.ndarray], other: list[np.ndarray]) -> float:
    """The median of the largest differences; infinite where one is no number and the other is."""
    apart = []
    for a, b in zip(one, other, strict=True):
        same = np.array_equal(a, b, equal_nan=True)
        apart.append(0.0 if same else float(np.max(np.abs(a.astype(np.float64) - b))))
    return float(np.nan_to_num(np.median(apart), nan=np.inf))


def converted(source: Path, level: str, policy: str, arrays: list[np.ndarray]) -> tuple[Path, list[np.ndarray]]:
    """The file converted, and what it computes."""
    file = source.parent / f"{policy}_{level}.mindir"
    ampgraph.convert(source, level, policy=policy, output=file, check="off")
    return file, export.run(file, arrays, len(arrays))


def compared(name: str, level: str, arrays: list[np.ndarray], source: Path, plain: list[np.ndarray]) -> dict[str, Any]:
    """One level: what MindSpore's own file and ours are apart, and what each is from float32."""
    own_file = source.parent / f"{level}.mindir"
    try:
        own = written(name, level, arrays, own_file)
    except Exception as error:  # MindSpore's own defects, of any kind
        return {"refused": f"{type(error).__name__}: {export._message(error)}"[:120]}
    found: dict[str, Any] = {"own": {"error": distance(own, plain), "casts": compare.casts(text.load(own_file))}}
    for policy in ("mindspore", "ampgraph") if level == "O2" else ("mindspore",):
        file, ours = converted(source, level, policy, arrays)
        found[policy] = {"error": distance(ours, plain), "casts": compare.casts(text.load(file))}
        if policy == "mindspore":
            found["differences"] = sorted({_kind(line) for line in compare.compare(own_file, file).differences})
            same = all(
                a.dtype == b.dtype and np.array_equal(a, b, equal_nan=True) for a, b in zip(own, ours, strict=True)
            )
            found["identical"] = same
            found["apart"] = 0.0 if same else distance(own, ours)
    if not found["identical"]:
        found["notes"] = sorted({note.text for note in ampgraph.plan(source, level, policy="mindspore").notes})[:6]
    return found


def _kind(difference: str) -> str:
    """A difference without its place."""
    return " ".join(line.split("  [")[0] for line in difference.splitlines())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("size", type=int)
    parser.add_argument("levels", nargs="+")
    parser.add_argument("--folder", type=Path, help="keep the files here")
    options = parser.parse_args()
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)  # where MindSpore leaves its dumps
        arrays, source = images(options.size), folder / "fp32.mindir"
        plain = written(options.name, "fp32", arrays, source)
        result: dict[str, Any] = {"size": options.size, "largest": distance(plain, [0 * item for item in plain])}
        for level in options.levels:
            result[level] = compared(options.name, level, arrays, source, plain)
        print(json.dumps({options.name: result}), flush=True)
        os.chdir("/")


if __name__ == "__main__":
    main()
