"""Opens every conversion of many models with ONNX Runtime's default options, and says which kill it.

    cd tests && python -m opening                    # exports by TorchScript, what the fuzz found, onnx's backend suite
    cd tests && python -m opening --suite 1/8 --levels O2 --out deaths.txt
    cd tests && python -m opening --models FOLDER    # the .onnx files of a folder instead

Each in every way: level, low type, target. What is refused for other things than kernels is listed too. Ends with 1
where a file kills the runtime.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

if not __package__:
    sys.exit("run it as a module, in tests: python -m opening")
sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from opening.sweep import EXPORTS, FAULTS, WAYS, opened, suite  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="1/1", metavar="NTH/OF", help="every OF-th model of the suite, from the NTH")
    parser.add_argument("--levels", nargs="+", default=["O1", "O2", "O3", "auto"])
    parser.add_argument("--models", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    nth, of = map(int, args.suite.split("/"))
    if args.models:
        names = [f"file/{path}" for path in sorted(args.models.rglob("*.onnx"))][nth - 1 :: of]
    else:
        names = [*EXPORTS, *FAULTS, *suite()[nth - 1 :: of]]
    before = {one.name: one for one in opened((name, None) for name in names)}
    ways = [way for way in WAYS if way.level in args.levels]
    counts, lines = Counter[str](), list[str]()
    for one in opened((name, way) for name in names if before[name].how.opens for way in ways):
        kind = "dies" if one.how.died else "lacks a kernel" if one.how.lacks_kernel else "refused"
        counts["opens" if one.how.opens else kind] += 1
        lines += [] if one.how.opens or one.how.lacks_kernel else [str(one)]
    said = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    text = "\n".join([*lines, f"{len(before)} models, {sum(counts.values())} files: {said}"]) + "\n"
    print(text, end="")
    if args.out:
        args.out.write_text(text, encoding="utf-8")
    return bool(counts["dies"])


if __name__ == "__main__":
    sys.exit(main())
