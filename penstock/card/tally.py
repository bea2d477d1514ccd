"""Count and summarize a column's values, and the samples of one kind, in constant memory."""

import heapq
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loader.dataset.names import key_hash

from . import classes
from .column_values import Floats, floats, text, words

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

MAX_DISTINCT = 20_000
"""Distinct names of one tally; a column with more is an identifier."""
MAX_BINS = 40
"""Most bins; a histogram has 21 to 40 unless there are few values."""
RATIO = 1.005
"""A sketch bin's upper over lower bound. Quantiles are within 0.5 %, and exact in bins of equal values."""
SMALLEST = 1e-12
"""Smallest magnitude that the sketch resolves."""
LARGEST = 1e15
"""Largest magnitude that the sketch resolves."""

_FINEST = -1000
"""Bin width exponent of a histogram of zeros."""
_STEPS = math.ceil(math.log(LARGEST / SMALLEST) / math.log(RATIO))


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Occurrences per name."""

    counts: tuple[tuple[str, int], ...] = ()
    """Most frequent first, then by name; empty unless `complete`."""
    n_others: int = 0
    """Number of names that are not listed."""
    others: int = 0
    """Number of rows with these names."""
    unknown: int = 0
    """Rows without a name."""
    complete: bool = True
    """False for too many distinct names to count."""

    @property
    def known(self) -> int:
        return sum(n for _, n in self.counts) + self.others


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Finite numbers."""

    known: int
    """Rows with a finite number."""
    unknown: int
    """Other rows."""
    total: float
    """Sum."""
    minimum: float
    mean: float
    maximum: float
    p5: float
    """5 % quantile, within 0.5 %."""
    p50: float
    """Median, within 0.5 %."""
    p95: float
    """95 % quantile, within 0.5 %."""
    edges: tuple[float, ...]
    """Bin edges [n + 1], a power of two apart."""
    counts: tuple[int, ...]
    """Rows per bin [n]."""


class NameTally:
    """Counts names. Sets `overflowed` above `most` distinct ones."""

    def __init__(self, most: int = MAX_DISTINCT) -> None:
        self.n = 0
        self._most = most
        self._counts: Counter[str] = Counter()
        self.overflowed = False

    def add(self, values: pa.Array) -> None:
        """Count names, ignoring nulls."""
        self.n += len(values) - values.null_count  # counted even after overflow, for `Counts.others`
        if self.overflowed:
            return
        for item in pc.value_counts(values.drop_null()):
            name = str(item["values"].as_py())
            self._counts[name] += item["counts"].as_py()
        self._check()

    def add_codes(self, codes: Int64s) -> None:
        """Count integers; their names are their digits."""
        self.n += len(codes)
        if self.overflowed:
            return
        different_codes, counts = np.unique(codes, return_counts=True)
        for code, n in zip(different_codes.tolist(), counts.tolist(), strict=True):
            self._counts[str(code)] += n
        self._check()

    def _check(self) -> None:
        """Free the counts if there are too many names."""
        if len(self._counts) > self._most:
            self.overflowed = True
            self._counts.clear()

    def counted(self) -> dict[str, int]:
        """Return name -> count; empty after overflow."""
        return dict(self._counts)

    def result(self, n_rows: int, listed: int = 16) -> Counts:
        """Return the counts among `n_rows` rows. listed: most names listed."""
        if self.overflowed:
            return Counts(others=self.n, unknown=n_rows - self.n, complete=False)
        return rank_counts(self._counts, n_rows - self.n, listed)


