"""What may be put back to float32: the groups of nodes that are low together, each with patterns that name it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..core.dataflow import FLOAT32, NONE, Dataflow, Op, Ties
from ..core.names import pattern_for
from ..core.plan import Plan
from ..core.selection import matched_op_ids
from ..oplists.options import Options
from ..oplists.traits import has
from .costs import Costs, CutTask, multiplications
from .decisions import Decisions

HEAVY = 8
"""What a byte of a product in float32 counts, beside one of anything else: where it pays to be low, products run on
units that take float32 at an eighth of the rate or less, and the others wait for memory alone."""

FEWEST_PRODUCTS = 3  # of a model with ends
MOST = 0.8  # of the multiplications

Place = tuple[str, ...]  # a value, or a node in a function and a value of it


@dataclass(frozen=True)
class Promotion:
    """A group of nodes that may be put back to float32 together, and the patterns that name it. ``bytes``: what it
    writes and stores in float32; ``cost``: the same with the bytes of products `HEAVY` times; ``writes``: (scope, name)
    of the values that it writes; ``makes``: these as places; ``kinds``: roles of the nodes, in their order."""

    patterns: tuple[str, ...]
    cost: int
    writes: frozenset[tuple[str, str]]
    makes: frozenset[Place] = field(default_factory=frozenset)
    kinds: tuple[str, ...] = ()
    bytes: int = 0

    @property
    def kind(self) -> str:
        """The kind of a group of nodes that may be put back to float32: of its product, else of its first node."""
        return next((kind for kind in self.kinds if has(kind, "products")), self.kinds[0] if self.kinds else "")


def find_groups(task: CutTask) -> list[Promotion]:
    """Promotions: all groups of nodes that may be put back to float32, in the order of the model, but for what the user
    asked to be low. ``task``: of the model before norms are rewritten, as patterns speak of the file's nodes."""
    flow, costs, heavy = task.flow, task.costs, task.options.lists.products
    fixed = matched_op_ids(flow, task.options.low)
    groups = []
    for ops in _components(flow, task.decisions):
        patterns = _patterns_for(flow, task.decisions, ops)
        if not patterns or any(op.id in fixed for op in ops):
            continue
        writes = frozenset(key for op in ops for key in _values_written(flow, op))
        makes = frozenset(place for op in ops for place in _places_written(flow, op))
        sizes = [op_bytes(flow, costs, op) for op in ops]
        cost = sum(size * (HEAVY if op.role in heavy else 1) for size, op in zip(sizes, ops, strict=True))
        kinds = tuple(op.role for op in ops)
        groups.append(Promotion(patterns, cost, writes, makes, kinds, sum(sizes)))
    return groups


