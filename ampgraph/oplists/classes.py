"""The words of the lists: classes of operators, levels, and what a level may say of a class."""

from __future__ import annotations

from ..core.spellings import LEVELS

__all__ = ["CLASSES", "LEVELS", "LEVEL_VALUES"]

CLASSES = ("white", "gray", "neutral", "black", "kept")
LEVEL_VALUES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(CLASSES, ("low", "float32", "cut")),
    "float32_inside": ("cut", "list"),
    "accuracy_guards": ("hold", "warn", "off"),
}
