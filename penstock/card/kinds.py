"""Count the samples of one kind, batch by batch."""

import heapq
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loader.dataset.names import key_hash

from . import classes
from .tally import NameTally, NumberSummary

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

MAX_NAMES = 60
"""Most kinds or splits; a column with more values is no category."""
CANDIDATES = 4
"""Per example, to choose different raw objects."""
OTHERS = "(others)"

SIDES = ("width_px", "height_px")
LANGUAGES = ("language", "lang")


@dataclass(slots=True)
class KindScan:
    modality: str = ""
    """image, video, audio, text or other."""
    splits: Int64s = field(default_factory=lambda: np.zeros(MAX_NAMES + 1, np.int64))
    """Samples [split]."""
    seconds: Floats = field(default_factory=lambda: np.zeros(MAX_NAMES + 1, np.float64))
    """Total duration [split]."""
    raw_objects: int | None = None
    """Distinct; None if no sample names one."""
    sound_s: float = 0.0
    """Seconds of clips with audio."""
    duration_s: NumberSummary = field(default_factory=NumberSummary)
    """In seconds."""
    durations: Int64s = field(default_factory=lambda: np.zeros(len(classes.DURATIONS), np.int64))
    """Samples [DURATIONS]."""
    sizes: NameTally = field(default_factory=NameTally)
    """Samples by width_px x 2^32 + height_px."""
    short_sides: Int64s = field(default_factory=lambda: np.zeros(len(classes.SHORT_SIDES), np.int64))
    """Samples [SHORT_SIDES]."""
    aspects: Int64s = field(default_factory=lambda: np.zeros(len(classes.ASPECTS), np.int64))
    """Samples [ASPECTS]."""
    labels: NameTally = field(default_factory=NameTally)
    """Samples by `label`."""
    languages: NameTally = field(default_factory=NameTally)
    """Samples by language."""
    best: list[tuple[int, int, int]] = field(default_factory=list)
    """Heap of candidates: (-key hash, row, index of the change)."""

    @property
    def samples(self) -> int:
        return int(self.splits.sum())

    def add(self, batch: pa.RecordBatch, splits: Int64s, with_sound: Bools) -> None:
        """Count rows. splits: code per row. with_sound: rows with audio."""
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
        """Keep the rows with the smallest key hashes, so that every version shows the same samples.

        rows: row numbers in the version. run: index of their change.
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


class NameCodes:
    """Codes of names by appearance; those beyond MAX_NAMES share one."""

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
        """Return a code per value; nulls and blanks get `unknown`'s."""
        encoded = text(values).dictionary_encode()
        distinct_names = encoded.dictionary.to_pylist()
        places = (
            encoded.indices.fill_null(len(distinct_names)).to_numpy(zero_copy_only=False).astype(np.int64)
        )
        codes = np.array(
            [self.code(word) if word.strip() else -1 for word in distinct_names] + [-1], np.int64
        )[places]
        return np.where(codes < 0, unknown, codes)


def floats(values: pa.Array) -> Floats:
    """Return float64; NaN for nulls and non-numeric columns."""
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        return np.full(len(values), np.nan)
    numbers: Floats = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).astype(np.float64)
    return numbers


def text(values: pa.Array) -> pa.Array:
    """Return strings; null for nested types."""
    if pa.types.is_nested(values.type):
        return pa.nulls(len(values), pa.string())
    return values.cast(pa.string())


def words(values: pa.Array) -> pa.Array:
    """Return strings; null for blank ones."""
    texts = text(values)
    return pc.if_else(pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0), None, texts)


def licences(values: pa.Array) -> pa.Array:
    """Return names; null for unknown licences."""
    encoded = text(values).dictionary_encode()
    licence_names = [
        None if classes.is_unknown_licence(name) else name for name in encoded.dictionary.to_pylist()
    ]
    return pa.array(licence_names, pa.string()).take(encoded.indices)
