import hashlib
import itertools
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.order.digests import delivered_digest, planned_digest, slot_identities
from loader.order.plan import make_plan
from loader.order.random.generators import sample_generator
from loader.order.sources.views import synthetic


def test_planned_digest_is_over_step_identities_and_ordinals(reference, properties):
    made = properties.two_sources_plan()
    slots = made.slots(3)
    data = (3).to_bytes(8, "little")
    for k, ordinal in zip(slots.source.tolist(), slots.ordinal.tolist(), strict=True):
        identity = made.sources[made.source_names[k]].view.identity
        text = b"".join(
            (len(part) + 1).to_bytes(4, "little") + b"s" + part for part in (b"identity", identity.encode())
        )
        data += hashlib.blake2b(text, digest_size=8).digest() + ordinal.to_bytes(8, "little")
    assert planned_digest(3, slots, made) == hashlib.blake2b(data, digest_size=8).hexdigest()


def test_planned_digest_sees_every_change(properties):
    made = properties.two_sources_plan()
    slots = made.slots(3)
    swapped = slots.ordinal.copy()
    swapped[[0, 1]] = swapped[[1, 0]]
    masked = slots.valid.copy()
    masked[-1] = False
    renamed = make_plan(
        {"photos": synthetic(4000, "q"), "web": synthetic(700, "web")}, seed=7, global_batch=48
    )
    digests = [
        planned_digest(3, slots, made),
        planned_digest(4, slots, made),
        planned_digest(3, replace(slots, ordinal=swapped), made),
        planned_digest(3, replace(slots, valid=masked), made),
        planned_digest(3, slots, renamed),
    ]
    assert len(set(digests)) == 5
    assert all(len(one) == 16 for one in digests)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(step=st.integers(0, 1000), cuts=st.lists(st.integers(0, 100), max_size=8))
def test_delivered_digest_adds_up_over_any_ranks(properties, step, cuts):
    """The sum of the parts' digests is the digest of the whole, however the slots are cut."""
    made = properties.two_sources_plan()
    slots = made.slots(step)
    size = len(slots)
    numbers = np.arange(size, dtype=np.int64)
    who = slot_identities(made, slots)
    crcs = (numbers * 2654435761) % 2**32

    def rank_digest(rows):
        return delivered_digest(step, numbers[rows], who[rows], crcs[rows])

    edges = [0, *sorted(cut % (size + 1) for cut in cuts), size]
    total = sum(rank_digest(slice(a, b)) for a, b in itertools.pairwise(edges)) % 2**64
    assert total == rank_digest(slice(0, size))
    assert rank_digest(slice(None, None, -1)) == total
    changed = crcs.copy()
    changed[0] ^= 1
    assert delivered_digest(step, numbers, who, changed) != total
    swapped = who.copy()
    swapped[[0, -1]] = swapped[[-1, 0]]
    if size > 1 and who[0] != who[-1]:
        assert delivered_digest(step, numbers, swapped, crcs) != total
    assert delivered_digest(step + 1, numbers, who, crcs) != total


def test_delivered_digest_is_the_formula(reference, properties):
    made = properties.two_sources_plan()
    who = slot_identities(made, made.slots(2))
    k = hashlib.blake2b(b"\x0a\x00\x00\x00sdelivered", digest_size=8).digest()
    k = reference.sub(int.from_bytes(k, "little"), 2)
    rows, crcs = np.array([5, 9]), np.array([2**32 - 1, 0])
    want = sum(
        reference.sub(reference.sub(reference.sub(k, slot), int(who[slot])), crc)
        for slot, crc in zip(rows.tolist(), crcs.tolist(), strict=True)
    )
    assert delivered_digest(2, rows, who[rows], crcs) == want % 2**64
    nothing = np.zeros(0, dtype=np.int64)
    assert delivered_digest(2, nothing, nothing.astype(np.uint64), nothing) == 0


def test_sample_randomness_follows_from_its_key_alone(reference):
    words = [reference.key(7, "photos", "augment", 2, 12345, word) for word in (0, 1)]
    want = np.random.Generator(np.random.Philox(key=np.array(words, dtype=np.uint64))).integers(0, 2**32, 8)
    again = sample_generator(7, "photos", 2, np.int64(12345)).integers(0, 2**32, 8)
    assert want.tolist() == again.tolist()


def test_no_two_samples_epochs_sources_or_seeds_share_randomness():
    who = [(s, n, e, o) for s in (41, 42, 43) for n in ("a", "b") for e in (0, 1, 2) for o in (0, 1, 2)]
    draws = {tuple(sample_generator(*one).integers(0, 2**63, 2).tolist()) for one in who}
    assert len(draws) == len(who)
