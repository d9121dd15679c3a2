"""Exports networks of ``nets`` as MindIR: in float32, and as MindSpore's own mixed precision makes them.

``python -m mindir.export FOLDER [NAME[:LEVEL,LEVEL] ...] [--levels fp32 O1 ...]`` (with ``tests`` on the path) writes
``FOLDER/<name>/<level>.mindir``, ``inputs.npz``, ``outputs_<level>.npz`` and ``errors.json`` (``--errors``): what
MindSpore refused.
A level such as ``O2-bfloat16`` is exported and not run: the CPU has no bfloat16 kernels.
``python -m mindir.export --run FILE.mindir INPUTS.npz OUTPUTS.npz ...`` runs files, three arguments each.
One process serves many networks, because importing mindspore takes seconds.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import traceback
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import amp, nn

from mindir import nets
from npz import read_numbered

LEVELS = ("fp32", "O1", "O2", "O3", "auto")


def export(name: str, level: str, file: Path) -> None:
    net = nets.build(name)
    if level != "fp32":
        level, _, dtype = level.partition("-")
        net = amp.auto_mixed_precision(net, level, getattr(ms, dtype or "float16"))
        net.set_train(False)
    arguments = [ms.Tensor(array) for array in nets.inputs(name)]
    if name in nets.DYNAMIC:
        shapes = zip(nets.DYNAMIC[name], arguments, strict=True)
        arguments = [ms.Tensor(shape=shape, dtype=array.dtype) for shape, array in shapes]
    file.unlink(missing_ok=True)  # MindSpore writes its files read-only
    ms.export(net, *arguments, file_name=str(file), file_format="MINDIR")


def run(file: Path, arrays: list[np.ndarray], times: int = 1) -> list[np.ndarray]:
    """What the graph executor computes for the file; bfloat16 comes back as float32. ``arrays`` may hold the inputs of
    several runs, one behind the other; so does the result then."""
    cell = nn.GraphCell(ms.load(str(file)))
    count = len(arrays) // times
    found = []
    for start in range(0, len(arrays), count):
        results = cell(*[ms.Tensor(array) for array in arrays[start : start + count]])
        found += [(item.float() if item.dtype == ms.bfloat16 else item).asnumpy() for item in _leaves(results)]
    return found


def _leaves(results) -> list[ms.Tensor]:
    """The tensors of nested tuples, in order."""
    if isinstance(results, tuple | list):
        return [leaf for item in results for leaf in _leaves(item)]
    return [results]


def export_all(folder: Path, names: list[str], levels: list[str]) -> dict[str, str]:
    """Exports and runs; returns what failed, ``name/level`` -> message."""
    errors = {}
    for word in names:
        name, _, chosen = word.partition(":")
        target = folder / name
        target.mkdir(parents=True, exist_ok=True)
        arrays = nets.inputs(name)
        np.savez(target / "inputs.npz", *arrays)
        for level in chosen.split(",") if chosen else levels:
            file = target / f"{level}.mindir"
            step = "export"
            try:
                export(name, level, file)
                step = "run"
                if "-" in level:
                    continue
                np.savez(target / f"outputs_{level}.npz", *run(file, list(arrays)))
            except Exception as error:  # MindSpore's own defects, of any kind
                errors[f"{name}/{level}"] = f"{step}: {type(error).__name__}: {_message(error)}"
                (target / f"error_{level}.txt").write_text(traceback.format_exc())
    return errors


def _message(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if line and not line.startswith("-")), "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", action="store_true", help="run files: FILE INPUTS OUTPUTS, repeated")
    parser.add_argument("--times", type=int, default=1, help="how many runs the inputs of a file are for")
    parser.add_argument("--levels", nargs="+", default=list(LEVELS))
    parser.add_argument("--errors", default="errors.json")
    parser.add_argument("arguments", nargs="+")
    options = parser.parse_args()
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    gc.freeze()  # MindSpore collects garbage before each compilation: not among all that is imported
    if options.run:
        for file, given, results in zip(*[iter(options.arguments)] * 3, strict=True):
            np.savez(results, *run(Path(file), read_numbered(given), options.times))
        return
    folder, names = Path(options.arguments[0]).resolve(), options.arguments[1:]
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)  # where MindSpore leaves its dumps of what it could not compile
    errors = export_all(folder, names or list(nets.CELLS), options.levels)
    (folder / options.errors).write_text(json.dumps(errors, indent=1))


if __name__ == "__main__":
    main()
