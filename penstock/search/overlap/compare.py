"""Compare texts with the shingles of protected versions."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loader.dataset.shards.bitmap import Bools
from penstock.words import word_blocks

from .protected_texts import ProtectedTexts
from .shingles import (
    SHORTEST_INSIDE,
    WIDTH,
    Int64s,
    UInt64s,
    WordRun,
    quick_hashes,
    quick_word_hashes,
    shingle_hashes,
    word_run,
)

UInt8s = NDArray[np.uint8]
_FILTER_BITS = 32
"""Bits of the filter for each protected shingle: 3 % of other shingles pass it."""
_LEAST_FILTER_BITS = 64
_BITS_OF_BYTE = np.uint64(7)
_BYTE_SHIFT = np.uint64(3)


class Overlap(NamedTuple):
    """Common words of a sample and a protected version."""

    ratio: float
    """Share of the sample's words that are in a common shingle, above 0, at most 1."""
    ordinal: int
    """Number of the protected sample that shares most shingles, the first of several."""


class ProtectedIndex:
    """Finds the shingles of one protected version. Memory: 4 to 8 bytes a shingle, beside the version's."""

    def __init__(self, protected: ProtectedTexts) -> None:
        self.protected = protected
        n_bits = _LEAST_FILTER_BITS
        while n_bits < _FILTER_BITS * len(protected.hashes):
            n_bits *= 2
        self._last_place = np.uint64(n_bits - 1)
        self._filter = np.zeros(n_bits // 8, np.uint8)
        byte, bit = self._places(protected.quick)
        np.bitwise_or.at(self._filter, byte, bit)
        is_inside = protected.words >= SHORTEST_INSIDE
        widths = np.unique(protected.words[is_inside])
        self.widths: list[int] = widths.tolist()
        """Numbers of words of the shingles that are searched inside texts."""

    def candidates(self, quick: UInt64s) -> Int64s:
        """Return int64 [m]: numbers of the quick hashes that a protected shingle may have."""
        byte, bit = self._places(quick)
        filter_byte = self._filter[byte]
        has_bit = filter_byte & bit
        return np.flatnonzero(has_bit)

    def find(self, hashes: Int64s) -> tuple[Bools, Int64s]:
        """Return (bool [n], whether a shingle is protected; int64 [n], its first protected sample, if it is)."""
        protected = self.protected
        n_protected = len(protected.hashes)
        if not n_protected:
            is_protected = np.zeros(len(hashes), bool)
            ordinals = np.zeros(len(hashes), np.int64)
            return is_protected, ordinals
        last = n_protected - 1
        position = np.searchsorted(protected.hashes, hashes)
        np.minimum(position, last, out=position)  # a hash above all others has no row
        is_protected = protected.hashes[position] == hashes
        return is_protected, protected.ordinals[position]

    def _places(self, quick: UInt64s) -> tuple[Int64s, UInt8s]:
        """Return (int64 [n], byte of each hash in the filter; uint8 [n], its bit)."""
        place = quick & self._last_place
        byte = place >> _BYTE_SHIFT
        shift = place & _BITS_OF_BYTE
        bit = np.uint8(1) << shift.astype(np.uint8)
        return byte.astype(np.int64), bit


class _Coverage:
    """Common words of one sample and one protected version, while its words come."""

    def __init__(self, index: ProtectedIndex) -> None:
        self.index = index
        self.n_covered = 0
        """Words in common shingles, of all blocks before."""
        self.covered: Bools = np.zeros(0, bool)
        """bool [n]: whether each word of the block is in a common shingle."""
        self._ordinals: list[Int64s] = []
        """Protected sample of each common shingle."""

    def begin_block(self, n_words: int) -> None:
        """Begin a block, whose first words are the last ones of the block before."""
        covered = np.zeros(n_words, bool)
        n_before = len(self.covered)
        # The block before may have marked its last words.
        covered[:n_before] = self.covered
        self.covered = covered

    def end_block(self, n_last: int) -> None:
        """Count the words but for the last ones, which the next block begins with."""
        n_done = len(self.covered) - n_last
        n_covered = self.covered[:n_done].sum()
        self.n_covered += int(n_covered)
        self.covered = self.covered[n_done:]

    def cover(
        self,
        run: WordRun,
        width: int,
        first_words: Int64s,
    ) -> None:
        """Mark the words of the shingles that are protected.

        run: words of the block. width: words of a shingle. first_words: int64 [n], number of each shingle's first word
        in the block.
        """
        if not len(first_words):
            return
        hashes = shingle_hashes(run, width, first_words)
        is_protected, ordinals = self.index.find(hashes)  # [n]
        for first in first_words[is_protected].tolist():
            stop = first + width
            self.covered[first:stop] = True
        self._ordinals.append(ordinals[is_protected])

    def overlap(self, n_words: int) -> Overlap | None:
        """Return the overlap; None without a common shingle. n_words: of all of the sample's texts, 1 or more."""
        if not self.n_covered:
            return None
        shingle_ordinals = np.concatenate(self._ordinals)  # a protected sample for each common shingle
        ordinals, counts = np.unique(shingle_ordinals, return_counts=True)
        most = np.argmax(counts)  # the first of several
        ratio = self.n_covered / n_words
        return Overlap(ratio, int(ordinals[most]))


def overlaps(
    texts: Iterable[str],
    indexes: Sequence[ProtectedIndex],
) -> list[Overlap | None]:
    """Return the overlap of a sample's texts with each protected version; None without one.

    Costs 0.25 ms for 700 words. Memory: one text, and a block of its words.
    """
    coverages = [_Coverage(index) for index in indexes]
    widths = set[int]()
    for index in indexes:
        widths.update(index.widths)
    n_words = 0
    for text in texts:
        n_words += _cover_text(text, coverages, sorted(widths))
    return [coverage.overlap(n_words) for coverage in coverages]


def _cover_text(
    text: str,
    coverages: Sequence[_Coverage],
    widths: list[int],
) -> int:
    """Add a text to the coverages; return its number of words."""
    n_words = 0
    last_words: list[str] = []  # of the block before: shingles reach into the next one
    run = word_run(last_words)
    for words in word_blocks(text):
        n_words += len(words)
        n_shared = len(last_words)  # words that this block begins with, and the block before ends with
        words = last_words + words
        run = word_run(words)
        word_hashes = quick_word_hashes(run)
        quick_by_width = quick_hashes(word_hashes, widths)
        last_words = words[1 - WIDTH :]  # the last 12, or fewer
        for coverage in coverages:
            coverage.begin_block(run.n_words)
            _cover_block(coverage, run, quick_by_width, n_shared)
            coverage.end_block(len(last_words))
    whole = np.zeros(1, np.int64)  # one shingle, from the first word
    for coverage in coverages:
        # A text too short for a shingle inside it is compared whole.
        if 0 < n_words < SHORTEST_INSIDE:
            coverage.cover(run, n_words, whole)
        coverage.end_block(0)
    return n_words


def _cover_block(
    coverage: _Coverage,
    run: WordRun,
    quick_by_width: dict[int, UInt64s],
    n_shared: int,
) -> None:
    """Mark the protected shingles of a block.

    quick_by_width: words of a shingle -> uint64 [n], quick hash of the shingle from each word. n_shared: words at the
    block's start that it shares with the block before.
    """
    for width, quick in quick_by_width.items():
        if width not in coverage.index.widths:
            continue
        first_words = coverage.index.candidates(quick)
        # A shingle within the shared words was counted in the block before.
        is_new = first_words + width > n_shared
        coverage.cover(run, width, first_words[is_new])
