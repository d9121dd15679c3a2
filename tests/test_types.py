"""Public signatures name types: `Any` stands where there is none, and each place says why."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VALUE = "the value of an attribute, of the kind that its name says"
OLD_ROW = "a row of an older plan, whose fields are each rewrite's own"
MINDSPORE = "MindSpore's cells, optimizers and tensors: its package has no types"
TORCH = "torch's operators, whose arguments and results have any type"
READ = "what typer has read, of the kinds that the call's own signature says"
REASONS: dict[str, str] = {
    **{f"ampgraph.cli.{name}": READ for name in ("command", "conversion", "models", "train")},
    "ampgraph.cli.app": "what is click's, of which each version of typer has another or its own",
    "ampgraph.core.arrays": "numpy's element types, which ml_dtypes adds to; what a model gives, which only it knows",
    "ampgraph.core.dataflow": "the format's own nodes and values, which its readers alone look into",
    "ampgraph.core.recipe": "`option` makes a field, and stands for its value as dataclasses' own `field` does",
    "ampgraph.formats.mindir.schema": "messages whose classes protobuf makes when the program runs",
    **{f"ampgraph.formats.onnx.{name}": VALUE for name in ("low_nodes", "nodes")},
    "ampgraph.formats.onnx.operators": "the value of an attribute, of the kind that its name says",
    "ampgraph.core.rewrites": "a row of a plan, whose fields are each rewrite's own",
    "ampgraph.cli.folder": "options of a command, which go to another process, and the JSON that it answers",
    "ampgraph.core.typed": "JSON before it is checked, and the annotations that say what it has to be",
    **{f"ampgraph.rules.rewrites.{name}": OLD_ROW for name in ("bias", "fused", "norm", "number")},
    "ampgraph.runtime.child": "what goes to another process and comes back as JSON, which only the caller knows",
    "ampgraph.oplists.files": "what a TOML file holds before it is checked",
    "ampgraph.runtime.executed": "an answer of another process, which is JSON",
    "ampgraph.runtime.mindspore_session": MINDSPORE,
    "ampgraph.runtime.session_one": "models and tensors of runtimes that need not be installed here",
    "ampgraph.training.forward.decompositions": TORCH,
    "ampgraph.training.mindspore.compiled_steps": MINDSPORE,
    "ampgraph.training.mindspore.cut_graph": MINDSPORE,
    "ampgraph.training.mindspore.step_trainer": MINDSPORE,
    "ampgraph.training.mindspore.train": MINDSPORE,
    "ampgraph.training.option_text": "the value of an option, of the type that its dataclass says",
    "ampgraph.training.run.binding": "sessions and bindings of onnxruntime, whose package has no types",
}
"""Module -> why `Any` stands in a signature of it."""


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Every module that is shipped, but for the networks in models."""
    for folder, name in (("ampgraph", "ampgraph"), ("passes", "ampgraph.passes"), ("op_lists", "ampgraph.op_lists")):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not any(parent.is_symlink() for parent in path.parents):
                parts = path.relative_to(ROOT / folder).with_suffix("").parts
                if parts[-1].startswith("_") and parts[-1] != "__init__":
                    continue  # a script, or nobody's business
                module = ".".join((name, *(part for part in parts if part != "__init__")))
                yield module, ast.parse(path.read_text(encoding="utf-8"))


def public(name: str) -> bool:
    return not name.startswith("_") or (name.startswith("__") and name.endswith("__"))


def signatures(body: list[ast.stmt], within: str = "") -> Iterator[tuple[str, ast.expr]]:
    """What the public names of a module or class are said to be: arguments, results, fields, constants, aliases."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and public(node.name):
            given = node.args
            some = [given.vararg, given.kwarg]
            for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs, *(a for a in some if a is not None)):
                if arg.annotation is not None:
                    yield f"{within}{node.name}({arg.arg})", arg.annotation
            if node.returns is not None:
                yield f"{within}{node.name}", node.returns
        elif isinstance(node, ast.ClassDef) and public(node.name):
            yield from ((f"{within}{node.name}", base) for base in node.bases)
            yield from signatures(node.body, f"{within}{node.name}.")
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and public(node.target.id):
            yield f"{within}{node.target.id}", node.annotation
            if node.value is not None and "TypeAlias" in ast.unparse(node.annotation):
                yield f"{within}{node.target.id}", node.value
        elif isinstance(node, ast.Assign) and not within:  # an alias without its mark
            yield from ((t.id, node.value) for t in node.targets if isinstance(t, ast.Name) and public(t.id))


def untyped(annotation: ast.expr) -> bool:
    """Whether `Any` stands in an annotation, be it a text."""
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name) and node.id == "Any":
            return True
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "Any" in node.value.replace("|", " "):
            return "Any" in {n.id for n in ast.walk(ast.parse(node.value)) if isinstance(n, ast.Name)}
    return False


def found() -> dict[str, list[str]]:
    """By module: the public names whose types say `Any`."""
    return {
        module: names
        for module, tree in modules()
        if (names := [name for name, annotation in signatures(tree.body) if untyped(annotation)])
    }


def test_signatures_have_types() -> None:
    assert {module: names for module, names in found().items() if module not in REASONS} == {}


def test_every_reason_is_needed() -> None:
    assert REASONS.keys() <= found().keys()


def test_any_would_be_seen() -> None:
    text = "Kind = dict[str, Any]\nclass A:\n  x: 'list[Any]'\n  def f(self, y: Any): ...\n  def _g(self, y: Any): ..."
    assert [name for name, kind in signatures(ast.parse(text).body) if untyped(kind)] == ["Kind", "A.x", "A.f(y)"]


if __name__ == "__main__":
    for module, names in found().items():
        print(module, *names)
