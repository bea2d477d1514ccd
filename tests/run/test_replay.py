"""A look back at a training: repaired, rotted and masked samples; every rank's digest; and nothing written."""

import itertools
from threading import Semaphore, current_thread

import numpy as np
import pytest

import loader
from loader.errors import Corrupt, InvalidRuntime, TransformFailed
from loader.run import replay as replay_module
from loader.run.making import each_sample
from tests.refusals import refusal
from tests.run.making import test_packed_slots
from tests.run.making.test_packed_slots import FIELD
from tests.run.making.test_substitution import Flips
from tests.servers.patience import PATIENCE_S

FIELDS = ("cls", "x.npy")
BAD = {"photos": (3, 4, 17, 30), "web": (0, 5)}
STEPS = 6
roots = itertools.count()


class Writes:
    """A store's writes, by key."""

    def __init__(self, store, monkeypatch):
        self.keys = []
        for verb in ("put", "put_if_absent", "put_if_match", "delete"):
            if hasattr(store, verb):
                monkeypatch.setattr(store, verb, self._noting(getattr(store, verb)))

    def _noting(self, verb):
        def call(key, *more, **named):
            self.keys.append(key)
            return verb(key, *more, **named)

        return call


@pytest.fixture
def root(samples, watch_store):
    with loader.Root(f"memory://run-replay-{next(roots)}") as root:
        samples.write(root, "photos", range(31), part_samples=8)
        samples.write(root, "web", range(19), part_samples=7)
        watch_store(root)
        yield root


@pytest.fixture
def views(root):
    return {name: root.open(f"{name}@1").select(*FIELDS) for name in BAD}


@pytest.fixture
def damage(root, views, samples):
    """damage({source: numbers}) flips a byte of their x.npy at every read; {} repairs all."""

    def damage(bad):
        places = []
        for name, numbers in bad.items():
            keys = [samples.key(name, i) for i in numbers]
            found = views[name].version.address(views[name].ordinals(keys), ["x.npy"])
            places += [address.fields["x.npy"] for address in found]
        root.store.change = Flips(places)

    return damage


def double_values(sample, rng):
    return {**sample, "x.npy": sample["x.npy"] * 2, "draw": rng.random()}


def train_ranks(plan, **options):
    """The batches of STEPS steps of every rank of two, as they were trained."""
    out = {}
    for rank in range(2):
        with loader.Loader(
            plan, rank, 2, steps=STEPS, framework="numpy", workers=0, corrupt_budget=1, **options
        ) as one:
            for batch in one:
                out[batch.step, rank] = (
                    batch.digest,
                    batch.ids,
                    {k: np.array(v) for k, v in batch.fields.items()},
                )
    return out


def check_same(replay, plan, before):
    for (step, rank), (digest, ids, fields) in before.items():
        assert replay.digest(step, rank, 2) == digest
        batch = replay.batch(step, rank, 2)
        assert (batch.digest, batch.ids) == (digest, ids)
        assert batch.mask.all()
        for name, values in fields.items():
            np.testing.assert_array_equal(batch.fields[name], values)
    for step in range(STEPS):
        whole = sum(before[step, rank][0] for rank in range(2)) % 2**64
        assert replay.digest(step) == replay.batch(step).digest == whole
        assert sum(replay.digest(step, rank, 5) for rank in range(5)) % 2**64 == whole


def check_steps(replay, plan, before):
    """Every sample is found in the slots that were delivered with it, and corrupt ones in none."""
    delivered = {step: before[step, 0][1] + before[step, 1][1] for step in range(STEPS)}
    attempts = {
        (step, slot): int(a) for step in range(STEPS) for slot, a in enumerate(replay.slots(step).attempt)
    }
    assert {1, 2} <= set(attempts.values())
    for source, bad in BAD.items():
        view = plan.sources[source].view
        found = {key: replay.steps_of(source, key, before=STEPS) for key in view.keys(np.arange(len(view)))}
        for key, slots in found.items():
            wanted = [
                (step, slot)
                for step, ids in delivered.items()
                for slot, one in enumerate(ids)
                if one == (source, key)
            ]
            assert [one[:2] for one in slots] == wanted
            assert [one.attempt for one in slots] == [attempts[one] for one in wanted]
        assert len([key for key, slots in found.items() if not slots]) >= len(bad)


