"""Properties of the order (docs/order.md): functions that raise AssertionError."""

import itertools
import json
from collections import Counter
from dataclasses import dataclass
from math import sqrt

import numpy as np

from loader.errors import InvalidPlan, PlanMismatch
from loader.order import mixture, plan
from loader.order import slots as places
from loader.order.random import keyed_permutation, lanes
from loader.order.slots import step_slots
from loader.order.sources import pack_table, packing, views
from loader.order.sources.views import Delta
from loader.order.sources.views import synthetic as synthetic_view
from loader.order.substitutes import substitute
from loader.order.weights import integer_weights


def lane_shape(n, chunk, lane_count, h):
    return lanes.LaneShape(n=n, chunk=chunk, lanes=lane_count, rounds_h=h)


def epoch_order(shape, seed=7, name="photos", epoch=0):
    """All view ordinals of an epoch, in order of position."""
    return lanes.locate(shape, seed, name, epoch, np.arange(shape.n, dtype=np.int64))


def z_score(observed, expected):
    """How many standard deviations a chi-square lies from that of chance (Wilson & Hilferty, 1931)."""
    df = len(observed) - 1
    chi = float((((observed - expected) ** 2) / expected).sum())
    return ((chi / df) ** (1 / 3) - (1 - 2 / (9 * df))) / sqrt(2 / (9 * df))


# 1, 6: permutations and keys


def permutes(n, k):
    everything = np.arange(n, dtype=np.int64)
    assert sorted(keyed_permutation.perm(k, n, everything).tolist()) == everything.tolist()


def is_bijection(shape, seed=7, name="photos", epoch=0):
    ordinals = epoch_order(shape, seed, name, epoch)
    assert np.array_equal(np.sort(ordinals), np.arange(shape.n))


def matches_reference(reference, shape, seed, name, epoch, positions):
    got = lanes.locate(shape, seed, name, epoch, np.array(positions, dtype=np.int64)).tolist()
    plain = (shape.n, shape.chunk, shape.lanes, shape.rounds_h)
    assert got == [reference.locate(plain, seed, name, epoch, i) for i in positions]


def orders_differ(
    n=64, seeds=(0, 1, 2, 41, 42, 43, 2**64 - 1), names=("a", "b", "b/b3"), epochs=(0, 1, 2, 3)
):
    """No two (seed, source, epoch) share a key or a permutation."""
    shape = lane_shape(n, 1, 1, 1)
    seen, seen_keys = {}, {}
    for who in itertools.product(seeds, names, epochs):
        order = tuple(epoch_order(shape, *who).tolist())
        assert seen.setdefault(order, who) == who, (seen[order], who)
        made = lanes.epoch_keys(*who)
        for field in lanes.EpochKeys.__slots__:
            value = getattr(made, field)
            assert seen_keys.setdefault(value, (who, field)) == (who, field)


# L1: working set and fairness


