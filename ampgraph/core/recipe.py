"""Everything that decides precision, in one frozen object.

recipe = Recipe.of(level="O2", fp32=["op:Pow"], dims={"batch": 8})
str(recipe)                                    # 'O2,float16,fp32=op:Pow,dims=batch=8'
Recipe.from_text(str(recipe)) == recipe        # True; to_json and from_json likewise
Recipe.of(recipe, dtype="bfloat16")            # another one with a field replaced

A field's metadata is its `Option`: its flag, its help, how it is read. The command line, the keywords of the API's
verbs, their documentation, text and JSON are made of that. To add a field: add it to `Recipe`, and its type to
`OtherFields`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from . import recipe_values as read
from .errors import AmpError, UnknownKeyword, nearest
from .json_types import JsonObject
from .light_imports import Later, stand_in
from .spellings import DTYPES, KEEP_IO, LEVELS, dtype_word, io_words, level_word

if sys.version_info >= (3, 11):
    from typing import Unpack as Unpack
else:
    from typing_extensions import Unpack as Unpack

if TYPE_CHECKING:
    import numpy as np

    from .ranges import Ranges
else:  # imported when somebody asks for the types of what names them
    np, Ranges = stand_in("numpy"), Later(f"{__package__}.ranges", "Ranges")


_PART = re.compile(r'(?:[^",]|"(?:[^"]|"")*")*')
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')


def split(text: str) -> list[str]:
    """The parts of a recipe's text without quotes and outer blanks; [] of blanks. AmpError AMP301 for an open quote."""
    parts: list[str] = []
    start = 0
    while text.strip() and start <= len(text):
        match = _PART.match(text, start)
        assert match is not None  # an empty part matches too
        end = match.end()
        if end < len(text) and text[end] != ",":
            raise AmpError("AMP301", "a quote is not closed", where=text, hint='write fp32="a,b", and "" for a quote')
        parts.append(_QUOTED.sub(lambda hit: hit[1].replace('""', '"'), match[0].strip()))
        start = end + 1
    return parts


def quoted(word: str) -> str:
    """A word as `split` reads it back from a recipe's text: quoted if it is empty or has commas, quotes, outer
    blanks."""
    if word and word == word.strip() and not re.search(r'[",]', word):
        return word
    return '"' + word.replace('"', '""') + '"'


def words_of(value: object) -> list[str]:
    """A recipe field's value as the words that its option is given on the command line."""
    if isinstance(value, tuple):
        return [f"{item[0]}={item[1]}" if isinstance(item, tuple) else str(item) for item in value]
    return [value if isinstance(value, str) else repr(value)]


Given = dict[str, object]
"""Fields by name, as somebody gave them."""
OF_READING = ("opset", "freeze_weights")
"""Fields that a plan does not hold: how the model is read."""
FORMAT = 1
KEY = "ampgraph_recipe"


class OtherFields(TypedDict, total=False):
    """What may be given for the fields of a recipe, all but the level, which the API's verbs take by position too."""

    dtype: str | type[np.generic] | np.dtype[np.generic]
    policy: str
    lists: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None
    fp32: str | Iterable[str]
    low: str | Iterable[str]
    io: str | Iterable[str]
    target: str | None
    dims: Mapping[str, int] | Iterable[str | tuple[str, int]] | None
    store_weights: str | None
    freeze_weights: bool | None
    rewrite: str | Iterable[str]
    rule: str | Iterable[str]
    fp32_stream: bool
    opset: int | str | None
    ranges: Ranges | str | os.PathLike[str] | None
    range_margin: float | None
    keep_io_types: bool | Iterable[str] | None


class RecipeFields(OtherFields, total=False):
    """What may be given for the fields of a recipe."""

    level: str | int | None


@dataclass(frozen=True)
class Option:
    """How a recipe's field is given: ``flag``, ``metavar`` and ``help`` are the command line's, ``doc`` is Python's.

    ``read`` makes the field's value of whatever a user may give, or raises AmpError; ``kind`` is the type of one word
    of the command line: str, int or float; bool for a flag without a word. ``repeats``: the field is a tuple, and the
    flag may be given several times.
    """

    flag: str
    metavar: str
    help: str
    doc: str
    read: Callable[[object], object]
    kind: type = str
    repeats: bool = False


def option(
    flag: str, metavar: str, help: str, read: Callable[[object], object], *, default: object = None, doc: str = "",
    kind: type = str, repeats: bool = False, hash: bool | None = None,
) -> Any:  # fmt: skip
    """A field of `Recipe`, typed as `Any` like dataclasses' own `field`; its `Option` is in its metadata. Without
    ``doc`` Python shows ``help``; ``hash``: as of `field`."""
    how = Option(flag, metavar, help, doc or help, read, kind, repeats)
    return field(default=() if repeats else default, hash=hash, metadata={"option": how})


