"""What the real frameworks answered, as files: models and inputs, and for each framework types and outputs.

A framework's types of a model are a text, a letter for each node in the file's order: ``l`` low, ``f`` float32, ``x``
both in one node, ``.`` nothing to compare.
"""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import onnx

FOLDER = Path(__file__).resolve().parents[1] / "planner" / "policies" / "answers"
DATE = (2026, 1, 1, 0, 0, 0)
KEPT = ("pkg.torch.onnx.fx_node", "pkg.torch.onnx.class_hierarchy", "pkg.torch.onnx.name_scopes")
OPSET = 22
SEEDS = 60


def letters(types, order):
    """Types by node as a text."""
    words = {(): ".", ("float32",): "f", ("float16",): "l", ("bfloat16",): "l"}
    return "".join(words.get(tuple(types.get(name, ())), "x") for name in order)


def write_models(models, folder=FOLDER):
    """Models and inputs: name -> (ModelProto, arrays)."""
    with zipfile.ZipFile(folder / "models.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for key, (model, inputs) in sorted(models.items()):
            _add(archive, f"{key}.onnx", _bare(model).SerializeToString(deterministic=True))
            _add(archive, f"{key}.npz", packed(inputs))


def _bare(model):
    """Without the lines of Python and the paths that an exporter writes down."""
    for node in model.graph.node:
        kept = [prop for prop in node.metadata_props if prop.key in KEPT]
        for prop in kept:
            prop.value = prop.value.replace("__main__.", "").replace("oracles.modules.", "")
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    for value in [*model.graph.value_info, *model.graph.initializer, *model.graph.input, *model.graph.output]:
        del value.metadata_props[:]
    del model.graph.metadata_props[:], model.metadata_props[:]
    return model


def _add(archive, name, data):
    info = zipfile.ZipInfo(name, DATE)
    info.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(info, data)


def packed(arrays):
    """Arrays as the bytes of an .npz file, always the same."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, array in arrays.items():
            one = io.BytesIO()
            np.lib.format.write_array(one, np.asarray(array, order="C"), allow_pickle=False)
            _add(archive, f"{key}.npy", one.getvalue())
    return held.getvalue()


def write_answers(framework, versions, types, outputs, folder=FOLDER):
    """``types``: model -> case -> letters; ``outputs``: by ``model/case/place``."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"versions": versions, "types": types}, indent=1, sort_keys=True)
    (folder / f"{framework}.json").write_text(text + "\n", encoding="utf-8")
    (folder / f"{framework}.npz").write_bytes(packed(outputs))


def asked(words):
    """What a maker of answers is asked: (whether to check the record, seeds, the folder to write to). Without words:
    the record anew; ``check``; ``new START STOP FOLDER``: other seeds, to another place."""
    if words[:1] == ["new"]:
        return False, range(int(words[1]), int(words[2])), Path(words[3])
    return words[:1] == ["check"], range(SEEDS), FOLDER


def differing(framework, types):
    """The recorded models whose types are others, for a run that checks the record instead of writing it."""
    recorded = Answers(framework).types
    return [f"{name}: {recorded.get(name)} -> {types[name]}" for name in types if recorded.get(name) != types[name]]


class Answers:
    """A framework's answers, read back."""

    def __init__(self, framework, folder=FOLDER):
        data = json.loads((folder / f"{framework}.json").read_text(encoding="utf-8"))
        self.versions, self.types = data["versions"], data["types"]
        self.outputs = np.load(folder / f"{framework}.npz")
        self._models = zipfile.ZipFile(folder / "models.zip")

    def model(self, name):
        return onnx.load_from_string(self._models.read(f"{name}.onnx"))

    def inputs(self, name):
        with np.load(io.BytesIO(self._models.read(f"{name}.npz"))) as held:
            return dict(held)

    def outputs_of(self, name, case):
        count = sum(key.startswith(f"{name}/{case}/") for key in self.outputs.files)
        return [self.outputs[f"{name}/{case}/{place}"] for place in range(count)]
