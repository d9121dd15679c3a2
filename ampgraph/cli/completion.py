"""What a shell completes behind an option: words of the lists and levels, and nodes of the model that was named."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import typer

from ..core.spellings import DTYPES, LEVELS

Complete = Callable[[typer.Context, str], list[str]]
WORDS = {
    "level": LEVELS,
    "dtype": DTYPES,
    "store_weights": ("low", "keep"),
    "io": ("keep", "low"),
    "opset": ("auto",),
    "rewrite": ("none", "exact"),
    "check": ("auto", "off", "require"),
    "device": ("auto", "cpu", "cuda", "tensorrt", "cann", "ascend"),
}
SHOWN = 2000  # names: a shell shows no more


def starting(words: Iterable[str], start: str) -> list[str]:
    """The words that begin with ``start``, in order, without repetitions."""
    found = dict.fromkeys(word for word in words if word.startswith(start))
    return list(found)[:SHOWN]


def completes(option: str) -> Complete | None:
    """The completion of an option or a field by its name; None where only files complete."""
    if option in ("fp32", "low", "node"):
        return patterns
    words = {"policy": _policies, "target": _targets}.get(option, lambda: list(WORDS.get(option, ())))
    known = option in WORDS or option in ("policy", "target")
    return (lambda ctx, incomplete: starting(words(), incomplete)) if known else None


def patterns(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of the model's nodes, and ``op:Kind`` for its operators."""
    names, kinds = _nodes(ctx)
    return starting([*names, *(f"op:{kind}" for kind in kinds)], incomplete)


def _nodes(ctx: typer.Context) -> tuple[list[str], list[str]]:
    """Names and kinds of the nodes of the model on the command line; empty where it cannot be read."""
    from ..core.errors import AmpError
    from ..formats.adapters import load

    model = ctx.params.get("model") or next(iter(ctx.args), "")  # left there by an option that lacks its word yet
    if not model:
        return [], []
    try:
        ops = load(model)[0].dataflow().ops
    except AmpError:  # the command itself will say it
        return [], []
    return [op.name for op in ops if op.name], sorted({op.kind for op in ops})


def _policies() -> list[str]:
    """Names of policies."""
    from ..planner.policies.registry import names

    return names()


def _targets() -> list[str]:
    """Targets of all formats."""
    from ..oplists.kernels import TARGETS

    return [target for targets in TARGETS.values() for target in targets]
