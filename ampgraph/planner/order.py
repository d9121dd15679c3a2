"""The rules in their order: what is decided of a model before the cut."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..core.errors import AmpError, nearest
from ..oplists.rewrites import WITHOUT
from .classify import classify
from .costs import CutTask
from .decisions import Decisions, Ledger
from .facts.facts import Facts
from .overrides import read_overrides
from .regions import Regions, find_tied
from .rules.accumulators import deep_products, low_inside
from .rules.arithmetic import long_sum, power, prefix_sum, small_epsilon, small_probability, sum_of_exponentials
from .rules.cancelling import small_difference
from .rules.constants import folded_constants
from .rules.faults import wrong_kernels
from .rules.integers import index_arithmetic, integer_sums, quantized
from .rules.ranges import measured_overflows, taint
from .rules.raw import positions, raw_inputs
from .rules.releases import branches, epilogue, once, unserved
from .rules.rule import Findings, Rule, Sight, look_at_all, warned
from .rules.spectra import small_powers
from .rules.streams import float32_streams, recurrences, residual_streams
from .rules.thresholds import thresholds
from .rules.weights import unstorable_weights

LOOKS = (
    small_epsilon,
    sum_of_exponentials,
    long_sum,
    power,
    small_powers,
    small_probability,
    small_difference,
    positions,
    prefix_sum,
)
"""Accuracy, one operator after the other."""
ORDER: tuple[tuple[Rule, ...], ...] = (
    (index_arithmetic,),
    (*LOOKS, integer_sums, quantized, raw_inputs, thresholds, folded_constants, float32_streams),
    (residual_streams, recurrences, low_inside, deep_products, wrong_kernels),
    (unstorable_weights,),
    (measured_overflows,),
    (taint,),
    (epilogue,),
    (branches, unserved),
)
"""Behind lists, regions and the user's patterns: rules of one step see the same decisions, those of all before them."""
BEHIND: tuple[Rule, ...] = (once,)
"""Behind the cut."""
REPORTS: tuple[Rule, ...] = (unstorable_weights, measured_overflows)
"""What is said once everything is decided."""
SLOTS = (
    ("boundary", "an input or output of the model that keeps its type, or is low in the file", "the type that it has"),
    ("unknown", "an operator of which no schema is known", "float32 for the slot"),
    ("slot", "a slot that `op_lists/tied_slots.toml` keeps in float32", "float32 for the slot"),
    ("schema", "a schema that does not admit the low type", "float32 for the slot"),
    ("opset", "a type, a kernel or a Cast that only a later opset has", "float32 for the slot"),
    ("kernel", "the target has no low kernel, or one that fails here", "float32 for the operator"),
    ("gradient", "a node of our own gradients and updates that computes in float32", "float32 for it"),
)
"""What schema, kernels and the file leave no choice of: decided slot by slot with the lists (`planner.classify`)."""
RULES: tuple[Rule, ...] = (
    *(Rule(*said, levels="every", validity=True) for said in SLOTS),
    *(rule for step in (*ORDER, BEHIND) for rule in step),
)


@dataclass(frozen=True)
class Judgement:
    """All that is decided before the cut, and what the cut and the reports need to know."""

    facts: Facts
    ledger: Ledger
    judged: Decisions
    regions: Regions
    found: Findings

    def behind(self, settled: Decisions) -> Decisions:
        """The decisions once the rules behind the cut are entered too. ``settled``: those of the cut and before."""
        acting = [rule for rule in BEHIND if rule.name not in self.facts.options.off]
        return self.ledger.take(findings_of(acting, Sight.at(self.facts, self.regions), settled))

    @property
    def task(self) -> CutTask:
        """What the cut is to decide, with what this judgement tells it: worths, integers and fused regions."""
        found = self.found
        return CutTask(
            self.facts.flow, self.facts.options, self.judged, found.byte_worth, found.integer_valued, self.regions.fused
        )


def judge(facts: Facts) -> Judgement:
    """Decides all that lists, regions, patterns and rules do, in this order; what they leave free is the cut's. Each
    step of `ORDER` sees what all steps before it decided."""
    ledger, classes = Ledger(facts.flow), classify(facts)
    regions = find_tied(facts, classes)
    decided = ledger.take(classes, regions)
    decided = ledger.take(read_overrides(facts, regions, decided))
    sight, found = Sight.at(facts, regions), Findings()
    for step in ORDER:
        new = findings_of([rule for rule in step if rule.name not in facts.options.off], sight, decided)
        decided, found = ledger.take(new), found | new
    return Judgement(facts, ledger, decided, regions, found)


def findings_of(rules: Iterable[Rule], sight: Sight, decided: Decisions) -> Findings:
    """What rules of one step find, as far as the level has them act: it holds, is only said, or is not looked for. All
    rules that look at operators do that in one pass, in the place of the first of them."""
    guards, found = sight.facts.options.level.accuracy_guards, Findings()
    acting = [rule for rule in rules if rule.at(guards)]
    looking = [rule for rule in acting if rule.look is not None]
    for rule in acting:
        if rule.run is not None:
            new = rule.run(sight, decided)
        elif rule is looking[0]:
            new = sight.compute_once(look_at_all, tuple(looking), guards == "hold")
        else:
            continue
        found |= warned(new, decided) if rule.levels == "warned" and guards == "warn" else new
    return found


def check_rules(words: Iterable[str]) -> None:
    """Raises AmpError AMP301 for a word of --rule that does not switch a rule off: an unknown name, one without the
    prefix that switches off, and a rule of validity."""
    names = {rule.name: rule for rule in RULES}
    for word in words:
        name = word.removeprefix(WITHOUT)
        if name not in names:
            hint = nearest(name, list(names)) or "`ampgraph lists --rules` names them all"
            raise AmpError("AMP301", f"unknown rule '{name}'", hint=hint)
        if name == word:
            raise AmpError(
                "AMP301", f"rule '{name}' is switched on already", hint=f"--rule {WITHOUT}{name} switches it off"
            )
        if names[name].validity:
            hint = "a rule of validity holds always: without it the result is wrong, or does not load"
            raise AmpError("AMP301", f"rule '{name}' cannot be switched off", hint=hint)
