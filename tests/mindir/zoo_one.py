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
from mindspore import amp, nn

import ampgraph
from ampgraph.core.errors import AmpError
from mindir import compare, export

SEED = 7


def build(name: str) -> nn.Cell:
    """The network with the same random weights at every call."""
    from mindcv.models import create_model

    ms.set_seed(SEED)
    np.random.seed(SEED)
    return create_model(name, num_classes=10).set_train(False)


def image(size: int) -> np.ndarray:
    return np.random.default_rng(SEED).standard_normal((1, 3, size, size)).astype(np.float32)


def written(name: str, level: str, array: np.ndarray, file: Path) -> list[np.ndarray]:
    """Exports a network at a level, and what the file computes."""
    net = build(name)
    if level != "fp32":
        net = amp.auto_mixed_precision(net, level, ms.float16)
        net.set_train(False)
    ms.export(net, ms.Tensor(array), file_name=str(file), file_format="MINDIR")
    return export.run(file, [array])


def distance(one: list[np.ndarray], other: list[np.ndarray]) -> float:
    """The largest difference of an output; infinite where one is no number."""
    apart = [np.max(np.abs(a.astype(np.float64) - b), initial=0) for a, b in zip(one, other, strict=True)]
    return float(max(np.nan_to_num(apart, nan=np.inf)))


def converted(source: Path, level: str, policy: str, array: np.ndarray) -> tuple[Path, list[np.ndarray], list[str]]:
    """The file converted, what it computes, and what its report notes."""
    file = source.parent / f"{policy}_{level}.mindir"
    plan = ampgraph.plan(source, level, policy=policy)
    ampgraph.convert(source, level, policy=policy, output=file, check="off")
    notes = [f"{note.where}: {note.text}" for note in plan.notes]
    return file, export.run(file, [array]), notes


def compared(name: str, level: str, array: np.ndarray, source: Path, plain: list[np.ndarray]) -> dict[str, Any]:
    """One level: what MindSpore's own file and ours are apart, and what each is from float32."""
    own_file = source.parent / f"{level}.mindir"
    try:
        own = written(name, level, array, own_file)
    except Exception as error:  # MindSpore's own defects, of any kind
        return {"refused": f"{type(error).__name__}: {export._message(error)}"[:160]}
    found: dict[str, Any] = {"own_error": distance(own, plain), "own_casts": compare.casts(compare.text.load(own_file))}
    for policy in ("mindspore", "ampgraph"):
        try:
            file, ours, notes = converted(source, level, policy, array)
        except AmpError as error:
            found[policy] = {"error": str(error)}
            continue
        row: dict[str, Any] = {"casts": compare.casts(compare.text.load(file)), "error": distance(ours, plain)}
        if policy == "mindspore":
            nodes = compare.compare(own_file, file)
            row["apart"], row["notes"] = distance(own, ours), notes
            row["dtypes"] = [a.dtype for a in own] == [b.dtype for b in ours]
            row["nodes"], row["differences"] = nodes.nodes, list(nodes.differences)[:12]
        found[policy] = row
    return found


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
        array, source = image(options.size), folder / "fp32.mindir"
        plain = written(options.name, "fp32", array, source)
        result: dict[str, Any] = {"name": options.name, "size": options.size}
        result["largest"] = distance(plain, [np.zeros_like(item) for item in plain])
        for level in options.levels:
            result[level] = compared(options.name, level, array, source, plain)
        print(json.dumps(result), flush=True)
        os.chdir("/")


if __name__ == "__main__":
    main()
