"""What a conversion must fulfil, and what counts as having been effective."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import onnx
from onnx import ModelProto

import ampgraph
from ampgraph.formats.onnx.nodes import kind_of
from ampgraph.formats.onnx.schemas import schema
from ampgraph.numerics.strict.session import StrictSession
from conformance.cases import Case
from conformance.reference import Reference, run, session
from near import difference
from typed import FLOAT, admits, typed_nodes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LEVELS = ("O1", "O2", "O3", "auto")
Convert = Callable[[ModelProto, str], ModelProto]


@dataclass
class Result:
    """One case at one level. `stage` is empty when all is well; `excuse` is why a distant result is none of ours.

    `low_nodes` are those that the conversion added to the ones that were low already.
    """

    case: str
    level: str
    stage: str = ""
    message: str = ""
    excuse: str = ""
    low_nodes: int = 0
    can_lower: bool = False
    held: bool = False
    seconds: float = 0.0


class Failure(Exception):
    def __init__(self, stage: str, message: object) -> None:
        self.stage = stage
        lines = str(message).strip().splitlines() or [type(message).__name__]
        self.message = " | ".join(line.strip() for line in lines)[:400]
        super().__init__(self.message)


def _bytes(model: ModelProto) -> bytes:
    return model.SerializeToString(deterministic=True)


def check(case: Case, reference: Reference, levels: tuple[str, ...], convert: Convert) -> Iterator[Result]:
    """Convert a case at each level and check the results; equal results are run once, an unchanged case not again."""
    done: dict[str, tuple[str, str, str, int]] = {hashlib.sha256(_bytes(case.proto())).hexdigest(): ("", "", "", 0)}
    for level in levels:
        result = Result(case.name, level)
        started = time.perf_counter()
        try:
            check_level(case, reference, result, convert, done)
        except Failure as e:
            result.stage, result.message = e.stage, e.message
        result.can_lower = can_lower(case.proto(), level)
        result.held = result.can_lower and not result.low_nodes and held(case.proto(), level)
        result.seconds = time.perf_counter() - started
        yield result


def check_level(case: Case, ref: Reference, result: Result, convert: Convert, done: dict) -> None:
    """Converts a case at the result's level and looks at what is made, which is run unless the reference was not.
    Raises Failure. ``done``: what is known of models by their digest."""
    model = case.proto()
    before = _bytes(model)
    try:
        converted = convert(model, result.level)
    except Exception as e:
        raise Failure("convert", f"{type(e).__name__}: {e}") from e
    if _bytes(model) != before:
        raise Failure("untouched", "the caller's model was changed")
    after = _bytes(converted)
    key = hashlib.sha256(after).hexdigest()
    if key not in done:
        try:
            excuse = _examine(model, converted, ref)
            done[key] = ("", "", excuse, low_nodes(converted) - low_nodes(model))
        except Failure as e:
            done[key] = (e.stage, e.message, "", 0)
    stage, message, result.excuse, result.low_nodes = done[key]
    if stage:
        raise Failure(stage, message)
    if after == before:
        return  # the conversion just done was of these bytes
    try:
        again = convert(converted, result.level)
    except Exception as e:
        raise Failure("idempotent", f"{type(e).__name__}: {e}") from e
    if _bytes(again) != after:
        raise Failure("idempotent", _first_change(converted, again))


def _first_change(a: ModelProto, b: ModelProto) -> str:
    old, new = (onnx.printer.to_text(m).splitlines() for m in (a, b))
    for x, y in zip(old, new, strict=False):
        if x != y:
            return f"converting again turns `{x.strip()[:120]}` into `{y.strip()[:120]}`"
    return f"converting again gives {len(new)} lines instead of {len(old)}"


def _examine(model: ModelProto, converted: ModelProto, ref: Reference) -> str:
    """Checker, interface, runtime and accuracy; the answer is an excuse, or nothing."""
    if ref.checked:
        try:
            onnx.checker.check_model(converted, full_check=True)
        except Exception as e:
            raise Failure("checker", e) from e
    _interface(model, converted)
    names = [v.name for v in model.graph.output]
    if ref.skipped:
        return ""
    try:
        opened = session(converted)
        for feeds in ref.feeds:
            run(opened, feeds, names)
    except Exception as e:
        raise Failure("runtime", e) from e
    try:
        strict = StrictSession(converted, threads=1)
        got = [strict.run(feeds) for feeds in ref.feeds]
    except Exception as e:
        raise Failure("strict", e) from e
    for expected, values in zip(ref.outputs, got, strict=True):
        for name, value in values.items():
            apart = difference(expected[name], value)
            if apart and not ref.excuses:
                raise Failure("accuracy", f"{name}: {apart}")
            if apart:
                return ref.excuses[0]
    return ""


def _interface(model: ModelProto, converted: ModelProto) -> None:
    for what in ("input", "output"):
        old, new = ({v.name: v.type for v in getattr(m.graph, what)} for m in (model, converted))
        if converted.ir_version > model.ir_version == 3:  # its weights are constants now
            old = {name: kind for name, kind in old.items() if name not in {t.name for t in model.graph.initializer}}
        if list(old) != list(new):
            raise Failure("interface", f"{what}s {list(old)} became {list(new)}")
        for name, kind in old.items():
            if kind.SerializeToString(deterministic=True) != new[name].SerializeToString(deterministic=True):
                raise Failure("interface", f"{what} {name}: {kind} became {new[name]}")
    opsets = {o.domain: o.version for o in converted.opset_import}
    for o in model.opset_import:
        if opsets.get(o.domain) != o.version:
            raise Failure("interface", f"opset of '{o.domain}' {o.version} became {opsets.get(o.domain)}")


def low_nodes(model: ModelProto) -> int:
    """Nodes, in every graph, with a float16 input or output; Casts do not count."""
    found = [node for node in typed_nodes(model) if any(dtype in ("float16", "bfloat16") for _, dtype in node.all)]
    return sum(node.native.op_type != "Cast" for node in found)


def held(model: ModelProto, level: str) -> bool:
    """Whether the converter's own report names a guard that kept everything here in float32: one place to ask it."""
    plan = ampgraph.plan(model, level=level, target="cpu")
    names = listed(level)
    mine = [d for d in plan.decisions if d.index >= 0 and (names is None or d.kind in names)]
    return all(d.why.rule not in ("list", "region", "cut", "unlisted") for d in mine)


