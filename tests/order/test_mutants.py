"""Plants a bug in the order and shows that the property which should catch it does.

A property that holds of a broken order is no property. Each case patches the real code, runs one of the
functions of properties.py that the other tests run, and expects its AssertionError.
"""

import bisect
from dataclasses import replace

import numpy as np
import pytest

from loader.order import bucket, plan, source, synthetic
from loader.order import plan as plan_module
from loader.order.building import grow
from loader.order.mixing import interleave, mixture
from loader.order.random import keyed_permutation, lanes
from loader.order.sources import best_fit as pack_table
from loader.order.sources import growth
from loader.order.sources.quarantine import Quarantine
from loader.order.steps import slots, state
from loader.order.steps import slots as places

real_key = keyed_permutation.key
real_perm = keyed_permutation.perm
real_rounds = keyed_permutation._rounds


@pytest.fixture(autouse=True)
def fresh_keys():
    lanes.epoch_keys.cache_clear()
    mixture.quota_table.cache_clear()
    yield
    lanes.epoch_keys.cache_clear()
    mixture.quota_table.cache_clear()


def six_rounds(patch):
    patch.setattr(keyed_permutation, "FEISTEL_ROUNDS", 6)


def no_cycle_walking(patch):
    def once(k, n, x):
        a = int(np.ceil(np.sqrt(n)))
        b = -(-n // a)
        ks = [
            keyed_permutation.sub(k, r) if isinstance(k, int) else keyed_permutation.sub_array(k, r)
            for r in range(8)
        ]
        return (real_rounds(ks, a, b, x.astype(np.uint64)) % n).astype(np.int64)

    patch.setattr(keyed_permutation, "_feistel", once)


def wrapping_sum(patch):
    patch.setattr(keyed_permutation, "_add_mod", lambda value, addend, modulus: (value + addend) % modulus)


def smaller_argsort(patch):
    patch.setattr(keyed_permutation, "ARGSORT_MAX", 127)


def seed_plus_epoch(patch):
    patch.setattr(lanes, "key", lambda seed, name, purpose, epoch: real_key(seed + epoch, name, purpose, 0))


def name_not_in_key(patch):
    patch.setattr(lanes, "key", lambda seed, name, purpose, epoch: real_key(seed, "", purpose, epoch))


def epoch_not_in_key(patch):
    patch.setattr(lanes, "key", lambda seed, name, purpose, epoch: real_key(seed, name, purpose, 0))


def one_key_for_two_purposes(patch):
    patch.setattr(
        lanes, "key", lambda seed, name, purpose, epoch: real_key(seed, name, purpose.rstrip("2"), epoch)
    )


def no_rotation(patch):
    def without(seed, name, purpose, epoch):
        return 0 if purpose == "rot" else real_key(seed, name, purpose, epoch)

    patch.setattr(lanes, "key", without)


def no_rotation_of_the_tail(patch):
    def without(seed, name, purpose, epoch):
        return 0 if purpose == "rot2" else real_key(seed, name, purpose, epoch)

    patch.setattr(lanes, "key", without)


def tail_in_the_last_chunk_too(patch):
    """body one round too long: positions run over the end."""
    patch.setattr(
        lanes.LaneShape,
        "chunk_rounds",
        property(lambda shape: -(-(shape.n // shape.chunk) // (shape.lanes * shape.rounds_h))),
    )


def deal_with(patch, place):
    """Replaces how dealt positions become (j, y); place(shape, chunk, rounds, lane, d, tau) -> x."""

    def deal(shape, chunk, rounds, key_r, i):
        d, u = i % shape.lanes, i // shape.lanes
        tau = u // shape.rounds_h
        ks = keyed_permutation.sub_array(
            keyed_permutation.sub_array(key_r, d.astype(np.uint64)), tau.astype(np.uint64)
        )
        lane = keyed_permutation.perm(ks, shape.rounds_h, u % shape.rounds_h)
        x = place(shape, chunk, rounds, lane, d, tau)
        return d + shape.lanes * (x // chunk * shape.rounds_h + lane), x % chunk

    patch.setattr(lanes, "_deal", deal)


def lanes_not_staggered(patch):
    deal_with(patch, lambda shape, chunk, rounds, lane, d, tau: tau % (rounds * chunk))


def chunks_read_at_a_stretch(patch):
    """All h slots of a lane read one chunk together."""

    def deal(shape, chunk, rounds, key_r, i):
        d, u = i % shape.lanes, i // shape.lanes
        return d + shape.lanes * (u // chunk), u % chunk

    patch.setattr(lanes, "_deal", deal)


def lane_by_hash_alone(patch):
    """The slot of a lane is drawn, not permuted: some slots are read twice, some never."""

    def draw(k, n, x):
        return (
            (k % np.uint64(n)).astype(np.int64)
            if isinstance(k, np.ndarray) and n <= 8
            else real_perm(k, n, x)
        )

    patch.setattr(lanes, "perm", draw)


def no_shuffle_of_chunks(patch):
    def by_position(k, n, x):
        return x if isinstance(k, int) else real_perm(k, n, x)

    patch.setattr(lanes, "perm", by_position)


def sources_in_blocks(patch):
    def blocks(quotas):
        table = np.repeat(np.arange(len(quotas)), quotas)
        return table, np.concatenate([np.arange(q) for q in quotas])

    patch.setattr(mixture, "quota_table", blocks)


def earliest_deadline_without_release(patch):
    """The quota method without `count*W < t*q`: a large source runs ahead of its share."""

    def eager(quotas):
        counts, table, rank = [0] * len(quotas), [], []
        for _ in range(sum(quotas)):
            k = min((k for k, q in enumerate(quotas) if counts[k] < q), key=lambda k: -quotas[k])
            table.append(k)
            rank.append(counts[k])
            counts[k] += 1
        return np.array(table), np.array(rank)

    patch.setattr(mixture, "quota_table", eager)


def bases_not_advanced(patch):
    patch.setattr(mixture, "used_before", lambda *_: {})


def bases_without_the_begun_cycle(patch):
    def whole_cycles(segment, names, step, global_batch):
        cycle = (step - segment.start_step) * global_batch // sum(segment.weights.values())
        return {name: segment.base.get(name, 0) + cycle * segment.weights.get(name, 0) for name in names}

    patch.setattr(mixture, "used_before", whole_cycles)


def bases_of_the_first_batch(patch):
    """A ramp's later segments counted as if every step before had the first batch."""
    real = mixture.used_before
    patch.setattr(mixture, "used_before", lambda segment, names, step, batch: real(segment, names, step, 24))


def always_the_first_batch(patch):
    patch.setattr(mixture.Stream, "batch_in", lambda stream, segment: stream.batch)


def a_ramp_forgets_the_weights(patch):
    """From a change of the batch on, the weights of the first segment again."""
    real = plan.cut_at

    def forgetful(steps, starts):
        return [(start, dict(steps).get(start, steps[0][1])) for start, _ in real(steps, starts)]

    patch.setattr(plan, "cut_at", forgetful)


def new_samples_too_early(patch):
    """The share of new samples rounded up: the last old one would come after the end."""
    real = growth.Stage.new_before
    patch.setattr(growth.Stage, "new_before", lambda stage, j: real(stage, j + 1))


def new_samples_first(patch):
    patch.setattr(growth.Stage, "new_before", lambda stage, j: np.minimum(j, stage.delta))


def a_second_growth_forgets_the_first(patch):
    """What the first growth had not yet mixed in is left out."""
    real = growth.Stage.after

    def after(stage, start, n, delta):
        return real(growth.Stage(start=0, origin=0, epoch=0, n=stage.n), start, n, delta)

    patch.setattr(growth.Stage, "after", after)


def the_old_epoch_begins_again(patch):
    """The rest of the old epoch is mixed from its first sample on."""
    real = growth.GrownStream.places

    def again(stream, position):
        number, of_delta, epoch, inside = real(stream, position)
        first = stream.stages[1].start % stream.stages[0].n if len(stream.stages) > 1 else 0
        old = (number == 0) & (position >= first)
        return number, of_delta, epoch, np.where(old, inside - first, inside)

    patch.setattr(growth.GrownStream, "places", again)


def ordinals_of_the_first_version_for_ever(patch):
    patch.setattr(
        places,
        "earlier_ordinals",
        lambda growths, number, ordinals: [(at, ordinals) for at in range(number + 1)],
    )


def lists_of_the_first_version_alone(patch):
    """Samples that came with a growth are in no list."""
    real = growth.earlier_ordinals
    patch.setattr(
        places, "earlier_ordinals", lambda *given: [(at, there) for at, there in real(*given) if not at]
    )


def a_later_list_by_the_newest_ordinals(patch):
    """Every sample listed as if it had come with the newest growth: slots of earlier views still hold it."""
    patch.setattr(
        plan_module,
        "origins",
        lambda growths, number, ordinals: (np.full(len(ordinals), number, np.int64), ordinals),
    )


def removed_by_the_ordinals_of_another_version(patch):
    def unshifted(growths, number, step, ordinals):
        gone = [one.removed for one in growths[number:] if one.step <= step]
        return np.isin(ordinals, np.concatenate([np.zeros(0, np.int64), *gone]))

    patch.setattr(places, "removed_since", unshifted)


def removed_samples_stay(patch):
    patch.setattr(
        places, "removed_since", lambda growths, number, step, ordinals: np.zeros(len(ordinals), bool)
    )


def removed_from_the_start(patch):
    real = growth.removed_since
    patch.setattr(
        places,
        "removed_since",
        lambda growths, number, step, ordinals: real(growths, number, 2**53, ordinals),
    )


def past_without_growths(patch):
    real = state._past
    patch.setattr(state, "_past", lambda made, step: real(replace(made, grown=()), step))


def growths_of_the_future_in_the_past(patch):
    real = state._past

    def early(made, step):
        return real(replace(made, grown=tuple(replace(one, step=0) for one in made.grown)), step)

    patch.setattr(state, "_past", early)


def order_depends_on_how_many_sources(patch):
    real = slots.ordinals_at

    def counted(seed, *given):
        return real(seed + counted.sources, *given)

    real_slots = slots.stream_slots

    def stream(segment, names, *how):
        counted.sources = len(names)
        return real_slots(segment, names, *how)

    patch.setattr(slots, "stream_slots", stream)
    patch.setattr(slots, "ordinals_at", counted)


def quarantined_from_the_start(patch):
    real = Quarantine.holds
    patch.setattr(
        Quarantine,
        "holds",
        lambda self, name, step, ordinals, growth=0: real(self, name, 2**53, ordinals, growth),
    )


def substitutes_not_looked_up(patch):
    """A substitute is taken even if it is quarantined itself."""

    def first(plan, step, source, position, after=0):
        for attempt in range(after + 1, 9):
            yield attempt, *places.substitute(plan, source, position, attempt)

    patch.setattr(places, "substitutes", first)


def always_the_first_attempt(patch):
    real = places.substitutes

    def unnumbered(*arguments):
        for _, view_ordinal, ordinal in real(*arguments):
            yield 1, view_ordinal, ordinal

    patch.setattr(places, "substitutes", unnumbered)


def quarantine_by_view_ordinal_plus_one(patch):
    real = Quarantine.holds
    patch.setattr(
        Quarantine,
        "holds",
        lambda self, name, step, ordinals, growth=0: real(self, name, step, ordinals + 1, growth),
    )


def past_without_quarantine(patch):
    patch.setattr(Quarantine, "to_json", lambda self, before=None, sources=None: [])


def past_with_all_lists(patch):
    real = Quarantine.to_json
    patch.setattr(Quarantine, "to_json", lambda self, before=None, sources=None: real(self))


def unstable_sort(patch):
    """Ties of a batch in reverse stream order."""
    real = places.canonical_order

    def reverse(source, position, lane_counts, _):
        return len(source) - 1 - real(source[::-1], position[::-1], lane_counts)

    patch.setattr(slots, "canonical_order", reverse)


def lanes_not_on_one_scale(patch):
    """bitrev(d) compared as a number instead of as a fraction of D."""

    def raw(source, position, lane_counts, _):
        d = position % lane_counts[source]
        scaled = [
            places.bit_reversed(d[k : k + 1], int(lane_counts[s]).bit_length() - 1)[0]
            for k, s in enumerate(source)
        ]
        return np.argsort(scaled, kind="stable")

    patch.setattr(slots, "canonical_order", raw)


def group_by_position_over_epochs(patch):
    """d from i_k instead of from the position in the epoch."""
    real = slots.canonical_order

    def of_stream(*stretch):
        k, position = mixture.stream_slots(*stretch)
        of_stream.position = position
        return k, position

    patch.setattr(slots, "stream_slots", of_stream)
    patch.setattr(
        slots, "canonical_order", lambda k, _, lane_counts, *__: real(k, of_stream.position, lane_counts)
    )


def equal_parts_and_a_remainder_lost(patch):
    patch.setattr(
        places,
        "rank_slice",
        lambda size, rank, world: slice(rank * (size // world), (rank + 1) * (size // world)),
    )


def remainder_on_the_last_rank(patch):
    def last(size, rank, world):
        part = size // world
        return slice(rank * part, size if rank == world - 1 else (rank + 1) * part)

    patch.setattr(places, "rank_slice", last)


def digest_of_the_row_not_the_slot(patch):
    real = places.delivered_digest
    patch.setattr(
        places,
        "delivered_digest",
        lambda step, numbers, who, crcs: real(step, np.arange(len(numbers)), who, crcs),
    )


def digest_without_identity(patch):
    real = places.delivered_digest
    patch.setattr(
        places, "delivered_digest", lambda step, numbers, who, crcs: real(step, numbers, who * 0, crcs)
    )


def digest_mixed_once_more(patch):
    """A hash of all rows together does not add up over ranks."""
    real = places.delivered_digest

    def hashed(step, numbers, who, crcs):
        return keyed_permutation.mix64(real(step, numbers, who, crcs))

    patch.setattr(places, "delivered_digest", hashed)


def bucket_not_in_key(patch):
    def without(seed, name, purpose, epoch):
        return real_key(seed, name.partition("/")[0], purpose, epoch)

    patch.setattr(lanes, "key", without)


def shares_by_size_alone(patch):
    real = interleave.turn_shares
    patch.setattr(
        interleave,
        "turn_shares",
        lambda weights, sizes, batch: real(weights, sizes, dict.fromkeys(batch, 1)),
    )


def buckets_begin_again_at_a_segment(patch):
    real = interleave.chain_segments

    def chained(*given):
        return tuple(replace(segment, base={}) for segment in real(*given))

    patch.setattr(interleave, "chain_segments", chained)


def a_buckets_segments_begin_at_the_plans_steps(patch):
    real = interleave._stream

    def stream(label, held, starts, turns, batch):
        early = [
            mixture.Segment(start_step=s.start_step, weights=s.weights, base={label: s.start_step})
            for s in turns.segments
        ]
        turns = mixture.Stream(names=turns.names, batch=1, segments=tuple(early))
        return real(label, held, starts, turns, batch)

    patch.setattr(interleave, "_stream", stream)


def leftovers_dropped(patch):
    real = slots.stream_slots

    def whole_batches(segment, names, step, global_batch, _):
        per_epoch = 20 // global_batch  # of the check's largest bucket
        epoch, within = divmod(step, per_epoch)
        k, position = real(segment, names, within, global_batch)
        return k, position + epoch * 20

    patch.setattr(slots, "stream_slots", whole_batches)


def sums(properties, reference):
    properties.sums_are_exact()


def bijection(properties, reference):
    properties.is_bijection(properties.shape_of(1003, 4, 8, 4))


def permutations(properties, reference):
    for n in (128, 129, 1000, 4097):
        properties.permutes(n, 7)


def pair_differences(properties, reference):
    properties.pair_differences_are_uniform()


def locate_is_the_reference(properties, reference):
    shape = properties.shape_of(70_000, 128, 16, 4)
    positions = [0, 1, 35_000, shape.body - 1, shape.body, 69_999]
    properties.matches_reference(reference, shape, 7, "photos", 0, positions)


def orders_differ(properties, reference):
    properties.orders_differ()


def last_position_is_uniform(properties, reference):
    shape = properties.shape_of(1031, 32, 2, 2)  # the short chunk is all of the tail
    properties.positions_are_uniform(shape, (1023, 1024, 1030), epochs=1500)


def pairs_are_uniform(properties, reference):
    properties.adjacent_pairs_are_uniform(properties.shape_of(4003, 4, 16, 4), (2000,), epochs=1000)


def windows(properties, reference):
    shape = properties.shape_of(6000, 8, 16, 4)
    properties.window_holds_chunk_at_most(shape, 16, 1)
    properties.window_holds_chunk_at_most(shape, 64, 2)


def level_reading(properties, reference):
    properties.first_touches_are_level(properties.shape_of(64 * 4 * 32 * 6, 32, 64, 4))


def within_one(properties, reference):
    properties.counts_stay_within_one({"a": 5, "b": 3, "c": 1}, 100)


def schedule(properties, reference):
    made = properties.two_sources_plan(
        global_batch=47, schedule=[(3, {"photos": 1, "web": 2}), (5, {"web": 1})]
    )
    properties.schedule_repeats_nothing(made, 8)


def ramped(properties):
    batches = [(0, 24), (3, 40), (6, 31)]
    return properties.two_sources_plan(global_batch=batches, schedule=[(4, {"photos": 1, "web": 2})])


def ramp(properties, reference):
    properties.schedule_repeats_nothing(ramped(properties), 9)


def ramped_batches_are_the_reference(properties, reference):
    made = ramped(properties)
    first, later = {"photos": 3, "web": 1}, {"photos": 1, "web": 2}
    segments = [(0, first), (3, first), (4, later), (6, later)]
    for step in (0, 3, 4, 6, 9):
        properties.batch_matches_reference(reference, made, segments, step)


def grown_stream(properties, reference):
    """Growths in mid-epoch, while one is mixed in, and at an epoch's end."""
    properties.grown_stream_is_written_out(reference, 20, [(7, 11, 0), (8, 9, 2), (60, 5, 1), (0, 4, 0)], 90)


def held_back(properties, reference):
    properties.held_back_under_later_versions()


def new_samples_held_back(properties, reference):
    properties.new_samples_are_quarantined()


def growth_in_state(properties, reference):
    properties.growths_are_part_of_the_past()


def others_keep_their_order(properties, reference):
    few = properties.plan.make_plan({"a": properties.plan.synthetic(300)}, seed=7, global_batch=30)
    views = {"a": properties.plan.synthetic(300), "b": properties.plan.synthetic(200)}
    properties.others_keep_their_order(few, properties.plan.make_plan(views, seed=7, global_batch=30))


def batches_are_the_reference(properties, reference):
    made = properties.two_sources_plan(photos=1003, web=101)
    for step in (0, 3, 40):
        properties.batch_matches_reference(reference, made, [(0, {"photos": 3, "web": 1})], step)


def quarantine(properties, reference):
    views = {"a": source(synthetic(40), chunk=2, lanes=4), "b": synthetic(30)}
    for step in (0, 2, 5):
        properties.quarantines_by_the_rule(views, 7, 2, step, {"a": set(range(0, 40, 2)), "b": {1, 2, 3}})


def quarantine_in_state(properties, reference):
    properties.quarantine_is_part_of_the_past()


def ranks(properties, reference):
    properties.ranks_make_the_batch(50, 7)
    properties.ranks_make_the_batch(64, 10)


def delivered(properties, reference):
    properties.delivered_digest_adds_up(properties.two_sources_plan(), 3, [10, 20])


def bucketed(properties, **options):
    sizes = {"a": {"b0": 20, "b1": 20}, "c": {"b1": 11}}
    return properties.bucketed_plan(sizes, {"b0": 8, "b1": 6}, **options)


def turns_within_one(properties, reference):
    properties.turns_stay_within_one({"b0": 20, "b1": 30, "b2": 9}, {"b0": 2, "b1": 5, "b2": 3}, 80)


def shares_of_the_first_version_for_ever(patch):
    real = interleave.turn_shares
    first = {}

    def forgetful(weights, sizes, batch):
        return real(weights, first.setdefault(tuple(sorted(sizes)), sizes), batch)

    patch.setattr(interleave, "turn_shares", forgetful)


def shares_of_the_new_version_from_the_start(patch):
    real = grow.interleave_parts
    patch.setattr(
        grow,
        "interleave_parts",
        lambda *given: real(*given[:-1], [replace(one, step=0) for one in given[-1]]),
    )


def shares_of_the_first_batches(patch):
    real, first = interleave.turn_shares, {}
    patch.setattr(
        interleave,
        "turn_shares",
        lambda weights, sizes, batch: real(weights, sizes, first.setdefault(0, batch)),
    )


def growths_take_effect_at_steps_not_positions(patch):
    """A bucket's stream grows at the number of steps that it had, as if each took one sample."""

    def steps(self, step):
        before = self.turns.used_before(step)
        return {name: n for label, n in before.items() for name in self.streams[label].names}

    patch.setattr(interleave.Interleaving, "used_before", steps)


def an_emptied_buckets_epoch_goes_on(patch):
    real = growth.Stage.after

    def after(stage, start, n, delta):
        made = real(stage, start, max(1, n), delta)
        return replace(made, n=n)

    patch.setattr(growth.Stage, "after", after)


def grown(properties):
    """b1 grows, comes to nothing and comes again; b2 comes with the first growth."""
    views = properties.labelled_versions(
        [{"b0": 12, "b1": 11}, {"b1": 9, "b2": 10}, {"b0": 4}, {"b1": 8}], [{2}, {"b1"}, set()]
    )
    steps = [5, 9, 12]
    return views, steps, *properties.grown_buckets_plan(views, steps, {"b0": 3, "b1": 4, "b2": 2})


def grown_buckets_are_the_reference(properties, reference):
    *_, made = grown(properties)
    properties.grown_buckets_are_the_reference(reference, made, 30)


def ramped_buckets_are_the_reference(properties, reference):
    asked = bucket("s", batch={"b0": [(0, 4), (3, 7), (7, 2)], "b1": [(0, 3), (5, 6)]})
    views = {
        "a": source(synthetic(50, "a", {"b0": 20, "b1": 30}), chunk=2, lanes=4),
        "z": synthetic(19, "z", {"b1": 19}),
    }
    made = plan.make_plan(views, seed=7, global_batch=8, bucket_by=asked, allow_repeats=True)
    sizes = [made.batch_size(step) for step in range(12)]
    wanted = {"b0": [4, 4, 4, 7, 7, 7, 7, 2, 2, 2, 2, 2], "b1": [3, 3, 3, 3, 3, 6, 6, 6, 6, 6, 6, 6]}
    assert sizes == [wanted[made.bucket(step)][step] for step in range(12)]
    properties.grown_buckets_are_the_reference(reference, made, 25)


def grown_shares(properties, reference):
    views = properties.labelled_versions([{"b0": 12, "b1": 10}, {"b1": 30}], [set()])
    before, made = properties.grown_buckets_plan(views, [6], {"b0": 3, "b1": 4})
    properties.prefix_is_untouched_by_name(before, made, 6)


def grown_buckets_in_state(properties, reference):
    """Two growths that bring nothing, at other steps, are two pasts."""
    views = properties.labelled_versions([{"b0": 12, "b1": 10}, {}], [set()])
    made, early = (properties.grown_buckets_plan(views, [at], {"b0": 3, "b1": 4})[1] for at in (5, 4))
    assert properties.refusal(made, made.state(7)) is None
    assert "grown: " in (properties.refusal(early, made.state(7)) or "")


def grown_buckets_lose_nothing(properties, reference):
    views, steps, before, made = grown(properties)
    properties.grown_buckets_lose_nothing(before, made, views, steps, 40)


def bucket_epochs(properties, reference):
    one = properties.bucketed_plan({"a": {"b0": 20}}, {"b0": 6})
    properties.every_bucket_epoch_is_whole(one)
    properties.every_bucket_epoch_is_whole(bucketed(properties))


def bucketed_schedule(properties, reference):
    properties.schedule_repeats_nothing(bucketed(properties, schedule=[(5, {"a": 1, "c": 2})]), 15)


def bucketed_batches_are_the_reference(properties, reference):
    made = bucketed(properties, schedule=[(5, {"a": 1, "c": 2})])
    for step in range(12):
        segments = [(0, {"a": 1, "c": 1}), (5, {"a": 1, "c": 2})]
        properties.bucketed_batch_matches_reference(reference, made, segments, step)


def an_epoch_without_its_rest(patch):
    patch.setattr(mixture, "epoch_steps", lambda n, batch: max(1, n // batch))


def padding_taken_for_the_next_epoch(patch):
    def wrapped(n, batch, step):
        position = np.arange(step * batch, (step + 1) * batch, dtype=np.int64)
        return position // n, position % n

    patch.setattr(slots, "whole_epochs", wrapped)


def masked_epochs(properties, reference):
    for n in (50, 60, 64):
        view = source(synthetic(n), chunk=2, lanes=4)
        made = plan.make_plan({"a": view}, seed=7, global_batch=20, boundary="mask")
        properties.every_epoch_is_whole_batches(made, 3)


def worst_fit(patch):
    patch.setattr(
        pack_table,
        "bisect_left",
        lambda room, size: len(room) - 1 if room and room[-1] >= size else len(room),
    )


def nothing_packed_with_anything(patch):
    patch.setattr(pack_table, "best_fit", lambda sizes, capacity: np.arange(len(sizes), dtype=np.int64))


def the_last_opened_of_equal_ones(patch):
    def last(room, size):
        at = bisect.bisect_left(room, size)
        while at + 1 < len(room) and room[at + 1] >> 5 == room[at] >> 5:
            at += 1
        return at

    patch.setattr(pack_table, "bisect_left", last)


def rests_of_long_documents_dropped(patch):
    real = pack_table.pack_block
    patch.setattr(
        pack_table,
        "pack_block",
        lambda tokens, length: real(np.where(tokens > length, tokens // length * length, tokens), length),
    )


def pieces_of_a_document_begin_at_nought(patch):
    real = pack_table.pack_block

    def forgetful(tokens, length):
        sequence, document, start, taken = real(tokens, length)
        return sequence, document, np.zeros_like(start), taken

    patch.setattr(pack_table, "pack_block", forgetful)


def one_block_of_all(patch):
    patch.setattr(pack_table, "BLOCK_DOCUMENTS", 2**60)


def packed_by_hand(properties, reference):
    tokens = [3, 25, 0, 7, 4, 3, 2, 3, 3, 9, 1, 1, 30, 5, 5, 5, 8, 2, 2, 11, 4, 6, 6, 1, 7, 3]
    properties.packing_is_the_reference(reference, tokens, 10)


def packed_whole(properties, reference):
    properties.every_token_is_in_one_place([3, 25, 0, 7, 4, 3, 2, 30, 11], 10)


def packed_in_blocks(properties, reference):
    tokens = [1 + i * 7 % 13 for i in range(2**14 + 50)]
    properties.blocks_are_independent(tokens, [9, 3, 12, 1] * 9, 20, block=2**14)


def buckets_have_orders_of_their_own(properties, reference):
    properties.buckets_have_names_of_their_own()


def steps_of_a_stack_sorted_as_one(patch):
    real = slots.canonical_order
    patch.setattr(slots, "canonical_order", lambda k, position, lanes, batch=None: real(k, position, lanes))


def a_stack_goes_on_over_a_schedules_step(patch):
    real = slots._stretches

    def merged(plan, steps):
        (stream, segment, first, _), *_ = real(plan, steps)
        return [(stream, segment, first, len(steps))]

    patch.setattr(slots, "_stretches", merged)


def the_ranks_part_of_the_first_step(patch):
    real = slots.rank_slice
    first = []

    def kept(batch, rank, world_size):
        if world_size == 1:
            return real(batch, rank, world_size)
        first.append(batch)
        return real(first[0], rank, world_size)

    patch.setattr(slots, "rank_slice", kept)


def stacks_forget_what_is_quarantined(patch):
    patch.setattr(plan, "planned_stack", slots.stacked_slots)


def stacks(properties, reference):
    views = {"a": synthetic(300, "a"), "b": source(synthetic(90, "b"), weight=2)}
    schedule = [(5, {"a": 1, "b": 5})]
    for made in (
        plan.make_plan(views, seed=1, global_batch=[(0, 8), (3, 13), (6, 40)], schedule=schedule),
        properties.two_sources_plan(schedule=[(4, {"photos": 1})]),
    ):
        properties.stack_is_the_steps(made, range(2, 9), 3)


def stacks_with_quarantine(properties, reference):
    made = plan.make_plan(
        {"a": properties.versions([40], [])[0]},
        seed=3,
        global_batch=10,
        quarantine=[(3, {"a": [f"0/{i}" for i in range(0, 40, 3)]})],
    )
    properties.stack_is_the_steps(made, range(6), 2)


CASES = [
    (six_rounds, pair_differences),
    (six_rounds, locate_is_the_reference),
    (no_cycle_walking, permutations),
    (no_cycle_walking, bijection),
    (wrapping_sum, sums),
    (smaller_argsort, locate_is_the_reference),
    (seed_plus_epoch, orders_differ),
    (name_not_in_key, orders_differ),
    (epoch_not_in_key, orders_differ),
    (one_key_for_two_purposes, orders_differ),
    (no_rotation, last_position_is_uniform),
    (no_rotation_of_the_tail, locate_is_the_reference),
    (tail_in_the_last_chunk_too, bijection),
    (lanes_not_staggered, level_reading),
    (lanes_not_staggered, locate_is_the_reference),
    (chunks_read_at_a_stretch, windows),
    (lane_by_hash_alone, bijection),
    (no_shuffle_of_chunks, pairs_are_uniform),
    (sources_in_blocks, within_one),
    (earliest_deadline_without_release, within_one),
    (bases_not_advanced, schedule),
    (bases_without_the_begun_cycle, schedule),
    (bases_of_the_first_batch, ramp),
    (always_the_first_batch, ramped_batches_are_the_reference),
    (a_ramp_forgets_the_weights, ramped_batches_are_the_reference),
    (new_samples_too_early, grown_stream),
    (new_samples_first, grown_stream),
    (a_second_growth_forgets_the_first, grown_stream),
    (the_old_epoch_begins_again, grown_stream),
    (ordinals_of_the_first_version_for_ever, held_back),
    (removed_by_the_ordinals_of_another_version, held_back),
    (removed_samples_stay, held_back),
    (removed_from_the_start, held_back),
    (lists_of_the_first_version_alone, new_samples_held_back),
    (a_later_list_by_the_newest_ordinals, new_samples_held_back),
    (ordinals_of_the_first_version_for_ever, new_samples_held_back),
    (quarantined_from_the_start, new_samples_held_back),
    (past_without_growths, growth_in_state),
    (growths_of_the_future_in_the_past, growth_in_state),
    (order_depends_on_how_many_sources, others_keep_their_order),
    (unstable_sort, batches_are_the_reference),
    (lanes_not_on_one_scale, batches_are_the_reference),
    (group_by_position_over_epochs, batches_are_the_reference),
    (equal_parts_and_a_remainder_lost, ranks),
    (remainder_on_the_last_rank, ranks),
    (quarantined_from_the_start, quarantine),
    (substitutes_not_looked_up, quarantine),
    (always_the_first_attempt, quarantine),
    (quarantine_by_view_ordinal_plus_one, quarantine),
    (past_without_quarantine, quarantine_in_state),
    (past_with_all_lists, quarantine_in_state),
    (digest_of_the_row_not_the_slot, delivered),
    (digest_without_identity, delivered),
    (digest_mixed_once_more, delivered),
    (bucket_not_in_key, buckets_have_orders_of_their_own),
    (shares_by_size_alone, turns_within_one),
    (shares_by_size_alone, bucketed_batches_are_the_reference),
    (sources_in_blocks, turns_within_one),
    (buckets_begin_again_at_a_segment, bucketed_schedule),
    (a_buckets_segments_begin_at_the_plans_steps, bucketed_batches_are_the_reference),
    (leftovers_dropped, bucket_epochs),
    (shares_of_the_first_batches, ramped_buckets_are_the_reference),
    (always_the_first_batch, ramped_buckets_are_the_reference),
    (buckets_begin_again_at_a_segment, ramped_buckets_are_the_reference),
    (a_buckets_segments_begin_at_the_plans_steps, ramped_buckets_are_the_reference),
    (shares_of_the_first_version_for_ever, grown_buckets_are_the_reference),
    (shares_of_the_new_version_from_the_start, grown_shares),
    (growths_take_effect_at_steps_not_positions, grown_buckets_are_the_reference),
    (an_emptied_buckets_epoch_goes_on, grown_buckets_are_the_reference),
    (removed_samples_stay, grown_buckets_lose_nothing),
    (new_samples_first, grown_buckets_are_the_reference),
    (past_without_growths, grown_buckets_in_state),
    (worst_fit, packed_by_hand),
    (nothing_packed_with_anything, packed_by_hand),
    (the_last_opened_of_equal_ones, packed_by_hand),
    (rests_of_long_documents_dropped, packed_whole),
    (pieces_of_a_document_begin_at_nought, packed_whole),
    (one_block_of_all, packed_in_blocks),
    (an_epoch_without_its_rest, masked_epochs),
    (padding_taken_for_the_next_epoch, masked_epochs),
    (steps_of_a_stack_sorted_as_one, stacks),
    (a_stack_goes_on_over_a_schedules_step, stacks),
    (the_ranks_part_of_the_first_step, stacks),
    (stacks_forget_what_is_quarantined, stacks_with_quarantine),
]
CHECKS = sorted({check for _, check in CASES}, key=lambda check: check.__name__)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_property_holds_of_the_order(check, properties, reference):
    check(properties, reference)


@pytest.mark.parametrize(("mutant", "check"), CASES, ids=lambda one: one.__name__)
def test_the_property_fails_of_the_mutant(mutant, check, properties, reference, monkeypatch):
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check(properties, reference)
