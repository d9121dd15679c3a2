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
    """The plan of a model at a level: the same dataflow and options give the same plan."""
    if options.level.allow == "float32":  # O0: nothing is asked to be low
        ledger = Ledger(flow)
        ledger.take(read_overrides(Facts.of(flow, options), Regions(), ledger.take()))  # refuses mistakes all the same
        return Plan(digest, options.level.name, options.dtype, options.policy, options.target)
    return assemble(decide(flow, options), digest)


def decide(flow: Dataflow, options: Options) -> DecidedModel:
    """Every unit decided by the policy's rule, with the reasons."""
    return policy(options.policy).rule(flow, options)


def find_rewrites(flow: Dataflow, options: Options) -> list[Rewrite]:
    """Before planning: what is better written by other operators: nothing under a framework's rules, or where a trial
    plan makes nothing low."""
    if not policy(options.policy).ours or options.level.allow == "float32" or not flow.opset:
        return []  # MindIR has no opset, and needs none of this
    known = Facts.of(flow, options)
    found = [one for kind in ordered(options.rewrites) for one in kind.find(known) if one.name in options.rewrites]
    if not found:
        return []
    trial = decide(flow, with_kernels(options, frozenset[str]().union(*(one.supposes(known) for one in found)))).settled
    lowers = any(trial.is_low(unit.id) for unit in flow.units)
    return list(_apart(one for one in found if lowers and one.pays(known, trial.is_low)))


def _apart(found: Iterable[RewriteRule]) -> Iterator[RewriteRule]:
    """Before planning: of the rewrites found those that share no node with an earlier one, and annotations."""
    taken: set[tuple[str, int]] = set()
    for one in found:
        places = {(one.scope, index) for index in one.nodes}
        if one.annotates or taken.isdisjoint(places):
            yield one
            taken |= places


def ordered(names: Collection[str]) -> list[type[RewriteRule]]:
    """Before planning: the classes of the rewrites that are asked for by name, in the order of op_lists/rewrites.toml;
    what is written otherwise than by a `RewriteRule` is left out."""
    known = known_rewrites()
    kinds = dict.fromkeys(known[name] for name in rewrite_names() if name in names and name in known)
    return [kind for kind in kinds if issubclass(kind, RewriteRule)]
