"""Random graphs and modules beyond the recorded ones: asks the frameworks, and compares with the policies.

    python -m oracles.new_seeds FOLDER START STOP [tensorflow mxnet pytorch apex]

In tests; environments.sh makes FOLDER. Prints what differs and how much was
compared; the exit status is 1 where something differs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from oracles import onnx_graphs
from oracles.answers import Answers
from planner.policies import test_apex, test_mxnet, test_pytorch, test_tensorflow

Found = tuple[int, list[str]]
"""How much was compared, and what differs."""


def ask(options: argparse.Namespace, environment: str, module: str, *words: object) -> str:
    """What a maker of answers prints."""
    python = options.folder / environment / "bin" / "python"
    seeds = [str(options.start), str(options.stop)]
    command = [str(python), "-m", f"oracles.{module}", "new", *seeds, *map(str, words)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def tensorflow(options: argparse.Namespace, place: Path) -> Found:
    def differs(run: str, seed: int, answer: str) -> bool:
        text = onnx_graphs.text(test_tensorflow.ours(run, seed, place))
        return text != test_tensorflow.expected(run, seed, answer)

    return graphs(options, ask(options, "tensorflow", "tensorflow_answers"), differs)


def mxnet(options: argparse.Namespace, place: Path) -> Found:
    def differs(run: str, seed: int, answer: str) -> bool:
        return test_mxnet.ours(run, seed) != answer

    return graphs(options, ask(options, "mxnet", "mxnet_answers"), differs)


def graphs(options: argparse.Namespace, text: str, differs: Callable[[str, int, str], bool]) -> Found:
    """Compares the graphs of every run; MXNet refuses some."""
    count, found = 0, []
    for run, answers in json.loads(text.splitlines()[-1]).items():
        told = [(seed, answer) for seed, answer in enumerate(answers, options.start) if answer != "refused"]
        found += [f"{run} {seed}" for seed, answer in told if differs(run, seed, answer)]
        count += len(told)
    return count, found


def pytorch(options: argparse.Namespace, place: Path) -> Found:
    ask(options, "torch", "make_pytorch", place)
    return modules(Answers("pytorch", place), test_pytorch.CASES, test_pytorch.compared_nodes)


def apex(options: argparse.Namespace, place: Path) -> Found:
    if not (place / "models.zip").exists():
        ask(options, "torch", "make_pytorch", place)  # the models are the same
    ask(options, "torch", "make_apex", place, options.folder / "torch-apex")
    return modules(Answers("apex", place), test_apex.LEVELS, test_apex.compared_nodes)


def modules(answers: Answers, cases: tuple[str, ...], compared: Callable[[Answers, str, str], int]) -> Found:
    """Compares all modules node by node."""
    count, found = 0, []
    for name in answers.types:
        for case in cases:
            try:
                count += compared(answers, name, case)
            except AssertionError as error:
                found.append(f"{name} {case}: {error}")
    return count, found


FRAMEWORKS = {"tensorflow": tensorflow, "mxnet": mxnet, "pytorch": pytorch, "apex": apex}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("start", type=int)
    parser.add_argument("stop", type=int)
    parser.add_argument("frameworks", nargs="*", default=list(FRAMEWORKS))
    options = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory() as place:
        for name in options.frameworks:
            count, found = FRAMEWORKS[name](options, Path(place))
            print(*found, f"{name}: {count} compared, {len(found)} differ", sep="\n", flush=True)
            good &= not found and count > 0
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
