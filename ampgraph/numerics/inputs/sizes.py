"""A size for every dimension that a model leaves open, by its name and by where it stands."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ...core.dataflow import NONE, Dataflow
from ...oplists.traits import has, traits
from ...runtime.ports import Port
from ..metrics.roles import LOGARITHMS, PROBABILITIES, roles_of

BATCH, SEQUENCE, PAST, FRAMES, IMAGE, CHANNELS = 1, 16, 8, 64, 256, 3
SECOND = 16000  # of sound, in samples
LINE, ASPECT = 64, 5  # a picture of a fixed height up to LINE is a line of text: so many times as wide
LONGEST, FEW = 4096, 16  # of a size that a part tells, and of numbers that say parts
CHANNELS_FIRST = [0, 3, 1, 2]
TEXT = 48  # the height of a line where nothing says it
SOUND_NAMES = ("audio", "wav", "pcm", "speech", "signal", "sound", "samples")

Place = tuple[str, int]  # an input and one of its axes

_WORD = re.compile(r"[A-Za-z_.][\w.]*")
_SUM = re.compile(r"[\w.\s+\-*/()]+")


@dataclass(frozen=True)
class GraphInput(Port):
    """An input of a graph, with its value there."""

    value: int = NONE


@dataclass
class Sizes:
    """One size for each symbolic dimension, by its name and by where it stands.

    Attributes:
        ports: the inputs that need sizes.
        given: the user's, by name.
        learnt: sizes of single places, of which a run has shown that the model wants them: names may lie.
        text: whether pictures of open sizes are lines of text.
        parts: by name, where the last slice begins and ends that the model takes (`last_slices`).
        turned: inputs whose pictures have their channels last, though no size says so.
        known: the sizes found, by name.
    """

    ports: Sequence[GraphInput]
    given: Mapping[str, int] = field(default_factory=dict)
    learnt: Mapping[Place, int] = field(default_factory=dict)
    text: bool = False
    parts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    turned: Collection[str] = ()
    known: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.known = dict(self.given)
        places: dict[str, tuple[GraphInput, int]] = {}  # by name, the place that says most of it
        for port in self.ports:
            for axis, dim in enumerate(port.shape):
                if isinstance(dim, str) and not _is_anonymous(dim) and (dim not in places or not places[dim][1]):
                    places[dim] = port, axis  # one in front says least of a name
        later = [name for name in places if _is_sum(name) or self._is_total(name)]
        for name, (port, axis) in places.items():
            if name not in self.known and name not in later:
                guess, (start, end) = self._guess(name, port, axis), self.parts.get(name, (0, 0))
                self.known[name] = guess if start < guess else end  # the last slice must not be empty
        for name in later:
            if name not in self.known:
                self.known[name] = self._summed_size(name)

    def size(self, dim: int | str | None) -> int:
        """The size of a dimension of any value: a number, a name, or None (open); a name that no input has, and is no
        sum, counts as a sequence, as None does."""
        if isinstance(dim, int):
            return dim
        if dim in self.known:
            return self.known[dim]
        return self._summed_size(dim) if dim is not None and _is_sum(dim) else SEQUENCE

    def shape(self, port: GraphInput) -> tuple[int, ...]:
        """The shape in which an input is generated."""
        return tuple(self._size_of(port, axis, dim) for axis, dim in enumerate(port.shape))

    def open_places(self) -> list[Place]:
        """The places (input, axis) of generated inputs whose size neither file nor user says, learnt ones among them;
        leading axes last, as they seldom matter."""
        places = [
            (port.name, axis)
            for port in self.ports
            for axis, dim in enumerate(port.shape)
            if not isinstance(dim, int) and dim not in self.given
        ]
        return sorted(places, key=lambda place: place[1] == 0)

    def _size_of(self, port: GraphInput, axis: int, dim: int | str | None) -> int:
        """The size at one place of an input, of dimension ``dim``: learnt, else by its name, else by the place."""
        if (port.name, axis) in self.learnt:
            return self.learnt[port.name, axis]
        unnamed = dim is None or (isinstance(dim, str) and _is_anonymous(dim) and dim not in self.known)
        return self._guess("", port, axis) if unnamed else self.size(dim)

    @property
    def past(self) -> int:
        """The length of the part of a sequence that came before, which caches hold; 0 where no dimension is one."""
        return next((size for name, size in self.known.items() if self._is_past(name)), 0)

    def _is_past(self, name: str) -> bool:
        """Whether a dimension's name means the length of the past: by the word, or where only caches have it."""
        if _is_sum(name) or "total" in name.lower():
            return False
        holders = [p for p in self.ports if name in p.shape]
        only_past = bool(holders) and all(p.name.lower().startswith(("past", "cache_")) for p in holders)
        return "past" in name.lower() or (only_past and all(p.shape[0] != name for p in holders))

    def _is_total(self, name: str) -> bool:
        """Whether a dimension's name means past and present together, as a mask has it."""
        holders = [p for p in self.ports if name in p.shape]
        mask_only = bool(holders) and all("mask" in p.name.lower() and p.shape[-1] == name for p in holders)
        has_past = any(isinstance(d, str) and self._is_past(d) for p in self.ports for d in p.shape)
        return has_past and not self._is_past(name) and ("total" in name.lower() or (mask_only and not _is_sum(name)))

    def _summed_size(self, name: str) -> int:
        """The size of a dimension whose name is a sum of others (`SEQUENCE` where it cannot be computed), or means past
        and present together: `past` and the length of the tokens."""
        if not _is_sum(name):
            tokens = [p.shape[-1] for p in self.ports if "ids" in p.name.lower() and p.shape]
            return self.past + self.size(tokens[0] if tokens else "")
        names = sorted(set(_WORD.findall(name)), key=len, reverse=True)
        text = _WORD.sub(lambda m: str(self.known.get(m.group(), SEQUENCE)), name)
        number = _evaluate(text) if names else None
        return SEQUENCE if number is None else max(number, 1)

    def _guess(self, name: str, port: GraphInput, axis: int) -> int:
        """A size by the name of a dimension ("" for none), the input and the axis, by the first rule that fits."""
        word, rank = name.lower(), len(port.shape)
        if name and self._is_past(name):
            return PAST
        if "batch" in word:
            return BATCH
        if "float" in port.dtype and rank <= 3 and axis == rank - 1 and is_sound_name(port.name, word):
            return SECOND
        if "frame" in word and rank >= 3:
            return FRAMES
        if any(part in word for part in ("seq", "len", "time", "token", "frame", "step")):
            return SEQUENCE
        if "channel" in word:
            return CHANNELS
        if axis == 0:
            return BATCH
        pictured = rank >= 4 and "float" in port.dtype and not port.name.lower().startswith("past")
        if pictured or (rank >= 4 and ("height" in word or "width" in word)):
            channels_axis = 1
            if port.name in self.turned:
                channels_axis = rank - 1
            elif isinstance(port.shape[-1], int):
                channels_axis = 0  # the file fixes the channels, last: no open axis is theirs
            return CHANNELS if axis == channels_axis else self._picture_side(port, axis)
        return SEQUENCE

    def _picture_side(self, port: GraphInput, axis: int) -> int:
        """The height or width (``axis``) of a picture: `IMAGE`; of a line of text by its usual ratio, which also a
        fixed height in the axis before tells."""
        across = port.shape[axis - 1] if axis >= 3 else None
        if isinstance(across, int) and CHANNELS + 1 < across <= LINE:
            return ASPECT * across
        if not self.text:
            return IMAGE
        return TEXT if axis == (1 if isinstance(port.shape[-1], int) else 2) else ASPECT * TEXT


