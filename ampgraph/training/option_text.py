"""Options as text: ``KEY=VALUE,KEY=VALUE``, as optimizers, schedules and loss scales have them behind their name."""

from __future__ import annotations

from collections.abc import Collection


class BadOption(Exception):
    """A word that is no option; whoever reads the text says which text it was, and what there is instead.

    ``form``: it is not KEY=VALUE. ``twice``: its key was given before. Else its key is unknown.
    """

    def __init__(self, word: str, key: str, *, form: bool, twice: bool) -> None:
        super().__init__(f"'{key}' is given twice" if twice else f"unknown '{word}'")
        self.word, self.key, self.form, self.twice = word, key, form, twice


def read_options(text: str, known: Collection[str]) -> dict[str, str]:
    """Key -> value, in the order of the text; an empty text holds none. Raises BadOption."""
    given: dict[str, str] = {}
    for word in text.split(",") if text else ():
        key, _, value = (part.strip() for part in word.partition("="))
        if not value or key not in known or key in given:
            raise BadOption(word, key, form=not value, twice=key in given)
        given[key] = value
    return given
