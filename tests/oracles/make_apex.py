"""Asks NVIDIA Apex, and writes what it answers: python -m oracles.make_apex CHECKOUT, in tests/, with torch 2.13 (CPU).

With the word ``check`` before the path it compares them with the recorded ones instead; with ``new START STOP FOLDER``
it asks of other random modules, and writes there.

Apex patches functions of Python, so the module itself runs, and not its exported graph. Both call the same operators in
the same order: the two logs are laid side by side, and what the module ran belongs to the node that ran it.
"""

from __future__ import annotations

import difflib
import logging
import platform
import sys
import warnings

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from oracles import answers, apex_amp, torch_types
from oracles.facade import Facade, below_autograd
from oracles.make_pytorch import arrays, everything

LEVELS = ("O0", "O2", "O3", "O1")


def logged(run, *arguments):
    """(what a run dispatched, its results) with facades for tensors."""
    log: list = []
    Facade.noted = log
    with torch.no_grad(), below_autograd():
        out = run(*tree_map(lambda t: Facade(t) if isinstance(t, torch.Tensor) else t, arguments))
    Facade.noted, Facade.place = None, ""
    return log, [t.held if isinstance(t, Facade) else t for t in tree_leaves(out)]


def placed(program, arguments):
    """What the exported graph dispatches in float32, with the node of each."""
    graph = program.module()

    def place(name):
        Facade.place = name

    return logged(torch_types.NodeByNode(graph, place, True).run, *arguments)[0]


def by_node(log, reference):
    """Operators by the node of the exported graph, of a log that has no nodes; and how many found none."""
    kept = [entry for entry in log if not is_cast(entry)]
    told = [entry for entry in reference if not is_cast(entry)]
    matcher = difflib.SequenceMatcher(None, [e[1] for e in kept], [e[1] for e in told], autojunk=False)
    calls: dict = {}
    matched = 0
    for block in matcher.get_matching_blocks():
        for here, there in zip(range(block.a, block.a + block.size), range(block.b, block.b + block.size), strict=True):
            _, op, given, made, _ = kept[here]
            floats = [[t for t in side if t in torch_types.FLOATS] for side in (given, made)]
            calls.setdefault(told[there][0], []).append((op, *floats))
            matched += 1
    return calls, len(kept) - matched


def is_cast(entry):
    """Conversions and views: eager calls and exports make others of the latter."""
    return entry[1] in torch_types.CASTS or entry[1].rpartition(".")[0] in torch_types.MOVES | {"aten.lift_fresh"}


def exported_modules(seeds):
    """(name, exported graph, its ONNX form, what it dispatches) of every module."""
    for name, (module, arguments) in everything(seeds):
        program = torch.export.export(module, arguments)
        exported = torch_types.export(program, answers.OPSET)
        yield name, exported, placed(program, arguments)


def main(*words):
    *asked, checkout = words
    check, seeds, folder = answers.asked(asked)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    amp = apex_amp.load(checkout)
    torch.backends.mha.set_fastpath_enabled(False)
    prepared = {name: rest for name, *rest in exported_modules(seeds)}
    types: dict = {}
    outputs: dict = {}
    for level in LEVELS:  # O1 patches PyTorch and comes last
        for name, (module, arguments) in everything(seeds):
            exported, reference = prepared[name]
            try:
                log, out = logged(apex_amp.initialized(amp, module, level), *arguments)
            except (RuntimeError, NotImplementedError) as error:
                types.setdefault(name, {})[level] = f"refused: {str(error).splitlines()[0]}"
                Facade.noted = None
                continue
            calls, lost = by_node(log, reference)
            order = [node.name for node in exported.model_proto.graph.node]
            types.setdefault(name, {})[level] = answers.letters(torch_types.onnx_types(exported, calls), order)
            outputs |= {f"{name}/{level}/{place}": array for place, array in enumerate(arrays(out))}
            print(level, name, types[name][level], f"{lost} operators belong to no node" if lost else "")
    if check:
        sys.exit("\n".join(answers.differing("apex", types)) or None)
    versions = {"apex": apex_amp.COMMIT, "torch": torch.__version__, "numpy": np.__version__}
    answers.write_answers("apex", {**versions, "python": platform.python_version()}, types, outputs, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