def window_holds_chunk_at_most(shape, window, times, seed=7, epoch=0):
    """Inside the body, `window` consecutive positions hold one chunk at most `times` times."""
    n, body = shape.n, shape.body
    ordinals = epoch_order(shape, seed, "photos", epoch)[:body]
    rotation = lanes.epoch_keys(seed, "photos", epoch).rot % n
    chunk = ((ordinals - rotation) % n // shape.chunk).tolist()
    live = Counter(chunk[:window])
    assert max(live.values()) <= times
    for left, entered in zip(chunk, chunk[window:], strict=False):
        live[left] -= 1
        live[entered] += 1
        assert live[entered] <= times


def over_epochs(shape, positions, epochs, seed):
    """(epochs, positions) int64: the ordinals at these positions, in each of the epochs."""
    where = np.array(positions, dtype=np.int64)
    return np.stack([lanes.locate(shape, seed, "photos", epoch, where) for epoch in range(epochs)])


# L2: mixture


def counts_stay_within_one(weights, prefix):
    """Every prefix of the stream holds each source within 1 of its exact share."""
    quotas = integer_weights(weights)
    names = sorted(weights)
    segment = mixture.MixtureSegment(start_step=0, weights=quotas, base={})
    k, position = mixture.stream_slots(segment, names, 0, prefix)
    total = sum(quotas.values())
    for index, name in enumerate(names):
        count = np.cumsum(k == index)
        exact = np.arange(1, prefix + 1) * quotas.get(name, 0)
        assert (np.abs(count * total - exact) <= total).all()
        assert position[k == index].tolist() == list(range(int(count[-1])))


def schedule_repeats_nothing(made, steps):
    """Over all segments, each source's stream is taken 0, 1, 2, ... without a gap or a repeat."""
    taken = {index: [] for index in range(len(made.sources))}
    for step in range(steps):
        slots = made.slots(step)
        for index in taken:
            taken[index] += slots.position[slots.source == index].tolist()
    for positions in taken.values():
        assert sorted(positions) == list(range(len(positions)))


def prefix_is_untouched(before, after, steps):
    for step in range(steps):
        assert_same_slots(before.slots(step), after.slots(step))


def others_keep_their_order(few, many, per_source=64):
    """A source's n-th sample is the same whatever else is mixed in. few's sources are some of many's."""

    def streams(made):
        out = {name: {} for name in made.source_names}
        step = 0
        while min(len(seen) for seen in out.values()) < per_source:
            slots = made.slots(step)
            for source, position, ordinal in zip(
                slots.source.tolist(), slots.position.tolist(), slots.ordinal.tolist(), strict=True
            ):
                out[made.source_names[source]][position] = ordinal
            step += 1
        return out

    one, other = streams(few), streams(many)
    for name, seen in one.items():
        both = seen.keys() & other[name].keys()
        assert len(both) >= per_source
        assert all(seen[position] == other[name][position] for position in both)


# L3, L4: batches, ranks, digests


def assert_same_slots(a, b):
    for field in ("source", "position", "epoch", "ordinal", "view_ordinal", "valid"):
        assert np.array_equal(getattr(a, field), getattr(b, field)), field


def batch_matches_reference(reference, made, segments, step):
    shapes = {
        name: (one.shape.n, one.shape.chunk, one.shape.lanes, one.shape.rounds_h)
        for name, one in made.sources.items()
    }
    batches = [segment.batch or made.global_batch for segment in made.segments]
    wanted = reference.batch(made.seed, batches, shapes, segments, step)
    slots = made.slots(step)
    got = [
        (made.source_names[k], *rest)
        for k, *rest in zip(
            slots.source.tolist(),
            slots.position.tolist(),
            slots.epoch.tolist(),
            slots.view_ordinal.tolist(),
            strict=True,
        )
    ]
    assert got == wanted


def ranks_make_the_batch(global_batch, world_size):
    slots = list(range(global_batch))
    parts = [slots[places.rank_slice(global_batch, rank, world_size)] for rank in range(world_size)]
    assert [slot for part in parts for slot in part] == slots
    assert all(parts)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def resumes_give_the_uninterrupted_run(whole, state, legs):
    """legs: (world size, batches) from a stop to the next, begun at `state`, of step 0."""
    got = []
    for world_size, batches in legs:
        first = whole.check_state(json.loads(json.dumps(state)))
        for step in range(first, first + batches):
            ids = whole.batch_ids(step)
            got += [
                one
                for rank in range(world_size)
                for one in ids[places.rank_slice(len(ids), rank, world_size)]
            ]
        state = whole.state(first + batches)
    steps = sum(batches for _, batches in legs)
    assert got == [one for step in range(steps) for one in whole.batch_ids(step)]


def stack_is_the_steps(made, steps, world_size):
    """What a rank plans of several steps at once is its part of each of them."""
    for rank in range(world_size):
        stack = made.stack(steps, rank, world_size)
        assert list(stack.batches) == [made.batch_size(step) for step in steps]
        assert len(stack.starts) == len(steps) + 1
        assert stack.starts[-1] == len(stack.slots) == len(stack.number)
        for step, start, stop in zip(steps, stack.starts, stack.starts[1:], strict=False):
            whole = made.slots(step)
            mine = slice(rank * len(whole) // world_size, (rank + 1) * len(whole) // world_size)
            assert stack.number[start:stop].tolist() == list(range(len(whole)))[mine]
            assert_same_slots(stack.slots.part(slice(start, stop)), whole.part(mine))
            assert np.array_equal(stack.slots.attempt[start:stop], whole.attempt[mine])


def two_sources_plan(seed=7, global_batch=48, schedule=None, **sizes):
    """A plan over synthetic sources photos (16 lanes) and web (4 lanes), 3 : 1."""
    photos = plan.synthetic(sizes.get("photos", 4000), "photos")
    web = plan.synthetic(sizes.get("web", 700), "web")
    views = {
        "photos": plan.source(photos, weight=3, chunk=8, lanes=16),
        "web": plan.source(web, weight=1, chunk=2, lanes=4),
    }
    return plan.make_plan(views, seed=seed, global_batch=global_batch, schedule=schedule)


# L3: buckets


def bucket_sizes(made):
    """bucket -> source -> samples."""
    sizes = {}
    for one in made.sources.values():
        sizes.setdefault(one.bucket, {})[one.source] = one.shape.n
    return sizes


def bucket_plan(sizes, batches, weights=None, seed=7, schedule=None, chunk=None, lanes=None):
    """sizes: source -> bucket -> samples. batches: bucket -> batch."""
    views = {
        name: plan.source(
            plan.synthetic(sum(held.values()), name, held),
            weight=(weights or {}).get(name, 1),
            chunk=chunk,
            lanes=lanes,
        )
        for name, held in sizes.items()
    }
    return plan.make_plan(
        views,
        seed=seed,
        global_batch=max(batches.values()),
        bucket_by=plan.bucket("shape", batch=batches),
        schedule=schedule,
        allow_repeats=True,
    )


def every_bucket_epoch_is_whole(made, epochs=2):
    """Steps from 0 on take every sample of every (source, bucket) once per epoch, and only of the step's bucket."""
    seen = {name: Counter() for name in made.sources}
    whole = {name: epochs * one.shape.n for name, one in made.sources.items()}
    step = 0
    while any(seen[name].total() < count for name, count in whole.items()):
        slots, label = made.slots(step), made.bucket(step)
        for k, epoch, ordinal in zip(
            slots.source.tolist(), slots.epoch.tolist(), slots.view_ordinal.tolist(), strict=True
        ):
            name = made.source_names[k]
            assert made.sources[name].bucket == label
            seen[name][epoch, ordinal] += 1
        step += 1
        assert step < 5000
    for name, counts in seen.items():
        assert set(counts.values()) == {1}
        n = made.sources[name].shape.n
        for epoch in range(epochs):
            assert {ordinal for e, ordinal in counts if e == epoch} == set(range(n))


def ranks_take_one_bucket(made, steps, world_size):
    """Each step's ranks, one after another, are its batch, whatever size that has."""
    for step in range(steps):
        ids = made.batch_ids(step)
        parts = [ids[places.rank_slice(len(ids), rank, world_size)] for rank in range(world_size)]
        assert [one for part in parts for one in part] == ids
        assert len(ids) == made.batch_size(step)
        assert {made.sources[name].bucket for name, _ in ids} == {made.bucket(step)}


# Bad samples


def quarantines_by_the_rule(views, seed, start, step, bad):
    """bad: source -> ordinals, quarantined from `start` on. Their slots hold the first substitute that is not
    quarantined itself; every other slot, and every step before, is that of the plan without."""
    plain = plan.make_plan(views, seed=seed, global_batch=20, allow_repeats=True)
    lists = {name: [f"{ordinal:012d}" for ordinal in ordinals] for name, ordinals in bad.items()}
    made = plan.make_plan(views, seed=seed, global_batch=20, allow_repeats=True, quarantine=[(start, lists)])
    own, got = plain.slots(step), made.slots(step)
    for name in ("source", "position", "epoch", "valid"):
        assert np.array_equal(getattr(own, name), getattr(got, name))
    for slot in range(20):
        k, position = int(own.source[slot]), int(own.position[slot])
        wanted, attempt = int(own.ordinal[slot]), 0
        while step >= start and wanted in bad[made.source_names[k]]:
            attempt += 1
            wanted = substitute(plain, k, position, attempt)[1]
        assert (int(got.ordinal[slot]), int(got.attempt[slot])) == (wanted, attempt)
        assert int(got.view_ordinal[slot]) == wanted


# Growing versions


@dataclass(frozen=True)
class Listed:
    """A view of a version that is a list of live keys; later ones lack some of them and have more at the end."""

    version_keys: tuple[str, ...]
    first: int = 0
    mean_sample_bytes: int = 10

    @property
    def id(self):
        return f"w-{hash((self.version_keys, self.first))}"

    @property
    def identity(self):
        return f"v-{hash(self.version_keys)}"

    def __len__(self):
        return len(self.version_keys) - self.first

    def spec(self):
        return {"kind": "listed", "keys": list(self.version_keys), "first": self.first}

    def version_ordinals(self, x):
        return x + self.first

    def keys(self, version_ordinals):
        return [self.version_keys[at] for at in version_ordinals.tolist()]

    def ordinals(self, keys):
        there = {key: at for at, key in enumerate(self.version_keys)}
        return np.array([there.get(key, -1) for key in keys], np.int64)

    def since(self, old, *, compare):
        kept = [key for key in old.version_keys if key in self.version_keys]
        if list(self.version_keys[: len(kept)]) != kept:
            raise InvalidPlan("not a later version")
        removed = [at for at, key in enumerate(old.version_keys) if key not in self.version_keys]
        new = Listed(self.version_keys, len(kept))
        return Delta(view=new if len(new) else None, first=len(kept), removed=np.array(removed, np.int64))


def versions(counts, gone):
    """Views of successive versions: the first of counts[0] samples, each later one with counts[g] new ones and without
    the samples numbered gone[g] (modulo) among those of the one before."""
    out = [Listed(tuple(f"0/{i}" for i in range(counts[0])))]
    for number, (count, holes) in enumerate(zip(counts[1:], gone, strict=True), 1):
        old = out[-1].version_keys
        removed = {old[hole % len(old)] for hole in holes}
        kept = [key for key in old if key not in removed]
        out.append(Listed((*kept, *(f"{number}/{i}" for i in range(count)))))
    return out


def slots_hold_what_is_left(made, grown, lists, steps):
    """A slot holds its own sample, or the first substitute that is neither quarantined nor removed by that step; how
    many are substitutes. grown: step -> (view before, view after). lists: step -> keys that count from it on."""
    gone = [(step, set(old.version_keys) - set(new.version_keys)) for step, (old, new) in grown.items()]
    gone += lists.items()
    substituted = 0
    for step in range(steps):
        taken, own = made.slots(step), step_slots(made, step)
        held = set().union(*(keys for start, keys in gone if start <= step))
        for slot, (k, position) in enumerate(
            zip(taken.source.tolist(), taken.position.tolist(), strict=True)
        ):
            live = list(made.sources.values())[k].view.version_keys
            attempts = [substitute(made, k, position, attempt)[1] for attempt in range(1, 9)]
            chain = [int(own.ordinal[slot]), *attempts]
            wanted = next(attempt for attempt, at in enumerate(chain) if live[at] not in held)
            assert (int(taken.attempt[slot]), int(taken.ordinal[slot])) == (wanted, chain[wanted])
            substituted += wanted > 0
    return substituted


@dataclass(frozen=True)
class Labelled(Listed):
    """A view of a version whose keys begin with the label of their bucket: of all of it, or of one bucket."""

    label: str | None = None

    @property
    def id(self):
        return f"w-{hash((self.version_keys, self.first, self.label))}"

    @property
    def version(self):
        return self.version_keys

    @property
    def _mine(self):
        named = [
            at for at, key in enumerate(self.version_keys) if self.label in (None, key.partition("/")[0])
        ]
        return np.array([at for at in named if at >= self.first], np.int64)

    def __len__(self):
        return len(self._mine)

    def spec(self):
        return {
            "kind": "labelled",
            "keys": list(self.version_keys),
            "first": self.first,
            "label": self.label,
        }

    def version_ordinals(self, x):
        return self._mine[x]

    def split(self, by, edges):
        labels = sorted({key.partition("/")[0] for key in self.version_keys})
        return {label: Labelled(self.version_keys, self.first, label=label) for label in labels}

    def unsplit(self, by, edges, label):
        assert self.label == label
        return Labelled(self.version_keys)

    def of_version(self, version):
        return Labelled(version, label=self.label)

    def since(self, old, *, compare):
        delta = super().since(old, compare=compare)
        new = Labelled(self.version_keys, delta.first, label=self.label)
        return Delta(view=new if len(new) else None, first=delta.first, removed=delta.removed)


def label_versions(counts, gone):
    """Views of successive versions. counts: per version label -> new samples, which lie among one another. gone: per
    growth what is removed: numbers (modulo) of samples, or labels."""
    out = []
    for number, new in enumerate(counts):
        made = sorted((i, label) for label, n in new.items() for i in range(n))
        keys_of = [f"{label}/{number}/{i}" for i, label in made]
        old = out[-1].version_keys if out else ()
        holes = gone[number - 1] if old else ()
        removed = {old[hole % len(old)] for hole in holes if isinstance(hole, int)}
        kept = [key for key in old if key not in removed and key.partition("/")[0] not in holes]
        out.append(Labelled((*kept, *keys_of)))
    return out


def bucket_growth_plan(views, steps, batches, weights=(1, 1), seed=5, schedule=None, other=None):
    """A plan of `a`, views of versions with buckets, which grows at these steps, and the plan before. other: label ->
    samples of a source `z` that does not grow."""
    sources = {"a": plan.source(views[0], weights[0], chunk=2, lanes=4)}
    if other:
        z = synthetic_view(sum(other.values()), "z", other)
        sources["z"] = plan.source(z, weights[1])
    held = {*(label for label in views[0].split(None, None)), *(other or ())}
    began = plan.bucket("label", batch={label: n for label, n in batches.items() if label in held})
    made = before = plan.make_plan(
        sources,
        seed=seed,
        global_batch=max(batches.values()),
        bucket_by=began,
        schedule=schedule,
        allow_repeats=True,
    )
    for step, view in zip(steps, views[1:], strict=True):
        held |= set(view.split(None, None))
        asked = plan.bucket("label", batch={label: n for label, n in batches.items() if label in held})
        made = made.grow({"a": plan.source(view, chunk=2, lanes=4)}, step, bucket_by=asked)
    return before, made


def sizes_in_force(made, step):
    """bucket -> source -> samples, of the versions that are in force at a step."""
    sizes = {}
    for source in sorted({one.source for one in made.sources.values()}):
        number = sum(one.step <= step for one in made.grown if one.source == source)
        for one in made.sources.values():
            if (one.source, one.growth, one.delta) == (source, number, False):
                sizes.setdefault(one.bucket, {})[source] = one.shape.n
    return sizes


def check_bucket_growth(reference, made, steps):
    """made: with one schedule's segments, and those of its growths. Every batch of the first steps."""
    shapes = {
        name: (one.shape.n, one.shape.chunk, one.shape.lanes, one.shape.rounds_h)
        for name, one in made.sources.items()
    }
    segments = [(one.start_step, one.weights) for one in made.segments]
    grown = {}
    for one in made.grown:
        grown.setdefault(one.source, []).append(one.step)
    wholes = {}
    for name, one in made.sources.items():
        if not one.delta:
            views = wholes.setdefault(one.stream, [None] * (1 + len(grown.get(one.source, ()))))
            views[one.growth] = name
    batches = list(made.buckets.batches)
    sizes = [sizes_in_force(made, start) for start, _ in segments]
    wanted = reference.bucket_growth(made.seed, batches, shapes, wholes, segments, sizes, grown, steps)
    for step, (label, rows) in enumerate(wanted):
        own = step_slots(made, step)
        columns = (own.source, own.position, own.epoch, own.view_ordinal)
        got = [
            (made.source_names[k], *rest) for k, *rest in zip(*(one.tolist() for one in columns), strict=True)
        ]
        assert (made.bucket(step), got) == (label, rows), step


def refusal(made, state):
    """Why a plan does not go on from a state; None when it does."""
    try:
        made.check_state(state)
    except PlanMismatch as error:
        return str(error)
    return None


# boundary="mask"


# packing


def packing_is_the_reference(reference, tokens, length):
    made = pack_table.pack_documents(
        np.arange(len(tokens), dtype=np.int64), np.array(tokens, np.int64), length
    )
    got = [[] for _ in range(len(made))]
    for sequence, *piece in made.rows(0, made.n_pieces).tolist():
        got[sequence].append(tuple(piece))
    assert got == reference.packed(tokens, length, pack_table.BLOCK_DOCUMENTS)


def groups_stay_together_as_in_the_reference(reference, tokens, groups, length):
    documents = np.arange(len(tokens), dtype=np.int64) * 3  # ordinals are not positions
    made = pack_table.pack_groups(documents, np.array(tokens, np.int64), np.array(groups, np.int64), length)
    got = [[] for _ in range(len(made))]
    for sequence, document, *piece in made.rows(0, made.n_pieces).tolist():
        got[sequence].append((document // 3, *piece))
    assert got == reference.packed_groups(tokens, groups, length, pack_table.BLOCK_DOCUMENTS)


class Documents(views.SyntheticView):
    """Synthetic documents whose lengths are known, so that they can be packed."""

    def packed(self, asked):
        documents = np.arange(len(self), dtype=np.int64)
        table = pack_table.pack_documents(documents, np.array(self.tokens, np.int64), asked.length)
        return packing.PackedView(self, asked, dict.fromkeys(asked.fields, self.dtype), table)


def make_documents(tokens, name="docs", dtype="<u2"):
    """A view of documents with so many tokens each."""
    view = Documents(len(tokens), name)
    object.__setattr__(view, "tokens", list(tokens))
    object.__setattr__(view, "dtype", dtype)
    return view
