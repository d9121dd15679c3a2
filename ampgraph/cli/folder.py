"""`ampgraph convert DIR -o OUT`: each model of a folder by the command that converts one, in a process of its own; all
else is copied, so that the library that wrote the folder loads the result.

What was done stands in a manifest in OUT, by which a second call skips what has not changed. Links to files are
followed, links to folders and hidden folders are not.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import AmpError
from ..core.files import refuse_output, sources_of, sweep, whole_file
from ..core.graph import is_mindir
from ..core.json_types import JsonObject
from ..core.recipe import flags, recipe_of
from ..core.shown import plural
from ..core.version import __version__
from ..formats import adapters
from ..formats.checks import MODEL_SUFFIXES
from ..planner.resolve import resolve
from ..runtime.child import Answer, in_child
from .command import CommandOutput
from .terminal import Display

MANIFEST = "ampgraph-convert.json"
ONE_MODEL = ("plan_in", "plan_out", "ranges_out", "data", "html")
"""Options of `convert` that are about one model."""
STATES = ("right", "doubtful", "not checked", "unchanged", "missed", "failed")
PER_BYTE = 4  # of a model's: what a conversion holds, and its check beside it
FIXED = 1 << 30  # bytes that a process takes before there is a model in it

OTHER_WORDS = ("_fp16", "_q4f16", "_int8", "_uint8", "_quantized", "_bnb4")
"""How transformers.js ends the names of files that are not for fp16."""

ConvertOne = Callable[[Any, Answer], None]
"""Converts one model in a process of its own: is given the options of `convert`, and answers `ConvertedFile.found`."""


@dataclass
class ConvertedFile:
    """What became of one model of the folder. ``found``: what `convert_in_child` answered; ``inputs`` and ``written``:
    name of a file in the folder read, or written -> digest; ``skipped``: whether an earlier call did this."""

    file: str
    found: JsonObject
    inputs: dict[str, str]
    skipped: bool = False
    written: dict[str, str] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """What became of a model of the folder, one of `STATES`."""
        if "error" in self.found:
            return "failed"
        report: Any = self.found["report"]
        verdict = report["check"]
        if verdict is None:
            return "not checked" if report["changed"] else "unchanged"
        if self.found["ok"] is False:
            return "missed"
        outcome: str = verdict["outcome"]
        return "right" if outcome == "ok" else outcome

    def line(self, width: int) -> str:
        """The line that `convert` prints for a file of a folder, the file's name as wide as ``width``."""
        if self.state == "failed":
            return f"{self.file:<{width}}  FAILED {self.found['error']}"
        report: Any = self.found["report"]
        size = f"{report['bytes_before']:,} -> {report['bytes_after']:,} bytes"
        casts = f"{report['casts_after'] - report['casts_before']:+,} casts"
        said = "as before: " * self.skipped + str(self.found["said"])
        return f"{self.file:<{width}}  {size}, {casts}  {said}"

    def to_dict(self) -> JsonObject:
        """What became of a model of the folder, as plain data for JSON."""
        return {"file": self.file, "state": self.state, "skipped": self.skipped, **self.found}


def convert_folder(
    bar: Display, one: ConvertOne, options: Mapping[str, Any], *, model: str, output: str | None, jobs: int, web: bool
) -> CommandOutput:
    """Converts the models of a folder, and copies its other files. The manifest is written after each model.

    Args:
        one: converts one model in a process of its own.
        options: of `convert` but those below.
        jobs: how many models are converted at once, as far as memory allows.
        web: write files by the names that transformers.js loads, and leave out models that it has no names for.

    Raises AmpError AMP101 without an output or a model, AMP105 and AMP106 for an output that can be no folder for it,
    AMP404 for an option that is about one model, and what `Recipe` raises.
    """
    source, target = _source_and_target(model, output, options)
    files, linked = _files_and_links(source)
    models = [name for name in files if Path(name).suffix.lower() in MODEL_SUFFIXES]
    targets = {name: named_for_web(name) if web else name for name in models}
    names = {name: to for name, to in targets.items() if to}
    if not names:
        raise AmpError("AMP101", "no .onnx or .mindir file in it", where=model, hint="name the folder of the models")
    digest, dry = _options_digest(options, next(iter(names))), bool(options["dry_run"])
    before = {name: entry for name, entry in _read_manifest(target).items() if name in names}
    work = _FolderJob(one, options, source, target, names, digest, before, MemoryBudget())
    done: list[ConvertedFile] = []
    with ThreadPoolExecutor(jobs) as pool:
        try:
            # one at a time: here, where Ctrl-C ends the process that converts
            for found in map(work.convert, names) if jobs == 1 else pool.map(work.convert, names):
                done.append(found)
                bar.line(found.line(max(map(len, names))))
                if not dry:
                    _write_manifest(target, digest, done, before)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    taken = {name for found in done for name in found.inputs} | {name for found in done for name in found.written}
    others = [name for name in files if name not in names and name not in taken]
    copied, faults = ([], []) if dry else _copy_files(source, target, others)
    faults += _unmatched_words(done)
    return _folder_output(model, target, done, copied, faults, linked)


