"""Corrupt samples: substituted by the plan's rule, the same for every runtime; nothing else is ever substituted."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from loader.errors import (
    Corrupt,
    DecodeFailed,
    Forbidden,
    InvalidRuntime,
    ObjectNotFound,
    Throttled,
    TooManyCorrupt,
    TransformFailed,
    Transient,
)
from tests.refusals import refusal

FIELDS = ("cls", "x.npy", "txt")
BAD = {"photos": {3, 4, 17, 30}, "web": {0, 5}}


class Flips:
    """Flips a byte of every answer that holds one of these places: the disk holds something else than was written."""

    def __init__(self, places):
        self.places = {(place.path, place.offset) for place in places}
        self.reads = set()

    def __call__(self, key, offset, data):
        self.reads.add((key, offset))
        for path, at in self.places:
            if path == key and offset <= at < offset + len(data):
                at -= offset
                data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        return data


def refuses(numbers):
    """A decoder of `cls` that reads no sample of these numbers."""

    def decode(data, rng):
        if int(data) in numbers:
            raise ValueError(f"{int(data)} is not to be read")
        return int(data)

    return decode


@pytest.fixture(scope="module")
def root(samples, watch_store):
    with loader.Root("memory://run-substitution") as root:
        samples.write(root, "photos", range(31), part_samples=8)
        samples.write(root, "web", range(19), part_samples=7)
        watch_store(root)
        yield root


@pytest.fixture(autouse=True)
def whole_again(root):
    yield
    root.store.change = lambda key, offset, data: data


@pytest.fixture(scope="module")
def views(root):
    return {name: root.open(f"{name}@1").select(*FIELDS) for name in ("photos", "web")}


@pytest.fixture(scope="module")
def truth(samples):
    return lambda source, key: samples.sample(source, samples.number(key))


@pytest.fixture(scope="module")
def damage(root, views, samples):
    """damage({source: numbers}) flips a byte of their x.npy at every read; gives their (source, key)."""

    def damage(bad):
        places, ids = [], set()
        for name, numbers in bad.items():
            keys = [samples.key(name, i) for i in sorted(numbers)]
            ids |= {(name, key) for key in keys}
            found = views[name].version.address(views[name].ordinals(keys), ["x.npy"])
            places += [address.fields["x.npy"] for address in found]
        root.store.change = Flips(places)
        return ids

    return damage


@pytest.fixture(scope="module")
def plan(views):
    return loader.plan(
        {"photos": loader.source(views["photos"], weight=2), "web": views["web"]}, seed=7, global_batch=13
    )


# (Any pair of them is drawn below.)
@pytest.mark.parametrize(("world_size", "workers"), [(1, 3), (2, 1), (3, 2), (8, 0), (8, 1)])
def test_every_world_size_and_every_thread_count(world_size, workers, damage, plan, truth, properties):
    properties.substitutes_exactly(
        plan, damage(BAD), truth, world_size=world_size, workers=workers, steps=5, cut=3
    )


def test_substitute_is_of_the_batchs_bucket(damage, views, samples, truth, properties):
    plan = loader.plan(views, seed=7, global_batch=8, bucket_by="even")
    names = {samples.key(name, i) for name, numbers in BAD.items() for i in numbers}
    damage(BAD)
    bad = {(name, key) for name, one in plan.sources.items() for key in names if key.startswith(one.source)}
    properties.substitutes_exactly(
        plan, bad, lambda name, key: truth(plan.sources[name].source, key), world_size=3, workers=2, steps=8
    )


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    flipped=st.fixed_dictionaries(
        {"photos": st.sets(st.integers(0, 30), max_size=8), "web": st.sets(st.integers(0, 18), max_size=5)}
    ),
    refused=st.sets(st.integers(0, 30), max_size=3),
    seed=st.integers(0, 2**64 - 1),
    world_size=st.sampled_from((1, 2, 3, 8)),
    workers=st.integers(0, 3),
    start=st.one_of(st.integers(0, 30), st.just(10**9)),
    cut=st.integers(0, 4),
)
def test_any_corrupt_samples_at_any_runtime(
    flipped, refused, seed, world_size, workers, start, cut, damage, views, samples, truth, properties
):
    plan = loader.plan(views, seed=seed, global_batch=11)
    bad = damage(flipped) | {(name, samples.key(name, i)) for name in views for i in refused}
    properties.substitutes_exactly(
        plan,
        bad,
        truth,
        world_size=world_size,
        workers=workers,
        start=start,
        cut=cut,
        decode={"cls": refuses(refused)},
    )


def test_quarantined_run_delivers_what_the_substituted_one_did(damage, root, views, properties, samples):
    """Substituted or quarantined from the start: the same samples, so the same digests."""
    bad = damage(BAD)
    plan = loader.plan(views, seed=7, global_batch=13)

    def step_keys(plan, step):
        return [(one.source, one.address.key) for one in loader.explain(plan, step)]

    samples_of = step_keys
    names = {name: [key for source, key in bad if source == name] for name in plan.sources}
    sources = {name: one.view for name, one in plan.sources.items()}
    quarantined = loader.plan(
        sources, seed=plan.seed, global_batch=plan.global_batch, quarantine=names, allow_repeats=True
    )
    assert properties.reference_digests(quarantined, 4) == properties.reference_digests(
        plan, 4, corrupt_budget=1.0
    )
    for step in range(4):
        assert quarantined.batch_ids(step) == properties.with_substitutes(plan, step, bad)[0]
        assert samples_of(quarantined, step) == quarantined.batch_ids(step)
    flips = root.store.change
    flips.reads.clear()
    quarantined = loader.plan(
        views, seed=7, global_batch=13, quarantine={name: [k for n, k in bad if n == name] for name in views}
    )
    options = {"framework": "numpy", "on_corrupt": "raise", "cache": 0}  # pages hold other samples too
    with loader.Loader(quarantined, 0, 1, steps=6, **options) as batches:
        for batch in batches:
            assert batch.ids == quarantined.batch_ids(batch.step)
            assert [one.attempt for one in loader.explain(quarantined, batch.step)] == quarantined.slots(
                batch.step
            ).attempt.tolist()
    assert flips.places
    assert not flips.places & flips.reads


def test_quarantined_slot_whose_substitute_is_corrupt_goes_on_to_the_next(damage, views, truth, properties):
    """The attempts go on from the one that the plan holds."""
    first = loader.plan(views, seed=7, global_batch=13)
    bad = {("photos", key) for name, key in first.batch_ids(0)[:6] if name == "photos"}
    quarantined = loader.plan(views, seed=7, global_batch=13, quarantine={"photos": [key for _, key in bad]})
    slots = quarantined.slots(0)
    held = [key for (_, key), attempt in zip(quarantined.batch_ids(0), slots.attempt, strict=True) if attempt]
    numbers = {int(key[-3:]) for key in held}
    assert numbers
    corrupt = damage({"photos": numbers})
    with loader.Loader(quarantined, 0, 1, framework="numpy", workers=0, corrupt_budget=1.0) as batches:
        batch = next(batches)
    first_of = {one.slot: one.attempt for one in reversed(batch.substitutions)}
    assert first_of == {slot: slots.attempt[slot] + 1 for slot in first_of}
    assert 2 in first_of.values()
    assert not set(batch.ids) & (corrupt | bad)
    assert not {("photos", one.address.key) for one in batch.substitutions} & bad


def test_unknown_keys_are_refused_by_name(views):
    with refusal(loader.errors.InvalidPlan, what="key", where="source 'photos'", given="photos/999"):
        loader.plan(views, seed=7, global_batch=13, quarantine={"photos": ["photos/001", "photos/999"]})


def test_grown_version_with_exclusions_and_a_predicate(memory_root, samples):
    samples.write(memory_root, "photos", range(20), part_samples=6)
    memory_root.exclude("photos", ["photos/004", "photos/011"], reason="blurred")
    version = samples.write(memory_root, "photos", range(20, 33), part_samples=4)
    keys = [f"photos/{i:03d}" for i in (0, 3, 5, 12, 19, 20, 32)]
    view = version.select("cls")
    assert version.keys(view.ordinals(keys)) == keys
    assert view.ordinals(["photos/004", "photos/011", "photos/999"]).tolist() == [-1, -1, -1]
    assert view.ordinals([]).tolist() == []
    plan = loader.plan({"p": view.where("i > 2")}, seed=1, global_batch=14, quarantine={"p": keys})
    seen = {key for step in range(6) for _, key in plan.batch_ids(step)}
    assert not seen & set(keys)
    plan.save(memory_root)
    again = loader.open_plan(memory_root, plan.hash)
    assert [again.batch_ids(step) for step in range(6)] == [plan.batch_ids(step) for step in range(6)]


def overwrite(root, place):
    """One bit of a field, in the file itself; names, sizes and times stay as they were."""
    full = os.path.join(root.url, place.path)
    status = os.stat(full)
    with open(full, "r+b") as file:
        file.seek(place.offset + place.nbytes // 2)
        (byte,) = file.read(1)
        file.seek(place.offset + place.nbytes // 2)
        file.write(bytes([byte ^ 0x10]))
    os.utime(full, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("workers", [0, 2])
def test_flipped_byte_in_a_stored_shard(workers, tmp_path, samples, truth, properties):
    root = loader.Root(str(tmp_path / "root"))
    version = samples.write(root, "photos", range(40), part_samples=8)
    plan = loader.plan({"photos": version.select("x.npy", "txt")}, seed=6, global_batch=8)
    bad = loader.explain(plan, 3)[5]
    overwrite(root, bad.address.fields["x.npy"])
    properties.substitutes_exactly(
        plan, {("photos", bad.address.key)}, truth, world_size=3, workers=workers, steps=5
    )
    (listed,) = loader.read_ledger(root, plan)
    assert (listed.step, listed.slot, listed.attempt, listed.stage) == (3, 5, 1, "checksum")
    assert (listed.source, listed.epoch, listed.position) == (bad.source, bad.epoch, bad.position)
    assert listed.address == bad.address
    assert "after reading it twice" in listed.error
    with loader.Loader(plan, 0, 1, workers=workers) as batches:
        batches.seek(3)
        assert next(batches).ids[5] == ("photos", listed.substitute)
        assert batches.metrics()["substituted_total"] == 1
    with loader.Loader(plan, 0, 1, workers=workers, on_corrupt="raise") as batches:
        batches.seek(3)
        with pytest.raises(Corrupt) as caught:
            next(batches)
        assert bad.address.describe("x.npy") in str(caught.value)
        assert batches.metrics()["substituted_total"] == 0


def test_packet_of_a_video(memory_root, media, watch_store):
    """Only where its packet is needed: a clip whose frames lie elsewhere is sound."""
    from loader.modalities.video.packet_table import index_packets

    store = watch_store(memory_root)
    with memory_root.write("clips", groups={"mp4.packets": "media_index"}) as writer:
        for i in range(5):
            data = media.video(i, 12)
            writer.add(f"{i}", {"mp4": data, "mp4.packets": index_packets(data)})
    plan = loader.plan({"v": writer.version.select("mp4")}, seed=1, global_batch=5)
    (one,) = [one for one in loader.explain(plan, 0) if one.address.key == "3"]
    place = one.address.fields["mp4"]

    def change(key, offset, data):
        inside = key == place.path and place.offset <= offset < place.offset + place.nbytes
        return bytes([data[0] ^ 1]) + data[1:] if inside else data

    store.change = change
    decode = {"mp4": loader.video(4, start=0)}
    for world_size in (1, 2):
        got = []
        for rank in range(world_size):
            with loader.Loader(plan, rank, world_size, decode=decode, framework="numpy") as batches:
                batch = next(batches)
                got += zip(batch.ids, map(media.clip_sample, batch["mp4"]), strict=True)
        assert [int(key) for (_, key), _ in got] == [shown for _, shown in got]
        assert got[one.slot][0][1] != "3"
        assert [key for i, ((_, key), _) in enumerate(got) if i != one.slot] == [
            key for i, (_, key) in enumerate(plan.batch_ids(0)) if i != one.slot
        ]


class Failing:
    """A decoder that refuses its first `times` calls about sample `number`."""

    def __init__(self, number, times, error=None):
        self.number, self.left, self.error = number, times, error or ValueError("no")

    def __call__(self, data, rng):
        if int(data) == self.number and self.left:
            self.left -= 1
            raise self.error
        return int(data)


@pytest.fixture(scope="module")
def small(views):
    """A plan of one field, and the number and slot of a sample of its first batch."""
    plan = loader.plan({"photos": views["photos"].version.select("cls")}, seed=3, global_batch=8)
    return plan, int(plan.batch_ids(0)[4][1][-3:]), 4


def test_what_does_not_decode_is_read_and_decoded_once_more(small, root):
    plan, number, _ = small
    root.store.requests.clear()
    with loader.Loader(plan, 0, 1, decode={"cls": Failing(number, 1)}, workers=0) as batches:
        batch = next(batches)
        assert batch.ids == plan.batch_ids(0)
        assert not batch.substitutions
        assert (batches.metrics()["refetched_total"], batches.metrics()["substituted_total"]) == (1, 0)


def test_what_does_not_decode_twice_is_substituted(small):
    plan, number, slot = small
    with loader.Loader(plan, 0, 1, decode={"cls": Failing(number, 2)}, workers=0) as batches:
        batch = next(batches)
        (one,) = batch.substitutions
        assert (one.slot, one.stage, one.address.key) == (slot, "decode", f"photos/{number:03d}")
        assert "raised ValueError: no" in one.error
        assert batch.ids[slot] == ("photos", one.substitute)
        assert int(batch["cls"][slot]) == int(one.substitute[-3:])
    with (
        loader.Loader(
            plan, 0, 1, decode={"cls": Failing(number, 2)}, workers=0, on_corrupt="raise"
        ) as batches,
        refusal(DecodeFailed, what="cls", given="ValueError"),
    ):
        next(batches)


@pytest.mark.parametrize(
    "error",
    [MemoryError("full"), TimeoutError("slow"), ConnectionResetError("gone"), PermissionError(13, "denied")],
)
def test_decoder_that_fails_for_want_of_something_else_is_no_corrupt_sample(small, error):
    plan, number, _ = small
    with loader.Loader(plan, 0, 1, decode={"cls": Failing(number, 9, error)}, workers=0) as batches:
        with pytest.raises(type(error)) as caught:
            next(batches)
        assert any("while decoding photos@1" in note for note in caught.value.__notes__)


def test_when_all_substitutes_are_corrupt_the_slots_own_error_is_raised(small):
    plan, _, _ = small
    first = int(plan.batch_ids(0)[0][1][-3:])
    with loader.Loader(plan, 0, 1, decode={"cls": refuses(range(99))}, workers=0) as batches:
        with refusal(DecodeFailed, what="cls", given="ValueError", within=f"/{first:03d}'") as caught:
            next(batches)
        assert any("substitutes are corrupt too" in note for note in caught.value.__notes__)
        assert batches.metrics()["substituted_total"] == 0


@pytest.mark.parametrize("error", [Transient, Throttled, Forbidden, ObjectNotFound])
@pytest.mark.parametrize("workers", [0, 2])
def test_what_cannot_be_reached_is_never_substituted(error, workers, root, plan):
    """Neither a planned sample nor a substitute."""
    path = loader.explain(plan, 0)[3].address.fields["x.npy"].path

    def unavailable(key, offset, data):
        if key == path:
            raise error("the store is not there")
        return data

    root.store.change = unavailable
    with loader.Loader(plan, 0, 1, workers=workers, corrupt_budget=1.0) as batches:
        with pytest.raises(error):
            next(batches)
        assert batches.metrics()["substituted_total"] == 0


def test_substitute_that_cannot_be_reached_is_not_substituted_either(damage, root, views, properties):
    plan = loader.plan({"photos": views["photos"]}, seed=7, global_batch=1)
    bad = damage({"photos": {int(plan.batch_ids(2)[0][1][-3:])}})
    _, ((_, _, _, stand_in),) = properties.with_substitutes(plan, 2, bad)
    (address,) = views["photos"].version.address(views["photos"].ordinals([stand_in]), ["x.npy"])
    place, flips = address.fields["x.npy"], root.store.change

    def change(key, offset, data):
        if (key, offset) == (place.path, place.offset):
            raise Transient("gone for now", what="request", given="cut")
        return flips(key, offset, data)

    root.store.change = change
    with loader.Loader(plan, 0, 1, workers=0, cache=0) as batches:
        batches.seek(2)
        with refusal(Transient, what="request", given="cut"):
            next(batches)


@pytest.mark.parametrize("error", [ValueError("bug"), Corrupt("mine")])
def test_transforms_error_is_never_substituted(small, error):
    plan, number, _ = small
    calls = []

    def transform(sample, rng):
        calls.append(sample["cls"])
        if sample["cls"] == number:
            raise error
        return sample

    with loader.Loader(plan, 0, 1, transform=transform, workers=0) as batches:
        with pytest.raises(TransformFailed):
            next(batches)
        assert batches.metrics()["substituted_total"] == 0
    assert calls.count(number) == 1


def test_substitute_draws_as_itself(small, views):
    """Its augmentation is the one that it has in this epoch wherever it stands."""
    plan, number, slot = small

    def draw(sample, rng):
        return {**sample, "drawn": int(rng.integers(2**62))}

    with loader.Loader(plan, 0, 1, transform=draw, decode={"cls": Failing(number, 2)}, workers=0) as batches:
        batch = next(batches)
        key = batch.ids[slot][1]
        taken = int(batch["drawn"][slot])
    with loader.Loader(plan, 0, 1, transform=draw, framework="numpy", epochs=1) as batches:
        drawn = {one[1]: int(v) for b in batches for one, v in zip(b.ids, b["drawn"], strict=True) if one}
    assert taken == drawn[key]


class TestBudget:
    @pytest.fixture
    def bad_half(self, views):
        plan = loader.plan({"photos": views["photos"].select("cls")}, seed=4, global_batch=8)
        return plan, {"cls": refuses({i for i in range(31) if i % 3 == 0})}

    def read_until_stopped(self, batches):
        samples = substituted = 0
        while True:
            try:
                batch = next(batches)
            except TooManyCorrupt as error:
                return samples, substituted, str(error)
            samples += len(batch.ids)
            substituted += len({one.slot for one in batch.substitutions})

    @pytest.mark.parametrize("workers", [0, 2])
    def test_run_stops_beyond_it_and_names_the_ledger(self, bad_half, workers, root):
        plan, decode = bad_half
        with loader.Loader(plan, 0, 1, decode=decode, workers=workers) as batches:
            samples, substituted, said = self.read_until_stopped(batches)
            assert substituted <= 8 + 1e-4 * samples
            step = samples // 8
            assert batches.step == step
            for text in (f"step {step}:", f"{samples + 8} samples", "allows 8", "read_ledger", "quarantine"):
                assert text in said
            assert f"{root.url}/ledgers/{plan.hash}/0-of-1/" in said
            assert self.read_until_stopped(batches) == (0, 0, said)
            state = batches.state_dict()
        assert state["step"] == step
        listed = {(one.step, one.slot) for one in loader.read_ledger(root, plan)}
        assert sum(at == step for at, _ in listed) >= 1
        assert len({at for at in listed if at[0] < step}) == substituted

    def test_budget_of_nothing_allows_nothing(self, bad_half):
        plan, decode = bad_half
        with loader.Loader(plan, 0, 1, decode=decode, corrupt_budget=0) as batches:
            _, substituted, said = self.read_until_stopped(batches)
        assert substituted == 0
        assert "allows 0" in said

    def test_share_grows_with_the_samples(self, bad_half):
        plan, decode = bad_half
        with loader.Loader(plan, 0, 1, decode=decode, corrupt_budget=0.3, workers=2) as batches:
            samples, substituted, _ = self.read_until_stopped(batches)
        assert samples > 100
        assert substituted <= 8 + 0.3 * samples
        with loader.Loader(plan, 0, 1, decode=decode, corrupt_budget=1, steps=60) as batches:
            assert len(list(batches)) == 60

    def test_looking_at_one_batch_again_and_again_spends_nothing(self, small):
        plan, number, slot = small
        with loader.Loader(plan, 0, 1, decode={"cls": refuses({number})}, workers=0) as batches:
            for _ in range(20):
                assert batches.batch_at(0).ids[slot] != plan.batch_ids(0)[slot]
            assert next(batches).step == 0

    @pytest.mark.parametrize("budget", [-0.1, 1.1, "1", None, True, float("nan")])
    def test_budgets_that_are_refused(self, small, budget):
        with refusal(InvalidRuntime, what="corrupt_budget", given=budget):
            loader.Loader(small[0], 0, 1, corrupt_budget=budget)

    def test_other_words_are_refused(self, small):
        with refusal(InvalidRuntime, what="on_corrupt", given="skip"):
            loader.Loader(small[0], 0, 1, on_corrupt="skip")


def test_rank_of_padding_alone_lists_nothing(views, root):
    """It reads another rank's sample for its shapes, and takes that sample's substitute."""
    few = views["photos"].version.where("i < 5").select("cls")
    plan = loader.plan({"p": few}, seed=2, global_batch=4, allow_repeats=True)
    number = int(
        next(key for _, key in [plan.batch_ids(1)[i] for i in range(4) if plan.slots(1).position[i] < 5])[-3:]
    )
    options = {"decode": {"cls": refuses({number})}, "epochs": 1, "framework": "numpy", "workers": 0}
    listed = []
    for rank in range(4):
        with loader.Loader(plan, rank, 4, **options) as batches:
            batches.seek(1)
            batch = next(batches)
            assert np.asarray(batch["cls"]).shape == (1,)
            assert bool(batch.mask[0]) == (batch.ids[0] is not None)
            listed += [(rank, one.slot) for one in batch.substitutions]
    assert len(listed) == 1
    assert listed[0][0] == listed[0][1]
