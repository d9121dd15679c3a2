"""What the two digits models share: the data with its fixed split, the training loop, and the export to one file.

The data is scikit-learn's `load_digits`: 1,797 grey images of 8 x 8. Training and export are seeded and run on one
thread, so that one set of library versions writes the same bytes every time.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

SPLIT_SEED = 20
HELD_OUT = 360
HELD_OUT_FILE = "digits_heldout.npz"

# The exporter notes the call stack of every node, with the paths of the machine it ran on; these alone are kept.
KEPT_METADATA = frozenset(
    {"namespace", "pkg.torch.onnx.class_hierarchy", "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.original_node_name"}
)

Arrays = tuple[npt.NDArray[Any], npt.NDArray[Any]]


def load_split() -> tuple[Arrays, Arrays]:
    """Return `(train, held_out)`, each `(image, labels)`: float32 [N, 1, 8, 8] in 0..1, and int64 [N]."""
    from sklearn.datasets import load_digits

    data = load_digits()
    image = (data.images[:, None] / 16.0).astype(np.float32)
    labels = data.target.astype(np.int64)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(labels))
    held, train = order[:HELD_OUT], order[HELD_OUT:]
    return (image[train], labels[train]), (image[held], labels[held])


def prepare_torch(seed: int) -> None:
    """Seed torch, and take one thread: the order of a parallel sum may change with the machine."""
    import torch

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


def train(model: torch.nn.Module, data: Arrays, *, epochs: int, lr: float, batch: int = 64) -> None:
    """Train by AdamW on a one-cycle schedule, with images moved by up to a pixel; leaves the model in eval mode."""
    import torch

    image, labels = torch.from_numpy(data[0]), torch.from_numpy(data[1])
    steps = -(-len(labels) // batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=lr, total_steps=epochs * steps)
    model.train()
    for _ in range(epochs):
        order = torch.randperm(len(labels))
        for part in order.split(batch):
            dx, dy = (int(v) for v in torch.randint(-1, 2, (2,)))
            moved = torch.roll(image[part], (dy, dx), dims=(2, 3))
            loss = torch.nn.functional.cross_entropy(model(moved), labels[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()


def accuracy(model: torch.nn.Module, data: Arrays) -> float:
    """Share of the images in `data` whose largest logit is the right one."""
    import torch

    with torch.no_grad():
        chosen = model(torch.from_numpy(data[0])).argmax(dim=1)
    return float((chosen.numpy() == data[1]).mean())


def export(model: torch.nn.Module, path: Path, *, opset: int, optimize: bool) -> None:
    """Export to one ONNX file: `image` [batch, 1, 8, 8] -> `logits` [batch, 10], without traces of the machine.

    `optimize=False` keeps each BatchNormalization, which the exporter's optimizer would fold into its convolution.
    """
    import torch

    program: Any = torch.onnx.export(
        model,
        (torch.zeros(2, 1, 8, 8),),
        dynamo=True,
        input_names=["image"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        opset_version=opset,
        optimize=optimize,
        verbose=False,
    )
    strip_metadata(program.model)
    program.save(str(path), external_data=False)


def strip_metadata(model: Any) -> None:
    """Keep the module scopes in the exporter's metadata and drop the rest (`model` is an `onnx_ir.Model`)."""
    model.metadata_props.clear()
    graph = model.graph
    things: list[Any] = [graph, *graph.all_nodes(), *graph.inputs, *graph.initializers.values()]
    things += [value for node in graph.all_nodes() for value in node.outputs]
    for thing in things:
        for key in [key for key in thing.metadata_props if key not in KEPT_METADATA]:
            del thing.metadata_props[key]


def save_held_out(folder: Path, data: Arrays) -> None:
    """Write the held-out images and labels beside the models: one file serves both of them."""
    np.savez_compressed(folder / HELD_OUT_FILE, image=data[0], labels=data[1])


def make(model: torch.nn.Module, path: Path, *, epochs: int, lr: float, opset: int, optimize: bool = True) -> None:
    """Train `model`, export it to `path` and write the held-out data beside it; refuse a poor one."""
    fit, held_out = load_split()
    train(model, fit, epochs=epochs, lr=lr)
    got = accuracy(model, held_out)
    if got < 0.97:
        raise SystemExit(f"{path.name}: held-out accuracy {got:.4f} is below 0.97; nothing written")
    path.parent.mkdir(parents=True, exist_ok=True)
    export(model, path, opset=opset, optimize=optimize)
    save_held_out(path.parent, held_out)
    size = sum(p.numel() for p in model.parameters())
    print(f"{path}: {size:,} parameters, held-out accuracy {got:.4f}, {path.stat().st_size:,} bytes")


def out_folder(description: str) -> Path:
    """Parse the command line of a `make_digits_*` script; the default folder is the package itself."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent, help="where the files go")
    return parser.parse_args().out
