"""The house: imports go down and never round, no function is too long. `python tests/test_house.py` draws it, and names
the longest files, which are for a reader to judge and no failure."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

from ampgraph.core.rewrites import known_rewrites
from ampgraph.oplists.rewrites import rewrite_names

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
ROOMS = {  # what each room may import besides itself
    "core": "",
    "oplists": "core",
    "rules": "oplists core",
    "passes": "oplists core",
    "planner": "rules oplists core",
    "formats": "oplists core",
    "runtime": "formats oplists core",
    "numerics": "runtime formats passes oplists core",
    "training": "numerics runtime formats passes oplists core",
    "report": "planner rules training numerics runtime formats passes oplists core",
    "api": "report planner rules training numerics runtime formats passes oplists core",
    "plugins": "api report planner rules training numerics runtime formats passes oplists core",
    "compat": "api report planner rules training numerics runtime formats passes oplists core",
    "cli": "api report planner rules training numerics runtime formats passes oplists core",
}
FUNCTION_LINES, METHODS = 50, 20


@cache
def modules() -> dict[str, tuple[Path, ast.Module]]:
    """Every module of the package by its name, with its syntax tree."""
    found = {}
    for folder, name in (("ampgraph", "ampgraph"), ("passes", "ampgraph.passes")):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not any(parent.is_symlink() for parent in path.parents):
                parts = path.relative_to(ROOT / folder).with_suffix("").parts
                module = ".".join((name, *(p for p in parts if p != "__init__")))
                found[module] = (path, ast.parse(path.read_text(encoding="utf-8")))
    return found


def imported(module: str) -> Iterator[str]:
    """The modules that one imports, wherever the import stands."""
    path, tree = modules()[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules())
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                if inner in modules() or source in modules():
                    yield inner if inner in modules() else source


@cache
def imports() -> nx.DiGraph:
    """Modules, and an edge from each to what it imports."""
    graph = nx.DiGraph()
    graph.add_nodes_from(modules())
    graph.add_edges_from((module, other) for module in modules() for other in imported(module) if other != module)
    return graph


def room(module: str) -> str:
    """The first folder below the package, empty for what lies flat in it."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else ""


def test_every_module_has_a_room() -> None:
    flat = {m.removeprefix("ampgraph.") for m in modules() if not room(m)}
    assert flat == {"ampgraph", "__main__"}, "what lies flat in ampgraph/ belongs into a room"


def test_no_circle() -> None:
    circles = [sorted(found) for found in nx.strongly_connected_components(imports()) if len(found) > 1]
    assert circles == []


def test_imports_go_down() -> None:
    up = defaultdict(list)
    for module, other in imports().edges:
        here, there = room(module), room(other)
        if here and here != there and there not in ROOMS[here].split():
            up[f"{here} -> {there or 'ampgraph'}"].append(f"{module} imports {other}")
    assert dict(up) == {}


def test_a_back_arrow_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = modules()["ampgraph.core.errors"]
    late = ast.parse("def f():\n    from ..planner import steps\n")
    changed = {**modules(), "ampgraph.core.errors": (path, late)}
    monkeypatch.setitem(globals(), "modules", lambda: changed)
    assert list(imported("ampgraph.core.errors")) == ["ampgraph.planner.steps"]


def test_numerics_speak_to_graphs_and_editors() -> None:
    """No onnx_ir, and of formats the adapters and the kinds that they take: runs read dataflows and edit by verbs."""
    known, free = set(), {"ampgraph.formats.adapters", "ampgraph.formats.kinds"}
    for module, (_, tree) in modules().items():
        if room(module) == "numerics":
            inside = {name for name in imported(module) if room(name) == "formats"} - free
            outside = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
            outside |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
            if inside or any(name.split(".")[0] == "onnx_ir" for name in outside):
                known.add(module)
    assert known == set()


def test_a_rewrite_is_one_module() -> None:
    """With what all rewrites share, and nothing of the planner: so a plan is carried out without it."""
    shared = {"ampgraph.rules.rewrite", "ampgraph.rules.known", "ampgraph.rules.fusions"}
    rewrites = [module for module in modules() if module.startswith("ampgraph.rules.rewrites.")]
    for module in rewrites:
        assert {name for name in imported(module) if room(name) not in ("core", "oplists")} <= shared, module
    written = {kind.__module__ for kind in known_rewrites().values()}
    assert written == set(rewrites) and known_rewrites().keys() == {*rewrite_names()} - {"floor"}


def test_a_format_knows_no_rule() -> None:
    """It edits by verbs that any rule can use: it reads no plan, and no name of a rewrite."""
    of_rules = {"ampgraph.core.plan", "ampgraph.core.rewrites", "ampgraph.oplists.rewrites"}
    known = {module for module in modules() if room(module) == "formats" and not of_rules.isdisjoint(imported(module))}
    assert known == set()


def length(function: ast.FunctionDef) -> int:
    """Its lines without the docstring, which says what each argument is."""
    text = function.body[0] if ast.get_docstring(function) is not None else None
    return (function.end_lineno or 0) - function.lineno + 1 - ((text.end_lineno or 0) - text.lineno + 1 if text else 0)


def test_nothing_is_too_large() -> None:
    large = []
    for module, (_, tree) in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and length(node) > FUNCTION_LINES:
                large.append(f"{module}.{node.name}: {length(node)} lines")
            if isinstance(node, ast.ClassDef):
                methods = sum(isinstance(item, ast.FunctionDef) for item in node.body)
                large += [f"{module}.{node.name}: {methods} methods"] if methods > METHODS else []
    assert large == []


def test_no_two_classes_of_one_name() -> None:
    homes = defaultdict(list)
    for module, (_, tree) in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(module)
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


def drawn() -> str:
    """The rooms, lowest last, with the number of imports from each to each."""
    count: dict[tuple[str, str], int] = defaultdict(int)
    for module, other in imports().edges:
        if room(module) and room(other) and room(module) != room(other):
            count[room(module), room(other)] += 1
    lines = []
    for here in reversed(ROOMS):
        to = ", ".join(f"{there} {n}" for (source, there), n in sorted(count.items()) if source == here)
        lines.append(f"{here:9} -> {to or 'nothing'}")
    return "\n".join(lines)


def longest(count: int = 10) -> str:
    """The longest files of the product and of the tests, longest first."""
    lines = []
    for paths in ([path for path, _ in modules().values()], TESTS.rglob("*.py")):
        sizes = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8").count("\n") for path in paths}
        lines += [f"{size:5} {path}" for path, size in sorted(sizes.items(), key=lambda item: -item[1])[:count]]
    return "\n".join(lines)


if __name__ == "__main__":
    print(drawn(), longest(), sep="\n\n")
