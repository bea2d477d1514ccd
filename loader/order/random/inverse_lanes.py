"""L1 the other way: the position in an epoch that holds an ordinal; one at a time, in Python's integers.

Each function undoes one of `keyed_permutation` or `lanes`. The cost of a position does not grow with N.
"""

from math import isqrt

from .keyed_permutation import ARGSORT_MAX, FEISTEL_ROUNDS, sub
from .lanes import LaneShape, epoch_keys


def unpermuted(k: int, n: int, y: int) -> int:
    """Return the x in [0, n) that `keyed_permutation.perm` sends to y."""
    if n == 1:
        return 0
    if n <= ARGSORT_MAX:
        wanted = sub(k, y)
        return sum(sub(k, other) < wanted for other in range(n))
    a = isqrt(n - 1) + 1
    b = -(-n // a)
    keys = [sub(k, r) for r in range(FEISTEL_ROUNDS)]
    while True:  # back along the cycle
        left, right = divmod(y, b)
        for r in reversed(range(FEISTEL_ROUNDS)):
            if r % 2 == 0:
                left = (left - sub(keys[r], right)) % a
            else:
                right = (right - sub(keys[r], left)) % b
        y = left * b + right
        if y < n:
            return y


def position_of(shape: LaneShape, seed: int, name: str, epoch: int, ordinal: int) -> int:
    """Return the position in an epoch at which `lanes.locate` has a view ordinal, 0 <= ordinal < shape.n."""
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


def _undealt(shape: LaneShape, chunk: int, rounds: int, key_r: int, j: int, y: int) -> int:
    """Return the position that `lanes` deals to sample y of the chunk that is read as number j."""
    lanes, h = shape.lanes, shape.rounds_h
    number, d = divmod(j, lanes)
    kappa, lane = divmod(number, h)
    stagger = (lane * lanes + d) * chunk // (lanes * h)
    tau = (kappa * chunk + y - stagger) % (rounds * chunk)
    return (tau * h + unpermuted(sub(sub(key_r, d), tau), h, lane)) * lanes + d
