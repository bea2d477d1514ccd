"""Counts of the samples of one kind, collected batch by batch."""

import heapq
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loader.dataset.names import key_hash

from . import classes
from .tally import Spread, Tally

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

MAX_NAMES = 60
"""Most kinds, or splits; a column with more values does not hold what its name promises."""
CANDIDATES = 4
"""Candidates kept per sample that will be shown, to choose from different raw objects."""
OTHERS = "(others)"

SIDES = ("width_px", "height_px")
LANGUAGES = ("language", "lang")


@dataclass(slots=True)
class KindScan:
    """The counts of one kind."""

    modality: str = ""
    """Image, video, audio, text or other, by its fields."""
    splits: Int64s = field(default_factory=lambda: np.zeros(MAX_NAMES + 1, np.int64))
    """Samples [split], by the code of the split."""
    seconds: Floats = field(default_factory=lambda: np.zeros(MAX_NAMES + 1, np.float64))
    """Their length together, in seconds [split]."""
    raw_objects: int | None = None
    """Distinct raw objects; None where no sample names its own."""
    sound_s: float = 0.0
    """Length of clips with an audio field, in seconds."""
    duration_s: Spread = field(default_factory=Spread)
    """The lengths of samples, in seconds."""
    durations: Int64s = field(default_factory=lambda: np.zeros(len(classes.DURATIONS), np.int64))
    """Samples by place in DURATIONS."""
    sizes: Tally = field(default_factory=Tally)
    """Samples by a code: width_px x 2^32 + height_px."""
    short_sides: Int64s = field(default_factory=lambda: np.zeros(len(classes.SHORT_SIDES), np.int64))
    """Samples by place in SHORT_SIDES."""
    aspects: Int64s = field(default_factory=lambda: np.zeros(len(classes.ASPECTS), np.int64))
    """Samples by place in ASPECTS."""
    labels: Tally = field(default_factory=Tally)
    """Samples by the column `label`."""
    languages: Tally = field(default_factory=Tally)
    """Samples by the columns LANGUAGES."""
    best: list[tuple[int, int, int]] = field(default_factory=list)
    """Candidates for the samples to show: (-hash of the key, row, run), a heap with the largest hash on top."""

    @property
    def samples(self) -> int:
        return int(self.splits.sum())

    def add(self, batch: pa.RecordBatch, splits: Int64s, with_sound: Bools) -> None:
        """Count rows. splits, with_sound: of each row, the code of its split, and whether it has an audio field."""
        names = set(batch.schema.names)
        if names.issuperset(SIDES):
            self._add_sides(*(floats(batch.column(name)) for name in SIDES))
        if "label" in names:
            self.labels.add(words(batch.column("label")))
        for name in LANGUAGES:
            if name in names:
                self.languages.add(words(batch.column(name)))
        if "duration_s" in names:
            self._add_seconds(floats(batch.column("duration_s")), splits, with_sound)

    def choose(self, rows: Int64s, keys: pa.Array, run: int, n_examples: int) -> None:
        """Keep the rows whose keys have the smallest hashes.

        So every version that has these samples shows them, whatever else it has. rows: their numbers in the version;
        run: the number of the run that has their files.
        """
        for row, key in zip(rows.tolist(), keys.to_pylist(), strict=True):
            hashed = -int.from_bytes(key_hash(key)[:8], "little")
            if len(self.best) < CANDIDATES * n_examples:
                heapq.heappush(self.best, (hashed, row, run))
            elif hashed > self.best[0][0]:
                heapq.heapreplace(self.best, (hashed, row, run))

    def _add_sides(self, width_px: Floats, height_px: Floats) -> None:
        known = np.flatnonzero((width_px > 0) & (height_px > 0) & (width_px < 2**31) & (height_px < 2**31))
        width_px, height_px = width_px[known], height_px[known]
        self.sizes.add_codes(width_px.astype(np.int64) * 2**32 + height_px.astype(np.int64))
        short = classes.short_side_class(width_px, height_px)
        self.short_sides += np.bincount(short, minlength=len(self.short_sides))
        aspect = classes.aspect_class(width_px, height_px)
        self.aspects += np.bincount(aspect, minlength=len(self.aspects))

    def _add_seconds(self, seconds: Floats, splits: Int64s, with_sound: Bools) -> None:
        known = np.flatnonzero((seconds >= 0) & (seconds < 1e12))
        seconds = seconds[known]
        self.duration_s.add(seconds)
        self.durations += np.bincount(classes.duration_class(seconds), minlength=len(self.durations))
        self.seconds += np.bincount(splits[known], weights=seconds, minlength=len(self.seconds))
        self.sound_s += float(seconds[with_sound[known]].sum())


class Names:
    """Codes for names, in the order in which they come; from MAX_NAMES on all others are one."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._codes: dict[str, int] = {}

    def code(self, name: str) -> int:
        known = self._codes.get(name)
        if known is not None:
            return known
        label = name if len(self.names) < MAX_NAMES - 1 else OTHERS
        if label not in self._codes:
            self._codes[label] = len(self.names)
            self.names.append(label)
        return self._codes[label]

    def codes(self, values: pa.Array, unknown: Int64s) -> Int64s:
        """Return a code per value; nulls and blanks take theirs from `unknown`."""
        encoded = text(values).dictionary_encode()
        found_names = encoded.dictionary.to_pylist()
        places = encoded.indices.fill_null(len(found_names)).to_numpy(zero_copy_only=False).astype(np.int64)
        codes = np.array([self.code(word) if word.strip() else -1 for word in found_names] + [-1], np.int64)[
            places
        ]
        return np.where(codes < 0, unknown, codes)


def floats(values: pa.Array) -> Floats:
    """Return values as float64; NaN for null and for types that are no numbers."""
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        return np.full(len(values), np.nan)
    numbers: Floats = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).astype(np.float64)
    return numbers


def text(values: pa.Array) -> pa.Array:
    """Return values as strings; null for types without plain text, such as a list."""
    if pa.types.is_nested(values.type):
        return pa.nulls(len(values), pa.string())
    return values.cast(pa.string())


def words(values: pa.Array) -> pa.Array:
    """Return values as strings; blank ones are null."""
    texts = text(values)
    return pc.if_else(pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0), None, texts)


def licences(values: pa.Array) -> pa.Array:
    """Return values as strings; null for the column's words for "unknown"."""
    encoded = text(values).dictionary_encode()
    licence_names = [
        None if classes.is_unknown_licence(name) else name for name in encoded.dictionary.to_pylist()
    ]
    return pa.array(licence_names, pa.string()).take(encoded.indices)