def ends(flow: Dataflow, options: Options) -> list[tuple[str, ...]]:
    """Promotions: ends of a model that are worth trying in float32 where rounding makes too large an error: for each
    trial the patterns that name it, in the order in which they are tried.

    In front, where rounding goes through all that follows: an eighth of the products (four, if that is more, but no
    more than a fifth); as many behind as well, where nothing is averaged any more; then a third in front. Each with
    what stands before the next product, behind the last as well; one product at least, of `FEWEST_PRODUCTS` or more.
    What the user asked to be low is left out."""
    main, places = _main_operators(flow)
    count = len(places)
    if count < FEWEST_PRODUCTS:
        return []
    eighth = max(1, min(count // 5, max(4, -(-count // 8))))
    front = main[: places[eighth]]
    return _named(flow, options, [front, [*front, *main[places[-eighth] :]], main[: places[max(1, count // 3)]]])


def all_but_costliest(flow: Dataflow, options: Options) -> list[tuple[str, ...]]:
    """Promotions: as `ends`, all but the products with most of the multiplications, for which low types are worth
    while: of `MOST` of them, and of half."""
    main, places = _main_operators(flow)
    low = [_costliest(flow, options, [main[place] for place in places], share) for share in (MOST, 0.5)]
    return _named(flow, options, [[op for op in main if op.id not in kept] for kept in low])


def _main_operators(flow: Dataflow) -> tuple[list[Op], list[int]]:
    """Promotions: the operators of the main graph that have a type to decide, and which of them are products."""
    main = [op for op in flow.ops if op.scope == 0 and op.slots and not has(op.role, "casts")]
    return main, [place for place, op in enumerate(main) if has(op.role, "products")]


def _named(flow: Dataflow, options: Options, trials: list[list[Op]]) -> list[tuple[str, ...]]:
    """Promotions: patterns for the operators of each trial, without what the user asked to be low; each trial once, and
    none without a product."""
    fixed = matched_op_ids(flow, options.low)
    free = [[op for op in held if op.id not in fixed] for held in trials]
    free = [held for held in free if any(has(op.role, "products") for op in held)]
    return list(dict.fromkeys(tuple(dict.fromkeys(_pattern(flow, op) for op in held)) for held in free))


def _costliest(flow: Dataflow, options: Options, products: list[Op], share: float) -> set[int]:
    """Promotions: ids of the fewest products that have a ``share`` of the multiplications of all."""
    sizes = lambda value: flow.dims(value, options.dims)  # noqa: E731
    costs = {op.id: multiplications(flow, op, sizes, options.lists.traits) or 0 for op in products}
    left, kept = share * sum(costs.values()), set[int]()
    for op in sorted(products, key=lambda op: -costs[op.id]):
        if left <= 0:
            break
        kept.add(op.id)
        left -= costs[op.id]
    return kept


def _pattern(flow: Dataflow, op: Op) -> str:
    """Promotions: the pattern that names an operator."""
    return pattern_for(op.name, flow.values[next(v for v in op.outputs if v != NONE)].name)


def low_values(plan: Plan, flow: Dataflow) -> set[tuple[str, str]]:
    """Of a plan, for what may be put back to float32: (scope, name) of what operators write that compute low in some
    slot; ``flow`` is the one of the plan."""
    low = low_operators(plan)
    return {
        key for op in flow.ops if (flow.scopes[op.scope].path, op.index) in low for key in _values_written(flow, op)
    }


def low_operators(plan: Plan) -> set[tuple[str, int]]:
    """Of a plan, for what may be put back to float32: (path of the scope, index in it) of operators with a low slot."""
    return {(d.scope, d.index) for d in plan.decisions if d.dtype != FLOAT32 and d.index >= 0}


@dataclass(frozen=True)
class Float32Size:
    """How much of a plan is float32: nodes with a float32 tensor to decide on, the products among them, the ``bytes``
    of what they write and of their weights, and the same with products `HEAVY` times (``cost``)."""

    nodes: int
    products: int
    bytes: int
    cost: int


def float32_size(plan: Plan, flow: Dataflow, options: Options) -> Float32Size:
    """How much of a plan made for ``flow`` is float32: nodes without a low slot, Casts not counted."""
    low, costs = low_operators(plan), Costs(flow, options)
    ops = [op for op in flow.ops if op.slots and not has(op.role, "casts")]
    ops = [op for op in ops if (flow.scopes[op.scope].path, op.index) not in low]
    products, size, cost = 0, 0, 0
    weights: dict[int, int] = {}  # stored tensor -> how often its last reader counts
    for op in ops:
        factor = HEAVY if op.role in options.lists.products else 1
        written = op_bytes(flow, costs, op, weights=False)
        products += factor == HEAVY
        size += written
        cost += written * factor
        weights.update((v, factor) for v in op.inputs if v != NONE and flow.values[v].weight)
    for value, factor in weights.items():
        if flow.values[value].dtype == FLOAT32:
            size += 4 * costs.elements(value)
            cost += 4 * costs.elements(value) * factor
    return Float32Size(len(ops), products, size, cost)


def op_bytes(flow: Dataflow, costs: Costs, op: Op, weights: bool = True) -> int:
    """Promotions: bytes that an operator writes in float32, times how often it runs; with ``weights`` those of the
    float32 stored tensors that it reads on top."""
    written = [v for v in op.outputs if v != NONE and flow.values[v].dtype == FLOAT32]
    size = sum(4 * costs.elements(v) for v in written) * flow.scopes[op.scope].times
    stored = [v for v in op.inputs if v != NONE and flow.values[v].weight and flow.values[v].dtype == FLOAT32]
    return size + (sum(4 * costs.elements(v) for v in stored) if weights else 0)


def _values_written(flow: Dataflow, op: Op) -> Iterable[tuple[str, str]]:
    """Promotions: (scope, name) of the values that an operator writes."""
    return ((flow.scopes[op.scope].path, flow.values[v].name) for v in op.outputs if v != NONE)


def _places_written(flow: Dataflow, op: Op) -> list[Place]:
    """Promotions: what runs call an operator's results: their names, in a function behind the operator's name."""
    names = [flow.values[v].name for v in op.outputs if v != NONE]
    kind = flow.scopes[op.scope].kind
    return [(op.name, name) if kind == "function" else (name,) for name in names]


def _components(flow: Dataflow, decisions: Decisions) -> list[list[Op]]:
    """Promotions: the operators that have a type to decide, grouped by what they share: a unit, or a name that a
    pattern would find them by."""
    ties, named = Ties(decisions.roots), dict[str, int]()
    ops = [op for op in flow.ops if op.slots and not has(op.role, "casts")]
    for op in ops:
        unit = ties.tie(op.slots.values())
        if op.name:
            ties.tie((unit, named.setdefault(op.name, unit)))
    found: dict[int, list[Op]] = {}
    for op in ops:
        found.setdefault(ties.find(next(iter(op.slots.values()))), []).append(op)
    return list(found.values())


def _patterns_for(flow: Dataflow, decisions: Decisions, ops: list[Op]) -> tuple[str, ...]:
    """Promotions: patterns of nodes, in their order, that name every unit of a group's operators: one for each node
    with a unit that none before has. Control-flow nodes and calls are left out: naming them would name all inside."""
    covered: set[int] = set()
    patterns: dict[str, None] = {}
    holders = {scope.op for scope in flow.scopes}
    for op in ops:
        if op.id not in holders and decisions.units_of(op) - covered:
            patterns[_pattern(flow, op)] = None
            covered |= decisions.units_of(op)
    return tuple(patterns)
