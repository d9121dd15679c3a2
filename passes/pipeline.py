"""The passes of a conversion, in order."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.dataflow import Dataflow
from ..core.pass_ import Pass
from ..core.plan import Plan
from .apply_plan import ApplyPlan
from .fuse_casts import FuseCasts, has_casts, idle_casts
from .verify_types import VerifyTypes


def default_pipeline(
    plan: Plan, before: Dataflow, *, more: Sequence[Pass] = (), given: bool = False, describe: bool = False
) -> tuple[Pass, ...]:
    """The passes that convert a model by a plan whose rewrites are done, in order; only ``more``, verified, where the
    plan changes nothing, and none without these. ``before``: the dataflow of the model that the plan speaks of.
    ``more``: the user's passes, which run behind the casts and are verified with them. ``given``: whether somebody else
    made the plan, so that its faults are not ours. ``describe``: whether what was done is written into the model."""
    if plan.changes_nothing and not more:
        return ()
    verify = VerifyTypes(frozenset(before.conflicts), given, plan.dtype)
    if plan.changes_nothing:
        return (*more, verify)
    fuse = FuseCasts(plan.dtype, idle_casts(before), given or has_casts(before))
    return (ApplyPlan(plan, describe), fuse, *more, verify)