def _unmatched_words(done: list[ConvertedFile]) -> list[AmpError]:
    """Command `convert FOLDER`: an AmpError AMP305 for each word of an option that matches in no model."""
    unmatched: list[Any] = [one.found["unmatched"] for one in done if one.state != "failed"]
    words = [word for word in (unmatched[0] if unmatched else ()) if all(word in others for others in unmatched)]
    return [AmpError("AMP305", f"'{word}' matches nothing in any of the models") for word in words]


def _folder_output(
    model: str, target: Path, done: list[ConvertedFile], copied: list[str], faults: list[AmpError], linked: list[str]
) -> CommandOutput:
    """Command `convert FOLDER`: what it prints and returns at the end: states of all models, files copied, faults, and
    links to folders. The exit code is 2 where a model or copy failed, 1 where one missed."""
    counts = Counter(found.state for found in done)
    said = ", ".join(f"{counts[state]:,} {state}" for state in STATES if counts[state])
    files = f"{plural(len(copied), 'other file')} copied to {target}"
    end = [f"{plural(len(done), 'model')}: {said}; {files}", *map(str, faults)]
    end += [f"{name}: a link to a folder, not followed" for name in linked]
    report = {
        "model": model, "output": str(target), "models": [found.to_dict() for found in done], "copied": copied,
        "links": linked, "counts": {state: counts[state] for state in STATES}, "errors": [*map(str, faults)],
    }  # fmt: skip
    failed = bool(counts["failed"] or faults)
    return CommandOutput(report, lambda: end, not failed and not counts["missed"], code=2 if failed else 1)


def _options_digest(options: Mapping[str, Any], model: str) -> str:
    """Command `convert FOLDER`: a digest of what decides a result besides the model: version, options and list files.
    ``model``: the name of one, for its format. Raises AmpError for options that no such model can have."""
    recipe = recipe_of(None, options["fields"])
    resolve(recipe, "MindIR" if is_mindir(model) else "ONNX")
    words = {name: value for name, value in options.items() if name != "fields"}
    files = [_file_digest(file) for file in sources_of(recipe.lists)]
    decides = [__version__, os.environ.get("AMPGRAPH_CHECK"), str(recipe), recipe.to_json(), words, files]
    return hashlib.sha256(json.dumps(decides).encode()).hexdigest()


def _source_and_target(model: str, output: str | None, options: Mapping[str, Any]) -> tuple[Path, Path]:
    """Command `convert FOLDER`: (the folder of models to read, the one to write), checked before work begins."""
    given = [name for name in ONE_MODEL if options[name]]
    if given:
        message = f"{flags(given)[0]} is about one model, and {model} is a folder"
        raise AmpError("AMP404", message, hint="omit it, or convert that model by itself")
    if output is None:
        hint = "add -o OUT to convert every model in it, or name the file in it"
        raise AmpError("AMP101", "is a directory, not a model", where=model, hint=hint)
    source, target = Path(model), Path(output)
    real, other = Path(os.path.realpath(source)), Path(os.path.realpath(target))
    if real == other or real in other.parents or other in real.parents:
        message = "the result's folder and the model's lie in each other"
        raise AmpError("AMP106", message, where=output, hint="choose a folder beside it with -o")
    refuse_output(target / MANIFEST) if target.is_dir() else refuse_output(target, option="-o")
    return source, target


def _files_and_links(source: Path) -> tuple[list[str], list[str]]:
    """Command `convert FOLDER`: (files, links to folders) in it by path, without hidden folders and manifests."""
    files: list[str] = []
    linked: list[str] = []
    for folder, inside, found in os.walk(source):
        where = Path(folder).relative_to(source)
        linked += [(where / name).as_posix() for name in inside if Path(folder, name).is_symlink()]
        inside[:] = [name for name in inside if not name.startswith(".")]
        files += [(where / name).as_posix() for name in found if name != MANIFEST]
    return sorted(files), sorted(linked)


# -- one model --------------------------------------------------------------------------------------------------------


@dataclass
class _FolderJob:
    """Command `convert FOLDER`: what its threads share, each of which waits for a process. ``names``: model in the
    folder -> name of its result; ``before``: the entries of the manifest of an earlier call."""

    one: ConvertOne
    options: Mapping[str, Any]
    source: Path
    target: Path
    names: Mapping[str, str]
    digest: str
    before: JsonObject
    memory: MemoryBudget

    def convert(self, name: str) -> ConvertedFile:
        """Converts a model of the folder once there is memory, unless the manifest says that nothing changed since."""
        path, place = self.source / name, self.target / self.names[name]
        files = [path, *_data_files(path)]
        inputs = _digests(files, self.source)
        entry: Any = self.before.get(name)
        as_before = entry and [entry["options"], entry["inputs"]] == [self.digest, inputs]
        if as_before and all(_file_digest(self.target / one) == kept for one, kept in entry["written"].items()):
            return ConvertedFile(name, entry["found"], inputs, skipped=True, written=entry["written"])
        size = sum(file.stat().st_size for file in files if file.is_file())
        with self.memory.reserve(PER_BYTE * size + FIXED):
            found = self._run(path, place)
        written = {}
        if "error" not in found and not self.options["dry_run"] and place.is_file():
            written = _digests([place, *_data_files(place)], self.target)
        return ConvertedFile(name, found, inputs, written=written)

    def _run(self, path: Path, place: Path) -> JsonObject:
        """Converts one model of the folder in a child process: its answer, or an ``error``; the others go on."""
        if not self.options["dry_run"]:
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                return {"error": f"error[AMP105]: {place.parent}: cannot be made: {error.strerror or error}"}
        options = {**self.options, "model": str(path), "output": None if self.options["dry_run"] else str(place)}
        ended = in_child(self.one, options, seconds=float("inf"), memory=sys.maxsize)
        return ended.answers[-1] if ended.answers else {"error": f"error[AMP502]: {path}: {ended.said}"}


