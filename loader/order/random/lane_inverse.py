"""The position of a sample in an epoch: the inverse of `lanes.locate`. Letters are as in docs/order.md, "Lanes"."""

import numpy as np

from .keyed_permutation import ARGSORT_MAX, I64, sub, unperm, unperm_one
from .lanes import EpochKeys, LaneShape, epoch_keys

MIN_TOGETHER = 8
"""Fewer ordinals are faster one by one than in an array."""


def find_position(
    shape: LaneShape,
    seed: int,
    name: str,
    epoch: int,
    ordinal: int,
) -> int:
    """Return the in-epoch position at which `locate` returns this view ordinal."""
    keys = epoch_keys(seed, name, epoch)
    n = shape.n
    chunk = shape.chunk
    full_chunks = n // chunk
    body_chunks = shape.body // chunk

    # The chunk that holds the sample, m, and its number in reading order, j.
    unrotated = (ordinal - keys.rot) % n
    m, within = divmod(unrotated, chunk)
    j = m  # the short chunk, number full_chunks, stays in its position
    if m < full_chunks:
        j = unperm_one(keys.p, full_chunks, m)

    if j >= body_chunks:
        number_in_tail = (j - body_chunks) * chunk + within
        return _find_tail_position(shape, keys, number_in_tail)
    chunk_key = sub(keys.q, m)
    y = unperm_one(chunk_key, chunk, within)
    return _undeal(
        shape,
        j=j,
        y=y,
        chunk=chunk,
        rounds=shape.chunk_rounds,
        key_r=keys.r,
    )


def _find_tail_position(
    shape: LaneShape,
    keys: EpochKeys,
    number_in_tail: int,
) -> int:
    """Return the in-epoch position of a sample by its number among the tail's samples (`lanes._numbers_in_tail`)."""
    body = shape.body
    tail = shape.n - body  # samples
    slots = shape.slots
    size = tail // slots  # of the tail's small chunks
    rest_start = slots * size  # the samples from here on fill no chunk
    z = (number_in_tail - keys.rot2) % tail
    if z >= rest_start:  # ordered by a plain permutation
        rest_position = unperm_one(keys.t, tail - rest_start, z - rest_start)
        return body + rest_start + rest_position

    m, within = divmod(z, size)
    chunk_key = sub(keys.q2, m)
    y = unperm_one(chunk_key, size, within)
    j = unperm_one(keys.p2, slots, m)
    tail_position = _undeal(
        shape,
        j=j,
        y=y,
        chunk=size,
        rounds=1,
        key_r=keys.r2,
    )
    return body + tail_position


def find_positions(
    shape: LaneShape,
    seed: int,
    name: str,
    epoch: int,
    ordinals: I64,
) -> I64:
    """Return `find_position` of each view ordinal (int64)."""
    n = shape.n
    is_shuffle = shape.chunk == shape.lanes == shape.rounds_h == 1
    has_network = n > ARGSORT_MAX  # `unperm` inverts only the network
    if not is_shuffle or not has_network or len(ordinals) < MIN_TOGETHER:
        positions = []
        for ordinal in ordinals.tolist():
            position = find_position(shape, seed, name, epoch, ordinal)
            positions.append(position)
        return np.array(positions, np.int64)

    # With one lane and chunks of one sample, `locate` is the permutation of chunks, then the rotation.
    keys = epoch_keys(seed, name, epoch)
    rotation = keys.rot % n
    chunks = (ordinals - rotation) % n
    return unperm(keys.p, n, chunks)


def _undeal(
    shape: LaneShape,
    *,
    j: int,
    y: int,
    chunk: int,
    rounds: int,
    key_r: int,
) -> int:
    """Return the position that `lanes._deal` maps to (j, y): sample y of the chunk that is read as number j."""
    lanes = shape.lanes
    h = shape.rounds_h
    chunk_in_lane, d = divmod(j, lanes)
    kappa, slot = divmod(chunk_in_lane, h)  # the slot's chunk number kappa
    stagger = (slot * lanes + d) * chunk // shape.slots
    x = kappa * chunk + y  # the slot's sample in its sequence of chunks
    tau = (x - stagger) % (rounds * chunk)  # the lane's round, in which each of its h slots reads one sample
    lane_key = sub(key_r, d)
    round_key = sub(lane_key, tau)
    number_in_round = unperm_one(round_key, h, slot)
    u = tau * h + number_in_round
    return u * lanes + d
