"""Decides; never edits: from a dataflow and options to a plan, by the rule of a policy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from ..core.dataflow import Dataflow
from ..core.plan import Plan
from ..core.rewrites import Rewrite, known_rewrites
from ..oplists.options import Options, with_kernels
from ..oplists.rewrites import rewrite_names
from ..rules.rewrite import RewriteRule
from .assemble import DecidedModel, assemble
from .decisions import Ledger
from .facts.facts import Facts
from .overrides import read_overrides
from .policies.registry import policy
from .regions import Regions

__all__ = ["Options", "decide", "find_rewrites", "make_plan"]


def make_plan(flow: Dataflow, options: Options, digest: str) -> Plan:
    """The plan of a model whose file has a ``digest``, at a level: the same dataflow and options give the same plan."""
    if options.level.allow == "float32":  # O0: nothing is asked to be low
        ledger = Ledger(flow)
        ledger.take(read_overrides(Facts.of(flow, options), Regions(), ledger.take()))  # refuses mistakes all the same
        return Plan(digest, options.level.name, options.dtype, options.policy, options.target)
    return assemble(decide(flow, options), digest)


def decide(flow: Dataflow, options: Options) -> DecidedModel:
    """The model with every unit decided by the policy's rule, with the reasons."""
    return policy(options.policy).rule(flow, options)


def find_rewrites(flow: Dataflow, options: Options) -> list[Rewrite]:
    """Before planning: the rewrites that are asked for and pay by a trial plan, of which no two share a node. None
    under a framework's rules, of a MindIR model, and where the trial plan makes nothing low."""
    if not policy(options.policy).ours or options.level.allow == "float32" or not flow.opset:
        return []  # MindIR has no opset, and needs none of this
    known = Facts.of(flow, options)
    possible = [rewrite for kind in rewrite_classes(options.rewrites) for rewrite in kind.find(known)]
    found = [rewrite for rewrite in possible if rewrite.name in options.rewrites]
    if not found:
        return []
    supposed = frozenset[str]().union(*(rewrite.supposes(known) for rewrite in found))
    trial = decide(flow, with_kernels(options, supposed)).settled
    if not any(trial.is_low(unit.id) for unit in flow.units):
        return []
    return list(_without_overlaps(rewrite for rewrite in found if rewrite.pays(known, trial.is_low)))


def _without_overlaps(found: Iterable[RewriteRule]) -> Iterator[RewriteRule]:
    """Before planning: of the rewrites found those that share no node with an earlier one, and annotations."""
    used: set[tuple[str, int]] = set()
    for rewrite in found:
        places = {(rewrite.scope, index) for index in rewrite.nodes}
        if rewrite.annotates or used.isdisjoint(places):
            yield rewrite
            used |= places


def rewrite_classes(names: Collection[str]) -> list[type[RewriteRule]]:
    """Before planning: the classes of the rewrites with these ``names``, in the order of op_lists/rewrites.toml; what
    is written otherwise than by a `RewriteRule` is left out."""
    known = known_rewrites()
    kinds = dict.fromkeys(known[name] for name in rewrite_names() if name in names and name in known)
    return [kind for kind in kinds if issubclass(kind, RewriteRule)]
