"""Hash the samples of a step: as planned, for a run's state, and as delivered, for a proof over all ranks."""

import hashlib
import struct
from functools import lru_cache

import numpy as np

from .content import PlanContent
from .random.keyed_permutation import I64, U64, hash_fields, sub_array
from .slots import Slots

_PADDING = np.uint64(2**64 - 1)  # ordinal of a padded slot


@lru_cache(maxsize=4096)
def identity_hash(identity: str) -> int:
    """Return a 64-bit hash of a version's id (`view.identity`), framed like the fields of `key`."""
    return hash_fields("identity", identity)


def slot_identities(plan: PlanContent, slots: Slots) -> U64:
    """Return uint64 [B]: each slot's hash of (version id, version ordinal), for `delivered_digest`."""
    versions = _version_hashes(plan, slots)
    ordinals = slots.ordinal.astype(np.uint64)
    return sub_array(versions, ordinals)


def planned_digest(
    step: int,
    slots: Slots,
    plan: PlanContent,
) -> str:
    """Return a hash of a step's planned identities in canonical order, as 16 hex digits. Reads nothing.

    blake2b (digest size 8) over u64 step, then per slot u64 identity hash and u64 version ordinal, all little-endian; a
    padded slot has ordinal 2^64 - 1.
    """
    n_slots = len(slots)
    ordinals = slots.ordinal.astype(np.uint64)
    pairs = np.empty((n_slots, 2), dtype="<u8")  # little-endian on every machine
    pairs[:, 0] = _version_hashes(plan, slots)
    pairs[:, 1] = np.where(slots.valid, ordinals, _PADDING)
    digest = hashlib.blake2b(digest_size=8)
    digest.update(struct.pack("<Q", step))
    digest.update(pairs.tobytes())
    return digest.hexdigest()


def delivered_digest(
    step: int,
    slot_numbers: I64,
    identities: U64,
    crcs: I64,
) -> int:
    """Return this rank's digest of the data it read: the sum of its slots' hashes modulo 2^64.

    The sum over all ranks, modulo 2^64, is the same for every world size.

    slot_numbers: int64 [n], canonical slot numbers in [0, B).
    identities: uint64 [n], identities of the delivered samples (a substitute has its own).
    crcs: int64 [n], CRC-32C over all data read for the slot, as in `DeliveredSamples.crcs`.
    """
    steps = np.full(len(slot_numbers), step, np.uint64)
    hashes = slot_hashes(steps, slot_numbers, identities, crcs)
    # A sum, so that the ranks' digests add up in any order. uint64 wraps around: this is the modulo.
    total = hashes.sum(dtype=np.uint64)
    return int(total)


def slot_hashes(
    steps: U64,
    slot_numbers: I64,
    identities: U64,
    crcs: I64,
) -> U64:
    """Return uint64 [n]: the slot hashes that `delivered_digest` sums. steps: uint64 [n], each slot's step.

    Other arguments: as for `delivered_digest`.
    """
    hashed = sub_array(hash_fields("delivered"), steps)
    hashed = sub_array(hashed, slot_numbers.astype(np.uint64))
    hashed = sub_array(hashed, identities.astype(np.uint64))
    return sub_array(hashed, crcs.astype(np.uint64))


def _version_hashes(plan: PlanContent, slots: Slots) -> U64:
    """Return uint64 [B]: the `identity_hash` of each slot's version."""
    hashes = [identity_hash(source.view.identity) for source in plan.sources.values()]
    by_source = np.array(hashes, dtype=np.uint64)
    return by_source[slots.source]
