"""The position of a sample in an epoch: the inverse of `lanes.locate`. Letters are as in docs/order.md, "Lanes"."""

import numpy as np

from .keyed_permutation import ARGSORT_MAX, I64, sub, unperm, unperm_one
from .lanes import LaneShape, epoch_keys

FEW = 8
"""Number of ordinals below which computing them one by one is faster."""


def position_of(
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
    body = shape.body
    full_chunks = n // chunk
    body_chunks = body // chunk

    unrotated = (ordinal - keys.rot) % n
    m, within = divmod(unrotated, chunk)
    j = m  # the short chunk, number full_chunks, stays in its position
    if m < full_chunks:
        j = unperm_one(keys.p, full_chunks, m)
    if j < body_chunks:
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

    tail = n - body
    slots = shape.slots
    size = tail // slots  # of a small chunk
    rest_start = slots * size  # from here on a plain permutation
    rotated = (j - body_chunks) * chunk + within
    z = (rotated - keys.rot2) % tail
    if z >= rest_start:
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


def positions_of(
    shape: LaneShape,
    seed: int,
    name: str,
    epoch: int,
    ordinals: I64,
) -> I64:
    """Return `position_of` of each view ordinal (int64)."""
    n = shape.n
    is_shuffle = shape.chunk == shape.lanes == shape.rounds_h == 1
    if not is_shuffle or n <= ARGSORT_MAX or len(ordinals) < FEW:
        positions = []
        for ordinal in ordinals.tolist():
            position = position_of(shape, seed, name, epoch, ordinal)
            positions.append(position)
        return np.array(positions, np.int64)

    # With one lane and chunks of one sample, `locate` is the order of chunks and the rotation.
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
    """Return the position that `lanes._deal` maps to (j, y), sample y of a lane's j-th chunk."""
    lanes = shape.lanes
    h = shape.rounds_h
    number, d = divmod(j, lanes)
    kappa, slot = divmod(number, h)
    stagger = (slot * lanes + d) * chunk // shape.slots
    x = kappa * chunk + y
    tau = (x - stagger) % (rounds * chunk)
    lane_key = sub(key_r, d)
    round_key = sub(lane_key, tau)
    turn = unperm_one(round_key, h, slot)
    u = tau * h + turn
    return u * lanes + d
