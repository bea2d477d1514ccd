"""Plants a bug in the loader and shows that the property which should catch it does.

A property that holds of a broken loader is no property. Each case patches the real code, runs one of the
functions of properties.py that the other tests run, and expects its AssertionError.
"""

import dataclasses
from functools import partial

import numpy as np
import pytest

import loader
from loader.dataset.reading import read_fields, shard_read
from loader.order.steps import slots
from loader.run import executor
from loader.run import loader as run_loader
from loader.run.batch import collate
from loader.run.making import assemble, fetch, prefetch, substitute
from loader.run.recipe import generators as draws

real_slice = slots.rank_slice
real_generators = draws.of_slots
real_words = draws.sample_words
real_read = fetch.read_places
real_collate = assemble.collate
real_hashes = collate.delivered_hashes


class Equal:
    """Equal to everything: a check that checks nothing."""

    __hash__ = None

    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False


def rank_slice_off_by_one(patch):
    def shifted(global_batch, rank, world_size):
        found = real_slice(global_batch, rank, world_size)
        return slice(found.start, min(found.stop + (rank == 0), global_batch))

    patch.setattr(slots, "rank_slice", shifted)


def rank_slice_without_the_rest(patch):
    """B // R slots each, as most samplers do."""
    patch.setattr(
        slots, "rank_slice", lambda b, rank, world: slice(rank * (b // world), (rank + 1) * (b // world))
    )


def batches_out_of_order(patch):
    class Hasty(executor.ThreadPool):
        def __init__(self, make, threads, on_idle):
            def swapped(steps):
                made = make(range(steps.start ^ 1, (steps.start ^ 1) + len(steps)))
                for step, batch in zip(steps, made.batches, strict=True):
                    batch.step = step
                return made

            super().__init__(swapped, threads, on_idle)

    patch.setattr(executor, "ThreadPool", Hasty)


def seek_keeps_what_was_made_ahead(patch):
    def take(self, step, end):
        self._fill(step, end)
        batch = self._pending.popleft()[1].result().batches[0]
        batch.step = step
        return batch

    patch.setattr(prefetch.Prefetch, "take", take)


def samples_mixed_up(patch):
    def rolled(reading, places, numbers, run, unverified):
        n, read = (
            len(places),
            real_read(reading, places, numbers, run),
        )  # verified: the checksums find it else
        return [((number + 1) % n, *rest) for number, *rest in read]

    patch.setattr(fetch, "read_places", rolled)


def columns_mixed_up(patch):
    def reversed_(columns, framework, like=None):
        fields, mask = real_collate(columns, "numpy", like=like)
        return collate.as_framework({name: values[::-1] for name, values in fields.items()}, mask, framework)

    patch.setattr(assemble, "collate", reversed_)


def state_of_the_step_before(patch):
    patch.setattr(run_loader.Loader, "state_dict", lambda self: self.plan.state(max(self.step - 1, 0)))


def state_of_what_was_made_ahead(patch):
    def state_dict(self):
        ahead = self._execution.prefetch()._pending
        return self.plan.state(ahead[-1][0].stop if ahead else self.step)

    patch.setattr(run_loader.Loader, "state_dict", state_dict)


def state_that_only_a_rank_knows(patch):
    patch.setattr(
        run_loader.Loader, "state_dict", lambda self: {**self.plan.state(self.step), "rank": self.world.rank}
    )


def state_loaded_and_forgotten(patch):
    patch.setattr(run_loader.Loader, "load_state_dict", lambda self, state: None)


def digest_of_the_plan_alone(patch):
    patch.setattr(collate, "sample_crcs", lambda crcs: 0)


def digest_by_the_ranks_own_slots(patch):
    def renumbered(steps, slots, identities, crcs):
        return real_hashes(steps, np.arange(len(slots)), identities, crcs)

    patch.setattr(collate, "delivered_hashes", renumbered)


def draws_keyed(patch, ordinals):
    """ordinals(slots): what stands in the key instead of the version's ordinal."""

    def of_slots(plan, slots, *rest):
        return real_generators(plan, dataclasses.replace(slots, ordinal=ordinals(slots)), *rest)

    patch.setattr(draws, "of_slots", of_slots)


def draws_keyed_by_slot(patch):
    draws_keyed(patch, lambda slots: np.arange(len(slots)))


def draws_keyed_by_view_ordinal(patch):
    draws_keyed(patch, lambda slots: slots.view_ordinal)


def draws_of_one_generator(patch):
    shared = np.random.default_rng(1)
    patch.setattr(draws, "of_slots", lambda *which: lambda number: shared)


def draws_without_the_source(patch):
    patch.setattr(
        draws, "sample_words", lambda seed, source, epoch, ordinals: real_words(seed, "", epoch, ordinals)
    )


def draws_without_the_epoch(patch):
    patch.setattr(
        draws, "sample_words", lambda seed, source, epoch, ordinals: real_words(seed, source, 0, ordinals)
    )


def checksum_not_checked(patch):
    for module in (read_fields, shard_read):
        patch.setattr(module, "crc32c", lambda data: Equal())


def second_read_not_checked(patch):
    def again(self, address, place, said_by=""):
        return self.store.get_range(place.path, place.offset, place.nbytes).data

    patch.setattr(shard_read.Reading, "again", again)


def substitutes_one_attempt_further(patch):
    real = substitute.substitutes

    def further(plan, step, source, position, after=0):
        yield from real(plan, step, source, position, after + 1)

    patch.setattr(substitute, "substitutes", further)


def substitutes_by_rank(patch):
    """Drawn anew at each rank, as a sampler does that skips what it cannot read."""
    real = substitute.Substitute.__call__

    def of_the_rank(self, mine, *rest):
        shifted = dataclasses.replace(mine.slots, position=mine.slots.position + self._recipe.world.rank)
        return real(self, dataclasses.replace(mine, slots=shifted), *rest)

    patch.setattr(substitute.Substitute, "__call__", of_the_rank)


def substitutes_read_as_the_planned_sample(patch):
    """The ordinal that keys digest and generators stays the corrupt sample's."""
    real = substitute.Substitute.__call__

    def kept(self, mine, wanted, number, *rest):
        row = wanted.rows[number]
        planned = int(mine.slots.ordinal[row])
        found = real(self, mine, wanted, number, *rest)
        mine.slots.ordinal[row] = planned
        return found

    patch.setattr(substitute.Substitute, "__call__", kept)


def records_of_the_substitute_instead(patch):
    real = substitute.Substitution

    def swapped(**fields):
        made = real(**fields)
        return dataclasses.replace(
            made, address=dataclasses.replace(made.address, key=made.substitute), substitute=made.address.key
        )

    patch.setattr(substitute, "Substitution", swapped)


def store_errors_taken_for_corruption(patch):
    real = shard_read.Reading.ranges

    def typed(*arguments, **options):
        try:
            return real(*arguments, **options)
        except loader.errors.StoreError as error:
            raise loader.errors.Corrupt(str(error)) from error

    def gone(*arguments):
        raise loader.errors.Corrupt("gone")

    patch.setattr(shard_read.Reading, "ranges", typed)
    patch.setattr(shard_read.Reading, "again", gone)


def flipped(places, key, offset, data):
    """An answer with the first byte of each of these places wrong."""
    for path, at in places:
        if path == key and offset <= at < offset + len(data):
            data = data[: at - offset] + bytes([data[at - offset] ^ 1]) + data[at - offset + 1 :]
    return data


@pytest.fixture
def plan(versions):
    return loader.plan({"photos": versions["photos"], "web": versions["web"]}, seed=7, global_batch=13)


@pytest.fixture
def checks(plan, versions, properties, samples, memory_root, watched):
    def delivers():
        properties.delivers_the_plan(
            plan,
            lambda _, key: samples.sample(key.partition("/")[0], samples.number(key)),
            world_size=3,
            workers=2,
        )

    def augments():
        narrow = {name: version.select("cls") for name, version in versions.items() if name != "text"}
        properties.augments_by_sample(loader.plan(narrow, seed=2, global_batch=9))
        properties.augments_alike_in_any_view(versions["photos"], ["cls"])
        properties.augments_anew_each_epoch(versions["web"])

    def refuses():
        samples.write(memory_root, "photos", range(8))
        store = watched(memory_root)
        properties.refuses_changed_bytes(memory_root.open("photos@latest"), store, "x.npy")

    def damaged():
        version = samples.write(memory_root, "photos", range(30), part_samples=8)
        store = watched(memory_root)
        view = memory_root.open("photos@latest").select("cls", "x.npy")
        keys = [samples.key("photos", i) for i in (2, 3, 11, 12, 13, 29)]
        places = {
            (at.fields["x.npy"].path, at.fields["x.npy"].offset)
            for at in version.address(view.ordinals(keys), ["x.npy"])
        }
        return store, loader.plan({"photos": view}, seed=7, global_batch=13), keys, places

    def substitutes():
        store, plan, keys, places = damaged()
        store.change = partial(flipped, places)
        properties.substitutes_exactly(
            plan,
            {("photos", key) for key in keys},
            lambda name, key: samples.sample(name, samples.number(key)),
            world_size=3,
            workers=1,
        )

    def digests():
        store, plan, keys, places = damaged()
        store.change = partial(flipped, places)
        bad = {("photos", key) for key in keys}
        properties.substitutes_as_quarantined(plan, bad, lambda plan, step: plan.batch_ids(step))

    def unavailable():
        store, plan, _, places = damaged()
        properties.never_substitutes_what_it_cannot_reach(plan, store, {path for path, _ in places})

    return {
        "substitutes": substitutes,
        "unavailable": unavailable,
        "digests": digests,
        "delivers": delivers,
        "resumes": lambda: properties.resumes_exactly(
            plan, [(2, 2, True), (3, 2, True), (1, 1, True)], workers=2, framework="numpy"
        ),
        "seeks": lambda: properties.seeks_exactly(plan),
        "augments": augments,
        "covers": lambda: properties.digest_covers_the_bytes(memory_root, samples),
        "refuses": refuses,
    }


MUTANTS = [
    (rank_slice_off_by_one, "delivers"),
    (rank_slice_without_the_rest, "delivers"),
    (batches_out_of_order, "delivers"),
    (samples_mixed_up, "delivers"),
    (columns_mixed_up, "delivers"),
    (digest_by_the_ranks_own_slots, "delivers"),
    (seek_keeps_what_was_made_ahead, "seeks"),
    (state_of_the_step_before, "resumes"),
    (state_of_what_was_made_ahead, "resumes"),
    (state_that_only_a_rank_knows, "resumes"),
    (state_loaded_and_forgotten, "resumes"),
    (digest_of_the_plan_alone, "covers"),
    (draws_keyed_by_slot, "augments"),
    (draws_keyed_by_view_ordinal, "augments"),
    (draws_of_one_generator, "augments"),
    (draws_without_the_source, "augments"),
    (draws_without_the_epoch, "augments"),
    (checksum_not_checked, "refuses"),
    (second_read_not_checked, "refuses"),
    (substitutes_one_attempt_further, "substitutes"),
    (substitutes_by_rank, "substitutes"),
    (substitutes_read_as_the_planned_sample, "digests"),
    (records_of_the_substitute_instead, "substitutes"),
    (store_errors_taken_for_corruption, "unavailable"),
]


@pytest.mark.parametrize(("mutant", "check"), MUTANTS, ids=[mutant.__name__ for mutant, _ in MUTANTS])
def test_a_planted_bug_is_caught(mutant, check, checks, monkeypatch):
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        checks[check]()


@pytest.mark.parametrize(
    "check",
    [
        "delivers",
        "resumes",
        "seeks",
        "augments",
        "covers",
        "refuses",
        "substitutes",
        "unavailable",
        "digests",
    ],
)
def test_without_a_planted_bug_the_same_checks_hold(check, checks):
    checks[check]()
