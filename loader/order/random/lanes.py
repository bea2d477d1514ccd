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
from typing import Any, NamedTuple

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
            is_int = isinstance(value, int) and not isinstance(value, bool)  # bool is an int in Python
            if not is_int or not 1 <= value <= high:
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
    if lanes is not None:
        lanes = whole("lanes", lanes, 1, MAX_LANES)  # accepts numpy's integers
    if decoded is not None and chunk is None and lanes is None:
        chunk, lanes = _of_chunks(n, *decoded)
    if chunk is not None:
        chunk = whole("chunk", chunk, 1, MAX_CHUNK)
    else:
        samples_per_request = CHUNK_BYTES // max(1, mean_sample_bytes)
        most = max(1, min(samples_per_request, n // CHUNKS_MIN))
        chunk = 1 << (most.bit_length() - 1)  # the power of two at or below
    if chunk == 1 and (lanes is None or lanes == 1):
        return LaneShape(n=n, chunk=1, lanes=1, rounds_h=1)  # a full shuffle
    if lanes is None:
        lanes = DEFAULT_LANES
    return LaneShape(n=n, chunk=chunk, lanes=lanes, rounds_h=DEFAULT_ROUNDS_H)


def fits_live(n: int, rows: int, nbytes: int) -> bool:
    """Return whether all chunks of n samples may be decoded at once. rows, nbytes: samples and bytes per chunk."""
    chunks = -(-n // rows)  # rounded up
    return chunks * nbytes <= LIVE_CHUNK_BYTES


def _of_chunks(n: int, rows: int, nbytes: int) -> tuple[int | None, int | None]:
    """Return chunk and lanes that keep few decoded chunks in memory; (None, None) for the usual rule."""
    if rows == 1 or fits_live(n, rows, nbytes):
        return None, None
    chunk = min(MAX_CHUNK, 1 << (rows - 1).bit_length())  # the power of two at or above
    # A chunk of the order touches up to chunk / rows + 1 stored chunks; D * h of them are live at once.
    lanes = LIVE_CHUNK_BYTES * rows // (DEFAULT_ROUNDS_H * nbytes * (chunk + rows))
    lanes = min(max(lanes, 1), DEFAULT_LANES)
    return chunk, 1 << (lanes.bit_length() - 1)


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


_of_shape = attrgetter(*Epochs._fields[:6])
_of_keys = attrgetter(*Epochs._fields[6:])


def locate(shape: LaneShape, seed: int, name: str, epoch: int, positions: I64) -> I64:
    """Return view ordinals (int64, same length) at in-epoch positions (int64 [any], 0 <= position < shape.n)."""
    keys = epoch_keys(seed, name, epoch)
    return _located(Epochs(*_of_shape(shape), *_of_keys(keys)), positions)


def locate_each(seed: int, epochs: Sequence[tuple[LaneShape, str, int]], which: I64, positions: I64) -> I64:
    """Return view ordinals as `locate` does, for positions in several epochs of any sources.

    epochs: (shape, name, epoch) of each.
    which: int64, index into `epochs` for each position.
    """
    if len(epochs) == 1:
        shape, name, epoch = epochs[0]
        return locate(shape, seed, name, epoch, positions)
    shapes = np.array([_of_shape(shape) for shape, _, _ in epochs], np.int64)  # [epochs, 6]
    keys = np.array(
        [_of_keys(epoch_keys(seed, name, epoch)) for _, name, epoch in epochs], np.uint64
    )  # [epochs, 9]
    is_alike = (shapes == shapes[0]).all(axis=0)  # [6]: numbers that all epochs share
    numbers: list[Any] = []  # int | int64 [positions]
    for column, alike in zip(shapes.T, is_alike.tolist(), strict=True):
        if alike:  # a number is much faster than an array: numpy divides by it with multiplications
            numbers.append(int(column[0]))
        else:
            numbers.append(column[which])
    return _located(Epochs(*numbers, *(column[which] for column in keys.T)), positions)


def _located(epochs: Epochs, positions: I64) -> I64:
    in_tail = positions >= epochs.body
    if not in_tail.any():
        ordinal = _body(epochs, positions)
    elif in_tail.all():
        ordinal = _tail(epochs, positions - epochs.body)
    else:
        ordinal = np.empty(positions.shape, dtype=np.int64)
        in_body = ~in_tail
        body = epochs.part(in_body)
        tail = epochs.part(in_tail)
        ordinal[in_body] = _body(body, positions[in_body])
        ordinal[in_tail] = _tail(tail, positions[in_tail] - tail.body)
    return _rotated(ordinal, epochs.rot, epochs.n)  # otherwise the short last chunk would always come last


def _rotated(values: I64, key: int | U64, n: int | I64) -> I64:
    """Return `(values + key) mod n`; 0 <= values < n. Changes `values` in place."""
    if isinstance(key, int):
        values += key % n
    else:
        values += (key % np.asarray(n, np.uint64)).astype(np.int64)
    values -= (values >= n) * n
    return values


def _body(epochs: Epochs, i: I64) -> I64:
    """Return the ordinals, not yet rotated, at positions before the tail."""
    chunks = epochs.n // epochs.chunk
    j, y = _deal(epochs, epochs.chunk, epochs.chunk_rounds, epochs.r, i)
    m = perm(epochs.p, chunks, j)  # the chunk read as number j
    chunk_keys = sub_array(epochs.q, m.astype(np.uint64))
    return m * epochs.chunk + perm(chunk_keys, epochs.chunk, y)


def _tail(epochs: Epochs, i: I64) -> I64:
    """Return the ordinals, not yet rotated, at positions that count from the tail's beginning.

    The same lanes read the tail, one small chunk each, except its last few positions, which a plain permutation orders.
    """
    slots = epochs.lanes * epochs.rounds_h
    tail = epochs.n - epochs.body
    chunk = tail // slots
    body = slots * chunk
    z = np.empty(i.shape, dtype=np.int64)  # the sample's number among the tail's
    in_rest = i >= body
    in_lanes = ~in_rest
    if in_lanes.any():
        dealt = epochs.part(in_lanes)
        size = at(chunk, in_lanes)
        j, y = _deal(dealt, size, 1, dealt.r2, i[in_lanes])
        m = perm(dealt.p2, at(slots, in_lanes), j)
        chunk_keys = sub_array(dealt.q2, m.astype(np.uint64))
        z[in_lanes] = m * size + perm(chunk_keys, size, y)
    first = at(body, in_rest)
    rest_size = at(tail - body, in_rest)
    z[in_rest] = first + perm(at(epochs.t, in_rest), rest_size, i[in_rest] - first)
    z = _rotated(z, epochs.rot2, tail)

    # The tail's samples lie in the chunks that come last in the order of chunks.
    j = epochs.body // epochs.chunk + z // epochs.chunk
    full_chunks = epochs.n // epochs.chunk
    chunk_of = j.copy()  # the short chunk, number full_chunks, stays in its position
    full = j < full_chunks
    chunk_of[full] = perm(at(epochs.p, full), at(full_chunks, full), j[full])
    return chunk_of * epochs.chunk + z % epochs.chunk


def _deal(shape: Epochs, chunk: int | I64, rounds: int | I64, key_r: int | U64, i: I64) -> tuple[I64, I64]:
    """Deal positions to lanes; return (j, y): the lane's j-th chunk in reading order, and the sample in it."""
    lanes = shape.lanes
    h = shape.rounds_h
    u: I64 = np.floor_divide(i, lanes)
    d = i - u * lanes  # the lane; `i % lanes` would divide a second time
    tau = u // h  # the lane's round, in which each of its h slots reads one sample
    lane_keys = sub_array(key_r, d.astype(np.uint64))
    round_keys = sub_array(lane_keys, tau.astype(np.uint64))
    lane = perm(round_keys, h, u - tau * h)
    x = (tau + (lane * lanes + d) * chunk // (lanes * h)) % (rounds * chunk)
    kappa: I64 = np.floor_divide(x, chunk)
    chunk_number = d + lanes * (kappa * h + lane)
    return chunk_number, x - kappa * chunk


def unpermuted(k: int, n: int, y: int) -> int:
    """Return the x that `perm` maps to y."""
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
    keys = epoch_keys(seed, name, epoch)
    n = shape.n
    chunk = shape.chunk
    slots = shape.lanes * shape.rounds_h
    m, within = divmod((ordinal - keys.rot) % n, chunk)
    full_chunks = n // chunk
    body_chunks = shape.body // chunk
    j = m  # the short chunk, number full_chunks, stays in its position
    if m < full_chunks:
        j = unpermuted(keys.p, full_chunks, m)
    if j < body_chunks:
        y = unpermuted(sub(keys.q, m), chunk, within)
        return _undealt(shape, chunk, shape.chunk_rounds, keys.r, j, y)

    tail = n - shape.body
    z = ((j - body_chunks) * chunk + within - keys.rot2) % tail
    size = tail // slots
    first = size * slots  # from here on a plain permutation
    if z >= first:
        return shape.body + first + unpermuted(keys.t, tail - first, z - first)
    m, within = divmod(z, size)
    y = unpermuted(sub(keys.q2, m), size, within)
    j = unpermuted(keys.p2, slots, m)
    return shape.body + _undealt(shape, size, 1, keys.r2, j, y)


def positions_of(shape: LaneShape, seed: int, name: str, epoch: int, ordinals: I64) -> I64:
    """Return `position_of` of each view ordinal (int64)."""
    is_shuffle = shape.chunk == shape.lanes == shape.rounds_h == 1 and shape.n > ARGSORT_MAX
    if not is_shuffle or len(ordinals) < FEW:
        each = [position_of(shape, seed, name, epoch, ordinal) for ordinal in ordinals.tolist()]
        return np.array(each, np.int64)
    keys = epoch_keys(seed, name, epoch)
    return unperm(keys.p, shape.n, (ordinals - keys.rot % shape.n) % shape.n)


def _undealt(shape: LaneShape, chunk: int, rounds: int, key_r: int, j: int, y: int) -> int:
    """Return the position that `_deal` maps to (j, y)."""
    lanes = shape.lanes
    h = shape.rounds_h
    number, d = divmod(j, lanes)
    kappa, lane = divmod(number, h)
    stagger = (lane * lanes + d) * chunk // (lanes * h)
    tau = (kappa * chunk + y - stagger) % (rounds * chunk)
    round_key = sub(sub(key_r, d), tau)
    u = tau * h + unpermuted(round_key, h, lane)
    return u * lanes + d
