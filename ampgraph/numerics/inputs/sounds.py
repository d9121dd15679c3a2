"""Sound and its spectra: speech-like waves, tones, noise, silence. No libm: the same on every machine."""

from __future__ import annotations

import numpy as np

from ...core.arrays import Array
from .numbers import Numbers

TURN = 65536  # of a phase
LOUD = (0.3, 0.9, 0.05)  # by sample
FLOOR = (1e-3, 1e-4, 1e-2)  # noise under it
SYLLABLE = 2400  # samples of a wave
VOICES = 8  # harmonics


def sound(numbers: Numbers, shape: tuple[int, ...], index: int) -> Array:
    """Waves of -1 to 1 along the last axis: voiced and unvoiced syllables with pauses, tones that glide, noise; each
    sample has its own loudness, and a stretch of zeros at its end."""
    length, rows = shape[-1], int(np.prod(shape[:-1], dtype=np.int64))
    found = np.empty((rows, length), np.float32)
    paint = (_speech, _tones, _speech)[index % 3]
    for row in range(rows):
        wave = paint(numbers, length)
        largest = abs(wave).max(initial=np.float32(0)) or np.float32(1)
        wave = wave * (np.float32(LOUD[index % 3]) / largest)
        wave = wave + numbers.normal((length,)) * np.float32(FLOOR[index % 3])
        wave[length - length // 10 :] = 0
        found[row] = np.clip(wave, -1, 1)
    return found.reshape(shape)


def _speech(numbers: Numbers, length: int) -> Array:
    """Syllables: harmonics of a gliding pitch, or noise, or nothing."""
    wave = np.zeros(length, np.float32)
    for start in range(0, length, SYLLABLE):
        size = min(SYLLABLE, length - start)
        swell = _sine(np.arange(size, dtype=np.int64) * (TURN // 2) // SYLLABLE)
        kind = int(numbers.integers(0, 5, ()))
        if kind < 4:
            wave[start : start + size] = swell * _voiced(numbers, size)
        elif kind == 4:
            wave[start : start + size] = swell * numbers.normal((size,)) * np.float32(0.2)
    return wave


def _voiced(numbers: Numbers, size: int) -> Array:
    pitch, glide = (int(n) for n in numbers.integers(400, 1000, (2,)))  # of 65536ths of a turn a sample
    place = np.arange(size, dtype=np.int64)
    phase = place * pitch + place * place * (glide - 700) // (4 * SYLLABLE)
    strengths = numbers.uniform((VOICES,))
    found: Array = np.zeros(size, np.float32)
    for number in range(VOICES):
        found = found + _sine(phase * (number + 1)) * (strengths[number] / np.float32(1 + number))
    return found


def _tones(numbers: Numbers, length: int) -> Array:
    """Three tones that come and go, and one that rises."""
    place = np.arange(length, dtype=np.int64)
    wave: Array = _sine(place * place * 8 // max(length // 1000, 1) // 1000) * np.float32(0.3)
    for tone in range(3):
        steps, swell = numbers.integers(300, 8000, ()), numbers.integers(4, 40, ())
        wave = wave + _sine(place * steps) * np.abs(_sine(place * swell)) * np.float32(0.3 / (tone + 1))
    return wave


def _sine(phase: Array) -> Array:
    """Two parabolas that look like a sine, of a phase in 65536ths of a turn."""
    turn = (phase % TURN).astype(np.float32) / np.float32(TURN // 2) - np.float32(1)
    wave: Array = 4 * turn * (1 - np.abs(turn))
    return wave


# -- spectra ----------------------------------------------------------------------------------------------------------

SPECTRA = ((-1.0, 2.0), (-11.0, 13.0), (-0.3, 2.0))  # least value and span, by sample: scaled, logarithms, whitened


def spectrum(numbers: Numbers, shape: tuple[int, ...], index: int) -> Array:
    """Logarithms of power, time by frequency: harmonics that move, less of them high up, pauses, a noisy floor."""
    time, bands = shape[-2:]
    rows = int(np.prod(shape[:-2], dtype=np.int64))
    place = np.arange(bands, dtype=np.int64)
    found = np.empty((rows, time, bands), np.float32)
    least, span = SPECTRA[index % len(SPECTRA)]
    for row in range(rows):
        pitch = numbers.integers(TURN // 24, TURN // 6, (time // 16 + 1,)).repeat(16)[:time, None]
        loud = numbers.uniform((time // 8 + 1,)).repeat(8)[:time, None]
        harmonics = np.abs(_sine(pitch * place)) * (1 - place / np.float32(2 * bands)).astype(np.float32)
        level = harmonics * loud * np.float32(0.7) + numbers.uniform((time, bands)) * np.float32(0.3)
        found[row] = np.where(loud < np.float32(0.15), np.float32(0.05) * level, level)
    return (found * np.float32(span) + np.float32(least)).astype(np.float32).reshape(shape)