_CLASSES = {"O1": ("allow",), "auto": ("allow",), "O2": ("allow", "infer")}


@cache
def listed(level: str) -> frozenset[str] | None:
    """The operators that a level lowers by its list, `domain::Kind` outside ai.onnx; None stands for all (O3)."""
    if level not in _CLASSES:
        return None
    path = Path(__file__).parents[2] / "op_lists" / "ampgraph.toml"
    lists = tomllib.loads(path.read_text())
    return frozenset(kind for c in _CLASSES[level] for kind in lists[c])


def can_lower(model: ModelProto, level: str) -> bool:
    """Whether some node is on the level's list with a float32 slot that its schema lets be float16."""
    names, versions = listed(level), {o.domain if o.domain != "ai.onnx" else "": o.version for o in model.opset_import}
    for node in typed_nodes(model):
        domain, kind = node.native.domain, kind_of(node.native)
        if kind == "Cast" or (names is not None and kind not in names):
            continue
        found = schema(domain, node.native.op_type, versions.get(domain, 1))
        if found is None:
            continue
        slots = (*zip(found.inputs, node.reads, strict=False), *zip(found.outputs, node.makes, strict=False))
        if any(actual == FLOAT and admits(found, formal.type, ("", "float16")) for formal, actual in slots):
            return True
    return False