def is_sound_name(name: str, dim: str = "") -> bool:
    """Generated inputs: whether the name of an input, or of a dimension of it ("" for none), speaks of sound."""
    return any(word in text for text in (name.lower(), dim.lower()) for word in SOUND_NAMES)


def _is_anonymous(name: str) -> bool:
    """Sizes of generated inputs: whether a dimension's name says nothing: paddle2onnx writes ``?`` for open ones."""
    return not any(sign.isalnum() for sign in name)


def _is_sum(name: str) -> bool:
    """Sizes of generated inputs: whether a dimension's name is arithmetic: ``past + seq``."""
    return bool(_SUM.fullmatch(name)) and any(sign in name for sign in ("+", "*", "//", " - "))


def _evaluate(text: str) -> int | None:
    """Sizes of generated inputs: the value of arithmetic on numbers, ``8 + 2*16``: products before sums, quotients
    rounded down; None for anything else, as brackets and a division by 0."""
    total = 0
    for sign, term in re.findall(r"([+-]?)\s*([^+-]+)", text):
        product = 1
        for operation, factor in re.findall(r"(//|\*|/)?\s*(\d+)", term):
            if operation in ("//", "/"):
                if not int(factor):
                    return None
                product //= int(factor)
            else:
                product *= int(factor)
        if re.sub(r"[\d\s*/]", "", term):
            return None
        total += -product if sign == "-" else product
    return total


