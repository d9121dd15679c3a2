"""Exports models of torch for the digests: ``python -m digests.exporting KIND FOLDER``, in a process of its own.

Kinds: ``peers`` (the ten architectures of the benchmarks), ``small`` (those of the export tests), ``training`` (the
forward graphs of the training tests). Random weights, always the same.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

import onnx
import torch
from onnx import AttributeProto, GraphProto, NodeProto

import ampgraph
from digests.inputs import BENCHMARKS
from npz import write_npz

TRACE = "pkg.torch.onnx.stack_trace"  # names files of this machine


def peers(folder: Path) -> None:
    script = _script(BENCHMARKS / "export_models.py")
    for name, build in script.EXAMPLES.items():
        script.export(name, build, folder, batch=1)


def _script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def small(folder: Path) -> None:
    from exports.architectures import architectures

    for name, (module, example, feed, opset) in architectures().items():
        program = torch.onnx.export(
            module.eval(), (example,), dynamo=True, input_names=[feed], output_names=["out"], opset_version=opset,
            verbose=False,
        )  # fmt: skip
        assert program is not None
        program.save(str(folder / f"{name}.onnx"), external_data=False)
        write_npz(folder / f"{name}.npz", {feed: example.numpy()})


def training(folder: Path) -> None:
    from training.models import MAKERS, batch, make

    for name in MAKERS:
        inputs = [torch.tensor(array) for key, array in batch(name).items() if key != "labels"]
        ampgraph.export_for_training(make(name), inputs, folder / f"{name}.onnx", check=False)


def without_traces(path: Path) -> None:
    """Removes what names files of this machine."""
    model = onnx.load(path)
    for node in nodes(model.graph.node):
        _drop_trace(node)
    for function in model.functions:
        for node in nodes(function.node):
            _drop_trace(node)
    onnx.save(model, path)


def nodes(given: Iterable[NodeProto]) -> Iterable[NodeProto]:
    """With those of subgraphs."""
    for node in given:
        yield node
        for attribute in node.attribute:
            graphs: list[GraphProto] = [attribute.g] if attribute.type == AttributeProto.GRAPH else []
            for graph in (*graphs, *attribute.graphs):
                yield from nodes(graph.node)


def _drop_trace(node: NodeProto) -> None:
    kept = [entry for entry in node.metadata_props if entry.key != TRACE]
    del node.metadata_props[:]
    node.metadata_props.extend(kept)


KINDS: dict[str, Callable[[Path], None]] = {"peers": peers, "small": small, "training": training}


def main() -> None:
    kind, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    KINDS[kind](folder)
    for path in folder.glob("*.onnx"):
        without_traces(path)


if __name__ == "__main__":
    main()
