"""How far a model is decided. A step that needs what an earlier one decided takes the stage that has it."""

from __future__ import annotations

from typing import NewType

from .decisions import Decisions

Tied = NewType("Tied", Decisions)
"""By lists, schema and kernels; slots and regions tied."""
Listed = NewType("Listed", Decisions)
"""By the user's patterns and by index arithmetic too."""
Held = NewType("Held", Decisions)
"""By the accuracy guards that look at numbers too."""
Steady = NewType("Steady", Decisions)
"""Residual streams held too."""
Weighed = NewType("Weighed", Decisions)
"""What the low type cannot store held too."""
Guarded = NewType("Guarded", Decisions)
"""By measured ranges, and all that follows a hazard held too."""
Loose = NewType("Loose", Decisions)
"""What no product reads left to the cut."""
Judged = NewType("Judged", Decisions)
"""All but what the cut decides."""
Settled = NewType("Settled", Decisions)
"""Everything."""
