"""Trained models of other makers, out of public repositories: is the default right, and are alarms true.

    python benchmarks/fresh.py collect FOLDER --clones DIR     # DIR/OWNER+NAME: clones; FOLDER/models, FOLDER/data
    python benchmarks/fresh.py judge FOLDER [--set A] [NAME ...] [--parts PART ...]    # those of zoo_right.py
    python benchmarks/fresh.py table FOLDER                    # as fresh.md has it

`fresh.json` lists them: repository, commit and path, what each is for, and of what its inputs are made. Eight inputs
each: photographs of scikit-learn and scikit-image (`collect` needs both, and chess), its digits, drawn strokes,
speech-like sound and its spectra, positions of games, observations of robots, tokens, and what another model of the
list makes of its own inputs. A repository is in set B where the first bit of the SHA-256 of its name says so: nothing
was chosen with B.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import math
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import zoo_right
from zoo_right import Row

LISTED = Path(__file__).with_suffix(".json")
SAMPLES = 8
SETS = "ABCDEFGHIJK"
PARTS = ["generated", "error"]
Entry = dict[str, Any]
Array = Any  # of numpy


def listed() -> list[Entry]:
    found: list[Entry] = json.loads(LISTED.read_text(encoding="utf-8"))
    return found


def set_of(entry: Entry) -> str:
    """A: models whose results may change the code; B to K: models that are run once, at the end.

    C was collected after B had been measured, D after C and so on, each by other makers, and all are said in the list.
    """
    found: str = entry.get("set", "AB"[hashlib.sha256(entry["repo"].encode()).digest()[0] >> 7])
    return found


# -- inputs -----------------------------------------------------------------------------------------------------------


class Inputs:
    """The inputs of one sample of a model, by what `fresh.json` says of each."""

    def __init__(self, entry: Entry, index: int, models: Path, before: dict[str, Array]) -> None:
        """``before``: the outputs on the sample before, of which states are taken."""
        self.entry, self.index, self.models, self.before = entry, index, models, before
        seed = int.from_bytes(hashlib.sha256(entry["name"].encode()).digest()[:4], "big")
        self.random = np.random.default_rng([seed, index])

    def of(self, name: str, dtype: str, dims: list[int | str]) -> Array:
        """An array for an input. Raises KeyError for one that nothing is said of."""
        told = self.entry["inputs"]
        spec = told[name] if name in told else told["*"]
        shape = tuple(spec["shape"]) if "shape" in spec else self._shape(dims, spec)
        value = getattr(self, spec["kind"])(tuple(spec.get("rows", shape)), spec)
        wanted = np.dtype({"FLOAT": "f4", "INT64": "i8", "INT32": "i4", "UINT8": "u1", "BOOL": "?"}[dtype])
        value = value if spec["kind"] == "made" else fitted(np.asarray(value), shape)
        found = np.ascontiguousarray(value, dtype=wanted)  # of one dimension at least
        return found.reshape(shape) if "shape" in spec else found

    @staticmethod
    def _shape(dims: list[int | str], spec: Entry) -> tuple[int, ...]:
        """Open sizes: one in front, ``size`` behind."""
        size = spec.get("size", 16)
        opened = [size if axis or len(dims) == 1 else 1 for axis in range(len(dims))]
        return tuple(dim if isinstance(dim, int) else guess for dim, guess in zip(dims, opened, strict=True))

    # numbers without a picture

    def zeros(self, shape: tuple[int, ...], spec: Entry) -> Array:
        return np.zeros(shape)

    def ones(self, shape: tuple[int, ...], spec: Entry) -> Array:
        return np.ones(shape)

    def constant(self, shape: tuple[int, ...], spec: Entry) -> Array:
        return np.full(shape, spec["value"])

    def state(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """A state that the model has reached by itself: zero at first."""
        return self.before.get(spec["output"], np.zeros(shape))

    def made(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """What another model of the list makes of its own sample."""
        with np.load(self.models.parent / "data" / spec["by"] / f"{self.index}.npz") as feeds:
            return outputs_of(self.models / f"{spec['by']}.onnx", dict(feeds))[spec["output"]]

    def file(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """The first and the last bytes of a text or of numbers; 256 where there are none."""
        text = (__doc__ or "").encode() if self.index % 2 else np.arange(300.0 * (1 + self.index)).tobytes()
        found, part = np.full(shape, 256), np.frombuffer(text[:1024], np.uint8)
        found[..., : len(part)], found[..., shape[-1] - len(part) :] = part, part
        return found

    def normal(self, shape: tuple[int, ...], spec: Entry) -> Array:
        return self.random.normal(size=shape) * spec.get("scale", 1)

    def unit(self, shape: tuple[int, ...], spec: Entry) -> Array:
        rows = abs(self.random.normal(size=shape))
        return rows / np.linalg.norm(rows, axis=-1, keepdims=True)

    def uniform(self, shape: tuple[int, ...], spec: Entry) -> Array:
        return self.random.uniform(spec["low"], spec["high"], shape)

    def numbers(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """The sample's part of all numbers in ``file`` of the repository: rows of ``width``, scaled, turned."""
        text = (self.models / f"{self.entry['name']}.file").read_text(encoding="utf-8")
        found = np.array(re.findall(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?", text), float).reshape(-1, spec["width"])
        count = math.prod(shape) // spec["width"]
        low, high = (np.asarray(spec.get(key, default)) for key, default in (("low", 0.0), ("high", 1.0)))
        start = len(found) // count // SAMPLES * count * self.index
        rows = (found[start : start + count] - low) / (high - low)
        return (rows.T if spec.get("turned") else rows).reshape(shape)

    def rolled(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """Maps of the array in ``file`` (of NumPy), moved along their first axis from sample to sample."""
        found = np.load(self.models / f"{self.entry['name']}.file").reshape(shape)
        return np.roll(found, self.index * shape[1] // SAMPLES, axis=1)

    def cells(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """The sample's row of the table in ``file`` (CSV with a header), columns from ``first``."""
        table = np.genfromtxt(self.models / f"{self.entry['name']}.file", delimiter=",", skip_header=1)
        first, row = spec.get("first", 0), len(table) * (self.index + 1) // SAMPLES - 1
        return table[row, first : first + math.prod(shape)].reshape(shape)

    def bounds(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """Between the bounds that the sample's VNN-LIB file, of the repository's ``files``, gives each number."""
        text = (self.models / f"{self.entry['name']}.{self.index}").read_text(encoding="utf-8")
        low, high = (
            np.array(re.findall(rf"{sign} X_\d+ (-?[\d.e-]+)\)", text), float).reshape(shape) for sign in (">=", "<=")
        )
        return self.random.uniform(low, high)

    def cloud(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """Points of the PLY file of the sample, of ``files``: centred, in a sphere of 1, the third number turned."""
        text = (self.models / f"{self.entry['name']}.{self.index}").read_text(encoding="utf-8")
        points = np.array(text.partition("end_header")[2].split(), float).reshape(-1, 4)[:, :3] * [1, 1, -1]
        points = self.random.permutation(points)[: shape[-1]]
        points = points - points.mean(0)
        return (points / np.linalg.norm(points, axis=1).max()).T.reshape(shape)

    def masses(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """Ten peaks of a mass spectrum, the highest first: ten features of each, or how near they are (``near``)."""
        known = np.asarray(spec["known"])
        random = np.random.default_rng(self.index)
        mass = np.where(
            random.uniform(size=10) < 0.1 * self.index, random.choice(known, 10), random.uniform(50, 400, 10)
        )
        if spec.get("near"):
            return np.exp(-((mass[:, None] - mass) ** 2) / (2 * 50**2)).reshape(shape)
        group = np.array([0.25] * 5 + [0.5] * 6 + [0.75] * 7 + [1.0] * 7)
        away, place = abs(mass[:, None] - known), np.arange(10)
        (mean, std), (top_mean, top_std) = spec["all"], spec["top"]
        same = np.round(mass[:, None], 1) == np.round(known, 1)
        main = np.isin(np.arange(len(known)), [0, 1, 5, 8, 11])
        columns = [
            (mass - mean) / std, place / 10, place == 0, place == 9, same.any(1), away.min(1) / 100,
            (same * group).max(1), (same & main).any(1), np.full(10, (mass[0] - top_mean) / top_std), mass / mass[0],
        ]  # fmt: skip
        return np.stack(columns, -1).reshape(shape)

    def wines(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """Rows of a table of wines, as they were measured."""
        import sklearn.datasets

        rows = sklearn.datasets.load_wine().data
        return rows[self.random.permutation(len(rows))[: math.prod(shape[:-1])]].reshape(shape)

    def text(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """Bytes of a text over ``scale``, or its letters as 1 to 26."""
        source = (__doc__ or "")[40 * self.index :].lower()
        letters = [ord(c) - 96 for c in source if "a" <= c <= "z"]
        codes = letters if spec.get("letters") else list(source.encode())
        return np.array(codes[: math.prod(shape)]).reshape(shape) / spec.get("scale", 1)

    def address(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """The address of a web page made of words, each sign as its place in ``letters`` from 1, zero behind."""
        words = re.findall("[a-z]{3,}", (__doc__ or "").lower())[7 * self.index :]
        text = "{}.{}.com/{}-{}/{}?{}={}".format(*words) if self.index % 2 else f"{words[0]}{self.index}.org"
        places = [spec["letters"].index(sign) + 1 for sign in text]
        return np.pad(places, (0, math.prod(shape) - len(places))).reshape(shape)

    def word(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """A word's shares of the letters and of their pairs, its last letter, its first one, and its length over 20."""
        word = re.findall("[a-z]{4,}", (__doc__ or "").lower())[5 * self.index]
        places, ones = [ord(c) - 97 for c in word], np.eye(26)
        pairs = np.zeros((26, 26))
        np.add.at(pairs, (places[:-1], places[1:]), 1 / (len(places) - 1))
        found = [ones[places].mean(0), pairs.ravel(), ones[places[-1]], ones[places[0]], [len(places) / 20]]
        return np.concatenate(found)

    def columns(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """A row of a table, each column in its own range, some of them in ``whole`` numbers."""
        found = self.random.uniform(spec["low"], spec["high"], (*shape[:-1], len(spec["low"])))
        return np.where(np.isin(np.arange(len(spec["low"])), spec.get("whole", [])), np.floor(found), found)

    def stored(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """A row of a table about the means that the model has stored."""
        mean, gain = (self.entry["weights"][spec[key]] for key in ("mean", "gain"))
        return mean + self.random.normal(size=mean.shape) / gain

    def sparse(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """What a Relu and an average leave: a fifth of the features, not negative."""
        return np.where(self.random.uniform(size=shape) < 0.2, self.random.gamma(1, 0.5, shape), 0)

    def integers(self, shape: tuple[int, ...], spec: Entry) -> Array:
        return self.random.integers(0, spec["last"] + 1, shape)

    def tokens(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """Tokens of a sentence, the frequent ones first, with a padded tail, or start (``turned``)."""
        drawn = np.minimum(self.random.zipf(1.3, shape) + spec.get("first", 1) - 1, spec["last"])
        kept = np.arange(shape[-1]) < max(1, shape[-1] - self.index % 4)
        return np.where(kept[::-1] if spec.get("turned") else kept, drawn, spec.get("padding", 0))

    def onehot(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """One of the places along ``axis``: letters of genes."""
        drawn = self.random.uniform(size=shape)
        return drawn == drawn.max(spec["axis"], keepdims=True)

    # games, robots, tables of a game's state

    def bits(self, shape: tuple[int, ...], spec: Entry) -> Array:
        return self.random.uniform(size=shape) < spec.get("share", 0.3)

    def counts(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """Counts over what they are at most, or up to ``whole``; many of them zero."""
        some = self.random.integers(0, spec.get("whole", 7) + 1, shape) / (1 if "whole" in spec else 7)
        return np.where(self.random.uniform(size=shape) < 0.4, some, 0)

    def rays(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """Places of -1 to 1, and what rays met: mostly nothing."""
        found = np.where(self.random.uniform(size=shape) < 0.3, self.random.uniform(size=shape), 0)
        found[..., :4] = self.random.uniform(-1, 1, found[..., :4].shape)
        return found

    def robot(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """Angular velocities, gravity, a command, joint positions and velocities, the last action."""
        width = shape[-1]
        third = (width - 9) // 3
        rates, places, turns = (self.random.normal(size=n) * s for n, s in ((3, 0.3), (third, 0.3), (third, 1.0)))
        gravity = np.array([0, 0, -1]) + self.random.normal(size=3) * 0.05
        row = np.concatenate([rates, gravity, self.random.uniform(-1, 1, 3), places, turns])
        return np.concatenate([row, self.random.normal(size=width - len(row))])

    def tiles(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """A board of 2048 as logarithms."""
        return np.where(self.random.uniform(size=shape) < 0.6, self.random.integers(1, 10, shape), 0)

    def board(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """A position: each square one of the values, the middle ones taken first."""
        count = math.prod(shape)
        taken = np.argsort(abs(np.arange(count) - count / 2) + self.random.uniform(0, count / 3, count))
        found = np.zeros(count)
        found[taken[: 8 + 5 * self.index]] = self.random.choice([-1, 1], 8 + 5 * self.index)[:count]
        return found.reshape(shape)

    def planes(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """A position of a game of stones, a plane for the stones of each side, and earlier ones of the same game.

        Stones may ``fall`` to the lowest place of their column; the ``last`` one may have a plane of its own.
        """
        found, height, width = np.zeros(shape), *shape[-2:]
        stones = self.random.permutation(height * width)
        if spec.get("fall"):
            heights = [sum(stones[:turn] % width == stone % width) for turn, stone in enumerate(stones)]
            stones = (height - 1 - np.array(heights)) * width + stones % width
        stones = stones[: max(2, (2 + 3 * self.index) % (height * width))]
        for plane in range(0, spec["own"], 2):
            for turn, stone in enumerate(stones[: len(stones) - plane // 2]):
                found[:, plane + turn % 2, stone // width, stone % width] = 1
        for plane in spec.get("turn", []):
            found[:, plane] = self.index % 2
        if "last" in spec:
            found[:, spec["last"], stones[-1] // width, stones[-1] % width] = 1
        return found

    def rooms(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """Tiles that hold, where a block of one or two of them stands, and where it should go, a plane each."""
        found, (top, left), goal = np.zeros(shape), *self.random.integers(0, shape[-1] - 1, (2, 2))
        found[0, 0] = self.random.uniform(size=shape[2:]) < 0.6
        found[0, 1, top : top + 1 + self.index % 2, left] = 1
        found[0, 2, goal[0], goal[1]] = 1
        found[0, 0] = found[0].max(0)
        return found

    def steps(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """Excerpts of a dancing game's chart, 19 rows: speed, note levels, progress, pauses, feet, feet held."""
        count = shape[1] * shape[3]
        level, done = self.random.integers(1, 4, count), np.linspace(0, 1, count)
        taps = np.eye(4)[self.random.integers(0, 4, count)] + (self.random.uniform(size=(count, 4)) < 0.02 * self.index)
        speed, notes = np.full(count, 0.5 + 0.05 * self.index), (level[:, None] >= np.arange(1, 8)).T
        rows = [speed, *notes, done, done, 1.6 / level]
        rows += [*taps.clip(0, 1).T, *(self.random.uniform(size=(4, count)) < 0.1)]
        return np.stack(rows).reshape(19, shape[1], shape[3]).swapaxes(0, 1)[None]

    def pieces(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """A small board with some of the pieces of both sides, each a number."""
        found = np.zeros(math.prod(shape))
        held = spec["held"][: len(spec["held"]) - self.index % 3]
        found[self.random.permutation(found.size)[: len(held)]] = held
        return found.reshape(shape)

    def stacks(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """Nine places, three sizes, two sides: of each size at most two pieces of a side, on places of their own."""
        found = np.zeros((9, 3, 2))
        for size in range(3):
            places = self.random.permutation(9)
            for side in range(2):
                found[places[2 * side : 2 * side + self.random.integers(0, 3)], size, side] = 1
        return found.reshape(shape)

    def snakes(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """A board of two snakes: heads by their length, bodies and tails by their health, one's own first; food."""
        found, height, width = np.zeros(shape), *shape[-2:]
        for side in range(2):
            length, row = 3 + self.index + side, side * (height // 2) + self.random.integers(height // 2)
            start, health = self.random.integers(width - length + 1), self.random.uniform(0.3, 1)
            found[0, side, row, start] = length / (height * width)
            found[0, 2 + side, row, start + 1 : start + length - 1] = health
            found[0, 4 + side, row, start + length - 1] = health
        found[0, 6][self.random.integers(0, height, 3), self.random.integers(0, width, 3)] = 1
        return found

    def box_points(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """Points on three sides of a turned box, about their mean, the furthest at 1."""
        size, turn = self.random.uniform(0.3, 1, 3), self.random.uniform(0, np.pi)
        found, count = self.random.uniform(-0.5, 0.5, (math.prod(shape) // 3, 3)), math.prod(shape) // 3
        found[np.arange(count), self.random.integers(0, 3, count)] = 0.5
        spun = np.array([[np.cos(turn), -np.sin(turn), 0], [np.sin(turn), np.cos(turn), 0], [0, 0, 1]])
        found = (found * size) @ spun.T
        found -= found.mean(0)
        return (found / np.linalg.norm(found, axis=1).max()).reshape(shape)

    def chess_board(self) -> Any:
        """A position after random moves."""
        import chess

        board = chess.Board()
        for _ in range(4 + 9 * self.index):
            moves = list(board.legal_moves)
            if moves:
                board.push(moves[self.random.integers(len(moves))])
        return board

    def chess_text(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """The last signs of a game that is written down, each as its place in ``letters``, ends of lines in front."""
        import chess

        board, words = chess.Board(), []
        for move in self.chess_board().move_stack:
            words.append(board.san(move))
            board.push(move)
        text = "\n" * math.prod(shape) + " ".join(words)
        return np.array([spec["letters"].index(sign) for sign in text[-math.prod(shape) :]]).reshape(shape)

    def chess_squares(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """Sixty-four numbers for each kind of piece, the white ones first, from the first or from the ``top`` row."""
        found = np.zeros((12, 64))
        for square, piece in self.chess_board().piece_map().items():
            found[piece.piece_type - 1 + (0 if piece.color else 6), square ^ (56 if spec.get("top") else 0)] = 1
        return found.reshape(shape)

    def chess_sides(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """A plane for each kind of piece, the eighth row first: 1 for the white ones, -1 for the black ones."""
        found = np.zeros(shape)
        for square, piece in self.chess_board().piece_map().items():
            found[0, piece.piece_type - 1, 7 - square // 8, square % 8] = 1 if piece.color else -1
        return found

    def four_sides(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """A position of Go for four, a plane for the stones of each, in turn, and one for all of them."""
        found = np.zeros(shape)
        stones = self.random.permutation(shape[-1] * shape[-2])[: 4 + 6 * self.index]
        for turn, stone in enumerate(stones):
            found[0, [turn % 4, 4], stone // shape[-1], stone % shape[-1]] = 1
        return found

    def othello(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """A position of Othello after random moves: 1 and -1."""
        side = math.isqrt(math.prod(shape))
        found, player, middle = np.zeros((side, side), int), 1, side // 2
        found[middle - 1 : middle + 1, middle - 1 : middle + 1] = [[-1, 1], [1, -1]]
        for _ in range(3 + 6 * self.index):
            moves = [(place, taken) for place in np.argwhere(found == 0) if (taken := flips(found, place, player))]
            if moves:
                place, taken = moves[self.random.integers(len(moves))]
                for row, column in [tuple(place), *taken]:
                    found[row, column] = player
            player = -player
        return (found * player).reshape(shape)

    def chess(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """A position: a plane for each kind of piece, then rights, en passant, the side, ones."""
        board = self.chess_board()
        found = np.zeros(shape)
        for square, piece in board.piece_map().items():
            plane = piece.piece_type - 1 + (0 if piece.color else 6)
            found[0, plane, square // 8, square % 8] = 1
        for plane, (side, king) in enumerate(((True, True), (True, False), (False, True), (False, False)), 12):
            rights = board.has_kingside_castling_rights if king else board.has_queenside_castling_rights
            found[0, plane] = rights(side)
        found[0, 17], found[0, 18] = board.turn, 1
        return found

    # series and sound

    def series(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """Random walks over time, each feature standardised, or between the ends of ``span``, of all or of each."""
        axis = spec.get("axis", -2 if len(shape) > 2 and shape[-2] > 1 else -1)
        walk = self.random.normal(size=shape).cumsum(axis)
        walk -= walk.mean(axis, keepdims=True)
        walk /= walk.std(axis, keepdims=True) + 1e-6
        if "span" in spec:
            low, high = np.asarray(spec["span"])
            walk = low + (high - low) * (walk - walk.min()) / (np.ptp(walk) or 1)
        return walk

    def gaps(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """Series of which 0.3 is missing and zero, where they were measured, and the seconds between two steps."""
        half = (*shape[:-1], shape[-1] // 2)
        seen = self.random.uniform(size=half) > 0.3
        return np.concatenate([self.series(half, spec) * seen, seen, np.full((*shape[:-1], 1), spec["step"])], -1)

    def candles(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """Twelve measures of a price, each in its ``span``, over twenty steps: each step, and the way since the first.

        Then how many coins are held, their mean price and the money left, in deviations from the mean price.
        """
        low, high = spec["span"]
        walk = self.random.normal(size=(12, 100)).cumsum(1)
        walk -= walk.min(1, keepdims=True)
        walk = low + (high - low) * walk / walk.max(1, keepdims=True)
        seen, held = walk[:, -20:], self.random.uniform(low, high, self.index % 3)
        ways = np.concatenate([np.diff(seen), seen[:, 1:] - seen[:, :1]], 1)
        worth = np.array([held.sum() / max(len(held), 1), 3 * high - held.sum()])
        scores = (worth - walk[0].mean()) / walk[0].std()
        return np.concatenate([ways.ravel(), [len(held)], scores]).reshape(shape)

    def waves(self, shape: tuple[int, ...], spec: Entry) -> Array:
        return (speech(self.random, math.prod(shape), 16000) * spec.get("scale", 1)).reshape(shape)

    def frames(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """Pieces of one utterance, one after the other from sample to sample."""
        wave = speech(np.random.default_rng(7), 9 * math.prod(shape), 16000)
        return wave[self.index * math.prod(shape) :][: math.prod(shape)].reshape(shape)

    def mel(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """Decibels of mel bands of speech, as the wake word models take them."""
        wave = speech(self.random, spec.get("samples", 16000), 16000)[None] * 32767
        (found,) = outputs_of(self.models / "oww_melspectrogram.onnx", {"input": wave.astype(np.float32)}).values()
        return (found / 10 + 2).reshape(-1, 32)[: shape[1]].reshape(shape)

    def wake(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """Embeddings of windows of speech."""
        wave = speech(self.random, 1280 * (shape[1] + 12), 16000)[None] * 32767
        (mel,) = outputs_of(self.models / "oww_melspectrogram.onnx", {"input": wave.astype(np.float32)}).values()
        bands = (mel / 10 + 2).reshape(-1, 32)
        windows = np.stack([bands[8 * n : 8 * n + 76, :, None] for n in range(shape[1])])
        (found,) = outputs_of(self.models / "oww_embedding2.onnx", {"input_1": windows}).values()
        return found.reshape(shape)

    def bands(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """Logarithms of mel bands of speech, bands by time or, ``turned``, time by bands; cepstra of ``bands`` of them.

        Decibels for cepstra, as librosa has them, and of which the loudest is ``decibels``; natural logarithms
        otherwise. With ``area`` each band's triangle has an area of one, as librosa's have.
        """
        import scipy.fft

        count, frames = shape[-2:] if not spec.get("turned") else shape[-2:][::-1]
        rate, size, hop = spec.get("rate", 16000), spec.get("window", 512), spec.get("hop", 160)
        power = abs(transform(speech(self.random, hop * (frames - 1) + size, rate), frames, size // 2 + 1)) ** 2
        filters = mel_filters(spec.get("bands", count), size // 2 + 1, rate)
        filters /= filters.sum(1, keepdims=True) * rate / size if spec.get("area") else 1
        found = np.log(power @ filters.T + spec.get("floor", 1e-6))
        decibels = found * 10 / np.log(10)
        decibels = np.maximum(decibels, decibels.max() - 80)
        if "bands" in spec:
            found = scipy.fft.dct(decibels, norm="ortho")[:, :count] * spec.get("scale", 1)
        elif "decibels" in spec:
            found = (decibels - decibels.max() + spec["decibels"]) * spec.get("scale", 1)
        found = found - found.mean(0) if spec.get("centred") else found
        found = (found - found.mean(0)) / (found.std(0) + 1e-6) if spec.get("scaled") else found
        return (found if spec.get("turned") else found.T).reshape(shape)

    def bins(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """One frame of the short-time Fourier transform of an utterance, and the next one in the next sample.

        Real and imaginary parts, or the magnitude, which may be in decibels.
        """
        size = shape[-1] if spec.get("magnitude") else shape[1]
        frame = transform(speech(np.random.default_rng(7), 16000, 16000), 60, size)[20 + self.index]
        found = abs(frame) if spec.get("magnitude") else np.stack([frame.real, frame.imag], -1)
        return (20 * np.log10(found) if spec.get("decibels") else found).reshape(shape)

    def keyed(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """Magnitudes of a short-time Fourier transform of keyed tones as Morse signs are, in noise, time by frequency.

        The middle frequencies of 128 up to 1600 Hz.
        """
        frames, bins = shape[1:3]
        length, unit = 64 * (frames - 1) + 256, 3200 // (12 + self.index)
        turns = unit * self.random.choice([1, 3], (length // unit, 2), p=[0.6, 0.4])
        tone = np.sin(2 * np.pi * self.random.uniform(500, 1100) / 3200 * np.arange(length))
        wave = 0.3 * tone * np.concatenate([np.repeat([1, 0], pair) for pair in turns])[:length]
        first = (129 - bins) // 2
        return abs(transform(wave + 0.02 * self.random.normal(size=length), frames, 129))[:, first : first + bins]

    def notes(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """Thirds of semitones from middle C upwards in two notes with overtones, the loudest 1."""
        time, hertz = np.arange(4096) / 44100, 261.63 * 2 ** (np.arange(shape[-1]) / 36)
        played = np.outer(self.random.choice(hertz[: shape[-1] // 2], 2), np.arange(1, 6))
        wave = (np.sin(2 * np.pi * played[..., None] * time) / np.arange(1, 6)[:, None]).sum((0, 1))
        wave += 0.05 * self.random.normal(size=len(wave))
        found = abs(np.exp(2j * np.pi * hertz[:, None] * time) @ (wave * np.hanning(len(wave))))
        return (found / found.max()).reshape(shape)

    def heart(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """An electrocardiogram of ``rate`` per second, in millivolts about zero, standardised, or of 0 to 1 (``span``).

        ``waves``: of another pulse, what each beat is made of: where from the beat, in seconds, how wide and how high.
        """
        length, rate = math.prod(shape), spec["rate"]
        time = np.arange(length) / rate + self.random.uniform(0, 0.8)
        phase = (time % (0.7 + 0.04 * self.index)) - 0.35
        beat = [(-0.2, 0.025, 0.12), (-0.025, 0.008, -0.12), (0, 0.01, 1.1), (0.025, 0.01, -0.25), (0.2, 0.04, 0.3)]
        waves = spec.get("waves", beat)
        found = sum(high * np.exp(-((phase - at) ** 2) / (2 * wide**2)) for at, wide, high in waves)
        found = found + 0.05 * np.sin(2 * np.pi * 0.3 * time) + 0.01 * self.random.normal(size=length)
        found = found - found.mean()
        found = (found - found.min()) / np.ptp(found) if spec.get("span") else found
        return (found / found.std() if spec.get("scaled") else found).reshape(shape)

    def brain(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """An electroencephalogram of ``rate`` per second: pink noise and waves of ten a second, in deviations.

        With four dimensions magnitudes of its Fourier transform: time, electrode, frequency.
        """
        rate, length = spec["rate"], shape[-1] if len(shape) < 4 else 10 * spec["rate"]
        tones = np.fft.rfft(self.random.normal(size=(*shape[1:-1][-1:], length)))
        hertz = np.fft.rfftfreq(length, 1 / rate)
        kept = (hertz > 0.5) & (hertz < 30)
        waves = np.fft.irfft(np.where(kept, tones / np.maximum(hertz, 0.5) * (1 + 4 * (abs(hertz - 10) < 1)), 0))
        if len(shape) == 4:
            frames = [abs(transform(wave, shape[1], rate // 2 + 1)[:, : shape[3]]) for wave in waves]
            waves = np.roll(np.stack(frames, 1), spec.get("rolled", 0), -1)
        return ((waves - waves.mean()) / waves.std()).clip(-5, 5)[None] * spec.get("scale", 1)

    def shaken(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """Channels by time of an accelerometer in g and a gyroscope: noise, and a blow or two."""
        found = 0.03 * self.random.normal(size=shape)
        for _ in range(self.index % 3):
            at = self.random.integers(2, shape[-1] - 2)
            found[..., 2, at - 1 : at + 2] += np.array([-0.5, 1.2, -0.4]) * self.random.uniform(0.5, 1.5)
        return found

    def spikes(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """A recording from a nerve: noise, a slow drift and spikes, standardised."""
        time = np.arange(math.prod(shape))
        wave = self.random.normal(size=len(time)) + 0.5 * np.sin(time / 40 + self.random.uniform(0, 6))
        for start in self.random.integers(0, len(time), 3 + len(time) // 200 + self.index % 3):
            near = time - start
            wave -= 6 * np.exp(-((near / 3.0) ** 2)) - 2 * np.exp(-(((near - 8) / 5.0) ** 2))
        return ((wave - wave.mean()) / wave.std()).reshape(shape)

    def crossing(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """Where an electron of two coupled dots is as their detuning is swept, with a slope, standardised."""
        swept, coupled = np.linspace(-0.5, 0.5, math.prod(shape)), 0.01 + 0.13 * self.index / SAMPLES
        found = swept / np.sqrt(swept**2 + 4 * coupled**2) + self.random.uniform(-0.5, 0.5) * swept
        return ((found - found.mean()) / found.std()).reshape(shape)

    def topomap(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """A field of two poles on a head, in colours from blue to red, on white."""
        rows, columns = np.meshgrid(*(np.linspace(-1, 1, size) for size in shape[1:3]), indexing="ij")
        (y0, x0), (y1, x1) = self.random.uniform(-0.6, 0.6, (2, 2))
        field = np.exp(-4 * ((rows - y0) ** 2 + (columns - x0) ** 2)) - np.exp(
            -4 * ((rows - y1) ** 2 + (columns - x1) ** 2)
        )
        colours = np.stack([1.5 - abs(4 * (field + 1) / 2 - middle) for middle in (3, 2, 1)], -1).clip(0, 1)
        return np.where((rows**2 + columns**2 < 0.9)[..., None], colours, 1)[None] * 255

    def spectra(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """Magnitudes of a short-time Fourier transform of speech, time by frequency, or their logarithms."""
        frames = abs(transform(speech(self.random, 16000, 16000), shape[-2], shape[-1])) * spec.get("scale", 1)
        return np.log(frames + 1e-5) if spec.get("log") else frames

    def stft(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """Real and imaginary parts of two channels, frequency by time."""
        channels = [transform(speech(self.random, 16000, 16000), shape[-1], shape[-2]).T for _ in range(2)]
        return np.stack([[wave.real, wave.imag] for wave in channels]).reshape(shape)

    def radio(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """I, then Q, of a carrier whose phase is keyed, each symbol held for some samples, with noise, standardised."""
        count, hold, order = math.prod(shape) // 2, spec.get("hold", 8), 2 ** (1 + self.index % 3)
        symbols = self.random.integers(0, order, count // hold + 1) / order + self.random.uniform()
        wave = np.repeat(np.exp(2j * np.pi * symbols), hold)[:count]
        found = np.stack([wave.real, wave.imag]) + 0.1 * self.random.normal(size=(2, count))
        return (found / found.std()).reshape(shape)

    def echo(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """I/Q data of ultrasound: speckle that fades with depth, three transmissions."""
        random = np.random.default_rng(self.index)
        depth, lines = 64, 64
        iq = random.normal(size=(1, 3, depth, lines, 2)) * np.exp(-np.linspace(0, 3, depth))[:, None, None]
        return iq[..., spec["phase"]]

    # pictures

    def photo(self, shape: tuple[int, ...], spec: Entry) -> Array:
        channels, height, width, last = layout(shape)
        side = spec.get("size")
        height, width = (int(fixed or side) for fixed in (height, width))
        picture = photograph(spec.get("source", "scenes"), self.index, height, width)
        picture = picture[..., ::-1] if spec.get("bgr") else picture
        if channels == 1:
            picture = picture @ np.array([[0.299], [0.587], [0.114]])
        elif channels > 3:
            first = picture[..., :1]
            fourth = np.full_like(first, spec["fourth"]) if "fourth" in spec else first * 0.8 + 0.1
            picture = np.concatenate([picture, fourth], -1)
        elif spec.get("yuv"):
            bright = picture @ np.array([0.299, 0.587, 0.114])
            blue, red = 0.5 + 0.564 * (picture[..., 2] - bright), 0.5 + 0.713 * (picture[..., 0] - bright)
            picture = np.stack([bright, blue, red], -1)
        picture = picture >= spec["threshold"] if "threshold" in spec else picture
        told = (np.asarray(spec.get(key, [default])) for key, default in (("mean", 0.0), ("std", 1.0)))
        mean, std = told
        found = (picture * spec.get("scale", 1) - mean) / std
        return (found if last else found.transpose(2, 0, 1))[None]

    def depth(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """A depth, the brighter the nearer, then red, green and blue of a photograph: each about its mean."""
        colours = self.photo((1, 3, *shape[-2:]), spec)
        near = 0.3 * colours.mean(1, keepdims=True)
        return np.concatenate([near.mean() - near, colours - colours.mean()], 1)

    def focused(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """A photograph of twice the size, its squares of four pixels as channels: even rows and columns first."""
        whole = self.photo((1, shape[1] // 4, 2 * shape[2], 2 * shape[3]), spec)
        corners = [whole[..., row::2, column::2] for row, column in ((0, 0), (1, 0), (0, 1), (1, 1))]
        return np.concatenate(corners, 1)

    def cosines(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """Logarithms of the cosine transform of a photograph."""
        import scipy.fft

        return np.log(abs(scipy.fft.dctn(self.photo(shape, spec), axes=(2, 3), norm="ortho")) + 1e-12)

    def digits(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """Digits, standardised by ``mean`` and ``std``; only ``kept`` of the pixels seen; in squares of ``patch``.

        ``scaled``: each by its own mean and deviation. ``turned``: the first rows of all, then the second ones, and on.
        """
        count = math.prod(shape) // 784
        rows = np.stack([digit(self.index * 50 + n) for n in range(count)])
        if "kept" in spec:
            rows = np.where(self.random.uniform(size=rows.shape) < spec["kept"], rows, 0)
        if side := spec.get("patch"):
            rows = rows.reshape(count, 28 // side, side, 28 // side, side).swapaxes(2, 3)
        if spec.get("scaled"):
            rows = (rows - rows.mean((-2, -1), keepdims=True)) / rows.std((-2, -1), keepdims=True)
        rows = rows.swapaxes(0, 1) if spec.get("turned") else rows
        return ((rows - spec.get("mean", 0)) / spec.get("std", 1)).reshape(shape)

    def canvas(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """A digit in black on an empty canvas of a web page, red, green, blue and alpha of each pixel, 0 to 255."""
        import skimage.transform

        side = math.isqrt(math.prod(shape) // 4)
        found = np.zeros((side, side, 4))
        found[..., 3] = 255 * skimage.transform.resize(digit(self.index), (side, side), order=1)
        return found.reshape(shape)

    def doodle(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """Strokes of a pen on nothing."""
        height, width = (side if side > 16 else 224 for side in shape[-2:])
        found = np.zeros((height, width))
        for _ in range(3 + self.index % 3):
            turns = self.random.uniform(0.1, 0.9, (4, 2))
            for (y0, x0), (y1, x1) in zip(turns, turns[1:], strict=False):
                along = np.linspace(0, 1, 2 * max(height, width))
                rows = ((y0 + (y1 - y0) * along) * height).astype(int)
                columns = ((x0 + (x1 - x0) * along) * width).astype(int)
                for wide in range(spec.get("width", 1)):
                    found[rows, columns + wide] = 1
        mean, std = (np.asarray(spec.get(key, [default])) for key, default in (("mean", 0.0), ("std", 1.0)))
        return (found - mean) / std

    def noised(self, shape: tuple[int, ...], spec: Entry) -> Array:
        """A digit on its way to noise."""
        share = (self.index + 0.5) / SAMPLES
        return np.pad(digit(self.index), 2) * 2 * share - share + (1 - share) * self.random.normal(size=shape)


def fitted(value: Array, shape: tuple[int, ...]) -> Array:
    """In ``shape``, which may have other dimensions of one, or more of them."""
    return value.reshape(shape) if value.size == math.prod(shape) else np.broadcast_to(value, shape)


def flips(board: Array, place: Array, player: int) -> list[tuple[int, int]]:
    """The stones that a move of Othello turns."""
    found: list[tuple[int, int]] = []
    side = len(board)
    for step in ((-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1)):
        row, column = place[0] + step[0], place[1] + step[1]
        between = []
        while 0 <= row < side and 0 <= column < side and board[row, column] == -player:
            between.append((row, column))
            row, column = row + step[0], column + step[1]
        if 0 <= row < side and 0 <= column < side and board[row, column] == player:
            found += between
    return found


def mel_filters(count: int, bins: int, rate: int) -> Array:
    """Triangles over the bins of a Fourier transform, evenly spaced in mel, [count, bins] (O'Shaughnessy 1987)."""
    edges = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + rate / 1400), count + 2) / 2595) - 1)
    hertz = np.linspace(0, rate / 2, bins)
    up = (hertz - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    down = (edges[2:, None] - hertz) / (edges[2:] - edges[1:-1])[:, None]
    return np.maximum(0, np.minimum(up, down))


def layout(shape: tuple[int, ...]) -> tuple[int, int, int, bool]:
    """Channels, height, width, and whether channels come last."""
    last = shape[-1] in (1, 3, 4)
    height, width = shape[-3:-1] if last else shape[-2:]
    return (shape[-1] if last else shape[-3]), height, width, last


def photograph(source: str, index: int, height: int, width: int) -> Array:
    """[height, width, 3] of 0 to 1."""
    import skimage.color
    import skimage.data
    import skimage.transform
    import sklearn.datasets

    if source == "digits":
        gray = skimage.transform.resize(digit(index), (height, width))
        return np.repeat((0.15 + 0.7 * gray)[..., None], 3, -1)
    if source == "line":
        import PIL.Image
        import PIL.ImageDraw
        import PIL.ImageFont

        drawn = PIL.Image.new("RGB", (width, height), "white")
        text = (__doc__ or "").split()[7 * index : 7 * index + 7]
        font = PIL.ImageFont.load_default(0.7 * height)
        PIL.ImageDraw.Draw(drawn).text((4, 0.08 * height), " ".join(text), fill="black", font=font)
        picture = np.asarray(drawn) / 255.0
    elif source == "table":
        cells = np.ones((height, width, 3))
        for line in range(1 + index % 3, 8):
            cells[line * height // 8, width // 16 : -width // 16] = 0.2
            cells[height // 8 : -height // 8, line * width // 8] = 0.2 if index % 2 else cells[0, 0]
        words = photograph("line", index, height // 8, width)
        for row in range(2, 7):
            cells[row * height // 8 + 2 : (row + 1) * height // 8 - 2] *= words[2 : height // 8 - 2]
        picture = cells
    elif source == "page":
        page = skimage.data.page() if index % 2 else skimage.data.text()
        picture = page[20 + 8 * index :, 30 * index : 30 * index + 160][:60] / 255.0
    elif source == "persons":
        person, cut = (skimage.data.astronaut(), skimage.data.camera())[index % 2], 24 * (index // 2)
        picture = person[: 512 - cut, cut // 2 : 512 - cut // 2][:, :: 1 - index % 4 // 2 * 2] / 255.0
    elif source == "tissue":
        rows, columns = 36 * index, 288 - 36 * index
        picture = skimage.data.immunohistochemistry()[rows : rows + 224, columns : columns + 224] / 255.0
    elif source == "eyes":
        face, cat = skimage.data.astronaut(), skimage.data.chelsea()
        eyes = [face[81:121, 183:223], face[83:123, 227:267], cat[75:155, 132:212], cat[100:170, 282:352]]
        picture = eyes[index % 4][:, :: 1 - index // 4 * 2] / 255.0
    elif source == "faces":
        face = skimage.data.astronaut()[0:220, 120:330]
        picture = [face, skimage.data.chelsea()[40:260, 100:340], face[:, ::-1], skimage.data.lfw_subset()[index] * 255]
        picture = picture[index % 4] / 255.0
    else:
        scenes = [
            *sklearn.datasets.load_sample_images().images, skimage.data.astronaut(), skimage.data.coffee(),
            skimage.data.chelsea(), skimage.data.rocket(), skimage.data.hubble_deep_field(), skimage.data.camera(),
        ]  # fmt: skip
        picture = scenes[index % len(scenes)] / 255.0
    if picture.ndim == 2:
        picture = np.repeat(picture[..., None], 3, -1)
    return np.asarray(skimage.transform.resize(picture, (height, width), anti_aliasing=True))


def digit(index: int) -> Array:
    """A written digit [28, 28] of 0 to 1, white on black."""
    import skimage.transform
    import sklearn.datasets

    images = sklearn.datasets.load_digits().images
    return np.pad(skimage.transform.resize(images[index % len(images)] / 16, (20, 20), order=1), 4)


def speech(random: np.random.Generator, length: int, rate: int) -> Array:
    """Harmonics of a gliding pitch under three formants, in syllables, with breath."""
    time = np.arange(length) / rate
    pitch = 120 + 40 * np.sin(2 * np.pi * 1.5 * time + random.uniform(0, 6))
    phase, formants = 2 * np.pi * np.cumsum(pitch) / rate, random.uniform([400, 1000, 2300], [800, 2000, 3000])
    wave = np.zeros(length)
    for harmonic in range(1, 30):
        away = abs(harmonic * 140 - formants[:, None]).min()
        wave += np.exp(-away / 300) / harmonic**0.5 * np.sin(harmonic * phase)
    swell = np.clip(np.sin(2 * np.pi * 4 * time + random.uniform(0, 6)), 0, 1)
    wave = wave * swell + 0.02 * random.normal(size=length)
    return 0.5 * wave / abs(wave).max()


def transform(wave: Array, frames: int, bins: int) -> Array:
    """The short-time Fourier transform, [frames, bins]."""
    size = 2 * (bins - 1)
    starts = np.linspace(0, max(len(wave) - size, 0), frames).astype(int)
    return np.stack([np.fft.rfft(wave[start : start + size] * np.hanning(size), size) for start in starts])


# -- models and data --------------------------------------------------------------------------------------------------


def collect(folder: Path, clones: Path, names: list[str]) -> None:
    """Writes models/NAME.onnx out of clones, with the weights beside them, and data/NAME/N.npz."""
    (folder / "models").mkdir(parents=True, exist_ok=True)
    entries = {entry["name"]: entry for entry in listed()}
    for name, entry in entries.items():
        if names and name not in names:
            continue
        model = folder / "models" / f"{name}.onnx"
        if not model.is_file():
            unpack(entry, clones, model)
        feed(entry, folder)


def unpack(entry: Entry, clones: Path, model: Path) -> None:
    """A file of a repository at its commit. Raises CalledProcessError where the clone lacks it."""
    import onnx

    clone = clones / entry["repo"].replace("/", "+", 1)
    places = (clone, clone / "repo", clone / ".git", clone / "repo" / ".git")
    git_dir = next(place for place in places if (place / "HEAD").is_file())

    def held(path: str) -> bytes:
        words = ["git", "--git-dir", str(git_dir), "show", f"{entry['commit']}:{path}"]
        return subprocess.run(words, capture_output=True, check=True).stdout

    if "file" in entry:
        model.with_suffix(".file").write_bytes(held(entry["file"]))
    for index, path in enumerate(entry.get("files", [])):
        model.with_suffix(f".{index}").write_bytes(held(path))
    found = onnx.load_from_string(held(entry["path"]))
    for location in {e.value for w in found.graph.initializer for e in w.external_data if e.key == "location"}:
        (model.parent / location).write_bytes(held(str(Path(entry["path"]).parent / location)))
    onnx.load_external_data_for_model(found, str(model.parent))
    onnx.save(found, model)


def feed(entry: Entry, folder: Path) -> None:
    """Eight inputs."""
    import onnx
    import onnx.numpy_helper

    model = folder / "models" / f"{entry['name']}.onnx"
    graph = onnx.load(model).graph
    weights = {w.name for w in graph.initializer}
    if any(spec["kind"] == "stored" for spec in entry["inputs"].values()):
        entry["weights"] = {w.name: onnx.numpy_helper.to_array(w) for w in graph.initializer}
    out = folder / "data" / entry["name"]
    out.mkdir(parents=True, exist_ok=True)
    inputs = [value for value in graph.input if value.name not in weights]
    made: list[dict[str, Array]] = [{}]
    for index in range(SAMPLES):
        drawn, feeds = Inputs(entry, index, model.parent, made[-1]), {}
        for value in inputs:
            tensor = value.type.tensor_type
            dims = [dim.dim_value or dim.dim_param for dim in tensor.shape.dim]
            feeds[value.name] = drawn.of(value.name, onnx.TensorProto.DataType.Name(tensor.elem_type), dims)
        np.savez(out / f"{index}.npz", **feeds)
        made.append(outputs_of(model, feeds))
    known = [name for name, value in made[1].items() if np.asarray(value).dtype.kind == "f"]
    differ = [name for name in known if any((np.asarray(o[name]) != made[1][name]).any() for o in made[2:])]
    print(f"{entry['name']}: {len(differ)} of {len(known)} outputs depend on the inputs", flush=True)


def outputs_of(model: Path, feeds: dict[str, Array]) -> dict[str, Array]:
    """The outputs of a model on its own inputs, by name."""
    import onnxruntime

    session = opened(model, onnxruntime)
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, feeds), strict=True))


@functools.cache
def opened(model: Path, runtime: Any) -> Any:
    return runtime.InferenceSession(model, providers=["CPUExecutionProvider"])


# -- results ----------------------------------------------------------------------------------------------------------


def rows(folder: Path, names: list[str], sets: str, level: str = "O2") -> list[tuple[Entry, Row]]:
    """What is known of each model, in the order of the list."""
    out = folder / "right"
    out.mkdir(parents=True, exist_ok=True)
    chosen = [e for e in listed() if set_of(e) in sets and (not names or e["name"] in names)]
    return [(e, Row(folder, e["name"], level, out, SAMPLES)) for e in chosen]


def judge(folder: Path, names: list[str], sets: str, parts: list[str], again: list[str]) -> None:
    with tempfile.TemporaryDirectory() as work:
        for _, row in rows(folder, names, sets):
            row.measure(parts, again, Path(work))


def table(folder: Path) -> str:
    """As markdown: a row for each model, and what each set comes to."""
    every = rows(folder, [], SETS)
    lines = ["| model | from | for | set | products low | error | check | --data | --data --repair |", "|" + "---|" * 9]
    lines += [line(entry, row.known) for entry, row in every]
    for name in SETS:
        lines += ["", f"Set {name}:", "", *(f"- {text}" for text in summed([r for e, r in every if set_of(e) == name]))]
    return "\n".join(lines)


def line(entry: Entry, known: Entry) -> str:
    """A model's row; its products have a column of their own."""
    held = known.get("generated", {}).get("products", {})
    low = f"{held['low']} of {held['low'] + held['float32']}" if held else "-"
    parts = ({k: v for k, v in known.get(part, {}).items() if k != "products"} for part in CELLS)
    said = [zoo_right.said(part) if part else "-" for part in parts]
    wrong = "**WRONG** " if known.get("error", {}).get("right") is False else ""
    source = f"{entry['repo']} {entry['commit'][:8]} {entry['path'].rpartition('/')[2]}"
    return " | ".join(
        ["", entry["name"], source, entry["what"], set_of(entry), low, wrong + said[0], *said[1:], ""]
    ).strip()


CELLS = ("error", "generated", "steered", "repaired")


def summed(of: list[Row]) -> list[str]:
    """Right and wrong, by what the check says."""
    lines = []
    for right in (True, False):
        said: dict[str, list[str]] = {}
        for row in of:
            if row.known.get("error", {}).get("right") is right:
                told = row.known.get("generated", {"failed": ""})
                word = "no answer" if "failed" in told else zoo_right.verdict(told["check"])
                said.setdefault(word, []).append(row.name)
        named = {word: f" ({', '.join(names)})" for word, names in said.items() if word != "ok" or not right}
        words = [f"{len(names)} {word}{named.get(word, '')}" for word, names in sorted(said.items())]
        total = sum(map(len, said.values()))
        lines.append(f"{'right' if right else 'wrong'}: {total}: {'; '.join(words)}")
    both = [row for row in of if row.known.get("error", {}).get("right") and "steered" in row.known]
    worse = [row.name for row in both if row.known["steered"].get("right") is False]
    same = sum("same" in row.known["steered"] for row in both)
    text = (
        f"right, and converted with data too: {len(both)}, of which data change {len(both) - same}; wrong with data: "
    )
    return [*lines, text + (", ".join(worse) or "none")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["collect", "judge", "table"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--clones", type=Path)
    parser.add_argument("--set", default="A", choices=[*SETS, "AB"])
    parser.add_argument("--parts", nargs="*", default=PARTS, choices=zoo_right.PARTS)
    parser.add_argument("--again", nargs="*", default=[], choices=zoo_right.PARTS)
    args = parser.parse_args()
    if args.what == "collect":
        collect(args.folder, args.clones, args.names)
    elif args.what == "judge":
        judge(args.folder, args.names, args.set, args.parts, args.again)
    else:
        print(table(args.folder))


if __name__ == "__main__":
    main()
