"""Asks NVIDIA Apex, and writes what it answers: python -m oracles.make_apex CHECKOUT, in tests/, with torch 2.13 (CPU).

With the word ``check`` before the path it compares them with the recorded ones instead; with ``new START STOP FOLDER``
it asks of other random modules, and writes there.

Apex patches functions of Python, so the module itself runs, and not its exported graph. Both call the same operators in
the same order: the two logs are laid side by side, and what the module ran belongs to the node that ran it.

The tensors are the facades of facade.py. Only apex/amp, apex/fp16_utils and apex/multi_tensor_apply are run, which are
plain Python; what needs compiled extensions is left out. Apex is on no index: CHECKOUT is of commit e13873de."""

from __future__ import annotations

import difflib
import importlib
import logging
import platform
import sys
import types
import warnings
from pathlib import Path

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from oracles import answers, torch_types
from oracles.facade import Facade, below_autograd
from oracles.make_pytorch import arrays, everything

COMMIT = "e13873de"


def load_apex(checkout):
    """apex.amp of a checkout, without what it would compile."""
    torch.version.cuda = "12.8"  # amp asks it whether bmm is fast in float16
    source = Path(checkout) / "apex"

    def package(name):
        module = types.ModuleType(name)
        module.__path__ = [str(source.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = module
        return module

    apex = package("apex")
    apex.DeprecatedFeatureWarning, apex.deprecated_warning = FutureWarning, lambda *_: None
    for name, cls in (
        ("apex.contrib", ""), ("apex.contrib.optimizers", "FP16_Optimizer"), ("apex.optimizers", "FusedSGD"),
        ("apex.parallel", "DistributedDataParallel"), ("apex.parallel.LARC", "LARC"),
    ):  # fmt: skip
        module = package(name)
        if cls:
            setattr(module, cls, type(cls, (), {}))
    setattr(torch.cuda, "IntTensor", lambda value: torch.tensor(value, dtype=torch.int32))  # noqa: B010
    amp = importlib.import_module("apex.amp")
    sys.modules["apex.amp._amp_state"]._amp_state.allow_incoming_model_not_fp32 = True  # it is not on CUDA yet
    return amp


def initialized(amp, module, level, **options):
    """A module under a level: apex casts its plain tensors, which then become facades."""
    done = amp.initialize(module, None, opt_level=level, verbosity=0, **options)
    for part in done.modules():
        for name, value in part._parameters.items():
            if value is not None:
                part._parameters[name] = torch.nn.Parameter(Facade(value.detach()), requires_grad=False)
        for name, value in part._buffers.items():
            if value is not None:
                part._buffers[name] = Facade(value)
        for name in getattr(part, "_flat_weights_names", ()):  # a recurrent module keeps its weights twice
            part._flat_weights[part._flat_weights_names.index(name)] = part._parameters[name]
    return done


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
    amp = load_apex(checkout)
    torch.backends.mha.set_fastpath_enabled(False)
    prepared = {name: rest for name, *rest in exported_modules(seeds)}
    types: dict = {}
    outputs: dict = {}
    for level in LEVELS:  # O1 patches PyTorch and comes last
        for name, (module, arguments) in everything(seeds):
            exported, reference = prepared[name]
            try:
                log, out = logged(initialized(amp, module, level), *arguments)
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
    versions = {"apex": COMMIT, "torch": torch.__version__, "numpy": np.__version__}
    answers.write_answers("apex", {**versions, "python": platform.python_version()}, types, outputs, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
