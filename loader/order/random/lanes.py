"""L1: the sample at position i of an epoch. A bijection of [0, N) with a bounded working set and no table.

Positions are dealt round-robin to D lanes. A lane reads its chunks (c consecutive ordinals each) through h interleaved
slots, staggered over time. So a job reads about D*h chunks at once, and each chunk from beginning to end.
Formulas: docs/order.md, "Lanes".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidPlan
from .keyed_permutation import ARGSORT_MAX, FEISTEL_ROUNDS, I64, U64, at, key, perm, sub, sub_array, unperm
from .plan_hash import whole

LIVE_CHUNK_BYTES = 2**31
"""Approximate decoded bytes of the chunks that a source reads side by side."""
DEFAULT_LANES = 1024
DEFAULT_ROUNDS_H = 4
CHUNK_BYTES = 2 * 2**20  # one range read of this size amortises a request
CHUNKS_MIN = 65_536  # fewest chunks per source: fewer shuffle too coarsely
MAX_SAMPLES = 2**53
MAX_CHUNK = 2**30
MAX_LANES = 2**16
FEW = 8
"""Number of ordinals below which computing them one by one is faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneShape:
    """The numbers that, with the keys, decide the order of an epoch (L1)."""

    n: int
    """Number of samples."""
    chunk: int
    """c: samples read together."""
    lanes: int
    """D: number of lanes, a power of two."""
    rounds_h: int
    """h: chunks that a lane reads side by side."""

    def __post_init__(self) -> None:
        for name, value, high in (
            ("n", self.n, MAX_SAMPLES),
            ("chunk", self.chunk, MAX_CHUNK),
            ("lanes", self.lanes, MAX_LANES),
            ("h", self.rounds_h, MAX_LANES),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
                raise InvalidPlan(f"{name} = {value!r}: a whole number from 1 to {high} is needed")
        if self.lanes & (self.lanes - 1):
            raise InvalidPlan(f"lanes = {self.lanes}: a power of two is needed, such as {DEFAULT_LANES}")

    @property
    def chunk_rounds(self) -> int:
        """K: chunks that each slot of a lane reads in an epoch."""
        return self.n // self.chunk // (self.lanes * self.rounds_h)

    @property
    def body(self) -> int:
        """Positions in an epoch before its tail."""
        return self.lanes * self.rounds_h * self.chunk_rounds * self.chunk

    @property
    def live_samples(self) -> int:
        """Samples in the chunks read at once (D*h*c, or the whole source)."""
        return min(self.n, self.lanes * self.rounds_h * self.chunk)


def frozen_shape(
    n: int,
    mean_sample_bytes: int,
    chunk: int | None = None,
    lanes: int | None = None,
    decoded: tuple[int, int] | None = None,
) -> LaneShape:
    """Return the shape that a plan freezes. It depends on the view, never on batch or world size.

    n: samples in the view. mean_sample_bytes: of the selected fields; 0 (a view without bytes) counts as 1.
    chunk, lanes: override the computed values.
    decoded: (samples, bytes) per chunk that is decoded whole; None for samples read one by one.

    Raises InvalidPlan for values out of range.
    """
    lanes = None if lanes is None else whole("lanes", lanes, 1, MAX_LANES)  # accepts numpy's integers
    if decoded is not None and chunk is None and lanes is None:
        chunk, lanes = _of_chunks(n, *decoded)
    if chunk is not None:
        chunk = whole("chunk", chunk, 1, MAX_CHUNK)
    else:
        chunk = min(CHUNK_BYTES // max(1, mean_sample_bytes), n // CHUNKS_MIN)
        chunk = 1 << (chunk.bit_length() - 1) if chunk >= 2 else 1
    if chunk == 1 and (lanes is None or lanes == 1):
        return LaneShape(n=n, chunk=1, lanes=1, rounds_h=1)  # a full shuffle
    lanes = DEFAULT_LANES if lanes is None else lanes
    return LaneShape(n=n, chunk=chunk, lanes=lanes, rounds_h=DEFAULT_ROUNDS_H)


def fits_live(n: int, rows: int, nbytes: int) -> bool:
    """Return whether all chunks of n samples may be decoded at once. rows, nbytes: samples and bytes per chunk."""
    return -(-n // rows) * nbytes <= LIVE_CHUNK_BYTES


def _of_chunks(n: int, rows: int, nbytes: int) -> tuple[int | None, int | None]:
    """Return chunk and lanes that keep few decoded chunks in memory; (None, None) for the usual rule."""
    if rows == 1 or fits_live(n, rows, nbytes):
        return None, None
    chunk = min(MAX_CHUNK, 1 << (rows - 1).bit_length())
    lanes = LIVE_CHUNK_BYTES * rows // (DEFAULT_ROUNDS_H * nbytes * (chunk + rows))
    return chunk, 1 << (min(max(lanes, 1), DEFAULT_LANES).bit_length() - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochKeys:
    """The nine keys of one epoch of one source, named as in docs/order.md, "Lanes"."""

    r: int
    """Key for the order of a lane's slots."""
    p: int
    """Key for the order of chunks."""
    q: int
    """Key for the order inside a chunk."""
    r2: int
    """As r, for the tail."""
    p2: int
    """As p, for the tail."""
    q2: int
    """As q, for the tail."""
    t: int
    """Key for the order of the tail's last positions, which fill no lanes."""
    rot: int
    """Rotation of all ordinals."""
    rot2: int
    """Rotation of the tail."""


@lru_cache(maxsize=1024)
def epoch_keys(seed: int, name: str, epoch: int) -> EpochKeys:
    purposes = ("R", "P", "Q", "R2", "P2", "Q2", "T", "rot", "rot2")
    return EpochKeys(**{purpose.lower(): key(seed, name, purpose, epoch) for purpose in purposes})


class Epochs(NamedTuple):
    """`LaneShape` numbers and keys, for positions in one or several epochs.

    Each is a single number if it is the same for all positions, else an array.
    """

    n: int | I64
    """Number of samples."""
    chunk: int | I64
    """As in `LaneShape`."""
    lanes: int | I64
    """As in `LaneShape`."""
    rounds_h: int | I64
    """As in `LaneShape`."""
    chunk_rounds: int | I64
    """As in `LaneShape`."""
    body: int | I64
    """As in `LaneShape`."""
    r: int | U64
    """As in `EpochKeys`."""
    p: int | U64
    """As in `EpochKeys`."""
    q: int | U64
    """As in `EpochKeys`."""
    r2: int | U64
    """As in `EpochKeys`."""
    p2: int | U64
    """As in `EpochKeys`."""
    q2: int | U64
    """As in `EpochKeys`."""
    t: int | U64
    """As in `EpochKeys`."""
    rot: int | U64
    """As in `EpochKeys`."""
    rot2: int | U64
    """As in `EpochKeys`."""

    def part(self, rows: NDArray[np.bool_]) -> "Epochs":
        return Epochs._make(at(one, rows) for one in self)


_of_shape, _of_keys = attrgetter(*Epochs._fields[:6]), attrgetter(*Epochs._fields[6:])


def locate(shape: LaneShape, seed: int, name: str, epoch: int, positions: I64) -> I64:
    """Return view ordinals (int64, same length) at in-epoch positions (int64 [any], 0 <= position < shape.n)."""
    return _located(Epochs(*_of_shape(shape), *_of_keys(epoch_keys(seed, name, epoch))), positions)


def locate_each(seed: int, epochs: Sequence[tuple[LaneShape, str, int]], which: I64, positions: I64) -> I64:
    """Return view ordinals as `locate` does, for positions in several epochs of any sources.

    epochs: (shape, name, epoch) of each.
    which: int64, index into `epochs` for each position.
    """
    if len(epochs) == 1:
        return locate(epochs[0][0], seed, *epochs[0][1:], positions)
    shapes = np.array([_of_shape(shape) for shape, _, _ in epochs], np.int64)
    keys = np.array([_of_keys(epoch_keys(seed, name, epoch)) for _, name, epoch in epochs], np.uint64)
    alike = (shapes == shapes[0]).all(axis=0).tolist()
    columns = zip(shapes.T, alike, strict=True)
    of_shape = [int(column[0]) if same else column[which] for column, same in columns]
    return _located(Epochs(*of_shape, *(column[which] for column in keys.T)), positions)


def _located(epochs: Epochs, positions: I64) -> I64:
    in_tail = positions >= epochs.body
    if not in_tail.any():
        ordinal = _body(epochs, positions)
    elif in_tail.all():
        ordinal = _tail(epochs, positions - epochs.body)
    else:
        ordinal = np.empty(positions.shape, dtype=np.int64)
        body, tail = epochs.part(~in_tail), epochs.part(in_tail)
        ordinal[~in_tail] = _body(body, positions[~in_tail])
        ordinal[in_tail] = _tail(tail, positions[in_tail] - tail.body)
    return _rotated(ordinal, epochs.rot, epochs.n)  # otherwise the short last chunk would always come last


def _rotated(values: I64, key: int | U64, n: int | I64) -> I64:
    if isinstance(key, int):
        values += key % n
    else:
        values += (key % np.asarray(n, np.uint64)).astype(np.int64)
    values -= (values >= n) * n
    return values


def _body(epochs: Epochs, i: I64) -> I64:
    chunks = epochs.n // epochs.chunk
    j, y = _deal(epochs, epochs.chunk, epochs.chunk_rounds, epochs.r, i)
    m = perm(epochs.p, chunks, j)
    return m * epochs.chunk + perm(sub_array(epochs.q, m.astype(np.uint64)), epochs.chunk, y)


def _tail(epochs: Epochs, i: I64) -> I64:
    # The same lanes read it, except its last few positions, which a plain permutation orders. All ordinals are rotated.
    slots = epochs.lanes * epochs.rounds_h
    tail = epochs.n - epochs.body
    chunk = tail // slots
    body = slots * chunk
    z = np.empty(i.shape, dtype=np.int64)
    rest = i >= body
    if not rest.all():
        dealt, size = epochs.part(~rest), at(chunk, ~rest)
        j, y = _deal(dealt, size, 1, dealt.r2, i[~rest])
        m = perm(dealt.p2, at(slots, ~rest), j)
        z[~rest] = m * size + perm(sub_array(dealt.q2, m.astype(np.uint64)), size, y)
    first = at(body, rest)
    z[rest] = first + perm(at(epochs.t, rest), at(tail - body, rest), i[rest] - first)
    z = _rotated(z, epochs.rot2, tail)
    j = epochs.body // epochs.chunk + z // epochs.chunk
    full_chunks = epochs.n // epochs.chunk
    chunk_of = j.copy()  # the short chunk, number full_chunks, stays in its position
    full = j < full_chunks
    chunk_of[full] = perm(at(epochs.p, full), at(full_chunks, full), j[full])
    return chunk_of * epochs.chunk + z % epochs.chunk


def _deal(shape: Epochs, chunk: int | I64, rounds: int | I64, key_r: int | U64, i: I64) -> tuple[I64, I64]:
    """Deal positions to lanes; return (j, y): the lane's j-th chunk in reading order, and the sample in it."""
    lanes, h = shape.lanes, shape.rounds_h
    u: I64 = np.floor_divide(i, lanes)
    d = i - u * lanes
    tau = u // h
    round_keys = sub_array(sub_array(key_r, d.astype(np.uint64)), tau.astype(np.uint64))
    lane = perm(round_keys, h, u - tau * h)
    x = (tau + (lane * lanes + d) * chunk // (lanes * h)) % (rounds * chunk)
    kappa: I64 = np.floor_divide(x, chunk)
    return d + lanes * (kappa * h + lane), x - kappa * chunk


def unpermuted(k: int, n: int, y: int) -> int:
    if n == 1:
        return 0
    if n <= ARGSORT_MAX:
        key = sub(k, y)
        return sum(sub(k, other) < key for other in range(n))
    a = isqrt(n - 1) + 1
    b = -(-n // a)
    keys = [sub(k, r) for r in range(FEISTEL_ROUNDS)]
    while True:  # walk back along the cycle
        quotient, right = divmod(y, b)
        for r in reversed(range(FEISTEL_ROUNDS)):
            if r % 2 == 0:
                quotient = (quotient - sub(keys[r], right)) % a
            else:
                right = (right - sub(keys[r], quotient)) % b
        y = quotient * b + right
        if y < n:
            return y


def position_of(shape: LaneShape, seed: int, name: str, epoch: int, ordinal: int) -> int:
    """Return the in-epoch position at which `locate` returns this view ordinal."""
    keys, n, chunk = epoch_keys(seed, name, epoch), shape.n, shape.chunk
    slots = shape.lanes * shape.rounds_h
    m, within = divmod((ordinal - keys.rot) % n, chunk)
    full_chunks, read = n // chunk, shape.body // chunk
    j = unpermuted(keys.p, full_chunks, m) if m < full_chunks else m
    if j < read:
        return _undealt(
            shape, chunk, shape.chunk_rounds, keys.r, j, unpermuted(sub(keys.q, m), chunk, within)
        )
    tail = n - shape.body
    z = ((j - read) * chunk + within - keys.rot2) % tail
    size = tail // slots
    if z >= size * slots:
        first = size * slots
        return shape.body + first + unpermuted(keys.t, tail - first, z - first)
    m, within = divmod(z, size)
    y = unpermuted(sub(keys.q2, m), size, within)
    return shape.body + _undealt(shape, size, 1, keys.r2, unpermuted(keys.p2, slots, m), y)


def positions_of(shape: LaneShape, seed: int, name: str, epoch: int, ordinals: I64) -> I64:
    """Return `position_of` of each view ordinal (int64)."""
    is_shuffle = shape.chunk == shape.lanes == shape.rounds_h == 1 and shape.n > ARGSORT_MAX
    if not is_shuffle or len(ordinals) < FEW:
        each = [position_of(shape, seed, name, epoch, ordinal) for ordinal in ordinals.tolist()]
        return np.array(each, np.int64)
    keys = epoch_keys(seed, name, epoch)
    return unperm(keys.p, shape.n, (ordinals - keys.rot % shape.n) % shape.n)


def _undealt(shape: LaneShape, chunk: int, rounds: int, key_r: int, j: int, y: int) -> int:
    lanes, h = shape.lanes, shape.rounds_h
    number, d = divmod(j, lanes)
    kappa, lane = divmod(number, h)
    stagger = (lane * lanes + d) * chunk // (lanes * h)
    tau = (kappa * chunk + y - stagger) % (rounds * chunk)
    return (tau * h + unpermuted(sub(sub(key_r, d), tau), h, lane)) * lanes + d
