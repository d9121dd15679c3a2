"""Asks torch.autocast, and writes what it answers: python -m oracles.make_pytorch, in tests/, with torch 2.13 (CPU).

With the word ``check`` it compares them with the recorded ones instead; ``new START STOP FOLDER`` asks of other random
modules, and writes there.
No GPU is needed: CUDA's autocast runs on facades (facade.py).
"""

from __future__ import annotations

import logging
import platform
import sys
import warnings

import numpy as np
import onnx
import torch

from oracles import answers, modules, torch_types

CASES = {
    "cuda float16": ("cuda", torch.float16),
    "cuda bfloat16": ("cuda", torch.bfloat16),
    "cpu bfloat16": ("cpu", torch.bfloat16),
}


def everything(seeds):
    """Name -> (module, arguments), each made when it is asked for."""
    for name in modules.MODULES if seeds == range(answers.SEEDS) else ():
        yield name, modules.made(name)
    for seed in seeds:
        yield f"random{seed:02d}", modules.composed(seed)


def arrays(tensors):
    """Tensors as arrays; what numpy has no type for as float32."""
    return [t.float().numpy() if t.dtype == torch.bfloat16 else t.numpy() for t in tensors]


def main(*words):
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    models: dict = {}
    types: dict = {}
    outputs: dict = {}
    check, seeds, folder = answers.asked(list(words))
    for name, (module, arguments) in everything(seeds):
        program = torch.export.export(module, arguments)
        exported = torch_types.export(program, answers.OPSET)
        proto = exported.model_proto
        order = [node.name for node in proto.graph.node]
        models[name] = proto, dict(zip([i.name for i in proto.graph.input], arrays(arguments), strict=True))
        types[name] = {}
        for case, (device, dtype) in CASES.items():
            try:
                calls, _, out = torch_types.run_autocast(program, arguments, device, dtype)
            except RuntimeError as error:  # an operator that PyTorch itself does not run in mixed types
                types[name][case] = f"refused: {str(error).splitlines()[0]}"
                continue
            types[name][case] = answers.letters(torch_types.onnx_types(exported, calls), order)
            for place, array in enumerate(arrays(out)):
                outputs[f"{name}/{case}/{place}"] = array
        print(name, types[name])
    if check:
        sys.exit("\n".join(answers.differing("pytorch", types)) or None)
    versions = {"torch": torch.__version__, "onnx": onnx.__version__, "numpy": np.__version__}
    answers.write_answers("pytorch", {**versions, "python": platform.python_version()}, types, outputs, folder)
    answers.write_models(models, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
