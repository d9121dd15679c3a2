"""The rule for public names that change: the old one is taken for one minor version, with a DeprecationWarning; in a
file that a user wrote, with a FutureWarning, which everybody sees. JSON has both names for as long.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Renamed:
    """A public name that changed. ``where``: what takes it, or has it; ``since``: the version that has the new name
    first; ``gone``: the version that no longer takes the old one."""

    where: str
    old: str
    new: str
    since: str
    gone: str


def _in_0_3(where: str, **names: str) -> tuple[Renamed, ...]:
    """Names that changed in 0.3, by keyword: old_name="new_name"; ``where``: in what they are used."""
    return tuple(Renamed(where, old, new, "0.3", "0.4") for old, new in names.items())


def _in_reports(report: str, **names: str) -> tuple[Renamed, ...]:
    """The renamed attributes of a report's class in Python, which are keys of its JSON too."""
    return _in_0_3("reports and their JSON", **{f"{report}.{old}": f"{report}.{new}" for old, new in names.items()})


_RULES = {"hazard": "taint", "tail": "epilogue"}
RENAMED = (
    Renamed("train in Python", "plot=", "html=", "0.3", "0.4"),
    Renamed("ampgraph train", "--plot", "--html", "0.3", "0.4"),
    *_in_0_3("list files", white="allow", gray="infer", black="deny", kept="fp32"),
    *(Renamed("--rule and rule=", f"no-{old}", f"no-{new}", "0.3", "0.4") for old, new in _RULES.items()),
    *_in_reports("Summary", heavy="products"),
    *_in_reports("Products", given="existing", held="pinned"),
    *_in_reports("StepReport", heavy="products"),
    *_in_reports("Inspection", heavy="products"),
    *_in_reports("CheckVerdict", held="pinned"),
    *_in_reports("Explanation", taken="folded_into"),
    *_in_reports("Agreement", astray="nonfinite_mismatches", not_in_reference="nonfinite_mismatches"),
    *_in_reports("QuantizedParts", kept="unchanged"),
)
"""The only list of old names, of which docs/reference/renamed.md is made; no other name can be warned of."""
DROPPED = (
    Renamed("module", "ampgraph.mindspore", "ampgraph.training.mindspore", "0.2", "0.3"),
    Renamed("verify, tune, calibrate, inspect in Python", "told=", "progress=", "0.2", "0.3"),
)
"""Names that went, for the page alone."""
OLD_RULES = {one.old: one.new for one in RENAMED if one.where == "--rule and rule="}
"""Words that switch a rule off, as they were -> as they are."""
_BY_OLD = {one.old: one for one in RENAMED}


def is_now(old: str, said: str = "") -> str:
    """The sentence "OLD is now NEW; the old name goes with VERSION" for a name of `RENAMED`; ``said``: OLD in full."""
    name = _BY_OLD[old]
    return f"{said or old} is now {name.new}; the old name goes with {name.gone}"


def warn_renamed(old: str, said: str = "") -> None:
    """Warns of an old name of `RENAMED`, at the line that called this function's caller; ``said``: see `is_now`."""
    warnings.warn(is_now(old, said), DeprecationWarning, stacklevel=3)


def warn_renamed_words(where: str, names: Mapping[str, str]) -> None:
    """Warns, in one message, of old words in a file or in a field of a recipe, which ``where`` names; Python shows the
    same message once. ``names``: old name, of `RENAMED` -> the name now."""
    changed = ", ".join(f"'{old}' is now '{new}'" for old, new in names.items())
    gone = " and ".join(sorted({_BY_OLD[old].gone for old in names}))
    warnings.warn(f"{where}: {changed}; the old names go with {gone}", FutureWarning, stacklevel=1)


def old_attributes(report: str) -> dict[str, str]:
    """The renamed attributes of the class of reports that is called ``report``: old name -> new name."""
    start = f"{report}."
    return {one.old.removeprefix(start): one.new.removeprefix(start) for one in RENAMED if one.old.startswith(start)}
