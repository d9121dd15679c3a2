"""Engines that were built once are not built again: what TensorRT says of a model, kept in a file."""

from __future__ import annotations

import hashlib
import json
import shelve
import sys
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1])]

from onnx import ModelProto  # noqa: E402

from ampgraph.runtime.tensorrt_rtx import BuildAnswer, BuildJob, build_all  # noqa: E402

PYTHON = str(HERE.parents[1] / "build" / "tensorrt" / "bin" / "python")
BATCH = 100  # models of one call: a process takes them until it refuses one


def built(jobs: Iterable[BuildJob], python: str = PYTHON, kept: str = "") -> Iterator[BuildAnswer]:
    """What becomes of each of some models held in memory, in order. ``kept``: a file of answers, which grows."""
    todo = iter(jobs)
    while batch := list(islice(todo, BATCH)):
        with store(kept) as known:
            keys = [_key(job) for job in batch]
            new = {key: job for key, job in zip(keys, batch, strict=True) if key not in known}
            known.update(zip(new, build_all(new.values(), python=python), strict=True))
            yield from [known[key] for key in keys]


def store(kept: str) -> AbstractContextManager[MutableMapping[str, Any]]:
    """What a file holds of answers, and takes; nothing is kept without a file."""
    return shelve.open(kept) if kept else nullcontext({})


def _key(job: BuildJob) -> str:
    assert isinstance(job.model, ModelProto)
    said: Mapping[str, Any] = {"sizes": job.sizes, "values": job.values, "for": job.capabilities}
    found = hashlib.sha256(job.model.SerializeToString(deterministic=True))
    found.update(json.dumps(said, sort_keys=True, default=list).encode())
    return found.hexdigest()
