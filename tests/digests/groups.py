"""The groups of cases. Each has a file of its own, knows its cases by name, and computes their rows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.cases import case, index
from digests import conversions, runs, steps
from digests.inputs import BENCHMARKS, TESTS, made_by
from digests.nets import networks
from digests.table import Row

MODELS = TESTS.parent / "models"
WRITING = ("onnx", "onnx-ir", "numpy", "ml_dtypes", "protobuf")
TRAINING = (*WRITING, "onnxruntime", "zlib")
TORCH = ("torch", "transformers", "onnxscript")
PEERS = ("bert", "gpt2", "llama", "vit", "resnet50", "swin", "convnext", "t5enc", "whisperenc", "cond")
SMALL = ("decoder", "vision", "residual", "branching")


@dataclass(frozen=True)
class Group:
    """``packages`` decide the bytes beside ampgraph. ``steady``: every run gives the same."""

    name: str
    columns: tuple[str, ...]
    packages: tuple[str, ...]
    names: Callable[[], Sequence[str]]
    rows: Callable[[str], Iterator[Row]]
    steady: bool = True


def _both(path: Path) -> tuple[str, ...]:
    return ("ampgraph", "mindspore") if path.suffix == ".mindir" else ("ampgraph",)


def committed() -> list[str]:
    return sorted(path.name for path in MODELS.iterdir() if path.suffix in (".onnx", ".mindir"))


def backend() -> list[str]:
    return sorted(index().ops.keys() - set(index().without_float))


def of_backend(name: str) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.onnx"
        path.write_bytes(case(name).model)
        yield from conversions.conversions(name, path)


def exported(kind: str, *sources: Path) -> Path:
    words = (kind, "{folder}")
    return made_by(kind, "digests.exporting", words, [Path(__file__).with_name("exporting.py"), *sources], TORCH)


def peers() -> Path:
    return exported("peers", BENCHMARKS / "export_models.py")


def small() -> Path:
    return exported("small", TESTS / "exports" / "architectures.py")


def of_export(name: str) -> Iterator[Row]:
    folder = peers() if name in PEERS else small()
    return conversions.conversions(name, folder / f"{name}.onnx")


def of_net(name: str) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.mindir"
        path.write_bytes(networks()[name])
        yield from conversions.conversions(name, path, _both(path))


def of_committed(name: str) -> Iterator[Row]:
    return conversions.conversions(name, MODELS / name, _both(MODELS / name))


def of_strict(name: str) -> Iterator[Row]:
    return runs.of_example(name, MODELS, small)


def of_trained(name: str) -> Iterator[Row]:
    return steps.trained(name, MODELS)


def of_step(name: str) -> Iterator[Row]:
    return steps.built(name, MODELS, lambda: exported("training", TESTS / "training" / "models.py"))


GROUPS = {
    group.name: group
    for group in (
        Group("models", conversions.COLUMNS, WRITING, committed, of_committed),
        Group("backend", conversions.COLUMNS, (*WRITING, "onnxruntime"), backend, of_backend),
        Group("exports", conversions.COLUMNS, (*WRITING, *TORCH), lambda: [*PEERS, *SMALL], of_export),
        Group("mindir", conversions.COLUMNS, WRITING, lambda: list(networks()), of_net),
        Group("strict", runs.COLUMNS, (*WRITING, *TORCH, "onnxruntime"), runs.names, of_strict, False),
        Group("strict-backend", runs.BACKEND_COLUMNS, (*WRITING, "onnxruntime"), backend, runs.of_backend, False),
        Group("steps", steps.COLUMNS, (*WRITING, *TORCH, "zlib"), lambda: list(steps.ALL), of_step),
        Group("trained", steps.COLUMNS, TRAINING, lambda: list(steps.DIGITS), of_trained, False),
    )
}
