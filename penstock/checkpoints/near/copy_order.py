"""Choose the nodes that receive the copies of a node's near checkpoints."""

import hashlib
from collections.abc import Mapping, Sequence


def copy_order(
    own: str,
    addresses: Sequence[str],
    blocks: Mapping[str, str],
) -> list[str]:
    """Return the other nodes, the best first: the next block's, the blocks after it, then the own block's.

    A block shares a switch or a power feed, so that its nodes fail together. Within one block each node is the first
    choice of exactly one other; across blocks of one size too.

    own, addresses: HOST:PORT of this node, and of all. blocks: address -> block, "" or missing if unknown.
    """
    members: dict[str, list[str]] = {}
    for address in sorted(addresses, key=_hash):
        block = blocks.get(address, "")
        in_block = members.setdefault(block, [])
        in_block.append(address)
    own_block = blocks.get(own, "")
    names = sorted(members)
    first = names.index(own_block)
    after = names[first + 1 :]
    before = names[:first]
    own_members = members[own_block]
    position = own_members.index(own)
    order: list[str] = []
    # Blocks in a ring, so that no block receives the copies of two others.
    for name in [*after, *before]:
        others = members[name]
        # The node at the same position there: nodes of this block choose different ones.
        order += _rotate(others, position)
    neighbours = _rotate(own_members, position)
    # Last, since one switch may take both copies; still better than none. The first is this node.
    order += neighbours[1:]
    return order


def _rotate(addresses: Sequence[str], position: int) -> list[str]:
    begin = position % len(addresses)
    first = addresses[begin:]
    last = addresses[:begin]
    return [*first, *last]


def _hash(address: str) -> bytes:
    # Neighbours by name often share a switch, neighbours by hash do not.
    data = address.encode()
    digest = hashlib.blake2b(data, digest_size=8)
    return digest.digest()
