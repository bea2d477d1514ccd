"""Digests: 64 bits that say whether two runs planned, or were delivered, the same samples."""

import hashlib
import struct
from functools import lru_cache

import numpy as np

from ..content import PlanContent
from ..random.keys import I64, U64, hash_fields, sub_array
from .slots import Slots

_MASKED = np.uint64(2**64 - 1)  # stands for the ordinal of a padded slot


@lru_cache(maxsize=4096)
def identity_hash(identity: str) -> int:
    """64 bits for a version's id (`view.identity`), framed as keys are."""
    return hash_fields("identity", identity)


def slot_identities(plan: PlanContent, slots: Slots) -> U64:
    """uint64 [B]: a hash per slot of (version id, version ordinal), for `delivered_digest`."""
    return sub_array(_version_hashes(plan, slots), slots.ordinal.astype(np.uint64))


def planned_digest(step: int, slots: Slots, plan: PlanContent) -> str:
    """16 hex digits over a step's planned identities in canonical order; costs no reads.

    blake2b (digest size 8) over u64 step, then per slot u64 identity hash and u64 version ordinal, all
    little-endian; a padded slot has ordinal 2^64 - 1. The same for every rank and world size.
    """
    pairs = np.empty((len(slots), 2), dtype="<u8")
    pairs[:, 0] = _version_hashes(plan, slots)
    pairs[:, 1] = np.where(slots.valid, slots.ordinal.astype(np.uint64), _MASKED)
    return hashlib.blake2b(struct.pack("<Q", step) + pairs.tobytes(), digest_size=8).hexdigest()


def delivered_digest(step: int, slot_numbers: I64, identities: U64, crcs: I64) -> int:
    """The rank-local digest of what was read: the sum modulo 2^64 of a hash per slot.

    slot_numbers: int64 [n], canonical slot numbers in [0, B). identities: uint64 [n], of the samples that
    were delivered (a substitute's own identity). crcs: int64 [n], CRC32C of the bytes read, 0 <= crc < 2^63.
    The sum over all ranks, modulo 2^64, is the same for every world size. An empty part gives 0.
    """
    steps = np.full(len(slot_numbers), step, np.uint64)
    return int(delivered_hashes(steps, slot_numbers, identities, crcs).sum(dtype=np.uint64))


def delivered_hashes(steps: U64, slot_numbers: I64, identities: U64, crcs: I64) -> U64:
    """uint64 [n]: the hash per slot that `delivered_digest` adds up, of slots of any steps. steps: uint64 [n]."""
    hashed = sub_array(sub_array(hash_fields("delivered"), steps), slot_numbers.astype(np.uint64))
    hashed = sub_array(hashed, identities.astype(np.uint64))
    return sub_array(hashed, crcs.astype(np.uint64))


def _version_hashes(plan: PlanContent, slots: Slots) -> U64:
    by_source = [identity_hash(one.view.identity) for one in plan.sources.values()]
    return np.array(by_source, dtype=np.uint64)[slots.source]
