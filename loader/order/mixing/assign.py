"""L4: the canonical order of a batch, and the part of it that each data-parallel rank gets.

A slot's group is its lane, d = (in-epoch position) mod D. Sorting a batch by bit-reversed group keeps the
slots of one lane - and so of the chunks that the lane reads - on as few ranks as possible at every world
size. Pure functions of (batch, world size): no messages between ranks.
"""

import numpy as np

from ...errors import InvalidRuntime
from ..random.keys import I64


def bit_reversed(value: I64, bits: int) -> I64:
    """The lowest `bits` bits of each value (int64, 0 <= value < 2^bits) in reverse order."""
    out = np.zeros_like(value)
    for bit in range(bits):
        out |= ((value >> bit) & 1) << (bits - 1 - bit)
    return out


def canonical_order(source: I64, position_in_epoch: I64, lanes: I64, batch: I64 | None = None) -> I64:
    """The stable sort of a batch's stream order by bitrev(d)/D, as indices int64 [B].

    source: int64 [B] index into lanes. position_in_epoch: int64 [B]. lanes: int64 [sources], D of each
    source, powers of two. The fractions are compared exactly, on the common scale max(D). batch: int64 [B], ascending
    from 0, the number of the batch that each slot is of where these are several: each is sorted by itself.
    """
    widest = int(lanes.max())
    scaled = np.zeros(len(source), dtype=np.int64)
    for count in set(lanes.tolist()):
        mine = lanes[source] == count
        group = position_in_epoch[mine] & (count - 1)
        scaled[mine] = bit_reversed(group, count.bit_length() - 1) * (widest // count)
    if batch is not None:
        scaled += batch * widest
    return np.argsort(scaled, kind="stable").astype(np.int64, copy=False)


def rank_slice(global_batch: int, rank: int, world_size: int) -> slice:
    """The canonical slots of one rank: [r*B//R, (r+1)*B//R). All ranks together make the batch, in order.

    Raises InvalidRuntime: world_size outside [1, global_batch], or rank outside [0, world_size).
    """
    if world_size < 1:
        raise InvalidRuntime(f"world_size = {world_size}: at least 1 is needed")
    if world_size > global_batch:
        raise InvalidRuntime(
            f"world_size = {world_size} is more than global_batch = {global_batch}: some ranks would get no "
            "slot; use a larger global batch or fewer data-parallel ranks"
        )
    if not 0 <= rank < world_size:
        raise InvalidRuntime(f"rank = {rank}: 0 <= rank < world_size = {world_size} is needed")
    return slice(rank * global_batch // world_size, (rank + 1) * global_batch // world_size)