def last_slices(flow: Dataflow) -> dict[str, tuple[int, int]]:
    """For sizes of generated inputs, by name of a dimension: where the last of the constant slices begins and ends that
    the model takes of it. A slice behind the size is empty: ONNX Runtime warns, and each answer is another."""
    found: dict[str, tuple[int, int]] = {}
    for op in flow.with_roles(traits().operators("slices")):
        shape, bounds = flow.shape(op.inputs[0]), [_stored_integers(flow, value) for value in op.inputs[1:4]]
        if shape is None or len(bounds) < 3 or any(bound is None for bound in bounds):
            continue
        for start, end, axis in zip(*filter(None, bounds), strict=False):
            name = shape[axis] if -len(shape) <= axis < len(shape) else None
            if isinstance(name, str) and 0 < start < end <= LONGEST:
                found[name] = max(found.get(name, (0, 0)), (start, end))
    return found


def _stored_integers(flow: Dataflow, value: int) -> list[int] | None:
    """Sizes of generated inputs: the numbers of a stored tensor of at most `FEW` integers; None for other values."""
    item = flow.values[value] if value != NONE else None
    array = flow.weights.array(item, FEW) if item is not None and item.weight else None
    return None if array is None or array.dtype.kind != "i" else [int(n) for n in array.reshape(-1)]


def is_channels_last(flow: Dataflow, value: int) -> bool:
    """Generated inputs: whether one is turned from [batch, height, width, channels] to channels first at once."""
    return any(flow.integers(op, "perm") == CHANNELS_FIRST for op in flow.readers(value) if has(op.role, "permutes"))


# -- what a model is for ----------------------------------------------------------------------------------------------

LETTERS = 20  # classes at least: those of an alphabet


def reads_text_lines(flow: Dataflow) -> bool:
    """Sizes of generated inputs: whether all outputs are probabilities of letters, place by place along a line.

    Its pictures are lines of text then (`Sizes.text`). A tagger of words looks alike, which does no harm: it has no
    picture.
    """
    outputs, roles = flow.scopes[0].outputs, roles_of(flow)
    return bool(outputs) and all(
        roles[flow.values[v].name] in (PROBABILITIES, LOGARITHMS) and _is_of_letters(flow.shape(v)) for v in outputs
    )


def _is_of_letters(shape: tuple[int | str | None, ...] | None) -> bool:
    """Sizes of generated inputs: whether a shape is ``[batch, places, letters]`` with an alphabet's number of them."""
    letters = shape[-1] if shape is not None and len(shape) == 3 else 0
    return isinstance(letters, int) and letters >= LETTERS
