"""Words that users know from elsewhere, read as ours: fp16, half, bf16, o2, 2, trt, gpu, keep_io_types."""

from __future__ import annotations

from collections.abc import Iterable

from .errors import AmpError, is_whole

LEVELS = ("O0", "O1", "O2", "O3", "auto")
DTYPES = ("float16", "bfloat16")
_DTYPES = {"fp16": "float16", "f16": "float16", "half": "float16", "bf16": "bfloat16"}
_PLACES = {"gpu": "cuda", "trt": "tensorrt"}
_OPTIONS = {
    f"--{word}": f"--dtype={dtype}"
    for dtype, words in {
        "float16": ("fp16", "float16", "half"),
        "bfloat16": ("bf16", "bfloat16"),
    }.items()
    for word in words
}
KEEP_IO = "keep_io_types"


def level_word(value: object) -> str | None:
    """``O2`` of O2, o2, "2" or 2, numpy's numbers too; None for anything else."""
    text = f"O{value}" if is_whole(value) or (isinstance(value, str) and value.isdecimal()) else str(value)
    return {name.lower(): name for name in LEVELS}.get(text.strip().lower())


def dtype_word(value: object) -> str | None:
    """``float16`` or ``bfloat16`` of a spelling (half), or a type of numpy or a framework; None for anything else."""
    named = value if isinstance(value, str) else getattr(value, "name", None) or getattr(value, "__name__", None)
    text = str(named or value).strip().lower().removeprefix("torch.")
    text = _DTYPES.get(text, text)
    return text if text in DTYPES else None


def option_words(words: Iterable[str]) -> list[str]:
    """The words of a command line with other converters' flags as ours: ``--fp16`` as ``--dtype=float16``."""
    return [_OPTIONS.get(word, word) for word in words]


def place_word(word: str) -> str:
    """A user's word for a target or device by its one spelling: ``cuda`` of gpu, ``tensorrt`` of TRT; others stay."""
    return _PLACES.get(word.lower(), word)


def device_word(device: str) -> str:
    """A user's word for a device by its one spelling, in small letters (``cuda`` of GPU); what is no text stays."""
    return place_word(device.lower()) if isinstance(device, str) else device


def io_words(keep: object) -> tuple[str, ...]:
    """The words of a recipe's ``io`` for ``keep_io_types``, as other converters call it: True or None (inputs and
    outputs keep their types), False (they become low), or the names of those that alone keep theirs.

    Raises AmpError AMP305 for another kind.
    """
    if keep is None or isinstance(keep, bool):
        return ("low",) if keep is False else ()
    names = list(keep) if isinstance(keep, Iterable) and not isinstance(keep, (str, bytes)) else [None]
    if not all(isinstance(name, str) for name in names):
        hint = "True, False, or a list of names; io= says more"
        raise AmpError("AMP305", f"{KEEP_IO}={keep!r} is neither true nor false", hint=hint)
    return ("low", *(f"{name}=keep" for name in names))
