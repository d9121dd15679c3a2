"""What can be told of a converted file without a GPU: its speed there, and the error that a strict run predicts.

    python gpu_told.py SOURCE TARGET [--predict] --report FILE

`gpu.py` starts it and holds what the device does against it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from compare import errors  # noqa: E402

import ampgraph  # noqa: E402
from ampgraph.numerics.strict.session import StrictSession  # noqa: E402


def main() -> None:
    """Parse, tell, write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("source", "target"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--predict", action="store_true", help="run both strictly on the source's inputs")
    parser.add_argument("--report", type=Path, required=True)
    args = parser.parse_args()
    speed = ampgraph.inspect(str(args.target), target="cuda").speed
    devices = speed.devices if speed is not None else ()
    told: dict[str, Any] = {"estimate": {one.device: [one.low, one.high] for one in devices}}
    if args.predict:
        with np.load(args.source.with_suffix(".npz")) as data:
            feeds = dict(data)
        wanted, found = (list(StrictSession(path).run(feeds).values()) for path in (args.source, args.target))
        told["predicted"] = errors(found, wanted)
    args.report.write_text(json.dumps(told))


if __name__ == "__main__":
    main()
