"""L1: the sample at position i of an epoch. A bijection of [0, N) with a bounded working set and no table.

Positions are dealt round-robin to D lanes. A lane reads its chunks (c consecutive ordinals each) through h interleaved
slots, staggered over time. So a job reads about D*h chunks at once, and each chunk from beginning to end.
Formulas: docs/order.md, "Lanes".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidPlan
from ...keywords import check_whole_number
from .keyed_permutation import (
    I64,
    Keys,
    Sizes,
    key,
    perm,
    select_rows,
    sub_array,
)
from .plan_hash import int_in_range

LIVE_CHUNK_BYTES = 2**31
"""Approximate decoded bytes of the chunks that a source reads side by side."""
DEFAULT_LANES = 1024
DEFAULT_ROUNDS_H = 4
CHUNK_BYTES = 2 * 2**20  # one range read of this size amortises a request
CHUNKS_MIN = 65_536  # fewest chunks per source: fewer shuffle too coarsely
MAX_SAMPLES = 2**53
MAX_CHUNK = 2**30
MAX_LANES = 2**16


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
        check_whole_number("n", self.n, 1, MAX_SAMPLES, InvalidPlan)
        check_whole_number("chunk", self.chunk, 1, MAX_CHUNK, InvalidPlan)
        check_whole_number("lanes", self.lanes, 1, MAX_LANES, InvalidPlan)
        check_whole_number("h", self.rounds_h, 1, MAX_LANES, InvalidPlan)
        is_power_of_two = self.lanes & (self.lanes - 1) == 0
        if not is_power_of_two:
            raise InvalidPlan(
                f"lanes = {self.lanes}: a power of two is needed, such as {DEFAULT_LANES}",
                what="lanes",
                given=self.lanes,
                accepted="a power of two",
            )

    @property
    def slots(self) -> int:
        """Slots of all lanes: D*h."""
        return self.lanes * self.rounds_h

    @property
    def chunk_rounds(self) -> int:
        """K: chunks that each slot of a lane reads in an epoch."""
        full_chunks = self.n // self.chunk
        return full_chunks // self.slots

    @property
    def body(self) -> int:
        """Positions in an epoch before its tail."""
        return self.slots * self.chunk_rounds * self.chunk

    @property
    def live_samples(self) -> int:
        """Samples in the chunks read at once (D*h*c, or the whole source)."""
        return min(self.n, self.slots * self.chunk)


def choose_shape(
    n: int,
    mean_sample_bytes: int,
    chunk: int | None = None,
    lanes: int | None = None,
    decoded: tuple[int, int] | None = None,
) -> LaneShape:
    """Return the shape that a plan freezes. It depends on the view, never on batch or world size.

    n: samples in the view. mean_sample_bytes: of the selected fields; 0 (a view without bytes) counts as 1.
    chunk, lanes: override the computed values.
    decoded: (samples, bytes) per stored chunk that is decoded whole; None for samples read one by one.

    Raises InvalidPlan for values out of range.
    """
    if lanes is not None:
        lanes = int_in_range("lanes", lanes, 1, MAX_LANES)  # accepts numpy's integers
    if decoded is not None and chunk is None and lanes is None:
        rows, nbytes = decoded
        # Few chunks need no bound: the usual rule applies to them.
        if rows > 1 and not all_chunks_fit(n, rows, nbytes):
            chunk, lanes = _bound_lanes(rows, nbytes)

    if chunk is not None:
        chunk = int_in_range("chunk", chunk, 1, MAX_CHUNK)
    else:
        samples_per_request = CHUNK_BYTES // max(1, mean_sample_bytes)
        samples_per_chunk = min(samples_per_request, n // CHUNKS_MIN)
        chunk = _floor_power_of_two(max(1, samples_per_chunk))

    is_full_shuffle = chunk == 1 and (lanes is None or lanes == 1)  # no samples to read together
    if is_full_shuffle:
        return LaneShape(
            n=n,
            chunk=1,
            lanes=1,
            rounds_h=1,
        )
    if lanes is None:
        lanes = DEFAULT_LANES
    return LaneShape(
        n=n,
        chunk=chunk,
        lanes=lanes,
        rounds_h=DEFAULT_ROUNDS_H,
    )


def all_chunks_fit(
    n: int,
    rows: int,
    nbytes: int,
) -> bool:
    """Return whether all stored chunks of n samples may be decoded at once.

    rows, nbytes: samples and bytes per stored chunk.
    """
    chunks = -(-n // rows)  # rounded up
    return chunks * nbytes <= LIVE_CHUNK_BYTES


def _bound_lanes(rows: int, nbytes: int) -> tuple[int, int]:
    """Return the order's chunk and lanes that keep the decoded stored chunks within `LIVE_CHUNK_BYTES`.

    rows, nbytes: samples and bytes per stored chunk.
    """
    power_of_two_from_rows = 1 << (rows - 1).bit_length()
    chunk = min(MAX_CHUNK, power_of_two_from_rows)
    # A lane reads h chunks side by side, each from up to chunk / rows + 1 stored chunks. Multiplied by `rows`, its
    # bytes are a whole number.
    lane_bytes_times_rows = DEFAULT_ROUNDS_H * nbytes * (chunk + rows)
    lanes = LIVE_CHUNK_BYTES * rows // lane_bytes_times_rows
    lanes = min(max(lanes, 1), DEFAULT_LANES)
    return chunk, _floor_power_of_two(lanes)


def _floor_power_of_two(value: int) -> int:
    """Return the largest power of two that is at most value; value >= 1."""
    return 1 << (value.bit_length() - 1)


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


_PURPOSES = ("R", "P", "Q", "R2", "P2", "Q2", "T", "rot", "rot2")
"""As docs/order.md names the keys; an attribute of `EpochKeys` has the lower-case name."""


@lru_cache(maxsize=1024)
def epoch_keys(
    seed: int,
    name: str,
    epoch: int,
) -> EpochKeys:
    keys: dict[str, int] = {}
    for purpose in _PURPOSES:
        keys[purpose.lower()] = key(seed, name, purpose, epoch)
    return EpochKeys(**keys)


class PositionNumbers(NamedTuple):
    """The `LaneShape` and `EpochKeys` of positions in one or several epochs, by their names.

    Each is a single number if it is the same for all positions, else an array [positions].
    """

    n: Sizes
    chunk: Sizes
    lanes: Sizes
    rounds_h: Sizes
    chunk_rounds: Sizes
    body: Sizes
    r: Keys
    p: Keys
    q: Keys
    r2: Keys
    p2: Keys
    q2: Keys
    t: Keys
    rot: Keys
    rot2: Keys

    def select(self, rows: NDArray[np.bool_]) -> "PositionNumbers":
        return PositionNumbers._make(select_rows(number, rows) for number in self)


_shape_numbers = attrgetter(*PositionNumbers._fields[:6])
_key_numbers = attrgetter(*PositionNumbers._fields[6:])


def locate(
    shape: LaneShape,
    seed: int,
    name: str,
    epoch: int,
    positions: I64,
) -> I64:
    """Return view ordinals (int64, same length) at in-epoch positions (int64 [any], 0 <= position < shape.n)."""
    keys = epoch_keys(seed, name, epoch)
    numbers = PositionNumbers(*_shape_numbers(shape), *_key_numbers(keys))
    return _locate(numbers, positions)


def locate_each(
    seed: int,
    epochs: Sequence[tuple[LaneShape, str, int]],
    epoch_index: I64,
    positions: I64,
) -> I64:
    """Return view ordinals as `locate` does, for positions in several epochs of any sources.

    epochs: (shape of the source, its name, number of the epoch) of each.
    epoch_index: int64, index into `epochs` for each position.
    """
    if len(epochs) == 1:
        shape, name, epoch = epochs[0]
        return locate(shape, seed, name, epoch, positions)

    shape_rows = []
    key_rows = []
    for shape, name, epoch in epochs:
        keys = epoch_keys(seed, name, epoch)
        shape_rows.append(_shape_numbers(shape))
        key_rows.append(_key_numbers(keys))
    shape_table = np.array(shape_rows, np.int64)  # [epochs, 6]
    key_table = np.array(key_rows, np.uint64)  # [epochs, 9]

    is_shared = (shape_table == shape_table[0]).all(axis=0)  # [6]: whether all epochs have the same number
    numbers: list[Any] = []  # int | int64 [positions], then uint64 [positions]
    for column, shared in zip(shape_table.T, is_shared.tolist(), strict=True):
        if shared:  # a number is much faster than an array: numpy divides by it with multiplications
            numbers.append(int(column[0]))
        else:
            numbers.append(column[epoch_index])
    numbers += [column[epoch_index] for column in key_table.T]
    return _locate(PositionNumbers._make(numbers), positions)


def _locate(numbers: PositionNumbers, positions: I64) -> I64:
    """Return the view ordinals (int64) at in-epoch positions."""
    in_tail = positions >= numbers.body
    if not in_tail.any():
        ordinal = _locate_in_body(numbers, positions)
    elif in_tail.all():
        ordinal = _locate_in_tail(numbers, positions - numbers.body)
    else:
        ordinal = np.empty(positions.shape, dtype=np.int64)
        in_body = ~in_tail
        body = numbers.select(in_body)
        ordinal[in_body] = _locate_in_body(body, positions[in_body])
        tail = numbers.select(in_tail)
        ordinal[in_tail] = _locate_in_tail(tail, positions[in_tail] - tail.body)
    return _rotate(ordinal, numbers.rot, numbers.n)  # otherwise the short last chunk would always come last


def _rotate(
    values: I64,
    key: Keys,
    n: Sizes,
) -> I64:
    """Return `(values + key) mod n`, in the memory of `values`; 0 <= values < n."""
    if isinstance(key, int):
        values += key % n
    else:
        shift = key % np.asarray(n, np.uint64)  # keys reach 2^64: int64 only below n
        values += shift.astype(np.int64)
    values -= (values >= n) * n
    return values


def _locate_in_body(numbers: PositionNumbers, i: I64) -> I64:
    """Return the ordinals, not yet rotated, at positions i before the tail. Letters: docs/order.md, "Lanes"."""
    chunk = numbers.chunk
    full_chunks = numbers.n // chunk
    j, y = _deal(
        numbers,
        i,
        chunk=chunk,
        rounds=numbers.chunk_rounds,
        key_r=numbers.r,
    )
    m = perm(numbers.p, full_chunks, j)  # the chunk read as number j
    chunk_keys = sub_array(numbers.q, m.astype(np.uint64))
    within = perm(chunk_keys, chunk, y)
    return m * chunk + within


def _locate_in_tail(numbers: PositionNumbers, i: I64) -> I64:
    """Return the ordinals, not yet rotated, at positions i, which count from the tail's beginning.

    Letters are as in docs/order.md, "Lanes".
    """
    tail = numbers.n - numbers.body  # samples
    z = _numbers_in_tail(numbers, i, tail)
    z = _rotate(z, numbers.rot2, tail)

    # The tail's samples lie in the chunks that come last in the order of chunks.
    chunk = numbers.chunk
    body_chunks = numbers.body // chunk
    full_chunks = numbers.n // chunk
    j = body_chunks + z // chunk
    m = j.copy()  # the short chunk, number full_chunks, stays in its position
    is_full = j < full_chunks
    order_keys = select_rows(numbers.p, is_full)
    m[is_full] = perm(order_keys, select_rows(full_chunks, is_full), j[is_full])
    return m * chunk + z % chunk


def _numbers_in_tail(
    numbers: PositionNumbers,
    i: I64,
    tail: Sizes,
) -> I64:
    """Return z, each sample's number among the tail's samples, not yet rotated. tail: number of these samples.

    The slots of the same lanes read the tail, one small chunk each. A plain permutation orders the last few positions,
    which fill no chunks.

    i: int64, positions that count from the tail's beginning. Letters are as in docs/order.md, "Lanes".
    """
    slots = numbers.lanes * numbers.rounds_h
    size = tail // slots  # c2: samples of a small chunk
    rest_start = slots * size  # body2: first position that fills no small chunk
    z = np.empty(i.shape, dtype=np.int64)

    in_rest = i >= rest_start
    in_lanes = ~in_rest
    if in_lanes.any():
        in_chunks = numbers.select(in_lanes)
        chunk = select_rows(size, in_lanes)
        j, y = _deal(
            in_chunks,
            i[in_lanes],
            chunk=chunk,
            rounds=1,
            key_r=in_chunks.r2,
        )
        m = perm(in_chunks.p2, select_rows(slots, in_lanes), j)  # the small chunk read as number j
        chunk_keys = sub_array(in_chunks.q2, m.astype(np.uint64))
        z[in_lanes] = m * chunk + perm(chunk_keys, chunk, y)

    first = select_rows(rest_start, in_rest)
    rest_keys = select_rows(numbers.t, in_rest)
    rest_size = select_rows(tail - rest_start, in_rest)
    rest_positions = i[in_rest] - first
    z[in_rest] = first + perm(rest_keys, rest_size, rest_positions)
    return z


def _deal(
    numbers: PositionNumbers,
    i: I64,
    *,
    chunk: Sizes,
    rounds: Sizes,
    key_r: Keys,
) -> tuple[I64, I64]:
    """Deal positions to lanes. Return (j, y): the number of the chunk in reading order, and the sample in it.

    rounds: chunks that a slot reads. Letters are as in docs/order.md, "Lanes".
    """
    lanes = numbers.lanes
    h = numbers.rounds_h
    u: I64 = np.floor_divide(i, lanes)
    d = i - u * lanes  # the lane; `i % lanes` would divide a second time
    tau = u // h  # the lane's round, in which each of its h slots reads one sample
    lane_keys = sub_array(key_r, d.astype(np.uint64))
    round_keys = sub_array(lane_keys, tau.astype(np.uint64))
    slot = perm(round_keys, h, u - tau * h)

    # numpy reuses the memory of large arrays without a name: the stagger as a name of its own costs 8 %.
    x = (slot * lanes + d) * chunk // (lanes * h)  # the stagger: slots begin their chunks at a level rate
    x += tau
    x %= rounds * chunk  # the slot's sample in its sequence of chunks
    kappa: I64 = np.floor_divide(x, chunk)
    j = d + lanes * (kappa * h + slot)
    return j, x - kappa * chunk