@dataclass(frozen=True)
class Recipe:
    """What a conversion is to do: immutable, comparable, checked when it is made.

    A field that is None follows from others: the target from the model's format, type and level from the
    target, else from the policy.
    Raises AmpError AMP301 to AMP311 for a word that makes no sense; what lists or a model tell (a policy, a target, a
    pattern that matches nothing) is checked when the recipe is used.
    """

    # fmt: off
    level: str | None = option(
        "--level", "LEVEL", "O0, O1, O2, O3 or auto; O2, or the target's or policy's own, if not given.", read.level)
    dtype: str = option(
        "--dtype", "TYPE", "float16 (fp16, half) or bfloat16 (bf16); float16, or what the target has, if not given.",
        read.dtype)
    policy: str = option(
        "--policy", "POLICY", "Whose lists and rules: ampgraph (the default), or a framework's: pytorch, mindspore ...",
        read.word("policy"),
        default="ampgraph")
    lists: tuple[str, ...] = option(
        "--lists", "FILE", "A TOML file merged over the lists; repeatable.", read.paths, repeats=True,
        doc="TOML files merged over the policy's lists.")
    fp32: tuple[str, ...] = option(
        "--fp32", "PATTERN", "Keep these nodes in float32; repeatable.", read.words("fp32"), repeats=True,
        doc="Patterns of nodes to keep in float32: a node name glob, ``op:Kind``, ``scope:layers.3.*`` or "
        "``value:NAME``.")
    low: tuple[str, ...] = option(
        "--low", "PATTERN", "Make these nodes low; repeatable.", read.words("low"), repeats=True,
        doc="Patterns of nodes to make low.")
    io: tuple[str, ...] = option(
        "--io", "keep|low|NAME=low", "Types of graph inputs and outputs; keep if not given; repeatable.", read.io,
        repeats=True, doc='``keep``, ``low``, or ``["name-pattern=low", ...]`` for graph inputs and outputs.')
    target: str | None = option(
        "--target", "TARGET",
        "Where it will run: cuda (gpu, the default), tensorrt (trt), openvino, webgpu, cann, cpu or cpu-arm64; "
        "MindIR: ascend (the default) or cpu.",
        read.target)
    dims: tuple[tuple[str, int], ...] = option(
        "--dim", "NAME=N",
        "Size of a symbolic dimension, for costs and generated inputs; least:best:largest for an engine.", read.dims,
        repeats=True,
        doc="Sizes of symbolic dimensions by name, for costs and generated inputs.")
    store_weights: str | None = option(
        "--store-weights", "low|keep",
        "low: weights that only low operators read are stored low; keep: cast when it runs; the policy's if not given.",
        read.store_weights,
        doc="``low`` stores weights low that only low operators read, ``keep`` casts them when the model runs; ``low`` "
        "if not given, with the policy of a framework what it does.")
    freeze_weights: bool | None = option(
        "--freeze-weights", "",
        "Weights that are listed as inputs too become constants; if not given, where a file lists all that it stores.",
        read.switch("freeze_weights"), kind=bool)
    rewrite: tuple[str, ...] = option(
        "--rewrite", "none|exact|[no-]NAME",
        "What may be written anew: exact (the default) or none; a rewrite by name, or no-NAME; repeatable.",
        read.rewrite, repeats=True,
        doc="What may be written by other operators: ``none`` or ``exact`` (the default, all of it), and names of "
        "rewrites, ``norm``, or without one, ``no-norm``.")
    rule: tuple[str, ...] = option(
        "--rule", "no-NAME", "Switch a rule of the planner off by name, as `lists --rules` has it; repeatable.",
        read.rule, repeats=True,
        doc="Rules that are switched off, ``no-epilogue``; `lists --rules` has the names.")
    fp32_stream: bool = option(
        "--fp32-stream", "", "Residual streams and the norms that read them stay float32, at every level.",
        read.switch("fp32_stream"), default=False, kind=bool)
    opset: int | Literal["auto"] | None = option(
        "--opset", "N|auto", "Move the model to this opset first; auto: to the least one that helps.", read.opset,
        doc="move the model to this opset first; ``auto`` to the least one that frees operators or saves Casts and "
        "moves nothing off the target.")
    ranges: Ranges | str | None = option(
        "--ranges", "FILE", "Ranges that were measured before, instead of a run.", read.ranges, hash=False,
        doc="What `calibrate` measured before, or a file of it, instead of data.")
    range_margin: float | None = option(
        "--range-margin", "X", "Float32 for what X times over would overflow; 2 if not given.", read.range_margin,
        kind=float, doc="A value is held that would overflow this many times over; 2 if not given.")
    # fmt: on

    # -- making -------------------------------------------------------------------------------------------------------

    def __post_init__(self) -> None:
        for name, how in OPTIONS.items():
            value = getattr(self, name)
            object.__setattr__(self, name, DEFAULTS[name] if value is None else how.read(value))
        if self.dtype is None:
            object.__setattr__(self, "dtype", low_type_of(self.target))

    @staticmethod
    def of(recipe: Recipe | str | None = None, **fields: Unpack[RecipeFields]) -> Recipe:
        """A recipe from what users may give: a recipe, its text or None for the defaults, with ``fields`` replaced.

        Raises AmpError AMP301, which is a TypeError too, for a field that does not exist.
        """
        return recipe_of(recipe, fields)

    # -- text ---------------------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        return _recipe_text(self)

    def __repr__(self) -> str:
        shown = {n: "ranges" if n == "ranges" and not isinstance(v, str) else repr(v) for n, v in self.set().items()}
        return f"Recipe({', '.join(f'{name}={text}' for name, text in shown.items())})"

    def set(self) -> dict[str, object]:
        """The fields that are not at their default (for ``dtype`` the target's): name -> value, in their order."""
        usual = {**DEFAULTS, "dtype": low_type_of(self.target)}
        values = {name: getattr(self, name) for name in OPTIONS}
        return {name: value for name, value in values.items() if value != usual[name]}

    def to_text(self) -> str:
        """The short text, ``O2,float16,fp32=op:Pow``. Raises AmpError AMP311 for ranges that are in no file."""
        if self.ranges is not None and not isinstance(self.ranges, str):
            hint = "write them to a file and name it, or take to_json"
            raise AmpError("AMP311", "measured ranges have no short text", hint=hint)
        return _recipe_text(self)

    @staticmethod
    def from_text(text: str) -> Recipe:
        """Reads a short text: levels and types by themselves, other fields as ``name=word``, repeatable ones again.

        Raises AmpError AMP301 for any other text, and what `Recipe` raises for values.
        """
        given: dict[str, Any] = {}
        for part in split(text):
            name, word = _field_and_word(part)
            how = OPTIONS[name]
            if how.repeats:
                given.setdefault(name, []).append(word)
            elif name in given:
                raise AmpError("AMP301", f"'{name}' is given twice", where=text, hint="omit one of the two")
            else:
                given[name] = _word_of_kind(how, name, word)
        return recipe_of(None, given)

    # -- JSON ---------------------------------------------------------------------------------------------------------

    def to_dict(self) -> JsonObject:
        """Plain data for JSON: the format's number, and the fields that are not at their default."""
        data: dict[str, Any] = {KEY: FORMAT}
        for name, value in self.set().items():
            data[name] = list(value) if isinstance(value, tuple) else value
        if self.dims:
            data["dims"] = dict(self.dims)
        if self.ranges is not None and not isinstance(self.ranges, str):
            data["ranges"] = json.loads(self.ranges.to_json())
        return data

    @staticmethod
    def from_dict(data: Mapping[str, object], where: str = "recipe") -> Recipe:
        """Reads plain data back. Raises AmpError AMP401 for any other data, and what `Recipe` raises for values."""
        if not isinstance(data, Mapping) or KEY not in data:
            hint = f'a recipe holds {{"{KEY}": {FORMAT}, ...}}'
            raise AmpError("AMP401", "is not an ampgraph recipe", where=where, hint=hint)
        if data[KEY] != FORMAT:
            message = f"recipe format {data[KEY]} is not {FORMAT}"
            raise AmpError("AMP401", message, where=where, hint="write it with this version")
        given = {name: value for name, value in data.items() if name != KEY}
        for name in given:
            if name not in OPTIONS:
                hint = nearest(name, list(OPTIONS)) or f"fields are {', '.join(OPTIONS)}"
                raise AmpError("AMP401", f"a recipe has no field '{name}'", where=where, hint=hint)
        if isinstance(given.get("ranges"), Mapping):
            from .ranges import Ranges

            given["ranges"] = Ranges.from_json(json.dumps(given["ranges"]), where)
        return recipe_of(None, given)

    def to_json(self) -> str:
        """The recipe as text."""
        return json.dumps(self.to_dict(), indent=1) + "\n"

    @staticmethod
    def from_json(text: str, where: str = "recipe") -> Recipe:
        """Reads a recipe back. Raises AmpError AMP401 for any other text, and what `Recipe` raises."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise AmpError(
                "AMP401", "is not an ampgraph recipe: not JSON", where=where, hint="check the file"
            ) from error
        return Recipe.from_dict(data, where)


LOW_OF = {"openvino": "bfloat16"}
"""Target -> its low type where a recipe names none; float16 for all others."""


def low_type_of(target: str | None) -> str:
    """The low type of a `Recipe` that names none, by its target (None: the format's own): float16 or bfloat16."""
    return LOW_OF.get(target or "", "float16")


DEFAULTS: Mapping[str, object] = {one.name: one.default for one in fields(Recipe)}
OPTIONS: Mapping[str, Option] = {one.name: one.metadata["option"] for one in fields(Recipe)}
"""Name of a field -> how it is given, in the order of the fields."""


def recipe_of(recipe: Recipe | str | None, given: Mapping[str, object], others: Iterable[str] = ()) -> Recipe:
    """A recipe from a recipe, its text or None for the defaults, with fields replaced by those ``given`` (name -> value
    as a user gives it, ``keep_io_types`` too).

    ``others``: keywords that the caller takes beside fields, which the hint names; they must not be in ``given``.
    Raises UnknownKeyword for a name that is no field, AmpError AMP301 for a ``recipe`` of another kind, and what
    `Recipe` raises for values."""
    for name in given:
        if name not in OPTIONS and name != KEEP_IO:
            raise UnknownKeyword(name, [*OPTIONS, *others])
    words: dict[str, Any] = _with_io(given)  # each is checked by its field's own reader
    if recipe is None:
        return Recipe(**words)
    if isinstance(recipe, str):
        recipe = Recipe.from_text(recipe)
    if not isinstance(recipe, Recipe):
        message = f"recipe= is a {type(recipe).__name__}, not a recipe"
        raise AmpError("AMP301", message, hint='give an ampgraph.Recipe, or its text: "O2,float16,fp32=op:Pow"')
    if "target" in words and "dtype" not in recipe.set():
        words.setdefault("dtype", None)  # it follows the target
    return replace(recipe, **words) if words else recipe


def _with_io(given: Mapping[str, object]) -> dict[str, object]:
    """A recipe's fields with other converters' ``keep_io_types`` as ``io``. Raises AmpError AMP301 if both differ."""
    words = dict(given)
    if KEEP_IO in words:
        kept = io_words(words.pop(KEEP_IO))
        if words.setdefault("io", kept) != kept:
            raise AmpError("AMP301", f"io and {KEEP_IO} are both given", hint="give one of the two")
    return words


def flags(given: Iterable[str]) -> list[str]:
    """The flags of the command line for names of a recipe's fields, or of other keywords (``--`` and the name)."""
    return [OPTIONS[name].flag if name in OPTIONS else f"--{name.replace('_', '-')}" for name in given]


def _recipe_text(recipe: Recipe) -> str:
    """The recipe as text for `from_text`, without defaults but the type; ranges in memory are only mentioned."""
    parts = []
    for name in OPTIONS:
        value = getattr(recipe, name)
        if name in ("level", "dtype"):
            parts += [value] if value is not None else []
        elif name == "ranges" and value is not None and not isinstance(value, str):
            parts.append("ranges=(in memory)")
        elif value != DEFAULTS[name]:
            parts += [f"{name}={quoted(word)}" for word in words_of(value)]
    return ",".join(parts)


def _field_and_word(part: str) -> tuple[str, str]:
    """(field's name, word) of a recipe's part NAME=WORD (or FLAG=WORD, a level, a type). AmpError AMP301 for others."""
    name, sign, word = part.partition("=")
    name = name.strip()
    if not sign:
        if level_word(part) or dtype_word(part):
            return ("level" if level_word(part) else "dtype"), part
        known = [*LEVELS, *DTYPES, *OPTIONS]
        hint = nearest(part, known) or f"levels are {', '.join(LEVELS)}; all else is NAME=WORD"
        raise AmpError("AMP301", f"'{part}' is neither a level nor a type", hint=hint)
    of_flag = {how.flag.lstrip("-").replace("-", "_"): field for field, how in OPTIONS.items()}
    key = name.lstrip("-").replace("-", "_")
    if key not in OPTIONS and key not in of_flag:
        hint = nearest(key, list(OPTIONS)) or f"fields are {', '.join(OPTIONS)}"
        raise AmpError("AMP301", f"a recipe has no field '{name}'", hint=hint)
    return of_flag.get(key, key), word


def _word_of_kind(how: Option, name: str, word: str) -> object:
    """A word of a recipe's text as the type of its field; a switch's stays text. AmpError AMP301 for what is no
    number."""
    try:
        return word if how.kind is bool else how.kind(word)
    except ValueError as error:
        raise AmpError("AMP301", f"{name}= must be a number, not {word}", hint=how.help) from error