@pytest.mark.parametrize("transform", [None, double_values])
@pytest.mark.parametrize("later", [BAD, {}], ids=["as it was", "repaired"])
def test_what_was_substituted_is_delivered_again(root, views, damage, later, transform, monkeypatch):
    plan = loader.plan(views, seed=7, global_batch=13)
    damage(BAD)
    before = train_ranks(plan, transform=transform)
    recorded = loader.read_ledger(root, plan)
    assert {one.source for one in recorded} == set(BAD)
    damage(later)
    writes = Writes(root.store, monkeypatch)
    with loader.Replay(plan, recorded, transform=transform, framework="numpy") as replay:
        check_same(replay, plan, before)
        check_steps(replay, plan, before)
        with loader.Replay(plan, framework="numpy", transform=transform) as without:
            differ = [step for step in range(STEPS) if without.digest(step) != replay.digest(step)]
    assert differ == sorted({one.step for one in recorded})
    assert writes.keys == []


def test_sample_that_has_rotted_since_keeps_its_slot(root, views, damage, samples, monkeypatch):
    plan = loader.plan(views, seed=7, global_batch=13)
    before = train_ranks(plan)
    damage({"photos": [9]})
    writes = Writes(root.store, monkeypatch)
    rotted = samples.key("photos", 9)
    seen = 0
    with loader.Replay(plan, loader.read_ledger(root, plan), framework="numpy") as replay:
        for step, rank in before:
            digest, ids, fields = before[step, rank]
            batch = replay.batch(step, rank, 2)
            bad = [row for row, one in enumerate(ids) if one == ("photos", rotted)]
            assert np.flatnonzero(~batch.mask).tolist() == bad
            assert [(one.attempt, one.substitute, one.address.key) for one in batch.substitutions] == [
                (0, "", rotted) for _ in bad
            ]
            np.testing.assert_array_equal(batch.fields["cls"][batch.mask], fields["cls"][batch.mask])
            assert replay.digest(step, rank, 2) == digest
            assert (batch.digest == digest) == (not bad)
            seen += len(bad)
    assert seen
    assert writes.keys == []
    with loader.Loader(plan, 0, 1, framework="numpy", workers=0) as batches:
        for step in range(STEPS):
            batches.batch_at(step)
    assert any(key.startswith("ledgers/") for key in writes.keys), "a Loader's look substitutes, and writes"


def test_batch_of_nothing_but_rotten_samples_is_an_error(views, damage):
    plan = loader.plan({"photos": views["photos"]}, seed=7, global_batch=4)
    damage({"photos": range(31)})
    with (
        loader.Replay(plan, framework="numpy") as replay,
        refusal(Corrupt, what="x.npy", within="field 'x.npy'"),
    ):
        replay.batch(0)


def test_masked_documents_stay_masked(root, damage, monkeypatch):
    version = test_packed_slots.write(root)
    plan = test_packed_slots.make_plan(version)
    ordinals = version.select(FIELD).ordinals([f"docs-{number:03d}" for number in (3, 4, 17, 60)])
    found = version.address(ordinals, [FIELD])
    root.store.change = Flips([address.fields[FIELD] for address in found])
    before = train_ranks(plan)
    recorded = loader.read_ledger(root, plan)
    assert recorded
    assert {one.attempt for one in recorded} == {0}
    damage({})
    writes = Writes(root.store, monkeypatch)
    with loader.Replay(plan, recorded, framework="numpy") as replay:
        check_same(replay, plan, before)
    assert writes.keys == []


def trail_parts(run, plan, world_size=2):
    """Step -> parts as a run's trail has them: (rank, world size, digest, substituted slots)."""
    planned = loader.Replay(plan, framework="numpy")
    parts = {step: [] for step in range(STEPS)}
    for (step, rank), (digest, *_) in run.items():
        parts[step].append((rank, 2, digest, int(digest != planned.digest(step, rank, 2))))
    if world_size == 1:  # a trail of whole batches
        parts = {
            step: [(0, 1, sum(one[2] for one in some) % 2**64, sum(one[3] for one in some))]
            for step, some in parts.items()
        }
    planned.close()
    return parts


def check_each_run(root, plan, runs):
    """Each run of a plan is looked back on as it was, whichever was looked at before."""
    recorded = loader.read_ledger(root, plan)
    with loader.Replay(plan, recorded, framework="numpy") as replay:
        for world_size in (2, 1):
            for run in [*runs, *reversed(runs)]:
                for step, parts in trail_parts(run, plan, world_size).items():
                    assert replay.settle(step, parts) is True
                check_same(replay, plan, run)
        for step in {one.step for one in recorded}:
            told = trail_parts(runs[0], plan)[step]
            everything = loader.Replay(plan, recorded, framework="numpy").digest(step)
            for digest, answer in ((1, False), (2, False)):
                assert replay.settle(step, [(0, 1, digest, 1)]) is answer
                assert replay.digest(step) == everything, "all on record, where nobody can tell"
            assert replay.settle(step, told) is True
            assert replay.settle(step, []) is True
            assert replay.digest(step) == everything