def rank_counts(counts: dict[str, int], unknown: int = 0, listed: int = 24) -> Counts:
    """Return counts, most frequent first. unknown: rows without a name. listed: most names listed."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    if len(ordered) == listed + 1:
        listed += 1  # one more name takes no more room than "others"
    other_names = ordered[listed:]
    n_other_rows = sum(n for _, n in other_names)
    return Counts(
        counts=tuple(ordered[:listed]),
        n_others=len(other_names),
        others=n_other_rows,
        unknown=unknown,
    )


class NumberSummary:
    """Sums, quantiles and a histogram. Apart from rounding, batching does not change them."""

    def __init__(self, *, whole: bool = False) -> None:
        """whole: integers, whose bins are at least 1 wide."""
        self.n = 0
        self._sum = 0.0
        self._whole = whole
        self._low = math.inf
        self._high = -math.inf
        # The sketch behind the quantiles. Sketch bin _STEPS counts zero, _STEPS + s the positive numbers of size step s
        # (1 ... _STEPS), _STEPS - s the negative ones. A step's sizes differ by RATIO at most.
        n_sketch_bins = 2 * _STEPS + 1
        self._sketch_counts = np.zeros(n_sketch_bins, np.int64)
        self._sketch_sums = np.zeros(n_sketch_bins, np.float64)
        min_exponent = None  # histogram bins of any width
        if whole:
            min_exponent = 0  # at least 2^0 wide
        self._bins = _Bins(min_exponent)

    def add(self, values: Floats) -> None:
        """Add finite numbers below 1e150; magnitudes below 1e-150 count as 0."""
        # Squares and logarithms of these magnitudes stay within a double. NaN compares false.
        numbers = values[np.abs(values) < 1e150]
        is_tiny = np.abs(numbers) < 1e-150
        numbers = np.where(is_tiny, 0.0, numbers)
        if not len(numbers):
            return
        self.n += len(numbers)
        self._sum += float(numbers.sum())
        self._low = min(self._low, float(numbers.min()))
        self._high = max(self._high, float(numbers.max()))
        size = np.abs(numbers)
        step = np.zeros(len(numbers), np.int64)  # 0: counts as zero
        large = size >= SMALLEST
        steps_above_smallest = np.log(size[large] / SMALLEST) / math.log(RATIO)
        steps_above_smallest = np.clip(steps_above_smallest, 0, _STEPS - 1)
        step[large] = 1 + steps_above_smallest.astype(int)
        signs = np.sign(numbers).astype(int)
        sketch_bins = _STEPS + step * signs  # [numbers]
        n_sketch_bins = len(self._sketch_counts)
        self._sketch_counts += np.bincount(sketch_bins, minlength=n_sketch_bins)
        self._sketch_sums += np.bincount(sketch_bins, weights=numbers, minlength=n_sketch_bins)
        self._bins.add(numbers, self._low, self._high)

    def result(self, n_rows: int) -> Numbers | None:
        """Return the distribution among `n_rows` rows; None without numbers."""
        if not self.n:
            return None
        cumulative_counts = np.cumsum(self._sketch_counts)
        edges, counts = self._bins.result()
        return Numbers(
            known=self.n,
            unknown=n_rows - self.n,
            total=self._sum,
            minimum=self._low,
            mean=self._sum / self.n,
            maximum=self._high,
            p5=self._quantile(cumulative_counts, 0.05),
            p50=self._quantile(cumulative_counts, 0.5),
            p95=self._quantile(cumulative_counts, 0.95),
            edges=edges,
            counts=counts,
        )

    def _quantile(self, cumulative_counts: Int64s, share: float) -> float:
        """Return the number below which a share of the numbers lies. cumulative_counts: int64 [sketch bins]."""
        rank = share * (self.n - 1)  # numbers before the quantile, in ascending order
        sketch_bin = int(np.searchsorted(cumulative_counts, rank, side="right"))
        # The mean of a sketch bin is exact if all its numbers are equal.
        value = float(self._sketch_sums[sketch_bin] / self._sketch_counts[sketch_bin])
        value = min(max(value, self._low), self._high)  # the mean of rounded sums may lie just outside
        if self._whole:
            return float(round(value))
        return value


class _Bins:
    """Bins that double in width as the range grows: bin i is [i 2^k, (i + 1) 2^k)."""

    def __init__(self, min_exponent: int | None) -> None:
        """min_exponent: smallest k; None: any."""
        self._min_exponent = min_exponent
        self._k: int | None = None  # None before the first values
        self._first = 0  # number i of the first bin
        self._counts = np.zeros(0, np.int64)  # [bins], from bin _first on

    def add(self, values: Floats, low: float, high: float) -> None:
        """Count values. low, high: the smallest and the largest of all values so far."""
        k = _exponent(low, high)
        if self._min_exponent is not None:
            k = max(k, self._min_exponent)
        if self._k is not None:
            k = max(k, self._k)
            self._widen(k)
        first = _bin(low, k)
        last = _bin(high, k)
        counts = np.zeros(last - first + 1, np.int64)
        if self._k is not None:
            start = self._first - first
            counts[start : start + len(self._counts)] = self._counts
        scaled = np.ldexp(values, -k)
        bins = np.floor(scaled).astype(np.int64) - first  # [values]
        bins = np.clip(bins, 0, last - first)
        counts += np.bincount(bins, minlength=len(counts))
        self._k = k
        self._first = first
        self._counts = counts

    def _widen(self, k: int) -> None:
        """Double the width of the bins until it is 2^k."""
        if self._k is None or self._k >= k:
            return
        if self._first == 0 and len(self._counts) == 1:
            self._k = k  # only bin 0 has values: widening bins of zeros step by step takes a thousand steps
        while self._k < k:
            first = self._first // 2
            bins = np.arange(self._first, self._first + len(self._counts))
            # Bins 2i and 2i + 1 become bin i.
            self._counts = np.bincount(bins // 2 - first, weights=self._counts).astype(np.int64)
            self._first = first
            self._k += 1

    def result(self) -> tuple[tuple[float, ...], tuple[int, ...]]:
        """Return (edges [bins + 1], counts [bins])."""
        k = self._k or 0
        n_bins = len(self._counts)
        edges = [math.ldexp(self._first + i, k) for i in range(n_bins + 1)]
        counts = tuple(self._counts.tolist())
        return tuple(edges), counts


def _bin(value: float, k: int) -> int:
    """Return the number i of the bin, 2^k wide, that has the value."""
    return math.floor(math.ldexp(value, -k))


def _exponent(low: float, high: float) -> int:
    """Return the smallest k for at most MAX_BINS bins of width 2^k from low to high, within double precision."""
    size = max(abs(low), abs(high))
    k = _FINEST
    if size:
        _, exponent = math.frexp(size)
        k = exponent - 40  # size < 2^exponent: bin numbers stay below 2^40, exact in a double
    span = high - low
    if span > 0:
        _, exponent = math.frexp(span / MAX_BINS)
        # 2^(exponent - 1) <= span / MAX_BINS: narrower bins would be too many.
        k = max(k, exponent - 1)
    while _bin(high, k) - _bin(low, k) + 1 > MAX_BINS:
        k += 1
    return k


MAX_NAMES = 60
"""Most kinds or splits; a column with more values is not a category."""
CANDIDATES = 4
"""Candidates per example, to choose different raw objects."""
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
    """Heap of candidates for examples: (-key hash, row, index of the change)."""

    @property
    def samples(self) -> int:
        return int(self.splits.sum())

    def add(self, batch: pa.RecordBatch, splits: Int64s, with_sound: Bools) -> None:
        """Count rows. splits: int64 [rows], codes. with_sound: bool [rows], True for samples with audio."""
        names = set(batch.schema.names)
        if names.issuperset(SIDES):
            width_px, height_px = (floats(batch.column(name)) for name in SIDES)
            self._add_sides(width_px, height_px)
        if "label" in names:
            self.labels.add(words(batch.column("label")))
        for name in LANGUAGES:
            if name in names:
                self.languages.add(words(batch.column(name)))
        if "duration_s" in names:
            self._add_seconds(floats(batch.column("duration_s")), splits, with_sound)

    def choose(self, rows: Int64s, keys: pa.Array, change: int, n_examples: int) -> None:
        """Keep the rows with the smallest key hashes, so that every version shows the same samples.

        rows: row numbers in the version. change: index of the change that has their files.
        """
        for row, key in zip(rows.tolist(), keys.to_pylist(), strict=True):
            # Negative: the heap's first candidate has the largest hash, and is replaced first.
            hashed = -int.from_bytes(key_hash(key)[:8], "little")
            candidate = (hashed, row, change)
            if len(self.best) < CANDIDATES * n_examples:
                heapq.heappush(self.best, candidate)
                continue
            largest_hash, _, _ = self.best[0]
            if hashed > largest_hash:
                heapq.heapreplace(self.best, candidate)

    def _add_sides(self, width_px: Floats, height_px: Floats) -> None:
        """Count sizes [rows]; NaN, and sides that do not fit into half of a code, count as unknown."""
        has_width = (width_px > 0) & (width_px < 2**31)
        has_height = (height_px > 0) & (height_px < 2**31)
        known = np.flatnonzero(has_width & has_height)
        width_px = width_px[known]
        height_px = height_px[known]
        codes = width_px.astype(np.int64) * 2**32 + height_px.astype(np.int64)
        self.sizes.add_codes(codes)
        short = classes.short_side_class(width_px, height_px)
        self.short_sides += np.bincount(short, minlength=len(self.short_sides))
        aspect = classes.aspect_class(width_px, height_px)
        self.aspects += np.bincount(aspect, minlength=len(self.aspects))

    def _add_seconds(self, seconds: Floats, splits: Int64s, with_sound: Bools) -> None:
        """Add durations [rows]; NaN, negative and damaged ones count as unknown. Other arguments: as for `add`."""
        # 10^12 s are 30,000 years. Such a value, or infinity, would spoil the sums.
        is_known = (seconds >= 0) & (seconds < 1e12)
        known = np.flatnonzero(is_known)
        seconds = seconds[known]
        self.duration_s.add(seconds)
        duration = classes.duration_class(seconds)
        self.durations += np.bincount(duration, minlength=len(self.durations))
        self.seconds += np.bincount(splits[known], weights=seconds, minlength=len(self.seconds))
        seconds_with_sound = seconds[with_sound[known]]
        self.sound_s += float(seconds_with_sound.sum())


class NameCodes:
    """Codes of names by appearance; those beyond MAX_NAMES share one."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._codes: dict[str, int] = {}

    def code(self, name: str) -> int:
        """Return a name's code, a new one for a new name."""
        known = self._codes.get(name)
        if known is not None:
            return known
        label = name
        if len(self.names) >= MAX_NAMES - 1:  # the last code is for all other names
            label = OTHERS
        if label not in self._codes:
            self._codes[label] = len(self.names)
            self.names.append(label)
        return self._codes[label]

    def codes(self, values: pa.Array, unknown: Int64s) -> Int64s:
        """Return a code per value, from `unknown` for nulls and blanks."""
        encoded = text(values).dictionary_encode()
        distinct_names = encoded.dictionary.to_pylist()
        code_of_name = np.full(len(distinct_names) + 1, -1, np.int64)  # the last is for nulls
        for i, name in enumerate(distinct_names):
            if name.strip():
                code_of_name[i] = self.code(name)
        indices = encoded.indices.fill_null(len(distinct_names)).to_numpy(zero_copy_only=False)
        codes = code_of_name[indices.astype(np.int64)]  # [values]
        return np.where(codes < 0, unknown, codes)
