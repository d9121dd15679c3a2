"""Networks of the package mindcv beside MindSpore's own mixed precision, as `zoo.json`.

    python -m mindir.zoo [NAME ...] [--table]        (with ``tests`` and mindcv on the path)

Runs `zoo_one` for each network, minutes each, and puts what it finds into the file; ``--table`` prints it.

Exports without their weights are small enough to be kept: ``zoo_graphs/NAME_LEVEL.mindir.gz``, made by ``--strip``. The
tests fill them with numbers that follow from the names of the parameters, the same in every file of a network."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ampgraph.formats.mindir import schema
from formats.mindir import text

RESULTS = Path(__file__).with_name("zoo.json")
LEVELS = ("O2", "O3", "auto")
SIZES = {
    **dict.fromkeys(("squeezenet1_0", "mobilenet_v1_025", "resnet18", "seresnet18", "mobilenet_v2_035_128"), 64),
    **dict.fromkeys(("mobilenet_v3_small_075", "convnextv2_atto", "shufflenet_v2_x0_5", "ghostnet_050"), 64),
    **dict.fromkeys(("poolformer_s12", "regnet_x_200mf", "repvgg_a0", "mnasnet_050", "skresnet18", "resnest14"), 64),
    **dict.fromkeys(("edgenext_xx_small", "efficientnet_b0", "shufflenet_v1_g3_05", "googlenet", "res2net50"), 64),
    **dict.fromkeys(("mixnet_s", "densenet121", "resnetv2_50", "regnet_y_200mf", "BiT_resnet50"), 64),
    **dict.fromkeys(("resnext50_32x4d", "convnext_tiny", "squeezenet1_1", "mobilenet_v1_050"), 64),
    **dict.fromkeys(("shufflenet_v1_g8_05",), 64),
    **dict.fromkeys(("xception", "inception_v3"), 96),
    **dict.fromkeys(("mobilevit_xx_small", "halonet_50t"), 128),
    **dict.fromkeys(("mlp_mixer_s_p32", "pit_ti", "visformer_tiny", "convit_tiny", "pvt_v2_b0", "swin_tiny"), 224),
    **dict.fromkeys(("xcit_tiny_12_p16_224", "coat_lite_tiny", "cmt_tiny", "cait_xxs24_224", "vit_b_32_224"), 224),
    **dict.fromkeys(("volo_d1",), 224),
    **dict.fromkeys(("crossvit_9",), 240),
}
"""Every network with the side of its images: small where it takes any."""

_MADE_FLOAT32 = "the network casts to float32 itself, which is nothing in the float32 file: Softmax is low here"
EXCUSED = {"vit_b_32_224": _MADE_FLOAT32}
"""What is not identical at O2 and O3, and why."""
_INHERITS = "its construct is inherited: MindSpore's O1 finds none in the source of its class, and leaves all float32"
_INDEXED = "it takes its cells from lists by index, where MindSpore's O1 does not find them, and leaves them float32"
APART_AT_O1 = {**dict.fromkeys(("regnet_x_200mf", "skresnet18"), _INHERITS), "pvt_v2_b0": _INDEXED}
"""What is not identical at O1, and why: the report names the operators."""


def measured(name: str) -> dict[str, Any]:
    """What `zoo_one` finds of a network, in a process of its own."""
    command = [sys.executable, "-m", "mindir.zoo_one", name, str(SIZES[name]), *LEVELS, "O1"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "GLOG_v": "4"})
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def keep(found: dict[str, Any]) -> None:
    """Puts results into the file, levels beside those that are there."""
    known = json.loads(RESULTS.read_text())["networks"] if RESULTS.exists() else {}
    known.update({name: {**known.get(name, {}), **one} for name, one in found.items()})
    rows = ",\n".join(f'"{name}": {json.dumps(known[name])}' for name in sorted(known))
    RESULTS.write_text('{"mindspore": "2.10.0", "mindcv": "0.3.0", "networks": {\n' + rows + "\n}}\n")


def table() -> str:
    """Every network: identical or how far apart at each level, and the errors and Casts at O2. At O1 MindSpore itself
    may fail, and some were not asked."""
    lines = []
    for name, found in json.loads(RESULTS.read_text())["networks"].items():
        words = [_word(found.get(level, {})) for level in (*LEVELS, "O1")]
        own, ours = found["O2"]["own"], found["O2"]["ampgraph"]
        errors = f"{own['error']:.1e} {ours['error']:.1e}  Casts {own['casts']} {ours['casts']}"
        lines.append(f"{name:24} {'  '.join(words):46} {errors}")
    return "\n".join(lines)


def _word(found: dict[str, Any]) -> str:
    """One level of a network."""
    if not found or "refused" in found:
        return "refused" if found else "-"
    return "identical" if found["identical"] else f"{found['apart']:.1e}"


HOME = Path(__file__).with_name("zoo_graphs")


def place(name: str, level: str) -> Path:
    return HOME / f"{name}_{level}.mindir.gz"


def strip(name: str, folder: Path) -> None:
    """Keeps the files of a network without the data of their parameters."""
    HOME.mkdir(exist_ok=True)
    for level in ("fp32", *LEVELS):
        model = text.load(str(folder / f"{level}.mindir"))
        for parameter in model.graph.parameter:
            parameter.ClearField("raw_data")
        place(name, level).write_bytes(gzip.compress(model.SerializeToString(), 9, mtime=0))


def write(name: str, level: str, file: Path) -> None:
    """A file of a network, with numbers in its parameters."""
    model = schema.Model()
    model.ParseFromString(gzip.decompress(place(name, level).read_bytes()))
    for parameter in model.graph.parameter:
        key = (parameter.ref_key or parameter.name).rpartition(":")[2]
        parameter.raw_data = numbers(key, tuple(parameter.dims)).tobytes()
    file.write_bytes(model.SerializeToString())


def numbers(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """What a parameter holds: statistics and scales around 0 and 1, weights so that values keep their size."""
    seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little")
    drawn = np.random.default_rng(seed).standard_normal(shape)
    last = name.rpartition(".")[2]
    if last in ("gamma", "moving_variance"):
        drawn = 1 + 0.1 * np.abs(drawn)
    elif len(shape) < 2:
        drawn *= 0.1
    else:
        drawn *= np.sqrt(2 / np.prod(shape[1:]))
    return drawn.astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="print what is recorded")
    parser.add_argument("--strip", type=Path, metavar="FOLDER", help="keep graphs that zoo_one left here (--folder)")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    for name in options.names or ([] if options.table else SIZES):
        if options.strip:
            strip(name, options.strip)
        else:
            keep(measured(name))
    print(table())


if __name__ == "__main__":
    main()