def test_runs_of_one_plan_are_told_apart_by_their_digests(root, views, damage):
    plan = loader.plan(views, seed=7, global_batch=13)
    runs = []
    for bad in ({}, BAD, {"photos": [3, 9]}, {"web": [0]}, {}):
        damage(bad)
        runs.append(train_ranks(plan))
    damage({})
    assert len({tuple(one[0] for one in run.values()) for run in runs}) == 4
    check_each_run(root, plan, runs)


def test_runs_of_one_packed_plan_are_told_apart_by_their_digests(root, damage):
    version = test_packed_slots.write(root, "apart")
    plan = loader.plan({"docs": version.select(FIELD)}, seed=3, global_batch=6, pack=test_packed_slots.PACK)
    runs = []
    for bad in ((), (3, 4, 17, 60), (4, 5)):
        ordinals = version.select(FIELD).ordinals([f"apart-{number:03d}" for number in bad])
        found = version.address(ordinals, [FIELD])
        root.store.change = Flips([address.fields[FIELD] for address in found])
        runs.append(train_ranks(plan))
    damage({})
    assert len({tuple(one[0] for one in run.values()) for run in runs}) == 3
    check_each_run(root, plan, runs)


def test_more_choices_than_can_be_tried_are_undecided(root, views, damage, monkeypatch):
    plan = loader.plan(views, seed=7, global_batch=13)
    damage(BAD)
    before = train_ranks(plan)
    damage({})
    recorded = loader.read_ledger(root, plan)
    monkeypatch.setattr(replay_module, "MOST_CHOICES", 1)
    with loader.Replay(plan, recorded, framework="numpy") as replay:
        for step in {one.step for one in recorded}:
            assert replay.settle(step, [(0, 1, 1, 1)]) is None
        check_same(replay, plan, before)


def test_last_epoch_is_padded_as_it_was(root, views):
    plan = loader.plan({"web": views["web"]}, seed=1, global_batch=8)
    with loader.Loader(plan, 0, 1, epochs=1, framework="numpy", workers=0) as batches:
        digests = [batch.digest for batch in batches]
    with loader.Replay(plan, framework="numpy", epochs=1) as replay:
        assert [replay.digest(step) for step in range(3)] == digests
        assert replay.batch(2).mask.tolist() == [True] * 3 + [False] * 5
        assert replay.slots(2).valid.sum() == 8, "the plan goes on"


def test_closed_replay_says_so(views):
    with loader.Replay(loader.plan(views, seed=7, global_batch=13), framework="numpy") as replay:
        assert len(replay.slots(3, 1, 4)) == 3
    for ask in (replay.digest, replay.batch, replay.slots, lambda step: replay.slot(step, 0)):
        with refusal(InvalidRuntime, what="Replay", given="closed"):
            ask(0)


def test_entries_of_another_plan_are_refused(root, views, damage):
    plan = loader.plan(views, seed=7, global_batch=13)
    damage(BAD)
    train_ranks(plan)
    other = loader.plan({"z": views["web"]}, seed=7, global_batch=13)
    with refusal(InvalidRuntime, what="substitutions", where="step 0", given="photos"):
        loader.Replay(other, loader.read_ledger(root, plan))


@pytest.mark.parametrize("transform", [None, double_values])
def test_slot_is_the_row_of_its_batch(root, views, damage, transform, monkeypatch):
    plan = loader.plan(views, seed=7, global_batch=13)
    damage(BAD)
    train_ranks(plan)
    recorded = loader.read_ledger(root, plan)
    damage({})
    writes = Writes(root.store, monkeypatch)
    substitutes = 0
    with (
        loader.Replay(plan, recorded, framework="numpy") as plain,
        loader.Replay(plan, recorded, transform=transform, framework="numpy") as replay,
    ):
        for step in range(STEPS):
            slots, batch, decoded = replay.slots(step), replay.batch(step), plain.batch(step)
            for number in range(13):
                seen = replay.slot(step, number)
                assert (seen.step, seen.slot, seen.epoch) == (step, number, slots.epoch[number])
                assert (seen.source, seen.address.key) == batch.ids[number]
                assert seen.attempt == slots.attempt[number]
                for name in batch.fields:
                    np.testing.assert_array_equal(seen.trained[name], batch[name][number])
                for name in FIELDS:
                    np.testing.assert_array_equal(seen.decoded[name], decoded[name][number])
                assert seen.repeats
                assert seen.error is None
                drawn = [] if transform is None else [f"random() = {seen.trained['draw']}"]
                assert list(seen.draws) == drawn
                substitutes += seen.attempt > 0
    assert substitutes
    assert writes.keys == []