class MemoryBudget:
    """Command `convert FOLDER`: the free memory, in bytes, that its models share."""

    def __init__(self) -> None:
        self.free, self.running, self.changed = free_memory(), 0, threading.Condition()

    @contextlib.contextmanager
    def reserve(self, size: int) -> Iterator[None]:
        """Holds ``size`` bytes of the folder's memory inside, once they are free or no other model runs."""
        with self.changed:
            self.changed.wait_for(lambda: not self.running or size <= self.free)
            self.free -= size
            self.running += 1
        try:
            yield
        finally:
            with self.changed:
                self.free += size
                self.running -= 1
                self.changed.notify_all()


def free_memory() -> int:
    """Command `convert FOLDER`: how many bytes of memory programs can still have; sys.maxsize if unknown."""
    with contextlib.suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    return sys.maxsize


def named_for_web(name: str) -> str:
    """Command `convert --transformers-js`: the name by which transformers.js loads a model's result: X_fp16.onnx for
    X.onnx, X_q4f16.onnx for X_q4.onnx; "" for a model that is quantized otherwise, or low already."""
    path = Path(name)
    if path.stem.endswith(OTHER_WORDS):
        return ""
    stem = f"{path.stem}f16" if path.stem.endswith("_q4") else f"{path.stem}_fp16"
    return path.with_name(f"{stem}{path.suffix}").as_posix()


def _data_files(path: Path) -> list[Path]:
    """Command `convert FOLDER`: the data files of a model; none where it cannot be read: its conversion says so."""
    try:
        return [Path(os.path.abspath(file)) for file in adapters.load(str(path))[0].data_files()]
    except Exception:  # whatever it is
        return []


def _digests(files: Iterable[Path], root: Path) -> dict[str, str]:
    """Command `convert FOLDER`: path in the folder ``root`` -> digest, of those files that exist."""
    return {Path(os.path.relpath(file, root)).as_posix(): _file_digest(file) for file in files if file.is_file()}


def _file_digest(path: Path) -> str:
    """Command `convert FOLDER`: a digest of a file's bytes; "" where it cannot be read."""
    try:
        with open(path, "rb") as file:
            made = hashlib.sha256()
            while chunk := file.read(1 << 20):
                made.update(chunk)
            return made.hexdigest()
    except OSError:
        return ""


# -- all else ---------------------------------------------------------------------------------------------------------


def _copy_files(source: Path, target: Path, names: list[str]) -> tuple[list[str], list[AmpError]]:
    """Command `convert FOLDER`: copies files beside converted models: (names of copies, an error for each other)."""
    copied, faults = [], []
    for name in names:
        try:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            with whole_file(target / name, "-o") as beside:
                shutil.copyfile(source / name, beside)
            copied.append(name)
        except OSError as error:
            faults.append(AmpError("AMP105", f"cannot be copied: {error.strerror or error}", where=name))
        except AmpError as error:
            faults.append(error)
    return copied, faults


def _read_manifest(target: Path) -> dict[str, Any]:
    """Command `convert FOLDER`: model -> its entry in an earlier call's manifest; none where that cannot be read."""
    try:
        found = json.loads((target / MANIFEST).read_text(encoding="utf-8"))
        return found["models"] if found["format"] == 1 else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _write_manifest(target: Path, digest: str, done: list[ConvertedFile], before: Mapping[str, Any]) -> None:
    """Command `convert FOLDER`: writes the manifest: entries of models that are done by now, and of the rest those of
    an earlier call (``before``); what wrote no file is left out, to be tried again. ``digest``: of the options."""
    entries = dict(before)
    for one in done:
        entries.pop(one.file, None)
        if one.written:
            entries[one.file] = {
                "options": digest, "inputs": one.inputs, "written": one.written, "found": one.found,
            }  # fmt: skip
    target.mkdir(parents=True, exist_ok=True)
    sweep(target / MANIFEST)
    with whole_file(target / MANIFEST, "-o") as beside:
        text = json.dumps({"format": 1, "models": dict(sorted(entries.items()))}, indent=1)
        beside.write_text(text + "\n", encoding="utf-8")
