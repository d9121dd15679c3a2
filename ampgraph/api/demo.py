"""What `ampgraph demo` starts from: a small transformer and 360 images, which come with the package."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from ..core.errors import AmpError
from ..core.files import refusals_reported, whole_file
from .kinds import PathLike

MODEL, DATA = "digits_transformer.onnx", "digits_heldout.npz"
FOLDER = "ampgraph-demo"


def write_demo(folder: PathLike = FOLDER) -> tuple[Path, Path]:
    """Writes a float32 model and samples for it into a folder, which is made; returns the paths of both.

    Raises AmpError AMP105 where that cannot be done.
    """
    place = Path(folder)
    if place.exists() and not place.is_dir():
        raise AmpError("AMP105", "is not a folder", where=str(place), hint="name another one")
    with refusals_reported(place):
        place.mkdir(parents=True, exist_ok=True)
    for name in (MODEL, DATA):
        with whole_file(place / name) as temporary:
            temporary.write_bytes(resources.files("ampgraph.models").joinpath(name).read_bytes())
    return place / MODEL, place / DATA
