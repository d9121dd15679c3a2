"""Decides; never edits: from a dataflow and options to a plan, by the rule of a policy."""

from __future__ import annotations

from ..core.dataflow import Dataflow, Op
from ..core.plan import Plan, Rewrite
from .assemble import assemble
from .clips import possible_clips, with_kernels, written
from .decided import DecidedModel
from .decisions import Decisions, Ledger
from .facts.facts import Facts
from .folds import find_folds
from .forms import find_forms
from .given_casts import find_given_casts
from .given_pads import find_given_pads
from .known_numbers import find_known_numbers
from .options import Options
from .overrides import read_overrides
from .policies.registry import policy
from .regions import Regions, find_norms
from .shifts import orders, possible_orders, possible_shifts, shifts

__all__ = ["Options", "decide", "find_rewrites", "make_plan"]


def make_plan(flow: Dataflow, options: Options, digest: str) -> Plan:
    """The plan of a model at a level: the same dataflow and options give the same plan."""
    if options.level.white == "float32":  # O0: nothing is asked to be low
        _check_patterns(Facts.of(flow, options))
        return Plan(digest, options.level.name, options.dtype, options.policy, options.target)
    return assemble(decide(flow, options), digest)


def decide(flow: Dataflow, options: Options) -> DecidedModel:
    """Every unit decided by the policy's rule, with the reasons."""
    return policy(options.policy).rule(flow, options)


def find_rewrites(flow: Dataflow, options: Options) -> list[Rewrite]:
    """What is better written by other operators before anything is decided: nothing under a framework's rules."""
    if not policy(options.policy).ours or options.level.white == "float32" or not flow.opset:
        return []  # MindIR has no opset, and needs none of this
    names, facts = options.rewrites, Facts.of(flow, options)
    clips = possible_clips(flow, options) if "clip" in names else []
    folds = find_folds(flow, options, names)
    norms = find_norms(flow, options, names)
    gone = {(norm.scope, index) for norm in norms for index in norm.nodes}
    forms = [
        form for form in find_forms(flow, options, names, facts.passing) if (form.scope, form.nodes[0]) not in gone
    ]
    found = [*norms, *forms]
    idle = find_given_casts(facts) if "cast" in names else []
    idle += find_given_pads(facts) if "pad" in names else []
    numbers = find_known_numbers(facts) if "number" in names else []
    masks = possible_shifts(facts) if "mask" in names else []
    swaps = possible_orders(facts) if "order" in names else []
    if not clips and not folds and not idle and not masks and not numbers and not swaps:
        return found
    trial = decide(flow, with_kernels(options, clips)).settled  # they pay only where they are low
    low = [op for op in clips if _is_low(trial, op)]
    whole = [fold for fold in folds if all(_is_low(trial, op) for op in (fold.product, *fold.chain))]
    found += [*(written(flow, op) for op in low), *(fold.rewrite(flow) for fold in whole)]
    found += shifts(facts, trial, masks)
    found += orders(facts, trial, swaps)
    if not any(trial.is_low(unit.id) for unit in flow.units):
        return found
    found += numbers
    taken = {(rewrite.scope, index) for rewrite in found for index in rewrite.nodes}
    return found + [one for one in idle if not any((one.scope, index) in taken for index in one.nodes)]


def _is_low(trial: Decisions, op: Op) -> bool:
    return all(trial.is_low(unit) for unit in op.slots.values())


def _check_patterns(facts: Facts) -> None:
    """Raises AmpError for a mistake in the user's patterns, at every level."""
    ledger, none = Ledger(facts.flow), Regions()
    ledger.take(read_overrides(facts, none, ledger.take()))
