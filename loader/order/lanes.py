"""L1: where position i of an epoch lies. A bijection of [0, N) with a bounded working set and no table.

Positions are dealt round-robin to D lanes; a lane reads its chunks (c consecutive ordinals each) through
h interleaved slots, staggered over time, so that a job reads about D*h chunks at once and every chunk from
its beginning to its end. Formulas, letter by letter: docs/order.md, "Lanes".
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..errors import InvalidPlan
from .keys import I64, key, sub_array
from .permutation import perm
from .whole import whole

DEFAULT_LANES = 1024
DEFAULT_ROUNDS_H = 4
CHUNK_BYTES = 2 * 2**20  # a chunk's worth of bytes: one range read that amortises a request
CHUNKS_MIN = 65_536  # a source is cut into at least so many chunks, else the shuffle is too coarse
MAX_SAMPLES = 2**53
MAX_CHUNK = 2**30
MAX_LANES = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneShape:
    """What decides L1 besides the keys: n samples, c = `chunk`, D = `lanes` (a power of two), h."""

    n: int
    chunk: int
    lanes: int
    rounds_h: int

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
        """K: how many chunks each slot of a lane reads in an epoch."""
        return self.n // self.chunk // (self.lanes * self.rounds_h)

    @property
    def body(self) -> int:
        """How many positions of an epoch precede its tail."""
        return self.lanes * self.rounds_h * self.chunk_rounds * self.chunk

    @property
    def live_samples(self) -> int:
        """How many samples lie in the chunks that are being read at once (D*h*c, or all of the source)."""
        return min(self.n, self.lanes * self.rounds_h * self.chunk)


def frozen_shape(
    n: int, mean_sample_bytes: int, chunk: int | None = None, lanes: int | None = None
) -> LaneShape:
    """The shape that a plan freezes for a source, from its view alone (never from batch or world size).

    n: samples in the view. mean_sample_bytes: of the selected fields; 0 (a view without bytes) counts as 1.
    chunk, lanes: the caller's choice instead of the rule's. Raises InvalidPlan for values out of range.
    """
    lanes = None if lanes is None else whole("lanes", lanes, 1, MAX_LANES)  # numpy's integers are welcome
    if chunk is not None:
        chunk = whole("chunk", chunk, 1, MAX_CHUNK)
    else:
        chunk = min(CHUNK_BYTES // max(1, mean_sample_bytes), n // CHUNKS_MIN)
        chunk = 1 << (chunk.bit_length() - 1) if chunk >= 2 else 1
    if chunk == 1 and (lanes is None or lanes == 1):
        return LaneShape(n=n, chunk=1, lanes=1, rounds_h=1)  # a full shuffle
    lanes = DEFAULT_LANES if lanes is None else lanes
    return LaneShape(n=n, chunk=chunk, lanes=lanes, rounds_h=DEFAULT_ROUNDS_H)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochKeys:
    """The nine keys of one epoch of one source."""

    r: int
    p: int
    q: int
    r2: int
    p2: int
    q2: int
    t: int
    rot: int
    rot2: int


@lru_cache(maxsize=1024)
def epoch_keys(seed: int, name: str, epoch: int) -> EpochKeys:
    """All keys that L1 uses for this epoch; computed once, not per batch."""
    purposes = ("R", "P", "Q", "R2", "P2", "Q2", "T", "rot", "rot2")
    return EpochKeys(**{purpose.lower(): key(seed, name, purpose, epoch) for purpose in purposes})


def locate(shape: LaneShape, seed: int, name: str, epoch: int, positions: I64) -> I64:
    """View ordinals (int64, same length) at in-epoch positions (int64 [any], 0 <= position < shape.n)."""
    keys = epoch_keys(seed, name, epoch)
    n, body = shape.n, shape.body
    in_tail = positions >= body
    if not in_tail.any():
        ordinal = _body(shape, keys, positions)
    elif in_tail.all():
        ordinal = _tail(shape, keys, positions - body)
    else:
        ordinal = np.empty(positions.shape, dtype=np.int64)
        ordinal[~in_tail] = _body(shape, keys, positions[~in_tail])
        ordinal[in_tail] = _tail(shape, keys, positions[in_tail] - body)
    ordinal += keys.rot % n  # else the short last chunk would always come last
    ordinal -= (ordinal >= n) * n
    return ordinal


def _body(shape: LaneShape, keys: EpochKeys, i: I64) -> I64:
    chunks = shape.n // shape.chunk
    j, y = _deal(shape, shape.chunk, shape.chunk_rounds, keys.r, i)
    m = perm(keys.p, chunks, j)
    return m * shape.chunk + perm(sub_array(keys.q, m.astype(np.uint64)), shape.chunk, y)


def _tail(shape: LaneShape, keys: EpochKeys, i: I64) -> I64:
    """The N - body positions after the last full round: the same lanes over what is left, then a plain
    permutation of the few that do not fill the lanes; all rotated so that no ordinal is favoured."""
    slots = shape.lanes * shape.rounds_h
    tail = shape.n - shape.body
    chunk = tail // slots
    body = slots * chunk
    z = np.empty(i.shape, dtype=np.int64)
    rest = i >= body
    if not rest.all():
        j, y = _deal(shape, chunk, 1, keys.r2, i[~rest])
        m = perm(keys.p2, slots, j)
        z[~rest] = m * chunk + perm(sub_array(keys.q2, m.astype(np.uint64)), chunk, y)
    z[rest] = body + perm(keys.t, tail - body, i[rest] - body)
    z += keys.rot2 % tail
    z -= (z >= tail) * tail
    j = shape.body // shape.chunk + z // shape.chunk
    full_chunks = shape.n // shape.chunk
    at = j.copy()  # chunk number full_chunks, the short one, stays where it is
    full = j < full_chunks
    at[full] = perm(keys.p, full_chunks, j[full])
    return at * shape.chunk + z % shape.chunk


def _deal(shape: LaneShape, chunk: int, rounds: int, key_r: int, i: I64) -> tuple[I64, I64]:
    """Deals positions to lanes: (j, y) = which chunk in reading order, and which of its samples."""
    lanes, h = shape.lanes, shape.rounds_h
    u = i // lanes
    d = i - u * lanes
    tau = u // h
    round_keys = sub_array(sub_array(key_r, d.astype(np.uint64)), tau.astype(np.uint64))
    lane = perm(round_keys, h, u - tau * h)
    x = (tau + (lane * lanes + d) * chunk // (lanes * h)) % (rounds * chunk)
    kappa = x // chunk
    return d + lanes * (kappa * h + lane), x - kappa * chunk
