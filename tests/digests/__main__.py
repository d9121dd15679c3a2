"""What ampgraph writes and computes, beside the committed digests of it.

    cd tests && python -m digests --check [GROUP ...]    # what differs from the files; without groups: all
    cd tests && python -m digests --write [GROUP ...]    # makes the files again, and says which cases changed

Groups: models, backend, exports, mindir (files of conversion, and plans); strict, strict-backend (outputs of strict
runs); steps, trained (files of training steps, and a few strict steps). `--case` takes only cases whose names match.
Exports of torch are made once and kept under the temporary folder (1.3 GB); `--fresh` makes them again.
`--check` ends with 1 where something differs, and with 2 where something could not be compared: other versions of what
writes the files beside ampgraph, or other inputs.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

if not __package__:
    sys.exit("run it as a module, in tests: python -m digests")
sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

os.environ.setdefault("AMPGRAPH_CHECK", "off")  # what is written is compared, not run again

from digests import inputs  # noqa: E402
from digests.check import Verdict, absent, check, write  # noqa: E402
from digests.groups import GROUPS, Group  # noqa: E402


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true", help="compare with the files")
    what.add_argument("--write", action="store_true", help="write the files")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=" ".join(GROUPS))
    parser.add_argument("--case", default="*", metavar="PATTERN", help="only these cases, by --check")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--fresh", action="store_true", help="export the inputs again")
    given = parser.parse_args()
    if unknown := sorted(set(given.groups) - set(GROUPS)):
        parser.error(f"unknown group {', '.join(unknown)}; known: {', '.join(GROUPS)}")
    if given.write and given.case != "*":
        parser.error("--case is for --check: a file is written whole")
    return given


def _one(group: Group, given: argparse.Namespace) -> Verdict:
    if missing := absent(group):
        return Verdict(group.name, not_compared=f"needs {', '.join(missing)}")
    return write(group, given.jobs) if given.write else check(group, given.case, given.jobs)


def main() -> int:
    given = _arguments()
    if given.fresh:
        inputs.forget()
    verdicts = []
    for name in given.groups or GROUPS:
        before, wall = time.process_time(), time.perf_counter()
        verdicts.append(_one(GROUPS[name], given))
        spent = f"{time.process_time() - before:.0f} CPU s here, {time.perf_counter() - wall:.0f} s"
        print(f"{verdicts[-1]} ({spent})", flush=True)
    if given.write:
        return 0
    return 1 if any(v.changed for v in verdicts) else 2 if any(v.not_compared for v in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
