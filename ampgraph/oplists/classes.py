"""The words of the lists: classes of operators, levels, and what a level may say of a class."""

from __future__ import annotations

CLASSES = ("white", "gray", "neutral", "black", "kept")
LEVELS = ("O0", "O1", "O2", "O3", "auto")
LEVEL_VALUES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(CLASSES, ("low", "float32", "cut")),
    "float32_inside": ("cut", "list"),
    "accuracy_guards": ("hold", "warn", "off"),
}
