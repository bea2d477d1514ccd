"""Shingles: 13 words of a text one after the other, and their hashes.

Two samples overlap if they share a shingle. BLAKE2b of all shingles of a document takes 0.3 ms per 700 words. A quick
hash by numpy takes a sixth of that, so documents are hashed quickly. BLAKE2b decides about the few shingles whose quick
hash a protected version has. Python's own hashes were rejected: they differ in each process.
"""

from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]

WIDTH = 13
"""Words of a shingle."""
SHORTEST_INSIDE = 8
"""Words of the shortest text that is searched inside others; shorter ones match whole texts only."""
_BLANK = 0x20
HASHED_BYTES = 64
"""Bytes of a word in its quick hash."""
MOST_BYTES = 8 * 2**20
"""Bytes of a block from which its words are cut for their quick hashes, which take 32 bytes a byte."""


def _powers(base: int, n: int) -> UInt64s:
    powers = np.full(
        n,
        base,
        np.uint64,
    )
    powers[0] = 1
    # Products are modulo 2**64.
    return np.multiply.accumulate(powers)


# Odd factors of 64 bits: a product loses no bit.
_BYTE_FACTORS = _powers(0x9E3779B97F4A7C15, HASHED_BYTES + 1)
_BYTE_FACTORS[HASHED_BYTES] = 0  # of all bytes after the last
_WORD_FACTORS = _powers(0xD6E8FEB86659FD93, WIDTH)
_MIX_FACTOR = np.uint64(0xFF51AFD7ED558CCD)
_HALF = np.uint64(32)
_ONE_BIT = np.uint64(1)


class WordRun(NamedTuple):
    """Words of a text, one after the other."""

    joined: bytes
    """UTF-8 of the words, each with a blank after it."""
    starts: Int64s
    """int64 [n]: first byte of each word."""
    stops: Int64s
    """int64 [n]: byte after each word."""

    @property
    def n_words(self) -> int:
        return len(self.starts)


def word_run(words: list[str]) -> WordRun:
    joined = b""
    if words:
        text = " ".join(words)
        joined = text.encode() + b" "
    return _split(joined)


def _split(joined: bytes) -> WordRun:
    data = np.frombuffer(joined, np.uint8)
    # No word has a blank.
    is_blank = data == _BLANK
    stops = np.flatnonzero(is_blank)
    # The first word starts at 0, each other one after a blank.
    starts = np.zeros_like(stops)
    starts[1:] = stops[:-1]
    starts[1:] += 1
    return WordRun(joined, starts, stops)


def shingle_hashes(
    run: WordRun,
    width: int,
    first_words: Int64s,
) -> Int64s:
    """Return int64 [m]: the upper 63 bits of the BLAKE2b-64 of shingles of `width` words.

    first_words: int64 [m], number of each shingle's first word.
    """
    last_words = first_words + width - 1
    # Bytes of each shingle.
    starts = run.starts[first_words].tolist()
    stops = run.stops[last_words].tolist()
    bounds = zip(
        starts,
        stops,
        strict=True,
    )
    data = memoryview(run.joined)
    digests = bytearray()
    for start, stop in bounds:
        shingle = data[start:stop]
        digest = blake2b(shingle, digest_size=8)
        digests += digest.digest()
    big_endian = np.frombuffer(digests, ">u8")
    hashes = big_endian.astype(np.uint64)
    hashes >>= _ONE_BIT
    return hashes.astype(np.int64)


def quick_word_hashes(run: WordRun) -> UInt64s:
    """Return uint64 [n]: a hash of the first 64 bytes of each word."""
    if not run.n_words:
        return np.zeros(0, np.uint64)
    if len(run.joined) > MOST_BYTES:
        run = _with_short_words(run)
    data = np.frombuffer(run.joined, np.uint8)
    # The blank after a word belongs to it.
    nbytes = run.stops - run.starts + 1
    # int64 [bytes]: position of each byte in its word.
    position = np.arange(len(data))
    starts = np.repeat(run.starts, nbytes)
    position -= starts
    np.minimum(position, HASHED_BYTES, out=position)
    products = _BYTE_FACTORS[position]
    products *= data
    hashes: UInt64s = np.add.reduceat(products, run.starts)
    # Similar words have close sums: carry their difference to all bits.
    upper = hashes >> _HALF
    hashes ^= upper
    hashes *= _MIX_FACTOR
    upper = hashes >> _HALF
    hashes ^= upper
    return hashes


def _with_short_words(run: WordRun) -> WordRun:
    """Return the words' first 64 bytes: a block has more than `MOST_BYTES` only if a word is long."""
    ends = np.minimum(run.stops, run.starts + HASHED_BYTES)
    bounds = zip(
        run.starts.tolist(),
        ends.tolist(),
        strict=True,
    )
    beginnings = [run.joined[start:end] for start, end in bounds]
    joined = b" ".join(beginnings)
    return _split(joined + b" ")


def quick_hashes(
    word_hashes: UInt64s,
    widths: list[int],
) -> dict[int, UInt64s]:
    """Return width -> uint64 [n - width + 1]: a quick hash of each shingle.

    word_hashes: uint64 [n]. widths: numbers of words; a width above n is left out.
    """
    n_words = len(word_hashes)
    by_width: dict[int, UInt64s] = {}
    widest = max(widths, default=0)
    most_words = min(n_words, widest)
    # uint64 [n]: sum over the words from each one on. Each round adds the next word.
    sums = np.zeros(n_words, np.uint64)
    for offset in range(most_words):
        n_shingles = n_words - offset
        shingle_sums = sums[:n_shingles]
        next_words = word_hashes[offset:]
        factor = _WORD_FACTORS[offset]
        products = next_words * factor
        shingle_sums += products
        width = offset + 1
        if width in widths:
            by_width[width] = shingle_sums.copy()
    return by_width