def test_slot_of_documents_is_a_sequence(root, damage):
    plan = test_packed_slots.make_plan(test_packed_slots.write(root))
    with loader.Replay(plan, framework="numpy") as replay:
        batch, seen = replay.batch(2), replay.slot(2, 1)
        assert seen.address.key == batch.ids[1][1]
        assert seen.trained.keys() == batch.fields.keys()
        for name, values in batch.fields.items():
            np.testing.assert_array_equal(seen.trained[name], values[1])


def test_slot_tells_what_is_wrong_with_it(views, damage, samples):
    plan = loader.plan({"photos": views["photos"]}, seed=7, global_batch=4)
    noise = np.random.default_rng()

    def anyhow(sample, rng):
        rng.integers(0, 9, size=2)
        return {"x": noise.random(3), "nan": float("nan"), "same": [sample["cls"]]}

    def raise_error(sample, rng):
        raise ValueError("no picture")

    with loader.Replay(plan, transform=anyhow, framework="numpy") as replay:
        seen = replay.slot(1, 2)
        assert not seen.repeats
        assert seen.draws[0].startswith("integers(0, 9, size=2) = [")
    with loader.Replay(plan, transform=raise_error, framework="numpy") as replay:
        seen = replay.slot(1, 2)
        assert isinstance(seen.error, TransformFailed)
        assert "ValueError" in str(seen.error)
        assert "no picture" in str(seen.error)
        assert (seen.trained, sorted(seen.decoded)) == ({}, sorted(FIELDS))
        for number in (-1, 4):
            with refusal(InvalidRuntime, what="slot", where="step 1", given=number, accepted="0 to 3"):
                replay.slot(1, number)
    damage({"photos": range(31)})
    with loader.Replay(plan, framework="numpy") as replay:
        seen = replay.slot(1, 2)
        assert isinstance(seen.error, Corrupt)
        assert (seen.trained, seen.decoded) == ({}, {})
    damage({})
    with loader.Replay(plan, framework="numpy", epochs=1) as replay:
        assert replay.slot(7, 2).error is None
        with refusal(InvalidRuntime, what="padding", where="step 7", given=3):
            replay.slot(7, 3)


def test_samples_one_by_one_are_let_go(views, damage, monkeypatch):
    """They are those of the batch, and as many are in memory for any number of them: bytes, values and results."""
    plan = loader.plan(views, seed=3, global_batch=18)
    monkeypatch.setattr(each_sample, "MOST_STORED_BYTES", 1000)
    damage({"photos": (3, 4), "web": (0, 5)})
    live, most = set(), [0]

    class Value(list):
        def __init__(self, given):
            super().__init__(given)
            live.add(id(self))
            most[0] = max(most[0], len(live))

        def __del__(self):
            live.discard(id(self))

    def transform(sample, rng):
        return {**sample, "value": Value(sample["x.npy"].tolist()), "drawn": rng.random(4)}

    with loader.Replay(plan, framework="numpy", transform=transform) as replay:
        for step in range(STEPS):
            found = {}

            def take(row, sample, found=found):
                found[row] = {name: np.asarray(value).tolist() for name, value in sample.items()}

            made = replay.each(step, take, 1, 2)
            assert most[0] <= 2
            whole = replay.batch(step, 1, 2)
            most[0] = 0
            assert (made.digest, made.ids, made.substitutions) == (
                whole.digest,
                whole.ids,
                whole.substitutions,
            )
            assert sorted(found) == np.flatnonzero(whole.mask).tolist()
            for row, sample in found.items():
                assert sample == {name: np.asarray(whole.fields[name][row]).tolist() for name in sample}
            del whole


@pytest.mark.parametrize("large", [False, True])
def test_next_sample_is_prefetched(views, monkeypatch, large):
    """A large one is not. A transform fails where its sample would have come."""
    plan = loader.plan({"photos": views["photos"]}, seed=3, global_batch=6)
    if large:
        monkeypatch.setattr(each_sample, "MOST_AHEAD_BYTES", 0)
    begun, threads, taken = Semaphore(0), [], []

    def transform(sample, rng):
        threads.append(current_thread())
        begun.release()
        return sample if len(threads) < 6 else 1 / 0

    def take(row, sample):
        assert begun.acquire(blocking=False)
        taken.append(row)
        if not large:
            assert begun.acquire(timeout=PATIENCE_S)
            begun.release()

    replay = loader.Replay(plan, framework="numpy", transform=transform)
    with (
        replay,
        refusal(TransformFailed, given="ZeroDivisionError", within="sample 'photos/"),
    ):
        replay.each(0, take)
    assert taken == list(range(5))
    assert [one is current_thread() for one in threads] == [True] + 5 * [large]
